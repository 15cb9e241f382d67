"""The three steps on a real database: what comes out, and what becomes of it when something goes wrong between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pipeline.chunking import Chunker
from pipeline.documents import Chunk, Document
from pipeline.embedding import Embedder, EmbedderLimits, Vectors
from pipeline.embedding.hashing import HashingEmbedder
from pipeline.errors import EmbedderUnavailable, StoreUnavailable, TextRejected
from pipeline.indexing import Indexer, centroid
from pipeline.ledger import Stage
from tests.pipeline.workshop import DIMENSIONS, MODEL, Workshop, document, paragraphs

STEPS = ("chunk", "embed", "upsert")


@dataclass
class Picky:
    """The hashing embedder with a provider's bad days: calls that fail, texts it refuses, broken vectors."""

    fails_from: int | None = None
    """The first call, counted from 1, at which the provider is away for good."""
    refuses: str = ""
    spoils: str = ""
    calls: int = 0
    seen: list[str] = field(default_factory=list)
    meanwhile: Callable[[], None] | None = None
    model: str = MODEL
    dimensions: int = DIMENSIONS
    limits: EmbedderLimits = field(default_factory=lambda: EmbedderLimits(texts=4))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        if self.meanwhile:
            self.meanwhile()
        if self.fails_from is not None and self.calls >= self.fails_from:
            raise EmbedderUnavailable("the provider is away", retry_after=60)
        if self.refuses and any(self.refuses in t for t in texts):
            raise TextRejected("too rude")
        self.seen += texts
        return HashingEmbedder(DIMENSIONS).embed_documents(texts)

    def embed_query(self, text: str) -> Vectors:
        return HashingEmbedder(DIMENSIONS).embed_query(text)

    def count_tokens(self, text: str) -> int:
        return len(text)


@dataclass
class Interrupted:
    """A chunker during whose work something else happens, or that fails on some texts."""

    chunker: Chunker
    meanwhile: Callable[[], None] | None = None
    fails_on: str = "\0"
    version: str = "interrupted-1"

    def chunk(self, document: Document) -> list[Chunk]:
        if self.meanwhile:
            self.meanwhile()
        if self.fails_on in document.text:
            raise ValueError(f"cannot cut {document.text}")
        return self.chunker.chunk(document)


def run_item(shop: Workshop, external_id: str) -> Any:
    (row,) = shop.sql(
        "select * from run_item where document_id = :id order by run_id desc limit 1", id=shop.id(external_id)
    )
    return row


def through(shop: Workshop, upto: str, **changes: Any) -> Indexer:
    """Run the steps before `upto` for all that waits."""
    indexer, items = shop.indexer(**changes), shop.items()
    for name in STEPS[: STEPS.index(upto)]:
        getattr(indexer, name)(shop.tenant, items)
    return indexer


