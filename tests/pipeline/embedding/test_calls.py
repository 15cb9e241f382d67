"""Calling an embedder: pieces, the short retry, and answers that cannot be trusted."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedding import EmbedderLimits, Vectors
from pipeline.embedding.calls import TextsRejected, embed_checked
from pipeline.embedding.hashing import HashingEmbedder
from pipeline.errors import (
    ConfigurationError,
    EmbedderUnavailable,
    EmbeddingError,
    ModelMissing,
    TextRejected,
)

Change = Callable[[Sequence[str], Vectors], Vectors]


class Provider(HashingEmbedder):
    """The free embedder with the manners of a remote one: a small limit, refusals, bad days."""

    def __init__(
        self,
        *,
        failures: Sequence[Exception] = (),
        refused: Sequence[str] = (),
        change: Change | None = None,
    ) -> None:
        super().__init__(32)
        self.limits = EmbedderLimits(texts=4, tokens_per_text=100)
        self.calls: list[int] = []
        self._failures = list(failures)
        self._refused = set(refused)
        self._change = change

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.calls.append(len(texts))
        if self._failures:
            raise self._failures.pop(0)
        if self._refused & set(texts):
            raise TextRejected("content policy", fix="leave this text out")
        vectors = super().embed_documents(texts)
        return self._change(texts, vectors) if self._change else vectors


def words(count: int) -> list[str]:
    return [f"text number{n}" for n in range(count)]


def no_wait(_seconds: float) -> None:
    """Time passes."""


@pytest.mark.req("001-020")
@pytest.mark.parametrize(("count", "calls"), [(0, []), (1, [1]), (4, [4]), (5, [4, 1]), (9, [4, 4, 1])])
def test_calls_stay_within_the_limits_and_order_is_kept(count: int, calls: list[int]) -> None:
    provider = Provider()
    vectors = embed_checked(provider, words(count))
    assert provider.calls == calls
    assert vectors.shape == (count, 32)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, HashingEmbedder(32).embed_documents(words(count)))


def test_vectors_are_brought_to_length_one() -> None:
    vectors = embed_checked(Provider(change=lambda _, v: v * 7), words(6))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(6), abs=1e-6)


def test_very_small_vectors_keep_their_direction() -> None:
    vectors = embed_checked(Provider(change=lambda _, v: (v * 1e-30).astype(np.float32)), words(2))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(2), abs=1e-5)


def test_a_busy_provider_is_asked_three_times_within_three_seconds() -> None:
    waits: list[float] = []
    provider = Provider(failures=[EmbedderUnavailable("busy"), EmbedderUnavailable("busy")])
    assert embed_checked(provider, words(2), sleep=waits.append).shape == (2, 32)
    assert provider.calls == [2, 2, 2]
    assert len(waits) == 2
    assert all(wait > 0 for wait in waits)
    assert sum(waits) < 3


def test_a_provider_that_stays_down_is_given_up() -> None:
    provider = Provider(failures=[EmbedderUnavailable(f"down {n}") for n in range(9)])
    with pytest.raises(EmbedderUnavailable, match="down 2"):
        embed_checked(provider, words(9), sleep=no_wait)
    assert provider.calls == [4, 4, 4]


@pytest.mark.parametrize(
    "error",
    [EmbedderUnavailable("busy", retry_after=30), ModelMissing("gone"), ConfigurationError("key")],
    ids=["said-when", "no-model", "configuration"],
)
def test_what_waiting_here_cannot_mend_is_not_tried_again(error: Exception) -> None:
    waits: list[float] = []
    provider = Provider(failures=[error])
    with pytest.raises(type(error)) as caught:
        embed_checked(provider, words(2), sleep=waits.append)
    assert caught.value is error
    assert (provider.calls, waits) == ([2], [])


@pytest.mark.parametrize("bad", [[0], [3], [4], [8], [0, 8], [2, 3, 5], list(range(9))])
def test_refused_texts_are_named_by_number(bad: list[int]) -> None:
    texts = words(9)
    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(refused=[texts[n] for n in bad]), texts)
    error = caught.value
    assert error.indexes == tuple(bad)
    assert isinstance(error, TextRejected)
    assert f"{len(bad)} of 9" in error.message
    assert "content policy" in error.message
    assert error.fix == "leave this text out"


@given(st.sets(st.integers(0, 20)), st.integers(0, 21))
def test_any_pattern_of_refusals_is_found(bad: set[int], count: int) -> None:
    texts = words(count)
    expected = tuple(sorted(n for n in bad if n < count))
    provider = Provider(refused=[texts[n] for n in expected])
    if not expected:
        assert len(embed_checked(provider, texts)) == count
        return
    with pytest.raises(TextsRejected) as caught:
        embed_checked(provider, texts)
    assert caught.value.indexes == expected


def test_one_bad_text_costs_few_calls() -> None:
    provider = Provider(refused=["text number2"])
    with pytest.raises(TextsRejected):
        embed_checked(provider, words(4))
    assert provider.calls == [4, 2, 2, 1, 1]


def test_the_error_never_shows_the_text() -> None:
    texts = ["good", "secret salary list"]
    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(refused=texts[1:]), texts)
    assert "salary" not in "".join(traceback.format_exception(caught.value))


def test_a_long_list_of_refusals_is_cut_in_the_message_only() -> None:
    texts = words(25)
    with pytest.raises(TextsRejected, match="and 15 more") as caught:
        embed_checked(Provider(refused=texts), texts)
    assert len(caught.value.indexes) == 25


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_a_vector_nobody_can_compare_is_a_refused_text(value: float) -> None:
    def spoil(texts: Sequence[str], vectors: Vectors) -> Vectors:
        vectors[[text == "text number5" for text in texts]] = value
        return vectors

    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(change=spoil), words(7))
    assert caught.value.indexes == (5,)


def test_a_single_nan_in_a_vector_is_enough() -> None:
    def spoil(_texts: Sequence[str], vectors: Vectors) -> Vectors:
        vectors[-1, 7] = np.nan
        return vectors

    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(change=spoil), words(3))
    assert caught.value.indexes == (2,)


@pytest.mark.parametrize(
    "change",
    [lambda _, v: v[:-1], lambda _, v: np.concatenate([v, v]), lambda _, v: v[0], lambda _, v: v[:0]],
    ids=["one-less", "double", "flat", "none"],
)
def test_another_number_of_vectors_is_an_error(change: Change) -> None:
    """Taken as it came, every text after the gap would get its neighbour's vector."""
    with pytest.raises(EmbeddingError, match="answers 3 texts") as caught:
        embed_checked(Provider(change=change), words(3))
    assert not caught.value.transient


@pytest.mark.req("003-026")
def test_vectors_of_another_width_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="gives 31 dimensions") as caught:
        embed_checked(Provider(change=lambda _, v: v[:, :31]), words(3))
    assert "31" in caught.value.fix
