"""Trouble while a second search index is filled: lost messages, dead workers, refused texts, and what is paid for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Chunk, Document
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import DocumentDamaged, EmbedderRefused, EmbedderUnavailable, LarderError, TextRejected
from pipeline.ingest import work_in_progress
from pipeline.ingest.steps import Decision
from pipeline.ingest.text_embedding import EmbeddingTerms
from pipeline.ledger import Lease, Stage, dead, due_work, embedding_use, search_indexes, upkeep, work
from pipeline.ledger.search_indexes import WantedIndex, begin_index, drop_index
from tests.ledger import ago, ahead
from tests.pipeline.second_index import LIMITS, OTHER, Counting, SecondIndex, due_fills, first
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs
from tests.pipeline.test_embed_step import CallBudget


def test_what_was_sent_is_not_sent_again_until_its_message_counts_as_lost(second_index: SecondIndex) -> None:
    def sent(resend: float = LIMITS.resend) -> list[set[UUID]]:
        with second_index.notes.database.control() as connection:
            due = due_fills(connection, second_index.index, replace(LIMITS, resend_fills=resend))
        return [{item.document_id for item in one.items} for one in due]

    both = {second_index.notes.id("a"), second_index.notes.id("b")}
    assert sent() == [both]
    assert sent() == []
    second_index.notes.work_items.set(enqueued_at=ago(seconds=10))
    assert sent(resend=60) == []
    assert sent(resend=5) == [both]


def test_a_killed_worker_costs_a_lease_and_nothing_else(second_index: SecondIndex) -> None:
    class Killed(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            raise SystemExit(len(texts))

    with pytest.raises(SystemExit):
        second_index.fill(embedder=lambda: Killed(OTHER))
    assert second_index.due() == [], "it is leased"
    second_index.notes.work_items.set(lease_until=ago(seconds=1))
    due = second_index.due()
    assert sorted(len(one.items) for one in due) == [1, 1], "those that crashed travel alone"
    second_index.fill()
    assert second_index.progress().missing == 0
    assert second_index.notes.work_items() == []


@pytest.mark.parametrize("moment", ["before delete", "before update of enqueued_at"])
def test_a_database_short_of_memory_costs_a_wait_and_no_crash(
    second_index: SecondIndex,
    omniscient: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """It takes neither what was filled nor the documents back, for a while."""
    monkeypatch.setattr(work_in_progress, "GIVE_BACK_SECONDS", 0.05)
    due = second_index.due()
    omniscient.execute(f"""
        create sequence tries; grant usage on sequence tries to public;
        create function short_of_memory() returns trigger language plpgsql as $$ begin
            if (tg_op = 'DELETE' or new.lease_token is null) and nextval('tries') < 4 then
                raise exception 'out of memory' using errcode = '53200'; end if;
            return coalesce(new, old); end $$;
        create trigger short_of_memory {moment} on index_work for each row execute function short_of_memory()""")
    for one in due:
        slow: dict[str, Any] = {
            "embedder": lambda: HashingEmbedder(OTHER, batch_size=1),
            "slice_seconds": -1.0,
        }
        second_index.filler(**({} if moment == "before delete" else slow)).fill(one.tenant_id, one.items)
    rows = second_index.notes.work_items.values("lease_token", "crash_count")
    assert rows == [(None, 0)] * 2
    second_index.notes.work_items.set(due_at=ago())
    second_index.fill()
    assert second_index.progress().missing == 0


def test_one_that_kills_again_and_again_is_given_up_on_for_this_index_only(second_index: SecondIndex) -> None:
    notes, old = second_index.notes, first(second_index)
    second_index.due()
    second_index.kill("a")
    second_index.fill()
    p = second_index.progress()
    assert (p.missing, p.dead) == (1, 1)
    (letter,) = notes.dead_letters()
    assert (letter["stage"], letter["index_id"], letter["version"]) == ("fill", second_index.index.id, 1)
    assert notes.row("a")["state"] == "done"
    assert len(second_index.contents(old)["a"]) == 3


def test_a_text_that_is_refused_is_a_dead_letter_of_the_new_index_and_can_be_replayed(
    second_index: SecondIndex,
) -> None:
    notes, old = second_index.notes, first(second_index)

    class Picky(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            if any("other 1" in one for one in texts):
                raise TextRejected("it does not like that")
            return super().embed_documents(texts)

    second_index.fill(embedder=lambda: Picky(OTHER))
    assert set(second_index.contents()) == {"a"}
    assert len(second_index.contents(old)["b"]) == 2
    with notes.database.control() as connection:
        (letter,) = dead.listed(connection)
        assert (letter.item, letter.stage, letter.state) == ("b", "fill", "done")
        assert dead.count(connection) == 1
    assert second_index.due() == [], "it is not tried again by itself"
    with notes.database.tenant(notes.tenant) as connection:
        assert dead.replay(connection, [letter.document_id]) == [notes.id("b")]
    second_index.fill()
    assert set(second_index.contents()) == {"a", "b"}
    assert notes.dead_letters() == []


def test_a_failure_that_may_pass_is_tried_again_and_then_given_up_on(alone: SourceLedger) -> None:
    class Failing:
        version = "failing-1"

        def chunk(self, document: Document) -> list[Chunk]:
            raise DocumentDamaged(f"rows of {document.external_id} cannot be read")

    alone.admit(document("a"))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    for attempts, letters in ((1, 0), (2, 1)):
        second_index.fill(chunker_of=lambda _name, _type: Failing())
        tried = alone.work_items.one()["attempts"]
        assert (tried, len(alone.dead_letters())) == (attempts, letters)
        alone.work_items.set(due_at=ago())
    assert second_index.due() == []


def test_a_late_message_about_one_that_was_given_up_on_fills_nothing(second_index: SecondIndex) -> None:
    (due,) = second_index.due()
    second_index.notes.work_items.set(second_index.index.id, dead=True)
    assert second_index.filler().fill(due.tenant_id, due.items).requeued == []
    assert second_index.contents() == {}


def test_filling_the_index_that_is_read_ends_the_answers_that_were_kept(second_index: SecondIndex) -> None:
    def stamps() -> list[object]:
        return second_index.notes.change_stamps.values("stamp")

    second_index.fill()
    second_index.notes.indexed.set(second_index.index.id, version=0)
    with second_index.notes.database.control() as connection:
        search_indexes.restart_check(connection, second_index.index.id)
    second_index.switch()
    before = stamps()
    second_index.fill()
    assert stamps() != before


def test_filling_the_index_that_is_read_tells_how_many_chunks_there_are_now(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(9)))
    alone.index()
    second_index = SecondIndex(alone, strategy="fixed")
    second_index.switch()
    cutter = open_chunker(ChunkingOptions(strategy="fixed", max_size=5000, overlap=0))
    second_index.fill(chunker_of=lambda _name, _type: cutter)
    assert len(second_index.contents()["a"]) == 1
    with alone.database.tenant(alone.tenant) as connection:
        assert upkeep.damaged(connection) == []


def test_a_newer_version_of_one_that_was_given_up_on_is_tried_again(second_index: SecondIndex) -> None:
    notes = second_index.notes
    second_index.due()
    notes.work_items.set(second_index.index.id, dead=True)
    notes.admit(document("a", "A better text."))
    notes.index()
    second_index.fill()
    assert second_index.contents() == {"a": ["A better text."]}


@pytest.mark.parametrize("error", [EmbedderUnavailable("away"), EmbedderRefused("bad key")])
def test_trouble_of_the_provider_never_makes_a_dead_letter(
    second_index: SecondIndex, error: LarderError
) -> None:
    class Away(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            error.retry_after = 60.0 * len(texts) if isinstance(error, EmbedderUnavailable) else None
            raise error

    def last_try(_error: LarderError, _attempts: int) -> Decision:
        return Decision(delay=60.0, dead=True)

    second_index.fill(embedder=lambda: Away(OTHER), decide=last_try)
    assert second_index.notes.dead_letters() == []
    assert second_index.progress().last_error is not None
    assert second_index.due() == [], "it waits"
    assert second_index.notes.work_items.values("attempts", "waits") == [(0, 1)] * 2
    assert second_index.notes.holds() == [], "it holds up no other index"
    second_index.notes.work_items.set(due_at=ago())
    second_index.fill()
    assert (second_index.progress().missing, second_index.progress().last_error) == (0, None)


def test_no_text_is_embedded_twice(second_index: SecondIndex) -> None:
    asked: list[str] = []

    class Counting(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            asked.extend(texts)
            return super().embed_documents(texts)

    second_index.fill(embedder=lambda: Counting(OTHER))
    assert len(asked) == 5
    with second_index.notes.database.control() as connection:
        drop_index(connection, second_index.index)
    again = SecondIndex(second_index.notes)
    again.fill(embedder=lambda: Counting(OTHER))
    assert (again.progress().missing, len(asked)) == (0, 5)


def test_a_text_that_another_worker_is_embedding_is_waited_for(second_index: SecondIndex) -> None:
    other = Lease(tenant_id=second_index.notes.tenant, token=uuid4())
    texts = [bytes(row["hash"]) for row in second_index.notes.chunks()]
    with second_index.notes.database.tenant(second_index.notes.tenant) as connection:
        embedding_use.claim_texts(connection, other, second_index.index.model, texts[:1], lease=60)
    counting, paid = Counting(OTHER), EmbeddingTerms(budget=lambda _tenant: CallBudget())
    assert second_index.fill(terms=paid, embedder=lambda: counting) == []
    assert len(counting.seen) == len(texts) - 1
    assert second_index.progress().missing == 1
    with second_index.notes.database.tenant(second_index.notes.tenant) as connection:
        embedding_use.release_texts(connection, other)
    second_index.notes.work_items.set(due_at=ago())
    second_index.fill(terms=paid, embedder=lambda: counting)
    assert second_index.progress().missing == 0
    assert len(counting.seen) == len(set(counting.seen)) == len(texts)
    assert len(second_index.notes.claimed_texts()) == 0


def test_the_good_texts_beside_a_refused_one_are_paid_once(second_index: SecondIndex) -> None:
    picky = Counting(OTHER, refuses="other")
    second_index.fill(embedder=lambda: picky)
    assert second_index.progress().missing == 1
    assert len(picky.seen) == len(set(picky.seen)) == 3


def test_vectors_come_from_an_index_of_the_same_model_if_the_cache_was_trimmed(alone: SourceLedger) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    second_index = SecondIndex(alone)
    alone.cached_vectors.clear()
    with alone.database.control() as connection:
        drop_index(connection, second_index.index)
        wanted = WantedIndex(provider="hashing", model="hashing-32", dimensions=32, strategy="fixed")
        same = begin_index(connection, wanted, chunker="structure")

    def never() -> HashingEmbedder:
        raise AssertionError("nothing is left to embed")

    second_index.fill(same, embedder=never)
    assert second_index.progress(same).missing == 0


def test_one_whose_vectors_were_trimmed_before_it_was_written_is_filled_later(
    second_index: SecondIndex,
) -> None:
    (due,) = second_index.due()
    claim = second_index.claim([item.document_id for item in due.items])
    with second_index.notes.database.tenant(second_index.notes.tenant) as connection:
        assert len(work.put_back(connection, claim, claim.ids, Stage.CHUNKED)) == 2
    second_index.fill()
    assert second_index.progress().missing == 0


def test_an_index_whose_provider_refuses_everything_holds_up_no_other(
    second_index: SecondIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(due_work, "FILLS_IN_FLIGHT", 2)
    notes = second_index.notes
    assert second_index.due()
    notes.work_items.set(due_at=ahead(hours=1), waits=1, enqueued_at=None, turn=None)
    second_index.switch()
    with notes.database.control() as connection:
        wanted = WantedIndex(provider="hashing", model="hashing-8", dimensions=8)
        new = begin_index(connection, wanted, chunker="structure")
    assert second_index.due(new)


def test_tenants_take_turns(second_index: SecondIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not their sources: who has more of them is filled no sooner."""
    notes = second_index.notes
    further = SourceLedger(notes.database, notes.tenant, notes.project, "further")
    other = SourceLedger(notes.database, uuid4(), uuid4())
    for one, most in ((notes, 12), (further, 12), (other, 3)):
        one.admit(*(document(f"d{n}") for n in range(most)))
        one.index()
    notes.work_items.set(due_at=ago(hours=1))
    monkeypatch.setattr(due_work, "FILLS_IN_FLIGHT", due_work.BLOCK + 3)
    sent = Counter[UUID]()
    for batch in second_index.due():
        sent[batch.tenant_id] += len(batch.items)
    assert sent == {notes.tenant: due_work.BLOCK, other.tenant: 3}


def test_whoever_comes_later_begins_where_the_others_are(
    second_index: SecondIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = second_index.notes
    second_index.fill()
    notes.admit(*(document(f"early {n}") for n in range(due_work.BLOCK + 4)))
    notes.index()
    monkeypatch.setattr(due_work, "FILLS_IN_FLIGHT", due_work.BLOCK + 2)
    for batch in second_index.due():
        second_index.filler().fill(batch.tenant_id, batch.items)
    notes.admit(document("late"))
    notes.index()
    monkeypatch.setattr(due_work, "FILLS_IN_FLIGHT", 2)
    sent = {item.document_id for batch in second_index.due() for item in batch.items}
    assert len(sent) == 2
    assert notes.id("late") not in sent
