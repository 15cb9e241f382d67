"""Each alarm of docs/operations.md that the doctor can see is made by hand, and found by it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.ledger import audit
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer
from tests.ledger import Ledger, ago, ahead
from tests.workers.doctor.installation import Store
from workers.app.health import judgement

PAGE = Path(__file__).parents[3] / "docs/operations.md"
NO_FOLDER = {"item": "docs", "reason": "there is no folder docs", "outcome": "failed"}
MADE: dict[str, tuple[str, Callable[[Ledger], object]]] = {
    "no worker serves a queue": (
        "workers",
        lambda of: (of.workers.set({"queues": "embed"}, seen_at=ago(minutes=2)), of.canaries.clear()),
    ),
    "a worker is silent": ("workers", lambda of: of.add_worker("w", "embed", pid=2, seen_at=ago(seconds=45))),
    "oldest due over ten minutes": (
        "waiting documents",
        lambda of: of.documents.set(state="pending", stage="fetched", due_at=ago(hours=1)),
    ),
    "a folder is not there": (
        "sources",
        lambda of: of.add_run(state="finished", walk=True, finished_at=ago(), problems=[NO_FOLDER]),
    ),
    "a source is failing": (
        "sources",
        lambda of: of.sources.set(failures=1, last_error="the source says no"),
    ),
    "a source is empty, items are excluded": (
        "sources",
        lambda of: (of.documents.set(state="done", deleted=True), of.sources.set(left_out={"odd": 3})),
    ),
    "embedding paused": (
        "embedding",
        lambda of: of.holds.add(fingerprint="f", code="E002", error="refused", probe_at=ago()),
    ),
    "embedding waiting": (
        "embedding",
        lambda of: of.documents.set(
            state="pending", stage="chunked", waits=1, last_error="used up", due_at=ahead(hours=1)
        ),
    ),
    "dead letters": ("dead letters", lambda of: of.bury("docs/tide.md")),
    "deletions wait for approval": ("deletions to approve", lambda of: of.sources.set(held=3)),
    "a lease ends too late": ("leases", lambda of: of.sources.set(sync_lease_until=ahead(days=1))),
    "damaged documents": ("document chunks", lambda of: of.chunks.set({"ord": 1}, embedding=None)),
    "audit chain broken": ("audit chain", lambda of: of.audit.set(actor="somebody else")),
}
"""What is seen -> the check that finds it, and how it is made."""
ELSEWHERE = {
    "database away",  # test_doctor_servers
    "the database says nothing",  # test_slow_database
    "database slow",
    "database or broker refuses us",  # test_refused, test_health
    "broker away",  # test_doctor_servers
    "workers of another database use the same number of this Valkey",  # test_shared_broker
    "disk nearly full",  # below
    "Flower lets everybody in",
    "documents are *noted*",  # nothing is wrong
}


def test_each_alarm_of_the_page_is_one_that_is_tried() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("\n## Alarms\n")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| ([^|]+?) \|", table, re.MULTILINE)[1:]
    assert set(rows) == MADE.keys() | ELSEWHERE


@pytest.mark.parametrize("alarm", MADE)
def test_an_alarm_is_found_by_the_doctor(alarm: str, store: Store, ledger: Ledger) -> None:
    check, making = MADE[alarm]
    own = store.runtime.settings.tenant_id
    with store.runtime.database.tenant(own) as connection:
        audit.append(connection, own, "pause", "notes", by="ann")
    assert store.examine()[check]["status"] == "ok"
    making(ledger)
    found = store.examine()[check]
    assert found["status"] != "ok", found
    assert found["fix"]


def test_a_disk_without_room_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judgement, "LEAST_DISK_BYTES", 10**18)
    assert store.examine()["disk"]["status"] == "error"


class Flower(FakeServer):
    """One that asks nobody, or everybody, who they are."""

    open = True

    def answer(self, _seen: Seen) -> Answer:
        return Answer(status=200 if self.open else 401, json={})


def test_a_flower_without_a_password_is_found(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with Flower() as server:
        port = int(server.address.rpartition(":")[2])
        told = store.runtime.rag.flower.model_copy(update={"port": port})
        monkeypatch.setattr(store.runtime, "rag", store.runtime.rag.model_copy(update={"flower": told}))
        found = store.examine()["flower"]
        assert (found["status"], "LARDER_FLOWER_AUTH" in found["fix"]) == ("error", True)
        server.open = False
        assert store.examine()["flower"]["status"] == "ok"
