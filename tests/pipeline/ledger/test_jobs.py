"""Enrichment jobs: asked twice they cost one, and whatever happens they end."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.errors import EmbedderUnavailable, LeaseLost, SearchError, StoreHindered
from pipeline.ledger import jobs, sources, upkeep
from pipeline.ledger.jobs import ClaimedJob, JobLimits, JobRow
from tests.ledger import Ledger, ago, of_all, of_connection

REQUEST = {"pbi": {"id": "PBI-1", "title": "Warn of shallow water"}, "scores": {"overall": 0.8}}
SQL = psycopg.Connection[Any]


class JobQueue:
    """Submits, claims and looks as one tenant."""

    def __init__(self, database: Database, tenant: UUID, project: UUID, sql: SQL) -> None:
        self.database, self.tenant, self.project, self.sql = database, tenant, project, sql
        self.ledger = Ledger(of_all(lambda: nullcontext(sql)))

    def submit(self, request: dict[str, Any] | None = None, **how: Any) -> jobs.Submission:
        with self.database.tenant(self.tenant) as connection:
            return jobs.submit(connection, self.tenant, self.project, request or REQUEST, **how)

    def claim(self, job_id: UUID, *, lease: float = 60) -> ClaimedJob | None:
        with self.database.tenant(self.tenant) as connection:
            return jobs.claim(connection, job_id, lease=lease)

    def claimed(self, job_id: UUID, *, lease: float = 60) -> ClaimedJob:
        found = self.claim(job_id, lease=lease)
        assert found is not None
        return found

    def word(self, wording: str) -> None:
        """As a worker does at its start."""
        with self.database.control() as connection:
            jobs.record_answer_version(connection, wording)

    def finish(self, claimed: ClaimedJob, *, level: int = 0) -> None:
        with self.database.tenant(self.tenant) as connection:
            jobs.finish(connection, claimed, {"similar_work": [], "degradation_level": level}, level)

    def get(self, job_id: UUID) -> JobRow:
        with self.database.tenant(self.tenant) as connection:
            found = jobs.get(connection, job_id)
        assert found is not None
        return found

    def pump_once(self, limits: JobLimits | None = None) -> list[jobs.DueJob]:
        with self.database.control() as connection:
            return jobs.pump_once(connection, limits or JobLimits())

    def later(self, job_id: UUID, column: str, seconds: float) -> None:
        """Put a time of a job into the past."""
        self.ledger.jobs.set(job_id, **{column: ago(seconds=seconds)})


@pytest.fixture
def queue(database: Database, tenant: UUID, project: UUID, omniscient: SQL) -> JobQueue:
    return JobQueue(database, tenant, project, omniscient)


# Asked twice --------------------------------------------------------------------------------------


def test_the_same_question_is_one_job_while_it_waits_runs_or_is_answered(queue: JobQueue) -> None:
    first = queue.submit()
    assert first.new
    assert queue.submit() == jobs.Submission(id=first.id, new=False)
    claimed = queue.claimed(first.id)
    assert queue.submit() == jobs.Submission(id=first.id, new=False)
    queue.finish(claimed)
    assert queue.submit() == jobs.Submission(id=first.id, new=False)
    assert len(queue.ledger.jobs()) == 1


def test_the_order_of_keys_is_no_other_question_and_another_project_is(
    queue: JobQueue, project: UUID
) -> None:
    first = queue.submit({"pbi": {"id": "1", "title": "a"}, "scores": {}})
    assert queue.submit({"scores": {}, "pbi": {"title": "a", "id": "1"}}).id == first.id
    assert queue.submit({"pbi": {"id": "1", "title": "b"}, "scores": {}}).id != first.id
    queue.project = uuid4()
    assert queue.submit({"pbi": {"id": "1", "title": "a"}, "scores": {}}).id != first.id


@pytest.mark.parametrize("end", ["failed", "expired", "degraded", "documents", "deletion", "late"])
def test_an_answer_that_does_not_hold_any_more_is_not_given_again(queue: JobQueue, end: str) -> None:
    if end == "deletion":
        add_document(queue)
    first = queue.submit(seconds=30)
    if end in {"expired", "late"}:
        queue.later(first.id, "deadline", 1)
    if end == "expired":
        queue.pump_once()
    elif end == "failed":
        with queue.database.tenant(queue.tenant) as connection:
            claimed = jobs.claim(connection, first.id, lease=60)
            assert claimed is not None
            jobs.fail(connection, claimed, SearchError("no"))
    elif end != "late":
        queue.finish(queue.claimed(first.id), level=3 if end == "degraded" else 0)
    if end == "documents":
        add_document(queue)
    elif end == "deletion":
        queue.ledger.documents.set(hidden=True)
    second = queue.submit()
    assert second.new
    assert second.id != first.id
    assert queue.submit().id == second.id


def test_an_answer_of_another_wording_is_not_given_again(queue: JobQueue) -> None:
    queue.word("gemini|small|")
    first = queue.submit()
    queue.finish(queue.claimed(first.id))
    queue.word("gemini|small|")
    assert queue.submit() == jobs.Submission(id=first.id, new=False), "the same words twice cost two"
    queue.word("gemini|large|")
    second = queue.submit()
    assert second.new
    queue.finish(queue.claimed(second.id))
    assert queue.submit() == jobs.Submission(id=second.id, new=False)


def test_an_answer_begun_by_a_worker_of_the_former_wording_is_not_given_again(queue: JobQueue) -> None:
    with queue.database.tenant(queue.tenant) as connection:
        jobs.record_answer_version(connection, "extract")
    first = queue.submit()
    claimed = queue.claimed(first.id)
    queue.word("gemini|small|")
    queue.finish(claimed)
    assert queue.submit().new


def test_the_wording_is_noted_for_every_tenant_or_for_the_one_at_work(queue: JobQueue) -> None:
    def stamps() -> list[tuple[UUID, UUID]]:
        rows: list[tuple[UUID, UUID]] = queue.ledger.change_stamps.values("tenant_id", "stamp", slot=-1)
        return sorted(rows, key=lambda row: row[0] == queue.tenant)

    other = uuid4()
    queue.ledger.tenants.add(id=other, name="other")
    with queue.database.tenant(queue.tenant) as connection:
        jobs.record_answer_version(connection, "extract")
    ((tenant, extracted),) = stamps()
    assert tenant == queue.tenant
    queue.word("gemini|small|")
    (first, second) = stamps()
    assert (first[0], second[0]) == (other, queue.tenant)
    assert first[1] == second[1] != extracted


def add_document(queue: JobQueue) -> None:
    source, place = uuid4(), {"tenant_id": queue.tenant, "project_id": queue.project}
    queue.ledger.sources.add(id=source, name="s", kind="text", **place)
    queue.ledger.add_document("e", source, kind="work", state="done")


def test_twenty_askers_at_once_get_one_job(queue: JobQueue) -> None:
    found: list[jobs.Submission] = []
    threads = [threading.Thread(target=lambda: found.append(queue.submit())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({asked.id for asked in found}) == 1
    assert sum(asked.new for asked in found) == 1


def test_a_second_asker_may_be_in_more_of_a_hurry_or_wait_longer(queue: JobQueue) -> None:
    first = queue.submit(priority=jobs.BULK, seconds=10)
    queue.submit(priority=jobs.INTERACTIVE, seconds=1000)
    due = queue.pump_once(JobLimits(resend=0))
    assert [(d.id, d.priority) for d in due] == [(first.id, jobs.INTERACTIVE)]
    queue.submit(priority=jobs.BULK, seconds=1)
    assert queue.pump_once(JobLimits(resend=0))[0].priority == jobs.INTERACTIVE
    deadline = queue.get(first.id).deadline
    assert deadline is not None
    assert (deadline - datetime.now(UTC)).total_seconds() > 900


# One at a time ------------------------------------------------------------------------------------


def test_a_job_is_claimed_by_one_and_a_doubled_message_finds_nothing(queue: JobQueue) -> None:
    job = queue.submit().id
    claimed = queue.claimed(job)
    assert claimed.request == REQUEST
    assert queue.claim(job) is None
    queue.finish(claimed)
    assert queue.claim(job) is None
    row = queue.get(job)
    assert (row.state, row.degradation_level, row.crash_count) == ("done", 0, 0)
    assert row.finished_at is not None


def test_one_that_woke_up_after_its_lease_cannot_write(queue: JobQueue) -> None:
    job = queue.submit().id
    slow = queue.claimed(job)
    queue.later(job, "lease_until", 1)
    queue.pump_once()
    fast = queue.claimed(job)
    with pytest.raises(LeaseLost):
        queue.finish(slow)
    with queue.database.tenant(queue.tenant) as connection:
        assert not jobs.renew(connection, slow, lease=60)
        assert jobs.renew(connection, fast, lease=60)
        jobs.put_back(connection, slow, SearchError("late"), delay=0)
    queue.finish(fast)
    assert queue.get(job).state == "done"


def test_whoever_listens_hears_of_every_end(queue: JobQueue) -> None:
    with queue.sql.cursor() as cursor:
        cursor.execute(f"listen {jobs.CHANNEL}")
    done, failed, expired, crashed = (
        queue.submit({"pbi": {"title": str(n)}}, seconds=60).id for n in range(4)
    )
    queue.finish(queue.claimed(done))
    with queue.database.tenant(queue.tenant) as connection:
        claimed = jobs.claim(connection, failed, lease=60)
        assert claimed is not None
        jobs.fail(connection, claimed, SearchError("no"))
    queue.claimed(crashed)
    queue.later(crashed, "lease_until", 1)
    queue.later(expired, "deadline", 1)
    queue.pump_once(JobLimits(crashes=1))
    heard = [UUID(n.payload) for n in queue.sql.notifies(timeout=2, stop_after=4)]
    assert sorted(heard) == sorted([done, failed, expired, crashed])


# Trouble ------------------------------------------------------------------------------------------


def test_a_job_that_kills_its_worker_three_times_fails_with_the_reason(queue: JobQueue) -> None:
    job = queue.submit().id
    for crash in (1, 2, 3):
        queue.claimed(job)
        assert queue.pump_once() == []  # its lease is not over
        queue.later(job, "lease_until", 1)
        due = queue.pump_once()
        assert [d.id for d in due] == ([job] if crash < 3 else [])
    row = queue.get(job)
    assert row.state == "failed"
    assert row.error is not None
    assert "died 3 times" in row.error


def test_an_error_is_no_crash_and_waits_before_the_next_try(queue: JobQueue) -> None:
    job = queue.submit().id
    for attempt in (1, 2, 3, 4):
        claimed = queue.claimed(job)
        assert claimed.attempts == attempt - 1
        with queue.database.tenant(queue.tenant) as connection:
            jobs.put_back(connection, claimed, EmbedderUnavailable("the model is away"), delay=30)
        assert queue.claim(job) is None
        assert queue.pump_once() == []
        queue.later(job, "due_at", 1)
        assert [d.id for d in queue.pump_once()] == [job]
    row = queue.get(job)
    assert (row.state, row.attempts, row.crash_count, row.code) == ("queued", 4, 0, "E002")


def test_a_lost_message_is_sent_again_and_one_that_waits_is_not(queue: JobQueue) -> None:
    job = queue.submit().id
    assert queue.pump_once() == []
    queue.later(job, "enqueued_at", 20)
    assert [d.id for d in queue.pump_once()] == [job]
    assert queue.pump_once() == []
    with queue.database.tenant(queue.tenant) as connection:
        jobs.mark_unsent(connection, job)
    assert [d.id for d in queue.pump_once()] == [job]
    quiet = queue.submit({"pbi": {"title": "without a broker"}}, sends=False).id
    assert [d.id for d in queue.pump_once()] == [quiet]


def test_the_pump_sends_the_urgent_first_then_the_oldest_and_not_too_many(queue: JobQueue) -> None:
    order = [(jobs.BULK, 30), (jobs.INTERACTIVE, 10), (jobs.BULK, 40), (jobs.INTERACTIVE, 20)]
    made = []
    for n, (priority, age) in enumerate(order):
        made.append(queue.submit({"pbi": {"title": str(n)}}, priority=priority, sends=False).id)
        queue.later(made[-1], "created_at", age)
    assert [d.id for d in queue.pump_once(JobLimits(batch=3))] == [made[3], made[1], made[2]]
    assert [d.id for d in queue.pump_once(JobLimits(batch=3))] == [made[0]]


def test_a_tenant_with_many_jobs_leaves_the_others_their_turn(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SHARE", 3)
    mine = [queue.submit({"pbi": {"title": str(n)}}) for n in range(10)]
    assert [asked.sends for asked in mine] == [True] * 3 + [False] * 7
    assert queue.submit({"pbi": {"title": "backlog"}}, priority=jobs.BULK).sends, "another queue"
    assert queue.pump_once() == [], "its share is under way"
    other = UUID(int=7)
    with queue.database.tenant(other) as connection:
        sources.ensure_tenant(connection, other, "other", UUID(int=8), "p")
        theirs = [jobs.submit(connection, other, UUID(int=8), {"n": n}, sends=False).id for n in range(2)]
    for asked in mine[:3]:
        queue.finish(queue.claimed(asked.id))
    due = [one.id for one in queue.pump_once()]
    assert due in (
        [mine[3].id, theirs[0], mine[4].id, theirs[1], mine[5].id],
        [theirs[0], mine[3].id, theirs[1], mine[4].id, mine[5].id],
    )
    with queue.database.tenant(queue.tenant) as connection:
        assert jobs.has_unsent(connection)


def test_a_job_whose_deadline_passed_expires_and_is_never_begun(queue: JobQueue) -> None:
    job = queue.submit(seconds=30).id
    queue.later(job, "deadline", 1)
    assert queue.claim(job) is None
    assert queue.pump_once(JobLimits(resend=0)) == []
    row = queue.get(job)
    assert row.state == "expired"
    assert row.error is not None
    assert "deadline" in row.error


def test_one_that_has_begun_may_finish_after_its_deadline(queue: JobQueue) -> None:
    job = queue.submit(seconds=30).id
    claimed = queue.claimed(job)
    queue.later(job, "deadline", 1)
    queue.pump_once()
    queue.finish(claimed)
    assert queue.get(job).state == "done"


def test_answers_go_after_their_time_and_what_is_open_stays(queue: JobQueue) -> None:
    old, young, waiting = (queue.submit({"pbi": {"title": str(n)}}).id for n in range(3))
    for job in (old, young):
        queue.finish(queue.claimed(job))
    queue.later(old, "finished_at", 3 * 3600)
    queue.later(waiting, "created_at", 30 * 3600)
    with queue.database.control() as connection:
        upkeep.trim(connection, "enrichment_job", runs_days=30, dead_days=30, answers_hours=2)
    with queue.database.tenant(queue.tenant) as connection:
        assert jobs.get(connection, old) is None
        assert jobs.states(connection, [old, young, waiting]) == {young: "done", waiting: "queued"}


def test_a_claim_waits_for_whoever_changes_the_job_at_that_moment(queue: JobQueue) -> None:
    """Else its only message would be taken by a worker that finds nothing to do."""
    job = queue.submit().id
    found: list[ClaimedJob | None] = []
    claimer = threading.Thread(target=lambda: found.append(queue.claim(job)))
    with queue.database.tenant(queue.tenant) as connection:
        of_connection(connection).jobs.set(job, priority=3)
        claimer.start()
        waiting = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        end = time.monotonic() + 60
        while queue.sql.execute(waiting).fetchone() != (True,):
            assert time.monotonic() < end
            time.sleep(0.02)
    claimer.join()
    assert [one.id for one in found if one] == [job]


# Who sees what ------------------------------------------------------------------------------------


def test_the_control_role_sees_neither_question_nor_answer(queue: JobQueue) -> None:
    queue.submit()
    for column in ("request", "result"):
        with pytest.raises(StoreHindered), queue.database.control() as connection:
            connection.execute(text(f"select {column} from enrichment_job"))


def test_another_tenant_has_no_part_in_a_job(queue: JobQueue) -> None:
    job = queue.submit().id
    with queue.database.tenant(uuid4()) as connection:
        assert jobs.get(connection, job) is None
        assert jobs.claim(connection, job, lease=60) is None


def test_odd_characters_in_a_question_do_no_harm(queue: JobQueue) -> None:
    job = queue.submit({"pbi": {"title": "a\x00b\ud800", "n": float("nan")}}).id
    assert queue.claimed(job).request == {"pbi": {"title": "ab?", "n": None}}
