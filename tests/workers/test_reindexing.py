"""`larder reindex` on the real database and broker; the queue's work is done in place."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import text

from pipeline.embedding import Embedder
from pipeline.errors import ConfigurationError, EmbedderRefused
from pipeline.ledger import Item, Stage, due_work, work
from pipeline.search import SearchRequest
from pipeline.search.chunk_store import SearchIndex, indexes
from tests.ledger import Ledger, ago, of_connection
from tests.workers.indexed import Build, index, write_pages
from workers.app import explain, operations, reindex, search
from workers.app import status as statuses
from workers.app.doctor import doctor
from workers.app.ingestion import steps, sync
from workers.app.ingestion.sync import configured_sources
from workers.runtime import Runtime

SQL = psycopg.Connection[Any]


@pytest.fixture
def build(build: Build) -> Build:
    """With chunks so small that a page has several."""
    return partial(build, max_size=200)


@pytest.fixture
def runtime(build: Build, tmp_path: Path) -> Runtime:
    """Three pages are searchable; the configuration asks for another model by now."""
    write_pages(tmp_path, 3)
    index(build(384))
    return build(256)


def fill(runtime: Runtime) -> None:
    """What the pump and the embed worker do, until nothing is due in any index."""
    with runtime.database.control() as connection:
        of_connection(connection).work_items.set({"lease_token": None}, enqueued_at=None)
        found = indexes(connection)
    with runtime.database.control() as connection:
        due = due_work.choose_fills(connection, steps.limits(runtime.rag))
    for part in due:
        (one,) = (index for index in found if index.id == part.index)
        assert steps.indexer(runtime, part.tenant_id, one).fill(part.tenant_id, part.items).requeued == []


def find(runtime: Runtime, question: str) -> tuple[str, list[str]]:
    """The model that answers, and titles."""
    found = search.search(runtime, runtime.settings.tenant_id, SearchRequest(text=question), by="ann")
    return found.model, [hit.document.title for hit in found.hits]


def states(runtime: Runtime) -> dict[str, str]:
    with runtime.database.control() as connection:
        return {i.model: i.status for i in indexes(connection)}


def test_another_model_in_the_configuration_is_told_everywhere(runtime: Runtime) -> None:
    said = reindex.status(runtime)
    assert (said["matches"], said["may_switch"], len(said["indexes"])) == (False, False, 1)
    sentence = "configured is hashing hashing-256, 256 dimensions; the active index is hashing hashing-384"
    assert sentence in said["next"]
    assert "run larder reindex" in said["next"]
    assert any(sentence in step["detail"] for step in statuses.status(runtime)["next"])
    assert sentence in reindex.mismatch_notice(runtime), (
        "what `larder up` and every worker say at their start"
    )
    found = {r.check: r for r in doctor.examine(runtime)}["search index"]
    assert (found.status, sentence in found.detail) == ("warning", True)
    assert find(runtime, "Paragraph 1 of page 2")[0] == "hashing-384", "searches go on in the old model"


@pytest.mark.req("001-011")
def test_there_and_back_again(runtime: Runtime, ledger: Ledger) -> None:
    begun = reindex.begin(runtime)
    assert begun["begun"]
    assert reindex.begin(runtime) == begun, "repeatable"
    with pytest.raises(ConfigurationError, match="lacks 3 of 3 documents"):
        reindex.switch(runtime)
    built = ledger.indexes.values("keyword_built", status="building")
    assert built == [False], "it refuses before it builds anything or waits"
    assert states(runtime) == {"hashing-384": "active", "hashing-256": "building"}
    fill(runtime)
    assert "larder reindex switch" in {step["fix"] for step in statuses.status(runtime)["next"]}
    before = find(runtime, "Paragraph 1 of page 2")
    done = reindex.switch(runtime)
    assert (done["kept"], done["active"]) == (1, begun["index"])
    assert states(runtime) == {"hashing-384": "retired", "hashing-256": "active"}
    assert find(runtime, "Paragraph 1 of page 2") == ("hashing-256", before[1])
    assert reindex.status(runtime)["matches"]
    assert reindex.begin(runtime)["begun"] is False
    back = reindex.switch(runtime, "retired")
    assert (back["active"], back["kept"]) == (1, begun["index"])
    assert find(runtime, "Paragraph 1 of page 2") == before
    audited = [one["action"] for one in ledger.audit() if one["actor"] != "ann"]
    assert audited == ["reindex", "reindex.switch", "reindex.rollback"]


def test_after_a_switch_the_next_sync_indexes_what_changed_and_nothing_else(
    runtime: Runtime, tmp_path: Path, ledger: Ledger
) -> None:
    reindex.begin(runtime)
    fill(runtime)
    reindex.switch(runtime)
    (tmp_path / "docs" / "page-1.md").write_text("# Page 1\n\nA new text about herons.\n")
    index(runtime)
    generations = dict(ledger.documents.values("external_id", "generation"))
    assert generations == {"docs/page-0.md": 1, "docs/page-1.md": 2, "docs/page-2.md": 1}
    assert find(runtime, "herons")[1][0] == "Page 1"
    with pytest.raises(ConfigurationError, match="lacks 1 of 3"):
        reindex.switch(runtime, "retired")
    fill(runtime)
    reindex.switch(runtime, "retired")
    assert find(runtime, "herons")[1][0] == "Page 1"


def test_a_worker_of_before_the_switch_keeps_each_vector_under_its_own_models_name(
    runtime: Runtime, tmp_path: Path, ledger: Ledger
) -> None:
    reindex.begin(runtime)
    fill(runtime)
    (tmp_path / "docs" / "page-1.md").write_text("# Page 1\n\nA new text about herons.\n")
    (one,) = configured_sources(runtime.settings).values()
    run = sync.start_run(runtime, one.tenant_id, one.id, trigger="manual")
    assert run is not None
    assert sync.sync(runtime, one.tenant_id, one.id, run)
    before = steps.indexer(runtime, one.tenant_id)
    waiting = ledger.documents.values("id", "desired_version", state="pending")
    items = [Item(*row) for row in waiting]
    assert before.chunk(one.tenant_id, items).ready
    reindex.switch(runtime, force=True)
    before.embed(one.tenant_id, items)
    kept = {
        (model, len(json.loads(vector))) for model, vector in ledger.cached_vectors.values("model", "vector")
    }
    assert kept == {("hashing-256", 256), ("hashing-384", 384)}


def test_force_takes_an_index_as_it_is_and_it_fills_up_later(runtime: Runtime) -> None:
    reindex.begin(runtime)
    reindex.switch(runtime, force=True)
    assert find(runtime, "Paragraph 1 of page 2") == ("hashing-256", [])
    fill(runtime)
    assert len(find(runtime, "Paragraph 1 of page 2")[1]) == 3, "no answer is kept from before"


def test_everything_is_built_and_counted_before_the_switch(
    build: Build, runtime: Runtime, ledger: Ledger
) -> None:
    eager = build(256, retrieval="{exactBelow: 3}")
    reindex.begin(eager)
    fill(eager)
    reindex.switch(eager)
    row = ledger.indexes.one(id=2)
    assert row["indexed_rows"] > 0
    assert row["keyword_built"]
    assert ledger.statistics.values("chunks", index_id=2) == [len(ledger.chunks(index_id=2))]


def test_another_chunker_changes_counts_with_the_switch(
    build: Build, runtime: Runtime, ledger: Ledger
) -> None:
    same = build(384)
    reindex.begin(same, chunker="fixed")
    fill(same)
    reindex.switch(same)
    cut = Counter(ledger.chunks.values("document_id", index_id=2))
    assert dict(ledger.documents.values("id", "chunk_count")) == cut
    assert {r.check: r.status for r in doctor.examine(same)}["document chunks"] == "ok"
    with pytest.raises(ConfigurationError, match="does not say how to reach gemini/gemini-embedding-001"):
        reindex.begin(same, provider="gemini")
    with pytest.raises(ConfigurationError, match="use one of") as told:
        reindex.begin(same, chunker="scissors")
    assert "structure" in str(told.value)


def test_one_is_kept_and_one_is_filled_at_most(runtime: Runtime, build: Build) -> None:
    reindex.begin(runtime)
    with pytest.raises(ConfigurationError, match="is being filled"):
        reindex.begin(runtime, dimensions=128)
    fill(runtime)
    reindex.switch(runtime)
    with pytest.raises(ConfigurationError, match="kept up to date"):
        reindex.begin(build(384))
    reindex.begin(runtime, dimensions=128)
    with pytest.raises(ConfigurationError, match="there are several"):
        reindex.index_to_drop(runtime, None)
    fill(runtime)
    reindex.switch(runtime)
    assert states(runtime) == {"hashing-256": "retired", "hashing-128": "active"}


def test_a_kept_index_is_dropped_by_hand_or_by_age(runtime: Runtime, ledger: Ledger) -> None:
    reindex.begin(runtime)
    fill(runtime)
    reindex.switch(runtime)
    reindex.drop_old(runtime)
    assert len(states(runtime)) == 2, "a week has not passed"
    ledger.indexes.set({"status": "retired"}, retired_at=ago(days=8))
    reindex.drop_old(runtime)
    assert states(runtime) == {"hashing-256": "active"}
    for table in (ledger.chunks, ledger.indexed, ledger.lexemes, ledger.statistics):
        assert set(table.values("index_id")) == {2}
    assert ledger.audit.values("actor", action="reindex.drop") == ["upkeep"]
    with pytest.raises(ConfigurationError, match="no earlier index"):
        reindex.switch(runtime, "retired")
    with pytest.raises(ConfigurationError, match="no such index"):
        reindex.index_to_drop(runtime, 2)


def test_without_documents_there_is_nothing_to_begin(build: Build) -> None:
    with pytest.raises(ConfigurationError, match="nothing is indexed yet"):
        reindex.begin(build())


def test_clear_empties_every_index(runtime: Runtime, omniscient: SQL) -> None:
    reindex.begin(runtime)
    fill(runtime)
    assert operations.clear(runtime, runtime.settings.tenant_id, "docs")["documents"] == 3
    for table in ("chunk", "index_document"):
        assert omniscient.execute(f"select count(*) from {table}").fetchone() == (0,)


def test_a_new_model_that_is_refused_holds_up_nothing_else(
    runtime: Runtime, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_parts: Runtime, _index: SearchIndex) -> Embedder:
        raise EmbedderRefused("the key is wrong")

    reindex.begin(runtime)
    monkeypatch.setattr(Runtime, "embedder_of", refused)
    fill(runtime)
    assert "the key is wrong" in reindex.status(runtime)["indexes"][1]["last_error"]
    assert len(ledger.holds()) == 0


def test_explain_tells_what_each_index_holds(runtime: Runtime) -> None:
    reindex.begin(runtime)
    fill(runtime)
    found = explain.find(runtime, runtime.settings.tenant_id, "page-1.md")["indexes"]
    assert [(i["model"], i["status"], i["version"]) for i in found] == [
        ("hashing-384", "active", 1),
        ("hashing-256", "building", 1),
    ]


def test_the_doctor_finds_and_fills_what_a_kept_index_lost(runtime: Runtime, ledger: Ledger) -> None:
    reindex.begin(runtime)
    fill(runtime)
    ledger.chunks.clear({"index_id": 2, "ord": 0})
    found = {r.check: r for r in doctor.examine(runtime)}
    assert found["other indexes"].status == "error"
    assert found["document chunks"].status == "ok"
    mended = {r.check: r for r in doctor.examine(runtime, repair=True)}["other indexes"]
    assert mended.repaired
    fill(runtime)
    assert reindex.status(runtime)["indexes"][1]["missing"] == 0
    assert {r.check: r.status for r in doctor.examine(runtime)}["other indexes"] == "ok"


def test_clear_waits_for_whoever_fills_and_leaves_nothing_behind(
    runtime: Runtime, omniscient: SQL, ledger: Ledger
) -> None:
    reindex.begin(runtime)
    with runtime.database.control() as connection:
        new = indexes(connection)[-1]
        (due,) = due_work.choose_fills(connection, steps.limits(runtime.rag))
    clearer = threading.Thread(target=operations.clear, args=(runtime, due.tenant_id, "docs"))
    with runtime.database.tenant(due.tenant_id) as connection:
        claim = work.claim(connection, due.tenant_id, Stage.FETCHED, due.items, lease=60, index=new.id)
    with runtime.database.tenant(due.tenant_id) as connection:
        assert len(work.still_ours(connection, claim)) == 3
        clearer.start()
        connection.execute(
            text("""insert into chunk select :new, tenant_id, project_id, document_id, ord, version, content, context,
                    hash, lexemes, length, subvector(embedding\\:\\:vector, 1, 256)\\:\\:halfvec from chunk"""),
            {"new": new.id},
        )
        waiting = "select count(*) > 0 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        end = time.monotonic() + 60
        while omniscient.execute(waiting).fetchone() != (True,):
            assert time.monotonic() < end
            time.sleep(0.02)
    clearer.join()
    assert len(ledger.chunks()) == 0
