"""Staged chunks, the embedding cache, and bulk copies whose errors are sorted like all others."""

from __future__ import annotations

from collections.abc import Callable
from uuid import UUID

import numpy as np
import pytest
from sqlalchemy import Connection, text

from pipeline.documents import Chunk
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import StoreRejected, StoreUnavailable
from pipeline.ingest import work_in_progress
from pipeline.search.chunk_store import active_index
from tests.ledger import ago, of_connection
from tests.pipeline.workshop import DIMENSIONS, MODEL, Workshop, document, paragraphs

A, B = b"a" * 32, b"b" * 32
EMBEDDER = HashingEmbedder(DIMENSIONS)


def chunks(*contents: str, context: str = "Title") -> list[Chunk]:
    return [Chunk(ord=n, content=c, context=context) for n, c in enumerate(contents)]


def stage(shop: Workshop, external_id: str, pieces: list[Chunk], version: int = 1) -> UUID:
    with shop.database.tenant(shop.tenant) as connection:
        work_in_progress.stage_chunks(
            connection, shop.tenant, {shop.id(external_id): pieces}, {shop.id(external_id): version}
        )
    return shop.id(external_id)


def cache(shop: Workshop, hashes: list[bytes], texts: list[str], model: str = MODEL) -> None:
    with shop.database.tenant(shop.tenant) as connection:
        work_in_progress.cache_vectors(
            connection, shop.tenant, model, hashes, EMBEDDER.embed_documents(texts)
        )


def missing(shop: Workshop, hashes: list[bytes], model: str = MODEL) -> set[bytes]:
    with shop.database.tenant(shop.tenant) as connection:
        return work_in_progress.uncached(connection, shop.tenant, model, hashes)


class TestBodies:
    def test_only_the_wanted_version_is_given_out(self, shop: Workshop) -> None:
        shop.admit(document("a", "one"), document("b", "two"))
        shop.set("b", desired_version=2)
        claim = shop.claim()
        with shop.database.tenant(shop.tenant) as connection:
            found = work_in_progress.bodies(connection, claim)
        assert found == {shop.id("a"): "one"}


