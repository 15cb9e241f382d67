"""Records of a decision log: a file with many decisions, each below a heading or in a row of a table."""

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
"""Fewest headings of one level, or rows, that make a log."""
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
"""Names of columns with the titles of records, reduced to their letters."""
_RULE = re.compile(r"\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$")
_BETWEEN_CELLS = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, kw_only=True)
class LoggedRecord:
    """One decision of a log."""

    title: str
    text: str
    """Markdown that begins with the title as a heading."""
    anchor: str
    """Anchor of the record within the file, as sites derive it from a heading; unique."""


def records_of(text: str) -> list[LoggedRecord]:
    """Records of a log in order; empty for a single record or a text that is no log."""
    entries = [*_below_headings(text)] or [*_in_rows(text)]
    anchors = Counter[str]()
    records = []
    for title, body in entries if len(entries) >= FEWEST_RECORDS else ():
        anchor = re.sub(r"[^\w-]+", "-", title.casefold()).strip("-") or "record"
        anchors[anchor] += 1
        repeats = anchors[anchor] - 1
        records.append(
            LoggedRecord(title=title, text=body, anchor=f"{anchor}-{repeats}" if repeats else anchor)
        )
    return records


def _below_headings(text: str) -> Iterator[tuple[str, str]]:
    """Title and section of each heading of the outermost level that has several."""
    headings = [heading for heading in headings_of(text) if heading.text]
    levels = Counter(heading.level for heading in headings)
    level = next((level for level in sorted(levels) if levels[level] >= FEWEST_RECORDS), 0)
    begins = [heading for heading in headings if heading.level == level]
    if sum(not SECTIONS.isdisjoint(names_of(heading.text)) for heading in begins) >= FEWEST_RECORDS:
        return  # the sections of one record
    lines = text.split("\n")
    starts = [_first_line(heading, lines) for heading in headings if heading.level <= level]
    for heading in begins:
        start = _first_line(heading, lines)
        end = next((line for line in starts if line > start), len(lines))
        yield heading.title, "\n".join(lines[start:end]).strip()


def _first_line(heading: Heading, lines: Sequence[str]) -> int:
    """Line of a heading's text, one above the underline if it is underlined."""
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
    sections = (f"## {name}\n\n{cell}" for name, cell in row.items() if cell and letters(name) in SECTIONS)
    return "\n\n".join(part for part in (f"# {title}", fields, *sections) if part)


def _cells(row: str) -> list[str]:
    return [plain_text(cell.strip()) for cell in _BETWEEN_CELLS.split(row.strip().strip("|"))]
