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
"""Most elements of a link that are searched for its target."""
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
    """Escapes a piece of running text; code typed between backticks stays code."""
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
    """The lines of a paragraph without blank ones, escaped so that none starts another kind of block."""
    lines = filter(None, map(str.strip, text.split("\n")))
    return [
        f"\\{line}" if _BLOCK_START.match(line) else _NUMBERED.sub(r"\1\\", line, count=1) for line in lines
    ]


def escape_heading(text: str) -> str:
    """A heading's text on one line, a last word of `#` escaped: it is no end mark."""
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
    """A fence longer than any run of backticks in `code`."""
    return "`" * max(3, _longest_run(code) + 1)


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


Wrap = Callable[[str], str]
"""Function from a marked text, not blank and without blanks at its ends, to Markdown."""

STRONG, EMPHASIS, STRUCK, CODE, LINK, RAISED, LOWERED = "strong", "em", "del", "code", "link", "sup", "sub"
_MERGED = {STRONG: "**", EMPHASIS: "*", STRUCK: "~~"}


@dataclass(slots=True)
class _Mark:
    kind: str
    wrap: Wrap
    start: int


class Inline:
    """Pieces of text of one block, collected until it ends."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._marks: list[_Mark] = []
        self._blank = True  # the last character is white space, or there is none
        self._ended = (0, "")  # length and kind after the last merged mark, for `<b>a</b><b>b</b>`
        self._boxed = False  # the last piece is a box

    @property
    def at_line_start(self) -> bool:
        """True if the text is empty or ends with a line break."""
        return not self._pieces or self._pieces[-1].endswith("\n")

    @property
    def empty(self) -> bool:
        """True if the block has no text yet."""
        return not self._pieces

    def within(self, *kinds: str) -> bool:
        """True if a mark of one of these kinds is open."""
        return any(mark.kind in kinds for mark in self._marks)

    def text(self, data: str) -> bool:
        """Appends text as it is in the markup; returns whether any of it is visible."""
        words = data.split()
        if not words:
            if data and not self._blank:
                self.literal(" ")
            return False
        piece = " ".join(words)
        if not self.within(CODE):
            in_emphasis = self.within(STRONG, EMPHASIS)
            piece = escape_text(piece, in_emphasis=in_emphasis, in_label=self.within(LINK))
        separated = data[0].isspace() or (self._boxed and data[0].isalnum())
        before = " " * (separated and not self._blank)
        self._boxed = False
        self._blank = data[-1].isspace()
        self._pieces.append(before + piece + " " * self._blank)
        return True

    def literal(self, markdown: str) -> None:
        """Appends a piece that is Markdown already; after a line end the next text starts a line."""
        if markdown:
            self._pieces.append(markdown)
            self._blank = markdown[-1].isspace()
            self._boxed = False

    @contextmanager
    def box(self) -> Iterator[None]:
        """Sets the text appended within apart from words and boxes beside it by a blank."""
        if self._boxed or self.ends_with_word():
            self.literal(" ")
        before = len(self._pieces)
        yield
        self._boxed = len(self._pieces) > before and not self._blank

    def ends_with_word(self) -> bool:
        """True if the text ends with a letter, digit or bracket, so that a `2` after it may be an exponent."""
        last = self._pieces[-1][-1:] if self._pieces else ""
        return last.isalnum() or last in (")", "]")

    @contextmanager
    def mark(self, kind: str, wrap: Wrap) -> Iterator[None]:
        """Marks the text appended within; no effect within a mark of the same kind or in code."""
        if self.within(kind) or self.within(CODE):
            yield
            return
        mark = _Mark(kind, wrap, len(self._pieces))
        self._marks.append(mark)
        yield
        self._marks.remove(mark)
        self._apply(mark)

    def _apply(self, mark: _Mark) -> None:
        content = "".join(self._pieces[mark.start :])
        body = content.strip()
        if not body:
            return
        lead = content[: len(content) - len(content.lstrip())]
        tail = content[len(content.rstrip()) :]
        merged = _MERGED.get(mark.kind, "")
        start = mark.start
        starts_last = all(other.start < start for other in self._marks if other is not mark)
        if merged and starts_last and not lead and self._ended == (start, mark.kind):
            start -= 1
            marked = self._pieces[start][: -len(merged)] + body + merged
        else:
            marked = mark.wrap(body)
        self._pieces[start:] = [piece for piece in (lead, marked) if piece]
        self._ended = (len(self._pieces), mark.kind if merged else "")
        if tail:
            self._pieces.append(tail)
        self._blank = bool(tail)

    def take(self) -> str:
        """Removes and returns the text of the block; open marks continue in the next one."""
        for mark in reversed(self._marks):
            self._apply(mark)
        text = "".join(self._pieces).strip()
        self._pieces.clear()
        for mark in self._marks:
            mark.start = 0
        self._blank, self._ended, self._boxed = True, (0, ""), False
        return text


def around(sign: str) -> Wrap:
    """Wraps a text in the same sign on both sides, such as `**`."""
    return lambda body: f"{sign}{body}{sign}"


def superscript(body: str) -> str:
    """A power, such as `10^5`; more than a word is put in brackets."""
    return f"^{body}" if body.isalnum() else f"^({body})"


def subscript(body: str) -> str:
    """An index: digits as in `H2O`, words as in `x_max`."""
    return body if body.isdigit() or " " in body else f"_{body}"


def link(body: str, url: str | None) -> str:
    """A link as Markdown; without an address its label, and the address alone if the label repeats it."""
    if url is None:
        return body
    if body.replace("\\", "") == url:
        return url
    return f"[{' '.join(body.split())}]({url})"


def picture(label: str, url: str | None) -> str:
    """A picture as Markdown; empty if it has neither label nor address."""
    text = escape_text(" ".join(label.split()), in_label=True)
    return f"![{text}]({url})" if url else f"![{text}]" if text else ""


_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_BLANKS_AND_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\u200b\ufeff]+")
_RUNS_CODE = frozenset({"javascript", "data", "vbscript", "blob", "about"})
_IN_URL = str.maketrans({"(": "%28", ")": "%29", "<": "%3C", ">": "%3E", '"': "%22", "\\": "%5C", "`": "%60"})


class Links(Protocol):
    """Resolver of addresses and names; where it returns None, only the label is written."""

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
        """The absolute address of a relative one; None drops the link."""
        ...


@dataclass(frozen=True, kw_only=True)
class Target:
    """Target of a link or a picture in the storage format."""

    label: str = ""
    """Text of a link without one; empty for unknown users."""
    url: str | None = None


@dataclass(frozen=True)
class LinkResolver:
    """Resolves targets by a page's `Links`, and drops addresses that run code."""

    links: Links | None

    def href(self, href: str) -> str | None:
        """The safe address of a link; None if only its label may be written."""
        safe = _safe_url(href)
        return safe if safe is None or self.links is None else _safe_url(self.links.href(href.strip()))

    def page(self, title: str, space: str | None) -> Target:
        """Target of a link to a page by its title."""
        return Target(label=title, url=_safe_url(self.links.page(title, space) if self.links else None))

    def file(self, name: str, page_title: str | None = None) -> Target:
        """Target of a link to a file attached to a page."""
        url = self.links.attachment(name, page_title) if self.links else None
        return Target(label=name, url=_safe_url(url))

    def target(self, elements: Iterable[Element]) -> Target:
        """Target named by the first `ri:` element among these."""
        # It comes first; without a bound, links within links would be read repeatedly.
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
    """The address escaped for a link; None for an empty one, a mere `#place`, or one that runs code."""
    text = (url or "").strip()
    scheme = _SCHEME.match(_BLANKS_AND_CONTROLS.sub("", text[:200]))
    if not text or text.startswith("#") or (scheme and scheme[1].lower() in _RUNS_CODE):
        return None
    return "%20".join(text.split()).translate(_IN_URL)


def file_name(href: str) -> str:
    """The file name in an address: its `fileName` option, or the last segment of its path."""
    try:
        url = urlsplit(href[:4000].strip())
    except ValueError:  # brackets that are no IPv6 address
        return ""
    if url.scheme.lower() == "data":
        return ""
    query = {key.lower(): values for key, values in parse_qs(url.query).items()}
    named = query.get("filename")
    return named[0] if named else unquote(url.path.rsplit("/", 1)[-1])