class TestStagedChunks:
    def test_they_come_back_as_they_went_in(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        pieces = chunks("first \U0001f642 \t|", "second\n\\N", "")
        ident = stage(shop, "a", pieces)
        with shop.database.tenant(shop.tenant) as connection:
            found = work_in_progress.staged(connection, shop.tenant, MODEL, [ident])[ident]
            hashes = work_in_progress.staged_hashes(connection, [ident])[ident]
            texts = work_in_progress.texts(connection, [ident], hashes)
        assert found.chunks == pieces
        assert (found.vectors, found.complete) == ([None] * 3, False)
        assert [h.hex() for h in hashes] == [c.hash for c in pieces]
        assert texts == {bytes.fromhex(c.hash): c.embedding_text for c in pieces}

    def test_staging_again_replaces(self, shop: Workshop) -> None:
        shop.admit(document("a"), document("b"))
        stage(shop, "b", chunks("bystander"))
        stage(shop, "a", chunks("x", "y", "z"))
        ident = stage(shop, "a", chunks("new"), version=2)
        assert shop.staged_chunks.values("version", "content", document_id=ident) == [(2, "new")]
        assert len(shop.staged_chunks()) == 2

    def test_nothing_staged_is_complete(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        ident = stage(shop, "a", [])
        with shop.database.tenant(shop.tenant) as connection:
            assert work_in_progress.staged(connection, shop.tenant, MODEL, [ident])[ident].complete

    def test_vectors_join_by_hash_and_model(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        pieces = chunks("one", "two", "one")
        ident = stage(shop, "a", pieces)
        cache(shop, [bytes.fromhex(pieces[0].hash)], ["one"])
        cache(shop, [bytes.fromhex(pieces[1].hash)], ["two"], model="another")
        with shop.database.tenant(shop.tenant) as connection:
            found = work_in_progress.staged(connection, shop.tenant, MODEL, [ident])[ident]
        assert [v is None for v in found.vectors] == [False, True, False]
        assert np.allclose(found.vectors[0], EMBEDDER.embed_documents(["one"])[0], atol=0.005)
        assert found.vectors[0].dtype == np.float32


class TestTheCache:
    def test_it_knows_what_is_missing(self, shop: Workshop) -> None:
        cache(shop, [A], ["a"])
        assert missing(shop, [A, B, B]) == {B}
        assert missing(shop, [A], model="another") == {A}
        assert missing(shop, []) == set()

    def test_a_vector_that_is_there_stays(self, shop: Workshop) -> None:
        cache(shop, [A], ["first"])
        before = shop.cached_vectors.one()["vector"]
        cache(shop, [A, A, B], ["second", "third", "fourth"])
        assert shop.cached_vectors.one(hash=A)["vector"] == before
        assert missing(shop, [A, B]) == set()

    def test_tenants_pay_each_for_themselves(self, shop: Workshop) -> None:
        other = Workshop(shop.database, UUID(int=shop.tenant.int ^ 1), shop.project)
        cache(shop, [A], ["a"])
        assert missing(other, [A]) == {A}

    def test_refilling_takes_only_what_the_staged_chunks_want(self, shop: Workshop) -> None:
        shop.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "b")))
        shop.index()
        shop.cached_vectors.clear()
        own = [r["hash"] for r in shop.chunks(document_id=shop.id("a"))]
        with shop.database.tenant(shop.tenant) as connection:
            index = active_index(connection)
            assert index is not None
            for hashes, kept in (([b"new"], 0), (own, 3)):
                work_in_progress.refill(connection, shop.tenant, index, [shop.id("a")], hashes)
                assert len(of_connection(connection).cached_vectors()) == kept

    def test_use_is_noted_once_a_day(self, shop: Workshop) -> None:
        cache(shop, [A, B], ["a", "b"])
        shop.cached_vectors.set(A, used_at=ago(days=2))
        shop.cached_vectors.set(B, used_at=ago(hours=2))
        with shop.database.tenant(shop.tenant) as connection:
            work_in_progress.touch(connection, shop.tenant, MODEL, [A, B])
        first, second = shop.cached_vectors.values("used_at")
        assert first > ago(minutes=1)
        assert second < ago(hours=1)

    def test_trimming_drops_the_longest_unused_first(self, shop: Workshop) -> None:
        hashes = [bytes([n]) * 32 for n in range(20)]
        cache(shop, hashes, [f"word{n}" for n in range(20)])
        for one in hashes[:5]:
            shop.cached_vectors.set(one, used_at=ago(days=1))
        with shop.database.tenant(shop.tenant) as connection:
            assert work_in_progress.trim_cache(connection, megabytes=1) == 0
            assert work_in_progress.trim_cache(connection, megabytes=0, batch=5) == 20
        cache(shop, hashes, [f"word{n}" for n in range(20)])
        for one in hashes[:5]:
            shop.cached_vectors.set(one, used_at=ago(days=1))
        size = sum(row["n"] for row in shop.sql("select pg_column_size(e.*) as n from embedding_cache e"))
        with shop.database.tenant(shop.tenant) as connection:
            megabytes: float = size * 0.8 / 1_000_000
            assert work_in_progress.trim_cache(connection, megabytes=megabytes, batch=1) in {4, 5}  # type: ignore[arg-type]
        assert missing(shop, hashes[5:]) == set()


class TestBulkCopies:
    """They go past SQLAlchemy to the driver: what goes wrong there must be sorted all the same."""

    def test_a_refusal_is_a_refusal_of_the_store(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        twice = [Chunk(ord=0, content="secret one"), Chunk(ord=0, content="secret two")]
        with pytest.raises(StoreRejected) as caught:
            stage(shop, "a", twice)
        assert "secret" not in str(caught.value)
        assert shop.staged_chunks() == []

    def test_a_connection_that_breaks_is_passing_trouble(self, shop: Workshop) -> None:
        shop.admit(document("a"))
        ident = shop.id("a")
        with pytest.raises(StoreUnavailable):
            with_a_broken_connection(
                shop,
                lambda c: work_in_progress.stage_chunks(c, shop.tenant, {ident: chunks("x")}, {ident: 1}),
            )
        stage(shop, "a", chunks("x"))
        assert len(shop.staged_chunks()) == 1

    def test_reading_over_a_broken_connection_too(self, shop: Workshop) -> None:
        with pytest.raises(StoreUnavailable):
            with_a_broken_connection(shop, lambda c: work_in_progress.staged(c, shop.tenant, MODEL, []))


def with_a_broken_connection(shop: Workshop, work: Callable[[Connection], object]) -> None:
    """Do `work` on a connection whose server process has been ended under it."""
    with shop.database.tenant(shop.tenant) as connection:
        pid = connection.execute(text("select pg_backend_pid()")).scalar()
        with shop.database.tenant(shop.tenant) as killer:
            killer.execute(text("select pg_terminate_backend(:p, 5000)"), {"p": pid})
        work(connection)
