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
from tests.pipeline.source_ledger import DIMENSIONS, MODEL, SourceLedger, document, paragraphs

A, B = b"a" * 32, b"b" * 32
EMBEDDER = HashingEmbedder(DIMENSIONS)


def chunks(*contents: str, context: str = "Title") -> list[Chunk]:
    return [Chunk(ord=n, content=c, context=context) for n, c in enumerate(contents)]


def stage(notes: SourceLedger, external_id: str, pieces: list[Chunk], version: int = 1) -> UUID:
    with notes.database.tenant(notes.tenant) as connection:
        work_in_progress.stage_chunks(
            connection, notes.tenant, {notes.id(external_id): pieces}, {notes.id(external_id): version}
        )
    return notes.id(external_id)


def cache(notes: SourceLedger, hashes: list[bytes], texts: list[str], model: str = MODEL) -> None:
    with notes.database.tenant(notes.tenant) as connection:
        work_in_progress.cache_vectors(
            connection, notes.tenant, model, hashes, EMBEDDER.embed_documents(texts)
        )


def missing(notes: SourceLedger, hashes: list[bytes], model: str = MODEL) -> set[bytes]:
    with notes.database.tenant(notes.tenant) as connection:
        return work_in_progress.uncached(connection, notes.tenant, model, hashes)


class TestBodies:
    def test_only_the_wanted_version_is_given_out(self, notes: SourceLedger) -> None:
        notes.admit(document("a", "one"), document("b", "two"))
        notes.set("b", desired_version=2)
        claim = notes.claim()
        with notes.database.tenant(notes.tenant) as connection:
            found = work_in_progress.bodies(connection, claim)
        assert found == {notes.id("a"): "one"}


