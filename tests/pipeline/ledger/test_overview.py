"""The figures of the operator's screen, counted from planted rows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from pipeline.database.engine import Database
from pipeline.ledger import overview, project_id, runs, source_id, sources, tenant_id, upkeep
from tests.ledger import Ledger, ago

SQL = psycopg.Connection[Any]


@pytest.fixture
def notes(database: Database, tenant: UUID, project: UUID) -> UUID:
    """A source `notes` of tenant acme."""
    return register(database, tenant, project, "notes")


def register(database: Database, tenant: UUID, project: UUID, name: str) -> UUID:
    made = source_id(tenant, name)
    row = sources.Registration(
        id=made, tenant_id=tenant, project_id=project, name=name, kind="text", config_hash=""
    )
    with database.tenant(tenant) as connection:
        sources.register(connection, [row])
    return made


def plant(ledger: Ledger, source: UUID, **columns: Any) -> UUID:
    """A document of a source; what is not given is that of a finished one with two chunks."""
    values = {"id": uuid4(), "state": "done", "stage": "done", "chunk_count": 2, **columns}
    return ledger.add_document(values.pop("external_id", str(values["id"])), source, **values)


def figures(database: Database) -> dict[str, SimpleNamespace]:
    with database.control() as connection:
        return {f["name"]: SimpleNamespace(**f) for f in overview.sources(connection)}


def test_a_new_source_has_nothing(database: Database, notes: UUID) -> None:
    found = vars(figures(database)["notes"])
    assert found == {
        "name": "notes",
        "tenant": "acme",
        "type": "text",
        "documents": 0,
        "chunks": 0,
        "pending": 0,
        "dead": 0,
        "hidden": 0,
        "freshness_seconds": None,
        "last_error": None,
        "next_sync": None,
        "paused": False,
        "held": 0,
        "failures": 0,
        "schedule": "",
        "timezone": "UTC",
        "last_sync_at": None,
        "left_out": {},
        "noted": 0,
        "removed": False,
        "dead_letters": [],
        "problems": [],
        "last_run": None,
        "running": None,
    }


def test_documents_are_counted_by_what_became_of_them(
    database: Database, notes: UUID, ledger: Ledger
) -> None:
    for _ in range(3):
        plant(ledger, notes)
    plant(ledger, notes, state="pending", stage="fetched", chunk_count=5)  # an old version is searchable
    plant(ledger, notes, hidden=True)
    plant(ledger, notes, deleted=True, hidden=True, chunk_count=0)
    plant(ledger, notes, state="dead", stage="chunked", chunk_count=0)  # dropped: no letter
    found = figures(database)["notes"]
    assert (found.documents, found.chunks, found.pending, found.dead, found.hidden) == (3, 11, 1, 0, 1)


def test_sources_do_not_mix(
    database: Database, tenant: UUID, project: UUID, notes: UUID, ledger: Ledger
) -> None:
    other = tenant_id("other")
    with database.tenant(other) as connection:
        sources.ensure_tenant(connection, other, "other", project_id(other, "app"), "app")
    theirs = register(database, other, project_id(other, "app"), "wiki")
    plant(ledger, notes)
    plant(ledger, theirs)
    plant(ledger, theirs, state="pending", stage="chunked")
    found = figures(database)
    assert (found["notes"].documents, found["notes"].pending) == (1, 0)
    assert (found["wiki"].documents, found["wiki"].pending, found["wiki"].tenant) == (1, 1, "other")


def test_freshness_is_the_age_of_the_last_complete_sync(
    database: Database, notes: UUID, ledger: Ledger
) -> None:
    ledger.sources.set(last_sync_at=ago(seconds=90))
    fresh = figures(database)["notes"].freshness_seconds
    assert fresh is not None
    assert 90 <= fresh < 120


def test_the_state_of_a_source(database: Database, notes: UUID, ledger: Ledger) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    ledger.sources.set(last_error="denied", held=30, paused_at=ago(), removed_at=ago(), next_sync_at=due)
    found = figures(database)["notes"]
    assert (found.last_error, found.held, found.paused, found.removed) == ("denied", 30, True, True)
    assert found.next_sync == due.isoformat()


def test_removed_sources_come_last(database: Database, tenant: UUID, project: UUID, ledger: Ledger) -> None:
    for name in ("a", "b", "c"):
        register(database, tenant, project, name)
    ledger.sources.set("a", removed_at=ago())
    assert list(figures(database)) == ["b", "c", "a"]


def test_the_error_of_an_open_run_counts_before_that_of_an_older_one(
    database: Database, tenant: UUID, notes: UUID, ledger: Ledger
) -> None:
    ledger.sources.set(last_error="old")
    with database.tenant(tenant) as connection:
        run = runs.open_run(connection, tenant, notes, trigger="manual")
        assert run is not None
        runs.postpone(connection, run, delay=60, error="the source does not answer")
    assert figures(database)["notes"].last_error == "the source does not answer"
    with database.tenant(tenant) as connection:
        runs.fail(connection, run, "given up")
    assert figures(database)["notes"].last_error == "old"


def test_dead_letters_are_named_newest_first_up_to_twenty(
    database: Database, notes: UUID, ledger: Ledger
) -> None:
    for n in range(22):
        plant(ledger, notes, state="dead", stage="chunked", external_id=f"item-{n}", chunk_count=0)
        ledger.add_letter(f"item-{n}", code="E002", reason="because", attempts=1)
    found = figures(database)["notes"]
    assert found.dead == 22
    assert [letter["item"] for letter in found.dead_letters] == [f"item-{n}" for n in range(21, 1, -1)]
    assert {key: found.dead_letters[0][key] for key in ("stage", "reason")} == {
        "stage": "chunked",
        "reason": "because",
    }
    with database.control() as connection:
        assert overview.backlog(connection, resend=60)["dead"] == 22


def test_problems_are_those_of_the_newest_run_that_had_any(
    database: Database, tenant: UUID, notes: UUID, ledger: Ledger
) -> None:
    def closed(problems: list[dict[str, str]], hours: int) -> None:
        times = {"started_at": ago(hours=hours), "finished_at": ago()}
        ledger.add_run(notes, state="finished", problems=problems or Jsonb([]), **times)

    closed([{"item": "old.md", "reason": "broken", "outcome": "failed"}], 3)
    closed([{"item": "blob.md", "reason": "binary", "url": "", "outcome": "failed"}], 2)
    closed([], 1)
    assert figures(database)["notes"].problems == [
        {"item": "blob.md", "reason": "binary", "outcome": "failed"}
    ]


def test_texts_that_were_cut_are_those_of_the_last_large_sync(
    database: Database, tenant: UUID, notes: UUID, ledger: Ledger
) -> None:
    def told() -> tuple[int, int]:
        with database.control() as connection:
            found = overview.embedded_texts(connection)
        return found["texts"], found["cut"]

    def synced(embedded: int, cut: int) -> None:
        ended = {"state": "finished", "started_at": ago(), "finished_at": ago()}
        ledger.add_run(notes, texts_embedded=embedded, texts_cut=cut, **ended)

    assert told() == (0, 0)
    synced(100, 39)
    synced(0, 0)
    synced(3, 0)  # an edit
    assert told() == (100, 39)
    synced(90, 1)  # cut into smaller chunks
    assert told() == (90, 1)


def test_the_last_run_has_its_counts(database: Database, tenant: UUID, notes: UUID) -> None:
    with database.tenant(tenant) as connection:
        first = runs.open_run(connection, tenant, notes, trigger="schedule")
        assert first is not None
        runs.add(connection, first, runs.Counts(unchanged=7))
        runs.fail(connection, first, "no")
    with database.tenant(tenant) as connection:
        second = runs.open_run(connection, tenant, notes, trigger="manual")
        assert second is not None
        runs.add(connection, second, runs.Counts(queued=4, skipped=5))
    last = figures(database)["notes"].last_run
    assert last is not None
    assert (last["run"], last["trigger"], last["state"], last["finished_at"]) == (
        second,
        "manual",
        "discovering",
        None,
    )
    assert (last["listed"], last["queued"], last["skipped"], last["unchanged"]) == (9, 4, 5, 0)


def test_an_open_run_is_counted_live(database: Database, tenant: UUID, notes: UUID, ledger: Ledger) -> None:
    with database.tenant(tenant) as connection:
        run = runs.open_run(connection, tenant, notes, trigger="manual")
    for outcome in ("done", "done", None):
        document = plant(ledger, notes)
        item = {"run_id": run, "document_id": document, "version": 1, "outcome": outcome}
        ledger.run_items.add(tenant_id=tenant, texts_embedded=3, **item)
    last = figures(database)["notes"].last_run
    assert last is not None
    assert (last["indexed"], last["texts_embedded"]) == (2, 9)
    with database.control() as connection:
        (newest,) = overview.newest_runs(connection, [notes], 5)
    assert (newest["indexed"], newest["texts_embedded"]) == (2, 9)


def test_the_backlog_by_stage_and_age(database: Database, notes: UUID, ledger: Ledger) -> None:
    now = datetime.now(UTC)
    late, later = now - timedelta(minutes=5), now + timedelta(minutes=5)
    plant(ledger, notes, state="pending", stage="fetched", due_at=late)
    plant(ledger, notes, state="pending", stage="fetched", due_at=now, enqueued_at=now)
    plant(
        ledger,
        notes,
        state="pending",
        stage="embedded",
        due_at=later,
        enqueued_at=now - timedelta(hours=1),
    )
    plant(ledger, notes)
    with database.control() as connection:
        found = overview.backlog(connection, resend=240)
    assert (found["pending"], found["in_flight"], found["dead"]) == (3, 1, 0)
    assert found["by_stage"] == {"fetched": 2, "chunked": 0, "embedded": 1}
    assert 300 <= found["oldest_due_seconds"] < 330


@pytest.mark.parametrize(
    ("sent_seconds_ago", "leased", "late"), [(5, False, False), (300, True, False), (300, False, True)]
)
def test_a_load_that_waits_for_its_turns_is_overdue_only_if_nobody_embeds(
    database: Database, notes: UUID, ledger: Ledger, sent_seconds_ago: int, leased: bool, late: bool
) -> None:
    now = datetime.now(UTC)
    load = {"state": "pending", "stage": "chunked", "due_at": now - timedelta(minutes=20)}
    plant(ledger, notes, **load)
    more = {"lease_until": now + timedelta(minutes=1)} if leased else {}
    plant(ledger, notes, **load, enqueued_at=now - timedelta(seconds=sent_seconds_ago), **more)
    with database.control() as connection:
        found = overview.backlog(connection, resend=240)["oldest_due_seconds"]
    assert (found or 0.0) > 1000 if late else found is None


def test_nothing_waits(database: Database) -> None:
    with database.control() as connection:
        found = overview.backlog(connection, resend=240)
        assert (found["pending"], found["oldest_due_seconds"]) == (0, None)
        assert overview.index(connection) is None
        assert overview.workers(connection) == []
        assert overview.canaries(connection) == {}


def test_work_put_off_is_not_overdue(database: Database, notes: UUID, ledger: Ledger) -> None:
    plant(ledger, notes, state="pending", stage="fetched", due_at=datetime.now(UTC) + timedelta(hours=1))
    with database.control() as connection:
        assert overview.backlog(connection, resend=240)["oldest_due_seconds"] is None


def test_workers_are_listed_until_they_are_long_silent(database: Database, ledger: Ledger) -> None:
    ledger.add_worker("worker-embed@a", "embed", host="a", pid=7, seen_at=ago(seconds=40))
    ledger.add_worker("worker-all@b", "control,ingest", host="b", pid=8)
    ledger.add_worker("gone@c", "embed", host="c", pid=9, seen_at=ago(hours=1))
    ledger.canaries.add(queue="embed", sung_at=ago(seconds=70))
    with database.control() as connection:
        found = overview.workers(connection)
        assert 70 <= overview.canaries(connection)["embed"] < 90
    assert [(w["name"], w["queues"], w["host"], w["pid"]) for w in found] == [
        ("worker-all@b", ["control", "ingest"], "b", 8),
        ("worker-embed@a", ["embed"], "a", 7),
    ]
    assert 40 <= found[1]["age_seconds"] < 60


def test_a_queue_without_a_worker_is_told_with_its_time_also_of_a_worker_that_ended(
    database: Database, ledger: Ledger
) -> None:
    for queue, seen_at in (("control", ago()), ("embed", ago(minutes=5)), ("ingest", ago())):
        ledger.add_worker(f"worker-{queue}@a", queue, host="a", started_at=ago(days=1), seen_at=seen_at)
    ledger.canaries.add(queue="enrich", sung_at=ago(minutes=20))
    queues = ("control", "ingest", "embed", "enrich")

    def unserved() -> dict[str, float | None]:
        with database.control() as connection:
            return overview.unserved(connection, queues, silent=30)

    found = {queue: round((seconds or 0) / 60) for queue, seconds in unserved().items()}
    assert found == {"embed": 5, "enrich": 20}
    with database.control() as connection:
        upkeep.record_worker_end(connection, "worker-ingest@a")
        assert "worker-ingest@a" not in {w["name"] for w in overview.workers(connection)}
    assert 0 <= (unserved()["ingest"] or 0) < 10
    ledger.workers.set("worker-control@a", started_at=ago())
    assert all((seconds or 0) < 10 for seconds in unserved().values()), "all were started anew"
    ledger.workers.clear()
    ledger.canaries.clear()
    assert unserved() == dict.fromkeys(queues), "none was ever started"


def test_the_index_that_is_read(database: Database, notes: UUID, ledger: Ledger) -> None:
    plant(ledger, notes, chunk_count=3)
    plant(ledger, notes, chunk_count=4, deleted=True)
    with database.control() as connection:
        for model in ("first", "second"):
            connection.exec_driver_sql(
                "select open_search_index('hashing', %s, 8, 'structure', 'p')", (model,)
            )
        found = overview.index(connection)
        assert found == {
            "model": "first",
            "dimensions": 8,
            "status": "active",
            "chunks": 3,
            "vector_index": "exact",
            "keyword_index": "scan",
        }
    ledger.indexes.set({"model": "first"}, indexed_rows=3, keyword_built=True)
    with database.control() as connection:
        found = overview.index(connection)
        assert found is not None
        assert (found["vector_index"], found["keyword_index"]) == ("hnsw", "gin")


def test_no_figure_needs_a_text(database: Database, notes: UUID, ledger: Ledger) -> None:
    plant(ledger, notes)
    assert "a title" not in str(figures(database)["notes"])


def test_answers_for_step_4_are_counted_and_tell_their_worst_level_of_late(
    database: Database, tenant: UUID, project: UUID, ledger: Ledger
) -> None:
    with database.control() as connection:
        assert overview.enrichment(connection) == {
            "waiting": 0, "running": 0, "oldest_seconds": None, "degradation_level": 0, "failed": 0,
        }  # fmt: skip
    for state, level, seconds in (
        ("queued", None, None),
        ("running", None, None),
        ("done", 3, 20),
        ("done", 1, 5),
        ("done", 4, 90),
    ):
        end = None if seconds is None else ago(seconds=seconds)
        how = {"state": state, "degradation_level": level, "created_at": ago(seconds=40), "finished_at": end}
        ledger.jobs.add(id=uuid4(), tenant_id=tenant, project_id=project, request={}, **how)
    with database.control() as connection:
        found = overview.enrichment(connection)
    assert (found["waiting"], found["running"], found["degradation_level"]) == (1, 1, 3)
    assert 40 <= found["oldest_seconds"] < 60
