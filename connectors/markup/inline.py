"""The running text of one block: white space, escapes, emphasis, links."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from connectors.markup.parsing import Element

MOST_LOOKED_AT = 1000
"""Elements of a link, for what it leads to."""
_INVISIBLE = re.compile("[\u200b\ufeff\u00ad]")
_TYPED_CODE = re.compile(r"(`[^`\n]++`)")
_MEANT_AS_TEXT = re.compile(
    r"`|\\(?=[!-/:-@\[-`{-~])|<(?=[A-Za-z/!?])|&(?=#?\w{1,31};)|\](?=\()|~(?=~)|(?<=~)~"
)
_STARS = re.compile(r"(?<!\*)(?:(?<=\S)\*++|\*++(?=\S))")
_OPENING_UNDERSCORES = re.compile(r"(?<![^\W_])(?<!_)_++(?=\S)")
_CLOSING_UNDERSCORES = re.compile(r"(?<=[^\s_])_++(?![^\W_])")
_EDGE_UNDERSCORES = re.compile(f"{_OPENING_UNDERSCORES.pattern}|{_CLOSING_UNDERSCORES.pattern}")
_BLOCK_START = re.compile(
    r"#{1,6}(?=\s|$)|[-+*](?=\s|$)|>|=++\s*+$|(?:[*_-]\s*+){3,}+$|(?=[:|\s]*+-)[-:|\s]++$|\[[^\]]{1,200}\]:"
)
_NUMBERED = re.compile(r"^(\d{1,9})(?=[.)](?:\s|$))")
_BACKTICKS = re.compile("`+")


def escape_text(text: str, *, in_emphasis: bool = False, in_label: bool = False) -> str:
    """A piece of running text; code somebody typed between backticks stays code."""
    if in_label and ("[" in text or "]" in text):
        pieces = re.split(r"([\[\]])", text)
        pieces[::2] = [escape_text(piece, in_emphasis=in_emphasis) for piece in pieces[::2]]
        pieces[1::2] = [f"\\{bracket}" for bracket in pieces[1::2]]
        return "".join(pieces)
    pieces = _TYPED_CODE.split(text)
    pieces[::2] = [_escape_plain(piece, in_emphasis) for piece in pieces[::2]]
    return "".join(pieces)


def _escape_plain(text: str, in_emphasis: bool) -> str:
    text = _MEANT_AS_TEXT.sub(r"\\\g<0>", _INVISIBLE.sub("", text))
    if in_emphasis:
        text = text.replace("*", "\\*")
    elif text.count("*") > 1:
        text = _STARS.sub(_each_escaped, text)
    if text.count("_") > 1 and _OPENING_UNDERSCORES.search(text) and _CLOSING_UNDERSCORES.search(text):
        text = _EDGE_UNDERSCORES.sub(_each_escaped, text)
    return text


def _each_escaped(run: re.Match[str]) -> str:
    return "".join(f"\\{mark}" for mark in run[0])


def paragraph_lines(text: str) -> list[str]:
    """The lines of a paragraph, without blank ones, each readable as nothing but a line of a paragraph."""
    lines = filter(None, map(str.strip, text.split("\n")))
    return [
        f"\\{line}" if _BLOCK_START.match(line) else _NUMBERED.sub(r"\1\\", line, count=1) for line in lines
    ]


def escape_heading(text: str) -> str:
    """One line; a last word of `#` is not taken for the heading's end mark."""
    line = " ".join(text.split())
    return re.sub(r"(?<= )(#+)$", r"\\\1", line)


def code_span(code: str) -> str:
    """Code within a line, on one line."""
    text = " ".join(code.split())
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    blank = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{blank}{text}{blank}{fence}"


def code_fence(code: str) -> str:
    """A fence that no run of backticks in `code` closes."""
    return "`" * max(3, _longest_run(code) + 1)


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


Wrap = Callable[[str], str]
"""What a mark makes of the text it is about: never blank, without blanks at its ends."""

STRONG, EMPHASIS, STRUCK, CODE, LINK, RAISED, LOWERED = "strong", "em", "del", "code", "link", "sup", "sub"
_MERGED = {STRONG: "**", EMPHASIS: "*", STRUCK: "~~"}


