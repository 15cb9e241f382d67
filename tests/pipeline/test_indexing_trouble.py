"""The three steps of a document when it is overtaken, refused, or takes long."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import Connection

from pipeline.embedding import Embedder
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import LarderError, StoreHindered, StoreUnavailable
from pipeline.ingest import work_in_progress
from pipeline.ledger import Stage, dead, overview, search_indexes
from pipeline.search.chunk_store import SearchIndex
from tests.ledger import ago, ahead
from tests.pipeline.picky import STEPS, Interrupted, Picky, through
from tests.pipeline.source_ledger import DIMENSIONS, SourceLedger, document, fill_index, paragraphs

SQL = psycopg.Connection[Any]


class TestOvertaken:
    """The document changes while one of its steps is at work: nothing of the old version gets through."""

    def test_one_that_is_about_to_write_leaves_the_newer_version_alone(self, notes: SourceLedger) -> None:
        notes.admit(document("a", "Old words."))
        through(notes, "upsert")
        items, overtaken = notes.items(), list[int]()

        def overtake(connection: Connection) -> SearchIndex:
            if not overtaken:
                overtaken.append(1)
                notes.admit(document("a", "New words."))
                notes.index()
            return fill_index(connection)

        notes.indexer(index=overtake).upsert(notes.tenant, items)
        assert overtaken
        assert notes.contents("a") == ["New words."]

    @pytest.mark.parametrize("step", STEPS)
    def test_an_old_version_is_dropped(self, notes: SourceLedger, step: str) -> None:
        notes.admit(document("a", paragraphs(2, "old")), document("b", paragraphs(2, "bystander")))
        edited: list[int] = []

        def edit() -> None:
            if not edited:
                edited.append(1)
                notes.admit(document("a", paragraphs(2, "new")), run=notes.runs()[-1]["id"])

        indexer, items = through(notes, step), notes.items()
        plain = notes.chunker
        if step == "chunk":
            notes.chunker = Interrupted(plain, meanwhile=edit)
        elif step == "embed":
            notes.embedder = Picky(meanwhile=edit)
        else:
            filled = indexer.index

            def edit_first(connection: Any) -> Any:
                return filled(connection)

            claim = notes.claim("a", "b", stage=Stage.EMBEDDED, lease=-1)
            assert len(claim.ids) == 2
            edit()
            indexer = notes.indexer(index=edit_first)
        left = getattr(indexer, step)(notes.tenant, items)
        assert edited
        assert notes.id("a") not in {i.document_id for i in (*left.ready, *left.requeued)}
        row = notes.row("a")
        assert (row["desired_version"], row["stage"], row["state"]) == (2, "fetched", "pending")
        notes.chunker, notes.embedder = plain, HashingEmbedder(DIMENSIONS)
        notes.index(notes.items("a"))
        for name in STEPS:
            getattr(notes.indexer(), name)(notes.tenant, notes.items("b"))
        assert [c.split()[0] for c in notes.contents("a")] == ["new", "new"]
        assert [c.split()[0] for c in notes.contents("b")] == ["bystander"] * 2

    def test_who_has_lost_its_lease_counts_no_texts_that_the_other_counts(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3)))
        through(notes, "embed")
        overtaken: list[int] = []

        def overtake() -> None:
            if not overtaken:
                overtaken.append(1)
                notes.set("a", lease_until=ago(seconds=1))
                assert notes.indexer().embed(notes.tenant, notes.items()).ready

        notes.embedder = Picky(meanwhile=overtake)
        assert notes.indexer().embed(notes.tenant, notes.items()).ready == []
        assert notes.texts_counted() == (3, 0)

    def test_a_write_to_an_index_that_is_being_built_waits_and_holds_no_worker(
        self, alone: SourceLedger
    ) -> None:
        """The build has locked the table, for hours with millions of chunks."""
        alone.admit(document("a", paragraphs(2)))
        through(alone, "upsert")
        index = alone.indexes.one()["id"]
        with alone.database.control() as connection:
            build = search_indexes.claim_build(connection, index, lease=60)
        assert build is not None
        alone.indexer().upsert(alone.tenant, alone.items())
        row = alone.row("a")
        assert (row["stage"], row["waits"], row["attempts"], row["crash_count"]) == ("embedded", 1, 0, 0)
        with alone.database.control() as connection:
            search_indexes.finish_build(connection, build)
        alone.set("a", due_at=ago())
        alone.indexer().upsert(alone.tenant, alone.items())
        assert len(alone.contents("a")) == 2

    def test_a_deleted_document_is_not_written(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(2)))
        indexer, items = through(notes, "embed"), notes.items()
        notes.embedder = Picky(meanwhile=lambda: notes.set("a", deleted=True, lease_token=None))
        assert indexer.embed(notes.tenant, items).ready == []
        assert set(notes.chunks.values("embedding")) <= {None}


class TestTrouble:
    def test_a_text_the_chunker_chokes_on_harms_only_its_document(self, notes: SourceLedger) -> None:
        notes.admit(document("bad", "poison in here"), document("good"))
        notes.chunker = Interrupted(notes.chunker, fails_on="poison")
        notes.index()
        (letter,) = notes.dead_letters()
        assert (letter["document_id"], letter["stage"]) == (notes.id("bad"), "fetched")
        assert letter["reason"] == "the chunker failed with ValueError"
        assert (notes.row("good")["state"], notes.row("bad")["state"]) == ("done", "dead")

    def test_a_lost_body_is_told_with_its_cure(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.bodies.clear()
        notes.index()
        assert "--force" in notes.dead_letters()[0]["reason"]

    def test_a_refused_text_kills_only_its_document(self, notes: SourceLedger) -> None:
        notes.admit(
            document("rude", paragraphs(5) + "\n\nA swearword."), document("good", paragraphs(5, "x"))
        )
        notes.embedder = Picky(refuses="swearword")
        notes.index()
        (letter,) = notes.dead_letters()
        assert (letter["document_id"], letter["code"], letter["stage"]) == (
            notes.id("rude"),
            "E002",
            "chunked",
        )
        assert "swearword" not in letter["reason"]
        assert len(notes.contents("good")) == 5

    @pytest.mark.req("001-099")
    def test_when_the_embedder_is_away_the_rest_waits_and_nothing_is_lost(self, notes: SourceLedger) -> None:
        notes.admit(*(document(name, paragraphs(3, name)) for name in "abc"))
        notes.embedder = Picky(fails_from=2)
        notes.index()
        waiting = [r for r in notes.documents() if r["state"] != "done"]
        assert {(r["state"], r["stage"], r["attempts"], r["crash_count"], r["waits"]) for r in waiting} == {
            ("pending", "chunked", 0, 0, 1)
        }
        assert all(r["due_at"] > ahead(seconds=50) for r in waiting)
        assert len(waiting) >= 2
        assert waiting[0]["last_error"] == "the provider is away"
        assert len(notes.cached_vectors()) == 4
        notes.documents.set(due_at=ago())
        notes.embedder = embedder = Picky()
        notes.index()
        assert len(embedder.seen) == 5
        assert notes.texts_counted() == (9, 0)
        assert notes.usage.values("texts", "cache_hits") == [(9, 0)], "its own texts are no hits"
        assert {(r["state"], r["waits"]) for r in notes.documents()} == {("done", 0)}

    def test_an_outage_is_nobodys_failed_try(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        through(notes, "embed")
        notes.set("a", attempts=1, waits=500)
        notes.embedder = Picky(fails_from=1)
        notes.indexer().embed(notes.tenant, notes.items())
        row = notes.row("a")
        assert (row["state"], row["attempts"], row["waits"]) == ("pending", 1, 501)
        assert notes.dead_letters() == []

    def test_one_document_the_store_refuses_does_not_stop_the_others(self, notes: SourceLedger) -> None:
        notes.admit(*(document(i, paragraphs(2, i)) for i in ("a", "bad", "c")))
        through(notes, "upsert")
        notes.sql(
            """update embedding_cache set vector = array_fill(0.5, array[7])::real[]::vector::halfvec
                    where hash in (select hash from chunk_stage where document_id = :id)""",
            id=notes.id("bad"),
        )
        notes.indexer().upsert(notes.tenant, notes.items())
        assert {i: notes.row(i)["state"] for i in ("a", "bad", "c")} == {
            "a": "done",
            "bad": "dead",
            "c": "done",
        }
        (letter,) = notes.dead_letters()
        assert (letter["code"], letter["stage"]) == ("E001", "embedded")

    def test_a_store_that_is_away_makes_all_wait(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        through(notes, "upsert")

        def away(_connection: Any) -> Any:
            raise StoreUnavailable("gone")

        notes.indexer(index=away).upsert(notes.tenant, notes.items())
        assert [(r["state"], r["attempts"]) for r in notes.documents()] == [("pending", 0)] * 2
        assert {r["waits"] for r in notes.documents()} == {1}
        notes.documents.set(due_at=ago())
        notes.indexer().upsert(notes.tenant, notes.items())
        assert {r["state"] for r in notes.documents()} == {"done"}


FULL = """
    create function full_disk() returns trigger language plpgsql as $$ begin
        raise exception 'could not extend file "base/1/2": No space left on device' using errcode = '53100'; end $$;
    create trigger full_disk before"""


DAMAGED = """
    create function damaged(p_document uuid) returns boolean language plpgsql as $$ begin
        if p_document = '{}' and current_query() not like '%octet_length%'  -- which reads no more than the length
        then raise exception 'missing chunk number 0' using errcode = 'XX001'; end if;
        return true; end $$;"""
_READ = "create policy damage on {} as restrictive for select using (damaged(document_id))"
DAMAGE = {
    "a body is read": _READ.format("document_body"),
    "a chunk is staged": "create policy damage on chunk_stage as restrictive for insert with check (damaged(document_id))",
    "a staged chunk is read": _READ.format("chunk_stage"),
    "a chunk is written": "create policy damage on chunk as restrictive for insert with check (damaged(document_id))",
}


class TestAHinderedDatabase:
    """Its disk is full, or a table is not as it should be: that is no fault of a document."""

    @pytest.mark.parametrize("table", ["chunk_stage", "embedding_cache", "chunk"])
    def test_a_full_disk_makes_documents_wait_and_they_go_on_by_themselves(
        self, alone: SourceLedger, omniscient: SQL, table: str
    ) -> None:
        alone.admit(document("a", paragraphs(2)), document("b", paragraphs(2, "other")))
        omniscient.execute(f"{FULL} insert on {table} for each row execute function full_disk()")
        for _ in range(4):
            alone.documents.set(due_at=ago())
            alone.index()
        assert alone.documents.values("state", "attempts", "crash_count") == [("pending", 0, 0)] * 2
        assert all("No space left on device" in error for error in alone.documents.values("last_error"))
        alone.documents.set(due_at=ahead(minutes=1))
        with alone.database.control() as connection:
            told = overview.waiting(connection)
        assert told is not None, "the operator's screen says why nothing goes on"
        assert (told.documents, "No space left on device" in told.reason) == (2, True)
        assert alone.dead_letters() == []
        omniscient.execute(f"drop trigger full_disk on {table}")
        alone.documents.set(due_at=ago())
        alone.index()
        assert {r["state"] for r in alone.documents()} == {"done"}

    def test_what_the_database_cannot_take_does_not_hold_up_the_others(
        self, alone: SourceLedger, omniscient: SQL
    ) -> None:
        alone.admit(*(document(i, paragraphs(2, i)) for i in ("a", "bad", "c")))
        when = "when (new.content like 'bad %')"
        omniscient.execute(f"{FULL} insert on chunk for each row {when} execute function full_disk()")
        alone.index()
        assert {i: alone.row(i)["state"] for i in ("a", "bad", "c")} == {
            "a": "done",
            "bad": "pending",
            "c": "done",
        }

    @pytest.mark.parametrize("place", DAMAGE)
    def test_rows_that_cannot_be_read_are_a_fault_of_their_document_alone(
        self, alone: SourceLedger, omniscient: SQL, place: str
    ) -> None:
        """The same batch holds them, so its other documents would wait for ever, too."""
        alone.admit(*(document(i, paragraphs(2, i)) for i in ("a", "bad", "c")))
        omniscient.execute(DAMAGED.format(alone.id("bad")) + DAMAGE[place])
        for _ in range(3):
            alone.index()
            alone.documents.set({"state": "pending"}, due_at=ago())
        assert {i: alone.row(i)["state"] for i in ("a", "bad", "c")} == {
            "a": "done",
            "bad": "dead",
            "c": "done",
        }
        (letter,) = alone.dead_letters()
        assert (letter["code"], letter["attempts"]) == ("E001", 2)
        assert "missing chunk number 0 (XX001)" in letter["reason"]

    def test_a_database_that_fails_over_every_document_kills_none(
        self, alone: SourceLedger, omniscient: SQL
    ) -> None:
        alone.admit(*(document(f"{n}") for n in range(dead.MOST_DAMAGED + 1)))
        omniscient.execute(DAMAGED.format(alone.tenant).replace("p_document", "p_tenant"))
        omniscient.execute(DAMAGE["a body is read"].replace("document_id", "tenant_id"))
        for _ in range(5):
            alone.index()
            alone.documents.set(due_at=ago())
        assert alone.documents.values("state") == ["pending"] * (dead.MOST_DAMAGED + 1)
        assert min(alone.documents.values("waits")) > 2
        assert alone.dead_letters() == []

    def test_documents_that_could_not_be_given_back_at_once_have_not_crashed(
        self, alone: SourceLedger, omniscient: SQL, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(work_in_progress, "GIVE_BACK_SECONDS", 0.05)
        alone.admit(document("a"))
        through(alone, "embed")
        omniscient.execute("""
            create sequence tries; grant usage on sequence tries to public;
            create function short_of_memory() returns trigger language plpgsql as $$ begin
                if nextval('tries') < 4 then raise exception 'out of memory' using errcode = '53200'; end if;
                return new; end $$;
            create trigger short_of_memory before update on index_work for each row
                when (old.lease_token is not null and new.lease_token is null) execute function short_of_memory()""")
        assert alone.indexer().embed(alone.tenant, alone.items()).ready == []
        row = alone.row("a")
        assert (row["state"], row["lease_token"], row["crash_count"], row["waits"]) == ("pending", None, 0, 1)


class TestSlices:
    def test_a_long_embed_stops_and_goes_on_later(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(3, "a")), document("b", paragraphs(6, "b")))
        through(notes, "embed")
        notes.embedder = embedder = Picky()
        indexer, todo = notes.indexer(slice_seconds=-1.0), notes.items()
        slices = 0
        while todo:
            step = indexer.embed(notes.tenant, todo)
            slices, todo = slices + 1, step.requeued
            assert embedder.calls == slices
        assert (slices, len(embedder.seen)) == (3, 9)
        assert notes.row("b")["crash_count"] == 0
        indexer.upsert(notes.tenant, notes.items())
        assert len(notes.contents("b")) == 6
        assert notes.texts_counted() == (9, 0)

    def test_of_many_large_documents_some_are_cut_and_the_others_wait_for_their_turn(
        self, notes: SourceLedger, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(work_in_progress, "BATCH_BYTES", 1000)
        notes.admit(*(document(name, "x" * 3000) for name in "abc"))
        slow, todo = notes.indexer(slice_seconds=-1.0), notes.items()
        cut = [slow.chunk(notes.tenant, todo) for _ in range(3)]
        assert [(len(one.ready), len(one.requeued)) for one in cut] == [(1, 2), (1, 1), (1, 0)]
        assert {row["stage"] for row in notes.documents()} == {"chunked"}
        assert set(notes.documents.values("crash_count", "lease_token")) == {(0, None)}

    @pytest.mark.parametrize("step", ["bodies", "batches_by_size"])
    @pytest.mark.parametrize(("fault", "staged"), [(StoreUnavailable, 0), (StoreHindered, 3)])
    def test_no_document_counts_as_crashed_when_the_database_fails_at_a_later_part(
        self,
        notes: SourceLedger,
        monkeypatch: pytest.MonkeyPatch,
        step: str,
        fault: type[LarderError],
        staged: int,
    ) -> None:
        monkeypatch.setattr(work_in_progress, "BATCH_BYTES", 1000)
        notes.admit(*(document(name, "x" * 3000) for name in "abc"))
        real, calls = getattr(work_in_progress, step), list[object]()

        def fails_once(connection: Connection, ids: Sequence[UUID]) -> Any:
            calls.append(ids)
            if len(calls) == (2 if step == "bodies" else 1):
                raise fault("the server ends")
            return real(connection, ids)

        monkeypatch.setattr(work_in_progress, step, fails_once)
        with suppress(StoreUnavailable):
            notes.indexer().chunk(notes.tenant, notes.items())
        assert set(notes.documents.values("crash_count", "lease_token")) == {(0, None)}
        done = notes.documents(stage="chunked")
        assert len(done) == staged or (fault is StoreUnavailable and len(done) == (step == "bodies"))

    def test_documents_of_usual_size_are_cut_and_written_together(self, notes: SourceLedger) -> None:
        notes.admit(*(document(str(n), paragraphs(2, str(n))) for n in range(9)))
        with notes.database.tenant(notes.tenant) as connection:
            ids = [item.document_id for item in notes.items()]
            assert work_in_progress.batches_by_size(connection, ids) == [ids]
        assert len(notes.indexer(slice_seconds=-1.0).chunk(notes.tenant, notes.items()).ready) == 9

    def test_the_lease_is_renewed_between_calls(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(9)))
        through(notes, "embed")
        seen: list[float] = []

        def look() -> None:
            given_up = time.monotonic() + 20
            while (until := notes.row("a")["lease_until"]) < ago(seconds=1) and time.monotonic() < given_up:
                time.sleep(0.01)
            seen.append((until - ago()).total_seconds())
            notes.set("a", lease_until=until - timedelta(seconds=10))

        notes.embedder = Picky(meanwhile=look)
        notes.indexer(lease=0.001).embed(notes.tenant, notes.items())
        assert len(seen) == 3
        assert min(seen[1:]) > -1

    def test_a_model_is_not_loaded_for_chunking(self, notes: SourceLedger) -> None:
        loaded: list[int] = []

        def load() -> Embedder:
            loaded.append(1)
            return notes.embedder

        notes.admit(document("a"))
        indexer = notes.indexer(embedder=load)
        indexer.chunk(notes.tenant, notes.items())
        assert loaded == []
        indexer.embed(notes.tenant, notes.items())
        assert loaded == [1]
