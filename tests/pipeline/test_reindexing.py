"""Filling a second search index in a real database: nothing missing, nothing stale, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from pipeline.chunking import ChunkingOptions, open_chunker
from pipeline.documents import Page
from pipeline.embedding import Vectors
from pipeline.embedding.hashing import HashingEmbedder
from pipeline.errors import EmbedderRefused, EmbedderUnavailable, LarderError, TextRejected
from pipeline.indexing import Decision
from pipeline.ledger import Item, Limits, dead, followers, vectors
from pipeline.ledger.fills import FillClaim
from pipeline.reindexing import Filler
from pipeline.stores.pgvector import SearchIndex, active_index, indexes
from pipeline.stores.search_indexes import WantedIndex, activate, begin_index, drop_index
from tests.pipeline.workshop import Workshop, document, paragraphs, retry_once

OTHER = 16
LIMITS = Limits(resend=60)


class Shelf:
    """A workshop with a second index beside the active one."""

    def __init__(self, shop: Workshop, strategy: str = "") -> None:
        self.shop = shop
        self.embedder = HashingEmbedder(OTHER)
        wanted = WantedIndex(
            provider="hashing", model=f"hashing-{OTHER}", dimensions=OTHER, strategy=strategy
        )
        with shop.database.control() as connection:
            self.index = begin_index(connection, wanted, chunker="structure")

    def filler(self, index: SearchIndex | None = None, **changes: Any) -> Filler:
        index = index or self.index
        plain: dict[str, Any] = {
            "database": self.shop.database,
            "index": index,
            "embedder": lambda _tenant: HashingEmbedder(index.dimensions),
            "chunker_of": lambda _name, _type: self.shop.chunker,
            "decide": retry_once,
        }
        return Filler(**{**plain, **changes})

    def due(self, index: SearchIndex | None = None) -> list[followers.Due]:
        """What a look of the pump would send."""
        with self.shop.database.control() as connection:
            connection.execute(text("update index_document set enqueued_at = null"))
            return followers.choose(connection, (index or self.index).id, LIMITS)

    def fill(self, index: SearchIndex | None = None, **changes: Any) -> list[Item]:
        """Fill all that is due; returns what is to be looked at once more."""
        again: list[Item] = []
        for one in self.due(index):
            again += self.filler(index, **changes).fill(one.tenant_id, one.items)
        return again

    def progress(self, index: SearchIndex | None = None) -> followers.Progress:
        with self.shop.database.control() as connection:
            return followers.progress(connection, (index or self.index).id)

    def switch(self) -> None:
        with self.shop.database.control() as connection:
            old = active_index(connection)
            assert old is not None
            new = next(i for i in indexes(connection) if i.id != old.id)
            activate(connection, new, old)

    def contents(self, index: SearchIndex | None = None) -> dict[str, list[str]]:
        """Texts in an index by the document's name."""
        rows = self.shop.sql(
            """select d.external_id, c.content from chunk c join document d on d.id = c.document_id
               where c.index_id = :i order by d.external_id, c.ord""",
            i=(index or self.index).id,
        )
        found: dict[str, list[str]] = {}
        for row in rows:
            found.setdefault(row["external_id"], []).append(row["content"])
        return found


@pytest.fixture
def shelf(alone: Workshop) -> Shelf:
    """Two documents that are searchable, and an empty second index."""
    alone.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "other")))
    alone.index()
    return Shelf(alone)


class Counting(HashingEmbedder):
    """Knows what it was paid for, and refuses texts with a certain word."""

    def __init__(self, dimensions: int, refuses: str = "\0") -> None:
        super().__init__(dimensions)
        self.refuses = refuses
        self.seen: list[str] = []

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        if any(self.refuses in one for one in texts):
            raise TextRejected("too rude")
        self.seen += texts
        return super().embed_documents(texts)


def first(shelf: Shelf) -> SearchIndex:
    with shelf.shop.database.control() as connection:
        found = active_index(connection)
    assert found is not None
    return found


