"""Sync runs: opening one, its counts, closing it when the last document is settled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pipeline.documents import Cursor, Json, Listing, Problem
from pipeline.ledger import Item, storable

MOST_PROBLEMS = 200
"""The most problems that a run lists; its counts have no limit."""


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Outcomes of a source's items; a document that is listed twice in one run counts once."""

    unchanged: int = 0
    queued: int = 0
    skipped: int = 0
    failed: int = 0
    hidden: int = 0
    deleted: int = 0
    restored: int = 0
    noted: int = 0
    """Documents with a reading note; they are counted above, too."""


COUNTED = tuple(Counts.__dataclass_fields__)


@dataclass(frozen=True, kw_only=True)
class RunRow(Counts):
    """A run and its counts."""

    id: int
    source_id: UUID
    state: str
    trigger: str
    """Why it was opened: schedule, watch, manual, reconcile or hook."""
    force: bool
    walk: bool
    finished_at: datetime | None
    attempts: int
    error: str | None
    cursor: Cursor | None
    walk_after: str | None
    stamp: str | None
    traceparent: str | None
    listed: int
    """The sum of unchanged, queued, skipped and failed."""
    indexed: int
    dead: int
    superseded: int
    chunks: int
    chunks_written: int
    chunks_kept: int
    texts_embedded: int
    texts_reused: int
    texts_cut: int
    """Embedded texts that were longer than the model reads, so that it saw only their beginning."""
    problems: list[Json]
    left_out: dict[str, int]
    """Reason -> number of excluded items."""


_COLUMNS = ", ".join(RunRow.__dataclass_fields__)


def open_run(
    connection: Connection,
    tenant_id: UUID,
    source_id: UUID,
    *,
    trigger: str,
    force: bool = False,
    walk: bool = False,
) -> int | None:
    """The id of a new open run; None if the source is being walked already.

    Documents of an earlier run may still wait: those that this run lists count in this run from then on.
    """
    statement = text("""
        insert into sync_run (tenant_id, source_id, trigger, force, walk, enqueued_at)
        values (:tenant, :source, :trigger, :force, :walk, now())
        on conflict (source_id) where state = 'discovering' do nothing
        returning id""")
    row = connection.execute(
        statement,
        {"tenant": tenant_id, "source": source_id, "trigger": trigger, "force": force, "walk": walk},
    ).one_or_none()
    return int(row.id) if row else None


def keep_trace(connection: Connection, run_id: int, traceparent: str | None) -> None:
    """Store the trace that a run continues, if there is one."""
    if traceparent:
        statement = text("update sync_run set traceparent = :kept where id = :id")
        connection.execute(statement, {"id": run_id, "kept": traceparent})


def traces_of(connection: Connection, items: Sequence[Item]) -> list[str]:
    """The traces of the runs that wait for these documents, the oldest run first."""
    statement = text("""
        select traceparent from sync_run where traceparent is not null and id in (
            select run_id from run_item i
            join unnest(cast(:ids as uuid[]), cast(:versions as integer[])) as m(id, version)
                on i.document_id = m.id and i.version = m.version
            where i.outcome is null)
        order by id""")
    values = {"ids": [i.document_id for i in items], "versions": [i.version for i in items]}
    return list(connection.execute(statement, values).scalars())


def mark_unsent(connection: Connection, run_id: int) -> None:
    """Note that its message could not be published; the pump sends it on its next tick."""
    connection.execute(text("update sync_run set enqueued_at = null where id = :id"), {"id": run_id})


def get(connection: Connection, run_id: int) -> RunRow | None:
    """One run, or None."""
    return _one(connection, "id = :id", run_id)


def open_of(connection: Connection, source_id: UUID) -> RunRow | None:
    """The oldest open run of a source, if it has one."""
    oldest = "id = (select min(id) from sync_run where source_id = :id and finished_at is null)"
    return _one(connection, oldest, source_id)


def newest_open(connection: Connection, source_id: UUID) -> RunRow | None:
    """The newest open run of a source, which may still read it."""
    newest = "id = (select max(id) from sync_run where source_id = :id and finished_at is null)"
    return _one(connection, newest, source_id)


