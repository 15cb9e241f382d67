"""Dead letters: who is listed, and what replaying and dropping change."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import psycopg
import pytest

from pipeline.database.engine import Database
from pipeline.ledger import Item, Stage, dead, document_id, project_id, source_id, sources, tenant_id, work

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

    def document(self, item: str, omniscient: SQL, *, version: int = 1) -> UUID:
        """A document that waits for its first stage."""
        key = document_id(self.source, item)
        omniscient.execute(
            """
            insert into document (id, tenant_id, source_id, external_id, project_id, source_type, kind, title,
                                  desired_hash, pipeline_version, desired_version)
            values (%s, %s, %s, %s, %s, 'text', 'reference', 'a title', 'h', 'p', %s)
            on conflict (id) do update set desired_version = excluded.desired_version, state = 'pending'""",
            (key, self.tenant, self.source, item, self.project, version),
        )
        return key

    def kill(self, item: str, omniscient: SQL, *, version: int = 1) -> UUID:
        """A document that is given up on, the way the queue does it."""
        key = self.document(item, omniscient, version=version)
        with self.database.control() as connection:
            connection.exec_driver_sql(
                "update document set state = 'dead', attempts = 8, crash_count = 2, last_error = 'no' where id = %s",
                (key,),
            )
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


def test_letters_of_all_tenants_newest_first(acme: Graveyard, other: Graveyard, omniscient: SQL) -> None:
    acme.kill("a", omniscient)
    other.kill("b", omniscient)
    acme.kill("c", omniscient)
    assert acme.listed() == ["c", "b", "a"]
    assert acme.listed(source_ids=[acme.source]) == ["c", "a"]
    assert acme.listed(source_ids=[]) == []
    with acme.database.control() as connection:
        assert dead.count(connection) == 3


def test_a_tenant_sees_its_own_only(acme: Graveyard, other: Graveyard, omniscient: SQL) -> None:
    acme.kill("a", omniscient)
    other.kill("b", omniscient)
    with acme.database.tenant(acme.tenant) as connection:
        assert [letter.item for letter in dead.listed(connection)] == ["a"]
        assert dead.replay(connection, [document_id(other.source, "b")]) == []


def test_the_most_of_each_source_are_shown(acme: Graveyard, other: Graveyard, omniscient: SQL) -> None:
    for item in ("a", "b", "c"):
        acme.kill(item, omniscient)
    other.kill("z", omniscient)
    assert acme.listed(most_per_source=2) == ["z", "c", "b"]


def test_a_letter_tells_everything_but_the_text(acme: Graveyard, omniscient: SQL) -> None:
    key = acme.kill("a", omniscient, version=3)
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


def test_a_letter_about_a_replaced_version_is_not_listed(acme: Graveyard, omniscient: SQL) -> None:
    acme.kill("a", omniscient)
    acme.document("a", omniscient, version=2)
    assert acme.listed() == []
    acme.kill("a", omniscient, version=2)
    assert acme.listed() == ["a"]
    assert acme.listed(every=True) == ["a", "a"]


def test_replay_starts_a_dead_document_afresh(acme: Graveyard, omniscient: SQL) -> None:
    key = acme.kill("a", omniscient, version=2)
    omniscient.execute(
        "update document set stage = 'embedded', due_at = now() + interval '1 day', enqueued_at = now()"
    )
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == [key]
    row = omniscient.execute(
        """select state, stage, attempts, crash_count, due_at <= now(), enqueued_at, lease_token, last_error,
        desired_version from document"""
    ).fetchone()
    assert row == ("pending", "fetched", 0, 0, True, None, None, None, 2)
    letter = omniscient.execute("select resolution, resolved_at is not null from dead_letter").fetchone()
    assert letter == ("replayed", True)
    assert acme.listed() == []
    assert acme.listed(every=True) == ["a"]
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == []
        claim = work.claim(connection, acme.tenant, Stage.FETCHED, [Item(key, 2)], lease=60)
        assert claim.ids == [key]


@pytest.mark.parametrize(
    "state", ["state = 'pending'", "state = 'done'", "deleted = true", "state = 'done', deleted = true"]
)
def test_only_dead_documents_are_replayed(state: str, acme: Graveyard, omniscient: SQL) -> None:
    key = acme.kill("a", omniscient)
    omniscient.execute(f"update document set {state}")
    before = omniscient.execute("select xmin from document").fetchone()
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == []
    assert omniscient.execute("select xmin from document").fetchone() == before
    assert omniscient.execute("select resolved_at from dead_letter").fetchone() == (None,)


def test_a_replayed_document_that_dies_again_has_a_new_letter(acme: Graveyard, omniscient: SQL) -> None:
    key = acme.kill("a", omniscient)
    with acme.database.tenant(acme.tenant) as connection:
        dead.replay(connection, [key])
    acme.kill("a", omniscient)
    assert acme.listed() == ["a"]
    with acme.database.control() as connection:
        told = [letter.resolution for letter in dead.of_document(connection, key)]
        assert told == [None, "replayed"]


def test_dropped_letters_leave_the_document_dead(acme: Graveyard, omniscient: SQL) -> None:
    key, kept = acme.kill("a", omniscient), acme.kill("b", omniscient)
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.drop(connection, [key]) == 1
        assert dead.drop(connection, [key]) == 0
    assert acme.listed() == ["b"]
    rows = omniscient.execute("select id, state from document order by external_id").fetchall()
    assert rows == [(key, "dead"), (kept, "dead")]
    with acme.database.tenant(acme.tenant) as connection:
        assert dead.replay(connection, [key]) == [key]  # a person may change their mind
