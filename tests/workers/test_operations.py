"""What an operator does with sources and dead letters, and the figures of the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pipeline.errors import ConfigurationError, StoreError, StoreUnavailable
from pipeline.ledger import project_id, sources, tenant_id
from tests.conftest import Addresses
from tests.ledger import Ledger, ago, ahead
from tests.workers.indexed import index
from tests.workers.installed import installed, without_messages
from workers import runtime as runtimes
from workers.app import operations, status
from workers.app.ingestion import maintenance, sync
from workers.local import embedded
from workers.queue import broker
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime

CONFIG = """
rag:
  tenant: acme
  project: app
  embedding: {provider: hashing, dimensions: 64}
  sources:
    - {name: docs, type: markdown, paths: ["docs/*.md"]}
    - {name: notes, type: text, paths: ["notes/*.txt"], tenant: other}
"""
SQL = psycopg.Connection[Any]


@pytest.fixture
def runtime(tmp_path: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "one.md").write_text("# One\n\nText.", encoding="utf-8")
    with installed(tmp_path, addresses, servers, CONFIG) as made:
        runtimes.use(made)
        yield made
    without_messages(servers)


def audited(ledger: Ledger) -> list[tuple[str, str, str]]:
    """(tenant, action, subject) in order."""
    names = dict(ledger.tenants.values("id", "name"))
    return [(names[row["tenant_id"]], row["action"], row["subject"]) for row in ledger.audit()]


def bury(ledger: Ledger, source: str, items: list[str]) -> list[int]:
    """Dead documents of a source with their letters; the numbers of the letters."""
    made = []
    for item in items:
        ledger.add_document(item, source, state="dead", stage="chunked", attempts=8, last_error="no")
        made.append(ledger.add_letter(item, code="E002", reason="the model is away")["id"])
    return made


# Sources ------------------------------------------------------------------------------------------


def test_configured_sources_are_known_before_the_first_sync(runtime: Runtime) -> None:
    listed = operations.listing(runtime)
    assert [(s["name"], s["tenant"], s["type"], s["state"]) for s in listed] == [
        ("docs", "acme", "markdown", "active"),
        ("notes", "other", "text", "active"),
    ]
    assert all(s["last_sync"] is None and s["held"] == 0 for s in listed)


def test_an_unknown_name_lists_the_known_ones(runtime: Runtime) -> None:
    for ask in (operations.find, operations.check):
        with pytest.raises(ConfigurationError) as caught:
            ask(runtime, ["nots"])
        assert "'nots'" in caught.value.message
        assert "docs, notes" in caught.value.fix
        assert caught.value.exit_code == 2


def test_a_name_that_two_tenants_have_needs_its_tenant(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    ledger.sources.set("notes", name="docs")
    with pytest.raises(ConfigurationError) as caught:
        operations.pause(runtime, "docs", paused=True)
    assert "acme/docs" in caught.value.fix
    assert "other/docs" in caught.value.fix
    assert operations.pause(runtime, "other/docs", paused=True)["tenant"] == "other"
    paused = [one["tenant_id"] for one in ledger.sources() if one["paused_at"]]
    assert paused == [tenant_id("other")]


def test_pause_and_resume(runtime: Runtime, ledger: Ledger) -> None:
    assert operations.pause(runtime, "notes", paused=True) == {
        "source": "notes",
        "tenant": "other",
        "paused": True,
    }
    assert [s["state"] for s in operations.listing(runtime)] == ["active", "paused"]
    with runtime.database.control() as connection:
        assert "notes" not in [row.name for row in sources.due(connection)]
    operations.pause(runtime, "notes", paused=False)
    assert [s["state"] for s in operations.listing(runtime)] == ["active", "active"]
    with runtime.database.control() as connection:
        assert "notes" in [row.name for row in sources.due(connection)]
    assert audited(ledger) == [("other", "pause", "notes"), ("other", "resume", "notes")]


def test_release_lets_held_deletions_go_with_a_walk(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    ledger.sources.set("docs", held=30)
    done = operations.release(runtime, "docs")
    assert (done["source"], done["released"]) == ("docs", 30)
    runs = ledger.runs.values("id", "trigger", "walk")
    assert runs == [(done["run"], "reconcile", True)]
    source = ledger.sources.one(name="docs")
    assert (source["held"], source["released"]) == (0, 30)
    assert source["released_until"] > ahead(hours=23)
    assert audited(ledger) == [("acme", "release", "docs"), ("acme", "reconcile", "docs")]
    assert operations.release(runtime, "docs")["run"] is None  # one open run per source


@pytest.mark.usefixtures("broker")
def test_reconcile_starts_a_walk_of_all_sources_but_paused_and_removed_ones(
    runtime: Runtime, ledger: Ledger, servers: embedded.Servers
) -> None:
    operations.pause(runtime, "notes", paused=True)
    assert [r["source"] for r in operations.reconcile(runtime, [])] == ["docs"]
    assert [r["source"] for r in operations.reconcile(runtime, ["notes"])] == ["notes"]
    runs = ledger.runs.values("trigger", "walk")
    assert runs == [("reconcile", True)] * 2
    lengths = broker.lengths(servers.broker_url, QUEUES)
    assert lengths == {"control": 0, "ingest": 2, "embed": 0, "enrich": 0}


def test_a_source_that_is_no_longer_configured_is_not_synced(runtime: Runtime, ledger: Ledger) -> None:
    tenant = tenant_id("acme")
    project = project_id(tenant, "app")
    operations.known_sources(runtime)
    gone = sources.Registration(
        id=UUID(int=1), tenant_id=tenant, project_id=project, name="gone", kind="text", config_hash=""
    )
    with runtime.database.tenant(tenant) as connection:
        sources.register(connection, [gone])
    ledger.sources.set("gone", removed_at=ago())
    with runtime.database.tenant(tenant) as connection:
        sent = sources.Registration(
            **{**vars(gone), "id": UUID(int=2), "name": "upload:app", "kind": "upload", "origin": "upload"}
        )
        sources.register(connection, [sent])
    assert [r["source"] for r in operations.reconcile(runtime, [])] == ["docs", "notes"]
    assert {s["name"]: s["state"] for s in operations.listing(runtime)}["gone"] == "removed"
    with pytest.raises(ConfigurationError, match="no longer configured"):
        operations.reconcile(runtime, ["gone"])


def test_check_needs_no_server(runtime: Runtime) -> None:
    nowhere = runtimes.Addresses()
    found = operations.check(Runtime(runtime.settings, nowhere), [])
    assert {one["source"]: one["ok"] for one in found} == {"docs": True, "notes": False}
    bad = [f for f in found[1]["findings"] if not f["ok"]]
    assert bad
    assert all(f["fix"] for f in bad)
    assert [one["source"] for one in operations.check(runtime, ["docs"])] == ["docs"]


# Dead letters -------------------------------------------------------------------------------------


def test_replay_of_several_tenants_queues_exactly_the_chosen(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    bury(ledger, "docs", ["a.md", "b.md"])
    bury(ledger, "notes", ["c.txt"])
    chosen = [letter for letter in operations.dead_letters(runtime) if letter.item != "b.md"]
    assert {(letter.item, letter.tenant) for letter in chosen} == {("a.md", "acme"), ("c.txt", "other")}
    assert operations.replay(runtime, chosen) == {"replayed": ["a.md", "c.txt"], "skipped": []}
    states = dict(ledger.documents.values("external_id", "state"))
    assert states == {"a.md": "pending", "b.md": "dead", "c.txt": "pending"}
    assert {(t, a) for t, a, _ in audited(ledger)} == {("acme", "dead.replay"), ("other", "dead.replay")}
    assert operations.replay(runtime, chosen) == {"replayed": [], "skipped": ["a.md", "c.txt"]}
    assert len(audited(ledger)) == 2  # nothing was changed, nothing is noted


def test_replay_rings_the_bell(runtime: Runtime, ledger: Ledger, servers: embedded.Servers) -> None:
    operations.known_sources(runtime)
    bury(ledger, "docs", ["a.md"])
    operations.replay(runtime, operations.dead_letters(runtime))
    assert (broker.lengths(servers.broker_url, QUEUES) or {})["control"] == 1


def test_dead_letters_of_one_source(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    bury(ledger, "docs", ["a.md"])
    bury(ledger, "notes", ["c.txt"])
    assert [letter.item for letter in operations.dead_letters(runtime, "notes")] == ["c.txt"]
    with pytest.raises(ConfigurationError, match="no source is called"):
        operations.dead_letters(runtime, "nots")


def test_drop_takes_off_the_list_and_leaves_the_document_dead(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    first, second = bury(ledger, "docs", ["a.md", "b.md"])
    assert operations.drop(runtime, operations.dead_letters_by_id(runtime, [first])) == {"dropped": ["a.md"]}
    assert [letter.id for letter in operations.dead_letters(runtime)] == [second]
    assert {letter.id for letter in operations.dead_letters(runtime, settled=True)} == {first, second}
    assert ledger.documents.values("state", external_id="a.md") == ["dead"]
    assert [a for _, a, _ in audited(ledger)] == ["dead.drop"]


def test_an_unknown_letter_is_named(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    known = bury(ledger, "docs", ["a.md"])
    with pytest.raises(ConfigurationError, match="no dead letter 998, 999"):
        operations.dead_letters_by_id(runtime, [*known, 998, 999])


def test_what_is_audited_fits_the_chain(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    bury(ledger, "docs", ["ä.md"])
    operations.pause(runtime, "docs", paused=True)
    operations.replay(runtime, operations.dead_letters(runtime))
    rows = ledger.audit.values("actor", "detail", "prev_hash", "hash")
    assert all(actor.startswith("cli") for actor, *_ in rows)
    assert rows[1][1] == {"items": ["ä.md"]}
    assert rows[1][2] == rows[0][3]


# The screen ---------------------------------------------------------------------------------------


@pytest.mark.req("001-081", "001-011")
@pytest.mark.usefixtures("broker")
def test_status_has_the_promised_keys(runtime: Runtime, ledger: Ledger) -> None:
    operations.known_sources(runtime)
    bury(ledger, "docs", ["a.md"])
    maintenance.record_canary(runtime, "embed")
    found = status.status(runtime)
    assert {
        "sources",
        "backlog",
        "workers",
        "canaries",
        "index",
        "degradation_level",
        "database",
        "broker",
    } <= set(found)
    docs = found["sources"][0]
    promised = {
        *("name", "tenant", "type", "documents", "chunks", "pending", "dead", "hidden", "freshness_seconds"),
        *(
            "last_error",
            "next_sync",
            "paused",
            "held",
            "removed",
            "dead_letters",
            "problems",
            "last_run",
            "left_out",
            "noted",
        ),
        *("failures", "late_seconds", "running"),
    }
    assert promised == set(docs)
    assert docs["dead_letters"][0]["item"] == "a.md"
    assert found["backlog"]["queues"] == {"control": 0, "ingest": 0, "embed": 0, "enrich": 0}
    assert 0 <= found["canaries"]["embed"] < 60
    assert (found["database"], found["broker"], found["degradation_level"]) == ("ok", "ok", 0)


def test_status_without_a_broker_says_so_and_has_the_rest(runtime: Runtime) -> None:
    operations.known_sources(runtime)
    where = runtimes.Addresses(**{**vars(runtime.addresses), "broker": "redis://127.0.0.1:1/0"})
    away = Runtime(runtime.settings, where)
    found = status.status(away)
    away.database.close()
    assert (found["database"], found["broker"]) == ("ok", "error")
    assert found["backlog"]["queues"] is None
    assert [s["name"] for s in found["sources"]] == ["docs", "notes"]
    step = found["next"][0]
    assert (step["check"], step["status"], step["fix"]) == ("broker", "error", "larder doctor")


def test_status_without_a_database(runtime: Runtime) -> None:
    nowhere = "postgresql://larder_app:x@127.0.0.1:1/none"
    away = Runtime(
        runtime.settings,
        runtimes.Addresses(**{**vars(runtime.addresses), "database": nowhere, "control": nowhere}),
    )
    with pytest.raises(StoreError) as caught:
        status.status(away)
    found = status.without_database(away, caught.value)
    assert isinstance(caught.value, StoreUnavailable)
    assert (found["database"], found["broker"], found["sources"]) == ("error", "ok", [])
    assert "does not answer" in found["error"]["message"]


def test_facts_of_the_broker(servers: embedded.Servers) -> None:
    found = broker.facts(servers.broker_url)
    assert found is not None
    assert found.server.startswith("Valkey 9")
    assert (found.policy, found.limit) == ("noeviction", 0)
    assert found.used > 100_000


@pytest.mark.parametrize(
    "url", ["redis://127.0.0.1:1/0", "nonsense://", "redis+socket:///nowhere/redis.sock"]
)
def test_a_broker_that_cannot_be_asked_is_away(url: str) -> None:
    assert broker.facts(url) is None
    assert broker.lengths(url, QUEUES) is None


RENAMED = CONFIG.replace("name: docs", "name: handbook")


@pytest.mark.parametrize("walked", [False, True], ids=["before its first sync", "after it"])
def test_a_renamed_source_takes_its_documents_along(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, ledger: Ledger, walked: bool
) -> None:
    """`status` says that they come twice, and the command that ends it keeps ids, chunks and marks."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Text.", encoding="utf-8")
    for name in ("one", "two"):
        (tmp_path / "docs" / f"{name}.md").write_text(f"# {name}\n\nText.", encoding="utf-8")
    with installed(tmp_path, addresses, servers, CONFIG) as runtime:
        sync.register(runtime)
        index(runtime)

        def known() -> set[tuple[UUID, str]]:
            named = ledger.documents.values("id", "external_id")
            return {(key, name) for key, name in named if name.startswith("docs/")}

        ids = known()
        said = {"document_id": min(ids)[0], "query_hash": "k", "verdict": "useful"}
        ledger.feedback.add(tenant_id=tenant_id("acme"), **said)
    with installed(tmp_path, addresses, servers, RENAMED) as runtime:
        runtimes.use(runtime)
        sync.register(runtime)
        if walked:
            index(runtime)
        lines = " ".join(f"{step['detail']}: {step['fix']}" for step in status.status(runtime)["next"])
        assert (
            "are indexed twice, as those of handbook: larder sources rename docs handbook" in lines
        ) == walked

        done = operations.rename(runtime, "docs", "handbook")

        assert done["moved"] + done["both"] == 2
        assert [s["name"] for s in operations.listing(runtime)] == ["handbook", "notes"]
        assert "no longer configured" not in str(status.status(runtime)["next"])
        if not walked:
            assert known() == ids
        assert len(ledger.feedback()) == 1
        index(runtime)
        shown = ledger.documents.values("external_id", deleted=False, hidden=False)
        assert [name for name in shown if name.startswith("docs/")] == ["docs/one.md", "docs/two.md"]
        assert len(known()) == 2
        (run,) = operations.newest_runs(runtime, ["handbook"], 1)
        assert (run["listed"], run["unchanged"], run["texts_embedded"]) == (2, 2, 0)
        # A source that is called docs again has documents of its own.
        with installed(tmp_path, addresses, servers, CONFIG) as again:
            sync.register(again)
            index(again)
            assert len(ledger.documents()) == len(set(ledger.documents.values("id"))) == 5
            assert len(ledger.documents(source_id=ledger.sources.one(name="handbook")["id"])) == 2