@dataclass(slots=True)
class _Mark:
    kind: str
    wrap: Wrap
    start: int


class Inline:
    """Collects pieces of text until its block ends."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._marks: list[_Mark] = []
        self._blank = True  # the last character is white space, or there is none
        self._ended = (0, "")  # length and kind after the last merged mark, for `<b>a</b><b>b</b>`
        self._boxed = False  # the last piece is a box

    @property
    def at_line_start(self) -> bool:
        """True if nothing, or a line break, came last."""
        return not self._parts or self._parts[-1].endswith("\n")

    @property
    def empty(self) -> bool:
        """True if nothing came yet."""
        return not self._parts

    def within(self, *kinds: str) -> bool:
        """True if a mark of one of these kinds is open."""
        return any(mark.kind in kinds for mark in self._marks)

    def text(self, data: str) -> bool:
        """Takes text as it stands in the markup; True if there is anything to see."""
        words = data.split()
        if not words:
            if data and not self._blank:
                self.literal(" ")
            return False
        piece = " ".join(words)
        if not self.within(CODE):
            in_emphasis = self.within(STRONG, EMPHASIS)
            piece = escape_text(piece, in_emphasis=in_emphasis, in_label=self.within(LINK))
        apart = data[0].isspace() or (self._boxed and data[0].isalnum())
        before = " " * (apart and not self._blank)
        self._boxed = False
        self._blank = data[-1].isspace()
        self._parts.append(before + piece + " " * self._blank)
        return True

    def literal(self, markdown: str) -> None:
        """Takes a piece that is Markdown already; a line end makes the next text begin a line."""
        if markdown:
            self._parts.append(markdown)
            self._blank = markdown[-1].isspace()
            self._boxed = False

    @contextmanager
    def box(self) -> Iterator[None]:
        """What is taken meanwhile is shown in a box of its own: a blank keeps it from words and boxes beside it."""
        if self._boxed or self.ends_with_word():
            self.literal(" ")
        before = len(self._parts)
        yield
        self._boxed = len(self._parts) > before and not self._blank

    def ends_with_word(self) -> bool:
        """True if a letter, digit or bracket came last, so that `2` behind it may be an exponent."""
        last = self._parts[-1][-1:] if self._parts else ""
        return last.isalnum() or last in (")", "]")

    @contextmanager
    def mark(self, kind: str, wrap: Wrap) -> Iterator[None]:
        """All text taken meanwhile is marked. A mark within its own kind, or in code, is none."""
        if self.within(kind) or self.within(CODE):
            yield
            return
        mark = _Mark(kind, wrap, len(self._parts))
        self._marks.append(mark)
        yield
        self._marks.remove(mark)
        self._apply(mark)

    def _apply(self, mark: _Mark) -> None:
        content = "".join(self._parts[mark.start :])
        body = content.strip()
        if not body:
            return
        lead = content[: len(content) - len(content.lstrip())]
        tail = content[len(content.rstrip()) :]
        merged = _MERGED.get(mark.kind, "")
        start = mark.start
        alone = all(other.start < start for other in self._marks if other is not mark)
        if merged and alone and not lead and self._ended == (start, mark.kind):
            start -= 1
            whole = self._parts[start][: -len(merged)] + body + merged
        else:
            whole = mark.wrap(body)
        self._parts[start:] = [piece for piece in (lead, whole) if piece]
        self._ended = (len(self._parts), mark.kind if merged else "")
        if tail:
            self._parts.append(tail)
        self._blank = bool(tail)

    def take(self) -> str:
        """The text of the block that ends here; marks still open go on in the next one."""
        for mark in reversed(self._marks):
            self._apply(mark)
        text = "".join(self._parts).strip()
        self._parts.clear()
        for mark in self._marks:
            mark.start = 0
        self._blank, self._ended, self._boxed = True, (0, ""), False
        return text


def around(sign: str) -> Wrap:
    """The same sign on both sides, such as `**`."""
    return lambda body: f"{sign}{body}{sign}"


def superscript(body: str) -> str:
    """A power: `10^5`; more than a word is held together by brackets."""
    return f"^{body}" if body.isalnum() else f"^({body})"


def subscript(body: str) -> str:
    """An index: digits as in `H2O`, words as in `x_max`."""
    return body if body.isdigit() or " " in body else f"_{body}"


def link(body: str, url: str | None) -> str:
    """Only the label if there is no address, only the address if the label repeats it."""
    if url is None:
        return body
    if body.replace("\\", "") == url:
        return url
    return f"[{' '.join(body.split())}]({url})"


def picture(label: str, url: str | None) -> str:
    """A picture as Markdown; nothing if nothing is known of it."""
    text = escape_text(" ".join(label.split()), in_label=True)
    return f"![{text}]({url})" if url else f"![{text}]" if text else ""


_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_BLANKS_AND_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\u200b\ufeff]+")
_RUNS_CODE = frozenset({"javascript", "data", "vbscript", "blob", "about"})
_IN_URL = str.maketrans({"(": "%28", ")": "%29", "<": "%3C", ">": "%3E", '"': "%22", "\\": "%5C", "`": "%60"})


class Links(Protocol):
    """Finds addresses and names; each may return None, then only the label stays."""

    def page(self, title: str, space: str | None) -> str | None:  # noqa: ARG002 (None, unless there is such a thing)
        """The address of a page; `space` None is the space of the page that is converted."""
        return None

    def attachment(self, name: str, page_title: str | None) -> str | None:  # noqa: ARG002 (None, unless there is such a thing)
        """The address of a file; `page_title` None is the page that is converted."""
        return None

    def user(self, key: str) -> str | None:  # noqa: ARG002 (None, unless there is such a thing)
        """The name to show for a user key, user name or account id."""
        return None

    def href(self, href: str) -> str | None:
        """A relative address made absolute; None drops it."""
        ...


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a link or a picture of the storage format points to."""

    label: str = ""
    """Shown if there is no other; empty for users nobody knows."""
    url: str | None = None


