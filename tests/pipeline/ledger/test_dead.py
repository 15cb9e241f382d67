"""Dead letters: who is listed, and what replaying and dropping change."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from pipeline.database.engine import Database
from pipeline.ledger import Item, Stage, dead, document_id, project_id, source_id, sources, tenant_id, work
from tests.ledger import Ledger, ago, ahead

SQL = psycopg.Connection[Any]


class Graveyard:
    """A source of a tenant in which documents die."""

    def __init__(self, database: Database, tenant: str, name: str) -> None:
        self.database = database
        self.tenant = tenant_id(tenant)
        self.source = source_id(self.tenant, name)
        project = project_id(self.tenant, "app")
        row = sources.Registration(
            id=self.source, tenant_id=self.tenant, project_id=project, name=name, kind="text", config_hash=""
        )
        with database.tenant(self.tenant) as connection:
            sources.ensure_tenant(connection, self.tenant, tenant, project, "app")
            sources.register(connection, [row])
        self.project = project

    def document(self, item: str, ledger: Ledger, *, version: int = 1) -> UUID:
        """A document that waits for its first stage."""
        key = document_id(self.source, item)
        if ledger.documents(id=key):
            ledger.documents.set({"id": key}, desired_version=version, state="pending")
        else:
            ledger.add_document(item, self.source, desired_version=version)
        return key

    def kill(self, item: str, ledger: Ledger, *, version: int = 1) -> UUID:
        """A document that is given up on, the way the queue does it."""
        key = self.document(item, ledger, version=version)
        ledger.documents.set({"id": key}, state="dead", attempts=8, crash_count=2, last_error="no")
        with self.database.control() as connection:
            work.write_letters(connection, [key], code="E002", reason="the model refuses it")
        return key

    def listed(self, **how: Any) -> list[str]:
        with self.database.control() as connection:
            return [letter.item for letter in dead.listed(connection, **how)]


@pytest.fixture
def acme(database: Database) -> Graveyard:
    return Graveyard(database, "acme", "notes")


@pytest.fixture
def other(database: Database) -> Graveyard:
    return Graveyard(database, "other", "notes")


def test_letters_of_all_tenants_newest_first(acme: Graveyard, other: Graveyard, ledger: Ledger) -> None:
    acme.kill("a", ledger)
    other.kill("b", ledger)
    acme.kill("c", ledger)
    assert acme.listed() == ["c", "b", "a"]
    assert acme.listed(source_ids=[acme.source]) == ["c", "a"]
    assert acme.listed(source_ids=[]) == []
    with acme.database.control() as connection:
        assert dead.count(connection) == 3


def test_a_tenant_sees_its_own_only(acme: Graveyard, other: Graveyard, ledger: Ledger) -> None:
    acme.kill("a", ledger)
    other.kill("b", ledger)
    with acme.database.tenant(acme.tenant) as connection:
        assert [letter.item for letter in dead.listed(connection)] == ["a"]
        assert dead.replay(connection, [document_id(other.source, "b")]) == []


def test_the_most_of_each_source_are_shown(acme: Graveyard, other: Graveyard, ledger: Ledger) -> None:
    for item in ("a", "b", "c"):
        acme.kill(item, ledger)
    other.kill("z", ledger)
    assert acme.listed(most_per_source=2) == ["z", "c", "b"]


def test_a_letter_tells_everything_but_the_text(acme: Graveyard, ledger: Ledger) -> None:
    key = acme.kill("a", ledger, version=3)
    with acme.database.control() as connection:
        letter = dead.listed(connection)[0]
        assert dead.get(connection, letter.id) == letter
        assert dead.get(connection, letter.id + 1) is None
    said = letter.to_json()
    assert {
        name: said[name] for name in ("tenant", "source", "item", "version", "stage", "code", "reason")
    } == {
        "tenant": "acme",
        "source": "notes",
        "item": "a",
        "version": 3,
        "stage": "fetched",
        "code": "E002",
        "reason": "the model refuses it",
    }
    assert (said["attempts"], said["crash_count"], said["state"]) == (8, 2, "dead")
    assert said["document_id"] == str(key)
    assert said["at"].endswith("+00:00")
    assert (said["resolved_at"], said["resolution"]) == (None, None)
    assert "a title" not in str(said)


def test_a_letter_about_a_replaced_version_is_not_listed(acme: Graveyard, ledger: Ledger) -> None:
    acme.kill("a", ledger)
    acme.document("a", ledger, version=2)
    assert acme.listed() == []
    acme.kill("a", ledger, version=2)
    assert acme.listed() == ["a"]
    assert acme.listed(every=True) == ["a", "a"]


def test_replay_starts_a_dead_document_afresh(acme: Graveyard, ledger: Ledger) -> None:
    key = acme.kill("a", ledger, version=2)
    ledger.documents.set(stage="embedded", due_at=ahead(days=1), enqueued_at=ago())
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == [key]
    tries = ("attempts", "crash_count", "enqueued_at", "lease_token", "last_error", "desired_version")
    found = ledger.documents.values("state", "stage", *tries)
    assert found == [("pending", "fetched", 0, 0, None, None, None, 2)]
    assert ledger.documents.one()["due_at"] <= ago()
    letter = ledger.dead.one()
    assert letter["resolution"] == "replayed"
    assert letter["resolved_at"] is not None
    assert acme.listed() == []
    assert acme.listed(every=True) == ["a"]
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == []
        claim = work.claim(connection, acme.tenant, Stage.FETCHED, [Item(key, 2)], lease=60)
        assert claim.ids == [key]


@pytest.mark.parametrize(
    "state",
    [{"state": "pending"}, {"state": "done"}, {"deleted": True}, {"state": "done", "deleted": True}],
)
def test_only_dead_documents_are_replayed(
    state: dict[str, Any], acme: Graveyard, omniscient: SQL, ledger: Ledger
) -> None:
    key = acme.kill("a", ledger)
    ledger.documents.set(**state)
    before = omniscient.execute("select xmin from document").fetchone()
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == []
    assert omniscient.execute("select xmin from document").fetchone() == before
    assert ledger.dead.one()["resolved_at"] is None


def test_a_replayed_document_that_dies_again_has_a_new_letter(acme: Graveyard, ledger: Ledger) -> None:
    key = acme.kill("a", ledger)
    with acme.database.tenant(acme.tenant) as connection:
        dead.replay(connection, [key])
    acme.kill("a", ledger)
    assert acme.listed() == ["a"]
    with acme.database.control() as connection:
        told = [letter.resolution for letter in dead.of_document(connection, key)]
        assert told == [None, "replayed"]


def test_dropped_letters_leave_the_document_dead(acme: Graveyard, ledger: Ledger) -> None:
    key, kept = acme.kill("a", ledger), acme.kill("b", ledger)
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.drop(connection, [key]) == 1
        assert dead.drop(connection, [key]) == 0
    assert acme.listed() == ["b"]
    rows = ledger.documents.values("id", "state")
    assert rows == [(key, "dead"), (kept, "dead")]
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == [key]  # a person may change their mind
