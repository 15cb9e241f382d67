"""Keeping the ledger in shape, and signs of life: limits of records, canaries of queues, rows of workers.

Runs on the control role.
"""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, text

USAGE_DAYS = 400
"""A bill of a year ago can still be checked."""

# Deletes and the number of days that each takes.
_OLD = (
    "delete from sync_run where finished_at < now() - make_interval(days => :runs)",
    "delete from dead_letter where resolved_at < now() - make_interval(days => :dead)",
    "delete from document where deleted and last_indexed < now() - make_interval(days => :runs)",
    "delete from enrichment_job where finished_at < now() - make_interval(secs => :answers)",
    "delete from embedding_usage where day < current_date - cast(:usage as integer)",
    "delete from worker where seen_at < now() - make_interval(days => 1)",
)


def trim(connection: Connection, *, runs_days: int, dead_days: int, answers_hours: float) -> None:
    """Remove old runs, resolved dead letters, tombstones, answers, counts of use and rows of silent workers."""
    values = {"runs": runs_days, "dead": dead_days, "answers": answers_hours * 3600, "usage": USAGE_DAYS}
    for statement in _OLD:
        connection.execute(text(statement), {k: v for k, v in values.items() if f":{k}" in statement})


def tenants(connection: Connection) -> list[UUID]:
    """Every tenant there is."""
    return list(connection.execute(text("select id from tenant order by id")).scalars())


def tenants_to_count(connection: Connection) -> list[UUID]:
    """Those whose documents have changed since their lexemes were counted last."""
    rows = connection.execute(
        text("""
            select d.tenant_id from document d
            left join (select s.tenant_id, s.refreshed_at as at from index_stat s
                       join search_index i on i.id = s.index_id and i.status = 'active') s using (tenant_id)
            group by d.tenant_id, s.at having max(d.last_indexed) > coalesce(s.at, '-infinity')"""),
    )
    return list(rows.scalars())


def record_canary(connection: Connection, queue: str) -> None:
    """A queue did its task of the minute just now."""
    connection.execute(
        text("""
            insert into canary (queue) values (:queue)
            on conflict (queue) do update set sung_at = now()"""),
        {"queue": queue},
    )


def record_worker(connection: Connection, name: str, *, queues: str, host: str, pid: int) -> None:
    """A worker lives; `queues` are those it serves, with commas."""
    connection.execute(
        text("""
            insert into worker (name, queues, host, pid) values (:name, :queues, :host, :pid)
            on conflict (name) do update set seen_at = now(), pid = excluded.pid, queues = excluded.queues,
                started_at = case when worker.pid = excluded.pid then worker.started_at else now() end"""),
        {"name": name, "queues": queues, "host": host, "pid": pid},
    )


def forget_worker(connection: Connection, name: str) -> None:
    """A worker ended."""
    connection.execute(text("delete from worker where name = :name"), {"name": name})
