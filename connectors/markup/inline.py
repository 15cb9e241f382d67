"""The running text of one block: white space, escapes, emphasis, links and what they point to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from connectors.markup.scanner import attributes

_SUSPECT = re.compile(r"[`\\<&\]~*_\u200b\ufeff\u00ad]")
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
    r"#{1,6}(?=\s|$)|[-+*](?=\s|$)|>|=+\s*$|-+\s*$|(?:[*_-]\s*){3,}$|[-:|\s]*-[-:|\s]*$|\[[^\]]{1,200}\]:"
)
_NUMBERED = re.compile(r"(\d{1,9})(?=[.)](?:\s|$))")
_BACKTICKS = re.compile("`+")
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_BLANKS_AND_CONTROLS = re.compile(r"[\x00-\x20\x7f-\xa0\u200b\ufeff]+")
_RUNS_CODE = frozenset({"javascript", "data", "vbscript", "blob", "about"})
_IN_URL = {"(": "%28", ")": "%29", "<": "%3C", ">": "%3E", '"': "%22", "\\": "%5C", "`": "%60"}
_URL_SPECIAL = re.compile(r'[()<>"\\`]')


def escape_text(text: str, *, in_emphasis: bool = False, in_label: bool = False) -> str:
    """A piece of running text; code somebody typed between backticks stays code."""
    if in_label and ("[" in text or "]" in text):
        pieces = re.split(r"([\[\]])", text)
        pieces[::2] = [escape_text(piece, in_emphasis=in_emphasis) for piece in pieces[::2]]
        pieces[1::2] = [f"\\{bracket}" for bracket in pieces[1::2]]
        return "".join(pieces)
    if not _SUSPECT.search(text):
        return text
    if "`" not in text:
        return _escape_plain(text, in_emphasis)
    pieces = _TYPED_CODE.split(text)
    pieces[::2] = [_escape_plain(piece, in_emphasis) for piece in pieces[::2]]
    return "".join(pieces)


def _escape_plain(text: str, in_emphasis: bool) -> str:
    text = _MEANT_AS_TEXT.sub(r"\\\g<0>", _INVISIBLE.sub("", text))
    stars = text.count("*")
    if stars and in_emphasis:
        text = text.replace("*", "\\*")
    elif stars > 1:
        text = _STARS.sub(_each_escaped, text)
    if text.count("_") > 1 and _OPENING_UNDERSCORES.search(text) and _CLOSING_UNDERSCORES.search(text):
        text = _EDGE_UNDERSCORES.sub(_each_escaped, text)
    return text


def _each_escaped(run: re.Match[str]) -> str:
    return "".join(f"\\{mark}" for mark in run[0])


def paragraph_lines(text: str) -> list[str]:
    """The lines of a paragraph, without blank ones, each readable as nothing but a line of a paragraph."""
    lines = (line.strip() for line in text.split("\n"))
    return [_escape_start(line) for line in lines if line]


def _escape_start(line: str) -> str:
    if line[0] in "#-+*>=|:_[" and _BLOCK_START.match(line):
        return f"\\{line}"
    if line[0].isdigit() and (number := _NUMBERED.match(line)):
        return f"{number[1]}\\{line[number.end() :]}"
    return line


def escape_heading(text: str) -> str:
    """One line; a last word of `#` is not taken for the heading's end mark."""
    line = " ".join(text.split())
    return re.sub(r"(?<= )(#+)$", r"\\\1", line)


def code_span(code: str) -> str:
    """Code within a line, on one line."""
    text = " ".join(code.split())
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1 if "`" in text else 1)
    blank = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{fence}{blank}{text}{blank}{fence}"


def code_fence(code: str) -> str:
    """A fence that no run of backticks in `code` closes."""
    return "`" * max(3, _longest_run(code) + 1 if "```" in code else 3)


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def safe_url(url: str) -> str | None:
    """The address as it may stand in a link; None for an empty one, a mere `#place`, or one that runs code."""
    text = url.strip()
    compact = _BLANKS_AND_CONTROLS.sub("", text[:200])
    scheme = _SCHEME.match(compact)
    if not text or text.startswith("#") or (scheme and scheme[1].lower() in _RUNS_CODE):
        return None
    text = "%20".join(text.split())
    return _URL_SPECIAL.sub(lambda match: _IN_URL[match[0]], text)


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

    @property
    def at_line_start(self) -> bool:
        """True if nothing, or a line break, came last."""
        return not self._parts or self._parts[-1].endswith("\n")

    @property
    def empty(self) -> bool:
        """True if nothing came yet."""
        return not self._parts

    def within(self, kind: str) -> bool:
        """True if such a mark is open."""
        return any(mark.kind == kind for mark in self._marks)

    def text(self, data: str) -> bool:
        """Takes text as it stands in the markup; True if there is anything to see."""
        words = data.split()
        if not words:
            if data and not self._blank:
                self.literal(" ")
            return False
        piece = " ".join(words)
        if not self.within(CODE):
            emphasised = self.within(STRONG) or self.within(EMPHASIS)
            piece = escape_text(piece, in_emphasis=emphasised, in_label=self.within(LINK))
        before = " " if data[0].isspace() and not self._blank else ""
        self._blank = data[-1].isspace()
        self._parts.append(f"{before}{piece} " if self._blank else before + piece)
        return True

    def literal(self, markdown: str) -> None:
        """Takes a piece that is Markdown already; a line end makes the next text begin a line."""
        if markdown:
            self._parts.append(markdown)
            self._blank = markdown[-1].isspace()

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
        self._blank, self._ended = True, (0, "")
        return text


