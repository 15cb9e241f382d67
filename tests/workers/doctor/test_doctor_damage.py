"""The doctor: a healthy store gives nothing to complain about, and each kind of damage is found and mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.conftest import Copy
from tests.ledger import Ledger
from tests.workers.doctor.installation import SQL, Store, beat, opened
from workers.app.doctor import doctor
from workers.local import embedded


def test_a_healthy_store_gives_nothing_to_complain_about(store: Store) -> None:
    findings = store.examine()
    assert {name: f for name, f in findings.items() if f["status"] != "ok" and name != "disk"} == {}
    assert [f["check"] for f in findings.values()] == [c.name for c in doctor.CHECKS]
    assert all(f["fix"] == "" and f["repaired"] is False for n, f in findings.items() if n != "disk")


def test_an_empty_store_is_healthy_too(
    tmp_path: Path, copy_of: Copy, pristine: str, servers: embedded.Servers
) -> None:
    with copy_of(pristine) as nothing, opened(tmp_path, nothing, servers) as runtime:
        empty = Store(runtime, tmp_path)
        empty.write("one.md")
        beat(runtime)
        bad = {name for name, f in empty.examine().items() if f["status"] != "ok"}
        assert bad <= {"disk"}


def test_repair_of_a_healthy_store_changes_nothing(store: Store, omniscient: SQL) -> None:
    def everything() -> dict[str, Any]:
        tables = omniscient.execute("""
            select relname from pg_class where relnamespace = 'public'::regnamespace
            and relkind in ('r', 'p') and not relispartition""").fetchall()
        return {
            t: omniscient.execute(
                f"select md5(string_agg(x::text, '' order by x::text)) from {t} x"
            ).fetchone()
            for (t,) in tables
        }

    before = everything()
    assert not any(f["repaired"] for f in store.examine(repair=True).values())
    assert everything() == before


# What is planted, by the check that must find it; each can be mended at once.
def leave_old_text(ledger: Ledger) -> None:
    for one in ledger.documents():
        ledger.bodies.add(document_id=one["id"], tenant_id=one["tenant_id"], version=0, body="x")


def stage(ledger: Ledger) -> None:
    chunk = {"version": 1, "ord": 0, "content": "x", "context": "", "hash": b"\0"}
    for one in ledger.documents():
        ledger.staged_chunks.add(document_id=one["id"], tenant_id=one["tenant_id"], **chunk)


PLANTED: dict[str, Callable[[Ledger], object]] = {
    "orphaned chunks": lambda of: of.documents.set("%tide.md", deleted=True, state="done"),
    "staged chunks": stage,
    "old texts": leave_old_text,
}


@pytest.mark.parametrize("check", PLANTED)
def test_planted_damage_is_found_and_mended(check: str, store: Store, ledger: Ledger) -> None:
    PLANTED[check](ledger)
    store.mend(check)


def test_chunks_whose_document_is_gone_are_removed_and_no_others(store: Store, ledger: Ledger) -> None:
    before = len(ledger.chunks())
    ledger.documents.clear("%tide.md")
    found = store.mend("orphaned chunks")
    left = ledger.chunks.values("document_id")
    assert set(left) == set(ledger.documents.values("id"))
    assert found["detail"].startswith(f"{before - len(left)} chunks")


DAMAGE: dict[str, Callable[[Ledger], object]] = {
    "lost": lambda of: of.chunks.clear({"ord": 0}),
    "all lost": lambda of: of.chunks.clear(),
    "doubled": lambda of: [of.chunks.add(**{**one, "ord": 100}) for one in of.chunks(ord=0)],
    "moved": lambda of: of.chunks.set({"ord": 0}, ord=100),
    "stale": lambda of: of.chunks.set(version=0),
    "mixed": lambda of: of.chunks.set({"ord": 1}, version=0),
    "without a vector": lambda of: of.chunks.set({"ord": 1}, embedding=None),
    "from a later version": lambda of: of.chunks.set({"ord": 1}, version=9),
    "never indexed in the wanted version": lambda of: of.documents.set(desired_version=5),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_documents_without_exactly_their_chunks_are_indexed_again(
    kind: str, store: Store, ledger: Ledger
) -> None:
    # Versions of bodies follow, so that only the chunks are wrong.
    DAMAGE[kind](ledger)
    for one in ledger.documents():
        ledger.bodies.set(one["id"], version=one["desired_version"])
    before = contents(ledger)
    found = store.mend("document chunks")
    assert found["status"] == "error"
    assert "3 documents" in found["detail"]
    store.work()
    after = contents(ledger)
    assert store.examine()["document chunks"]["status"] == "ok"
    assert {name: len(texts) for name, texts in after.items()} == dict(
        ledger.documents.values("external_id", "chunk_count")
    )
    assert all(len(set(texts)) == len(texts) > 1 for texts in after.values())
    assert set(after) >= set(before)
    assert set(ledger.documents.values("state")) == {"done"}
    assert all(one["indexed_version"] == one["desired_version"] for one in ledger.documents())


def contents(ledger: Ledger) -> dict[str, list[str]]:
    """Texts of the chunks by document."""
    found = {
        name: ledger.chunks.values("content", document_id=key)
        for key, name in ledger.documents.values("id", "external_id")
    }
    return {name: texts for name, texts in found.items() if texts}


def test_only_the_damaged_document_is_indexed_again(store: Store, ledger: Ledger) -> None:
    crane = ledger.documents.one(external_id="docs/crane.md")
    ledger.chunks.clear({"ord": 0, "document_id": crane["id"]})
    store.mend("document chunks")
    assert ledger.documents.values("external_id", state="pending") == ["docs/crane.md"]


def test_without_the_text_a_damaged_document_cannot_be_mended(store: Store, ledger: Ledger) -> None:
    ledger.chunks.clear({"ord": 0})
    ledger.bodies.clear()
    found = store.examine(repair=True)["document chunks"]
    assert (found["status"], found["repaired"]) == ("error", False)
    assert "larder index --force" in found["fix"]
    assert not doctor.report(doctor.examine(store.runtime))["ok"]


def test_documents_of_another_tenant_are_looked_at_too(store: Store, ledger: Ledger) -> None:
    other = ledger.tenants.add(id=uuid4(), name="other")
    ledger.chunks.set({"ord": 0}, tenant_id=other["id"])
    findings = store.examine()
    assert findings["orphaned chunks"]["status"] == "error"
    assert findings["document chunks"]["status"] == "error"
    assert "berth.md" in findings["document chunks"]["detail"]


def test_a_document_not_yet_in_the_new_index_is_judged_by_the_old_one(store: Store, ledger: Ledger) -> None:
    ledger.indexes.add(
        provider="hashing",
        model="hashing-8",
        dimensions=8,
        chunker="structure",
        pipeline_version="x",
        status="building",
    )
    assert store.examine()["document chunks"]["status"] == "ok"


def test_without_an_active_index_the_owner_is_told_how_to_have_one(
    store: Store, omniscient: SQL, ledger: Ledger
) -> None:
    ledger.indexes.set(status="building")
    found = store.examine(repair=True)["search index"]
    assert (found["status"], found["repaired"]) == ("error", False)
    omniscient.execute(found["fix"].removeprefix("as the owner: "))
    assert store.examine()["search index"]["status"] == "ok"


def test_no_finding_shows_a_text(store: Store, ledger: Ledger) -> None:
    ledger.chunks.clear({"ord": 0})
    said = str(store.examine(repair=True))
    assert "document chunks" in said
    assert "quay" not in said
