"""The doctor: work that nobody does, and what waits for a person."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
import redis

from pipeline.ledger import Stage
from tests.ledger import Ledger, ago, ahead
from tests.workers.doctor.installation import Store
from workers.app.doctor import doctor
from workers.app.ingestion import maintenance, sync
from workers.app.ingestion.sync import configured_sources
from workers.local import embedded
from workers.queue.broker import lists_of
from workers.queue.celeryconfig import QUEUES

CUTS = lists_of("ingest")

WAITING: dict[str, dict[str, Any]] = {
    "never sent": {"due_at": ago(hours=1)},
    "message lost": {"due_at": ago(hours=1), "enqueued_at": ago(hours=1)},
    "lease forgotten": {"lease_token": uuid4(), "lease_until": ago(minutes=5), "enqueued_at": ago()},
}


@pytest.mark.parametrize("kind", WAITING)
def test_forgotten_documents_get_a_message(
    kind: str, store: Store, ledger: Ledger, servers: embedded.Servers
) -> None:
    with redis.Redis.from_url(servers.broker_url) as broker:
        ledger.documents.set(state="pending", stage="fetched", **WAITING[kind])
        broker.delete(*CUTS)
        assert "3 " in store.mend("waiting documents")["detail"]
        assert sum(map(broker.llen, CUTS)) == 1


def stick(ledger: Ledger, kind: str) -> None:
    """Have a lease that no worker has taken."""
    lease = {"lease_token": uuid4(), "lease_until": ahead(days=1)}
    if kind == "document":
        ledger.documents.set(state="pending", stage="fetched", due_at=ago(), enqueued_at=ago(), **lease)
    elif kind == "source":
        ledger.sources.set(sync_token=lease["lease_token"], sync_lease_until=lease["lease_until"])
    else:
        ledger.add_job("notes", state="running", **lease)


@pytest.mark.parametrize("kind", ["document", "source", "job"])
def test_a_lease_that_no_worker_has_taken_is_found_and_ended(
    kind: str, store: Store, ledger: Ledger, servers: embedded.Servers
) -> None:
    """Else whoever looks for work waits for its end; no clock but the database's has a part in it."""
    with redis.Redis.from_url(servers.broker_url) as broker:
        stick(ledger, kind)
        broker.delete(*CUTS)
        assert store.mend("leases")["status"] == "error"
        if kind == "document":
            assert sum(map(broker.llen, CUTS)) == 1
            assert len(store.waiting(Stage.FETCHED)) == 3


def test_a_document_that_waits_for_its_time_is_not_forgotten(store: Store, ledger: Ledger) -> None:
    ledger.documents.set(state="pending", stage="fetched", due_at=ahead(hours=1))
    assert store.examine()["waiting documents"]["status"] == "ok"


def test_a_document_of_a_long_load_that_waits_for_its_turn_is_not_forgotten(
    store: Store, ledger: Ledger
) -> None:
    ledger.documents.set(state="pending", stage="chunked", due_at=ago(hours=1))
    assert store.examine()["waiting documents"]["status"] == "warning"
    ledger.documents.set(ledger.documents()[0]["external_id"], enqueued_at=ago())
    assert store.examine()["waiting documents"]["status"] == "ok"


def test_a_queue_without_a_worker_is_an_error_and_syncs_that_wait_are_named(
    store: Store, ledger: Ledger
) -> None:
    ledger.workers.set({"queues": "embed"}, seen_at=ago(minutes=1))
    ledger.canaries.clear("embed")
    found = store.examine()["workers"]
    assert (found["status"], found["detail"]) == ("error", "no worker has served embed for 1 minute")
    one = next(iter(configured_sources(store.runtime.settings).values()))
    sync.start_run(store.runtime, one.tenant_id, one.id, trigger="manual")
    ledger.workers.clear()
    found = store.examine()["workers"]
    assert found["status"] == "error"
    assert "syncs of notes wait" in found["detail"]


def test_no_worker_at_all_is_a_warning_once_there_was_one(store: Store, ledger: Ledger) -> None:
    ledger.workers.clear()
    ledger.canaries.clear()
    assert store.examine()["workers"]["status"] == "ok", "nothing was ever started, and nothing waits"
    ledger.canaries.add(queue="embed", sung_at=ago(minutes=10))
    assert store.examine()["workers"]["status"] == "warning"
    assert doctor.report(doctor.examine(store.runtime))["ok"]


def test_a_queue_that_does_no_task_is_found(store: Store, ledger: Ledger) -> None:
    for queue in QUEUES:
        maintenance.record_canary(store.runtime, queue)
    ledger.canaries.set("embed", sung_at=ago(minutes=10))
    ledger.workers.set(started_at=ago())
    assert store.examine()["workers"]["status"] == "ok"  # its worker has only just started
    ledger.workers.set(started_at=ago(minutes=10))
    found = store.examine()["workers"]
    assert found["status"] == "warning"
    assert found["detail"].startswith("embed did no task")


def test_dead_letters_and_held_deletions_are_warnings(store: Store, ledger: Ledger) -> None:
    ledger.bury("docs/tide.md")
    ledger.sources.set(held=40)
    found = store.examine()
    assert (found["dead letters"]["status"], found["dead letters"]["fix"]) == ("warning", "larder dead list")
    assert found["deletions to approve"]["status"] == "warning"
    assert "40 of notes" in found["deletions to approve"]["detail"]
    assert found["deletions to approve"]["fix"].endswith("larder sources release notes")
