"""Upkeep of the ledger: retention, heartbeats of workers, alerts, repair of damaged rows, bloated indexes and tables.

Functions about one tenant's rows take its connection, those over all tenants the control role's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pipeline.database.engine import driver_of, lift_statement_timeout
from pipeline.database.migrations import owner_engine
from pipeline.documents import Json
from pipeline.ledger import ACTIVE, runs, storable, work
from pipeline.ledger.overview import NOBODY_EMBEDS

USAGE_DAYS = 400
"""Days for which use is kept, so that a bill of a year ago can still be checked."""

TRIMMED = 1000
"""The most rows that are removed in one transaction; each may cascade to others."""

AGED = {
    "sync_run": "finished_at < now() - make_interval(days => :runs)",
    "dead_letter": "resolved_at < now() - make_interval(days => :dead)",
    # A document that was never searchable counts from its first sync.
    "document": "deleted and coalesce(last_indexed, first_seen_at) < now() - make_interval(days => :runs)",
    # A failed job without a deadline waits for a person, as a dead letter does.
    "enrichment_job": """finished_at < now() - make_interval(secs => :answers)
        and (state <> 'failed' or deadline is not null or finished_at < now() - make_interval(days => :dead))""",
}
"""Table -> condition for its old rows: runs, resolved dead letters, tombstones, answers."""
_FEW = (
    "delete from embedding_usage where day < current_date - cast(:usage as integer)",
    "delete from worker where seen_at < now() - make_interval(days => 1)",
)


def trim(connection: Connection, table: str, *, runs_days: int, dead_days: int, answers_hours: float) -> bool:
    """Remove some of the old rows of one of the AGED tables; True if there may be more. On the control role."""
    lift_statement_timeout(connection)
    values = {"runs": runs_days, "dead": dead_days, "answers": answers_hours * 3600}
    # Locked, so that a document that is restored at this moment is checked once more; selected once, not for each row.
    statement = f"""
        with old as materialized (select id from {table} where {AGED[table]} limit :most for update skip locked)
        delete from {table} where id in (select id from old)"""
    parameters = {name: value for name, value in values.items() if f":{name}" in statement} | {
        "most": TRIMMED
    }
    return connection.execute(text(statement), parameters).rowcount >= TRIMMED


def trim_usage_and_workers(connection: Connection) -> None:
    """Remove old counts of use, and rows of workers without a sign of life."""
    for statement in _FEW:
        connection.execute(text(statement), {"usage": USAGE_DAYS} if ":usage" in statement else {})


OUTGROWN = 4
"""Growth, as a factor on the chunks counted last, after which lexemes are counted again during a load. All counts of a
load together then cost a third of the one at its end; with 2 it would be a whole one, for no better weights."""


def tenants_to_count(connection: Connection) -> list[UUID]:
    """Tenants whose documents have changed since their lexemes were counted last; the one with the fewest chunks first.

    Counting a large tenant takes minutes, and its runs stay open until then. A large tenant is therefore not counted
    after each change (`runs.COUNT_DUE`), unless it has `OUTGROWN` times the chunks.
    """
    statement = text(f"""
        select d.tenant_id from document_count d
        left join (select s.tenant_id, s.refreshed_at, s.chunks from index_stat s
                   join search_index i on i.id = s.index_id and i.status = 'active') s using (tenant_id)
        where d.state = 'done' or not d.indexed
        group by d.tenant_id, s.refreshed_at, s.chunks
        having max(d.at) filter (where d.state = 'done' or d.chunks > 0) > coalesce(s.refreshed_at, '-infinity')
           and ({runs.COUNT_DUE} or sum(d.chunks) > {OUTGROWN} * s.chunks)
        order by sum(d.chunks), d.tenant_id""")
    return list(connection.execute(statement).scalars())


def have_outgrown_counts(connection: Connection) -> bool:
    """True if some tenant has `OUTGROWN` times the chunks that were counted; on the control role."""
    statement = text(f"""
        select exists (
            select from document_count d
            left join index_stat s on s.tenant_id = d.tenant_id
                and s.index_id = (select id from search_index where status = 'active')
            group by d.tenant_id, s.chunks having sum(d.chunks) > {OUTGROWN} * coalesce(s.chunks, 0))""")
    return bool(connection.execute(statement).scalar_one())


def record_canary(connection: Connection, queue: str) -> None:
    """Note that a queue ran its probe just now."""
    statement = text("""
        insert into canary (queue) values (:queue)
        on conflict (queue) do update set sung_at = now()""")
    connection.execute(statement, {"queue": queue})


def record_worker(connection: Connection, name: str, *, queues: str, host: str, pid: int) -> None:
    """Note a sign of life of a worker; `queues` are those it serves, separated by commas."""
    statement = text("""
        insert into worker (name, queues, host, pid) values (:name, :queues, :host, :pid)
        on conflict (name) do update set seen_at = now(), pid = excluded.pid, queues = excluded.queues,
            started_at = case when worker.pid = excluded.pid then worker.started_at else now() end""")
    connection.execute(statement, {"name": name, "queues": queues, "host": host, "pid": pid})


def record_worker_end(connection: Connection, name: str) -> None:
    """Note that a worker ended: its row, with process id 0, keeps the time since when its queues are not served."""
    connection.execute(text("update worker set pid = 0, seen_at = now() where name = :name"), {"name": name})


# Alerts, over all tenants -------------------------------------------------------------------------

_ALERT = "name, subject, severity, message, since"


def raise_alert(connection: Connection, name: str, subject: str, *, severity: str, message: str) -> None:
    """Store an alert as raised now; `fire_alerts` reports it once for as long as it is raised repeatedly."""
    statement = text("""
        insert into alert as a (name, subject, severity, message) values (:name, :subject, :severity, :message)
        on conflict (name, subject) do update
            set seen_at = now(), severity = excluded.severity, message = excluded.message""")
    values = {"name": name, "subject": storable(subject), "severity": severity, "message": storable(message)}
    connection.execute(statement, values)


def fire_alerts(connection: Connection, *, calm: float) -> tuple[list[Json], list[Json]]:
    """(newly raised alerts, alerts not raised for `calm` seconds); each is returned to one caller only."""
    fired = text(f"update alert set fired_at = now() where fired_at is null returning {_ALERT}")
    cleared = text(f"""
        delete from alert where seen_at < now() - make_interval(secs => :calm) and fired_at < now()
        returning {_ALERT}""")
    rows = connection.execute(fired).mappings(), connection.execute(cleared, {"calm": calm}).mappings()
    new, ended = ([{**row, "since": row["since"].isoformat()} for row in group] for group in rows)
    return new, ended


def keep_alert_messages(connection: Connection, messages: Collection[tuple[str, Json]], *, most: int) -> None:
    """Store messages to alert channels, (address, message) each; beyond `most` the oldest are deleted."""
    if messages:
        rows = [{"address": address, "told": json.dumps(message)} for address, message in messages]
        connection.execute(
            text("insert into alert_message (address, told) values (:address, cast(:told as jsonb))"), rows
        )
        late = text("delete from alert_message where id <= (select max(id) from alert_message) - :most")
        connection.execute(late, {"most": most})


def lease_alert_message(
    connection: Connection, *, besides: Sequence[str], lease: float
) -> tuple[int, str, Json] | None:
    """Claim a message that no other process delivers now; (number, address, message), not for an address of `besides`.

    Untried messages come first, so that one which a channel refuses delays no other alert; the messages of one alert
    are delivered in order.
    """
    statement = text("""
        update alert_message set lease_until = clock_timestamp() + make_interval(secs => :lease)
        where id = (
            select id from alert_message m
            where (lease_until is null or lease_until < clock_timestamp()) and address <> all(:besides)
              and not exists (select from alert_message e where e.id < m.id and e.address = m.address
                              and e.told -> 'alert' = m.told -> 'alert' and e.told -> 'subject' = m.told -> 'subject')
            order by lease_until nulls first, id limit 1 for update skip locked)
        returning id, address, told""")
    row = connection.execute(statement, {"lease": lease, "besides": list(besides)}).one_or_none()
    return None if row is None else (row.id, row.address, row.told)


def settle_alert_message(connection: Connection, number: int, *, delivered: bool) -> None:
    """Delete a delivered message, or end its lease for another attempt."""
    remove, retry = (
        "delete from alert_message where id = :id",
        "update alert_message set lease_until = clock_timestamp() where id = :id",
    )
    connection.execute(text(remove if delivered else retry), {"id": number})


def alerts(connection: Connection) -> list[Json]:
    """Alerts that are raised, the oldest first."""
    rows = connection.execute(text(f"select {_ALERT} from alert where fired_at is not null order by since"))
    return [{**row, "since": row["since"].isoformat()} for row in rows.mappings()]


# Rows of one tenant -------------------------------------------------------------------------------

ORPHANS = "chunk c where not exists (select from document d where d.id = c.document_id and not d.deleted)"
"""Chunks whose document is deleted."""
SETTLED_STAGE = """
    chunk_stage s where not exists (
        select from document d where d.id = s.document_id and d.state = 'pending'
        and d.desired_version = s.version)"""
"""Staged chunks whose document is not pending in their version."""
OLD_BODIES = """
    document_body b where not exists (
        select from document d where d.id = b.document_id and d.desired_version = b.version and not d.deleted)"""
"""Bodies of other versions than the newest one of their document."""


def count(connection: Connection, from_clause: str) -> int:
    """The number of rows of a from clause such as ORPHANS."""
    return int(connection.execute(text(f"select count(*) from {from_clause}")).scalar_one())


def delete(connection: Connection, from_clause: str) -> None:
    """Delete the rows of a from clause such as ORPHANS."""
    lift_statement_timeout(connection)
    connection.execute(text(f"delete from {from_clause}"))


# Compared with the active index, unless that one was made active a moment ago and is still being filled.
_DAMAGED = text("""
    select d.id, d.external_id,
           exists (select from document_body b
                   where b.document_id = d.id and b.version = d.desired_version) as has_body
    from document d
    left join search_index i on i.status = 'active'
    left join index_document x on x.index_id = i.id and x.document_id = d.id
    left join chunk c on c.index_id = i.id and c.document_id = d.id
    where d.state = 'done' and not d.deleted
      and (d.indexed_version is distinct from d.desired_version or coalesce(x.version, 0) >= d.indexed_version
           or not exists (select from search_index where status <> 'active'))
    group by d.id
    having count(c.ord) <> d.chunk_count or coalesce(max(c.ord) + 1, 0) <> d.chunk_count
        or count(*) filter (where c.version <> d.indexed_version) > 0
        or count(*) filter (where c.ord is not null and c.embedding is null) > 0
        or d.indexed_version is distinct from d.desired_version
    order by d.external_id""")


def damaged(connection: Connection) -> Sequence[Row[Any]]:
    """Finished documents whose chunks are not complete, of their version, and each with a vector.

    Columns: id, external_id, has_body.
    """
    return connection.execute(_DAMAGED).all()


def requeue_damaged(connection: Connection) -> None:
    """Queue damaged documents that have a body, as a new version that replaces all their chunks."""
    ids = [row.id for row in damaged(connection) if row.has_body]
    # Above every stored version, or the store would treat the new chunks as old ones.
    statement = text(f"""
        update document d set state = 'pending', due_at = {work.LEFT_ALONE},
               desired_version = 1 + greatest(d.desired_version, d.indexed_version, coalesce(
                   (select max(c.version) from chunk c where c.document_id = d.id), 0))
        where d.id in (select id from document where id = any(:ids) and state = 'done' and not deleted
                       order by id for update)
        returning id""")
    work.enqueue(connection, list(connection.execute(statement, {"ids": ids}).scalars()))
    statement = text("""
        update document_body b set version = d.desired_version from document d
        where d.id = b.document_id and d.id = any(:ids) and d.state = 'pending'
          and b.version = (select max(o.version) from document_body o where o.document_id = d.id)""")
    connection.execute(statement, {"ids": ids})


DAMAGED_BESIDE = """
    search_index i join index_document x on x.index_id = i.id
    cross join lateral (
        select count(*) as chunks, count(*) filter (where c.version <> x.version or c.embedding is null) as others
        from chunk c where c.index_id = x.index_id and c.document_id = x.document_id) c
    where i.status <> 'active' and x.version > 0 and (c.chunks <> x.chunk_count or c.others > 0)"""
"""Rows of documents whose chunks differ from their row, in an index beside the active one."""


def refill_damaged_beside(connection: Connection) -> None:
    """Delete the chunks of DAMAGED_BESIDE and queue the documents anew: chunks of an unknown version would stay."""
    damaged_rows = text(f"select x.index_id, x.document_id from {DAMAGED_BESIDE} order by 1, 2")
    work.lock_documents(connection, {row.document_id for row in connection.execute(damaged_rows)})
    rows = connection.execute(damaged_rows).all()
    values = {"indexes": [row.index_id for row in rows], "ids": [row.document_id for row in rows]}
    pairs = "unnest(cast(:indexes as integer[]), cast(:ids as uuid[])) as k(index, id)"
    statement = text(f"delete from chunk c using {pairs} where c.index_id = k.index and c.document_id = k.id")
    connection.execute(statement, values)
    statement = text(f"""
        update index_document x set version = 0, chunk_count = 0, centroid = null
        from {pairs} where x.index_id = k.index and x.document_id = k.id""")
    connection.execute(statement, values)
    work.enqueue_lacking(connection, values["ids"])


LEASES = {
    "index_work": "lease_until",
    "enrichment_job": "lease_until",
    "embedding_claim": "until",
    "source": "sync_lease_until",
}
"""Table with leases -> the column with their end."""
_STUCK = "{until} > now() + make_interval(secs => :most)"


def count_stuck_leases(connection: Connection, *, most: float) -> int:
    """The number of leases that end later than `most` seconds from now: no pump takes that work back before."""
    stuck_leases = " union all ".join(
        f"select 1 from {table} where {_STUCK.format(until=until)}" for table, until in LEASES.items()
    )
    return int(
        connection.execute(text(f"select count(*) from ({stuck_leases}) l"), {"most": most}).scalar_one()
    )


def end_stuck_leases(connection: Connection, *, most: float) -> None:
    """End such leases now, so that the pump takes that work back."""
    for table, until in LEASES.items():
        stuck = f"update {table} set {until} = now() where {_STUCK.format(until=until)}"
        connection.execute(text(stuck), {"most": most})


# Over all tenants ---------------------------------------------------------------------------------


def count_forgotten(
    connection: Connection, *, due: float, lease: float, resend: float, embedding: bool
) -> tuple[int, int]:
    """(due documents without a message, leases that ended and were not taken back).

    A document counts after `due` seconds, a message for `resend` seconds, a lease `lease` seconds after its end.
    Documents that wait for their turn to be embedded while others are embedded do not count; with `embedding` False,
    no document that waits for the embedder does.
    """
    statement = text(f"""
        select count(*) filter (where index_id = {ACTIVE} and due_at < now() - make_interval(secs => :due)
                   and lease_token is null and (stage <> 'chunked' or (:embedding and {NOBODY_EMBEDS}))
                   and (enqueued_at is null or enqueued_at < now() - make_interval(secs => :resend))) as unsent,
               count(*) filter (where lease_until < now() - make_interval(secs => :lease)) as expired
        from index_work where not dead""")
    row = connection.execute(
        statement, {"due": due, "lease": lease, "resend": resend, "embedding": embedding}
    ).one()
    return row.unsent, row.expired


def holds_chunks(connection: Connection) -> bool:
    """True if any document has been indexed."""
    result = connection.execute(text("select coalesce(sum(chunks), 0) > 0 from document_count"))
    return bool(result.scalar_one())


_COUNTED = (
    (
        "document_count",
        "tenant_id, source_id, state, stage, hidden, indexed",
        {"documents": "count(*)", "chunks": "coalesce(sum(chunk_count), 0)"},
        """(select tenant_id, source_id, state, stage, hidden, chunk_count, indexed_version is not null as indexed
            from document where not deleted) d""",
    ),
    ("index_work_count", "tenant_id, index_id, stage", {"items": "count(*)"}, "index_work where not dead"),
)
"""Tables of figures: their keys, their sums, and the rows that are counted."""


def _drifts() -> Iterator[tuple[str, str, Sequence[str], str]]:
    """Name, keys and sums of each table of figures, and a `with` clause for its `drift` from a count of the rows."""
    for table, key, sums, rows in _COUNTED:
        counts = ", ".join(f"{value} as {name}" for name, value in sums.items())
        stored = ", ".join(f"sum({name}) as {name}" for name in sums)
        differences = ", ".join(f"coalesce(h.{n}, 0) - coalesce(t.{n}, 0) as {n}" for n in sums)
        differ = " or ".join(f"coalesce(h.{n}, 0) <> coalesce(t.{n}, 0)" for n in sums)
        yield (
            table,
            key,
            list(sums),
            f"""
            with there as (select {key}, {counts} from {rows} group by {key}),
            told as (select {key}, {stored} from {table} group by {key}),
            drift as (select {key}, {differences} from there h full join told t using ({key}) where {differ})""",
        )


def count_drift(connection: Connection) -> int:
    """Number of documents and work items by which the stored figures differ from a count of the rows.

    On the control role.
    """
    lift_statement_timeout(connection)
    total = 0
    for _, _, sums, drift in _drifts():
        statement = text(f"{drift} select coalesce(sum(greatest(abs({sums[0]}), 1)), 0) from drift")
        total += int(connection.execute(statement).scalar_one())
    return total


def correct_figures(connection: Connection) -> None:
    """Add the differences to the stored figures, in rows like those of any change; on the control role."""
    lift_statement_timeout(connection)
    for table, key, sums, drift in _drifts():
        columns = f"{key}, {', '.join(sums)}"
        connection.execute(text(f"{drift} insert into {table} ({columns}) select {columns} from drift"))


LEAST_BYTES = 64_000_000
"""Bytes below which an index is not checked for bloat."""
GROWN = 2.0
"""Size from which an index counts as bloated, as a factor on that of a new one: half of it is unused."""
_NODE = "(2 * i.dimensions + 8 + 16 * 2 * 6 + 96)"
"""Bytes of a vector in a new HNSW index: half floats, 2 x 16 neighbours of 6 bytes, headers."""


def bloated_indexes(connection: Connection) -> Sequence[Row[Any]]:
    """Vector indexes (name, bytes, times) much larger than their chunks need, since deleted chunks left holes."""
    statement = text(f"""
        select v.relname as name, pg_relation_size(v.oid) as bytes,
               pg_relation_size(v.oid) / greatest(i.chunks * {_NODE} * 1.2, 1.0) as times
        from (select i.id, i.dimensions,
                     greatest((select reltuples from pg_class where oid = to_regclass('chunk_' || i.id)), 1) as chunks
              from search_index i where i.indexed_rows is not null) i
        join pg_class v on v.oid = to_regclass('chunk_' || i.id || '_vector')
        where pg_relation_size(v.oid) > :least
          and pg_relation_size(v.oid) > :grown * i.chunks * {_NODE} * 1.2 order by 2 desc""")
    return connection.execute(statement, {"least": LEAST_BYTES, "grown": GROWN}).all()


LEAST_DEAD = 20_000
"""Dead rows below which a table is not reported."""
_UNCLEAN = """
    select relname as name, n_dead_tup as dead, n_live_tup as live,
           cast(extract(epoch from now() - greatest(last_autovacuum, last_vacuum)) as double precision) as seconds
    from pg_stat_user_tables
    where schemaname = current_schema() and n_dead_tup > greatest(:least, 0.4 * n_live_tup)
    order by n_dead_tup desc"""


def unvacuumed_tables(connection: Connection) -> Sequence[Row[Any]]:
    """Tables (name, dead, live, seconds since vacuumed) with twice the dead rows at which autovacuum starts."""
    return connection.execute(text(_UNCLEAN), {"least": LEAST_DEAD}).all()


def autovacuum_is_on(connection: Connection) -> bool:
    """True if autovacuum is on, with the counts that it needs."""
    statement = text(
        "select current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean"
    )
    return bool(connection.execute(statement).scalar_one())


def as_owner(url: str, statements: Sequence[str]) -> None:
    """Run statements as the owner and outside a transaction, as `vacuum` and `reindex concurrently` must be."""
    engine = owner_engine(url)
    try:
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for statement in statements:
                with driver_of(connection) as driver:
                    driver.execute(statement)
    finally:
        engine.dispose()