@dataclass(frozen=True)
class LinkResolver:
    """Asks a page's `Links`, and keeps out what runs code."""

    links: Links | None

    def href(self, href: str) -> str | None:
        """The address for a link's target; None if only the label may stay."""
        safe = _safe_url(href)
        return safe if safe is None or self.links is None else _safe_url(self.links.href(href.strip()))

    def page(self, title: str, space: str | None) -> Target:
        """A page by its title."""
        return Target(label=title, url=_safe_url(self.links.page(title, space) if self.links else None))

    def file(self, name: str, page_title: str | None = None) -> Target:
        """A file attached to a page."""
        url = self.links.attachment(name, page_title) if self.links else None
        return Target(label=name, url=_safe_url(url))

    def target(self, elements: Iterable[Element]) -> Target:
        """What the first `ri:` element among these names."""
        # It stands first; links in links would be read again and again.
        for element in islice(elements, MOST_LOOKED_AT):
            get = element.get
            if title := get("ri:content-title"):
                return self.page(title, element.attributes.get("ri:space-key"))
            if name := get("ri:filename"):
                return self.file(
                    name, next(filter(None, (e.get("ri:content-title") for e in element.within())), None)
                )
            if address := get("ri:value"):
                return Target(label=address, url=self.href(address))
            if key := get("ri:account-id", "ri:userkey", "ri:username"):
                user = self.links.user(key) if self.links else None
                return Target(label=f"@{user}" if user else "")
            if space := get("ri:space-key"):
                return Target(label=space)
        return Target()


def _safe_url(url: str | None) -> str | None:
    """The address as it may stand in a link; None for an empty one, a mere `#place`, or one that runs code."""
    text = (url or "").strip()
    scheme = _SCHEME.match(_BLANKS_AND_CONTROLS.sub("", text[:200]))
    if not text or text.startswith("#") or (scheme and scheme[1].lower() in _RUNS_CODE):
        return None
    return "%20".join(text.split()).translate(_IN_URL)


def file_name(href: str) -> str:
    """The name of the file an address leads to: its `fileName`, or the last part of its path."""
    try:
        parts = urlsplit(href[:4000].strip())
    except ValueError:  # brackets that are no IPv6 address
        return ""
    if parts.scheme.lower() == "data":
        return ""
    query = {key.lower(): values for key, values in parse_qs(parts.query).items()}
    named = query.get("filename")
    return named[0] if named else unquote(parts.path.rsplit("/", 1)[-1])
