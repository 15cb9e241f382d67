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


class Desk:
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
def desk(database: Database, tenant: UUID, project: UUID, omniscient: SQL) -> Desk:
    return Desk(database, tenant, project, omniscient)


# Asked twice --------------------------------------------------------------------------------------


def test_the_same_question_is_one_job_while_it_waits_runs_or_is_answered(desk: Desk) -> None:
    first = desk.submit()
    assert first.new
    assert desk.submit() == jobs.Submission(id=first.id, new=False)
    claimed = desk.claimed(first.id)
    assert desk.submit() == jobs.Submission(id=first.id, new=False)
    desk.finish(claimed)
    assert desk.submit() == jobs.Submission(id=first.id, new=False)
    assert len(desk.ledger.jobs()) == 1


def test_the_order_of_keys_is_no_other_question_and_another_project_is(desk: Desk, project: UUID) -> None:
    first = desk.submit({"pbi": {"id": "1", "title": "a"}, "scores": {}})
    assert desk.submit({"scores": {}, "pbi": {"title": "a", "id": "1"}}).id == first.id
    assert desk.submit({"pbi": {"id": "1", "title": "b"}, "scores": {}}).id != first.id
    desk.project = uuid4()
    assert desk.submit({"pbi": {"id": "1", "title": "a"}, "scores": {}}).id != first.id


@pytest.mark.parametrize("end", ["failed", "expired", "degraded", "documents", "deletion", "late"])
def test_an_answer_that_does_not_hold_any_more_is_not_given_again(desk: Desk, end: str) -> None:
    if end == "deletion":
        add_document(desk)
    first = desk.submit(seconds=30)
    if end in {"expired", "late"}:
        desk.later(first.id, "deadline", 1)
    if end == "expired":
        desk.pump_once()
    elif end == "failed":
        with desk.database.tenant(desk.tenant) as connection:
            claimed = jobs.claim(connection, first.id, lease=60)
            assert claimed is not None
            jobs.fail(connection, claimed, SearchError("no"))
    elif end != "late":
        desk.finish(desk.claimed(first.id), level=3 if end == "degraded" else 0)
    if end == "documents":
        add_document(desk)
    elif end == "deletion":
        desk.ledger.documents.set(hidden=True)
    second = desk.submit()
    assert second.new
    assert second.id != first.id
    assert desk.submit().id == second.id


def test_an_answer_of_another_wording_is_not_given_again(desk: Desk) -> None:
    desk.word("gemini|small|")
    first = desk.submit()
    desk.finish(desk.claimed(first.id))
    desk.word("gemini|small|")
    assert desk.submit() == jobs.Submission(id=first.id, new=False), "the same words twice cost two"
    desk.word("gemini|large|")
    second = desk.submit()
    assert second.new
    desk.finish(desk.claimed(second.id))
    assert desk.submit() == jobs.Submission(id=second.id, new=False)


def test_an_answer_begun_by_a_worker_of_the_former_wording_is_not_given_again(desk: Desk) -> None:
    with desk.database.tenant(desk.tenant) as connection:
        jobs.record_answer_version(connection, "extract")
    first = desk.submit()
    claimed = desk.claimed(first.id)
    desk.word("gemini|small|")
    desk.finish(claimed)
    assert desk.submit().new


def test_the_wording_is_noted_for_every_tenant_or_for_the_one_at_work(desk: Desk) -> None:
    def stamps() -> list[tuple[UUID, UUID]]:
        rows: list[tuple[UUID, UUID]] = desk.ledger.change_stamps.values("tenant_id", "stamp", slot=-1)
        return sorted(rows, key=lambda row: row[0] == desk.tenant)

    other = uuid4()
    desk.ledger.tenants.add(id=other, name="other")
    with desk.database.tenant(desk.tenant) as connection:
        jobs.record_answer_version(connection, "extract")
    ((tenant, extracted),) = stamps()
    assert tenant == desk.tenant
    desk.word("gemini|small|")
    (first, second) = stamps()
    assert (first[0], second[0]) == (other, desk.tenant)
    assert first[1] == second[1] != extracted


def add_document(desk: Desk) -> None:
    source, place = uuid4(), {"tenant_id": desk.tenant, "project_id": desk.project}
    desk.ledger.sources.add(id=source, name="s", kind="text", **place)
    desk.ledger.add_document("e", source, kind="work", state="done")


