"""Jobs that a caller waits for: submitted once, claimed by one worker at a time, ended as done, failed or expired."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from sqlalchemy import Connection, Row, TextClause, text

from pipeline.documents import Json
from pipeline.errors import LarderError, LeaseLost
from pipeline.ledger import storable
from pipeline.ledger.leases import RESTARTED, Leased

CHANNEL = "larder_enriched"
"""PostgreSQL notifies it with the id of every job that ends."""

INTERACTIVE, BULK = 0, 6
"""Priorities, the smaller the sooner: a person waits, or a whole backlog is worked through."""

ENRICH = "larder.enrich"
"""The task of a job that names none."""

SHARE = 32
"""The most messages of one tenant under way, for each of the two priorities, so that other tenants have their turn."""

State = Literal["queued", "running", "done", "failed", "expired"]
ENDED = ("done", "failed", "expired")


@dataclass(frozen=True, kw_only=True)
class JobLimits:
    """Waiting times in seconds, and limits of counts, for jobs."""

    lease: float = 15.0
    resend: float = 15.0
    attempts: int = 3
    crashes: int = 3
    batch: int = 200
    """The most messages of one tick of the pump."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The job that answers a submission."""

    id: UUID
    new: bool
    """False: an earlier job of the same request answers it."""
    sends: bool = False
    """True: the caller publishes its message; else the pump does when it is the tenant's turn."""


@dataclass(frozen=True, kw_only=True)
class ClaimedJob:
    """A job under a lease of this worker."""

    id: UUID
    token: UUID
    project_id: UUID
    request: Json
    attempts: int
    deadline: datetime | None
    waited: float
    """Seconds since it could have been taken."""
    task: str = ENRICH
    traceparent: str | None = None
    """The caller's trace, which the job continues."""


@dataclass(frozen=True, kw_only=True)
class JobRow:
    """A job as the caller who submitted it sees it."""

    id: UUID
    project_id: UUID
    request: Json
    state: State
    result: Json | None
    degradation_level: int | None
    attempts: int
    crash_count: int
    code: str | None
    error: str | None
    deadline: datetime | None
    created_at: datetime
    finished_at: datetime | None

    @property
    def ended(self) -> bool:
        """True if nothing more will happen to it."""
        return self.state in ENDED


@dataclass(frozen=True, kw_only=True)
class DueJob:
    """A job that a message should be sent about."""

    tenant_id: UUID
    id: UUID
    task: str
    """The task that does the work."""
    priority: int