def of_source(connection: Connection, source_id: UUID, most: int) -> list[RunRow]:
    """The newest runs of a source."""
    statement = text(f"select {_COLUMNS} from sync_run where source_id = :id order by id desc limit :most")
    rows = connection.execute(statement, {"id": source_id, "most": most})
    return [RunRow(**row) for row in rows.mappings()]


def is_walked(connection: Connection, source_id: UUID) -> bool:
    """True while a run reads the source; no other can be opened."""
    statement = text("select exists (select from sync_run where source_id = :id and state = 'discovering')")
    return bool(connection.execute(statement, {"id": source_id}).scalar())


def _one(connection: Connection, condition: str, named: int | UUID) -> RunRow | None:
    rows = connection.execute(text(f"select {_COLUMNS} from sync_run where {condition}"), {"id": named})
    row = rows.mappings().one_or_none()
    return RunRow(**row) if row else None


_ADD = text(f"""
    update sync_run set {", ".join(f"{name} = {name} + :{name}" for name in COUNTED)},
           listed = listed + :unchanged + :queued + :skipped + :failed,
           walk_after = coalesce(:after, walk_after),
           attempts = case when cast(:cursor as jsonb) <> coalesce(cursor, 'null') then 0 else attempts end,
           error = case when cast(:cursor as jsonb) is null then error end,
           cursor = coalesce(cast(:cursor as jsonb), cursor)
    where id = :id""")


def add(
    connection: Connection,
    run_id: int,
    counts: Counts,
    *,
    cursor: Cursor | None = None,
    walk_after: str | None = None,
) -> None:
    """Add to a run's counts, and store its cursor.

    A `cursor` that moved is progress, so attempts count anew. `walk_after` is the last item that was read again after
    the id walk.
    """
    values = {name: getattr(counts, name) for name in COUNTED}
    stands = {"cursor": None if cursor is None else json.dumps(storable(cursor)), "after": walk_after}
    connection.execute(_ADD, {"id": run_id, **values, **stands})


def add_id_list(connection: Connection, run_id: int, number: int, piece: Listing) -> None:
    """Store a piece of a run's list of ids; that is progress, so attempts count anew."""
    stored = storable({**vars(piece), "ids": sorted(piece.ids), "cursor": dict(piece.cursor)})
    statement = text("""
        insert into walk_piece (run_id, tenant_id, number, found)
        select id, tenant_id, :number, cast(:found as jsonb) from sync_run where id = :id""")
    connection.execute(statement, {"id": run_id, "number": number, "found": json.dumps(stored)})
    statement = text("update sync_run set attempts = 0, error = null where id = :id")
    connection.execute(statement, {"id": run_id})


def add_late_ids(connection: Connection, run_id: int, ids: Sequence[str]) -> None:
    """Add the ids of a page to a list of ids that was begun before it, so that they do not count as deleted."""
    statement = text("""
        insert into walk_piece (run_id, tenant_id, number, found)
        select run_id, tenant_id, number + 1,
               found || jsonb_build_object('ids', cast(:ids as jsonb), 'versions', cast('{}' as jsonb),
                                           'left_out', null)
        from walk_piece where run_id = :id order by number desc limit 1""")
    if ids:
        connection.execute(statement, {"id": run_id, "ids": json.dumps(storable(ids))})


def id_lists(connection: Connection, run_id: int) -> list[Listing]:
    """The stored pieces of a run's list of ids, in order."""
    statement = text("select found from walk_piece where run_id = :id order by number")
    pieces = connection.execute(statement, {"id": run_id}).scalars()
    return [Listing(**{**piece, "ids": frozenset(piece["ids"])}) for piece in pieces]


def delete_id_lists(connection: Connection, run_id: int) -> None:
    """Delete the stored pieces of a run's list of ids."""
    connection.execute(text("delete from walk_piece where run_id = :id"), {"id": run_id})


def begin(connection: Connection, run_id: int, stamp: str | None, *, walk: bool) -> None:
    """Store the source's stamp from before the first page, and whether the run ends with an id walk."""
    statement = text("update sync_run set stamp = :stamp, walk = walk or :walk where id = :id")
    connection.execute(statement, {"id": run_id, "stamp": stamp, "walk": walk})


