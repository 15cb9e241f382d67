"""The records of a decision log: a file that holds many decisions, each below a heading or in a row of a table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from connectors.documents.headings import (
    DECISION,
    SECTIONS,
    Heading,
    headings_of,
    letters,
    names_of,
    plain_text,
)

FEWEST_RECORDS = 2
"""Headings of one level, or rows, that are a log."""
_TITLES = DECISION | {
    "title",
    "topic",
    "subject",
    "summary",
    "titel",
    "thema",
    "titre",
    "sujet",
    "título",
    "titolo",
}
"""Columns whose cells are the titles of records, by their letters."""
_RULE = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, kw_only=True)
class LoggedRecord:
    """One decision of a log."""

    title: str
    text: str
    """Markdown that begins with the title as a heading."""
    anchor: str
    """Its name within the file, as sites make it of a heading; each record has its own."""


def records_of(text: str) -> list[LoggedRecord]:
    """The records of a log in order; none of a text that is a single record, or no log."""
    found = [*_below_headings(text)] or [*_in_rows(text)]
    anchors = Counter[str]()
    records = []
    for title, body in found if len(found) >= FEWEST_RECORDS else ():
        anchor = re.sub(r"[^\w-]+", "-", title.casefold()).strip("-") or "record"
        anchors[anchor] += 1
        again = anchors[anchor] - 1
        records.append(LoggedRecord(title=title, text=body, anchor=f"{anchor}-{again}" if again else anchor))
    return records


def _below_headings(text: str) -> Iterator[tuple[str, str]]:
    """Title and text of what stands below each heading of the outermost level with several."""
    headings = [heading for heading in headings_of(text) if heading.text]
    levels = Counter(heading.level for heading in headings)
    level = next((level for level in sorted(levels) if levels[level] >= FEWEST_RECORDS), 0)
    begins = [heading for heading in headings if heading.level == level]
    if sum(not SECTIONS.isdisjoint(names_of(heading.text)) for heading in begins) >= FEWEST_RECORDS:
        return  # the parts of one record
    lines = text.split("\n")
    starts = [_first_line(heading, lines) for heading in headings if heading.level <= level]
    for heading in begins:
        start = _first_line(heading, lines)
        end = next((line for line in starts if line > start), len(lines))
        yield heading.title, "\n".join(lines[start:end]).strip()


def _first_line(heading: Heading, lines: Sequence[str]) -> int:
    """That of its words: an underlined heading ends a line later."""
    return heading.line if lines[heading.line].lstrip().startswith("#") else heading.line - 1


def _in_rows(text: str) -> Iterator[tuple[str, str]]:
    """Title and text of each row of the first table with a column of decisions or titles."""
    lines = text.split("\n")
    for at, line in enumerate(lines[1:], 1):
        columns = _cells(lines[at - 1])
        title = next((n for n, name in enumerate(columns) if letters(name) in _TITLES), None)
        if title is None or not _RULE.match(line):
            continue
        for row in lines[at + 1 :]:
            cells = _cells(row)
            if "|" not in row or len(cells) != len(columns):
                return
            if cells[title]:
                yield cells[title], _record_of_row(cells[title], dict(zip(columns, cells, strict=True)))
        return


def _record_of_row(title: str, row: dict[str, str]) -> str:
    fields = "\n".join(
        f"- {name}: {cell}" for name, cell in row.items() if cell and letters(name) not in SECTIONS
    )
    parts = (f"## {name}\n\n{cell}" for name, cell in row.items() if cell and letters(name) in SECTIONS)
    return "\n\n".join(part for part in (f"# {title}", fields, *parts) if part)


def _cells(row: str) -> list[str]:
    return [plain_text(cell.strip()) for cell in _BETWEEN_CELLS.split(row.strip().strip("|"))]
