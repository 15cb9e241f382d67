"""What goes wrong with one source is told of that source: the pump and the other sources go on."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import redis

from pipeline.errors import SourceUnavailable
from pipeline.ledger import Item, admission, runs, sources
from tests.ledger import Ledger, ago
from tests.workers.indexed import Build, write_pages
from workers.app import operations, status
from workers.app.ingestion import pump, steps, sync, sync_now
from workers.app.ingestion.sync import configured_source
from workers.runtime import Runtime
from workers.settings import load

SQL = psycopg.Connection[Any]


def synced(runtime: Runtime) -> sources.SourceRow:
    one = configured_source(runtime.settings, runtime.rag.sources[0])
    with runtime.database.tenant(one.tenant_id) as connection:
        row = sources.get(connection, one.id)
    assert row is not None
    return row


@pytest.mark.parametrize(
    "strange", [lambda _: {"kind": "telepathy"}, lambda config: {"config": {**config, "depth": 7}}]
)
def test_a_row_of_a_newer_release_is_told_and_skipped_and_the_others_have_their_turn(
    build: Build, broker: redis.Redis, ledger: Ledger, strange: Callable[[Any], dict[str, Any]]
) -> None:
    runtime = build()
    row = synced(runtime)
    config = ledger.sources.one(id=row.id)["config"]
    given = {"kind": row.kind, "origin": "command", "config": config, "watch": True, "next_sync_at": ago()}
    ledger.add_source("newer", "docs", **given)
    ledger.sources.set("newer", **strange(config))
    ledger.sources.set("docs", next_sync_at=ago())
    for _ in range(3):
        pump.pump_once(runtime)
    names = [json.loads(message)["headers"]["task"] for message in broker.lrange("ingest", 0, -1)]
    assert names.count("larder.sync") == 1
    told = {s["name"]: s for s in operations.listing(runtime)}
    assert "does not understand" in told["newer"]["last_error"]
    assert "newer" in told["newer"]["last_error"]
    assert told["docs"]["last_error"] is None
    assert ledger.sources.one(name="newer")["failures"] == 1


def test_an_unexpected_error_in_a_slice_is_recorded_and_ends_the_run_after_a_few_tries(
    build: Build, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_pages(tmp_path, 1)
    runtime = build()
    row = synced(runtime)

    def fail(*_: object) -> None:
        raise ValueError("the secret text")

    monkeypatch.setattr(admission, "admit", fail)
    run = sync.start_run(runtime, row.tenant_id, row.id, trigger="manual")
    assert run is not None
    for tries in range(1, runtime.rag.queue.max_attempts + 1):
        assert sync.sync(runtime, row.tenant_id, row.id, run)
        with runtime.database.tenant(row.tenant_id) as connection:
            found = runs.get(connection, run)
        assert found is not None
        assert "ValueError" in str(found.error)
        assert (found.attempts == tries) == (found.finished_at is None)
    assert found is not None
    assert found.state == "failed"
    assert "ValueError" in str(synced(runtime).last_error)
    assert "secret" not in caplog.text + str(synced(runtime).last_error)


def test_who_cannot_walk_a_source_leaves_the_run_of_the_one_who_does_alone(
    build: Build, tmp_path: Any, ledger: Ledger
) -> None:
    """A message that was sent twice, to a worker with another file."""
    runtime = build()
    row = synced(runtime)
    run = sync.start_run(runtime, row.tenant_id, row.id, trigger="manual")
    assert run is not None
    with runtime.database.tenant(row.tenant_id) as connection:
        assert sources.claim(connection, row.id, lease=60)
    (tmp_path / "other.yaml").write_text("rag: {}")
    other = Runtime(load(tmp_path / "other.yaml", {}), runtime.addresses)
    assert sync.sync(other, row.tenant_id, row.id, run)
    other.close()
    found = ledger.runs.one()
    assert (found["state"], found["attempts"], found["error"]) == ("discovering", 0, None)
    assert found["due_at"] <= ago()


@pytest.mark.parametrize(
    "changes", [{"./docs/*.md": "./docs/page-0.md"}, {"name: docs": "name: newer"}], ids=["changed", "added"]
)
def test_a_worker_of_the_former_configuration_leaves_a_walk_to_those_of_the_new_one(
    build: Build, tmp_path: Any, ledger: Ledger, changes: dict[str, str]
) -> None:
    """One is replaced after the other, and the first that is new has the ledger know what is configured."""
    write_pages(tmp_path, 2)
    former = build()
    content = (tmp_path / "larder.yaml").read_text()
    for old, new in changes.items():
        content = content.replace(old, new)
    (tmp_path / "larder.yaml").write_text(content)
    runtime = Runtime(load(tmp_path / "larder.yaml", {}), former.addresses)
    try:
        sync.register(runtime)
        row = synced(runtime)
        run = sync.start_run(runtime, row.tenant_id, row.id, trigger="manual")
        assert run is not None
        assert sync.sync(former, row.tenant_id, row.id, run)
        (found,) = ledger.runs.values("state", "listed", "error")
        assert found is not None
        assert found[:2] == ("discovering", 0)
        assert "another configuration" in found[2]
        assert sync.sync(runtime, row.tenant_id, row.id, run)
    finally:
        runtime.close()
    (found,) = ledger.runs.values("state", "listed")
    assert found == ("processing", 1 if "./docs/*.md" in changes else 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ("rag: {tenant: other}", "no source docs of tenant default: they are those of tenant other"),
        ("rag: {sources: []}", "another configuration of source docs"),
    ],
)
def test_a_run_that_the_running_workers_cannot_do_is_told_and_the_others_are_waited_for(
    build: Build, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, ledger: Ledger, changes: str, words: str
) -> None:
    write_pages(tmp_path, 1)
    former = build()
    config = (tmp_path / "larder.yaml").read_text() + "    - {name: more, type: text, paths: ['x/*.txt']}\n"
    (tmp_path / "larder.yaml").write_text(config)
    runtime = Runtime(load(tmp_path / "larder.yaml", {}), former.addresses)
    sync.register(runtime)
    (tmp_path / "other.yaml").write_text(changes)
    working = Runtime(load(tmp_path / "other.yaml", {}), runtime.addresses)
    watched = sync_now.start(runtime, list(sync.configured_sources(runtime.settings).values()), force=False)
    docs, more = sorted(watched, key=lambda one: one.source.settings.name)
    monkeypatch.setattr(sync_now, "UNDOABLE_SECONDS", 0.5)
    looks = 0

    def show(_: object) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            assert sync.sync(working, docs.source.tenant_id, docs.source.id, docs.run.id)
        if docs.given_up:
            ledger.runs.set(more.run.id, state="finished", finished_at=ago())

    sync_now.wait(runtime, watched, show)
    found = sync_now.report(watched, 1.0)
    assert sync_now.exit_code(found) == 3
    ((error),) = found["stats"]["errors"]
    assert (error["source"], error["outcome"]) == ("docs", "failed")
    assert words in error["reason"]
    assert "larder reload where `larder up` runs them, else start each of them again" in error["reason"]
    other_tenant = "larder sources forget default/docs, and ask with LARDER_TENANT=other" in error["reason"]
    assert other_tenant == ("tenant" in changes)
    assert words in status.status(runtime)["sources"][0]["last_error"]
    assert sync_now.exit_code(sync_now.report([docs], 1.0)) == 1
    for one in (runtime, working):
        one.close()


def test_who_waits_hears_that_the_workers_are_gone(
    build: Build, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, ledger: Ledger
) -> None:
    write_pages(tmp_path, 1)
    runtime = build()
    ledger.add_worker("w", "ingest", seen_at=ago(minutes=2))
    watched = sync_now.start(runtime, list(sync.configured_sources(runtime.settings).values()), force=False)
    monkeypatch.setattr(sync_now, "UNSERVED_SECONDS", 0.5)
    with pytest.raises(SourceUnavailable, match="no worker serves ingest any more"):
        sync_now.wait(runtime, watched, lambda _: None)


def test_what_a_worker_of_the_former_configuration_cuts_is_cut_again_by_the_next_sync(
    build: Build, tmp_path: Any, ledger: Ledger
) -> None:
    """It took the documents of a walk by the new one; the next walk has to know."""
    write_pages(tmp_path, 1)
    former, runtime = build(max_size=1000), build(max_size=300)
    longest: list[int] = []
    for cutting in (former, runtime):
        row = synced(runtime)
        run = sync.start_run(runtime, row.tenant_id, row.id, trigger="manual")
        assert run is not None
        assert sync.sync(runtime, row.tenant_id, row.id, run)
        items = [Item(*one) for one in ledger.documents.values("id", "desired_version", state="pending")]
        assert items
        indexer = steps.indexer(cutting, row.tenant_id)
        for step in (indexer.chunk, indexer.embed, indexer.upsert):
            step(row.tenant_id, items)
        ledger.runs.set(state="finished", finished_at=ago())
        longest.append(max(map(len, ledger.chunks.values("content"))))
    assert longest[0] > 300 >= longest[1]