def note_left_out(
    connection: Connection, run_id: int, counts: Mapping[str, int], *, anew: bool = False
) -> None:
    """Count excluded items by reason; `anew` replaces the counts so far."""
    statement = text("""
        update sync_run set left_out = (
            select coalesce(jsonb_object_agg(reason, n), '{}') from (
                select key as reason, sum(cast(value as integer)) as n
                from (select * from jsonb_each_text(case when :anew then '{}' else left_out end)
                      union all select * from jsonb_each_text(cast(:counts as jsonb))) e group by key) r)
        where id = :id""")
    if counts or anew:
        connection.execute(
            statement, {"id": run_id, "counts": json.dumps(storable(dict(counts))), "anew": anew}
        )


def note_problems(connection: Connection, run_id: int, outcome: str, problems: Iterable[Problem]) -> None:
    """List items that could not be read or were excluded, up to the limit of a run."""
    rows = [storable({**problem.to_json(), "outcome": outcome}) for problem in problems]
    if rows:
        statement = text("""
            update sync_run set problems = problems || (
                select coalesce(jsonb_agg(row order by n), '[]')
                from jsonb_array_elements(cast(:rows as jsonb)) with ordinality as r(row, n)
                where n <= :most - jsonb_array_length(problems))
            where id = :id and jsonb_array_length(problems) < :most""")
        connection.execute(
            statement, {"id": run_id, "rows": json.dumps(rows[:MOST_PROBLEMS]), "most": MOST_PROBLEMS}
        )


def finish_walk(connection: Connection, run_id: int, *, walk: bool = False) -> None:
    """Note that a run has read its source, all of it if `walk`; the run closes when its documents are settled."""
    statement = text("""
        update sync_run set state = 'processing', walk = walk or :walk
        where id = :id and state = 'discovering'""")
    connection.execute(statement, {"id": run_id, "walk": walk})


def postpone(connection: Connection, run_id: int, *, delay: float, error: str, tried: bool = True) -> int:
    """Retry the sync of a run in `delay` seconds; returns the number of failed attempts.

    `tried` False: the source asked to wait, which is no failure.
    """
    statement = text("""
        update sync_run set attempts = attempts + cast(:tried as integer),
               due_at = now() + make_interval(secs => :delay), enqueued_at = null, error = :error
        where id = :id returning attempts""")
    row = connection.execute(statement, {"id": run_id, "delay": delay, "error": error, "tried": int(tried)})
    return int(row.scalar_one())


def fail(connection: Connection, run_id: int, error: str) -> None:
    """Close a run whose source cannot be read on; its queued documents are indexed nevertheless."""
    statement = text("""
        update sync_run set state = 'failed', finished_at = now(), error = :error
        where id = :id and finished_at is null""")
    connection.execute(statement, {"id": run_id, "error": error})


def settle_items(connection: Connection, ids: Sequence[UUID], outcome: str) -> None:
    """Set the outcome of these documents in all runs that wait for them."""
    statement = text(
        "update run_item set outcome = :outcome where document_id = any(:ids) and outcome is null"
    )
    connection.execute(statement, {"ids": list(ids), "outcome": outcome})


def count_texts(
    connection: Connection,
    versions: Mapping[UUID, int],
    embedded: Mapping[UUID, int],
    reused: Mapping[UUID, int],
    cut: Mapping[UUID, int],
) -> int:
    """Add numbers of embedded and reused texts to the run of each document, in these versions.

    `cut` counts embedded texts that were longer than the model reads. Returns how many texts the cache saved: a text
    that the same run embedded in an earlier slice or attempt comes from the cache, too, and does not count.
    """
    statement = text("""
        update run_item i set texts_embedded = texts_embedded + r.embedded, texts_cut = texts_cut + r.cut,
               texts_reused = texts_reused + greatest(r.reused - texts_embedded, 0)
        from jsonb_to_recordset(cast(:rows as jsonb)) as r(
            id uuid, version integer, embedded integer, reused integer, cut integer)
        where i.document_id = r.id and i.version = r.version and i.outcome is null
        returning least(r.reused, i.texts_embedded - r.embedded) as again""")
    counts = {"embedded": embedded, "reused": reused, "cut": cut}
    rows = [
        {"id": i, "version": version, **{name: count.get(i, 0) for name, count in counts.items()}}
        for i, version in versions.items()
    ]
    embedded_before: list[int] = list(
        connection.execute(statement, {"rows": json.dumps(rows, default=str)}).scalars()
    )
    return sum(reused.values()) - sum(embedded_before)