class TestTheWay:
    @pytest.mark.req("002-002")
    def test_a_batch_ends_searchable(self, shop: Workshop) -> None:
        run = shop.open_run()
        shop.admit(document("a", paragraphs(3, "one")), document("b", paragraphs(2, "two")), run=run)
        items, indexer = shop.items(), shop.indexer()
        chunked = indexer.chunk(shop.tenant, items)
        assert (chunked.stage, sorted(i.document_id for i in chunked.ready)) == (
            Stage.CHUNKED,
            sorted(i.document_id for i in items),
        )
        assert chunked.sizes == {shop.id("a"): 3, shop.id("b"): 2}
        embedded = indexer.embed(shop.tenant, chunked.ready)
        assert (embedded.stage, len(embedded.ready), embedded.again) == (Stage.EMBEDDED, 2, [])
        assert shop.contents("a") == []
        done = indexer.upsert(shop.tenant, embedded.ready)
        assert (done.ready, done.again) == ([], [])
        assert [c.split(" filler")[0] for c in shop.contents("a")] == ["one 0", "one 1", "one 2"]
        shop.close_run(run)
        row = shop.run(run)
        assert (row.indexed, row.chunks, row.texts_embedded, row.texts_reused) == (2, 5, 5, 0)

    @pytest.mark.req("001-118")
    def test_every_chunk_carries_its_tenant_project_and_version(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(2)))
        shop.index()
        rows = shop.sql("select tenant_id, project_id, version from chunk")
        assert [tuple(r.values()) for r in rows] == [(shop.tenant, shop.project, 1)] * 2

    def test_vectors_are_those_of_the_text_with_its_context(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(2)))
        shop.index()
        rows = shop.sql("select content, context, embedding from chunk order by ord")
        texts = [Chunk(ord=0, content=r["content"], context=r["context"]).embedding_text for r in rows]
        kept = np.array([r["embedding"].to_numpy() for r in rows], dtype=np.float32)
        assert np.allclose(kept, HashingEmbedder(DIMENSIONS).embed_documents(texts), atol=0.005)

    def test_an_empty_document_ends_done_without_chunks(self, shop: Workshop) -> None:
        shop.admit(document("empty", "  \n\n "))
        shop.index()
        row = shop.row("empty")
        assert (row["state"], row["chunk_count"]) == ("done", 0)
        assert shop.sql("select version, chunk_count, centroid from index_document") == [
            {"version": 1, "chunk_count": 0, "centroid": None}
        ]
        assert run_item(shop, "empty")["outcome"] == "done"

    def test_a_document_that_became_empty_loses_its_chunks(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3)))
        shop.index()
        shop.admit(document("a", ""))
        shop.index()
        assert (shop.contents("a"), shop.row("a")["chunk_count"]) == ([], 0)

    def test_a_huge_document_goes_through(self, shop: Workshop) -> None:
        shop.embedder = HashingEmbedder(DIMENSIONS)
        shop.admit(document("huge", paragraphs(2000)))
        shop.index()
        assert shop.row("huge")["chunk_count"] == 2000 == len(shop.contents("huge"))

    def test_what_was_staged_is_gone_at_the_end(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3)))
        shop.index()
        assert shop.sql("select * from chunk_stage") == []

    def test_messages_about_nothing_do_nothing(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.index()
        items = shop.items("a")
        before = shop.row("a")
        shop.index(items)
        shop.index([])
        assert shop.row("a") == before

    def test_the_centroid_is_the_mean_direction(self) -> None:
        made = centroid(np.array([[1, 0], [0, 1]], dtype=np.float32))
        assert made is not None
        assert np.allclose(made.to_numpy(), [0.7071, 0.7071], atol=0.001)
        assert centroid(np.array([[1, 0], [-1, 0]], dtype=np.float32)) is None
        assert centroid(np.zeros((0, 2), dtype=np.float32)) is None


@pytest.mark.req("002-011")
class TestChangedDocuments:
    def test_unchanged_chunks_keep_their_rows(self, shop: Workshop) -> None:
        """They learn the new version, and no index has to be touched for it: neither place nor vector moves."""
        parts = paragraphs(4).split("\n\n")
        shop.admit(document("a", "\n\n".join(parts)))
        shop.index()
        first = shop.sql("select ord, embedding::text, ctid::text, content from chunk order by ord")
        parts[2] = "another third part " + "filler " * 12
        shop.admit(document("a", "\n\n".join(parts)))
        run = shop.value("select max(run_id) from run_item")
        shop.embedder = embedder = Picky()
        shop.index()
        second = shop.sql("select ord, embedding::text, content, version from chunk order by ord")
        assert [r["version"] for r in second] == [2] * 4
        assert [r["ord"] for r, s in zip(first, second, strict=True) if r["content"] != s["content"]] == [2]
        assert [r["embedding"] == s["embedding"] for r, s in zip(first, second, strict=True)].count(True) == 3
        assert len(embedder.seen) == 1
        item = shop.sql("select * from run_item where run_id = :r", r=run)[0]
        assert (item["chunks"], item["chunks_written"], item["chunks_kept"]) == (4, 1, 3)
        assert (item["texts_embedded"], item["texts_reused"]) == (1, 3)

    def test_the_same_chunks_again_are_updated_in_place(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(2)))
        shop.index()
        shop.admit(document("a", paragraphs(2)), force=True)
        shop.embedder = embedder = Picky()
        shop.index()
        assert embedder.calls == 0
        item = run_item(shop, "a")
        assert (item["chunks_written"], item["chunks_kept"], item["texts_reused"]) == (0, 2, 2)
        assert shop.row("a")["generation"] == 2

    def test_shorter_documents_leave_nothing_behind(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(5)))
        shop.index()
        shop.admit(document("a", paragraphs(2)))
        shop.index()
        assert len(shop.contents("a")) == 2


