"""Each alarm of docs/operations.md that the doctor can see is made by hand, and found by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pipeline.ledger import audit
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer
from tests.workers.doctor.installation import SQL, Store
from workers.app.health import judgement

PAGE = Path(__file__).parents[3] / "docs/operations.md"
MADE: dict[str, tuple[str, str]] = {
    "no worker serves a queue": (
        "workers",
        "update worker set seen_at = now() - interval '2 min' where queues = 'embed'; delete from canary",
    ),
    "a worker is silent": (
        "workers",
        "insert into worker (name, queues, host, pid, seen_at) values ('w', 'embed', 'h', 2, now() - interval '45 s')",
    ),
    "oldest due over ten minutes": (
        "waiting documents",
        "update document set state = 'pending', stage = 'fetched', due_at = now() - interval '1 hour'",
    ),
    "a folder is not there": (
        "sources",
        """insert into sync_run (tenant_id, source_id, trigger, state, walk, finished_at, problems)
           select tenant_id, id, 'manual', 'finished', true, now(),
                  '[{"item": "docs", "reason": "there is no folder docs", "outcome": "failed"}]' from source""",
    ),
    "a source is failing": ("sources", "update source set failures = 1, last_error = 'the source says no'"),
    "a source is empty, items are excluded": (
        "sources",
        "update document set state = 'done', deleted = true; update source set left_out = '{\"odd\": 3}'",
    ),
    "embedding paused": (
        "embedding",
        "insert into embedding_hold (fingerprint, code, error, probe_at) values ('f', 'E002', 'refused', now())",
    ),
    "embedding waiting": (
        "embedding",
        """update document set state = 'pending', stage = 'chunked', waits = 1, last_error = 'used up',
           due_at = now() + interval '1 hour'""",
    ),
    "dead letters": (
        "dead letters",
        """update document set state = 'dead' where external_id like '%tide.md';
           insert into dead_letter (tenant_id, source_id, document_id, version, stage, code, reason, attempts,
                                    crash_count)
           select tenant_id, source_id, id, desired_version, 'fetched', 'E003', 'broken', 1, 0 from document
           where state = 'dead'""",
    ),
    "deletions wait for approval": ("deletions to approve", "update source set held = 3"),
    "a lease ends too late": ("leases", "update source set sync_lease_until = now() + interval '1 day'"),
    "damaged documents": ("document chunks", "update chunk set embedding = null where ord = 1"),
    "audit chain broken": ("audit chain", "update audit set actor = 'somebody else'"),
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
def test_an_alarm_is_found_by_the_doctor(alarm: str, store: Store, omniscient: SQL) -> None:
    check, making = MADE[alarm]
    own = store.parts.settings.tenant_id
    with store.parts.database.tenant(own) as connection:
        audit.append(connection, own, "pause", "notes", by="ann")
    assert store.examine()[check]["status"] == "ok"
    omniscient.execute(making)
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
        told = store.parts.rag.flower.model_copy(update={"port": port})
        monkeypatch.setattr(store.parts, "rag", store.parts.rag.model_copy(update={"flower": told}))
        found = store.examine()["flower"]
        assert (found["status"], "LARDER_FLOWER_AUTH" in found["fix"]) == ("error", True)
        server.open = False
        assert store.examine()["flower"]["status"] == "ok"
