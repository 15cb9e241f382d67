"""The walk over a page's markup: which elements are open, what is hidden, when to stop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from connectors.markup.blocks import LINE, DocumentSink, Table, Writer
from connectors.markup.inline import Addresses, Links, Target
from connectors.markup.scanner import Event, Sign, events


@dataclass(frozen=True, kw_only=True)
class MarkupLimits:
    """Bounds of one conversion; what they cut is recorded in `Rendered`, never silent."""

    most_characters: int = 5_000_000
    """Of the Markdown."""
    most_depth: int = 400
    """Open elements; deeper ones lose their structure and keep their text."""
    seconds: float = 20.0
    """Wall time after which the rest of the markup is left out."""


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """A page as Markdown."""

    text: str
    """No trailing blanks outside of code, no two blank lines in a row outside of code, no line end at the end."""
    capped: bool = False
    """True if text is missing because a limit was met."""
    depth_capped: bool = False
    """True if elements were nested too deeply to show how; their text is there."""
    attachments: tuple[str, ...] = ()
    """File names of attachments the page mentions, in the order of their first mention, each once."""


Opened = Iterator[None]
"""What an element does: up to its `yield` at its start tag, the rest at its end."""

BLOCKS = frozenset(
    "address article aside blockquote body center dd details dialog dir div dl dt fieldset "  # noqa: SIM905 (a list of words)
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr html legend li main menu nav ol "
    "option p pre section summary table tbody td tfoot th thead tr ul ac:layout "
    "ac:layout-section ac:layout-cell".split()
)
VOID = frozenset(
    "area base br col embed frame hr img input link meta param source track wbr".split()  # noqa: SIM905 (a list of words)
)
_CELLS = frozenset({"td", "th"})
_TABLE_PARTS = frozenset(
    "td th tr tbody thead tfoot caption colgroup".split()  # noqa: SIM905 (a list of words)
)
_SCOPES = frozenset({"table", "td", "th", "caption"})
_ITEM_SCOPES = frozenset({"ul", "ol", "menu", "dir"})
_CLOSES_PARAGRAPH = BLOCKS - {"body", "html", "option", "dd", "dt", "li", "td", "th", "tr"} | _ITEM_SCOPES

# A start tag ends the open elements of these names, looking up to those.
_IMPLIED: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "li": (frozenset({"li", "p"}), _ITEM_SCOPES),
    "dt": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "dd": (frozenset({"dt", "dd"}), frozenset({"dl"})),
    "option": (frozenset({"option"}), frozenset({"select"})),
    "a": (frozenset({"a"}), frozenset()),
    "td": (_CELLS | {"caption", "colgroup"}, frozenset({"table", "tr"})),
    "th": (_CELLS | {"caption", "colgroup"}, frozenset({"table", "tr"})),
    "tr": (_CELLS | {"tr", "caption", "colgroup"}, frozenset({"table"})),
    **dict.fromkeys(("tbody", "thead", "tfoot"), (_TABLE_PARTS, frozenset({"table"}))),
    **dict.fromkeys(_CLOSES_PARAGRAPH, (frozenset({"p"}), frozenset())),
}
# An end tag looks for its start tag no further up than these.
_ENDS_WITHIN: dict[str, frozenset[str]] = {
    "li": _ITEM_SCOPES,
    "dt": frozenset({"dl"}),
    "dd": frozenset({"dl"}),
    **dict.fromkeys(_TABLE_PARTS, frozenset({"table"})),
}


class OpenElements:
    """A stack of bounded height, so that looking through it costs little whatever is nested."""

    def __init__(self, most: int) -> None:
        self.depth_capped = False
        self._most = most
        self._open: list[tuple[str, Opened | None]] = []
        self._count: Counter[str] = Counter()
        self._left_out: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """True if the next element is too deep to be kept."""
        return len(self._open) >= self._most

    def is_open(self, name: str) -> bool:
        """True if such an element is open anywhere."""
        return self._count[name] > 0

    def push(self, name: str, opened: Opened | None) -> None:
        """Opens an element; `opened` goes on at its end."""
        self._open.append((name, opened))
        self._count[name] += 1

    def leave_out(self, name: str) -> None:
        """Counts an element that is too deep, so that its end tag closes nothing else."""
        self.depth_capped = True
        self._left_out[name] += 1

    def imply_ends(self, name: str) -> None:
        """Closes what the start of `name` closes."""
        rule = _IMPLIED.get(name)
        if rule is None or self._left_out:  # what it would close may be one that was left out
            return
        names, stops = rule
        if any(self._count[each] for each in names):
            found = self._find(names, stops if name in _TABLE_PARTS else stops | _SCOPES, outermost=True)
            self._pop_to(found)

    def end(self, name: str) -> bool:
        """Closes `name` and all within; False if no such element is open here."""
        if left_out := self._left_out.pop(name, 0):
            if left_out > 1:
                self._left_out[name] = left_out - 1
            return True
        if not self._count[name]:
            return False
        stops = frozenset() if ":" in name or name == "table" else _ENDS_WITHIN.get(name, _SCOPES)
        found = self._find(frozenset({name}), stops, across_extensions=name.startswith("ac:"))
        self._pop_to(found)
        return found is not None

    def end_all(self) -> None:
        """Closes everything."""
        self._pop_to(0)

    def _find(
        self,
        names: frozenset[str],
        stops: frozenset[str],
        *,
        outermost: bool = False,
        across_extensions: bool = False,
    ) -> int | None:
        found: int | None = None
        for index in range(len(self._open) - 1, -1, -1):
            name = self._open[index][0]
            if name in names:
                found = index
                if not outermost:
                    break
            elif name in stops or (not across_extensions and name.startswith("ac:")):
                break
        return found

    def _pop_to(self, index: int | None) -> None:
        if index is not None:
            self._left_out.clear()  # they stood within what ends now
        while index is not None and len(self._open) > index:
            name, opened = self._open.pop()
            self._count[name] -= 1
            _go_on(opened)


EVENTS_BETWEEN_CLOCKS = 512
MOST_KEPT = 10_000
"""Characters of a parameter."""
_MEANT_IN_CODE = frozenset({"head", "template", "iframe", "xml", "noframes", "datalist", "time"})
_IN_HEAD = frozenset(
    "base link meta noscript script style template title".split()  # noqa: SIM905 (a list of words)
)


@dataclass(slots=True)
class Macro:
    """A macro, or an extension of the new editor, that is open."""

    name: str
    parameters: dict[str, str] = field(default_factory=dict)
    target: Target = field(default_factory=Target)
    has_body: bool = False
    title_shown: bool = False
    words_before: int = 0

    def keep(self, name: str, text: str) -> None:
        """Remembers a parameter."""
        self.parameters.setdefault(name, text)

    @property
    def inline(self) -> bool:
        """True if it stands within a line."""
        return self.first("atlassian-macro-output-type").upper() == "INLINE"

    def first(self, *names: str) -> str:
        """The first parameter of these names that holds anything."""
        return next((value for name in names if (value := self.parameters.get(name, "").strip())), "")


@dataclass(slots=True)
class _Hidden:
    """An element whose text is not the page's text."""

    name: str
    keep: Callable[[str], None] | None
    inside: Counter[str] = field(default_factory=Counter)
    parts: list[str] = field(default_factory=list)
    size: int = 0

    def text(self, data: str) -> None:
        if self.keep is not None and self.size < MOST_KEPT:
            self.parts.append(data[:MOST_KEPT])
            self.size += len(data)