def test_twenty_askers_at_once_get_one_job(desk: Desk) -> None:
    found: list[jobs.Submission] = []
    threads = [threading.Thread(target=lambda: found.append(desk.submit())) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({asked.id for asked in found}) == 1
    assert sum(asked.new for asked in found) == 1


def test_a_second_asker_may_be_in_more_of_a_hurry_or_wait_longer(desk: Desk) -> None:
    first = desk.submit(priority=jobs.BULK, seconds=10)
    desk.submit(priority=jobs.INTERACTIVE, seconds=1000)
    due = desk.pump_once(JobLimits(resend=0))
    assert [(d.id, d.priority) for d in due] == [(first.id, jobs.INTERACTIVE)]
    desk.submit(priority=jobs.BULK, seconds=1)
    assert desk.pump_once(JobLimits(resend=0))[0].priority == jobs.INTERACTIVE
    deadline = desk.get(first.id).deadline
    assert deadline is not None
    assert (deadline - datetime.now(UTC)).total_seconds() > 900


# One at a time ------------------------------------------------------------------------------------


def test_a_job_is_claimed_by_one_and_a_doubled_message_finds_nothing(desk: Desk) -> None:
    job = desk.submit().id
    claimed = desk.claimed(job)
    assert claimed.request == REQUEST
    assert desk.claim(job) is None
    desk.finish(claimed)
    assert desk.claim(job) is None
    row = desk.get(job)
    assert (row.state, row.degradation_level, row.crash_count) == ("done", 0, 0)
    assert row.finished_at is not None


def test_one_that_woke_up_after_its_lease_cannot_write(desk: Desk) -> None:
    job = desk.submit().id
    slow = desk.claimed(job)
    desk.later(job, "lease_until", 1)
    desk.pump_once()
    fast = desk.claimed(job)
    with pytest.raises(LeaseLost):
        desk.finish(slow)
    with desk.database.tenant(desk.tenant) as connection:
        assert not jobs.renew(connection, slow, lease=60)
        assert jobs.renew(connection, fast, lease=60)
        jobs.put_back(connection, slow, SearchError("late"), delay=0)
    desk.finish(fast)
    assert desk.get(job).state == "done"


def test_whoever_listens_hears_of_every_end(desk: Desk) -> None:
    with desk.sql.cursor() as cursor:
        cursor.execute(f"listen {jobs.CHANNEL}")
    done, failed, expired, crashed = (
        desk.submit({"pbi": {"title": str(n)}}, seconds=60).id for n in range(4)
    )
    desk.finish(desk.claimed(done))
    with desk.database.tenant(desk.tenant) as connection:
        claimed = jobs.claim(connection, failed, lease=60)
        assert claimed is not None
        jobs.fail(connection, claimed, SearchError("no"))
    desk.claimed(crashed)
    desk.later(crashed, "lease_until", 1)
    desk.later(expired, "deadline", 1)
    desk.pump_once(JobLimits(crashes=1))
    heard = [UUID(n.payload) for n in desk.sql.notifies(timeout=2, stop_after=4)]
    assert sorted(heard) == sorted([done, failed, expired, crashed])


# Trouble ------------------------------------------------------------------------------------------


def test_a_job_that_kills_its_worker_three_times_fails_with_the_reason(desk: Desk) -> None:
    job = desk.submit().id
    for crash in (1, 2, 3):
        desk.claimed(job)
        assert desk.pump_once() == []  # its lease is not over
        desk.later(job, "lease_until", 1)
        due = desk.pump_once()
        assert [d.id for d in due] == ([job] if crash < 3 else [])
    row = desk.get(job)
    assert row.state == "failed"
    assert row.error is not None
    assert "died 3 times" in row.error


def test_an_error_is_no_crash_and_waits_before_the_next_try(desk: Desk) -> None:
    job = desk.submit().id
    for attempt in (1, 2, 3, 4):
        claimed = desk.claimed(job)
        assert claimed.attempts == attempt - 1
        with desk.database.tenant(desk.tenant) as connection:
            jobs.put_back(connection, claimed, EmbedderUnavailable("the model is away"), delay=30)
        assert desk.claim(job) is None
        assert desk.pump_once() == []
        desk.later(job, "due_at", 1)
        assert [d.id for d in desk.pump_once()] == [job]
    row = desk.get(job)
    assert (row.state, row.attempts, row.crash_count, row.code) == ("queued", 4, 0, "E002")


def test_a_lost_message_is_sent_again_and_one_that_waits_is_not(desk: Desk) -> None:
    job = desk.submit().id
    assert desk.pump_once() == []
    desk.later(job, "enqueued_at", 20)
    assert [d.id for d in desk.pump_once()] == [job]
    assert desk.pump_once() == []
    with desk.database.tenant(desk.tenant) as connection:
        jobs.mark_unsent(connection, job)
    assert [d.id for d in desk.pump_once()] == [job]
    quiet = desk.submit({"pbi": {"title": "without a broker"}}, sends=False).id
    assert [d.id for d in desk.pump_once()] == [quiet]


def test_the_pump_sends_the_urgent_first_then_the_oldest_and_not_too_many(desk: Desk) -> None:
    order = [(jobs.BULK, 30), (jobs.INTERACTIVE, 10), (jobs.BULK, 40), (jobs.INTERACTIVE, 20)]
    made = []
    for n, (priority, age) in enumerate(order):
        made.append(desk.submit({"pbi": {"title": str(n)}}, priority=priority, sends=False).id)
        desk.later(made[-1], "created_at", age)
    assert [d.id for d in desk.pump_once(JobLimits(batch=3))] == [made[3], made[1], made[2]]
    assert [d.id for d in desk.pump_once(JobLimits(batch=3))] == [made[0]]


def test_a_tenant_with_many_jobs_leaves_the_others_their_turn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "SHARE", 3)
    mine = [desk.submit({"pbi": {"title": str(n)}}) for n in range(10)]
    assert [asked.sends for asked in mine] == [True] * 3 + [False] * 7
    assert desk.submit({"pbi": {"title": "backlog"}}, priority=jobs.BULK).sends, "another queue"
    assert desk.pump_once() == [], "its share is under way"
    other = UUID(int=7)
    with desk.database.tenant(other) as connection:
        sources.ensure_tenant(connection, other, "other", UUID(int=8), "p")
        theirs = [jobs.submit(connection, other, UUID(int=8), {"n": n}, sends=False).id for n in range(2)]
    for asked in mine[:3]:
        desk.finish(desk.claimed(asked.id))
    due = [one.id for one in desk.pump_once()]
    assert due in (
        [mine[3].id, theirs[0], mine[4].id, theirs[1], mine[5].id],
        [theirs[0], mine[3].id, theirs[1], mine[4].id, mine[5].id],
    )
    with desk.database.tenant(desk.tenant) as connection:
        assert jobs.has_unsent(connection)


