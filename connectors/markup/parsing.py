"""Parser of markup into a tree of elements; broken markup is read as browsers read it.

The standard library's parser is not used: on unclosed tags it takes quadratic time (80 kB of `<a ` take over
a minute), and its treatment of CDATA, scripts and odd attributes differs between releases of Python, so that
an upgrade of the interpreter would change texts and hashes.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import unescape
from typing import NamedTuple

MOST_DEPTH = 150
"""Most open elements; deeper ones lose their structure and keep their text."""
MOST_PIECES = 1_000_000
"""Most tags and texts of one page, because each takes memory; the rest is left out."""

BLOCKS = frozenset(
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset "  # noqa: SIM905 (a list of words)
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr html legend li main menu nav ol "
    "option p pre section summary table tbody td tfoot th thead tr ul ac:layout "
    "ac:layout-section ac:layout-cell".split()
)
HIDDEN = frozenset(
    "head template iframe xml noframes datalist at:declarations ac:parameter ac:default-parameter "  # noqa: SIM905 (a list of words)
    "rp ac:adf-attribute ac:placeholder ac:task-id ac:task-status ac:task-uuid".split()
)
"""Elements whose text is not the page's text."""
_VOID = frozenset(
    "area base br col embed frame hr img input link meta param source track wbr".split()  # noqa: SIM905 (a list of words)
)
_CELLS = frozenset({"td", "th"})
_TABLE_PARTS = frozenset(
    "td th tr tbody thead tfoot caption colgroup".split()  # noqa: SIM905 (a list of words)
)
_SCOPES = frozenset({"table", "td", "th", "caption"})
_LISTS = frozenset({"ul", "ol", "menu", "dir"})
_CLOSES_PARAGRAPH = BLOCKS - {"body", "html", "option", "dd", "dt", "li", "td", "th", "tr"} | _LISTS

# By start tag: the open elements that it ends, and the elements beyond which it ends none.
_IMPLIED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "li": (frozenset({"li", "p"}), _LISTS | _SCOPES),
    **dict.fromkeys(("dt", "dd"), (frozenset({"dt", "dd"}), _SCOPES | {"dl"})),
    "option": (frozenset({"option"}), _SCOPES | {"select"}),
    "a": (frozenset({"a"}), _SCOPES),
    **dict.fromkeys(_CLOSES_PARAGRAPH | {"body"}, (frozenset({"p", "head"}), _SCOPES)),
    **dict.fromkeys(_CELLS, (_CELLS | {"caption", "colgroup"}, frozenset({"table", "tr"}))),
    "tr": (_CELLS | {"tr", "caption", "colgroup"}, frozenset({"table"})),
    **dict.fromkeys(("tbody", "thead", "tfoot"), (_TABLE_PARTS, frozenset({"table"}))),
}
# By end tag: the elements beyond which its start tag is not searched.
_ENDS_WITHIN: dict[str, frozenset[str]] = {
    "li": _LISTS,
    **dict.fromkeys(("dt", "dd"), frozenset({"dl"})),
    **dict.fromkeys(_TABLE_PARTS, frozenset({"table"})),
    "table": frozenset(),
}

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
_ENDLESS_NUMBER = re.compile(r"&#\d{100,}+;?")
"""Character numbers too long to be valid; Python refuses to read one of more than 4,300 digits."""


@dataclass(slots=True, eq=False)
class Element:
    """An element, or the page, which has no name."""

    name: str
    """Name in lower case."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Values by name in lower case."""
    children: list[Element | str] = field(default_factory=list)

    def get(self, *names: str) -> str:
        """The first of these attributes that is not empty."""
        return next((value for name in names if (value := self.attributes.get(name))), "")

    def within(self) -> Iterator[Element]:
        """All descendants, each before its own children."""
        waiting = [child for child in reversed(self.children) if isinstance(child, Element)]
        while waiting:
            element = waiting.pop()
            yield element
            waiting += (child for child in reversed(element.children) if isinstance(child, Element))

    def content(self, most: int) -> str:
        """All text of the element, hidden or not, cut at `most` characters."""
        pieces = (
            child for node in (self, *self.within()) for child in node.children if isinstance(child, str)
        )
        return "".join(pieces)[:most]


class _Tag(NamedTuple):
    name: str
    attribute_text: str
    """Text between the name and `>`."""
    ends: bool
    closed: bool
    """True for `<br/>`: no end tag follows."""


def parse(html: str) -> tuple[Element, bool]:
    """Parse a page; returns it and whether it is complete. Comments, declarations, scripts and styles are left out."""
    tree = _Tree()
    for number, piece in enumerate(piece for piece in _pieces(html) if piece):
        if number >= MOST_PIECES:
            return tree.page, False
        if isinstance(piece, str):
            tree.append(piece)
        elif piece.ends:
            tree.end(piece.name)
        else:
            tree.start(piece)
    return tree.page, True


