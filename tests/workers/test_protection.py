"""What a configuration takes out of documents, and what a change of it does, from the file to the search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis
from cryptography.fernet import Fernet

from pipeline.access import Caller
from pipeline.ledger import documents
from pipeline.search import SearchRequest
from pipeline.search.records import Filter
from tests.conftest import Addresses
from tests.ledger import Ledger
from tests.workers.indexed import index
from tests.workers.installed import installed
from workers.app import operations
from workers.app.explain import find
from workers.app.ingestion import sync
from workers.app.search import document_as, search, search_as, to_json
from workers.local import embedded
from workers.local.embedded.locating import addresses as addresses_of
from workers.runtime import Runtime
from workers.settings import SettingsError, load

SQL = psycopg.Connection[Any]
Start = Callable[..., Runtime]
CONFIG = """
rag:
  embedding: {{provider: hashing}}
  retrieval: {{minSimilarity: 0}}
  {more}
  sources:
    - {{name: pages, type: markdown, paths: ['*.md'], autoIndex: false{source}}}
"""


@pytest.fixture
def start(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, broker: redis.Redis
) -> Iterator[Start]:
    """Starts this installation with more keys of the file and of its source, and indexes everything."""
    with ExitStack() as stack:

        def start(source: str = "", more: str = "", keys: str = "") -> Runtime:
            config = CONFIG.format(source=source, more=more)
            runtime = stack.enter_context(installed(tmp_path, addresses, servers, config))
            runtime.addresses = replace(runtime.addresses, encryption_keys=keys)
            sync.register(runtime)
            index(runtime)
            return runtime

        yield start


def held(omniscient: SQL, word: str) -> list[str]:
    """The tables that hold a word."""
    tables = (
        "document",
        "document_body",
        "chunk",
        "chunk_stage",
        "run_item",
        "source",
        "embedding_cache",
        "audit",
    )
    rows = {t: omniscient.execute(f"select t::text from {t} t where t::text like '%{word}%'") for t in tables}
    return [table for table, found in rows.items() if found.fetchone()]


@pytest.mark.req("001-113")
def test_nothing_of_the_database_holds_what_is_redacted_until_the_source_says_otherwise(
    start: Start, tmp_path: Path, omniscient: SQL, ledger: Ledger
) -> None:
    (tmp_path / "a.md").write_text("# Contact\n\nWrite to ann@corp.com, or log in with password=hunter2.\n")

    def version() -> Any:
        return ledger.documents.one()["desired_version"]

    start()
    assert held(omniscient, "Contact")
    assert held(omniscient, "corp.com") + held(omniscient, "hunter2") == []
    start()
    assert version() == 1
    start(", redact: [phone]")
    assert version() == 2
    assert "chunk" in held(omniscient, "corp.com")
    assert held(omniscient, "hunter2") == []


def levels(ledger: Ledger) -> dict[str, str]:
    return dict(ledger.documents.values("external_id", "security_level"))


@pytest.mark.req("001-114")
def test_changed_rules_hold_from_the_next_sync_and_first_for_who_sees_less(
    start: Start, tmp_path: Path, ledger: Ledger
) -> None:
    (tmp_path / "pay.md").write_text("---\ntags: [hr]\n---\n# Pay\n\nWho earns what.\n")
    (tmp_path / "plan.md").write_text("# Plan\n\nWho does what.\n")
    start()
    assert levels(ledger) == {"pay.md": "internal", "plan.md": "internal"}
    rules = "security: {levels: [{level: restricted, labels: [hr]}, {level: public, paths: ['**']}]}"
    runtime = start(more=rules)
    assert levels(ledger) == {"pay.md": "restricted", "plan.md": "public"}
    request = SearchRequest(
        text="plan earns", mode="keyword", filter=Filter(security_levels=("public", "internal"))
    )
    assert [
        hit.document.title for hit in search(runtime, runtime.settings.tenant_id, request, by="ann").hits
    ] == ["Plan"]
    before = ledger.documents.values("desired_version")
    start(more=rules)
    assert ledger.documents.values("desired_version") == before
    start(", securityLevel: confidential")
    assert levels(ledger) == {"pay.md": "confidential", "plan.md": "confidential"}


@pytest.mark.req("001-114")
def test_what_is_encrypted_is_shown_to_admins_and_operators_alone(
    start: Start, tmp_path: Path, omniscient: SQL
) -> None:
    (tmp_path / "a.md").write_text("---\nauthor: Ann Archer\n---\n# Kestrel\n\nIt hovers.\n")
    key = Fernet.generate_key().decode()
    runtime = start(more="security: {encrypt: [author]}", keys=key)
    assert held(omniscient, "Ann Archer") == []
    tenant = runtime.settings.tenant_id
    reader = Caller(tenant=tenant, tenant_name="default", subject="ben", projects=("*",))
    admin = replace(reader, permissions=frozenset({"admin"}))
    facts = find(runtime, tenant, "Kestrel")
    assert facts["metadata"]["author"] == "Ann Archer"
    assert document_as(runtime, admin, facts["id"])["metadata"]["author"] == "Ann Archer"
    assert not {"author", "encrypted"} & document_as(runtime, reader, facts["id"])["metadata"].keys()
    request = SearchRequest(text="kestrel", mode="keyword")
    (hit,) = to_json(runtime, tenant, search_as(runtime, admin, request))["results"]
    assert not {"author", "encrypted"} & hit["metadata"].keys()
    with runtime.database.tenant(tenant) as connection:
        (one,) = documents.corpus(connection)
        assert not {"author", "encrypted"} & one["metadata"].keys()
    without = start(more="security: {encrypt: [author]}")
    assert (
        find(without, tenant, "Kestrel")["metadata"]["encrypted"]
        == "no key of LARDER_ENCRYPTION_KEYS decrypts it"
    )


@pytest.mark.req("001-114")
def test_a_sync_without_a_key_says_so_and_stores_nothing(
    start: Start, tmp_path: Path, ledger: Ledger
) -> None:
    runtime = start(more="security: {encrypt: [author]}")
    (tmp_path / "a.md").write_text("---\nauthor: Ann Archer\n---\n# Kestrel\n\nIt hovers.\n")
    index(runtime)
    (said,) = [one["last_error"] for one in operations.listing(runtime)]
    assert "metadata are to be encrypted (author), and there is no key" in said
    assert "larder keys new" in said
    assert len(ledger.documents()) == 0


@pytest.mark.req("001-114")
def test_keys_come_from_a_file_and_the_embedded_one_stands_behind_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: embedded.Servers
) -> None:
    keys = f"{Fernet.generate_key().decode()},{Fernet.generate_key().decode()}"
    (tmp_path / "keys").write_text(f"{keys}\n")
    given = {"LARDER_ENCRYPTION_KEYS_FILE": str(tmp_path / "keys"), "LARDER_DATA": str(tmp_path)}
    monkeypatch.setattr(embedded, "find", lambda _data: servers)
    own = embedded.Credentials.of_folder(tmp_path).encryption
    assert addresses_of(load(None, given)).encryption_keys == f"{keys},{own}"
    urls = {"LARDER_DATABASE_URL": servers.database_url, "LARDER_BROKER_URL": servers.broker_url}
    assert addresses_of(load(None, given | urls)).encryption_keys == keys


@pytest.mark.parametrize("name", ["acl", "source_path", "search_language"])
def test_what_larder_itself_reads_cannot_be_encrypted(tmp_path: Path, name: str) -> None:
    (tmp_path / "larder.yaml").write_text(f"rag: {{security: {{encrypt: [author, {name}]}}}}\n")
    with pytest.raises(SettingsError, match="acl, search_language and source_path must stay readable"):
        load(tmp_path / "larder.yaml", {})


def test_a_level_that_does_not_exist_is_refused_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "larder.yaml"
    file.write_text(
        "rag:\n  security:\n    levels:\n      - level: secret\n      - {level: public, paths: ['../x']}\n"
    )
    with pytest.raises(SettingsError) as caught:
        load(file, {})
    first, second = str(caught.value).splitlines()[-2:]
    assert "larder.yaml:4" in first
    assert "one of public, internal, confidential, restricted" in first
    assert "larder.yaml:5" in second
    assert "leaves the source's root" in second
