"""Calling an embedder: pieces, the short retry, and answers that cannot be trusted."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedding import EmbedderLimits, Vectors
from pipeline.embedding.calls import ATTEMPTS, TextsRejected, embed_checked, embed_query_checked
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import (
    AnswerMalformed,
    ConfigurationError,
    EmbedderUnavailable,
    ModelMissing,
    TextRejected,
    TextTooLong,
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
        limits: EmbedderLimits | None = None,
        reads: int = 10**9,
    ) -> None:
        super().__init__(32)
        self.limits = limits or EmbedderLimits(texts=4, tokens_per_text=100)
        self.calls: list[int] = []
        self.sent: list[list[str]] = []
        self._reads = reads
        """Words of a text that the service takes, whatever the limits say."""
        self._failures = list(failures)
        self._refused = set(refused)
        self._change = change

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.calls.append(len(texts))
        self.sent.append(list(texts))
        if any(len(text.split()) > self._reads for text in texts):
            raise TextTooLong("too long for the service")
        if self._failures:
            raise self._failures.pop(0)
        if self._refused & set(texts):
            raise TextRejected("content policy", fix="leave this text out")
        vectors = super().embed_documents(texts)
        return self._change(texts, vectors) if self._change else vectors

    def count_tokens(self, text: str) -> int:
        return len(text.split())


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


@pytest.mark.req("001-080")
def test_vectors_are_brought_to_length_one() -> None:
    vectors = embed_checked(Provider(change=lambda _, v: v * 7), words(6))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(6), abs=1e-6)


def test_very_small_vectors_keep_their_direction() -> None:
    vectors = embed_checked(Provider(change=lambda _, v: (v * 1e-30).astype(np.float32)), words(2))
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(2), abs=1e-5)


def test_a_busy_provider_is_asked_three_times_within_three_seconds() -> None:
    waits: list[float] = []
    provider = Provider(failures=[EmbedderUnavailable("busy"), EmbedderUnavailable("busy")])
    assert embed_checked(provider, words(2), attempts=ATTEMPTS.copy(sleep=waits.append)).shape == (2, 32)
    assert provider.calls == [2, 2, 2]
    assert len(waits) == 2
    assert all(wait > 0 for wait in waits)
    assert sum(waits) < 3


def test_a_provider_that_stays_down_is_given_up() -> None:
    provider = Provider(failures=[EmbedderUnavailable(f"down {n}") for n in range(9)])
    with pytest.raises(EmbedderUnavailable, match="down 2"):
        embed_checked(provider, words(9), attempts=ATTEMPTS.copy(sleep=no_wait))
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
        embed_checked(provider, words(2), attempts=ATTEMPTS.copy(sleep=waits.append))
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


PATIENTLY = ATTEMPTS.copy(sleep=no_wait)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0])
def test_a_vector_nobody_can_compare_is_a_refused_text(value: float) -> None:
    def spoil(texts: Sequence[str], vectors: Vectors) -> Vectors:
        vectors[[text == "text number5" for text in texts]] = value
        return vectors

    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(change=spoil), words(7), attempts=PATIENTLY)
    assert caught.value.indexes == (5,)


def test_a_single_nan_in_a_vector_is_enough() -> None:
    def spoil(texts: Sequence[str], vectors: Vectors) -> Vectors:
        vectors[[text == "text number2" for text in texts], 7] = np.nan
        return vectors

    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(change=spoil), words(3), attempts=PATIENTLY)
    assert caught.value.indexes == (2,)


MALFORMED: dict[str, Change] = {
    "one-less": lambda _, v: v[:-1],
    "double": lambda _, v: np.concatenate([v, v]),
    "flat": lambda _, v: v[0],
    "none": lambda _, v: v[:0],
    "nan": lambda _, v: np.vstack([v[:-1], np.full_like(v[-1:], np.nan)]),
}


@pytest.mark.parametrize("kind", MALFORMED)
@pytest.mark.parametrize("times", [1, 2])
def test_an_answer_that_is_malformed_once_or_twice_is_asked_for_again(kind: str, times: int) -> None:
    """Taken as it came, every text after the gap would get its neighbour's vector."""
    waits: list[float] = []
    provider = Provider(
        change=lambda t, v: MALFORMED[kind](t, v) if len(provider.calls) <= times else v,
        limits=limits(),
    )
    vectors = embed_checked(provider, words(30), attempts=ATTEMPTS.copy(sleep=waits.append))
    assert np.allclose(vectors, HashingEmbedder(32).embed_documents(words(30)))
    assert provider.calls == [30] * (times + 1)
    assert len(waits) == times
    assert 0 < sum(waits) < 3


@pytest.mark.parametrize("kind", ["one-less", "none", "nan"])
def test_a_text_that_spoils_every_answer_with_it_is_found_by_halves_and_named(kind: str) -> None:
    def spoil(texts: Sequence[str], vectors: Vectors) -> Vectors:
        return MALFORMED[kind](texts, vectors) if bad in texts else vectors

    bad = "text number17"
    provider = Provider(change=spoil, limits=limits())
    with pytest.raises(TextsRejected, match=r"refuses 1 of 30 texts, no\. 17 ") as caught:
        embed_checked(provider, words(30), attempts=PATIENTLY)
    assert caught.value.indexes == (17,)
    good = [n for n in range(30) if n != 17]
    expected = HashingEmbedder(32).embed_documents(words(30))
    assert np.allclose(caught.value.vectors[good], expected[good])
    assert len(provider.calls) < 30