def resolved(text: str) -> str:
    """`text` with its entities resolved; a number of no character becomes the replacement character, as in browsers."""
    return unescape(_ENDLESS_NUMBER.sub("\ufffd", text) if "&#" in text else text)


def _attributes(text: str) -> dict[str, str]:
    """Names with their values; the first of two equal names counts."""
    attributes: dict[str, str] = {}
    for name, double, single, unquoted in _ATTRIBUTE.findall(text):
        attributes.setdefault(name.lower(), resolved(double or single or unquoted))
    return attributes


def _pieces(html: str) -> Iterator[_Tag | str]:
    """Tags and texts of the markup in order, entities resolved."""
    pattern, at, length = _TAG, 0, len(html)
    last_end, last_comment_end = html.rfind(">"), html.rfind("-->")
    while at < length:
        mark = _MARKUP.search(html, at)
        start = mark.start() if mark else length
        yield resolved(html[at:start])
        if html.startswith(_CDATA, start):
            end = html.find("]]>", start)
            end = length if end < 0 else end  # cut off: the remaining text belongs to it
            yield html[start + len(_CDATA) : end]
            at = end + 3
        elif html.startswith("<!--", start):
            # Of an unclosed comment only `<!--` is dropped: text must not be lost.
            at = html.find("-->", start + 2) + 3 if start + 2 <= last_comment_end else start + 4
        elif start > last_end:  # no tag ends any more
            yield resolved(html[start:])
            return
        else:
            tag = pattern.match(html, start)
            if tag is None and pattern is _TAG and html[start + 1] not in "/!?":
                # A quoted value is not closed up to the end of the text. One search that far is enough.
                pattern = _TAG_WITHOUT_QUOTES
                tag = pattern.match(html, start)
            if tag is None:
                at = html.find(">", start) + 1
                continue
            at, name, attribute_text = tag.end(), tag[2].lower(), tag[3]
            closed = attribute_text.endswith("/") and not _UNQUOTED_SLASH.search(attribute_text[-2000:])
            yield _Tag(name, attribute_text[:-1] if closed else attribute_text, bool(tag[1]), closed)
            if name in _RAW_TEXT and not closed and not tag[1]:
                raw_end = _RAW_TEXT[name].search(html, at)
                begin, at = at, raw_end.start() if raw_end else length
                if name == "script" and "math/tex" in attribute_text[:200]:  # source of a formula for MathJax
                    yield html[begin:at]


class _Tree:
    """The page under construction; few elements are open at once, so that searching them is cheap."""

    def __init__(self) -> None:
        self.page = Element("")
        self._open = [self.page]
        self._left_out: Counter[str] = Counter()
        """Number of open elements left out as too deep, by name, so that their end tags close no others."""

    def append(self, child: Element | str) -> None:
        """Appends to the innermost open element."""
        self._open[-1].children.append(child)

    def start(self, tag: _Tag) -> None:
        """Opens an element, after closing those that its start tag ends."""
        name = tag.name
        if name in _IMPLIED and not self._left_out:  # the element to close may be one that was left out
            self._close(*_IMPLIED[name], outermost=True)
        childless = tag.closed or name in _VOID
        if not childless and len(self._open) > MOST_DEPTH + 2 * (name in HIDDEN):
            self._left_out[name] += 1
            if name in BLOCKS:
                self.append(Element("div"))
            return
        element = Element(name, _attributes(tag.attribute_text))
        self.append(element)
        if not childless:
            self._open.append(element)

    def end(self, name: str) -> None:
        """Closes `name` and all elements within; the end tag of a block that is not open still ends the line."""
        if name in self._left_out:
            self._left_out[name] -= 1
            if not self._left_out[name]:
                del self._left_out[name]
        else:
            stops = frozenset() if ":" in name else _ENDS_WITHIN.get(name, _SCOPES)
            if self._close(frozenset({name}), stops, across_extensions=name.startswith("ac:")):
                return
        if name in BLOCKS or name == "br":
            self.append(Element("br" if name == "br" else "div"))

    def _close(
        self,
        names: frozenset[str],
        stops: frozenset[str],
        *,
        outermost: bool = False,
        across_extensions: bool = False,
    ) -> bool:
        """Closes the innermost, or outermost, open element of these names; False if none is open."""
        closed_from = 0
        for index in range(len(self._open) - 1, 0, -1):
            name = self._open[index].name
            if name in names:
                closed_from = index
                if not outermost:
                    break
            elif name in stops or (name.startswith("ac:") and not across_extensions):
                break
        if closed_from:
            del self._open[closed_from:]
            self._left_out.clear()  # they were within the closed element
        return closed_from > 0
