"""BM25 in memory: the words it sees and the numbers it gives."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.search.memory_bm25 import Bm25Index, idf, tokenize
from tests.growth import assert_linear


def index(**texts: str) -> Bm25Index[str]:
    made: Bm25Index[str] = Bm25Index()
    for key, text in texts.items():
        made.add(key, text)
    return made


def ranking(texts: Bm25Index[str], question: str, *keys: str) -> list[str]:
    scores = texts.scores(question, set(keys))
    return sorted(scores, key=lambda key: -scores[key])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" ... -- /", []),
        ("The Cat sat.", ["the", "cat", "sat"]),
        ("HADOOP-123", ["hadoop-123", "hadoop", "123"]),
        ("CamelCase", ["camelcase", "camel", "case"]),
        ("HTTPServer", ["httpserver", "http", "server"]),
        ("getX2Value", ["getx2value", "get", "x2", "value"]),
        ("a/b.v2", ["a/b.v2", "a", "b", "v2"]),
        ("user_name", ["user_name", "user", "name"]),
        ("See HADOOP-123.", ["see", "hadoop-123", "hadoop", "123"]),
        ("(v1.2.3)", ["v1.2.3", "v1", "2", "3"]),
        ("re-open FooBar-9", ["re-open", "re", "open", "foobar-9", "foobar", "foo", "bar", "9"]),
        ("Größe ÄNDERN 日本", ["größe", "ändern", "日本"]),
        ("Gro\N{LATIN SMALL LETTER O WITH DIAERESIS}\N{LATIN SMALL LIGATURE FI}", ["groöfi"]),
        ("a--b", ["a", "b"]),
    ],
)
def test_words_and_parts_of_identifiers(text: str, words: list[str]) -> None:
    assert tokenize(text) == words


def test_composed_and_decomposed_letters_are_one_word() -> None:
    assert tokenize("Ka\N{LATIN SMALL LETTER A WITH DIAERESIS}se") == tokenize("Kaa\N{COMBINING DIAERESIS}se")


@given(st.text(max_size=300))
def test_any_text_gives_lower_case_words(text: str) -> None:
    for word in tokenize(text):
        assert word == word.lower()
        assert word


def test_long_identifiers_take_linear_time() -> None:
    assert_linear(lambda n: "a-" * n + "!" + "aB" * n, 100_000, tokenize)


def test_scores_are_bm25_as_written() -> None:
    """k1 1.2, b 0.75, worked out by hand: 3 texts of 2, 4 and 6 words, `apple` twice in the second."""
    texts = index(a="apple pear", b="apple apple plum fig", c="one two three four five six")
    scores = texts.scores("apple", {"a", "b", "c"})
    rarity = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))
    assert scores == {
        "a": pytest.approx(rarity * 1 * 2.2 / (1 + 1.2 * (0.25 + 0.75 * 2 / 4))),
        "b": pytest.approx(rarity * 2 * 2.2 / (2 + 1.2 * (0.25 + 0.75 * 4 / 4))),
    }


@pytest.mark.parametrize(
    ("having", "expected"), [(1, math.log(1 + 9.5 / 1.5)), (10, math.log(1 + 0.5 / 10.5))]
)
def test_rarity(having: int, expected: float) -> None:
    assert idf(10, having) == pytest.approx(expected)


def test_a_word_in_every_text_still_counts_above_zero() -> None:
    assert all(s > 0 for s in index(a="the cat", b="the dog").scores("the", {"a", "b"}).values())


def test_a_repeated_word_of_the_question_counts_each_time() -> None:
    texts = index(a="apple pear", b="plum fig")
    once = texts.scores("apple plum", {"a", "b"})
    twice = texts.scores("apple apple plum", {"a", "b"})
    assert twice["a"] == pytest.approx(2 * once["a"])
    assert twice["b"] == pytest.approx(once["b"])


def test_rare_words_short_texts_and_frequent_mentions_rank_higher() -> None:
    keys = ("a", "b", "c")
    assert (
        ranking(index(a="cache common", b="common word", c="common thing"), "common cache", *keys)[0] == "a"
    )
    assert ranking(index(a="cache " + "x " * 50, b="cache x"), "cache", *keys) == ["b", "a"]
    assert ranking(index(a="cache x y", b="cache cache x"), "cache", *keys) == ["b", "a"]


def test_any_word_is_enough() -> None:
    texts = index(a="alpha", b="beta", c="gamma")
    assert set(texts.scores("alpha beta unknown", {"a", "b", "c"})) == {"a", "b"}


def test_only_allowed_texts_are_scored_and_all_texts_count() -> None:
    texts = index(a="apple", b="apple", c="pear")
    everything = texts.scores("apple", {"a", "b", "c"})
    assert texts.scores("apple", {"b"}) == {"b": everything["b"]}
    assert texts.scores("apple", set()) == {}


def test_removed_texts_leave_no_trace() -> None:
    texts = index(a="apple pear", b="apple plum fig", c="long text of many other words")
    texts.remove("c")
    texts.remove("unknown")
    assert len(texts) == 2
    assert texts.scores("apple long", {"a", "b", "c"}) == index(a="apple pear", b="apple plum fig").scores(
        "apple", {"a", "b"}
    )
    texts.remove("a")
    texts.remove("b")
    assert texts.scores("apple", {"a", "b"}) == {}
    assert not texts._postings


def test_a_text_added_again_replaces_the_old_one() -> None:
    texts = index(a="apple apple apple", b="pear")
    texts.add("a", "plum")
    assert texts.scores("apple", {"a", "b"}) == {}
    assert texts.scores("plum pear", {"a", "b"}) == index(a="plum", b="pear").scores("plum pear", {"a", "b"})


def test_nothing_to_find_and_nothing_to_ask() -> None:
    assert index().scores("apple", {"a"}) == {}
    assert index(a="").scores("apple", {"a"}) == {}
    assert index(a="apple").scores("", {"a"}) == {}
