"""larder stores: what it prints, and how it exits. What it does is shown by tests/workers/test_stores.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import redis
from typer.testing import CliRunner, Result

from pipeline.search.stores import Point
from tests.ledger import Ledger, of_tenant
from tests.pipeline.source_ledger import SourceLedger, document
from tests.workers.indexed import index, write_pages
from workers import runtime as runtimes
from workers.app import stores
from workers.app.ingestion import sync
from workers.cli.commands import app
from workers.local import embedded

CONFIG = """
rag:
  embedding: {provider: hashing, dimensions: 64}
  storage: {local: {type: faiss, path: vectors}}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}
"""
Run = Callable[..., Result]


@pytest.fixture
def run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    servers: embedded.Servers,
) -> Run:
    """`run("list")`: the command on this test's database, in a folder with FAISS beside pgvector."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "larder.yaml").write_text(CONFIG, encoding="utf-8")
    write_pages(tmp_path, 3)
    env = {**environment, "COLUMNS": "200"}

    def invoke(*args: str, group: str = "stores") -> Result:
        result = CliRunner().invoke(app, [group, *args], env=env)
        for runtime in runtimes._current:
            runtime.database.close()
        with redis.Redis.from_url(servers.broker_url) as client:
            client.flushdb()
        return result

    return invoke


def carry() -> None:
    """What a worker does, until the store is full."""
    (runtime,) = runtimes._current
    while stores.mirror(runtime, "faiss") or stores.listed(runtime)["stores"][0]["status"] != "ready":
        pass
    runtime.database.close()


def test_from_adding_a_store_to_dropping_it(run: Run) -> None:
    shown = run("list").stdout
    assert "faiss" in shown
    assert "not added" in shown
    assert "searches ask pgvector" in shown
    runtime = runtimes._current[0]
    sync.register(runtime)
    index(runtime)
    runtime.database.close()
    assert "faiss is being filled: larder stores list" in run("add", "faiss").stdout
    refused = run("switch", "faiss")
    assert (refused.exit_code, "is not filled (emptying)" in refused.stderr) == (2, True)
    carry()
    assert "back: larder stores switch pgvector" in run("switch", "faiss").stdout
    checked = run("check", "--questions", "2", "--json")
    (one,) = json.loads(checked.stdout)["stores"]
    assert (checked.exit_code, one["questions"], one["problems"], one["recall"]) == (0, 2, [], 1.0)
    assert "recall@10" in run("check").stdout
    assert "faiss is being filled anew: larder stores list" in run("rebuild", "faiss").stdout
    assert "back: larder stores switch faiss" in run("switch", "pgvector").stdout
    assert "this would empty faiss and forget it" in run("drop", "faiss").stdout
    assert run("drop", "faiss", "--yes").stdout == "dropped faiss\n"


def test_a_store_that_differs_or_is_not_there_is_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("check", "qdrant").exit_code == 2
    monkeypatch.setattr(stores, "differences", lambda *_: ["1 point for 2 chunks"])
    run("add", "faiss")
    carry()
    found = run("check")
    assert (found.exit_code, "1 point for 2 chunks" in found.stdout) == (1, True)


def test_a_search_shows_nothing_hidden_foreign_or_unknown_that_a_store_names(run: Run) -> None:
    run("list")
    (runtime,) = runtimes._current
    sync.register(runtime)
    index(runtime)
    runtime.database.close()
    run("add", "faiss")
    carry()
    run("switch", "faiss")
    (runtime,) = runtimes._current
    theirs, own = uuid4(), runtime.settings.tenant_id
    other = SourceLedger(runtime.database, theirs, uuid4())
    other.admit(document("theirs", "Paragraph of page theirs"))
    other.index()
    ours = Ledger(of_tenant(runtime.database, own)).documents
    (hidden,) = [one["id"] for one in ours() if one["external_id"].endswith("page-1.md")]
    store = runtime.mirror("faiss").store
    names = [f"{hidden}:0", f"{other.id('theirs')}:0", f"{uuid4()}:0", "no id"]
    store.put("chunks-1", [Point(id=one, vector=np.ones(64, dtype="f4"), tenant=own) for one in names])
    ours.set({"id": hidden}, hidden=True)
    runtime.database.close()
    found = json.loads(run("paragraph of page", "--json", group="search").stdout)
    assert found["store"] == "faiss"
    assert {one["metadata"]["title"] for one in found["results"]} == {"Page 0", "Page 2"}
