"""One slice of a sync: pages are stored in the ledger with their cursors; at the end deleted items are removed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import UUID

from pipeline.database.engine import Database, commit_soon
from pipeline.documents import Cursor, Listing, Page, Source
from pipeline.errors import LarderError, SourceUnavailable
from pipeline.ingest import hints
from pipeline.ingest.pipeline_version import PipelineVersion
from pipeline.ledger import admission, runs, sources

LONG_CALL = 5.0
"""The length of the lease during an id walk, in leases: one long call, which cannot renew it."""
READ_AGAIN = 50
"""The most items that are read again in one call."""
READ_AT = "read_at"
"""Key in the cursor of a source that lists all its items: the time at which all were read last, in seconds."""
LONGEST_LISTING = 60.0
"""The most seconds that a slice lasts longer for a source with a slow first page."""


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The times at which the source is due next."""

    next_sync_at: datetime | None
    next_walk_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class Syncer:
    """Reads a source for one run, in slices of time."""

    database: Database
    lease: float = 120.0
    slice_seconds: float = 10.0
    """Seconds after which a sync pauses, so that other work has its turn."""
    read_all_after: float = 86_400.0
    """Seconds after which unchanged items are read, too, since a source may judge them by a wrong fingerprint."""
    guard: admission.DeletionGuard = field(default_factory=admission.DeletionGuard)
    after_page: Callable[[], object] = lambda: None
    """Called after the commit of a page with new work; wakes the pump."""

    def slice(
        self,
        source: Source,
        target: admission.Admission,
        schedule: Callable[[], Schedule],
        *,
        config_hash: str,
        hinted: Callable[[], Source] | None = None,
    ) -> bool:
        """Continue a run; True when its source is read to the end, False when another slice must follow.

        Returns True as well if there is nothing to do: the run is closed, or another worker has it. `config_hash` is
        that of the configuration with which `source` was opened. `hinted` opens the source once more, for items that
        webhooks name while it is read; None if it has none.

        Raises:
            LarderError: the source failed; the run keeps the cursor of its last stored page.
        """
        with self.database.tenant(target.tenant_id) as connection:
            # Claimed before the rows are read: another worker may be completing the run at this moment.
            token = sources.claim(connection, target.source_id, lease=self.lease)
            run = runs.get(connection, target.run_id)
            row = sources.get(connection, target.source_id)
            if token is None or row is None or run is None or run.state != "discovering":
                if token is not None:
                    sources.release(connection, target.source_id, token)
                return True
        try:
            if row.config_hash != config_hash:
                raise configured_otherwise(row.name)
            read_hinted = partial(self._read_hinted, hinted() if hinted else None, target, token)
            is_through = read_hinted()
            if run.trigger == hints.HOOK:
                if is_through:
                    self._end_of_hints(target, token)
                return is_through
            return self._continue(source, target, token, run, row, schedule=schedule, read_hinted=read_hinted)
        finally:
            with self.database.tenant(target.tenant_id) as connection:
                sources.release(connection, target.source_id, token)

    def _continue(
        self,
        source: Source,
        target: admission.Admission,
        token: UUID,
        run: runs.RunRow,
        row: sources.SourceRow,
        *,
        schedule: Callable[[], Schedule],
        read_hinted: Callable[[], bool],
    ) -> bool:
        """Read the source on from where its run is; False if the slice ends before the source does."""
        version_before, version = map(PipelineVersion.parse, (row.pipeline_version, target.pipeline_version))
        another = version_before.extractor != version.extractor
        unread = None if run.force or another else self._skip_unchanged(source, target, run, row)
        # Begins at the cursor of this run, else at that of the source, else at the start.
        anew = run.force or another or source.walks_all
        since = run.cursor if run.cursor is not None else None if anew else row.cursor
        # A source that is read from the start may have lost items since the last sync.
        walk = run.walk or (since is None and unread is None)
        stamp = run.stamp
        if stamp is None:
            # Before the first page, so that a change during the sync differs from it.
            with _translated():
                stamp = source.stamp()
            with self.database.tenant(target.tenant_id) as connection:
                runs.begin(connection, target.run_id, stamp, walk=walk)
                runs.add(connection, target.run_id, runs.Counts(unchanged=unread or 0))
        # The last page of such a source has an empty cursor: then only `_finish` remains.
        is_through = source.walks_all and run.cursor == {}
        if not is_through and not self._walk(source, target, token, since, read_hinted):
            return False
        after = (run.walk_after or "") if walk or source.walks_all else None
        read_at = time.time() if source.walks_all and unread is None else None
        return self._finish(
            source, target, token, walk_after=after, stamp=stamp, read_at=read_at, schedule=schedule
        )

    def _end_of_hints(self, target: admission.Admission, token: UUID) -> None:
        with self.database.tenant(target.tenant_id) as connection:
            sources.renew(connection, target.source_id, token, lease=self.lease)
            runs.finish_walk(connection, target.run_id)

    def _skip_unchanged(
        self, source: Source, target: admission.Admission, run: runs.RunRow, row: sources.SourceRow
    ) -> int | None:
        """Let a source that lists all its items skip the unchanged ones; returns how many.

        None if all items shall be read: the source cannot tell, the run is to read all, or the last complete reading is
        too long ago. That decision then holds to the end of the run.
        """
        read_at = (row.cursor or {}).get(READ_AT, 0.0)
        is_due = run.stamp is None and not 0 <= time.time() - read_at < self.read_all_after
        if not source.walks_all or run.walk or is_due:
            return None
        with self.database.tenant(target.tenant_id) as connection:
            fingerprints = admission.settled_fingerprints(connection, target)
        with _translated():
            return source.skip_unchanged(fingerprints)

    def _walk(
        self,
        source: Source,
        target: admission.Admission,
        token: UUID,
        since: Cursor | None,
        read_hinted: Callable[[], bool],
    ) -> bool:
        """Store page after page; False if the slice ends before the source does.

        A page with changes is committed durably before the next one is read, so that no restart of the server in
        between loses it.
        """
        begun, end = time.monotonic(), None
        for page in _guarded(source, since):
            if end is None:
                # A slow listing is repeated in each slice, so each slice works for at least as long as it waited.
                waited = min(LONGEST_LISTING, time.monotonic() - begun)
                end = time.monotonic() + max(self.slice_seconds, waited)
            with self.database.tenant(target.tenant_id) as connection:
                cursor = None if source.walks_all else page.cursor
                sources.renew(connection, target.source_id, token, lease=self.lease, cursor=cursor)
                counts = admission.admit(connection, target, page)
                runs.add(connection, target.run_id, counts, cursor=page.cursor)
                runs.add_late_ids(connection, target.run_id, [d.external_id for d in page.documents])
                if counts == runs.Counts(unchanged=counts.unchanged):
                    commit_soon(connection)
            if counts.queued:
                self.after_page()
            read_hinted()
            # A cursor equal to that at the start of this slice means that the source is at its end: pausing there
            # would let a slow source repeat its last page for ever.
            if time.monotonic() > end and page.cursor and page.cursor != since:
                return False
        return True

    def _read_hinted(self, source: Source | None, target: admission.Admission, token: UUID) -> bool:
        """Read the items that webhooks named, if there can be any; False if the slice ends first."""
        if source is None:
            return True
        end = time.monotonic() + self.slice_seconds
        while True:
            with self.database.tenant(target.tenant_id) as connection:
                sources.renew(connection, target.source_id, token, lease=self.lease)
                ids = hints.claim(connection, target.source_id, READ_AGAIN)
                if not ids:
                    commit_soon(connection)
                    return True
            changed_ids: set[str] = set()
            with _translated():
                for page in source.read(ids):
                    with self.database.tenant(target.tenant_id) as connection:
                        sources.renew(connection, target.source_id, token, lease=self.lease)
                        verdicts = admission.verdicts(connection, target, page)
                        counts = admission.admit(connection, target, page)
                        runs.add(connection, target.run_id, counts)
                    changed_ids.update(one for one, verdict in verdicts.items() if verdict == "changed")
                    changed_ids.update(page.deleted if counts.deleted else ())
            with self.database.tenant(target.tenant_id) as connection:
                sources.renew(connection, target.source_id, token, lease=self.lease)
                hints.settle(connection, target.source_id, ids, changed_ids)
            self.after_page()
            if time.monotonic() > end:
                return False

    def _finish(
        self,
        source: Source,
        target: admission.Admission,
        token: UUID,
        *,
        walk_after: str | None,
        stamp: str | None,
        read_at: float | None,
        schedule: Callable[[], Schedule],
    ) -> bool:
        """Complete a run after its last page: queue outdated documents, read missed items, remove deleted ones.

        `walk_after` None: without an id walk. `read_at` is the time at which all items were read, if they were. False
        if the slice ends first.
        """
        if not self._outdate(target, token):
            return False
        listing = None
        if walk_after is not None:
            listing = self._listed(source, target, token)
            if listing is None or not self._read_again(source, target, token, listing, walk_after):
                return False
        with self.database.tenant(target.tenant_id) as connection:
            cursor = None if read_at is None else {READ_AT: read_at}
            sources.renew(connection, target.source_id, token, lease=self.lease, cursor=cursor)
            if listing is not None:
                runs.delete_id_lists(connection, target.run_id)
                pruned = admission.prune(connection, target.source_id, listing, self.guard)
                runs.add(connection, target.run_id, pruned)
                if listing.left_out is not None:
                    runs.note_left_out(connection, target.run_id, listing.left_out, anew=True)
            runs.finish_walk(connection, target.run_id, walk=listing is not None)
            run = runs.get(connection, target.run_id)
            when = schedule()
            sources.completed(
                connection,
                target.source_id,
                pipeline_version=target.pipeline_version,
                stamp=stamp,
                next_sync_at=when.next_sync_at,
                # A source whose every sync ends with an id walk needs no walks of its own schedule.
                next_walk_at=None if source.walks_all else when.next_walk_at,
                walked=listing is not None,
                left_out=run.left_out if run else {},
            )
            sources.release(connection, target.source_id, token)
        return True

    def _listed(self, source: Source, target: admission.Admission, token: UUID) -> Listing | None:
        """The run's complete list of ids, each piece stored as it comes; None if the slice ends first."""
        with self.database.tenant(target.tenant_id) as connection:
            pieces = runs.id_lists(connection, target.run_id)
        end = time.monotonic() + self.slice_seconds
        while not pieces or pieces[-1].cursor:
            with self.database.tenant(target.tenant_id) as connection:
                sources.renew(connection, target.source_id, token, lease=self.lease * LONG_CALL)
            with _translated():
                piece = source.ids(pieces[-1].cursor if pieces else None)
            pieces.append(piece)
            if (
                piece.cursor or piece.versions
            ):  # else it is one quick listing of files, and no item is read again
                with self.database.tenant(target.tenant_id) as connection:
                    sources.renew(connection, target.source_id, token, lease=self.lease)
                    runs.add_id_list(connection, target.run_id, len(pieces), piece)
            if piece.cursor and time.monotonic() > end:
                return None
        return Listing.merged(pieces)

    def _outdate(self, target: admission.Admission, token: UUID) -> bool:
        """Queue documents that another pipeline indexed, some at a time; False if the slice ends first."""
        end = time.monotonic() + self.slice_seconds
        while True:
            with self.database.tenant(target.tenant_id) as connection:
                sources.renew(connection, target.source_id, token, lease=self.lease)
                queued = admission.outdate(connection, target)
                runs.add(connection, target.run_id, runs.Counts(queued=queued))
                if not queued:
                    commit_soon(connection)
            if queued < admission.OUTDATED:
                return True
            if time.monotonic() > end:
                return False

    def _read_again(
        self, source: Source, target: admission.Admission, token: UUID, listing: Listing, after: str
    ) -> bool:
        """Read the items whose fingerprint in the walk differs from the ledger's; False if the slice ends first."""
        if not listing.versions:
            return True
        with self.database.tenant(target.tenant_id) as connection:
            differing = admission.differing(connection, target.source_id, listing, after)
        end = time.monotonic() + self.slice_seconds
        for start in range(0, len(differing), READ_AGAIN):
            ids = differing[start : start + READ_AGAIN]
            with _translated():
                for page in source.read(ids):  # pages before a fault stay stored
                    with self.database.tenant(target.tenant_id) as connection:
                        sources.renew(connection, target.source_id, token, lease=self.lease)
                        runs.add(connection, target.run_id, admission.admit(connection, target, page))
            with self.database.tenant(target.tenant_id) as connection:
                sources.renew(connection, target.source_id, token, lease=self.lease)
                runs.add(connection, target.run_id, runs.Counts(), walk_after=ids[-1])
            self.after_page()
            if time.monotonic() > end and start + READ_AGAIN < len(differing):
                return False
        return True


