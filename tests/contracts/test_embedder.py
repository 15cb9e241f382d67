"""What every embedder must do, whatever model is behind it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from pipeline.embedding import Embedder, EmbedderLimits, Vectors
from pipeline.embedding.calls import embed_checked, embed_query_checked
from pipeline.errors import TextRejected, TextTooLong
from tests.contracts.embedders import (
    CANDIDATES,
    Running,
    running,
    used_before_and_after_a_fork,
    vectors_of,
)
from tests.forked import FORKS

TEXTS = (
    "The login page answers with error 500 after the update.",
    "Cache",
    "Deploy the service with two replicas and a readiness probe. " * 6,
    "",
    "Größe ändern: Ähnliche Straßen, naïve façade, Ελληνικά, 日本語の文書, \N{PARTY POPPER}",
    "HADOOP-123 NullPointerException in org.apache.hadoop.fs.FileSystem",
    "word " * 900,
    " \n\t ",
)


@pytest.fixture(scope="module", params=CANDIDATES)
def setting(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as started:
        yield started


@pytest.fixture(scope="module")
def embedder(setting: Running) -> Embedder:
    return setting.open()


@pytest.fixture(scope="module")
def same(setting: Running) -> float:
    """How far two vectors of one text may lie apart."""
    return setting.candidate.same


@pytest.fixture(scope="module")
def texts(embedder: Embedder) -> list[str]:
    """Those that this embedder takes in a single call."""
    return [text for text in TEXTS if takes(embedder, text)]


def takes(embedder: Embedder, text: str) -> bool:
    limits = embedder.limits
    short = limits.oversize == "cut" or embedder.count_tokens(text) <= limits.tokens_per_text
    return short and (limits.empty or bool(text.strip()))


def far(left: Vectors, right: Vectors) -> float:
    """The largest difference of any coordinate."""
    return float(np.abs(left.astype(np.float64) - right.astype(np.float64)).max())


@pytest.mark.req("001-021", "003-010", "003-031")
def test_an_embedder_has_what_the_port_says(embedder: Embedder) -> None:
    assert isinstance(embedder.model, str)
    assert embedder.model
    assert isinstance(embedder.dimensions, int)
    assert isinstance(embedder.limits, EmbedderLimits)
    assert isinstance(embedder.count_tokens("two words"), int)


@pytest.mark.req("001-021", "003-010", "003-031")
def test_vectors_have_the_shape_and_the_type_the_embedder_declares(
    embedder: Embedder, texts: list[str]
) -> None:
    vectors = embedder.embed_documents(texts)
    assert vectors.shape == (len(texts), embedder.dimensions)
    assert vectors.dtype == np.float32
    query = embedder.embed_query("login fails")
    assert query.shape == (embedder.dimensions,)
    assert query.dtype == np.float32


def test_every_vector_is_finite_and_of_length_one(embedder: Embedder, texts: list[str]) -> None:
    vectors = embedder.embed_documents(texts)
    assert np.isfinite(vectors).all()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)
    assert np.linalg.norm(embedder.embed_query("login fails")) == pytest.approx(1.0, abs=1e-5)


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert embedder.embed_documents([]).shape == (0, embedder.dimensions)


@pytest.mark.req("001-020")
def test_a_text_has_the_same_vector_alone_and_in_any_company(
    embedder: Embedder, texts: list[str], same: float
) -> None:
    rng = random.Random(3)
    many = [*texts, *(f"item {n} " + "longer and longer " * rng.randrange(24) for n in range(20))]
    alone = np.stack([embedder.embed_documents([text])[0] for text in many])
    for _ in range(3):
        order = rng.sample(range(len(many)), len(many))
        together = embedder.embed_documents([many[i] for i in order])
        assert far(together, alone[order]) <= same


def test_order_is_kept_whatever_the_lengths(embedder: Embedder) -> None:
    """A batch sorted by length and not put back would give each text a neighbour's vector."""
    words = [f"subject{n}" for n in range(min(40, embedder.limits.texts))]
    many = [f"{word} " * (1 + (n * 7) % 23) for n, word in enumerate(words)]
    vectors = embedder.embed_documents(many)
    for n, text in enumerate(many):
        assert int(np.argmax(vectors @ embedder.embed_query(text))) == n


def test_the_same_text_twice_gives_the_same_vector(embedder: Embedder, same: float) -> None:
    first, second = embedder.embed_documents([TEXTS[0], TEXTS[0]])
    assert far(first, second) <= same
    assert far(embedder.embed_documents([TEXTS[0]])[0], first) <= same


def test_different_texts_have_different_vectors(embedder: Embedder) -> None:
    first, second = embedder.embed_documents(["the cat sleeps", "release the database lock"])
    assert float(first @ second) < 0.9


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("reset a forgotten password", "A user who forgot the password can reset the password by mail."),
        ("database backup every night", "The nightly job makes a backup of the database at two."),
        ("invoice as PDF", "Customers download each invoice as a PDF file."),
    ],
)
def test_a_question_lies_closest_to_its_answer(embedder: Embedder, question: str, answer: str) -> None:
    others = [
        "Sprint planning takes place on Monday.",
        "The logo is blue.",
        "Pods restart when memory runs out.",
    ]
    similarities = embedder.embed_documents([*others, answer]) @ embedder.embed_query(question)
    assert int(np.argmax(similarities)) == len(others)


