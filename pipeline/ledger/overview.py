"""The whole ledger in figures, for the operator's screen; runs on the control role and sees no text."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, text

from pipeline.documents import Json
from pipeline.ledger import ACTIVE, Stage, dead, runs
from pipeline.ledger.sources import UPLOADED

DEAD_SHOWN = 20
"""The most dead letters that are listed of a source, newest first; `dead` counts all."""
TURN_SECONDS = 30
"""Seconds in which a worker that embeds takes at least one message; one that waits longer shows that none embeds."""
NOBODY_EMBEDS = f"""
    not exists (select from index_work where enqueued_at is not null and stage = 'chunked'
        and (lease_until > now() or enqueued_at > now() - make_interval(secs => {TURN_SECONDS})))"""
"""True if no worker embeds. Otherwise cut documents wait for their turn and are not overdue."""
_ON_ITS_WAY = f"index_id = {ACTIVE} and not dead"
SHOWN_SECONDS = 2.0
"""Seconds below which a wait is not shown, as part of ordinary work."""
WAITING_COUNTED = 1000
"""The most postponed documents that are counted of a stage; the figures of sources have the rest."""
WORKERS_SECONDS = 300
"""Seconds without a sign of life after which a worker is no longer listed."""


_SOURCES = text("""
    select s.id, s.name, t.name as tenant, s.kind as type, coalesce(d.documents, 0) as documents,
           coalesce(d.chunks, 0) as chunks, coalesce(d.pending, 0) as pending, coalesce(l.dead, 0) as dead,
           coalesce(d.hidden, 0) as hidden,
           cast(extract(epoch from now() - s.last_sync_at) as double precision) as freshness_seconds,
           coalesce((select error from sync_run r where r.source_id = s.id and r.state = 'discovering'),
                    s.last_error) as last_error,
           greatest(s.next_sync_at, s.retry_at) as next_sync, s.paused_at is not null as paused, s.held, s.failures,
           s.schedule, s.timezone, s.last_sync_at,
           s.left_out,
           coalesce((select noted from sync_run r where r.source_id = s.id and r.walk and r.state = 'finished'
                     order by id desc limit 1), 0) as noted,
           s.removed_at is not null as removed,
           case when s.removed_at is not null then (
               select o.name from source o
               where o.tenant_id = s.tenant_id and o.kind = s.kind and o.removed_at is null and (
                   select count(*) > 0 and 2 * count(n.id) >= count(*)
                   from (select external_id from document where source_id = s.id and not deleted limit 100) e
                   left join document n on n.tenant_id = s.tenant_id and n.source_id = o.id
                        and n.external_id = e.external_id and not n.deleted)
               order by o.name limit 1) end as renamed_to
    from source s join tenant t on t.id = s.tenant_id
    left join (
        select source_id, cast(sum(documents) filter (where state = 'done' and not hidden) as bigint) as documents,
               cast(sum(chunks) filter (where not hidden) as bigint) as chunks,
               cast(sum(documents) filter (where state = 'pending') as bigint) as pending,
               cast(sum(documents) filter (where hidden) as bigint) as hidden
        from document_count group by source_id
    ) d on d.source_id = s.id
    left join (
        select l.source_id, count(distinct l.document_id) as dead from dead_letter l join document e
            on e.id = l.document_id and e.state = 'dead' and not e.deleted and l.version = e.desired_version
        where l.resolved_at is null group by l.source_id
    ) l on l.source_id = s.id
    order by s.removed_at is not null, t.name, s.name""")


def sources(connection: Connection) -> list[Json]:
    """Every source of every tenant, with its figures and the result of its last sync; removed ones last.

    `documents` are done, neither hidden nor deleted; `dead` are those with an open dead letter; `held` are deletions
    that wait for `larder sources release`; `freshness_seconds` count from the last complete sync; `left_out` are the
    excluded items of the last complete walk, by reason; `noted` are its documents with a reading note; `failures` are
    consecutive failed syncs. `schedule`, `timezone` and `last_sync_at` (a datetime) give the time of the next sync.
    `running` is the oldest open run. `renamed_to` is, for a removed source, another one of its type with the same
    items, judged by a hundred of them.
    """
    letters: dict[UUID, list[Json]] = defaultdict(list)
    for letter in dead.listed(connection, most_per_source=DEAD_SHOWN):
        letter_fields = letter.to_json()
        letters[letter.source_id].append(
            {k: letter_fields[k] for k in ("id", "item", "stage", "reason", "at")}
        )
    last, problems = _runs(connection, "true", "started_at desc, id desc"), newest_problems(connection)
    running = _runs(connection, "finished_at is null", "id")
    listed = []
    for row in connection.execute(_SOURCES).mappings():
        values = dict(row)
        key, due = values.pop("id"), values["next_sync"]
        if not values["removed"]:
            del values["renamed_to"]
        more = {
            "next_sync": due and due.isoformat(),
            "dead_letters": letters.get(key, []),
            "problems": problems.get(key, []),
            "last_run": last.get(key),
            "running": running.get(key),
        }
        listed.append(values | more)
    return listed


RUN_COUNTS = ("listed", *runs.COUNTED, *runs.TOTALS)


def _runs(connection: Connection, which: str, order: str) -> dict[UUID, Json]:
    """The first run of each source in this order, with its counts; an open one has live counts."""
    statement = text(f"""
        select distinct on (source_id) source_id, id as run, state, trigger, started_at, finished_at,
               {", ".join(RUN_COUNTS)}, left_out
        from sync_run where {which} order by source_id, {order}""")
    by_source = {row["source_id"]: dict(row) for row in connection.execute(statement).mappings()}
    _count_now(connection, by_source.values())
    for run in by_source.values():
        del run["source_id"]
        run |= {name: run[name] and run[name].isoformat() for name in ("started_at", "finished_at")}
    return by_source


def _count_now(connection: Connection, run_values: Collection[Json]) -> None:
    """Set live counts on open runs: the stored ones are written when a run closes."""
    live = runs.progress(connection, [run["run"] for run in run_values if not run["finished_at"]])
    for run in run_values:
        run |= {name: n for name, n in live.get(run["run"], {}).items() if name in RUN_COUNTS}


def newest_runs(connection: Connection, source_ids: Sequence[UUID], most: int) -> list[Json]:
    """The newest runs of these sources with their counts and problems, newest first; open ones have live counts."""
    statement = text(f"""
        select id as run, source_id, state, trigger, started_at, finished_at, {", ".join(RUN_COUNTS)}, error, problems
        from sync_run where source_id = any(:ids) order by id desc limit :most""")
    rows = connection.execute(statement, {"ids": list(source_ids), "most": most}).mappings()
    newest = [dict(row) for row in rows]
    _count_now(connection, newest)
    return newest


def newest_problems(connection: Connection) -> dict[UUID, list[Json]]:
    """Problems of the newest run with any, by source, until a later complete run has none.

    Uploads are left out: their callers got the problems in the answer.
    """
    statement = text("""
        select distinct on (source_id) source_id, problems from sync_run r
        where jsonb_array_length(problems) > 0 and not exists (
            select from sync_run l where l.source_id = r.source_id and l.id > r.id and l.walk
            and l.state = 'finished' and l.problems = '[]')
          and not exists (select from source s where s.id = r.source_id and s.origin = :uploaded)
        order by source_id, started_at desc, id desc""")
    rows = connection.execute(statement, {"uploaded": UPLOADED})
    keys = ("item", "reason", "outcome")
    return {row.source_id: [{k: p.get(k, "") for k in keys} for p in row.problems] for row in rows}


def backlog(connection: Connection, *, resend: float) -> Json:
    """Figures of pending documents over all tenants; one is in flight for `resend` seconds after its message was sent.

    A document that waits for its turn to be embedded is not overdue while others are embedded.
    """
    statement = text(f"""
        select cast(extract(epoch from now() - min(due_at)) as double precision) as oldest_due_seconds,
               (select count(*) from index_work
                where {_ON_ITS_WAY} and enqueued_at >= now() - make_interval(secs => :resend)) as in_flight
        from (select w.due_at, q.stage from unnest(cast(:stages as text[])) as q(stage)
              cross join lateral (select due_at from index_work
                  where {_ON_ITS_WAY} and stage = q.stage and enqueued_at is null order by due_at limit 1) w
              union all select due_at, stage from index_work where {_ON_ITS_WAY} and enqueued_at is not null) d
        where due_at <= now() and (stage <> 'chunked' or {NOBODY_EMBEDS})""")
    row = connection.execute(statement, {"resend": resend, "stages": list(Stage)}).mappings()
    statement = text(
        f"select stage, sum(items) from index_work_count where index_id = {ACTIVE} group by stage"
    )
    counted = {str(stage): int(n) for stage, n in connection.execute(statement)}
    by_stage = {str(s): counted.get(s, 0) for s in Stage if s is not Stage.DONE}
    return {
        "pending": sum(counted.values()),
        **row.one(),
        "by_stage": by_stage,
        "dead": dead.count(connection),
        "dead_in_a_row": dead.count_since_success(connection),
    }


def waiting(connection: Connection) -> Row[Any] | None:
    """Postponed documents over all tenants, which wait for the embedder or the database; None if there are none.

    documents: their number, at most WAITING_COUNTED of a stage; until: the time at which the first of them
    is due; reason: the error of that one.
    """
    statement = text(f"""
        select count(*) as documents, min(due_at) as until,
               (array_agg(d.last_error order by due_at))[1] as reason
        from unnest(cast(:stages as text[])) as q(stage) cross join lateral (
            select due_at, last_error from index_work
            where {_ON_ITS_WAY} and stage = q.stage and enqueued_at is null and waits > 0
              and last_error is not null and due_at > now() + make_interval(secs => :shown)
            order by due_at limit :most) d having count(*) > 0""")
    values = {"stages": list(Stage), "shown": SHOWN_SECONDS, "most": WAITING_COUNTED}
    return connection.execute(statement, values).one_or_none()


def embedded_texts(connection: Connection) -> Json:
    """`{"texts", "cut"}`: texts embedded by the last large sync of each source, and those longer than the model reads.

    A large sync embedded at least half as many texts as the source's largest: a few edits are no sample.
    """
    statement = text("""
        select cast(coalesce(sum(texts_embedded), 0) as bigint) as texts,
               cast(coalesce(sum(texts_cut), 0) as bigint) as cut
        from (select distinct on (source_id) texts_embedded, texts_cut
              from (select *, max(texts_embedded) over (partition by source_id) as most from sync_run) r
              where texts_embedded > 0 and 2 * texts_embedded >= most order by source_id, id desc) newest""")
    return dict(connection.execute(statement).mappings().one())


def workers(connection: Connection) -> list[Json]:
    """Workers with a sign of life in the last WORKERS_SECONDS, with its age and that of the process in seconds."""
    statement = text("""
        select name, queues, host, pid,
               cast(extract(epoch from now() - seen_at) as double precision) as age_seconds,
               cast(extract(epoch from now() - started_at) as double precision) as up_seconds
        from worker where pid > 0 and seen_at > now() - make_interval(secs => :most) order by name""")
    rows = connection.execute(statement, {"most": WORKERS_SECONDS})
    return [{**row, "queues": row["queues"].split(",")} for row in rows.mappings()]


def unserved(connection: Connection, queues: Sequence[str], *, silent: float) -> dict[str, float | None]:
    """Queue -> seconds for which no worker has served it, for unserved `queues`; None if none ever did.

    A worker counts for `silent` seconds after its last sign of life. The time begins anew when all workers do, so that
    those that start one after another are not missed.
    """
    statement = text("""
        with living as (
            select * from worker where pid > 0 and seen_at > now() - make_interval(secs => :silent))
        select queue, cast(extract(epoch from now() - greatest(
                   (select max(seen_at) from worker where queue = any(string_to_array(queues, ','))),
                   (select sung_at from canary c where c.queue = q.queue),
                   (select min(started_at) from living))) as double precision) as seconds
        from unnest(cast(:queues as text[])) as q(queue)
        where not exists (select from living where queue = any(string_to_array(queues, ',')))""")
    rows = connection.execute(statement, {"queues": list(queues), "silent": silent})
    return {row.queue: row.seconds for row in rows}


def canaries(connection: Connection) -> dict[str, float]:
    """Queue -> seconds since its last probe."""
    statement = text("""
        select queue, cast(extract(epoch from now() - sung_at) as double precision) as age
        from canary order by queue""")
    return {row.queue: row.age for row in connection.execute(statement)}


def index(connection: Connection) -> Json | None:
    """The search index that is read, else the one being filled; None before the first document."""
    statement = text("""
        select model, dimensions, status,
               (select cast(coalesce(sum(chunks), 0) as bigint) from document_count) as chunks,
               case when indexed_rows is null then 'exact' else 'hnsw' end as vector_index,
               case when keyword_built then 'gin' else 'scan' end as keyword_index
        from search_index where status <> 'retired' order by status = 'active' desc, id desc limit 1""")
    row = connection.execute(statement).mappings().one_or_none()
    return dict(row) if row else None


def round_trip(connection: Connection) -> float:
    """Seconds that a round trip to the server takes, with an empty query."""
    nothing = text("select 1")
    connection.execute(nothing)  # a transaction begins with its first statement, which is one more
    begun = time.monotonic()
    connection.execute(nothing)
    return time.monotonic() - begun


def enrichment(connection: Connection) -> Json:
    """Jobs: `{"waiting", "running", "oldest_seconds", "degradation_level", "failed"}`, over all tenants.

    The level is the worst one of the answers of the last minute; 0 if there were none. Failed are those that wait for a
    person (`jobs.failed`).
    """
    statement = text("""
        select count(*) filter (where state = 'queued') as waiting,
               count(*) filter (where state = 'running') as running,
               cast(extract(epoch from now() - min(created_at) filter (where state = 'queued')) as double precision)
                   as oldest_seconds,
               coalesce(max(degradation_level) filter (where finished_at > now() - interval '1 minute'), 0)
                   as degradation_level,
               (select count(*) from enrichment_job
                where state = 'failed' and deadline is null and finished_at is not null) as failed
        from enrichment_job
        where state in ('queued', 'running') or finished_at > now() - interval '1 minute'""")
    return dict(connection.execute(statement).mappings().one())


def server_version(connection: Connection) -> str:
    """The version of PostgreSQL."""
    return str(connection.execute(text("select current_setting('server_version')")).scalar_one())


def vector_version(connection: Connection) -> str | None:
    """The version of the extension pgvector; None if it is not in this database."""
    version = connection.execute(
        text("select extversion from pg_extension where extname = 'vector'")
    ).scalar()
    return None if version is None else str(version)


def role(connection: Connection) -> Row[Any]:
    """The current and the login role: acts, login, super, bypass (of the role), strong_login (either of the login)."""
    statement = text("""
        select current_user as acts, session_user as login, r.rolsuper as super, r.rolbypassrls as bypass,
               l.rolsuper or l.rolbypassrls as strong_login
        from pg_roles r, pg_roles l where r.rolname = current_user and l.rolname = session_user""")
    return connection.execute(statement).one()


def tables_of_tenants(connection: Connection) -> dict[str, bool]:
    """Table with rows of tenants -> whether row-level security is forced on it."""
    statement = text("""
        select c.relname, c.relrowsecurity and c.relforcerowsecurity as forced from pg_class c
        where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
          and (c.relname = 'tenant' or exists (
              select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id'
              and not a.attisdropped))
        order by c.relname""")
    return {row.relname: row.forced for row in connection.execute(statement)}


def server_time(connection: Connection) -> datetime:
    """The time by the server's clock."""
    moment: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
    return moment
