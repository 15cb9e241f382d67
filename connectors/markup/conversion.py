"""The walk over a page's markup: which element is open, what is hidden, when to stop."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from connectors.markup.addresses import Addresses, Links, Target
from connectors.markup.canvas import Canvas
from connectors.markup.document import DocumentSink
from connectors.markup.rendered import MarkupLimits, Rendered
from connectors.markup.scanner import Event, Sign, events
from connectors.markup.sinks import LINE
from connectors.markup.stack import BLOCKS, VOID, Close, OpenElements
from connectors.markup.tables import Table

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
        self.canvas = Canvas(self.document)
        self.stack = OpenElements(limits.most_depth)
        self.addresses = Addresses(links)
        self.macros: list[Macro] = []
        self.targets: list[Target] = []
        self.pictures: list[Close] = []
        """For each picture that is open, what shows it (once)."""
        self.tables: list[Table | None] = []
        """None for a table that is nested too deeply to be one."""
        self.task_done = False
        self.code_language = ""
        self.depth_capped = False
        self._handlers = handlers
        self._seconds = limits.seconds
        self._hidden: _Hidden | None = None

    def run(self, html: str) -> Rendered:
        """Converts the page; can be called once."""
        in_time = self._walk(html)
        if self._hidden is not None:
            self._reveal()
        self.stack.end_all()
        self.canvas.flush(0)
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
                self.canvas.text(event.value)
        return True

    def _start(self, event: Event) -> None:
        name = event.value
        if self._hidden is not None and not self._start_hidden(self._hidden, event):
            return
        if self.canvas.code is not None and self._start_in_code(event):
            return
        self.stack.imply_ends(name)
        lone = event.closed or name in VOID
        handler = self._handlers.get(name)
        if name in BLOCKS and self.stack.full and not lone:
            handler = None
        close = handler(self, event.rest) if handler else None
        if self._hidden is not None:
            if lone:
                self._reveal()
        elif lone:
            _call(close)
        else:
            self._push(name, close)

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
            self.canvas.text("\n")
        elif name in BLOCKS:
            self.canvas.flush(LINE)
        elif name == "code" and not self.code_language:
            self.code_language = event.rest
        if not (event.closed or name in VOID):
            self._push(name, None)
        return True

    def _push(self, name: str, close: Close | None) -> None:
        """An element that is too deep ends at once; its end tag is counted off."""
        if not self.stack.full:
            self.stack.push(name, close)
            return
        self.stack.leave_out(name)
        _call(close)
        if name in BLOCKS:
            self.canvas.flush(LINE)

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
            self.canvas.line_break()  # as browsers read `</br>`
        elif name in BLOCKS and self.canvas.code is None:
            self.canvas.flush(LINE)

    def _reveal(self) -> None:
        hidden, self._hidden = self._hidden, None
        if hidden is not None and hidden.keep is not None:
            hidden.keep("".join(hidden.parts))


Handler = Callable[[Conversion, str], Close | None]
"""Handles a start tag, given what stands behind its name; what comes back is called at its end."""


def _call(close: Close | None) -> None:
    if close is not None:
        close()