@pytest.mark.parametrize("kind", ["one-less", "double", "flat", "none"])
@pytest.mark.parametrize("count", [1, 30])
def test_a_service_whose_every_answer_is_malformed_is_to_blame_and_no_text_is(kind: str, count: int) -> None:
    provider = Provider(change=MALFORMED[kind], limits=limits())
    with pytest.raises(AnswerMalformed, match="answers 1 text with") as caught:
        embed_checked(provider, words(count), attempts=PATIENTLY)
    assert caught.value.waits
    assert len(provider.calls) < 20
    assert len(provider.sent[-1]) == 1


def test_a_malformed_answer_to_a_question_is_passed_on_at_once() -> None:
    provider = Provider(change=lambda _, v: v[:0])
    provider.embed_query = lambda text: provider.embed_documents([text])  # type: ignore[method-assign]
    with pytest.raises(AnswerMalformed):
        embed_query_checked(provider, "one")
    assert provider.calls == [1]


@pytest.mark.req("003-026")
def test_vectors_of_another_width_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="gives 31 dimensions") as caught:
        embed_checked(Provider(change=lambda _, v: v[:, :31]), words(3))
    assert "31" in caught.value.fix


# --- limits of a call ---


def limits(**changes: Any) -> EmbedderLimits:
    return EmbedderLimits(**{"texts": 100, "tokens_per_text": 10, **changes})


def mean(parts: Sequence[str]) -> np.ndarray:
    """The mean of the parts' vectors, each counted by its words, at length 1."""
    weights = np.array([len(part.split()) for part in parts], dtype=np.float64)
    found = weights @ HashingEmbedder(32).embed_documents(parts)
    return np.asarray(found / np.linalg.norm(found))


@pytest.mark.req("001-020")
def test_a_call_carries_no_more_tokens_than_the_limits_say() -> None:
    provider = Provider(limits=limits(tokens=10))
    texts = ["a b c d", "e f g h", "i j k", "l", "m n o p q r s t u v", "w"]
    vectors = embed_checked(provider, texts)
    assert provider.sent == [["a b c d", "e f g h"], ["i j k", "l"], ["m n o p q r s t u v"], ["w"]]
    assert np.allclose(vectors, HashingEmbedder(32).embed_documents(texts), atol=1e-6)


@given(st.lists(st.text(alphabet="aé\0\N{PARTY POPPER}", min_size=1, max_size=100), max_size=20))
def test_a_call_carries_no_more_bytes_than_the_limits_say_as_json(texts: list[str]) -> None:
    provider = Provider(limits=limits(bytes=2000, tokens_per_text=1000))
    embed_checked(provider, texts)
    assert [text for call in provider.sent for text in call] == texts
    # Accents and emoji may be escaped, which is three times as long as UTF-8.
    assert all(len(json.dumps({"input": call})) <= 2000 for call in provider.sent)
    joined = [a + b[:1] for a, b in pairwise(provider.sent)]
    assert all(sum(len(json.dumps(text)) + 256 for text in call) > 2000 for call in joined)


def test_a_text_of_too_many_bytes_is_embedded_in_parts() -> None:
    provider = Provider(limits=limits(bytes=1000, tokens_per_text=10_000))
    text = "grüße " * 300
    vector = embed_checked(provider, [text])[0]
    parts = [part for call in provider.sent for part in call]
    assert len(parts) > 2
    assert "".join(parts) == text
    assert np.allclose(vector, mean(parts), atol=1e-5)


def test_a_long_text_is_embedded_in_parts_among_others() -> None:
    provider = Provider(limits=limits(texts=3))
    long = " ".join(f"word{n}" for n in range(37))
    texts = ["short one", long, "short two"]
    vectors = embed_checked(provider, texts)
    sent = [text for call in provider.sent for text in call]
    assert all(len(call) <= 3 for call in provider.sent)
    assert all(len(text.split()) <= 10 for text in sent)
    assert " ".join("".join(sent[1:-1]).split()) == long
    assert np.allclose(vectors[1], mean(sent[1:-1]), atol=1e-5)
    assert np.allclose(vectors[[0, 2]], HashingEmbedder(32).embed_documents([texts[0], texts[2]]), atol=1e-6)


def test_a_long_text_is_refused_by_its_counts_without_being_sent() -> None:
    provider = Provider(limits=limits(oversize="refuse"))
    texts = ["short", "secret " * 25, "fine"]
    with pytest.raises(TextsRejected, match=r"25 tokens .* 2\.5 times as long") as caught:
        embed_checked(provider, texts)
    assert caught.value.indexes == (1,)
    assert "secret" not in str(caught.value)
    assert "oversize" in caught.value.fix
    assert provider.sent == [["short", "fine"]]
    assert np.allclose(caught.value.vectors[[0, 2]], HashingEmbedder(32).embed_documents(["short", "fine"]))
    assert not caught.value.vectors[1].any()