@pytest.mark.parametrize(
    "text",
    [
        "\0",
        "\ud800 half a character \udfff",
        "\N{ZERO WIDTH JOINER}" * 50,
        "x" * 50_000,
        "é" * 5_000,
        "how is it that the search finds nothing? " * 250,
    ],
    ids=["nul", "surrogates", "invisible", "one-word", "accents", "10,000-characters"],
)
def test_odd_texts_have_valid_vectors(embedder: Embedder, text: str) -> None:
    asked, stored = embed_query_checked(embedder, text), embed_checked(embedder, [text])[0]
    for vector in (asked, stored):
        assert np.isfinite(vector).all()
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("text", ["", " ", " \n\t "], ids=["empty", "blank", "white"])
def test_a_text_of_nothing_has_a_vector_or_is_refused_in_the_open(embedder: Embedder, text: str) -> None:
    if embedder.limits.empty:
        assert np.linalg.norm(embed_checked(embedder, [text])[0]) == pytest.approx(1.0, abs=1e-5)
        return
    with pytest.raises(TextRejected, match="white space"):
        embed_checked(embedder, [text])
    with pytest.raises(TextRejected, match="white space"):
        embed_query_checked(embedder, text)


def too_long(embedder: Embedder) -> str:
    """A text that is a little longer than the model reads, and ends with something of its own."""
    text = "alpha beta gamma delta. "
    times = 2 + int(1.2 * embedder.limits.tokens_per_text) // embedder.count_tokens(text)
    found = text * times + "omega omega omega omega"
    assert embedder.count_tokens(found) > embedder.limits.tokens_per_text
    return found


def test_no_text_is_cut_without_a_word(setting: Running) -> None:
    """Handed to the embedder itself it raises or is read to the end, unless the limits say that it is cut."""
    embedder = setting.open(oversize="split")
    text = too_long(embedder)
    try:
        whole = embedder.embed_documents([text])[0]
    except TextTooLong:
        return
    assert far(whole, embedder.embed_documents([text.replace("omega", "other")])[0]) > 0


def test_the_end_of_a_long_text_counts(setting: Running) -> None:
    embedder = setting.open(oversize="split")
    text = too_long(embedder)
    first, other = embed_checked(embedder, [text, text.replace("omega", "other")])
    assert far(first, other) > 0


def test_a_long_text_is_refused_if_that_is_asked_for(setting: Running) -> None:
    embedder = setting.open(oversize="refuse")
    with pytest.raises(TextRejected, match="times as long") as caught:
        embed_checked(embedder, ["short", too_long(embedder)])
    assert caught.value.indexes == (1,)  # type: ignore[attr-defined]
    assert "omega" not in str(caught.value)
    assert embed_query_checked(embedder, too_long(embedder)).shape == (embedder.dimensions,)


def test_a_call_may_carry_as_many_texts_as_the_limits_say(embedder: Embedder) -> None:
    count = embedder.limits.texts
    assert embedder.embed_documents(["short"] * count).shape == (count, embedder.dimensions)
    assert embedder.limits.tokens_per_text >= 1


@pytest.mark.req("001-020")
def test_a_batch_of_any_size_keeps_its_order(embedder: Embedder) -> None:
    many = [f"subject{n}" for n in range(2 * min(embedder.limits.texts, 150) + 1)]
    vectors = embed_checked(embedder, many)
    for n in (0, 1, len(many) // 2, len(many) - 1):
        assert int(np.argmax(vectors @ embedder.embed_query(many[n]))) == n


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    """Another process, which loads the clients of all embedders once."""
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:
        yield pool


def test_another_process_gives_the_same_vectors(
    setting: Running, embedder: Embedder, texts: list[str], same: float, elsewhere: ProcessPoolExecutor
) -> None:
    """Python's own `hash` differs per process; nothing of it may be in a vector that is stored."""
    there = elsewhere.submit(vectors_of, setting.options, texts).result()
    assert far(there, embedder.embed_documents(texts)) <= same


def test_an_embedder_that_was_used_can_be_used_after_a_fork(setting: Running) -> None:
    """Parent and child must not talk over one connection."""
    with ProcessPoolExecutor(1, mp_context=FORKS) as pool:
        status, difference = pool.submit(used_before_and_after_a_fork, setting.options).result()
    assert status == 0
    assert difference < 1e-4


def test_what_is_paid_for_is_not_lost_with_a_refused_text(embedder: Embedder, texts: Sequence[str]) -> None:
    if embedder.limits.empty:
        return
    with pytest.raises(TextRejected) as caught:
        embed_checked(embedder, [texts[0], " ", texts[1]])
    assert far(caught.value.vectors[[0, 2]], embedder.embed_documents(texts[:2])) < 1e-6  # type: ignore[attr-defined]
