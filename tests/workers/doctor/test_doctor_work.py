"""The doctor: work that nobody does, and what waits for a person."""

from __future__ import annotations

import pytest
import redis

from pipeline.ledger import Stage
from tests.workers.doctor.installation import SQL, Store
from workers.app.doctor import doctor
from workers.app.ingestion import maintenance, sync
from workers.app.ingestion.sync import configured_sources
from workers.local import embedded
from workers.queue.broker import lists_of
from workers.queue.celeryconfig import QUEUES

CUTS = lists_of("ingest")

WAITING = {
    "never sent": "update document set state = 'pending', stage = 'fetched', due_at = now() - interval '1 hour'",
    "message lost": """update document set state = 'pending', stage = 'fetched', due_at = now() - interval '1 hour',
        enqueued_at = now() - interval '1 hour'""",
    "lease forgotten": """update document set state = 'pending', stage = 'fetched', lease_token = gen_random_uuid(),
        lease_until = now() - interval '5 minutes', enqueued_at = now()""",
}


@pytest.mark.parametrize("kind", WAITING)
def test_forgotten_documents_get_a_message(
    kind: str, store: Store, omniscient: SQL, servers: embedded.Servers
) -> None:
    with redis.Redis.from_url(servers.broker_url) as broker:
        omniscient.execute(WAITING[kind])
        broker.delete(*CUTS)
        assert "3 " in store.mend("waiting documents")["detail"]
        assert sum(map(broker.llen, CUTS)) == 1


STUCK = {
    "document": """update document set state = 'pending', stage = 'fetched', due_at = now(), enqueued_at = now(),
        lease_token = gen_random_uuid(), lease_until = now() + interval '1 day'""",
    "source": "update source set sync_token = gen_random_uuid(), sync_lease_until = now() + interval '1 day'",
    "job": """insert into enrichment_job (id, tenant_id, project_id, request, state, lease_token, lease_until)
        select gen_random_uuid(), tenant_id, project_id, '{}', 'running', gen_random_uuid(), now() + interval '1 day'
        from source""",
}


@pytest.mark.parametrize("kind", STUCK)
def test_a_lease_that_no_worker_has_taken_is_found_and_ended(
    kind: str, store: Store, omniscient: SQL, servers: embedded.Servers
) -> None:
    """Else whoever looks for work waits for its end; no clock but the database's has a part in it."""
    with redis.Redis.from_url(servers.broker_url) as broker:
        omniscient.execute(STUCK[kind])
        broker.delete(*CUTS)
        assert store.mend("leases")["status"] == "error"
        if kind == "document":
            assert sum(map(broker.llen, CUTS)) == 1
            assert len(store.waiting(Stage.FETCHED)) == 3


def test_a_document_that_waits_for_its_time_is_not_forgotten(store: Store, omniscient: SQL) -> None:
    omniscient.execute(
        "update document set state = 'pending', stage = 'fetched', due_at = now() + interval '1 hour'"
    )
    assert store.examine()["waiting documents"]["status"] == "ok"


def test_a_document_of_a_long_load_that_waits_for_its_turn_is_not_forgotten(
    store: Store, omniscient: SQL
) -> None:
    omniscient.execute(
        "update document set state = 'pending', stage = 'chunked', due_at = now() - interval '1 hour'"
    )
    assert store.examine()["waiting documents"]["status"] == "warning"
    omniscient.execute(
        "update document set enqueued_at = now() where id = (select min(id::text)::uuid from document)"
    )
    assert store.examine()["waiting documents"]["status"] == "ok"


def test_a_queue_without_a_worker_is_an_error_and_syncs_that_wait_are_named(
    store: Store, omniscient: SQL
) -> None:
    omniscient.execute("update worker set seen_at = now() - interval '1 minute' where queues = 'embed'")
    omniscient.execute("delete from canary where queue = 'embed'")
    found = store.examine()["workers"]
    assert (found["status"], found["detail"]) == ("error", "no worker has served embed for 1 minute")
    one = next(iter(configured_sources(store.parts.settings).values()))
    sync.start_run(store.parts, one.tenant_id, one.id, trigger="manual")
    omniscient.execute("delete from worker")
    found = store.examine()["workers"]
    assert found["status"] == "error"
    assert "syncs of notes wait" in found["detail"]


def test_no_worker_at_all_is_a_warning_once_there_was_one(store: Store, omniscient: SQL) -> None:
    omniscient.execute("delete from worker")
    omniscient.execute("delete from canary")
    assert store.examine()["workers"]["status"] == "ok", "nothing was ever started, and nothing waits"
    omniscient.execute("insert into canary values ('embed', now() - interval '10 minutes')")
    assert store.examine()["workers"]["status"] == "warning"
    assert doctor.report(doctor.examine(store.parts))["ok"]


def test_a_queue_that_does_no_task_is_found(store: Store, omniscient: SQL) -> None:
    for queue in QUEUES:
        maintenance.record_canary(store.parts, queue)
    omniscient.execute("update canary set sung_at = now() - interval '10 minutes' where queue = 'embed'")
    omniscient.execute("update worker set started_at = now()")
    assert store.examine()["workers"]["status"] == "ok"  # its worker has only just started
    omniscient.execute("update worker set started_at = now() - interval '10 minutes'")
    found = store.examine()["workers"]
    assert found["status"] == "warning"
    assert found["detail"].startswith("embed did no task")


def test_dead_letters_and_held_deletions_are_warnings(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update document set state = 'dead' where external_id like '%tide.md'")
    omniscient.execute("""
        insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts, crash_count)
        select tenant_id, source_id, id, desired_version, 'fetched', 'E003', 'broken', 1, 0 from document
        where state = 'dead'""")
    omniscient.execute("update source set held = 40")
    found = store.examine()
    assert (found["dead letters"]["status"], found["dead letters"]["fix"]) == ("warning", "larder dead list")
    assert found["deletions to approve"]["status"] == "warning"
    assert "40 of notes" in found["deletions to approve"]["detail"]
    assert found["deletions to approve"]["fix"].endswith("larder sources release notes")
