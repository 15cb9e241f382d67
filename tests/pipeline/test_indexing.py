"""The three steps on a real database: what comes out, and what becomes of it when something goes wrong between."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.documents import Chunk, Kind
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ingest.steps import centroid
from pipeline.ledger import Stage
from tests.ledger import ago
from tests.pipeline.picky import Picky, run_item, through
from tests.pipeline.source_ledger import DIMENSIONS, SourceLedger, document, paragraphs


class TestTheWay:
    @pytest.mark.req("002-002")
    def test_a_batch_ends_searchable(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a", paragraphs(3, "one")), document("b", paragraphs(2, "two")), run=run)
        items, indexer = notes.items(), notes.indexer()
        chunked = indexer.chunk(notes.tenant, items)
        assert (chunked.stage, sorted(i.document_id for i in chunked.ready)) == (
            Stage.CHUNKED,
            sorted(i.document_id for i in items),
        )
        assert chunked.sizes == {notes.id("a"): 3, notes.id("b"): 2}
        embedded = indexer.embed(notes.tenant, chunked.ready)
        assert (embedded.stage, len(embedded.ready), embedded.requeued) == (Stage.EMBEDDED, 2, [])
        done = indexer.upsert(notes.tenant, embedded.ready)
        assert (done.ready, done.requeued) == ([], [])
        assert [c.split(" filler")[0] for c in notes.contents("a")] == ["one 0", "one 1", "one 2"]
        notes.close_run(run)
        row = notes.run(run)
        assert (row.indexed, row.chunks, row.texts_embedded, row.texts_reused) == (2, 5, 5, 0)

    @pytest.mark.req("001-118")
    def test_every_chunk_carries_its_tenant_project_and_version(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(2)))
        notes.index()
        rows = notes.chunks.values("tenant_id", "project_id", "version")
        assert rows == [(notes.tenant, notes.project, 1)] * 2

    def test_vectors_are_those_of_the_text_with_its_context(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(2)))
        notes.index()
        rows = notes.chunks()
        texts = [Chunk(ord=0, content=r["content"], context=r["context"]).embedding_text for r in rows]
        kept = np.array([r["embedding"].to_numpy() for r in rows], dtype=np.float32)
        assert np.allclose(kept, HashingEmbedder(DIMENSIONS).embed_documents(texts), atol=0.005)

    def test_an_empty_document_ends_done_without_chunks(self, notes: SourceLedger) -> None:
        notes.admit(document("empty", "  \n\n "))
        notes.index()
        row = notes.row("empty")
        assert (row["state"], row["chunk_count"]) == ("done", 0)
        assert notes.indexed.values("version", "chunk_count", "centroid") == [(1, 0, None)]
        assert run_item(notes, "empty")["outcome"] == "done"

    def test_what_is_no_prose_is_stored_and_not_searchable(self, notes: SourceLedger) -> None:
        body = "<!-- how to write\n\nthis -->\n# Guide\n\nWords of it.\n\n## Notes\n\n_No response_\n"
        notes.admit(document("a", body))
        notes.index()
        assert notes.contents("a") == ["# Guide\n\nWords of it."]
        assert notes.bodies.one(document_id=notes.id("a"))["body"] == body

    def test_of_nothing_but_leftovers_a_work_item_keeps_its_title(self, notes: SourceLedger) -> None:
        body = "Reproducible: Always\n\n<!-- describe -->\n"
        notes.admit(document("docs", body), document("work", body, kind=Kind.WORK))
        notes.index()
        assert [notes.row(name)["state"] for name in ("docs", "work")] == ["done", "done"]
        assert (notes.contents("docs"), notes.contents("work")) == ([], ["Title of work"])

    def test_a_document_that_became_empty_loses_its_chunks(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)))
        notes.index()
        notes.admit(document("a", ""))
        notes.index()
        assert (notes.contents("a"), notes.row("a")["chunk_count"]) == ([], 0)

    def test_a_huge_document_goes_through(self, notes: SourceLedger) -> None:
        notes.embedder = HashingEmbedder(DIMENSIONS)
        notes.admit(document("huge", paragraphs(2000)))
        notes.index()
        assert notes.row("huge")["chunk_count"] == 2000 == len(notes.contents("huge"))

    def test_what_was_staged_is_gone_at_the_end(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)))
        notes.index()
        assert notes.staged_chunks() == []

    def test_messages_about_nothing_do_nothing(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.index()
        items = notes.items("a")
        before = notes.row("a")
        notes.index(items)
        notes.index([])
        assert notes.row("a") == before

    def test_the_centroid_is_the_mean_direction(self) -> None:
        made = centroid(np.array([[1, 0], [0, 1]], dtype=np.float32))
        assert made is not None
        assert np.allclose(made.to_numpy(), [0.7071, 0.7071], atol=0.001)
        assert centroid(np.array([[1, 0], [-1, 0]], dtype=np.float32)) is None
        assert centroid(np.zeros((0, 2), dtype=np.float32)) is None


@pytest.mark.req("002-011")
class TestChangedDocuments:
    def test_unchanged_chunks_keep_their_rows(self, notes: SourceLedger) -> None:
        """They learn the new version, and no index has to be touched for it: neither place nor vector moves."""
        parts = paragraphs(4).split("\n\n")
        notes.admit(document("a", "\n\n".join(parts)))
        notes.index()
        first = notes.chunks()
        parts[2] = "another third part " + "filler " * 12
        notes.admit(document("a", "\n\n".join(parts)))
        run = max(notes.run_items.values("run_id"))
        notes.embedder = embedder = Picky()
        notes.index()
        second = notes.chunks()
        assert [r["version"] for r in second] == [2] * 4
        assert [r["ord"] for r, s in zip(first, second, strict=True) if r["content"] != s["content"]] == [2]
        assert [r["embedding"] == s["embedding"] for r, s in zip(first, second, strict=True)].count(True) == 3
        assert len(embedder.seen) == 1
        item = notes.run_items(run_id=run)[0]
        assert (item["chunks"], item["chunks_written"], item["chunks_kept"]) == (4, 1, 3)
        assert (item["texts_embedded"], item["texts_reused"]) == (1, 3)

    def test_the_same_chunks_again_are_updated_in_place(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(2)))
        notes.index()
        notes.admit(document("a", paragraphs(2)), force=True)
        notes.embedder = embedder = Picky()
        notes.index()
        assert embedder.calls == 0
        item = run_item(notes, "a")
        assert (item["chunks_written"], item["chunks_kept"], item["texts_reused"]) == (0, 2, 2)
        assert notes.row("a")["generation"] == 2

    def test_shorter_documents_leave_nothing_behind(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(5)))
        notes.index()
        notes.admit(document("a", paragraphs(2)))
        notes.index()
        assert len(notes.contents("a")) == 2


class TestTheCache:
    @pytest.mark.req("001-010", "001-097")
    def test_a_second_document_with_the_same_text_costs_nothing(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3), title="Same"))
        notes.index()
        notes.admit(document("b", paragraphs(3), title="Same"))
        notes.embedder = embedder = Picky()
        notes.index()
        assert embedder.calls == 0
        assert (run_item(notes, "b")["texts_embedded"], run_item(notes, "b")["texts_reused"]) == (0, 3)

    def test_what_is_of_use_again_is_not_the_longest_unused(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3), title="Same"))
        notes.index()
        notes.cached_vectors.set(used_at=ago(days=3))
        notes.admit(document("b", paragraphs(2), title="Same"))
        notes.index()
        assert sum(used_at > ago(days=1) for used_at in notes.cached_vectors.values("used_at")) == 2

    def test_a_text_that_a_batch_holds_twice_is_embedded_once(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(2), title="Same"), document("b", paragraphs(2), title="Same"))
        notes.embedder = embedder = Picky()
        notes.index()
        assert len(embedder.seen) == 2
        assert notes.texts_counted() == (2, 2)

    def test_an_emptied_cache_is_refilled_from_the_documents_own_chunks(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(4)))
        notes.index()
        notes.cached_vectors.clear()
        notes.admit(document("a", paragraphs(4) + "\n\nOne more part."))
        notes.embedder = embedder = Picky()
        notes.index()
        assert len(embedder.seen) == 1
        assert notes.row("a")["state"] == "done"

    def test_vectors_that_vanish_before_the_upsert_are_made_again(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)), document("empty", ""))
        indexer = through(notes, "upsert")
        notes.cached_vectors.clear()
        step = indexer.upsert(notes.tenant, notes.items())
        assert [i.document_id for i in step.requeued] == [notes.id("a")]
        row = notes.row("a")
        assert (row["stage"], row["crash_count"], row["attempts"]) == ("chunked", 0, 0)
        assert notes.row("empty")["state"] == "done"
        indexer.embed(notes.tenant, step.requeued)
        indexer.upsert(notes.tenant, step.requeued)
        assert len(notes.contents("a")) == 3
