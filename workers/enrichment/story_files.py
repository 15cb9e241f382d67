"""Exports of earlier stories: JSON, CSV and Excel as rows with their numbers."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from connectors.documents.values import parse_json
from pipeline.errors import ConfigurationError, DocumentRejected

MOST_BYTES = 50_000_000
MOST_UNPACKED = 500_000_000
"""Of an Excel file, which is packed."""
MOST_ROWS = 100_000
_KEYS = ("user_stories", "userStories", "stories", "final_output")


def rows_of(path: Path) -> list[tuple[int, Any]]:
    """Number and fields of each story; rows of tables are counted as a spreadsheet does, others from 1.

    Empty rows are left out.

    Raises:
        ConfigurationError: there is no such file, or it is none that can be read.
        DocumentRejected: it is not what its name says, or too large.
    """
    read = {".json": _json, ".csv": _csv, ".xlsx": _excel}.get(path.suffix.lower())
    if read is None:
        raise ConfigurationError(f"{path} is no .json, .csv or .xlsx", fix="save the export as one of them")
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DocumentRejected(f"{path} is larger than {MOST_BYTES:,} bytes", fix="seed it in parts")
        rows = list(islice(read(path), MOST_ROWS + 1))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}", fix="name a file that is there"
        ) from None
    except UnicodeDecodeError:
        raise DocumentRejected(f"{path} is no text in UTF-8", fix="save it as UTF-8") from None
    if len(rows) > MOST_ROWS:
        raise DocumentRejected(f"{path} has more than {MOST_ROWS:,} rows", fix="seed it in parts")
    return rows


def _json(path: Path) -> Iterator[tuple[int, Any]]:
    data = parse_json(path.read_text(encoding="utf-8-sig"), str(path))
    while isinstance(data, Mapping):
        held = [data[key] for key in _KEYS if key in data]
        if not held:
            break
        data = held[0]
    if not isinstance(data, list):
        raise DocumentRejected(
            f"{path} has no list of stories", fix='write [{...}, ...] or {"user_stories": [{...}, ...]}'
        )
    yield from enumerate(data, start=1)


def _csv(path: Path) -> Iterator[tuple[int, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    head = text.partition("\n")[0]
    divider = max(",;\t", key=head.count)
    csv.field_size_limit(MOST_BYTES)
    try:
        yield from _table(csv.reader(io.StringIO(text, newline=""), delimiter=divider))
    except csv.Error as error:
        raise DocumentRejected(f"{path} is no CSV: {error}", fix="export it again") from None


def _excel(path: Path) -> Iterator[tuple[int, Any]]:
    import openpyxl

    try:
        with zipfile.ZipFile(path) as packed:
            size = sum(part.file_size for part in packed.infolist())
        if size > MOST_UNPACKED:
            raise DocumentRejected(
                f"{path} unpacks to more than {MOST_UNPACKED:,} bytes", fix="seed it in parts"
            )
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        try:
            yield from _table(book.worksheets[0].iter_rows(values_only=True))
        finally:
            book.close()
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError, IndexError, SyntaxError) as error:
        # What the library raises about a broken file; a broken XML is a SyntaxError.
        raise DocumentRejected(
            f"{path} is no Excel file ({type(error).__name__})", fix="save it as .xlsx"
        ) from None


def _table(rows: Iterator[Sequence[Any]]) -> Iterator[tuple[int, Any]]:
    """Rows under the first one that is not empty, which names the columns."""
    heads: Sequence[Any] | None = None
    for number, row in enumerate(rows, start=1):
        if not any(cell not in (None, "") for cell in row):
            continue
        if heads is None:
            heads = row
        else:
            yield (
                number,
                {str(head): cell for head, cell in zip(heads, row, strict=False) if head not in (None, "")},
            )