class Conversion:
    """The state of one page's conversion, for the handlers of elements to work on."""

    def __init__(self, handlers: Mapping[str, Handler], links: Links | None, limits: MarkupLimits) -> None:
        self.document = DocumentSink(limits.most_characters)
        self.out = Writer(self.document)
        self.stack = OpenElements(limits.most_depth)
        self.addresses = Addresses(links)
        self.macros: list[Macro] = []
        self.targets: list[Target] = []
        self.pictures: list[Callable[[], None]] = []
        """For each picture that is open, what shows it (once)."""
        self.tables: list[Table | None] = []
        """None for a table that is nested too deeply to be one."""
        self.task_done = False
        self.code_language = ""
        self.depth_capped = False
        self._handlers = handlers
        self._seconds = limits.seconds
        self._hidden: _Hidden | None = None

    @property
    def table(self) -> Table | None:
        """The table that is open, if it can be shown as one."""
        return self.tables[-1] if self.tables else None

    def run(self, html: str) -> Rendered:
        """Converts the page; can be called once."""
        in_time = self._walk(html)
        if self._hidden is not None:
            self._reveal()
        self.stack.end_all()
        self.out.flush(0)
        return Rendered(
            text=self.document.text(),
            capped=self.document.full or not in_time,
            depth_capped=self.depth_capped or self.stack.depth_capped or self.document.depth_capped,
            attachments=tuple(self.addresses.attachments),
        )

    def hide(self, element: str, keep: Callable[[str], None] | None = None) -> None:
        """From the start tag being handled to its end nothing is text; `keep` gets what was there."""
        self._hidden = _Hidden(element, keep)

    def _walk(self, html: str) -> bool:
        """False if the time was up before the end."""
        deadline = time.monotonic() + self._seconds
        for number, event in enumerate(events(html), 1):
            if self.document.full:
                break
            if number % EVENTS_BETWEEN_CLOCKS == 0 and time.monotonic() > deadline:
                return False
            if event.sign is Sign.START:
                self._start(event)
            elif event.sign is Sign.END:
                self._end(event.value)
            elif self._hidden is not None:
                self._hidden.text(event.value)
            else:
                self.out.text(event.value)
        return True

    def _start(self, event: Event) -> None:
        name = event.value
        if self._hidden is not None and not self._start_hidden(self._hidden, event):
            return
        if self.out.code is not None and self._start_in_code(event):
            return
        self.stack.imply_ends(name)
        lone = event.closed or name in VOID
        too_deep = name in BLOCKS and self.stack.full and not lone
        handler = None if too_deep else self._handlers.get(name)
        opened = handler(self, event.rest) if handler else None
        _go_on(opened)
        self._started(name, opened, lone=lone)

    def _started(self, name: str, opened: Opened | None, *, lone: bool) -> None:
        """An element without content ends at once; any other stays open, unless it is hidden."""
        if self._hidden is not None:
            if lone:
                self._reveal()
        elif lone:
            _go_on(opened)
        else:
            self._push(name, opened)

    def _start_hidden(self, hidden: _Hidden, event: Event) -> bool:
        """True if the element is visible after all, because it ends an unclosed `head`."""
        if hidden.name == "head" and event.value not in _IN_HEAD and not hidden.inside.total():
            self._reveal()
            return True
        if event.value.startswith("ri:") and self.targets:
            self.targets[-1].note(event.value, event.rest)
        if not event.closed and event.value not in VOID:
            hidden.inside[event.value] += 1
        return False

    def _start_in_code(self, event: Event) -> bool:
        """True if that is all: within code, elements of HTML are but colours and line ends."""
        name = event.value
        if ":" in name or name in _MEANT_IN_CODE:
            return False
        if name == "br":
            self.out.text("\n")
        elif name in BLOCKS:
            self.out.flush(LINE)
        elif name == "code" and not self.code_language:
            self.code_language = event.rest
        if not (event.closed or name in VOID):
            self._push(name, None)
        return True

    def _push(self, name: str, opened: Opened | None) -> None:
        """An element that is too deep ends at once; its end tag is counted off."""
        if not self.stack.full:
            self.stack.push(name, opened)
            return
        self.stack.leave_out(name)
        _go_on(opened)
        if name in BLOCKS:
            self.out.flush(LINE)

    def _end(self, name: str) -> None:
        hidden = self._hidden
        if hidden is not None:
            if hidden.inside[name]:
                hidden.inside[name] -= 1
                return
            if name == hidden.name:
                self._reveal()
                return
            if not self.stack.is_open(name):
                return
            self._reveal()  # an element around it ends, so its own end tag is missing
        found = self.stack.end(name)
        if name == "br" and not found:
            self.out.line_break()  # as browsers read `</br>`
        elif name in BLOCKS and self.out.code is None:
            self.out.flush(LINE)

    def _reveal(self) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None and hidden.keep is not None:
            hidden.keep("".join(hidden.parts))


Handler = Callable[[Conversion, str], Opened | None]
"""Handles a start tag, given what stands behind its name; None if there is nothing to do at its end."""


def hidden(element: str) -> Handler:
    """The handler of an element whose text is not the page's text."""

    def handler(page: Conversion, rest: str) -> None:  # noqa: ARG001 (every handler takes both)
        page.hide(element)

    return handler


def block(gap: int) -> Handler:
    """The handler of an element that stands on lines of its own, `gap` away from what is around it."""

    def handler(page: Conversion, rest: str) -> Iterator[None]:  # noqa: ARG001 (every handler takes both)
        page.out.flush(gap)
        yield
        page.out.flush(gap)

    return handler


def _go_on(opened: Opened | None) -> None:
    if opened is not None:
        next(opened, None)