SUMS = ("chunks", "chunks_written", "chunks_kept", "texts_embedded", "texts_reused", "texts_cut")
TOTALS = ("indexed", "dead", "superseded", *SUMS)
_COUNT = f"""
    select i.run_id, count(*) filter (where outcome is null) as open,
           count(*) filter (where outcome = 'done') as indexed,
           count(*) filter (where outcome = 'dead') as dead,
           count(*) filter (where outcome = 'superseded') as superseded,
           {", ".join(f"sum({name}) as {name}" for name in SUMS)}
    from run_item i where i.run_id = any(:runs) group by i.run_id"""


def progress(connection: Connection, run_ids: list[int]) -> dict[int, dict[str, int]]:
    """Live counts of runs: `open`, the number of items without an outcome, and the totals."""
    outcomes = (("open", "null"), ("indexed", "'done'"), ("dead", "'dead'"), ("superseded", "'superseded'"))
    counts = [
        f"coalesce(sum(items) filter (where outcome is not distinct from {o}), 0) as {n}" for n, o in outcomes
    ]
    statement = text(f"""
        select run_id, {", ".join((*counts, *(f"sum({name}) as {name}" for name in SUMS)))}
        from run_count where run_id = any(:runs) group by run_id""")
    rows = connection.execute(statement, {"runs": run_ids})
    return {row["run_id"]: {k: int(row[k]) for k in ("open", *TOTALS)} for row in rows.mappings()}


def with_live_counts(connection: Connection, rows: Sequence[RunRow]) -> list[RunRow]:
    """Runs with live counts where they are open: the stored counts are written when a run closes."""
    live = progress(connection, [row.id for row in rows if not row.finished_at])
    counts: list[Json] = [{k: n for k, n in live.get(row.id, {}).items() if k in TOTALS} for row in rows]
    return [replace(row, **now) for row, now in zip(rows, counts, strict=True)]


_THROUGH = """
    not exists (select from run_count c where c.run_id = r.id and c.outcome is null having sum(items) > 0)"""


_FREE = "for no key update of r skip locked"
"""The lock on runs `r`: the pump skips locked ones, since it may hold others, and takes them on its next tick."""


COUNT_DUE = "coalesce(s.refreshed_at + greatest(s.chunks - 10000, 0) * interval '1 ms' < now(), true)"
"""Condition for counting the lexemes of `index_stat s` again. A count reads all chunks of the tenant, some 10 us each,
and is to take a hundredth of the time at most. Up to 10,000 chunks are counted whenever they changed."""


def list_settled(connection: Connection) -> Sequence[Row[Any]]:
    """Runs whose walk is over and whose documents are all settled, not yet closed: id, tenant_id, changed, uncounted.

    `changed` is true if a run changed anything that search sees, `uncounted` while the lexemes of its changes must be
    counted before it closes. On the control role.
    """
    statement = text(f"""
        update sync_run set settled_at = now() where id in (
            select id from sync_run r where state = 'processing' and settled_at is null and {_THROUGH} {_FREE})""")
    connection.execute(statement)
    statement = text(f"""
        select id, tenant_id, queued + hidden + deleted + restored > 0 as changed,
               queued + hidden + deleted + restored > 0 and exists (
                   select from document_count c join search_index i on i.status = 'active'
                   left join index_stat s on s.tenant_id = c.tenant_id and s.index_id = i.id
                   where c.source_id = r.source_id and c.state = 'done'
                     and least(c.at, r.settled_at) > coalesce(s.refreshed_at, '-infinity')
                    and {COUNT_DUE}) as uncounted
        from sync_run r where state = 'processing' and settled_at is not null and {_THROUGH}
        order by id""")
    return connection.execute(statement).all()


