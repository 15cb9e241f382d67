"""Where blocks go: the document, or a table's cell."""

from __future__ import annotations

from typing import Protocol

from connectors.markup.tables import Table

LINE, PARAGRAPH = 1, 2
"""What lies between two blocks: a line end, or a blank line."""


class Sink(Protocol):
    """Takes blocks in their order, and the quotes and lists they stand in."""

    def gap(self, size: int) -> int:
        """At least this much before the next block; how much it will be."""
        ...

    def paragraph(self, text: str) -> None:
        """Lines of running text, escaped but for their beginnings."""
        ...

    def heading(self, level: int, text: str) -> None:
        """One line."""
        ...

    def code(self, text: str, language: str) -> None:
        """Every blank of it counts."""
        ...

    def rule(self) -> bool:
        """A line across; False where none can be drawn."""
        ...

    def table(self, table: Table) -> None:
        """Rows of cells."""
        ...

    def open_quote(self) -> None:
        """What follows is quoted, until `close`."""
        ...

    def open_list(self, start: int | None) -> None:
        """Items follow, numbered from `start` or with bullets, until `close`."""
        ...

    def open_item(self, box: str = "", number: int | None = None) -> None:
        """What follows is one item, until `close`; `box` is `[ ]` or `[x]`."""
        ...

    def open_definition(self) -> None:
        """What follows says what the term before means, until `close`."""
        ...

    def tick(self, box: str) -> bool:
        """Gives the item just opened a box; False if it has text already, or none is open."""
        ...

    def close(self) -> None:
        """Ends the innermost quote, list, item or definition."""
        ...