def around(sign: str) -> Wrap:
    """The same sign on both sides, such as `**`."""
    return lambda body: f"{sign}{body}{sign}"


def raised(body: str) -> str:
    """A power: `10^5`; more than a word is held together by brackets."""
    return f"^{body}" if body.isalnum() else f"^({body})"


def lowered(body: str) -> str:
    """An index: digits as in `H2O`, words as in `x_max`."""
    return body if body.isdigit() or " " in body else f"_{body}"


def link(body: str, url: str | None) -> str:
    """Only the label if there is no address, only the address if the label repeats it."""
    if url is None:
        return body
    if body.replace("\\", "") == url:
        return url
    return f"[{' '.join(body.split())}]({url})"


MOST_ATTACHMENTS = 1000
_RESOURCES = {
    **dict.fromkeys(("ri:page", "ri:blog-post"), ("page", ("ri:content-title",))),
    "ri:attachment": ("attachment", ("ri:filename",)),
    "ri:url": ("url", ("ri:value",)),
    "ri:space": ("space", ("ri:space-key",)),
    "ri:user": ("user", ("ri:account-id", "ri:userkey", "ri:username")),
}
"""Element -> kind of its target, and where its name stands."""
_ATTACHMENT_PATH = re.compile(r"/attachments/|/thumbnails/", re.IGNORECASE)


class Links(Protocol):
    """Finds addresses and names; each may return None, then only the label stays."""

    def page(self, title: str, space: str | None) -> str | None:
        """The address of a page; `space` None is the space of the page that is converted."""
        ...

    def attachment(self, name: str, page_title: str | None) -> str | None:
        """The address of a file; `page_title` None is the page that is converted."""
        ...

    def user(self, key: str) -> str | None:
        """The name to show for a user key, user name or account id."""
        ...

    def href(self, href: str) -> str | None:
        """A relative address made absolute; None drops it."""
        ...


@dataclass(slots=True)
class Target:
    """What stands in `ri:` elements within one link, picture or parameter."""

    kind: str = ""
    """page, attachment, user, space, url or nothing."""
    name: str = ""
    """Title, file name, user key, space key or address."""
    where: str | None = None
    """The space of a page, the page of an attachment."""

    def note(self, element: str, rest: str) -> None:
        """Takes one `ri:` element; the first counts, a page within an attachment says whose it is."""
        found = attributes(rest)
        kind, keys = _RESOURCES.get(element, ("", ()))
        name = next((found[key] for key in keys if found.get(key)), "")
        where = found.get("ri:space-key") if kind == "page" else None
        if self.kind == "attachment" and kind == "page":
            self.where = name
        elif not self.kind and name:
            self.kind, self.name, self.where = kind, name, where


@dataclass(slots=True)
class Addresses:
    """Asks a page's `Links`, remembers attachments, and keeps out what runs code."""

    links: Links | None
    attachments: dict[str, None] = field(default_factory=dict)

    def href(self, href: str) -> str | None:
        """The address for a link's target; None if only the label may stay."""
        safe = safe_url(href)
        if safe is None or self.links is None:
            return safe
        found = self.links.href(href.strip())
        return None if found is None else safe_url(found)

    def of(self, target: Target) -> str | None:
        """The address of what a link points to."""
        found: str | None = None
        if target.kind == "attachment":
            self.mention(target.name)
            found = self.links.attachment(target.name, target.where) if self.links else None
        elif target.kind == "page":
            found = self.links.page(target.name, target.where) if self.links else None
        elif target.kind == "url":
            return self.href(target.name)
        return None if found is None else safe_url(found)

    def label(self, target: Target) -> str:
        """What is shown of a target without a label; empty for users nobody knows."""
        if target.kind == "user":
            name = self.links.user(target.name) if self.links else None
            return f"@{name}" if name else ""
        return target.name

    def mention(self, name: str) -> None:
        """Remembers a file."""
        if name and len(self.attachments) < MOST_ATTACHMENTS:
            self.attachments.setdefault(name)

    def mention_in(self, href: str) -> None:
        """Remembers the file if the address is that of an attachment."""
        if _ATTACHMENT_PATH.search(href[:2000]):
            self.mention(file_name(href))


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


def picture(label: str, url: str | None) -> str:
    """A picture as Markdown; nothing if nothing is known of it."""
    text = escape_text(" ".join(label.split()), in_label=True)
    if url is None:
        return f"![{text}]" if text else ""
    return f"![{text}]({url})"
