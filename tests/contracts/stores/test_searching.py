"""What a store must find, by meaning and by words."""

from __future__ import annotations

import pytest

from tests.contracts.stores.stock import EMBEDDER, NEAR, InLedger, ask, by_words, contents, put


@pytest.mark.req("003-017", "003-023")
def test_similarity_is_the_cosine_and_comes_best_first(store: InLedger) -> None:
    texts = ["kestrel falcon eagle", "kestrel falcon", "kestrel otter", "badger otter"]
    put(store, *texts)
    found = ask(store, "kestrel falcon", keywords=False)
    assert contents(found)[:3] == ["kestrel falcon", "kestrel falcon eagle", "kestrel otter"]
    query = EMBEDDER.embed_query("kestrel falcon")
    for candidate in found:
        cosine = float(EMBEDDER.embed_query(candidate.chunk.content) @ query)
        assert candidate.similarity == pytest.approx(cosine, abs=NEAR)
        assert candidate.bm25 is None
    similarities = [c.similarity for c in found if c.similarity is not None]
    assert similarities == sorted(similarities, reverse=True)


def test_the_keyword_arm_alone_has_no_similarity_and_finds_matches_only(store: InLedger) -> None:
    put(store, "kestrel falcon", "otter", "kestrel badger badger badger badger badger badger")
    found = by_words(store, "kestrel")
    assert sorted(contents(found)) == ["kestrel badger badger badger badger badger badger", "kestrel falcon"]
    assert all(c.similarity is None and c.bm25 is not None and c.bm25 > 0 for c in found)
    scores = {c.chunk.content: c.bm25 or 0.0 for c in found}
    assert scores["kestrel falcon"] > scores["kestrel badger badger badger badger badger badger"]


def test_both_arms_are_joined_and_every_chunk_is_scored_in_both(store: InLedger) -> None:
    """The vector says otter, the words say kestrel; with one candidate per arm both must come, fully scored."""
    put(store, "otter", "kestrel", "badger", "heron")
    found = ask(store, "kestrel", vector=EMBEDDER.embed_query("otter"), candidates=1)
    assert contents(found) == ["otter", "kestrel"]
    otter, kestrel = found
    assert otter.similarity == pytest.approx(1.0, abs=NEAR)
    assert otter.bm25 == 0.0
    cosine = float(EMBEDDER.embed_query("kestrel") @ EMBEDDER.embed_query("otter"))
    assert kestrel.similarity == pytest.approx(cosine, abs=NEAR)
    assert kestrel.bm25 is not None
    assert kestrel.bm25 > 0


def test_a_chunk_found_by_both_arms_comes_once(store: InLedger) -> None:
    put(store, "kestrel falcon", "otter")
    places = [(c.document.id, c.chunk.ord) for c in ask(store, "kestrel falcon")]
    assert len(places) == len(set(places)) == 2


def test_candidates_are_limited_per_arm(store: InLedger) -> None:
    for n in range(12):
        put(store, f"kestrel number{n}", f"kestrel item{n}")
    assert len(ask(store, "kestrel", candidates=5, keywords=False)) == 5
    assert len(by_words(store, "kestrel", candidates=5)) == 5
    assert 5 <= len(ask(store, "kestrel", candidates=5)) <= 10
    assert len(ask(store, "kestrel", candidates=100)) == 24


def test_limits_keep_the_best(store: InLedger) -> None:
    for n in range(20):
        put(store, f"kestrel filler{n} padding{n} something{n}")
    put(store, "kestrel falcon")
    assert contents(ask(store, "kestrel falcon", candidates=1)) == ["kestrel falcon"]
    assert contents(by_words(store, "kestrel falcon", candidates=1)) == ["kestrel falcon"]


@pytest.mark.req("001-093")
@pytest.mark.parametrize(
    "question",
    [
        "HADOOP-123",
        "hadoop-123",
        "HADOOP",
        "123",
        "why does HADOOP-123 fail?",
        "NameNodeResource",
        "a/fsimage.v2",
    ],
)
def test_keywords_find_identifiers_whole_and_in_parts(store: InLedger, question: str) -> None:
    put(
        store, "Duplicate of HADOOP-123: NameNodeResource reads a/fsimage.v2", "otters and badgers", "kiln 77"
    )
    found = by_words(store, question)
    assert contents(found)[:1] == ["Duplicate of HADOOP-123: NameNodeResource reads a/fsimage.v2"]


def test_the_exact_identifier_beats_one_that_shares_a_part(store: InLedger) -> None:
    put(
        store,
        "ticket HADOOP-999 about kilns",
        "ticket HADOOP-123 about kilns",
        "ticket SPARK-123 about kilns",
    )
    found = by_words(store, "HADOOP-123")
    best = max(found, key=lambda c: c.bm25 or 0.0)
    assert best.chunk.content == "ticket HADOOP-123 about kilns"


def test_one_matching_word_is_enough(store: InLedger) -> None:
    put(store, "kestrel nests", "otter swims", "quartz glows")
    assert sorted(contents(by_words(store, "kestrel quartz unicorn"))) == ["kestrel nests", "quartz glows"]


def test_rare_words_weigh_more_than_common_ones(store: InLedger) -> None:
    put(store, *[f"pipeline number{n} runs" for n in range(20)], "kestrel rests")
    found = by_words(store, "pipeline kestrel")
    assert max(found, key=lambda c: c.bm25 or 0.0).chunk.content == "kestrel rests"


def test_a_word_that_the_question_repeats_counts_more(store: InLedger) -> None:
    put(store, "kestrel one", "otter two")
    once = {c.chunk.content: c.bm25 or 0.0 for c in by_words(store, "kestrel otter")}
    more = {c.chunk.content: c.bm25 or 0.0 for c in by_words(store, "kestrel otter otter otter")}
    assert once["kestrel one"] == pytest.approx(once["otter two"], rel=0.01)
    assert more["otter two"] > 2 * more["kestrel one"]


@pytest.mark.parametrize(
    "text",
    [
        " ".join(f"word{n} HADOOP-{n} src/main/File{n}.java" for n in range(300)),
        "kestrel " * 1250,
        "& | ! ( ) : * < > ' \" \\ -- ; % _ kestrel " * 250,
        "kestrel " + "k" * 9_992,
        "日本語の文書 ünïcödé kestrel " * 400,
    ],
    ids=["identifiers", "repeated", "operators", "one-word", "unicode"],
)
def test_questions_of_ten_thousand_characters_are_answered(store: InLedger, text: str) -> None:
    put(store, "kestrel word17 falls", "otter")
    found = ask(store, text[:10_000])
    assert max(found, key=lambda c: c.bm25 or 0.0).chunk.content == "kestrel word17 falls"
    assert max(c.bm25 or 0.0 for c in found) > 0


@pytest.mark.parametrize("text", ["", "   ", "?!", "& | !", "\N{PARTY POPPER}"])
def test_questions_without_words_leave_the_vector_arm(store: InLedger, text: str) -> None:
    put(store, "alpha", "beta")
    assert by_words(store, text) == []
    assert {c.bm25 for c in ask(store, text)} == {0.0}
    assert len(ask(store, text)) == 2


def test_the_same_question_gives_the_same_order(store: InLedger) -> None:
    for _ in range(6):
        put(store, "kestrel falcon", "kestrel falcon")
    first = [(c.document.id, c.chunk.ord) for c in ask(store, "kestrel", candidates=4)]
    assert [(c.document.id, c.chunk.ord) for c in ask(store, "kestrel", candidates=4)] == first