def close(connection: Connection, run_ids: Sequence[int]) -> list[Json]:
    """Close settled runs and write their totals, which come back with their run, tenant and source; repeatable.

    A scheduled run without changes, or whose changes all passed to a later run, is removed again: a list of empty
    runs hides the others. So are earlier runs that only excluded the same items.
    """
    ids = list(run_ids)
    sums = ", ".join(f"{name} = coalesce(c.{name}, 0)" for name in TOTALS)
    statement = text(f"""
        update sync_run r set state = 'finished', finished_at = now(), error = null, {sums}
        from (select id from sync_run r where id = any(:runs) and state = 'processing' {_FREE}) w
        left join ({_COUNT}) c on c.run_id = w.id
        where r.id = w.id
        returning r.id as run, cast(r.tenant_id as text) as tenant,
                  (select name from source s where s.id = r.source_id) as source, r.indexed as documents,
                  r.chunks, r.failed + r.dead as errors,
                  cast(round(extract(epoch from now() - r.started_at), 3) as double precision) as duration""")
    closed = [dict(row) for row in connection.execute(statement, {"runs": ids}).mappings()]
    statement = text("""
        delete from sync_run where id = any(:runs) and state = 'finished' and trigger not in ('manual', 'reconcile')
          and queued - superseded + skipped + failed + hidden + deleted + restored + noted = 0""")
    connection.execute(statement, {"runs": ids})
    statement = text("""
        delete from sync_run o using sync_run r
        where r.id = any(:runs) and r.state = 'finished' and o.source_id = r.source_id and o.id < r.id
          and o.state = 'finished' and o.trigger not in ('manual', 'reconcile')
          and o.queued - o.superseded + o.hidden + o.deleted + o.restored = 0
          and (o.skipped, o.failed, o.problems, o.left_out) = (r.skipped, r.failed, r.problems, r.left_out)""")
    connection.execute(statement, {"runs": ids})
    return closed


def compact_counts(connection: Connection) -> None:
    """Merge the rows that statements added to each figure into one; one caller at a time, on the control role."""
    for table, keys, added, having in _FIGURES:
        key, same = ", ".join(keys), " and ".join(f"c.{k} is not distinct from m.{k}" for k in keys)
        statement = text(f"""
            with many as (select {key} from {table} group by {key} having count(*) > 1),
            gone as (delete from {table} c using many m where {same} returning c.*)
            insert into {table} ({key}, {", ".join(added)})
            select {key}, {", ".join(added.values())} from gone group by {key} having {having}""")
        connection.execute(statement)


_FIGURES: tuple[tuple[str, Sequence[str], Mapping[str, str], str], ...] = (
    (
        "document_count",
        ("tenant_id", "source_id", "state", "stage", "hidden", "indexed"),
        {"documents": "sum(documents)", "chunks": "sum(chunks)", "at": "max(at)"},
        "sum(documents) <> 0 or state = 'done'",  # keeps the time of the last change
    ),
    ("index_work_count", ("tenant_id", "index_id", "stage"), {"items": "sum(items)"}, "sum(items) <> 0"),
    (
        "run_count",
        ("run_id", "tenant_id", "outcome"),
        {name: f"sum({name})" for name in ("items", *SUMS)},
        "sum(items) <> 0",
    ),
)
"""Tables of figures: keys, how several rows of a key are merged, and the condition for keeping the merged row."""


def sync_due(connection: Connection, *, resend: float) -> list[tuple[UUID, UUID, int]]:
    """Stamp and return (tenant, source, run) of syncs without a message: never sent, lost, or postponed and due."""
    statement = text(f"""
        update sync_run set enqueued_at = now() where id in (
            select r.id from sync_run r join source s on s.id = r.source_id
            where r.state = 'discovering' and r.due_at <= now()
              and (s.sync_lease_until is null or s.sync_lease_until < now())
              and (r.enqueued_at is null or r.enqueued_at < now() - make_interval(secs => :resend)) {_FREE})
        returning tenant_id, source_id, id""")
    return [
        (row.tenant_id, row.source_id, row.id) for row in connection.execute(statement, {"resend": resend})
    ]
