"""Carries the outbox over into a vector store: in batches, at least once, deletions and lowered rights first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from uuid import UUID

import numpy as np
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.errors import (
    LarderError,
    StoreDamaged,
    StoreError,
    StoreRejected,
    StoreUnavailable,
    pause_after,
)
from pipeline.ledger import renewed
from pipeline.search.chunk_store import indexes
from pipeline.search.stores import FloatVector, Point, Scope, VectorStore, outbox
from pipeline.search.stores.outbox import ChunkKey, Claimed, StoreRow

BATCH = 500
"""Most chunks of a batch."""
MARK_SECONDS = 30.0
"""Seconds between two marks; the last one is looked for before the next: some stores show a write seconds later."""
MOST_PAUSE = 60.0
"""Most seconds that a store that fails is left alone."""
NOBODY = UUID(int=0)
"""Tenant of the marks: no caller is of it."""


def collection_of(index: int) -> str:
    """Name of the collection of a search index."""
    return f"chunks-{index}"


@dataclass
class Mirror:
    """Carries over what one store lacks."""

    database: Database
    name: str
    store: VectorStore
    lease: float = 120.0
    crashes: int = 3
    """Crashes of a worker until a chunk is given up."""
    batch: int = BATCH

    def carry(self, tenant: UUID) -> int:
        """Carry the next batch of a tenant over; returns the number of chunks that were taken from the outbox.

        Raises:
            StoreUnavailable: the store does not take it now; the rows are put back and the store is paused.
        """
        begun = time.monotonic()
        with self.database.tenant(tenant) as connection:
            claimed = outbox.claim(connection, tenant, self.name, most=self.batch, lease=self.lease)
        if not claimed.turns:
            return 0
        keys = list(claimed.turns)
        if claimed.crashed >= self.crashes:
            with self.database.tenant(tenant) as connection:
                outbox.give_up(connection, claimed, keys, error="workers crashed with it")
            return len(keys)
        try:
            with renewed(partial(self._renew, claimed), lease=self.lease, since=begun):
                self._carry(claimed, keys)
        except StoreUnavailable as error:
            self._pause(claimed, keys, error)
            raise
        return len(keys)

    def _renew(self, claimed: Claimed) -> bool:
        with self.database.tenant(claimed.tenant) as connection:
            return outbox.renew(connection, claimed, lease=self.lease)

    def _carry(self, claimed: Claimed, keys: Sequence[ChunkKey]) -> None:
        """Carry chunks over; a batch that is refused is divided until the culprit is alone."""
        try:
            self._write(claimed, keys)
        except StoreRejected as error:
            if len(keys) == 1:
                with self.database.tenant(claimed.tenant) as connection:
                    outbox.give_up(connection, claimed, keys, error=str(error))
                return
            middle = len(keys) // 2
            self._carry(claimed, keys[:middle])
            self._carry(claimed, keys[middle:])
            return
        with self.database.tenant(claimed.tenant) as connection:
            outbox.finish(connection, claimed, keys)

    def _write(self, claimed: Claimed, keys: Sequence[ChunkKey]) -> None:
        """Make the store equal to PostgreSQL for these chunks, as they are now."""
        tenant = claimed.tenant
        with self.database.tenant(tenant) as connection:
            chunks = outbox.current_chunks(connection, keys)
        for index in sorted({key.index_id for key in keys}):
            collection = collection_of(index)
            if missing := [key.id for key in keys if key.index_id == index and key not in chunks]:
                self.store.delete(Scope(collection=collection, tenant=tenant), missing)
            points = [
                Point(
                    id=key.id,
                    vector=np.asarray(row.embedding.to_numpy(), dtype=np.float32),
                    tenant=tenant,
                    project=row.project_id,
                    kind=row.kind,
                    source_type=row.source_type,
                    security_level=row.security_level,
                    changed=row.changed or 0.0,
                )
                for key, row in chunks.items()
                if key.index_id == index
            ]
            if points:
                self.store.put(collection, points)

    def _pause(self, claimed: Claimed, keys: Sequence[ChunkKey], error: StoreUnavailable) -> None:
        if isinstance(error, StoreDamaged) and self._is_unreadable(claimed, keys):
            with self.database.control() as connection:
                outbox.rebuild(connection, self.name)
        seconds = self.pause(error)
        with self.database.tenant(claimed.tenant) as connection:
            outbox.put_back(connection, claimed, keys, seconds=seconds, error=error.message)

    def _is_unreadable(self, claimed: Claimed, keys: Sequence[ChunkKey]) -> bool:
        """Whether the store has an internal error where it reads the points of these chunks."""
        try:
            for index in {key.index_id for key in keys}:
                scope = Scope(collection=collection_of(index), tenant=claimed.tenant)
                self.store.stats(scope, [key.id for key in keys if key.index_id == index])
        except StoreError as error:
            return isinstance(error, StoreDamaged)
        return False

    def pause(self, error: LarderError) -> float:
        """Pause the store after an error, longer after each further one; returns the seconds."""
        with self.database.control() as connection:
            failures = next((r.failures for r in outbox.listed(connection) if r.name == self.name), 0)
            seconds = error.retry_after or pause_after(failures + 1, most=MOST_PAUSE)
            outbox.record_failure(connection, self.name, error.message, seconds=seconds)
        return seconds

    # -- what one worker alone does --------------------------------------------------------------------

    def look_after(self) -> StoreRow | None:
        """Empty, fill and mark the store as its row asks; None while another worker does, or it is paused.

        Raises:
            StoreError: the store fails; it is paused.
        """
        with self.database.control() as connection:
            claimed = outbox.claim_store(connection, self.name, lease=self.lease)
        if claimed is None:
            return None
        row, token = claimed
        try:
            with renewed(partial(self._renew_store, token), lease=self.lease):
                self._look_after(row)
        except StoreError as error:
            self.pause(error)
            raise
        finally:
            with self.database.control() as connection:
                is_released = outbox.release_store(connection, self.name, token)
                if (
                    not is_released and row.status == "emptying"
                ):  # it may have emptied what another one has filled
                    outbox.rebuild(connection, self.name)
        return row

    def _renew_store(self, token: UUID) -> bool:
        with self.database.control() as connection:
            return outbox.renew_store(connection, self.name, token, lease=self.lease)

    def _look_after(self, row: StoreRow) -> None:
        if row.status == "emptying":
            self.empty()
            with self.database.control() as connection:
                outbox.record_emptied(connection, row)
            return
        with self.database.control() as connection:
            outdated = connection.execute(_UNMARKED, {"store": self.name, "seconds": MARK_SECONDS}).first()
        if outdated and (problem := self._lasting_problem(row)):
            with self.database.control() as connection:
                outbox.rebuild(connection, self.name)
                outbox.record_failure(connection, self.name, problem, seconds=0)
            return
        if outdated:
            self._mark(row)
        elif row.failures:
            self._prove(row)
        if row.status == "filling":  # after a mark: what is carried from now on is lost together with it
            with self.database.control() as connection:
                outbox.fill(connection, row)

    def _indexes(self) -> dict[int, int]:
        """Number of each search index -> its dimensions."""
        with self.database.control() as connection:
            return {index.id: index.dimensions for index in indexes(connection)}

    def empty(self) -> None:
        """Delete all collections."""
        for index in self._indexes():
            self.store.delete(Scope(collection=collection_of(index)))

    def _mark(self, row: StoreRow) -> None:
        """Write the mark with a new position into each collection, and delete the mark before the last one.

        A collection that is new gets the last one as well: two marks are looked for in each.
        """
        with self.database.control() as connection:
            position = outbox.next_position(connection)
        existing = self._indexes()
        for index in set(row.collections) - existing.keys():
            self.store.delete(Scope(collection=collection_of(index)))
        for index, dimensions in existing.items():
            has_last = row.marked_at is None or index in row.collections
            self._put_marks(row, index, dimensions, [position] if has_last else [row.position, position])
            if row.before:
                scope = Scope(collection=collection_of(index), tenant=NOBODY)
                self.store.delete(scope, [f"{row.mark}:{row.before}"])
        with self.database.control() as connection:
            outbox.record_mark(connection, row, position, sorted(existing))
            outbox.record_success(connection, self.name)

    def _prove(self, row: StoreRow) -> None:
        """Forget failures if the store takes a write, which says nothing of its contents: a mark with position 0."""
        for index, dimensions in self._indexes().items():
            if index in row.collections:
                self._put_marks(row, index, dimensions, [0])
        with self.database.control() as connection:
            outbox.record_success(connection, self.name)

    def _put_marks(self, row: StoreRow, index: int, dimensions: int, positions: Sequence[int]) -> None:
        vector = _diagonal(dimensions)
        marks = [Point(id=f"{row.mark}:{one}", vector=vector, tenant=NOBODY) for one in positions]
        self.store.put(collection_of(index), marks)

    def _lasting_problem(self, row: StoreRow) -> str:
        """As `problem`, and an internal error of the store right after another failure is one, too.

        Raises:
            StoreError: the store does not answer, or has an internal error for the first time.
        """
        try:
            return self.problem(row)
        except StoreDamaged as error:
            if not row.failures:
                raise
            return error.message

    def problem(self, row: StoreRow) -> str:
        """Why the contents of the store are not those that were carried over; empty if they are.

        Raises:
            StoreError: the store does not answer.
        """
        if row.marked_at is None:
            return ""
        with self.database.control() as connection:
            greatest, seconds = (
                outbox.last_position(connection),
                outbox.seconds_since_mark(connection, row.name),
            )
        for index, dimensions in self._indexes().items():
            if index in row.collections:
                positions = self._positions(row, index, dimensions)
                if contradiction := _contradiction(row, positions, is_seen=seconds > MARK_SECONDS):
                    return contradiction
                if greatest < max(positions, default=0):
                    return "the database was restored from an older state"
        return ""

    def _positions(self, row: StoreRow, index: int, dimensions: int) -> list[int]:
        """Positions of this database's marks in a collection."""
        scope = Scope(collection=collection_of(index), tenant=NOBODY)
        marks = (one.id.rpartition(":") for one in self.store.near(_diagonal(dimensions), 50, scope))
        return [int(position) for mark, _, position in marks if mark == str(row.mark) and position.isdigit()]


def _contradiction(row: StoreRow, positions: Sequence[int], *, is_seen: bool) -> str:
    """Why marks of these positions are not those that were written; `is_seen`: the last one must show by now."""
    expected = row.position if is_seen else row.before
    if expected and not positions:
        return "it was emptied, or is another store"
    if expected > max(positions, default=0):
        return "it was restored from an older state"
    if is_seen and row.before and sum(one >= min(row.before, row.position) for one in positions) <= 1:
        return "it was emptied while the last mark was written"
    return ""


def _diagonal(dimensions: int) -> FloatVector:
    return np.full(dimensions, dimensions**-0.5, dtype=np.float32)


_UNMARKED = text("""
    select 1 from vector_store where name = :store and status <> 'emptying'
      and (marked_at is null or marked_at < now() - make_interval(secs => :seconds))""")
