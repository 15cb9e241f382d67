"""The free embedder: shared words, exact arithmetic, speed."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import ConfigurationError
from tests.complexity import assert_linear

EMBEDDER = HashingEmbedder()


def similarity(left: str, right: str) -> float:
    return float(EMBEDDER.embed_query(left) @ EMBEDDER.embed_query(right))


def test_the_model_name_carries_the_dimensions() -> None:
    assert (EMBEDDER.model, EMBEDDER.dimensions) == ("hashing-384", 384)
    small = HashingEmbedder(64)
    assert (small.model, small.dimensions) == ("hashing-64", 64)
    assert small.embed_query("some words").shape == (64,)


@pytest.mark.parametrize("dimensions", [0, -1])
def test_no_dimensions_are_refused(dimensions: int) -> None:
    with pytest.raises(ConfigurationError):
        HashingEmbedder(dimensions)


def test_vectors_are_pinned_to_the_last_bit() -> None:
    """Stored vectors outlive the process: a change of the arithmetic must be seen, and needs a new name."""
    vectors = EMBEDDER.embed_documents(
        ["", "The Login page", "HADOOP-123 straße 日本", "internationalisation"]
    )
    assert hashlib.sha256(vectors.tobytes()).hexdigest()[:16] == "7f8ae9074fbb743b"


def test_one_dimension_is_enough_to_be_valid() -> None:
    vectors = HashingEmbedder(1).embed_documents(["", "alpha beta", "gamma"])
    assert np.abs(vectors).tolist() == [[1.0], [1.0], [1.0]]


def test_a_text_is_the_sum_of_its_words() -> None:
    """Neither a word's neighbours nor its place may change what it adds."""
    joined = EMBEDDER.embed_query("kestrel falcon")
    parts = EMBEDDER.embed_query("kestrel") + EMBEDDER.embed_query("falcon")
    assert joined == pytest.approx(parts / np.linalg.norm(parts), abs=0.02)
    assert np.array_equal(joined, EMBEDDER.embed_query("falcon, kestrel!"))
    assert np.array_equal(EMBEDDER.embed_query("x cat"), EMBEDDER.embed_query("cat x"))


def test_case_and_marks_do_not_count() -> None:
    assert similarity("Straße GROSS", "straße gross") == pytest.approx(1.0)
    assert similarity("cache-key", "cache key") == pytest.approx(1.0)


def test_more_shared_words_are_closer() -> None:
    query = "login page fails after update"
    texts = [
        "login page fails after the update",
        "login page is green",
        "update of prices",
        "green apples taste",
    ]
    similarities = [similarity(query, text) for text in texts]
    assert similarities == sorted(similarities, reverse=True)
    assert similarities[0] > 0.85
    assert similarities[-1] < 0.3


def test_short_words_weigh_little() -> None:
    assert similarity("the a of in kestrel", "kestrel") > 0.8


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("configuration", "configurations"),  # same first eight bytes
        ("internationalized", "nationalized"),  # same last eight bytes
        ("abcdefgh", "abcdefghabcdefgh"),  # same both ends, other length
        ("cat", "tac"),
        ("ab", "abb"),
    ],
)
def test_words_that_look_alike_are_told_apart(left: str, right: str) -> None:
    assert similarity(left, right) < 0.9


def test_long_words_differ_by_both_ends_and_length_only() -> None:
    """The declared limit of the design: the middle of a long word is not read."""
    assert similarity("abcdefgh1ABCDEFGH", "abcdefgh2abcdefgh") == pytest.approx(1.0)


def test_texts_without_words_share_one_vector() -> None:
    empty = EMBEDDER.embed_query("")
    assert np.array_equal(EMBEDDER.embed_query(" -- !?\n"), empty)
    assert empty[0] == 1.0


def test_empty_texts_between_others_take_no_words_of_theirs() -> None:
    texts = ["", "alpha", "", "", "beta gamma", "-", "delta"]
    alone = np.stack([EMBEDDER.embed_query(text) for text in texts])
    assert np.array_equal(EMBEDDER.embed_documents(texts), alone)


@given(st.lists(st.text(max_size=60), max_size=12))
def test_any_texts_give_unit_vectors_that_do_not_depend_on_company(texts: list[str]) -> None:
    vectors = EMBEDDER.embed_documents(texts)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-6)
    for text, vector in zip(texts, vectors, strict=True):
        assert np.array_equal(EMBEDDER.embed_query(text), vector)


def test_blocks_do_not_show() -> None:
    """More texts than are worked on at once."""
    texts = [f"number {n} of many" for n in range(600)]
    vectors = EMBEDDER.embed_documents(texts)
    for n in (0, 255, 256, 257, 511, 512, 599):
        assert np.array_equal(vectors[n], EMBEDDER.embed_query(texts[n]))


def test_unrelated_texts_stay_apart_on_average() -> None:
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randrange(4, 11))) for _ in range(4000)]
    vectors = EMBEDDER.embed_documents([" ".join(rng.choices(words, k=30)) for _ in range(200)])
    similarities = (vectors @ vectors.T)[np.triu_indices(200, 1)]
    assert abs(float(similarities.mean())) < 0.03
    assert float(similarities.std()) < 0.1


def test_the_time_grows_with_the_texts_and_no_faster() -> None:
    rng = random.Random(7)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randrange(2, 11))) for _ in range(3000)]
    chunks = [" ".join(rng.choices(words, k=145))[:900] for _ in range(2000)]
    assert_linear(lambda n: chunks[:n], 2000, EMBEDDER.embed_documents)


@pytest.mark.parametrize("piece", ["k", "word ", "a-"])
def test_the_time_grows_with_one_text_and_no_faster(piece: str) -> None:
    assert_linear(lambda n: [piece * n], 100_000, EMBEDDER.embed_documents)
