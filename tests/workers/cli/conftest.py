"""Three documents, and the commands that search them and explain."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pipeline.database.engine import Database
from pipeline.documents import Kind, SourceType
from pipeline.ledger import tenant_id
from tests.conftest import Addresses
from tests.pipeline.stores.corpus import Corpus
from tests.workers.cli.asking import CONFIG, Run
from workers import runtime as runtimes
from workers.cli.commands import app
from workers.local import embedded


def stocked(database: Database) -> Corpus:
    made = Corpus(database, tenant_id("acme"))
    made.put(
        "The kestrel hovers over fields. " * 30 + "It nests in church towers and old barns.",
        "Kestrels eat voles.",
        title="Birds [red]of prey[/red]: the kestrel",
        context="Birds of prey",
        source="wiki",
        kind=Kind.DECISION,
        source_type=SourceType.CONFLUENCE,
        url="https://wiki.example/x?id=1",
        tags=("birds", "adr"),
        metadata={
            "team": "red",
            "points": 3,
            "source_path": "docs/birds/kestrel.md",
            "title": "not this one",
        },
        created_at=datetime(2025, 1, 1, tzinfo=UTC),
        updated_at=datetime(2025, 6, 1, 12, tzinfo=UTC),
    )
    made.put(
        "Otters swim. A kestrel does not.",
        title="Otters",
        source="tracker",
        kind=Kind.WORK,
        source_type=SourceType.PBI,
        updated_at=datetime(2024, 3, 1, tzinfo=UTC),
        metadata={"team": "blue", "source_path": "items/otters.md"},
    )
    made.put(
        "Kilns fire clay, and no kestrel.",
        title="Ovens and kilns",
        source="wiki",
        metadata={"source_path": "docs/ovens.md"},
    )
    for key in made.documents.values("id"):
        made.documents.set({"id": key}, chunk_count=len(made.chunks(document_id=key)))
    made.count()
    return made


@pytest.fixture
def corpus(database: Database) -> Corpus:
    """Three documents of the tenant `acme`."""
    return stocked(database)


@pytest.fixture(scope="module")
def shared_corpus(shared_database: Database) -> Corpus:
    """The same three, for tests that only read."""
    return stocked(shared_database)


def variables(addresses: Addresses, servers: embedded.Servers) -> dict[str, str]:
    return {
        "LARDER_DATABASE_URL": addresses.app,
        "LARDER_CONTROL_DATABASE_URL": addresses.control,
        "LARDER_ADMIN_DATABASE_URL": addresses.admin,
        "LARDER_BROKER_URL": servers.broker_url,
    }


@pytest.fixture
def environment(addresses: Addresses, servers: embedded.Servers) -> dict[str, str]:
    """Variables that lead a command to this test's servers."""
    return variables(addresses, servers)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Run:
    """`run("search", "words", ...)`: the command on this test's database, on a screen of 80 columns."""
    return runner(tmp_path, monkeypatch, environment)


@pytest.fixture
def run_shared(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shared_corpus: Corpus,
    shared_addresses: Addresses,
    servers: embedded.Servers,
) -> Run:
    """The same on the database that the tests of a file share, which holds the `shared_depot`."""
    return runner(tmp_path, monkeypatch, variables(shared_addresses, servers))


def runner(
    folder: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], config: str = CONFIG
) -> Run:
    """Runs commands in the folder."""
    monkeypatch.chdir(folder)
    (folder / "larder.yaml").write_text(config, encoding="utf-8")
    usual = {"COLUMNS": "80", **environment, "LARDER_CONFIG": "larder.yaml"}

    def invoke(*args: str, **env: str) -> Result:
        result = CliRunner().invoke(app, list(args), env={**usual, **env})
        for runtime in runtimes._current:
            runtime.close()
        runtimes._current.clear()
        return result

    return invoke
