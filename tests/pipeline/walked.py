"""A source made for the purpose, and slices and syncs of it: it honours its cursor and fails where it is told."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pipeline.documents import Cursor, Document, Finding, Listing, Page, Problem
from pipeline.errors import SourceUnavailable
from pipeline.ingest.sync import Schedule, Syncer
from pipeline.ledger import runs
from tests.pipeline.source_ledger import LEASE, SourceLedger, document

LATER = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
EARLIER = LATER - timedelta(minutes=30)


@dataclass
class FakeSource:
    """Documents in the order of their change; the cursor says how many have been read."""

    documents: dict[str, str]
    walks_all: bool = False
    complete: bool = True
    page_size: int = 2
    extractor: str = "fake-1"
    breaks_at: int | None = None
    """The page, counted from 0 over its life, that raises `fault`."""
    fault: Exception = field(default_factory=lambda: SourceUnavailable("away", retry_after=5))
    ids_fault: Exception | None = None
    versions: dict[str, str] = field(default_factory=dict)
    """Fingerprints that the walk shows; documents carry the same unless `marks` says otherwise."""
    marks: dict[str, str] = field(default_factory=dict)
    read_again: list[list[str]] = field(default_factory=list)
    begun_at: list[Any] = field(default_factory=list)
    pages_read: int = 0
    piece_size: int = 0
    """Ids of one piece of the walk over ids; 0: all in one."""
    pieces_begun: list[int] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    skipped: tuple[Problem, ...] = ()
    """These two of each page; of all, as the id walk tells it:"""
    all_left_out: dict[str, int] | None = None
    listing_seconds: float = 0.0
    """How long the first page takes."""

    def _all(self) -> list[Document]:
        known = {**self.versions, **self.marks}
        return [
            replace(document(i, body), fingerprint=known.get(i, "")) for i, body in self.documents.items()
        ]

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        self.read_again.append(list(ids))
        found = {d.external_id: d for d in self._all()}
        here = tuple(found[i] for i in ids if i in found)
        yield Page(cursor={"never": "kept"}, documents=here, deleted=tuple(i for i in ids if i not in found))

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        self.begun_at.append(since if since is None else dict(since))
        time.sleep(self.listing_seconds)
        start, every = int((since or {}).get("read", 0)), self._all()
        for at in range(start, max(len(every), start + 1), self.page_size):
            if self.pages_read == self.breaks_at:
                self.pages_read += 1
                raise self.fault
            self.pages_read += 1
            batch = tuple(every[at : at + self.page_size])
            last = at + self.page_size >= len(every)
            done = {} if last and self.walks_all else {"read": at + len(batch)}
            yield Page(cursor=done, documents=batch, skipped=self.skipped, left_out=self.left_out)

    def ids(self, since: Cursor | None = None) -> Listing:
        if self.ids_fault:
            raise self.ids_fault
        if self.piece_size:
            at = int((since or {}).get("at", 0))
            self.pieces_begun.append(at)
            here = sorted(self.documents)[at : at + self.piece_size]
            cursor = {"at": at + self.piece_size} if at + self.piece_size < len(self.documents) else {}
            versions = {i: self.versions[i] for i in here}
            left_out = {"not for everybody": 1}
            return Listing(
                ids=frozenset(here),
                complete=self.complete,
                versions=versions,
                left_out=left_out,
                cursor=cursor,
            )
        return Listing(
            ids=frozenset(self.documents),
            complete=self.complete,
            versions=self.versions,
            left_out=self.all_left_out,
        )

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> int | None:  # noqa: ARG002
        return None

    def check(self) -> list[Finding]:
        return []

    def stamp(self) -> str | None:
        return f"stamp-{len(self.documents)}"


def fake_source(count: int, **changes: Any) -> FakeSource:
    return FakeSource({f"d{n}": f"text {n}" for n in range(count)}, **changes)


def schedule() -> Schedule:
    return Schedule(next_sync_at=LATER, next_walk_at=LATER)


def pipeline_of(source: FakeSource, chunker: str = "c1") -> str:
    return f"{source.extractor}|{chunker}|m"


def go_on(
    notes: SourceLedger,
    source: FakeSource,
    run: int,
    *,
    force: bool = False,
    chunker: str = "c1",
    config_hash: str = "c1",
    **changes: Any,
) -> bool:
    """One slice, which no slow machine ends unless a test says when it does."""
    syncer = Syncer(database=notes.database, lease=LEASE, **{"slice_seconds": 600.0, **changes})
    where = notes.where(run, force=force, pipeline=pipeline_of(source, chunker))
    return syncer.slice(source, where, schedule, config_hash=config_hash)


def sync(
    notes: SourceLedger, source: FakeSource, *, force: bool = False, walk: bool = False, chunker: str = "c1"
) -> runs.RunRow:
    """A whole sync; documents are left as if they had been indexed."""
    run = notes.open_run(force=force, walk=walk)
    assert go_on(notes, source, run, force=force, chunker=chunker)
    notes.documents.set({"state": "pending"}, state="done", stage="done")
    return notes.run(run)