class TestStagedChunks:
    def test_they_come_back_as_they_went_in(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        pieces = chunks("first \U0001f642 \t|", "second\n\\N", "")
        ident = stage(notes, "a", pieces)
        with notes.database.tenant(notes.tenant) as connection:
            found = work_in_progress.staged(connection, notes.tenant, MODEL, [ident])[ident]
            hashes = work_in_progress.staged_hashes(connection, [ident])[ident]
            texts = work_in_progress.texts(connection, [ident], hashes)
        assert found.chunks == pieces
        assert (found.vectors, found.complete) == ([None] * 3, False)
        assert [h.hex() for h in hashes] == [c.hash for c in pieces]
        assert texts == {bytes.fromhex(c.hash): c.embedding_text for c in pieces}

    def test_staging_again_replaces(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        stage(notes, "b", chunks("bystander"))
        stage(notes, "a", chunks("x", "y", "z"))
        ident = stage(notes, "a", chunks("new"), version=2)
        assert notes.staged_chunks.values("version", "content", document_id=ident) == [(2, "new")]
        assert len(notes.staged_chunks()) == 2

    def test_nothing_staged_is_complete(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        ident = stage(notes, "a", [])
        with notes.database.tenant(notes.tenant) as connection:
            assert work_in_progress.staged(connection, notes.tenant, MODEL, [ident])[ident].complete

    def test_vectors_join_by_hash_and_model(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        pieces = chunks("one", "two", "one")
        ident = stage(notes, "a", pieces)
        cache(notes, [bytes.fromhex(pieces[0].hash)], ["one"])
        cache(notes, [bytes.fromhex(pieces[1].hash)], ["two"], model="another")
        with notes.database.tenant(notes.tenant) as connection:
            found = work_in_progress.staged(connection, notes.tenant, MODEL, [ident])[ident]
        assert [v is None for v in found.vectors] == [False, True, False]
        assert np.allclose(found.vectors[0], EMBEDDER.embed_documents(["one"])[0], atol=0.005)
        assert found.vectors[0].dtype == np.float32


class TestTheCache:
    def test_it_knows_what_is_missing(self, notes: SourceLedger) -> None:
        cache(notes, [A], ["a"])
        assert missing(notes, [A, B, B]) == {B}
        assert missing(notes, [A], model="another") == {A}
        assert missing(notes, []) == set()

    def test_a_vector_that_is_there_stays(self, notes: SourceLedger) -> None:
        cache(notes, [A], ["first"])
        before = notes.cached_vectors.one()["vector"]
        cache(notes, [A, A, B], ["second", "third", "fourth"])
        assert notes.cached_vectors.one(hash=A)["vector"] == before
        assert missing(notes, [A, B]) == set()

    def test_tenants_pay_each_for_themselves(self, notes: SourceLedger) -> None:
        other = SourceLedger(notes.database, UUID(int=notes.tenant.int ^ 1), notes.project)
        cache(notes, [A], ["a"])
        assert missing(other, [A]) == {A}

    def test_refilling_takes_only_what_the_staged_chunks_want(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "b")))
        notes.index()
        notes.cached_vectors.clear()
        own = [r["hash"] for r in notes.chunks(document_id=notes.id("a"))]
        with notes.database.tenant(notes.tenant) as connection:
            index = active_index(connection)
            assert index is not None
            for hashes, kept in (([b"new"], 0), (own, 3)):
                work_in_progress.refill(connection, notes.tenant, index, [notes.id("a")], hashes)
                assert len(of_connection(connection).cached_vectors()) == kept

    def test_use_is_noted_once_a_day(self, notes: SourceLedger) -> None:
        cache(notes, [A, B], ["a", "b"])
        notes.cached_vectors.set(A, used_at=ago(days=2))
        notes.cached_vectors.set(B, used_at=ago(hours=2))
        with notes.database.tenant(notes.tenant) as connection:
            work_in_progress.touch(connection, notes.tenant, MODEL, [A, B])
        first, second = notes.cached_vectors.values("used_at")
        assert first > ago(minutes=1)
        assert second < ago(hours=1)

    def test_trimming_drops_the_longest_unused_first(self, notes: SourceLedger) -> None:
        hashes = [bytes([n]) * 32 for n in range(20)]
        cache(notes, hashes, [f"word{n}" for n in range(20)])
        for one in hashes[:5]:
            notes.cached_vectors.set(one, used_at=ago(days=1))
        with notes.database.tenant(notes.tenant) as connection:
            assert work_in_progress.trim_cache(connection, megabytes=1) == 0
            assert work_in_progress.trim_cache(connection, megabytes=0, batch=5) == 20
        cache(notes, hashes, [f"word{n}" for n in range(20)])
        for one in hashes[:5]:
            notes.cached_vectors.set(one, used_at=ago(days=1))
        size = sum(row["n"] for row in notes.sql("select pg_column_size(e.*) as n from embedding_cache e"))
        with notes.database.tenant(notes.tenant) as connection:
            megabytes: float = size * 0.8 / 1_000_000
            assert work_in_progress.trim_cache(connection, megabytes=megabytes, batch=1) in {4, 5}  # type: ignore[arg-type]
        assert missing(notes, hashes[5:]) == set()


class TestBulkCopies:
    """They go past SQLAlchemy to the driver: what goes wrong there must be sorted all the same."""

    def test_a_refusal_is_a_refusal_of_the_store(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        twice = [Chunk(ord=0, content="secret one"), Chunk(ord=0, content="secret two")]
        with pytest.raises(StoreRejected) as caught:
            stage(notes, "a", twice)
        assert "secret" not in str(caught.value)
        assert notes.staged_chunks() == []

    def test_a_connection_that_breaks_is_passing_trouble(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        ident = notes.id("a")
        with pytest.raises(StoreUnavailable):
            with_a_broken_connection(
                notes,
                lambda c: work_in_progress.stage_chunks(c, notes.tenant, {ident: chunks("x")}, {ident: 1}),
            )
        stage(notes, "a", chunks("x"))
        assert len(notes.staged_chunks()) == 1

    def test_reading_over_a_broken_connection_too(self, notes: SourceLedger) -> None:
        with pytest.raises(StoreUnavailable):
            with_a_broken_connection(notes, lambda c: work_in_progress.staged(c, notes.tenant, MODEL, []))


def with_a_broken_connection(notes: SourceLedger, work: Callable[[Connection], object]) -> None:
    """Do `work` on a connection whose server process has been ended under it."""
    with notes.database.tenant(notes.tenant) as connection:
        pid = connection.execute(text("select pg_backend_pid()")).scalar()
        with notes.database.tenant(notes.tenant) as killer:
            killer.execute(text("select pg_terminate_backend(:p, 5000)"), {"p": pid})
        work(connection)