class TestTheCache:
    @pytest.mark.req("001-010", "001-097")
    def test_a_second_document_with_the_same_text_costs_nothing(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3), title="Same"))
        shop.index()
        shop.admit(document("b", paragraphs(3), title="Same"))
        shop.embedder = embedder = Picky()
        shop.index()
        assert embedder.calls == 0
        assert (run_item(shop, "b")["texts_embedded"], run_item(shop, "b")["texts_reused"]) == (0, 3)

    def test_a_text_that_a_batch_holds_twice_is_embedded_once(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(2), title="Same"), document("b", paragraphs(2), title="Same"))
        shop.embedder = embedder = Picky()
        shop.index()
        assert len(embedder.seen) == 2
        total = "select sum(texts_embedded) as e, sum(texts_reused) as r from run_item"
        assert [tuple(r.values()) for r in shop.sql(total)] == [(2, 2)]

    def test_an_emptied_cache_is_refilled_from_the_documents_own_chunks(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(4)))
        shop.index()
        shop.sql("delete from embedding_cache")
        shop.admit(document("a", paragraphs(4) + "\n\nOne more part."))
        shop.embedder = embedder = Picky()
        shop.index()
        assert len(embedder.seen) == 1
        assert shop.row("a")["state"] == "done"

    def test_vectors_that_vanish_before_the_upsert_are_made_again(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3)), document("empty", ""))
        indexer = through(shop, "upsert")
        shop.sql("delete from embedding_cache")
        step = indexer.upsert(shop.tenant, shop.items())
        assert [i.document_id for i in step.again] == [shop.id("a")]
        assert step.again_stage == Stage.CHUNKED
        row = shop.row("a")
        assert (row["stage"], row["crash_count"], row["attempts"]) == ("chunked", 0, 0)
        assert shop.row("empty")["state"] == "done"
        indexer.embed(shop.tenant, step.again)
        indexer.upsert(shop.tenant, step.again)
        assert len(shop.contents("a")) == 3


class TestOvertaken:
    """The document changes while one of its steps is at work: nothing of the old version gets through."""

    @pytest.mark.parametrize("step", STEPS)
    def test_an_old_version_is_dropped(self, shop: Workshop, step: str) -> None:
        shop.admit(document("a", paragraphs(2, "old")), document("b", paragraphs(2, "bystander")))
        edited: list[int] = []

        def edit() -> None:
            if not edited:
                edited.append(1)
                shop.admit(
                    document("a", paragraphs(2, "new")), run=shop.value("select max(id) from sync_run")
                )

        indexer, items = through(shop, step), shop.items()
        plain = shop.chunker
        if step == "chunk":
            shop.chunker = Interrupted(plain, meanwhile=edit)
        elif step == "embed":
            shop.embedder = Picky(meanwhile=edit)
        else:
            filled = indexer.index

            def edit_first(connection: Any) -> Any:
                return filled(connection)

            claim = shop.claim("a", "b", stage=Stage.EMBEDDED, lease=-1)
            assert len(claim.ids) == 2
            edit()
            indexer = shop.indexer(index=edit_first)
        left = getattr(indexer, step)(shop.tenant, items)
        assert edited
        assert shop.id("a") not in {i.document_id for i in (*left.ready, *left.again)}
        row = shop.row("a")
        assert (row["desired_version"], row["stage"], row["state"]) == (2, "fetched", "pending")
        shop.chunker, shop.embedder = plain, HashingEmbedder(DIMENSIONS)
        shop.index(shop.items("a"))
        for name in STEPS:
            getattr(shop.indexer(), name)(shop.tenant, shop.items("b"))
        assert [c.split()[0] for c in shop.contents("a")] == ["new", "new"]
        assert [c.split()[0] for c in shop.contents("b")] == ["bystander"] * 2

    def test_a_deleted_document_is_not_written(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(2)))
        indexer, items = through(shop, "embed"), shop.items()
        shop.embedder = Picky(meanwhile=lambda: shop.set("a", "deleted = true, lease_token = null"))
        assert indexer.embed(shop.tenant, items).ready == []
        assert shop.contents("a") == []


