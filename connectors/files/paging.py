"""Outcomes in sorted order, cut into pages with a cursor each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.documents import Cursor, Document, Page, Problem

PAGE_ENTRIES = 100
PAGE_CHARACTERS = 4_000_000
"""A page is held in memory and stored in one transaction; a hundred large files would be too much for both."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What became of one item: a document, a failure or something left out. `key` gives the order."""

    key: str
    document: Document | None = None
    failed: Problem | None = None
    skipped: Problem | None = None


def failed(external_id: str, reason: str, url: str = "") -> Entry:
    """An item that is there and could not be read."""
    return Entry(key=external_id, failed=Problem(external_id=external_id, reason=reason, url=url))


def skipped(external_id: str, reason: str, url: str = "") -> Entry:
    """An item left out on purpose."""
    return Entry(key=external_id, skipped=Problem(external_id=external_id, reason=reason, url=url))


def resume_key(since: Cursor | None) -> str:
    """The last key of the page that left this cursor; empty if the walk starts over."""
    after = since.get("after") if since else None
    return after if isinstance(after, str) else ""


def pages_of(entries: Iterable[Entry]) -> Iterator[Page]:
    """Pages of entries that come sorted by key; the last page's cursor is empty: start over next time."""
    batch: list[Entry] = []
    size = 0
    for entry in entries:
        if len(batch) >= PAGE_ENTRIES or size >= PAGE_CHARACTERS:
            yield _page(batch, {"after": batch[-1].key})
            batch, size = [], 0
        batch.append(entry)
        size += len(entry.document.text) if entry.document else 0
    yield _page(batch, {})


def selected(pages: Iterable[Page], ids: Sequence[str]) -> Iterator[Page]:
    """Only these items of a whole walk; what the walk does not bring is gone."""
    missing = set(ids)
    for page in pages:
        documents = tuple(d for d in page.documents if d.external_id in missing)
        failures = tuple(p for p in page.failed if p.external_id in missing)
        missing -= {d.external_id for d in documents} | {p.external_id for p in failures}
        if documents or failures:
            yield Page(cursor={}, documents=documents, failed=failures)
    if missing:
        yield Page(cursor={}, deleted=tuple(sorted(missing)))


def _page(batch: list[Entry], cursor: Cursor) -> Page:
    return Page(
        cursor=cursor,
        documents=tuple(e.document for e in batch if e.document),
        failed=tuple(e.failed for e in batch if e.failed),
        skipped=tuple(e.skipped for e in batch if e.skipped),
    )
