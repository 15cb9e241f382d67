"""The doctor: rights, schema, audit chain, and servers that are away or set up wrongly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import redis

from pipeline.ledger import audit
from tests.conftest import Addresses
from tests.workers.doctor.installation import SQL, Store
from workers.app.doctor import doctor, server_checks
from workers.local import embedded
from workers.runtime import Runtime

AUDITS = {
    "changed": "update audit set subject = 'other' where seq = 2",
    "changed with its own hash": """
        update audit set detail = '{"a": 2}', hash = encode(sha256(convert_to(jsonb_build_array(prev_hash, tenant_id,
        seq, extract(epoch from at), actor, action, subject, '{"a": 2}'::jsonb)::text, 'UTF8')), 'hex') where seq = 2""",
    "taken out": "delete from audit where seq = 2",
    "first taken out": "delete from audit where seq = 1",
    "put in": """
        insert into audit (tenant_id, seq, actor, action, subject, prev_hash, hash)
        select tenant_id, 4, actor, action, subject, hash, 'made up' from audit where seq = 3""",
}


@pytest.mark.parametrize("kind", AUDITS)
def test_a_broken_audit_chain_is_found(kind: str, store: Store, omniscient: SQL) -> None:
    for subject in ("one", "two", "three"):
        with store.runtime.database.tenant(store.runtime.settings.tenant_id) as connection:
            tenant = store.runtime.settings.tenant_id
            audit.append(connection, tenant, "test", subject, {"a": 1, "b": [None, "ä"]}, by="somebody")
    assert store.examine()["audit chain"]["detail"] == "3 entries fit"
    omniscient.execute(AUDITS[kind])
    found = store.examine(repair=True)["audit chain"]
    assert (found["status"], found["repaired"]) == ("error", False)


def test_a_table_without_row_security_is_found(store: Store, omniscient: SQL) -> None:
    for change in ("no force", "disable"):
        omniscient.execute(f"alter table chunk_stage {change} row level security")
        found = store.examine()["row security"]
        assert found["status"] == "error"
        assert "chunk_stage" in found["detail"]
        for statement in found["fix"].removeprefix("as the owner: ").split("; "):
            omniscient.execute(statement)
        assert store.examine()["row security"]["status"] == "ok"


@pytest.fixture
def mighty(omniscient: SQL) -> Iterator[Callable[[str], None]]:
    """Gives larder_app a right it must not have, for the length of a test."""
    given: list[str] = []

    def give(right: str) -> None:
        given.append(right)
        omniscient.execute(f"alter role larder_app {right}")

    yield give
    for right in given:
        omniscient.execute(f"alter role larder_app no{right}")


@pytest.mark.parametrize("right", ["bypassrls", "superuser"])
def test_a_role_that_sees_every_tenant_is_found(
    right: str, store: Store, mighty: Callable[[str], None]
) -> None:
    mighty(right)
    found = store.examine()["roles"]
    assert found["status"] == "error"
    assert "larder_app" in found["detail"]


def test_a_login_that_is_mightier_than_its_role_is_a_warning(
    elsewhere: Callable[..., Runtime], addresses: Addresses, server_folder: Path
) -> None:
    password = embedded.Credentials.of_folder(server_folder).postgres
    server = urlsplit(addresses.app).netloc.rpartition("@")[2]
    url = f"postgresql://postgres:{password}@{server}/{addresses.name}"
    found = server_checks.roles(elsewhere(database=url, control=url))
    assert found.status == "warning"
    assert "postgres" in found.detail


def test_an_old_schema_stops_the_other_questions_to_the_database(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update alembic_version set version_num = '000'")
    found = store.examine()
    assert found["schema"]["status"] == "error"
    assert found["schema"]["fix"] == "larder migrate"
    assert "document chunks" not in found
    assert "broker" in found


def test_without_a_database_the_rest_is_still_looked_at(
    store: Store, elsewhere: Callable[..., Runtime]
) -> None:
    nowhere = "postgresql://larder_app:x@127.0.0.1:1/none"
    found = doctor.report(doctor.examine(elsewhere(database=nowhere, control=nowhere), repair=True))
    assert found["ok"] is False
    assert found["version"] == version("larder")
    rest = ["configuration", "broker", "heartbeats", "flower", "model", "reranker", "sources", "disk"]
    assert [f["check"] for f in found["findings"]] == ["database", *rest]
    assert "does not answer" in found["findings"][0]["detail"]


def test_a_broker_that_is_away_is_an_error(elsewhere: Callable[..., Runtime]) -> None:
    found = server_checks.message_broker(elsewhere(broker="redis://127.0.0.1:1/0"))
    assert found.status == "error"


def test_a_broker_that_drops_messages_is_an_error(store: Store, servers: embedded.Servers) -> None:
    with redis.Redis.from_url(servers.broker_url) as client:
        used = client.info("memory")["used_memory"]
        try:
            client.config_set("maxmemory-policy", "allkeys-lru")
            assert "allkeys-lru" in store.examine()["broker"]["detail"]
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", int(used / 0.75))
            assert store.examine()["broker"]["status"] == "warning"
        finally:
            client.config_set("maxmemory", 0)
            client.config_set("maxmemory-policy", "noeviction")
    assert store.examine()["broker"]["status"] == "ok"