def test_sources_that_no_configuration_has_are_forgotten_and_nothing_else(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, ledger: Ledger, runtime: Runtime
) -> None:
    """As a command leaves them that was called with a wrong LARDER_TENANT."""
    sync.register(runtime)
    index(runtime)
    with installed(tmp_path, addresses, servers, CONFIG.replace("acme", "wrong")) as made:
        runtimes.use(made)
        sync.register(made)
        index(made)
    bury(ledger, "notes", ["x.txt"])
    with installed(tmp_path, addresses, servers, CONFIG) as made:
        runtimes.use(made)
        with pytest.raises(ConfigurationError, match="acme/docs is configured"):
            operations.forgettable(made, ["wrong/docs", "acme/docs"])
        chosen = operations.forgettable(made, ["wrong/docs"])
        done = operations.forget(made, chosen)
        assert (done["forgotten"], done["documents"]) == (["wrong/docs"], 1)
        assert [(s["tenant"], s["name"]) for s in operations.listing(made)] == [
            ("acme", "docs"),
            ("other", "notes"),
        ]
        assert len(ledger.dead()) == 1
        left = Counter(ledger.documents.values("tenant_id", deleted=False))
        assert left == {tenant_id("acme"): 1, tenant_id("other"): 1}
    assert ("wrong", "forget", "docs") in audited(ledger)


def test_what_was_uploaded_is_not_forgotten_with_a_source(runtime: Runtime, ledger: Ledger) -> None:
    operations.listing(runtime)
    ledger.add_source("upload:app", "docs", kind="upload", origin="upload", config={})
    with pytest.raises(ConfigurationError, match="uploads"):
        operations.forgettable(runtime, ["upload:app"])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("docs", "docs", "cannot become"),
        ("docs", "notes", "cannot become"),
        ("docs", "x", "no source is called"),
    ],
)
def test_only_a_source_that_is_renamed_in_the_file_is_renamed(
    runtime: Runtime, old: str, new: str, why: str
) -> None:
    with pytest.raises(ConfigurationError, match=why):
        operations.rename(runtime, old, new)


def test_a_source_that_is_still_configured_keeps_what_it_brought(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers
) -> None:
    both = CONFIG.replace(
        "    - {name: notes", '    - {name: handbook, type: markdown, paths: ["x/*.md"]}\n    - {name: notes'
    )
    with (
        installed(tmp_path, addresses, servers, both) as made,
        pytest.raises(ConfigurationError, match="not called"),
    ):
        operations.rename(made, "docs", "handbook")