def test_it_is_filled_with_what_the_active_index_has(shelf: Shelf) -> None:
    assert shelf.progress().missing == 2
    shelf.fill()
    p = shelf.progress()
    assert (p.total, p.missing, p.stale, p.dead, p.chunks, p.lag_seconds) == (2, 0, 0, 0, 5, None)
    assert shelf.contents() == shelf.contents(first(shelf))
    dims = shelf.shop.sql(
        "select index_id, vector_dims(embedding) as n, count(*) from chunk group by 1, 2 order by 1"
    )
    assert [(row["n"], row["count"]) for row in dims] == [(32, 5), (OTHER, 5)]
    assert shelf.due() == []


def test_each_index_has_its_own_centroids(shelf: Shelf) -> None:
    shelf.fill()
    rows = shelf.shop.sql(
        "select distinct index_id, vector_dims(centroid) as n from index_document order by 1"
    )
    assert [row["n"] for row in rows] == [32, OTHER]


def test_another_way_of_cutting_takes_the_stored_text(alone: Workshop) -> None:
    alone.admit(document("a", paragraphs(3)))
    alone.index()
    shelf = Shelf(alone, strategy="fixed")
    chunker = open_chunker(ChunkingOptions(strategy="fixed", min_size=0, max_size=60, overlap=0))
    shelf.fill(chunker_of=lambda _name, _type: chunker)
    contents = shelf.contents()["a"]
    assert len(contents) > 3
    assert max(map(len, contents)) <= 60
    assert alone.value("select chunk_count from index_document where index_id = :i", i=shelf.index.id) == len(
        contents
    )


def test_a_document_without_text_is_full_too(alone: Workshop) -> None:
    alone.admit(document("empty", " \n"))
    alone.index()
    shelf = Shelf(alone)
    shelf.fill()
    assert (shelf.progress().missing, shelf.progress().chunks) == (0, 0)


def test_changes_go_to_every_index_before_and_after_a_switch(shelf: Shelf) -> None:
    shop, old = shelf.shop, first(shelf)
    shelf.fill()
    shop.admit(document("a", "Changed while it is filled."))
    shop.index()
    assert (shelf.progress().missing, shelf.progress().stale) == (1, 1)
    shelf.fill()
    assert shelf.contents()["a"] == ["Changed while it is filled."]
    shelf.switch()
    shop.admit(document("a", "Changed after the switch."), document("c", "New after the switch."))
    index_active(shelf)
    assert shelf.contents()["a"] == ["Changed after the switch."]
    assert shelf.contents(old)["a"] == ["Changed while it is filled."], "the old one follows in a moment"
    shelf.fill(old)
    assert shelf.contents(old) == shelf.contents()
    assert shelf.progress(old).missing == 0


def index_active(shelf: Shelf) -> None:
    """The ordinary way, into the index that is active now."""
    index = first(shelf)
    shelf.shop.index(
        model=index.model,
        embedder=lambda: HashingEmbedder(index.dimensions),
        index=active_index,
    )


def test_a_switch_in_the_middle_of_the_ordinary_way_mixes_nothing(shelf: Shelf) -> None:
    shop = shelf.shop
    shelf.fill()
    shop.admit(document("a", "On its way during the switch."))
    indexer = shop.indexer(index=active_index)
    indexer.chunk(shop.tenant, shop.items())
    indexer.embed(shop.tenant, shop.items())
    items = shop.items()
    shelf.switch()
    step = indexer.upsert(shop.tenant, items)  # a worker that learned of the old index before the switch
    assert [i.document_id for i in step.again] == [shop.id("a")]
    assert shop.row("a")["stage"] == "chunked"
    index_active(shelf)
    assert shelf.contents()["a"] == ["On its way during the switch."]


