"""Markup cut into tags, text and CDATA, in time linear in its length whatever it holds.

The standard library's parser is not used: on unclosed tags it takes quadratic time (80 kB of `<a ` take over
a minute), and what it does with CDATA, scripts and odd attributes differs between releases of Python, so that
an upgrade of the interpreter would change texts and hashes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from html import unescape
from typing import NamedTuple


class Sign(Enum):
    """What an event is."""

    TEXT = "text"
    START = "start"
    END = "end"


class Event(NamedTuple):
    """One step through the markup."""

    sign: Sign
    value: str
    """The text, with entities resolved; or the tag's name in lower case."""
    rest: str = ""
    """What stands behind the name in a start tag, for `attributes`."""
    closed: bool = False
    """True for `<br/>`: no end tag follows."""


# A quote opens a value only behind `=`, as in browsers: an apostrophe elsewhere in a tag swallows nothing.
# All quantifiers are possessive, so that a failed match costs one pass.
_TAG = re.compile(r"""<(/?)([A-Za-z][^\s/>]*+)((?:[^=>]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+)>""")
_TAG_WITHOUT_QUOTES = re.compile(r"<(/?)([A-Za-z][^\s/>]*+)([^>]*+)>")
_MARKUP = re.compile(r"<(?=[A-Za-z/!?])")
_ATTRIBUTE = re.compile(r"""([^\s=/"'][^\s=/]*+)(?:\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"']\S*+)))?+""")
_UNQUOTED_SLASH = re.compile(r"""=\s*[^\s"'][^\s]*/$""")
_RAW_TEXT = {
    name: re.compile(rf"</{name}(?=[\s/>])", re.IGNORECASE) for name in ("script", "style", "xmp", "noembed")
}
_CDATA = "<![CDATA["


def attributes(rest: str) -> dict[str, str]:
    """Names in lower case with their values; the first of two equal names counts."""
    found: dict[str, str] = {}
    for name, double, single, bare in _ATTRIBUTE.findall(rest):
        value = double or single or bare
        found.setdefault(name.lower(), unescape(value) if "&" in value else value)
    return found


def events(html: str) -> Iterator[Event]:
    """The markup's tags and text in their order; comments, declarations, scripts and styles are left out."""
    return _Scanner(html).events()


class _Scanner:
    """A walk over one text."""

    def __init__(self, html: str) -> None:
        self._html = html
        self._last_end = html.rfind(">")
        self._last_comment_end = html.rfind("-->")
        self._tag = _TAG

    def events(self) -> Iterator[Event]:
        position, length = 0, len(self._html)
        while position < length:
            mark = _MARKUP.search(self._html, position)
            at = mark.start() if mark else length
            if at > position:
                yield self._text(position, at)
            if at == length:
                return
            event, position = self._markup(at)
            if event is not None:
                yield event

    def _text(self, start: int, end: int) -> Event:
        text = self._html[start:end]
        return Event(Sign.TEXT, unescape(text) if "&" in text else text)

    def _markup(self, at: int) -> tuple[Event | None, int]:
        """The event of the markup at `at`, and where to go on."""
        if self._html.startswith(_CDATA, at):
            end = self._html.find("]]>", at)
            if end < 0:  # cut off: all that is left is its text
                return Event(Sign.TEXT, self._html[at + len(_CDATA) :]), len(self._html)
            return Event(Sign.TEXT, self._html[at + len(_CDATA) : end]), end + 3
        if self._html.startswith("<!--", at):
            return None, self._behind_comment(at)
        if at > self._last_end:  # no tag ends any more
            return self._text(at, len(self._html)), len(self._html)
        if self._html[at + 1] in "!?" or not (tag := self._match(at)):
            return None, self._html.find(">", at) + 1
        return self._tag_event(tag)

    def _behind_comment(self, at: int) -> int:
        """An unclosed comment hides nothing but its own mark: text must not be lost."""
        for empty in ("<!-->", "<!--->"):
            if self._html.startswith(empty, at):
                return at + len(empty)
        if at + 4 > self._last_comment_end:
            return at + 4
        return self._html.find("-->", at + 4) + 3

    def _match(self, at: int) -> re.Match[str] | None:
        tag = self._tag.match(self._html, at)
        if tag is None and self._tag is _TAG and self._html[at + 1] != "/":
            # A value in quotes runs to the end of the text. Looking so far once is enough.
            self._tag = _TAG_WITHOUT_QUOTES
            tag = self._tag.match(self._html, at)
        return tag

    def _tag_event(self, tag: re.Match[str]) -> tuple[Event | None, int]:
        slash, name, rest = tag[1], tag[2].lower(), tag[3]
        if slash:
            return Event(Sign.END, name), tag.end()
        closed = rest.endswith("/") and not _UNQUOTED_SLASH.search(rest[-2000:])
        event = Event(Sign.START, name, rest[:-1] if closed else rest, closed)
        if closed or name not in _RAW_TEXT:
            return event, tag.end()
        end = _RAW_TEXT[name].search(self._html, tag.end())
        return event, end.start() if end else len(self._html)
