"""What searches remember: vectors of questions, and answers that are given while the database is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest

from pipeline.database.engine import Database
from pipeline.documents import Kind, Listing
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import StoreUnavailable
from pipeline.ledger import admission
from pipeline.reranking import RerankOptions
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults, Weights, cache
from pipeline.search.cache import Caches, MemoryCache
from pipeline.search.records import Filter
from tests.ledger import ago, of_connection
from tests.pipeline.second_index import OTHER, SecondIndex
from tests.pipeline.source_ledger import SourceLedger, document
from tests.pipeline.stores.corpus import DIMENSIONS, Corpus, Counting

# --- the cache itself ---


@pytest.mark.req("001-079", "001-096", "001-098")
def test_what_was_put_is_got_in_its_space_alone() -> None:
    memory = MemoryCache[bytes](entries=1)
    assert memory.get("one", "a") is None
    memory.put("one", "a", b"1")
    memory.put("two", "a", b"2")
    assert (memory.get("one", "a"), memory.get("two", "a"), memory.get("three", "a")) == (b"1", b"2", None)
    memory.put("one", "a", b"3")
    assert memory.get("one", "a") == b"3"


@pytest.mark.req("001-079")
def test_the_longest_unused_goes_first() -> None:
    memory = MemoryCache[str](entries=3)
    for key in "abc":
        memory.put("s", key, key)
    assert memory.get("s", "a") == "a"
    memory.put("s", "d", "d")
    assert [memory.get("s", key) for key in "abcd"] == ["a", None, "c", "d"]


def test_entries_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    memory = MemoryCache[str](seconds=900)
    memory.put("s", "a", "1")
    now[0] = 899.9
    assert memory.get("s", "a") == "1"
    now[0] = 900.0
    assert memory.get("s", "a") is None
    assert memory.last("s", "a") == "1"


# --- one who asks and remembers ---


class Away(Database):
    """The same database, until it is away."""

    def __init__(self, of: Database) -> None:
        self.__dict__.update(vars(of))
        self.away = False

    def fetch(
        self, tenant_id: UUID, statement: str, values: Mapping[str, Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        if self.away:
            raise StoreUnavailable("the database does not answer")
        return super().fetch(tenant_id, statement, values, **options)

    def tenant(self, tenant_id: UUID, *, durable: bool = True) -> Any:
        if self.away:
            raise StoreUnavailable("the database does not answer")
        return super().tenant(tenant_id, durable=durable)


class Asker:
    """A retriever with caches, and how often its embedder was asked."""

    def __init__(
        self,
        database: Database,
        tenant: UUID,
        embedder: Embedder | None = None,
        kept: Caches | None = None,
        **options: Any,
    ) -> None:
        self.asked = 0
        self.embedder = embedder or HashingEmbedder(DIMENSIONS)
        self.model, self.dimensions = self.embedder.model, self.embedder.dimensions
        self.limits = self.embedder.limits
        self.database = Away(database)
        self.kept = kept or Caches(vectors=MemoryCache(), answers=MemoryCache())
        self.retriever = Retriever(self.database, tenant, lambda _index: self, caches=self.kept, **options)

    def embed_query(self, text: str) -> Vectors:
        self.asked += 1
        return self.embedder.embed_query(text)

    def embed_documents(self, texts: Any) -> Vectors:
        return self.embedder.embed_documents(texts)

    def count_tokens(self, text: str) -> int:
        return self.embedder.count_tokens(text)

    def search(self, words: str = "kestrel", *, level: int = 0, **changes: Any) -> SearchResults:
        return self.retriever.search(SearchRequest(text=words, min_similarity=-1.0, **changes), level=level)


@pytest.fixture
def corpus(shared_database: Database) -> Corpus:
    made = Corpus(shared_database, exact_below=10_000)
    made.put("the kestrel hovers", title="Kestrels", kind=Kind.DECISION)
    made.put("an otter swims", title="Otters")
    made.count()
    return made


@pytest.fixture
def asker(corpus: Corpus) -> Asker:
    return Asker(corpus.database, corpus.tenant)


# --- vectors ---


@pytest.mark.req("001-010", "001-012")
def test_the_vector_of_a_question_is_made_once(corpus: Corpus, asker: Asker) -> None:
    first = asker.search(k=1)
    assert asker.search(k=1) == first
    asker.search(k=2, mode="vector")
    assert asker.asked == 1
    asker.search("otter")
    assert asker.asked == 2
    Asker(corpus.database, uuid4(), kept=asker.kept).search("otter")
    other = Asker(corpus.database, corpus.tenant, kept=replace(asker.kept, vectors=None))
    other.search()
    other.search()
    assert other.asked == 2


# --- answers ---


@pytest.mark.req("001-096", "001-098")
@pytest.mark.parametrize("mode", ["hybrid", "vector", "keyword"])
def test_while_the_database_is_away_the_same_question_is_answered_from_memory(
    asker: Asker, mode: str
) -> None:
    first = asker.search(mode=mode, explain=True)
    assert not first.from_cache
    asker.database.away = True
    again = asker.search(mode=mode, explain=True)
    assert again == replace(first, from_cache=True, degradation_level=2)
    plain = asker.search(mode=mode)
    assert [hit.id for hit in plain.hits] == [hit.id for hit in first.hits]
    assert plain.hits[0].explanation is None
    assert asker.search(mode=mode, level=2) == plain
    with pytest.raises(StoreUnavailable):
        asker.search("another question", mode=mode)


def test_an_answer_outlives_what_is_known_of_the_index(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    asker.search()
    monkeypatch.setattr(cache, "fresh_snapshot", lambda *_: None)
    asker.database.away = True
    assert asker.search().from_cache


@pytest.mark.req("001-098")
def test_level_two_answers_what_is_remembered_and_asks_nobody(corpus: Corpus) -> None:
    counting = Counting(corpus.database)
    asker = Asker(counting, corpus.tenant)
    asker.retriever.database = counting
    assert asker.search(level=2) == SearchResults(degradation_level=2)
    asker.search()
    counting.asked.clear()
    found = asker.search(level=2)
    assert (found.from_cache, found.degradation_level) == (True, 2)
    assert found.hits[0].document.title == "Kestrels"
    nothing = asker.search("never asked", level=2)
    assert (nothing.hits, nothing.degradation_level, nothing.model) == ((), 2, found.model)
    assert counting.asked == []


def test_a_database_that_is_there_is_always_asked(corpus: Corpus, asker: Asker) -> None:
    asker.search()
    corpus.documents.set({"title": "Kestrels"}, hidden=True)
    found = asker.search()
    assert not found.from_cache
    assert [hit.document.title for hit in found.hits] == ["Otters"]


@pytest.mark.parametrize(
    "other",
    [
        {"words": "kestrels"},
        {"k": 1},
        {"mode": "keyword"},
        {"dedupe": False},
        {"feedback_key": "id:1"},
        {"filter": Filter(kinds=(Kind.DECISION,))},
        {"filter": Filter(projects=(UUID(int=1), UUID(int=2)))},
        {"filter": Filter(security_levels=("public",))},
        {"filter": Filter(security_levels=("internal",))},
        {"trace": True},
    ],
)
def test_another_question_filter_or_right_is_another_answer(asker: Asker, other: dict[str, Any]) -> None:
    asker.search()
    assert not asker.search(level=2, **other).from_cache
    assert asker.search(level=2).from_cache


def test_other_options_are_another_answer(corpus: Corpus, asker: Asker) -> None:
    asker.search()
    for options in (
        {"options": RetrievalOptions(weights=Weights(title=9.0))},
        {"rerank": RerankOptions(enabled=True)},
    ):
        other = Asker(corpus.database, corpus.tenant, kept=asker.kept, **options)
        other.retriever.database = asker.database
        assert not other.search(level=2).from_cache


def test_another_tenant_is_neither_answered_from_it_nor_pushes_anything_out(corpus: Corpus) -> None:
    asker = Asker(corpus.database, corpus.tenant, kept=Caches(answers=MemoryCache(entries=1)))
    stranger = Corpus(corpus.database, exact_below=10_000)
    stranger.put("a kestrel of the stranger", title="Strange")
    other = Asker(corpus.database, stranger.tenant, kept=asker.kept)
    asker.search()
    found = other.search()
    assert [hit.document.title for hit in found.hits] == ["Strange"]
    asker.database.away = other.database.away = True
    assert [hit.document.title for hit in other.search().hits] == ["Strange"]
    assert [hit.document.title for hit in asker.search().hits] == ["Kestrels", "Otters"]


def test_an_answer_of_need_or_of_nothing_is_not_kept(asker: Asker) -> None:
    assert asker.search(level=3).hits
    assert asker.search(level=1).hits
    assert not asker.search("unheard", mode="keyword").hits
    assert not asker.search(level=2).from_cache
    assert not asker.search("unheard", mode="keyword", level=2).from_cache


def test_nothing_is_kept_without_a_cache(corpus: Corpus) -> None:
    asker = Asker(corpus.database, corpus.tenant, kept=Caches())
    asker.search()
    asker.search()
    assert asker.asked == 2
    assert not asker.search(level=2).from_cache
    asker.database.away = True
    with pytest.raises(StoreUnavailable):
        asker.search()


# --- changes, through the product's own steps ---


@pytest.fixture
def notes(notes: SourceLedger) -> SourceLedger:
    notes.admit(document("one", "the kestrel hovers"), document("two", "an otter swims"))
    notes.index()
    return notes


def change(notes: SourceLedger) -> None:
    notes.admit(document("one", "the kestrel rests"), document("two", "an otter swims"))
    notes.index()


def add(notes: SourceLedger) -> None:
    notes.admit(document("three", "another kestrel"))
    notes.index()


def remove(notes: SourceLedger) -> None:
    with notes.database.tenant(notes.tenant) as connection:
        admission.remove(connection, [notes.id("one")])


def hide(notes: SourceLedger) -> None:
    with notes.database.tenant(notes.tenant) as connection:
        listing = Listing(ids=frozenset({"two"}), complete=True)
        admission.prune(connection, notes.source, listing, admission.DeletionGuard())


def hide_by_hand(notes: SourceLedger) -> None:
    with notes.database.control() as connection:
        of_connection(connection).documents.set(hidden=True)


@pytest.mark.req("001-098")
@pytest.mark.parametrize("step", [change, add, remove, hide, hide_by_hand])
def test_an_answer_ends_as_soon_as_a_change_is_seen(
    notes: SourceLedger, step: Callable[[SourceLedger], None]
) -> None:
    asker = Asker(notes.database, notes.tenant, notes.embedder)
    asker.search()
    step(notes)
    cache.read_snapshot(asker.database, notes.tenant)
    asker.database.away = True
    with pytest.raises(StoreUnavailable):
        asker.search()


def state(notes: SourceLedger) -> str:
    snapshot = cache.read_snapshot(notes.database, notes.tenant)
    return snapshot.state if snapshot else ""


def test_the_ledgers_own_steps_and_other_tenants_change_no_state(
    shared_database: Database, notes: SourceLedger
) -> None:
    before = state(notes)
    notes.set("one", attempts=1, due_at=ago(), state="pending", lease_until=ago())
    other = SourceLedger(shared_database, uuid4(), uuid4())
    other.admit(document("x", "a kestrel elsewhere"))
    other.index()
    assert state(notes) == before != ""
    notes.set("one", hidden=True)
    assert state(notes) != before


def test_an_answer_out_of_an_index_that_was_replaced_is_not_given(second_index: SecondIndex) -> None:
    """A switch changes no document, so no state."""
    notes, embedders = (
        second_index.notes,
        {DIMENSIONS: second_index.notes.embedder, OTHER: second_index.embedder},
    )
    caches = Caches(answers=MemoryCache())
    retriever = Retriever(notes.database, notes.tenant, lambda i: embedders[i.dimensions], caches=caches)
    request = SearchRequest(text="paragraph", min_similarity=-1.0)
    second_index.fill()
    first = retriever.search(request)
    assert first.hits
    before = state(notes)
    second_index.switch()
    assert state(notes) == before
    assert not retriever.search(request, level=2).from_cache
    assert retriever.search(request).model == f"hashing-{OTHER}"
    assert retriever.search(request, level=2).model == f"hashing-{OTHER}"