def test_a_job_whose_deadline_passed_expires_and_is_never_begun(desk: Desk) -> None:
    job = desk.submit(seconds=30).id
    desk.later(job, "deadline", 1)
    assert desk.claim(job) is None
    assert desk.pump_once(JobLimits(resend=0)) == []
    row = desk.get(job)
    assert row.state == "expired"
    assert row.error is not None
    assert "deadline" in row.error


def test_one_that_has_begun_may_finish_after_its_deadline(desk: Desk) -> None:
    job = desk.submit(seconds=30).id
    claimed = desk.claimed(job)
    desk.later(job, "deadline", 1)
    desk.pump_once()
    desk.finish(claimed)
    assert desk.get(job).state == "done"


def test_answers_go_after_their_time_and_what_is_open_stays(desk: Desk) -> None:
    old, young, waiting = (desk.submit({"pbi": {"title": str(n)}}).id for n in range(3))
    for job in (old, young):
        desk.finish(desk.claimed(job))
    desk.later(old, "finished_at", 3 * 3600)
    desk.later(waiting, "created_at", 30 * 3600)
    with desk.database.control() as connection:
        upkeep.trim(connection, "enrichment_job", runs_days=30, dead_days=30, answers_hours=2)
    with desk.database.tenant(desk.tenant) as connection:
        assert jobs.get(connection, old) is None
        assert jobs.states(connection, [old, young, waiting]) == {young: "done", waiting: "queued"}


def test_a_claim_waits_for_whoever_changes_the_job_at_that_moment(desk: Desk) -> None:
    """Else its only message would be taken by a worker that finds nothing to do."""
    job = desk.submit().id
    found: list[ClaimedJob | None] = []
    claimer = threading.Thread(target=lambda: found.append(desk.claim(job)))
    with desk.database.tenant(desk.tenant) as connection:
        of_connection(connection).jobs.set(job, priority=3)
        claimer.start()
        waiting = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        end = time.monotonic() + 60
        while desk.sql.execute(waiting).fetchone() != (True,):
            assert time.monotonic() < end
            time.sleep(0.02)
    claimer.join()
    assert [one.id for one in found if one] == [job]


# Who sees what ------------------------------------------------------------------------------------


def test_the_control_role_sees_neither_question_nor_answer(desk: Desk) -> None:
    desk.submit()
    for column in ("request", "result"):
        with pytest.raises(StoreHindered), desk.database.control() as connection:
            connection.execute(text(f"select {column} from enrichment_job"))


def test_another_tenant_has_no_part_in_a_job(desk: Desk) -> None:
    job = desk.submit().id
    with desk.database.tenant(uuid4()) as connection:
        assert jobs.get(connection, job) is None
        assert jobs.claim(connection, job, lease=60) is None


def test_odd_characters_in_a_question_do_no_harm(desk: Desk) -> None:
    job = desk.submit({"pbi": {"title": "a\x00b\ud800", "n": float("nan")}}).id
    assert desk.claimed(job).request == {"pbi": {"title": "ab?", "n": None}}
