"""Answers that are given again, and what is another question."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.documents import Kind
from pipeline.reranking import RerankOptions
from pipeline.search import Retriever, SearchRequest, SearchResults, Weights
from pipeline.search.arms import LedgerFilter
from pipeline.search.cache import Caches
from pipeline.search.chunks import Filter
from tests.pipeline.remembering import Asker
from tests.pipeline.stores.depot import Depot


@pytest.fixture
def depot(shared_database: Database) -> Depot:
    made = Depot(shared_database, exact_below=10_000)
    made.put("the kestrel hovers", title="Kestrels", kind=Kind.DECISION)
    made.put("an otter swims", title="Otters")
    made.count()
    return made


@pytest.fixture
def asker(depot: Depot) -> Asker:
    return Asker(depot.database, depot.tenant, depot.embedder)


@pytest.mark.req("001-096", "001-098")
def test_the_same_question_is_answered_from_memory_alike(asker: Asker) -> None:
    first, again = asker.search(explain=True), asker.search(explain=True)
    assert (first.remembered, again.remembered) == (False, True)
    assert asker.asked == 1
    assert again == replace(first, remembered=True)
    assert again.hits[0].explanation is not None
    plain = asker.search()
    assert plain.remembered
    assert plain.hits[0].explanation is None


@pytest.mark.parametrize(
    "other",
    [
        {"words": "kestrels"},
        {"k": 1},
        {"mode": "keyword"},
        {"dedupe": False},
        {"filter": Filter(kinds=(Kind.DECISION,))},
        {"filter": Filter(projects=(UUID(int=1), UUID(int=2)))},
        {"filter": LedgerFilter(security_levels=("public",))},
        {"filter": LedgerFilter(security_levels=("internal",))},
        {"trace": True},
    ],
)
def test_another_question_filter_or_right_is_another_answer(asker: Asker, other: dict[str, Any]) -> None:
    asker.search()
    assert not asker.search(**other).remembered


def test_other_options_are_another_answer(depot: Depot, asker: Asker) -> None:
    asker.search()
    options = replace(asker.retriever.options, weights=Weights(title=9.0))
    other = Asker(depot.database, depot.tenant, depot.embedder, options=options)
    other.retriever._results = asker.retriever._results
    assert not other.search().remembered
    looked = Asker(depot.database, depot.tenant, depot.embedder, rerank=RerankOptions(enabled=True))
    looked.retriever._results = asker.retriever._results
    assert not looked.search().remembered


def test_another_tenant_is_never_answered_from_it(shared_database: Database, depot: Depot) -> None:
    one = Asker(depot.database, depot.tenant, depot.embedder)
    stranger = Depot(shared_database, exact_below=10_000)
    stranger.put("a kestrel of the stranger", title="Strange")
    two = Asker(shared_database, stranger.tenant, depot.embedder)
    two.results = one.results
    two.retriever = Retriever(
        shared_database, stranger.tenant, lambda _i: two, caches=Caches(results=one.results)
    )
    one.search()
    found = two.search()
    assert not found.remembered
    assert [hit.document.title for hit in found.hits] == ["Strange"]


def test_no_text_lies_in_the_caches(asker: Asker) -> None:
    asker.search("kestrel secretword")
    kept = [
        value
        for cache in (asker.results, asker.vectors)
        for space, entries in cache._spaces.items()
        for key, (_, value) in entries.items()
        for value in (space.encode(), key.encode(), value)
    ]
    assert len(kept) == 6
    for word in (b"kestrel", b"Kestrel", b"hovers", b"secretword"):
        assert not any(word in value for value in kept)


@pytest.mark.req("001-010", "001-012")
def test_the_vector_of_a_question_is_made_once(asker: Asker) -> None:
    asker.search(k=1)
    asker.search(k=2)
    assert asker.asked == 1
    asker.search("otter")
    assert asker.asked == 2


@pytest.mark.parametrize("rubbish", [b"", b"{}", b"[1]", b'[{"document": "x"}]', b"\xff"])
def test_an_entry_that_cannot_be_read_is_none(asker: Asker, rubbish: bytes) -> None:
    found = asker.search()
    for entries in (*asker.results._spaces.values(), *asker.vectors._spaces.values()):
        for key, (until, _) in list(entries.items()):
            entries[key] = (until, rubbish)
    again = asker.search()
    assert not again.remembered or rubbish == b"{}"
    assert [hit.id for hit in again.hits] == [hit.id for hit in found.hits] or rubbish == b"{}"


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_kept_vector_that_is_none_is_made_anew(asker: Asker, number: float) -> None:
    found = asker.search(k=1)
    for entries in asker.vectors._spaces.values():
        for key, (until, value) in list(entries.items()):
            damaged = np.frombuffer(value, dtype="<f4").copy()
            damaged[3] = number
            entries[key] = (until, damaged.tobytes())
    again = asker.search(k=2)  # the answer to the same search is kept
    assert asker.asked == 2
    assert (again.hits[0].id, again.hits[0].score) == (found.hits[0].id, found.hits[0].score)


def test_a_hit_that_is_gone_without_a_trace_makes_the_answer_new(depot: Depot, asker: Asker) -> None:
    asker.search()
    depot.sql("delete from chunk where content like 'an otter%'")
    found = asker.search()
    assert not found.remembered
    assert [hit.document.title for hit in found.hits] == ["Kestrels"]


def test_what_a_reader_may_not_see_any_more_is_not_read_again(depot: Depot, asker: Asker) -> None:
    """Rights are part of the key, and checked once more when the text is read."""
    only = LedgerFilter(security_levels=("internal",))
    asker.search(filter=only)
    ((space, entries),) = asker.results._spaces.items()
    ((key, (_, kept)),) = entries.items()
    depot.sql("update document set security_level = 'secret' where title = 'Kestrels'")
    found = asker.search(filter=only)
    assert [hit.document.title for hit in found.hits] == ["Otters"]
    for key in list(entries):
        asker.results.put(space, key, kept)
    assert [hit.document.title for hit in asker.search(filter=only).hits] == ["Otters"]


# --- levels ---


@pytest.mark.req("001-098")
def test_level_two_answers_what_is_remembered_and_nothing_else(asker: Asker) -> None:
    assert asker.search(level=2).hits == ()
    assert asker.search(level=2).degradation_level == 2
    asker.search()
    found = asker.search(level=2)
    assert found.remembered
    assert found.hits[0].document.title == "Kestrels"
    assert found.degradation_level == 2


def test_level_three_goes_by_words_alone_and_is_not_kept(asker: Asker) -> None:
    for mode in ("hybrid", "vector"):
        found = asker.search(level=3, mode=mode)
        assert [hit.document.title for hit in found.hits] == ["Kestrels"]
        assert found.degradation_level == 3
    assert asker.asked == 0
    assert not asker.search().remembered


@pytest.mark.parametrize("level", [4, 5])
def test_level_four_looks_nothing_up(tenant: UUID, level: int) -> None:
    gone = Database("postgresql://nobody:x@127.0.0.1:1/none")
    found = Retriever(gone, tenant, lambda _i: None).search(SearchRequest(text="kestrel"), level=level)  # type: ignore[arg-type, return-value]
    assert found == SearchResults(degradation_level=level)
    gone.close()
