"""A search reads the texts of those alone that can come to be shown."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.database.engine import Database
from pipeline.documents import Kind
from pipeline.search import RetrievalOptions, Retriever, SearchRequest, SearchResults
from tests.pipeline.stores.corpus import Corpus, Counting


@pytest.fixture
def counting(shared_database: Database) -> Counting:
    return Counting(shared_database)


def titles(found: SearchResults) -> list[str]:
    return [hit.document.title for hit in found.hits]


def read_by(corpus: Corpus, counting: Counting, **request: Any) -> tuple[SearchResults, list[int]]:
    """What a search finds, and how many texts each of its statements reads."""
    counting.read.clear()
    options = RetrievalOptions(min_similarity=-1.0)
    made = Retriever(counting, corpus.tenant, lambda _index: corpus.embedder, options)
    return made.search(SearchRequest(text="kestrel", **request)), list(counting.read)


@pytest.fixture(scope="module")
def many(shared_database: Database) -> Corpus:
    """30 documents of three chunks; the ten with most of the word are duplicates."""
    made = Corpus(shared_database, exact_below=10_000)
    for n in range(30):
        old = {"resolution": "duplicate"} if n < 10 else {}
        texts = [f"{'kestrel ' * (40 - n)} part {part}" for part in range(3)]
        made.put(*texts, title=f"{n:02}", kind=Kind.WORK, metadata=old)
    made.count()
    return made


@pytest.mark.parametrize("mode", ["hybrid", "keyword"])
def test_texts_are_read_until_enough_documents_hold(many: Corpus, counting: Counting, mode: str) -> None:
    """What no longer holds is brought down, so a document that comes later may come to be shown."""
    whole, counts = read_by(many, counting, mode=mode, trace=True, k=5)
    assert sum(counts) == 90
    found, counts = read_by(many, counting, mode=mode, k=5)
    assert [hit.id for hit in found.hits] == [hit.id for hit in whole.hits]
    assert [hit.score for hit in found.hits] == [hit.score for hit in whole.hits]
    assert 5 <= sum(counts) <= 35
    assert len(counts) <= 3


@pytest.mark.parametrize("dedupe", [True, False])
def test_a_search_by_meaning_alone_is_one_statement(many: Corpus, counting: Counting, dedupe: bool) -> None:
    whole, _ = read_by(many, counting, mode="vector", dedupe=dedupe, trace=True, k=7)
    found, counts = read_by(many, counting, mode="vector", dedupe=dedupe, k=7)
    assert counts == [7]
    assert [hit.id for hit in found.hits] == [hit.id for hit in whole.hits]
    assert [hit.score for hit in found.hits] == pytest.approx([hit.score for hit in whole.hits])


def test_documents_of_many_chunks_do_not_hide_the_others(
    shared_database: Database, counting: Counting
) -> None:
    """The first chunks looked at may all belong to one document."""
    corpus = Corpus(shared_database, exact_below=10_000)
    corpus.put(*["kestrel"] * 30, title="long")
    for n in range(4):
        corpus.put(f"kestrel {'otter ' * (n + 1)}", title=str(n))
    corpus.count()
    found, counts = read_by(corpus, counting, mode="vector", k=4)
    assert titles(found)[0] == "long"
    assert len(set(titles(found))) == 4
    assert counts == [4]


@pytest.mark.parametrize("hidden", [3, 60])
def test_hidden_documents_crowd_nobody_out(
    shared_database: Database, counting: Counting, hidden: int
) -> None:
    """What is hidden takes no place among the candidates, however many of them would come first."""
    corpus = Corpus(shared_database, exact_below=10_000)
    for n in range(hidden):
        corpus.put("kestrel", title=f"secret {n}")
    corpus.documents.set(hidden=True)
    for n in range(4):
        corpus.put(f"kestrel {'otter ' * (n + 1)}", title=str(n))
    corpus.count()
    found, counts = read_by(corpus, counting, mode="vector", k=4)
    assert sorted(titles(found)) == ["0", "1", "2", "3"]
    assert len(counts) == 1