CONFIGURED_OTHERWISE = "the workers have "
"""The first words of the errors of runs for which the workers have the wrong configuration."""
START_AGAIN = "larder reload where `larder up` runs them, else start each of them again"
"""The ways to make workers read their file again; those started by hand or in containers have no `reload`."""


def configured_otherwise(name: str) -> SourceUnavailable:
    """The error for a source that this worker has with another configuration; a retry may reach a newer worker."""
    message = f"{CONFIGURED_OTHERWISE}another configuration of source {name} than was registered last"
    return SourceUnavailable(message, fix=f"have all workers run with the same file: {START_AGAIN}")


def not_configured(name: str, tenant: str, workers_tenant: str) -> SourceUnavailable:
    """The error for a source that this worker does not have, perhaps since it is configured for another tenant."""
    if tenant == workers_tenant:
        return configured_otherwise(name)
    return SourceUnavailable(
        f"{CONFIGURED_OTHERWISE}no source {name} of tenant {tenant}: they are those of tenant {workers_tenant}",
        fix=f"if the tenant is wrong, larder sources forget {tenant}/{name}, and ask with "
        f"LARDER_TENANT={workers_tenant}; if the file names it, {START_AGAIN}",
    )


def _guarded(source: Source, since: Cursor | None) -> Iterator[Page]:
    """The pages of a source, with its errors translated."""
    with _translated():
        yield from source.pages(since)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn foreign exceptions of a connector into SourceUnavailable, without their text."""
    try:
        yield
    except LarderError:
        raise
    except Exception as error:  # noqa: BLE001 - a foreign error may quote text that must not be shown
        raise SourceUnavailable(f"the connector failed with {type(error).__name__}") from None
