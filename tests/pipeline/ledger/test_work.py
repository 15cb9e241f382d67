"""Claims, their end in every way, and the experiment that shows what the guards are for."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from uuid import uuid4

import pytest

from pipeline.chunking.strategies import Chunker
from pipeline.documents import Chunk, Document, Page
from pipeline.errors import DocumentRejected, EmbedderUnavailable, LarderError
from pipeline.ledger import Item, Stage, admission, documents, runs, sources, work
from pipeline.ledger.search_indexes import IndexedDocument
from tests.ledger import ago
from tests.pipeline.source_ledger import LEASE, SourceLedger, document, paragraphs


def claim_items(notes: SourceLedger, items: list[Item], stage: Stage = Stage.FETCHED) -> work.Claim:
    with notes.database.tenant(notes.tenant) as connection:
        return work.claim(connection, notes.tenant, stage, items, lease=LEASE)


def fail(
    notes: SourceLedger, claimed: work.Claim, error: LarderError, *, delay: float = 60, dead: bool = False
) -> None:
    with notes.database.tenant(notes.tenant) as connection:
        work.fail(connection, claimed, claimed.ids, error, delay=delay, dead=dead)


def finish(notes: SourceLedger, claimed: work.Claim) -> int:
    with notes.database.tenant(notes.tenant) as connection:
        mine = work.still_ours(connection, claimed)
        results = [IndexedDocument(document_id=i, version=1, chunks=0, written=0) for i in mine]
        return work.finish(connection, claimed, results)


def seconds_until(notes: SourceLedger, external_id: str, column: str) -> float:
    due: datetime = notes.row(external_id)[column]
    return (due - ago()).total_seconds()


class TestClaiming:
    def test_a_document_is_claimed_once(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        first = notes.claim("a", "b")
        assert sorted(first.documents) == sorted([notes.id("a"), notes.id("b")])
        assert notes.claim("a", "b").ids == []

    def test_of_many_claimers_at_once_one_gets_each_document(self, notes: SourceLedger) -> None:
        notes.admit(*(document(f"d{n}") for n in range(40)))
        items, barrier = notes.items(), threading.Barrier(4)
        claims: list[work.Claim] = []

        def compete(seed: int) -> None:
            mine = random.Random(seed).sample(items, len(items))
            barrier.wait()
            claims.extend(claim_items(notes, mine[at : at + 4]) for at in range(0, len(mine), 4))

        threads = [threading.Thread(target=compete, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken = [i for claimed in claims for i in claimed.ids]
        assert len(taken) == len(set(taken)) <= 40
        taken += claim_items(notes, items).ids
        assert sorted(taken) == sorted(i.document_id for i in items)

    def test_an_old_version_another_stage_and_a_stranger_are_skipped(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.admit(document("a", "edited"))
        assert claim_items(notes, [Item(notes.id("a"), 1)]).ids == []
        assert claim_items(notes, [Item(notes.id("a"), 2)], Stage.CHUNKED).ids == []
        assert claim_items(notes, [Item(uuid4(), 1)]).ids == []
        assert claim_items(notes, [Item(notes.id("a"), 2)]).ids == [notes.id("a")]

    @pytest.mark.parametrize("state", ["done", "dead"])
    def test_settled_documents_are_skipped(self, notes: SourceLedger, state: str) -> None:
        notes.admit(document("a"))
        notes.set("a", state=state)
        assert notes.claim("a").ids == []

    def test_the_crash_is_counted_before_the_work(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.claim("a")
        assert notes.row("a")["crash_count"] == 1

    def test_an_expired_lease_lets_another_claim(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        first = notes.claim("a", lease=-1)
        second = notes.claim("a")
        assert second.ids == [notes.id("a")]
        assert second.token != first.token
        assert notes.row("a")["crash_count"] == 2

    def test_those_that_crashed_are_not_taken_together_again_by_a_doubled_message(
        self, notes: SourceLedger
    ) -> None:
        notes.admit(document("poison"), document("innocent"), document("late"))
        for external_id in ("poison", "innocent"):
            notes.set(external_id, crash_count=1)
        assert notes.claim("poison", "innocent", "late").ids == [notes.id("late")]
        assert notes.claim("innocent").ids == [notes.id("innocent")]

    def test_what_crashed_too_often_is_left_to_the_pump(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        for _ in range(3):
            assert notes.claim("a", lease=-1).ids == [notes.id("a")]
        assert notes.claim("a").ids == []  # a late message comes before the pump
        assert notes.row("a")["crash_count"] == 3

    def test_a_doubled_message_does_not_cut_a_wait_short(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        fail(notes, notes.claim("a"), EmbedderUnavailable("busy", retry_after=60))
        assert notes.claim("a").ids == []
        notes.set("a", due_at=ago())
        assert notes.claim("a").ids == [notes.id("a")]

    def test_it_tells_what_a_store_must_know(self, notes: SourceLedger) -> None:
        notes.admit(document("a", url="u", tags=("t",), metadata={"k": 1}))
        (stored,) = notes.claim("a").documents.values()
        assert (stored.title, stored.source, stored.url) == ("Title of a", "notes", "u")
        assert (stored.tags, stored.metadata, stored.version) == (("t",), {"k": 1}, 1)
        assert stored.project_id == notes.project

    def test_renewing_moves_only_our_leases(self, notes: SourceLedger) -> None:
        notes.admit(document("a"), document("b"))
        claimed = notes.claim("a", "b", lease=1)
        notes.set("b", lease_token=uuid4())
        with notes.database.tenant(notes.tenant) as connection:
            work.renew(connection, claimed, lease=500)
        assert seconds_until(notes, "a", "lease_until") > 400
        assert seconds_until(notes, "b", "lease_until") < 2


class TestMovingOn:
    def test_the_next_stage_starts_with_a_clean_slate(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.set("a", last_error="x", crash_count=1)
        claimed = notes.claim("a")
        with notes.database.tenant(notes.tenant) as connection:
            ready = work.advance(connection, claimed, claimed.ids, Stage.CHUNKED)
        row = notes.row("a")
        assert ready == [Item(notes.id("a"), 1)]
        assert (row["stage"], row["crash_count"], row["last_error"], row["lease_token"]) == (
            "chunked",
            0,
            None,
            None,
        )
        assert row["enqueued_at"] is None, "it is chosen by turns"
        notes.set("a", due_at=ago(hours=1))
        claimed = notes.claim("a", stage=Stage.CHUNKED)
        assert seconds_until(notes, "a", "due_at") < -3000, "it keeps its turn"
        with notes.database.tenant(notes.tenant) as connection:
            work.advance(connection, claimed, claimed.ids, Stage.EMBEDDED)
        assert notes.row("a")["enqueued_at"] is not None, "whoever advanced it sends the message"
        assert seconds_until(notes, "a", "due_at") > -60, "a load that waited for its turns is not late"

    def test_giving_back_is_no_crash(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.set("a", stage="embedded", crash_count=1)
        claimed = notes.claim("a", stage=Stage.EMBEDDED)
        with notes.database.tenant(notes.tenant) as connection:
            again = work.put_back(connection, claimed, claimed.ids, Stage.CHUNKED)
        row = notes.row("a")
        assert again == [Item(notes.id("a"), 1)]
        assert (row["stage"], row["crash_count"], row["lease_token"]) == ("chunked", 1, None)
        claimed = notes.claim("a", stage=Stage.CHUNKED)
        with notes.database.tenant(notes.tenant) as connection:
            work.put_back(connection, claimed, claimed.ids)
        assert notes.row("a")["stage"] == "chunked"

    def test_finishing_makes_the_wanted_version_the_searchable_one(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), run=run)
        notes.set("a", attempts=3)
        claimed = notes.claim("a")
        assert finish(notes, claimed) == 1
        row = notes.row("a")
        assert (row["state"], row["stage"], row["indexed_version"], row["generation"]) == (
            "done",
            "done",
            1,
            1,
        )
        assert (row["indexed_hash"], row["indexed_pipeline"]) == (
            row["desired_hash"],
            row["pipeline_version"],
        )
        assert (row["crash_count"], row["attempts"], row["lease_token"], row["enqueued_at"]) == (
            0,
            0,
            None,
            None,
        )
        assert row["last_indexed"] is not None
        assert notes.run_items.one()["outcome"] == "done"

    def test_finishing_resolves_the_dead_letter(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        fail(notes, notes.claim("a"), DocumentRejected("x"), dead=True)
        assert len(notes.dead_letters()) == 1
        notes.set("a", state="pending", due_at=ago())
        finish(notes, notes.claim("a"))
        assert notes.dead_letters() == []

    def test_a_version_that_is_searchable_already_is_not_finished_again(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        claimed = notes.claim("a")
        assert finish(notes, claimed) == 1
        assert finish(notes, claimed) == 0
        assert notes.row("a")["generation"] == 1


class TestLateFinishers:
    """A worker that was paused past its lease wakes up while another is at it, or was."""

    def test_they_write_nothing(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        late = notes.claim("a", lease=-1)
        notes.claim("a")
        before = notes.row("a")
        assert finish(notes, late) == 0
        fail(notes, late, DocumentRejected("x"), dead=True)
        with notes.database.tenant(notes.tenant) as connection:
            assert work.advance(connection, late, late.ids, Stage.CHUNKED) == []
            assert work.put_back(connection, late, late.ids, Stage.EMBEDDED) == []
            work.renew(connection, late, lease=9999)
        assert notes.row("a") == before
        assert notes.dead_letters() == []
        assert notes.run_items.one()["outcome"] is None

    def test_a_result_that_skipped_the_question_settles_nothing(self, notes: SourceLedger) -> None:
        notes.admit(document("a", paragraphs(2)))
        notes.indexer().chunk(notes.tenant, notes.items())
        late = notes.claim("a", stage=Stage.CHUNKED, lease=-1)
        notes.claim("a", stage=Stage.CHUNKED)
        with notes.database.tenant(notes.tenant) as connection:
            results = [IndexedDocument(document_id=i, version=1, chunks=9, written=9) for i in late.ids]
            assert work.finish(connection, late, results) == 0
        assert notes.run_items.one()["outcome"] is None
        assert len(notes.staged_chunks()) == 2


class TestFailing:
    def test_passing_trouble_waits_and_is_no_crash(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        fail(notes, notes.claim("a"), EmbedderUnavailable("busy", fix="wait"), delay=60)
        row = notes.row("a")
        assert (row["state"], row["attempts"], row["crash_count"]) == ("pending", 1, 0)
        assert (row["lease_token"], row["enqueued_at"], row["last_error"]) == (None, None, "busy (wait)")
        assert 55 < seconds_until(notes, "a", "due_at") <= 60
        assert notes.run_items.one()["outcome"] is None

    def test_what_will_not_work_is_laid_aside_with_its_reason(self, notes: SourceLedger) -> None:
        notes.admit(document("a", "the secret text"))
        notes.set("a", stage="chunked")
        claimed = notes.claim("a", stage=Stage.CHUNKED)
        fail(notes, claimed, DocumentRejected("broken", fix="mend it"), dead=True)
        (letter,) = notes.dead_letters()
        assert (letter["stage"], letter["code"], letter["reason"]) == ("chunked", "E003", "broken (mend it)")
        assert (letter["version"], letter["attempts"], letter["document_id"]) == (1, 1, notes.id("a"))
        assert notes.row("a")["state"] == "dead"
        assert notes.run_items.one()["outcome"] == "dead"
        assert "secret" not in str(dict(letter))

    def test_one_letter_per_version(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        for _ in range(2):
            fail(notes, notes.claim("a"), DocumentRejected("x"), dead=True)
            notes.set("a", state="pending", due_at=ago())
        assert len(notes.dead_letters()) == 1
        notes.admit(document("a", "edited"))
        fail(notes, notes.claim("a"), DocumentRejected("x"), dead=True)
        assert [letter["version"] for letter in notes.dead_letters()] == [2], (
            "nobody can act on the first any more"
        )


class TestCounting:
    def test_texts_are_told_per_document_and_version(self, notes: SourceLedger) -> None:
        run = notes.open_run()
        notes.admit(document("a"), document("b"), run=run)
        notes.claim("a", "b")
        a, b = notes.id("a"), notes.id("b")
        versions = {a: 1, b: 1}
        with notes.database.tenant(notes.tenant) as connection:
            runs.count_texts(connection, versions, {a: 3}, {a: 1, b: 2}, {a: 2})
            runs.count_texts(connection, versions, {b: 1}, {}, {b: 1})
            found = runs.progress(connection, [run])[run]
        assert (found["texts_embedded"], found["texts_reused"], found["texts_cut"]) == (4, 3, 3)

    def test_what_this_run_embedded_itself_is_not_reused_later(self, notes: SourceLedger) -> None:
        notes.admit(document("a"))
        notes.claim("a")
        a = notes.id("a")
        versions = {a: 1}
        with notes.database.tenant(notes.tenant) as connection:
            runs.count_texts(connection, versions, {a: 3}, {}, {})
            assert runs.count_texts(connection, versions, {a: 2}, {a: 4}, {}) == 1
        assert notes.run_items.values("texts_embedded", "texts_reused") == [(5, 1)]


# The experiment ----------------------------------------------------------------------------------


@dataclass
class SlowChunker:
    """Often takes long over a document, so that a newer version overtakes it."""

    chunker: Chunker
    version: str = "slow-1"

    def chunk(self, document: Document) -> list[Chunk]:
        if random.random() < 0.4:
            time.sleep(0.1)
        return self.chunker.chunk(document)


DOCUMENTS, VERSIONS, WRITERS, PER_PAGE = 40, 5, 8, 5


def arrivals() -> list[list[Document]]:
    """Each document in five versions, in random order, cut into pages."""
    every = [
        document(f"d{n}", paragraphs(3, f"document {n} edition {v} ."))
        for n in range(DOCUMENTS)
        for v in range(VERSIONS)
    ]
    random.Random(7).shuffle(every)
    return [every[at : at + PER_PAGE] for at in range(0, len(every), PER_PAGE)]


def storm(notes: SourceLedger) -> list[LarderError]:
    """Eight writers take pages in and work on them at once; then one brings all that waits to its end."""
    run, pages = notes.open_run(), arrivals()
    with notes.database.tenant(notes.tenant) as connection:
        token = sources.claim(connection, notes.source, lease=LEASE)
    assert token is not None
    notes.chunker = SlowChunker(notes.chunker)
    indexer, lock = notes.indexer(), threading.Lock()
    faults: list[LarderError] = []

    def write() -> None:
        while True:
            with lock:
                page = pages.pop() if pages else None
            if page is None:
                return
            try:
                with notes.database.tenant(notes.tenant) as connection:
                    sources.renew(connection, notes.source, token, lease=LEASE)
                    admission.admit(connection, notes.where(run), Page(cursor={}, documents=tuple(page)))
                items = notes.items(*(d.external_id for d in page))
                for step in (indexer.chunk, indexer.embed, indexer.upsert):
                    step(notes.tenant, items)
            except LarderError as error:
                faults.append(error)

    threads = [threading.Thread(target=write) for _ in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(10):
        notes.documents.set({"state": "pending"}, lease_token=None, lease_until=None, due_at=ago())
        if not notes.items():
            break
        notes.index()
    return faults


def test_what_no_index_has_is_counted_with_its_error(alone: SourceLedger) -> None:
    alone.admit(document("a"), document("b"))
    alone.index(alone.items("a"))
    alone.set("b", last_error="it is too long", waits=1)
    with alone.database.tenant(alone.tenant) as connection:
        assert documents.never_indexed(connection) == (1, "it is too long")
        assert documents.seconds_put_off(connection) is not None
        assert documents.restart_pending(connection) == alone.items("b")


@pytest.mark.req("002-011")
def test_versions_in_any_order_leave_no_damage(
    alone: SourceLedger, audit: Callable[[], dict[str, int]]
) -> None:
    faults = storm(alone)
    assert faults == []
    assert audit() == {"unfinished": 0, "lost": 0, "stale": 0, "mixed": 0, "doubled": 0}
    assert len(alone.documents(state="done")) == DOCUMENTS
    assert set(alone.run_items.values("outcome")) == {"done"}


def test_without_the_guards_the_audit_sees_damage(
    alone: SourceLedger, audit: Callable[[], dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same storm with the question for ownership answered by yes: what makes the test above worth its name."""
    monkeypatch.setattr(work, "still_ours", lambda _connection, claimed: claimed.ids)
    for _ in range(8):  # one storm in six does none by chance
        storm(SourceLedger(alone.database, uuid4(), uuid4()))
        found = audit()
        if found["stale"] + found["mixed"] + found["doubled"] + found["lost"]:
            return
    pytest.fail(f"no damage in eight storms: {found}")