class TestTrouble:
    def test_a_text_the_chunker_chokes_on_harms_only_its_document(self, shop: Workshop) -> None:
        shop.admit(document("bad", "poison in here"), document("good"))
        shop.chunker = Interrupted(shop.chunker, fails_on="poison")
        shop.index()
        (letter,) = shop.dead_letters()
        assert (letter["document_id"], letter["stage"]) == (shop.id("bad"), "fetched")
        assert letter["reason"] == "the chunker failed with ValueError"
        assert (shop.row("good")["state"], shop.row("bad")["state"]) == ("done", "dead")

    def test_a_lost_body_is_told_with_its_cure(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        shop.sql("delete from document_body")
        shop.index()
        assert "--force" in shop.dead_letters()[0]["reason"]

    def test_a_refused_text_kills_only_its_document(self, shop: Workshop) -> None:
        shop.admit(document("rude", paragraphs(5) + "\n\nA swearword."), document("good", paragraphs(5, "x")))
        shop.embedder = Picky(refuses="swearword")
        shop.index()
        (letter,) = shop.dead_letters()
        assert (letter["document_id"], letter["code"], letter["stage"]) == (
            shop.id("rude"),
            "E002",
            "chunked",
        )
        assert "swearword" not in letter["reason"]
        assert len(shop.contents("good")) == 5

    @pytest.mark.req("001-099")
    def test_when_the_embedder_is_away_the_rest_waits_and_nothing_is_lost(self, shop: Workshop) -> None:
        shop.admit(*(document(name, paragraphs(3, name)) for name in "abc"))
        shop.embedder = Picky(fails_from=2)
        shop.index()
        rows = shop.sql("""
            select *, due_at > now() + interval '50 seconds' as later from document where state <> 'done'""")
        assert {
            (r["state"], r["stage"], r["later"], r["attempts"], r["crash_count"], r["waits"]) for r in rows
        } == {("pending", "chunked", True, 0, 0, 1)}
        assert len(rows) >= 2
        assert rows[0]["last_error"] == "the provider is away"
        assert shop.value("select count(*) from embedding_cache") == 4
        shop.sql("update document set due_at = now()")
        shop.embedder = embedder = Picky()
        shop.index()
        assert len(embedder.seen) == 5
        total = "select sum(texts_embedded) as e, sum(texts_reused) as r from run_item"
        assert [tuple(r.values()) for r in shop.sql(total)] == [(9, 0)]
        assert {(r["state"], r["waits"]) for r in shop.sql("select * from document")} == {("done", 0)}

    def test_an_outage_is_nobodys_failed_try(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        through(shop, "embed")
        shop.set("a", "attempts = 1, waits = 500")
        shop.embedder = Picky(fails_from=1)
        shop.indexer().embed(shop.tenant, shop.items())
        row = shop.row("a")
        assert (row["state"], row["attempts"], row["waits"]) == ("pending", 1, 501)
        assert shop.dead_letters() == []

    def test_one_document_the_store_refuses_does_not_stop_the_others(self, shop: Workshop) -> None:
        shop.admit(*(document(i, paragraphs(2, i)) for i in ("a", "bad", "c")))
        through(shop, "upsert")
        shop.sql(
            """update embedding_cache set vector = array_fill(0.5, array[7])::real[]::vector::halfvec
                    where hash in (select hash from chunk_stage where document_id = :id)""",
            id=shop.id("bad"),
        )
        shop.indexer().upsert(shop.tenant, shop.items())
        assert {i: shop.row(i)["state"] for i in ("a", "bad", "c")} == {
            "a": "done",
            "bad": "dead",
            "c": "done",
        }
        (letter,) = shop.dead_letters()
        assert (letter["code"], letter["stage"]) == ("E001", "embedded")

    def test_a_store_that_is_away_makes_all_wait(self, shop: Workshop) -> None:
        shop.admit(document("a"), document("b"))
        through(shop, "upsert")

        def away(_connection: Any) -> Any:
            raise StoreUnavailable("gone")

        shop.indexer(index=away).upsert(shop.tenant, shop.items())
        assert [(r["state"], r["attempts"]) for r in shop.sql("select * from document")] == [
            ("pending", 1)
        ] * 2
        shop.sql("update document set due_at = now()")
        shop.indexer().upsert(shop.tenant, shop.items())
        assert {r["state"] for r in shop.sql("select state from document")} == {"done"}


class TestSlices:
    def test_a_long_embed_stops_and_goes_on_later(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3, "a")), document("b", paragraphs(6, "b")))
        through(shop, "embed")
        shop.embedder = embedder = Picky()
        indexer, todo = shop.indexer(slice_seconds=-1.0), shop.items()
        slices = 0
        while todo:
            step = indexer.embed(shop.tenant, todo)
            slices, todo = slices + 1, step.again
            assert (embedder.calls, step.again_stage) == (slices, Stage.CHUNKED)
        assert (slices, len(embedder.seen)) == (3, 9)
        assert shop.row("b")["crash_count"] == 0
        indexer.upsert(shop.tenant, shop.items())
        assert len(shop.contents("b")) == 6
        total = "select sum(texts_embedded) as e, sum(texts_reused) as r from run_item"
        assert [tuple(r.values()) for r in shop.sql(total)] == [(9, 0)]

    def test_the_lease_is_renewed_between_calls(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(9)))
        through(shop, "embed")
        seen: list[float] = []

        def look() -> None:
            left = "extract(epoch from lease_until - now()) from document where id = :id"
            seen.append(float(shop.value(f"select {left}", id=shop.id("a"))))
            shop.set("a", "lease_until = lease_until - interval '10 seconds'")

        shop.embedder = Picky(meanwhile=look)
        shop.indexer(lease=0.001).embed(shop.tenant, shop.items())
        assert len(seen) == 3
        assert min(seen[1:]) > -1

    def test_a_model_is_not_loaded_for_chunking(self, shop: Workshop) -> None:
        loaded: list[int] = []

        def load() -> Embedder:
            loaded.append(1)
            return shop.embedder

        shop.admit(document("a"))
        indexer = shop.indexer(embedder=load)
        indexer.chunk(shop.tenant, shop.items())
        assert loaded == []
        indexer.embed(shop.tenant, shop.items())
        assert loaded == [1]