def submission_key(project: UUID, request: Json) -> bytes:
    """The hash of a request; equal for equal requests, in whatever order their keys are."""
    canonical = json.dumps(request, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(f"{project}|{canonical}".encode()).digest()


_INSERT = text("""
    insert into enrichment_job (id, tenant_id, project_id, request, task, priority, submission, deadline,
                                traceparent, enqueued_at)
    values (:id, :tenant, :project, cast(:request as jsonb), :task, :priority, :key,
            now() + make_interval(secs => cast(:seconds as double precision)), :traceparent,
            case when :sends and (select count(*) from (
                select from enrichment_job j where j.tenant_id = :tenant and state in ('queued', 'running')
                and enqueued_at is not null and (j.priority > 0) = (:priority > 0) limit :share) sent) < :share
            then now() end)
    on conflict (tenant_id, submission) do nothing returning id, enqueued_at is not null as sends""")

_CORPUS = """
    (select concat((select id from search_index where status = 'active'), ':',
                   (select md5(string_agg(stamp::text, ',' order by slot)) from change_stamp)))"""
"""Version of the tenant's searchable documents and of the way in which answers are made."""

# In a slot that belongs to no connection; a return to a former version restores its stamp, and kept answers hold again.
# Looked up first, since a conflict locks the row even where nothing is written, and many workers claim at once.
_RECORD_VERSION = text("""
    insert into change_stamp (tenant_id, slot, stamp)
    select t.id, -1, cast(md5(:version) as uuid) from tenant t
    where not exists (select from change_stamp s where s.tenant_id = t.id and s.slot = -1
                      and s.stamp = cast(md5(:version) as uuid))
    order by t.id
    on conflict (tenant_id, slot) do update set stamp = excluded.stamp""")

# A finished answer holds until the tenant's documents or the way of making it change; a degraded one is never reused.
_REUSABLE = text(f"""
    select id, state in ('queued', 'running') and (deadline is null or deadline > now())
           or state = 'done' and coalesce(degradation_level, 0) = 0 and corpus = {_CORPUS} as good
    from enrichment_job j where submission = :key for update of j""")

# A later caller with the same request may wait longer, or be more urgent, than the first one.
_JOIN = text("""
    update enrichment_job set priority = least(priority, :priority),
           deadline = case when deadline is null or cast(:seconds as double precision) is null then null
                           else greatest(deadline, now() + make_interval(secs => :seconds)) end
    where id = :id and state in ('queued', 'running')""")


def submit(
    connection: Connection,
    tenant: UUID,
    project: UUID,
    request: Json,
    *,
    task: str = ENRICH,
    priority: int = INTERACTIVE,
    seconds: float | None = None,
    sends: bool = True,
    traceparent: str | None = None,
) -> Submission:
    """Store a job, or join the one of the same request that waits, runs, or has an answer that still holds.

    A job of another `task` than enrichment is always a new one, since its work may be wanted twice. `seconds` is how
    long the caller waits at most: a job that has not begun by then expires. The message is left to the pump if `sends`
    is False, or if many jobs of the tenant are under way, since tenants take turns. `traceparent` is the trace of the
    first caller.
    """
    key = submission_key(project, request) if task == ENRICH else None
    options = {"key": key, "task": task, "priority": priority, "seconds": seconds, "sends": sends}
    content = {"tenant": tenant, "project": project, "request": json.dumps(storable(request), default=str)}
    new = {**content, **options, "share": SHARE, "traceparent": traceparent}
    while True:
        inserted = connection.execute(_INSERT, {**new, "id": uuid4()}).one_or_none()
        if inserted is not None:
            return Submission(id=inserted.id, new=True, sends=inserted.sends)
        earlier = connection.execute(_REUSABLE, {"key": key}).one_or_none()
        if earlier and earlier.good:
            connection.execute(_JOIN, {**options, "id": earlier.id})
            return Submission(id=earlier.id, new=False)
        if earlier:
            statement = text("update enrichment_job set submission = null where id = :id")
            connection.execute(statement, {"id": earlier.id})


def record_answer_version(connection: Connection, answer_version: str) -> None:
    """Note the version of the way in which answers are made; kept answers of another version are not given any more.

    On the control role it holds for all tenants, else for the one of the transaction. It must be noted before a job is
    claimed, so that the answer counts as made with it.
    """
    connection.execute(_RECORD_VERSION, {"version": answer_version})


def get(connection: Connection, job_id: UUID) -> JobRow | None:
    """A job with its result; None if there is none, or no longer."""
    columns = ", ".join(JobRow.__dataclass_fields__)
    rows = connection.execute(text(f"select {columns} from enrichment_job where id = :id"), {"id": job_id})
    row = rows.mappings().one_or_none()
    return None if row is None else JobRow(**row)


def requests_naming(connection: Connection, item: str) -> Sequence[Row[Any]]:
    """Requests of Step 4 for a PBI with this text in one of its fields, newest first: request, project_id, name."""
    statement = text("""
        select j.request, j.project_id, p.name from enrichment_job j left join project p on p.id = j.project_id
        where task = 'larder.enrich' and jsonb_typeof(request -> 'pbi') = 'object'
          and exists (select from jsonb_each_text(request -> 'pbi') e where trim(e.value) = :item)
        order by j.created_at desc""")
    return connection.execute(statement, {"item": item}).all()


def states(connection: Connection, ids: Sequence[UUID]) -> dict[UUID, State]:
    """The state of each of these jobs; those that no longer exist are left out."""
    rows = connection.execute(
        text("select id, state from enrichment_job where id = any(:ids)"), {"ids": list(ids)}
    )
    return {row.id: row.state for row in rows}


_LEASED = Leased(table="enrichment_job", rows="id = :id")
_UNSENT = _LEASED.mark_unsent()
_CLAIM = _LEASED.claim(
    "state = 'queued' and due_at <= now() and (deadline is null or deadline > now())",
    also=f"state = 'running', corpus = {_CORPUS}",
    returning="""id, project_id, request, attempts, deadline, task, traceparent,
        cast(extract(epoch from now() - greatest(created_at, due_at)) as double precision) as waited""",
    wait=True,
)
_RENEW = _LEASED.renew()
_NOTIFIED = f"pg_notify('{CHANNEL}', cast(id as text))"
_DONE = _LEASED.give_back(
    """state = 'done', finished_at = now(), result = cast(:result as jsonb), degradation_level = :level,
       crash_count = 0, code = null, error = null""",
    returning=_NOTIFIED,
)
_FAILED = _LEASED.give_back(
    """state = 'failed', finished_at = now(), submission = null, code = :code, error = :error,
       attempts = attempts + 1""",
    returning=_NOTIFIED,
)
_PUT_BACK = _LEASED.give_back(
    """state = 'queued', enqueued_at = null, crash_count = 0, attempts = attempts + 1, code = :code, error = :error,
       due_at = now() + make_interval(secs => :delay)"""
)


def mark_unsent(connection: Connection, job_id: UUID) -> None:
    """Note that its message could not be published; the pump sends it on its next tick."""
    connection.execute(_UNSENT, {"id": job_id})


def claim(connection: Connection, job_id: UUID, *, lease: float) -> ClaimedJob | None:
    """Claim a queued job; None if another worker has it, it has ended, or its deadline is over."""
    token = uuid4()
    row = connection.execute(_CLAIM, {"id": job_id, "token": token, "lease": lease}).mappings().one_or_none()
    return None if row is None else ClaimedJob(token=token, **row)


def renew(connection: Connection, claimed: ClaimedJob, *, lease: float) -> bool:
    """Extend the lease; False if it is lost."""
    done = connection.execute(_RENEW, {"id": claimed.id, "token": claimed.token, "lease": lease})
    return done.first() is not None


def finish(connection: Connection, claimed: ClaimedJob, result: Json, level: int | None) -> None:
    """Store the answer and wake the callers that wait for it.

    Raises:
        LeaseLost: the lease is lost; roll back.
    """
    _end(connection, _DONE, claimed, {"result": json.dumps(storable(result), default=str), "level": level})


def fail(connection: Connection, claimed: ClaimedJob, error: LarderError) -> None:
    """End a job without an answer; raises as `finish` does."""
    _end(connection, _FAILED, claimed, {"code": error.code, "error": str(error)})


def _end(connection: Connection, statement: TextClause, claimed: ClaimedJob, values: Json) -> None:
    if connection.execute(statement, {"id": claimed.id, "token": claimed.token, **values}).first() is None:
        raise LeaseLost(f"enrichment job {claimed.id} is no longer ours")


def put_back(connection: Connection, claimed: ClaimedJob, error: LarderError, *, delay: float) -> None:
    """Queue a job again in `delay` seconds, after a transient error; nothing happens if the lease is lost."""
    error_fields = {"code": error.code, "error": str(error)}
    connection.execute(_PUT_BACK, {"id": claimed.id, "token": claimed.token, "delay": delay, **error_fields})


def has_unsent(connection: Connection) -> bool:
    """True if the tenant has jobs without a message that could be sent now."""
    statement = text("""
        select exists (select from enrichment_job
                       where state = 'queued' and enqueued_at is null and due_at <= now())""")
    return bool(connection.execute(statement).scalar_one())


# Failed jobs without a deadline, which wait for a person: their callers count on them ----------------

_WAITS = "state = 'failed' and deadline is null and finished_at is not null"


def failed(connection: Connection) -> list[Json]:
    """Failed jobs without a deadline, newest first and without their request: on the control role of all tenants.

    `{"id", "tenant_id", "tenant", "task", "code", "reason", "attempts", "crash_count", "at"}` each.
    """
    statement = text(f"""
        select cast(j.id as text) as id, j.tenant_id, t.name as tenant, task, code, error as reason, attempts,
               crash_count, finished_at as at
        from enrichment_job j join tenant t on t.id = j.tenant_id where {_WAITS} order by finished_at desc, j.id""")
    return [{**row, "at": row["at"].isoformat()} for row in connection.execute(statement).mappings()]


def replay(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Queue failed jobs without a deadline anew; returns the ids of those that were. The pump sends them."""
    statement = text(f"""
        update enrichment_job set state = 'queued', finished_at = null, code = null, error = null, {RESTARTED}
        where id = any(cast(:ids as uuid[])) and {_WAITS} returning cast(id as text)""")
    return sorted(connection.execute(statement, {"ids": list(ids)}).scalars())


def drop(connection: Connection, ids: Sequence[str]) -> list[str]:
    """Remove failed jobs without a deadline, with their requests; returns the ids of those that were."""
    statement = text(f"""
        delete from enrichment_job where id = any(cast(:ids as uuid[])) and {_WAITS} returning cast(id as text)""")
    return sorted(connection.execute(statement, {"ids": list(ids)}).scalars())


# The pump's side: on the control role, which sees neither request nor result ----------------------

# Two statements, since the role may write the column `submission` and not read it.
_GIVEN_UP = _LEASED.expire(
    "state = 'failed', submission = null, finished_at = now(), code = 'E003', error = :reason",
    condition="state = 'running' and crash_count >= :crashes",
    returning=f"id, {_NOTIFIED}",
)
_CRASHED = _LEASED.expire(
    "state = 'queued', enqueued_at = null, code = 'E003', error = 'the worker died or hung while working on it'",
    condition="state = 'running'",
)

_EXPIRED = text(f"""
    update enrichment_job set state = 'expired', submission = null, finished_at = now(), code = 'E003',
           error = coalesce(error || '; then ', '') || 'nobody waited any longer: its deadline passed before a worker '
                   'took it'
    where id in (select id from enrichment_job where state = 'queued' and deadline <= now()
                 order by id for update skip locked)
    returning id, {_NOTIFIED}""")

_LOST = text("""
    update enrichment_job set enqueued_at = null
    where id in (select id from enrichment_job
                 where state = 'queued' and enqueued_at < now() - make_interval(secs => :resend)
                 order by id for update skip locked)""")

# As many of each tenant and priority as its share has room for; the tenants take turns.
_DUE = text("""
    with waiting as (
        select w.id, row_number() over (partition by t.id, p.low order by w.priority, w.created_at) as turn, w.priority,
               w.created_at
        from tenant t cross join (values (-32768, 0), (1, 32767)) as p(low, high)
        cross join lateral (
            select id, priority, created_at from enrichment_job
            where tenant_id = t.id and priority between p.low and p.high and state = 'queued' and enqueued_at is null
              and due_at <= now()
            order by priority, created_at
            limit greatest(0, :share - (
                select count(*) from enrichment_job where tenant_id = t.id and priority between p.low and p.high
                and state in ('queued', 'running') and enqueued_at is not null))) w
        order by p.low, turn, w.priority, w.created_at limit :most),
    locked as (  -- checked once more: a job that was claimed and put back meanwhile is due later
        select id from enrichment_job where id in (select id from waiting)
            and state = 'queued' and enqueued_at is null and due_at <= now() for update skip locked),
    due as (update enrichment_job j set enqueued_at = now() from locked where j.id = locked.id
            returning j.tenant_id, j.id, j.task, j.priority)
    select due.tenant_id, due.id, due.task, due.priority from due join waiting using (id)
    order by due.priority > 0, turn, due.priority, created_at""")


def pump_once(connection: Connection, limits: JobLimits) -> list[DueJob]:
    """End jobs past their deadline, take back those of dead workers, and return the jobs to send messages about.

    Urgent ones first, and of these one of each tenant, then the next of each.
    """
    reason = f"its worker died {limits.crashes} times while working on it"
    connection.execute(_GIVEN_UP, {"crashes": limits.crashes, "reason": reason})
    connection.execute(_CRASHED)
    connection.execute(_EXPIRED)
    connection.execute(_LOST, {"resend": limits.resend})
    rows = connection.execute(_DUE, {"share": SHARE, "most": limits.batch}).mappings()
    return [DueJob(**row) for row in rows]