def test_a_model_that_cuts_gets_long_texts_whole() -> None:
    provider = Provider(limits=limits(oversize="cut"))
    embed_checked(provider, ["word " * 50])
    assert provider.sent == [["word " * 50]]


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_a_text_of_white_space_is_refused_without_being_sent(text: str) -> None:
    provider = Provider(limits=limits(empty=False))
    with pytest.raises(TextsRejected, match="white space") as caught:
        embed_checked(provider, ["one", text, "two"])
    assert caught.value.indexes == (1,)
    assert provider.sent == [["one", "two"]]
    with pytest.raises(TextRejected, match="white space"):
        embed_query_checked(provider, text)
    assert len(provider.sent) == 1


def test_a_text_that_the_service_finds_too_long_after_all_is_cut_further() -> None:
    """The count is a bound for usual texts only; and servers are set to less than their models read."""
    provider = Provider(limits=limits(), reads=4)
    text = "one two three four five six seven eight nine"
    vectors = embed_checked(provider, ["first", text, "last"])
    good = [call[0] for call in provider.sent if len(call) == 1 and len(call[0].split()) <= 4]
    parts = [part for part in good if part not in {"first", "last"}]
    assert "".join(parts) == text
    assert np.allclose(vectors[1], mean(parts), atol=1e-5)
    assert np.allclose(vectors[0], HashingEmbedder(32).embed_query("first"), atol=1e-6)


def test_a_service_that_takes_nothing_is_not_asked_for_ever() -> None:
    provider = Provider(limits=limits(tokens_per_text=10_000), reads=0)
    with pytest.raises(TextsRejected, match="too long for the service"):
        embed_checked(provider, ["word " * 5000])
    assert len(provider.sent) <= 5


def test_a_text_refused_in_one_part_is_refused() -> None:
    text = " ".join(f"word{n}" for n in range(30))
    whole = Provider(limits=limits())
    embed_checked(whole, [text])
    parts = [part for call in whole.sent for part in call]
    with pytest.raises(TextsRejected) as caught:
        embed_checked(Provider(limits=limits(), refused=[parts[1]]), ["fine", text])
    assert caught.value.indexes == (1,)


def test_too_long_is_refused_where_long_texts_are() -> None:
    provider = Provider(limits=limits(oversize="refuse"), reads=4)
    with pytest.raises(TextsRejected, match="too long for the service"):
        embed_checked(provider, ["one two three four five"])
    assert len(provider.sent) == 1


# --- questions ---


def test_a_question_has_the_providers_own_encoding() -> None:
    class Asymmetric(Provider):
        def embed_query(self, text: str) -> Vectors:
            vector: Vectors = -7 * HashingEmbedder(32).embed_query(text)
            return vector

    vector = embed_query_checked(Asymmetric(limits=limits()), "one two")
    assert vector.shape == (32,)
    assert vector.dtype == np.float32
    assert np.allclose(vector, -HashingEmbedder(32).embed_query("one two"), atol=1e-6)


@pytest.mark.parametrize("oversize", ["split", "refuse"])
def test_a_long_question_is_asked_in_parts_whatever_becomes_of_documents(oversize: str) -> None:
    provider = Provider(limits=limits(oversize=oversize))
    text = " ".join(f"word{n}" for n in range(25))
    vector = embed_query_checked(provider, text)
    parts = [call[0] for call in provider.sent]
    assert "".join(parts) == text
    assert len(parts) == 3
    assert np.allclose(vector, mean(parts), atol=1e-5)


def test_a_question_is_tried_once() -> None:
    provider = Provider(failures=[EmbedderUnavailable("busy")])
    with pytest.raises(EmbedderUnavailable, match="busy"):
        embed_query_checked(provider, "one")
    assert provider.calls == [1]


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_a_question_without_a_usable_vector_is_refused(value: float) -> None:
    with pytest.raises(TextRejected, match="not finite"):
        embed_query_checked(Provider(change=lambda _, v: np.full_like(v, value)), "one")


@pytest.mark.req("003-026")
def test_a_question_of_another_width_is_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match="gives 31 dimensions"):
        embed_query_checked(Provider(change=lambda _, v: v[:, :31]), "one")


@pytest.mark.parametrize("oversize", ["split", "cut"])
def test_the_vector_of_a_question_is_brought_to_length_one(oversize: Any) -> None:
    provider = Provider(change=lambda _, v: 3 * v, limits=limits(oversize=oversize))
    expected = HashingEmbedder(32).embed_query("one two")
    assert np.allclose(embed_query_checked(provider, "one two"), expected, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_question_to_a_model_that_cuts_has_a_usable_vector_or_none(value: float) -> None:
    provider = Provider(change=lambda _, v: np.full_like(v, value), limits=limits(oversize="cut"))
    with pytest.raises(TextRejected):
        embed_query_checked(provider, "one")