def test_another_way_of_cutting_begins_waiting_work_anew(alone: Workshop) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    shelf = Shelf(alone, strategy="fixed")
    alone.admit(document("a", paragraphs(3)))
    alone.indexer().chunk(alone.tenant, alone.items())
    claimed = alone.row("a")["stage"]
    shelf.switch()
    assert (claimed, alone.row("a")["stage"]) == ("chunked", "fetched")


def test_an_index_made_active_too_early_is_filled_all_the_same(shelf: Shelf) -> None:
    before = shelf.shop.value("select string_agg(stamp\\:\\:text, '') from change_stamp")
    shelf.switch()
    shelf.fill()
    assert shelf.progress().missing == 0
    after = shelf.shop.value("select string_agg(stamp\\:\\:text, '') from change_stamp")
    assert before != after, "answers that were kept from before no longer hold"


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_deleted_document_is_gone_from_every_index(shelf: Shelf, moment: str) -> None:
    shop = shelf.shop

    def delete() -> None:
        shop.admit_page(Page(cursor={}, documents=(), deleted=("a",)))

    class Deleting(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            delete()
            return super().embed_documents(texts)

    due = shelf.due()
    if moment == "before":
        delete()
    maker = Deleting if moment == "during" else HashingEmbedder
    for one in due:
        shelf.filler(embedder=lambda _tenant: maker(OTHER)).fill(one.tenant_id, one.items)
    if moment == "after":
        delete()
    assert set(shelf.contents()) == {"b"}
    assert shop.value("select count(*) from chunk where document_id = :id", id=shop.id("a")) == 0
    assert shop.value("select count(*) from index_document where document_id = :id", id=shop.id("a")) == 0
    assert shelf.progress().missing == 0


def test_a_hidden_document_needs_no_work_in_any_index(shelf: Shelf) -> None:
    shelf.fill()
    shelf.shop.set("a", "hidden = true")
    assert (shelf.progress().missing, shelf.due()) == (0, [])


def test_what_was_sent_is_not_sent_again_until_its_message_counts_as_lost(shelf: Shelf) -> None:
    def sent(resend: float = LIMITS.resend) -> list[dict[UUID, int]]:
        with shelf.shop.database.control() as connection:
            due = followers.choose(connection, shelf.index.id, replace(LIMITS, resend=resend))
        return [dict(one.sizes) for one in due]

    chunks = {shelf.shop.id("a"): 3, shelf.shop.id("b"): 2}
    assert sent() == [chunks]
    assert sent() == []
    shelf.shop.sql("update index_document set enqueued_at = enqueued_at - interval '10 seconds'")
    assert sent(resend=60) == []
    assert sent(resend=5) == [chunks]


def test_a_killed_worker_costs_a_lease_and_nothing_else(shelf: Shelf) -> None:
    class Killed(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            raise SystemExit(len(texts))

    with pytest.raises(SystemExit):
        shelf.fill(embedder=lambda _tenant: Killed(OTHER))
    assert shelf.due() == [], "it is leased"
    shelf.shop.sql(
        "update index_document set lease_until = now() - interval '1 s' where lease_token is not null"
    )
    due = shelf.due()
    assert sorted(len(one.items) for one in due) == [1, 1], "those that crashed travel alone"
    shelf.fill()
    assert shelf.progress().missing == 0
    assert shelf.shop.value("select max(crash_count) from index_document") == 0


def test_one_that_kills_again_and_again_is_given_up_on_for_this_index_only(shelf: Shelf) -> None:
    shop, old = shelf.shop, first(shelf)
    shelf.due()
    shop.sql(
        """update index_document set crash_count = 3, lease_token = gen_random_uuid(),
           lease_until = now() - interval '1 s' where index_id = :i and document_id = :id""",
        i=shelf.index.id,
        id=shop.id("a"),
    )
    shelf.fill()
    p = shelf.progress()
    assert (p.missing, p.dead) == (1, 1)
    (letter,) = shop.dead_letters()
    assert (letter["stage"], letter["index_id"], letter["version"]) == ("fill", shelf.index.id, 1)
    assert shop.row("a")["state"] == "done"
    assert len(shelf.contents(old)["a"]) == 3


def test_a_text_that_is_refused_is_a_dead_letter_of_the_new_index_and_can_be_replayed(shelf: Shelf) -> None:
    shop, old = shelf.shop, first(shelf)

    class Picky(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            if any("other 1" in one for one in texts):
                raise TextRejected("it does not like that")
            return super().embed_documents(texts)

    shelf.fill(embedder=lambda _tenant: Picky(OTHER))
    assert set(shelf.contents()) == {"a"}
    assert len(shelf.contents(old)["b"]) == 2
    with shop.database.control() as connection:
        (letter,) = dead.listed(connection)
        assert (letter.item, letter.stage, letter.state) == ("b", "fill", "done")
        assert dead.count(connection) == 1
    assert shelf.due() == [], "it is not tried again by itself"
    with shop.database.tenant(shop.tenant) as connection:
        assert dead.replay(connection, [letter.document_id]) == [shop.id("b")]
    shelf.fill()
    assert set(shelf.contents()) == {"a", "b"}
    assert shop.dead_letters() == []


def test_a_newer_version_of_one_that_was_given_up_on_is_tried_again(shelf: Shelf) -> None:
    shop = shelf.shop
    shelf.due()
    shop.sql("update index_document set dead_version = 1 where index_id = :i", i=shelf.index.id)
    shop.admit(document("a", "A better text."))
    shop.index()
    shelf.fill()
    assert shelf.contents() == {"a": ["A better text."]}


@pytest.mark.parametrize("error", [EmbedderUnavailable("away"), EmbedderRefused("bad key")])
def test_trouble_of_the_provider_never_makes_a_dead_letter(shelf: Shelf, error: LarderError) -> None:
    class Away(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            error.retry_after = 60.0 * len(texts) if isinstance(error, EmbedderUnavailable) else None
            raise error

    def last_try(_error: LarderError, _attempts: int) -> Decision:
        return Decision(delay=0.0, dead=True)

    shelf.fill(embedder=lambda _tenant: Away(OTHER), decide=last_try)
    assert shelf.shop.dead_letters() == []
    assert shelf.progress().last_error is not None
    assert shelf.due() == [], "it waits"
    shelf.shop.sql("update index_document set due_at = now()")
    shelf.fill()
    assert (shelf.progress().missing, shelf.progress().last_error) == (0, None)


def test_no_text_is_embedded_twice(shelf: Shelf) -> None:
    asked: list[str] = []

    class Counting(HashingEmbedder):
        def embed_documents(self, texts: Sequence[str]) -> Vectors:
            asked.extend(texts)
            return super().embed_documents(texts)

    shelf.fill(embedder=lambda _tenant: Counting(OTHER))
    assert len(asked) == 5
    with shelf.shop.database.control() as connection:
        drop_index(connection, shelf.index)
    again = Shelf(shelf.shop)
    again.fill(embedder=lambda _tenant: Counting(OTHER))
    assert (again.progress().missing, len(asked)) == (0, 5)


def test_a_text_that_another_worker_is_embedding_is_waited_for(shelf: Shelf) -> None:
    other = FillClaim(tenant_id=shelf.shop.tenant, index=shelf.index.id, token=uuid4(), wanted={})
    texts = [bytes(row["hash"]) for row in shelf.shop.sql("select distinct hash from chunk order by 1")]
    with shelf.shop.database.tenant(shelf.shop.tenant) as connection:
        vectors.claim(connection, other, shelf.index.model, texts[:1], lease=60)
    counting = Counting(OTHER)
    assert shelf.fill(claims=True, embedder=lambda _tenant: counting) == []
    assert len(counting.seen) == len(texts) - 1
    assert shelf.progress().missing == 1
    with shelf.shop.database.tenant(shelf.shop.tenant) as connection:
        vectors.release(connection, other)
    shelf.shop.sql("update index_document set due_at = now() returning 1")
    shelf.fill(claims=True, embedder=lambda _tenant: counting)
    assert shelf.progress().missing == 0
    assert len(counting.seen) == len(set(counting.seen)) == len(texts)
    assert shelf.shop.value("select count(*) from embedding_claim") == 0


def test_the_good_texts_beside_a_refused_one_are_paid_once(shelf: Shelf) -> None:
    picky = Counting(OTHER, refuses="other")
    shelf.fill(embedder=lambda _tenant: picky)
    assert shelf.progress().missing == 1
    assert len(picky.seen) == len(set(picky.seen)) == 3


def test_vectors_come_from_an_index_of_the_same_model_if_the_cache_was_trimmed(alone: Workshop) -> None:
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    shelf = Shelf(alone)
    alone.sql("delete from embedding_cache")
    with alone.database.control() as connection:
        drop_index(connection, shelf.index)
        wanted = WantedIndex(provider="hashing", model="hashing-32", dimensions=32, strategy="fixed")
        same = begin_index(connection, wanted, chunker="structure")

    def never(_tenant: UUID) -> HashingEmbedder:
        raise AssertionError("nothing is left to embed")

    shelf.fill(same, embedder=never)
    assert shelf.progress(same).missing == 0


def test_a_slice_of_time_that_is_over_leaves_the_rest_for_the_next_message(shelf: Shelf) -> None:
    again = shelf.fill(embedder=lambda _tenant: HashingEmbedder(OTHER, batch_size=1), slice_seconds=0)
    assert again
    for _ in range(8):
        again = shelf.fill(embedder=lambda _tenant: HashingEmbedder(OTHER, batch_size=1), slice_seconds=0)
    assert (again, shelf.progress().missing) == ([], 0)
    assert shelf.shop.value("select max(crash_count) from index_document") == 0


def test_a_dead_document_is_copied_in_the_version_that_is_searchable(alone: Workshop) -> None:
    """Its newer text is there and poison; the older one is only in the chunks."""
    alone.admit(document("a", paragraphs(2)))
    alone.index()
    alone.admit(document("a", "Poison."))
    alone.set("a", "state = 'dead'")
    shelf = Shelf(alone, strategy="fixed")
    shelf.fill()
    assert shelf.contents()["a"] == shelf.contents(first(shelf))["a"]
    assert shelf.progress().missing == 0


def test_two_fillers_and_a_doubled_message_write_each_chunk_once(shelf: Shelf) -> None:
    due = shelf.due()
    for one in [*due, *due]:
        assert shelf.filler().fill(one.tenant_id, one.items) == []
    assert shelf.progress().chunks == 5
    assert shelf.shop.value("select count(*) from chunk where index_id = :i", i=shelf.index.id) == 5


def test_two_tenants_are_filled_each_from_its_own(shelf: Shelf) -> None:
    theirs = Workshop(shelf.shop.database, uuid4(), uuid4())
    theirs.admit(document("a", "A text of somebody else."))
    theirs.index()
    assert {one.tenant_id for one in shelf.due()} == {shelf.shop.tenant, theirs.tenant}
    shelf.fill()
    assert shelf.progress().missing == 0
    assert len(shelf.contents()["a"]) == 3
    found = theirs.sql("select content from chunk where index_id = :i", i=shelf.index.id)
    assert [row["content"] for row in found] == ["A text of somebody else."]


def test_an_index_that_is_dropped_meanwhile_takes_all_that_was_noted_with_it(shelf: Shelf) -> None:
    due = shelf.due()
    with shelf.shop.database.control() as connection:
        drop_index(connection, shelf.index)
    for one in due:
        assert shelf.filler().fill(one.tenant_id, one.items) == []
    assert shelf.shop.value("select count(*) from index_document where index_id = :i", i=shelf.index.id) == 0
    assert shelf.shop.dead_letters() == []
