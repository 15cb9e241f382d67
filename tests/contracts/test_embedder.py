"""What every embedder must do, whatever model is behind it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from pipeline.embedding import Embedder, EmbeddingOptions, Vectors, open_embedder

FACTORIES: Mapping[str, Callable[[], Embedder]] = {
    "minilm": lambda: open_embedder(EmbeddingOptions(provider="minilm")),
    "hashing": lambda: open_embedder(EmbeddingOptions(provider="hashing")),
}
SAME = {"minilm": 1e-5, "hashing": 0.0}
"""How far two vectors of one text may lie apart, by embedder."""

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


@pytest.fixture(scope="module", params=sorted(FACTORIES))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def embedder(name: str) -> Embedder:
    return FACTORIES[name]()


def far(left: Vectors, right: Vectors) -> float:
    """The largest difference of any coordinate."""
    return float(np.abs(left.astype(np.float64) - right.astype(np.float64)).max())


@pytest.mark.req("001-021", "003-010")
def test_vectors_have_the_shape_and_the_type_the_embedder_declares(embedder: Embedder) -> None:
    vectors = embedder.embed_documents(TEXTS)
    assert vectors.shape == (len(TEXTS), embedder.dimensions)
    assert vectors.dtype == np.float32
    query = embedder.embed_query("login fails")
    assert query.shape == (embedder.dimensions,)
    assert query.dtype == np.float32
    assert embedder.model


def test_every_vector_is_finite_and_of_length_one(embedder: Embedder) -> None:
    vectors = embedder.embed_documents(TEXTS)
    assert np.isfinite(vectors).all()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.ones(len(TEXTS)), abs=1e-5)
    assert np.linalg.norm(embedder.embed_query("")) == pytest.approx(1.0, abs=1e-5)


def test_no_texts_give_no_rows(embedder: Embedder) -> None:
    assert embedder.embed_documents([]).shape == (0, embedder.dimensions)


@pytest.mark.req("001-020")
def test_a_text_has_the_same_vector_alone_and_in_any_company(name: str, embedder: Embedder) -> None:
    rng = random.Random(3)
    texts = [*TEXTS, *(f"item {n} " + "longer and longer " * rng.randrange(40) for n in range(30))]
    alone = np.stack([embedder.embed_documents([text])[0] for text in texts])
    for _ in range(3):
        order = rng.sample(range(len(texts)), len(texts))
        together = embedder.embed_documents([texts[i] for i in order])
        assert far(together, alone[order]) <= SAME[name]


def test_order_is_kept_whatever_the_lengths(embedder: Embedder) -> None:
    """A batch sorted by length and not put back would give each text a neighbour's vector."""
    words = [f"subject{n}" for n in range(40)]
    texts = [f"{word} " * (1 + (n * 7) % 23) for n, word in enumerate(words)]
    vectors = embedder.embed_documents(texts)
    for n, word in enumerate(words):
        query = embedder.embed_query(f"{word} " * (1 + (n * 7) % 23))
        assert int(np.argmax(vectors @ query)) == n


def test_the_same_text_twice_gives_the_same_vector(name: str, embedder: Embedder) -> None:
    first, second = embedder.embed_documents([TEXTS[0], TEXTS[0]])
    assert far(first, second) <= SAME[name]
    assert far(embedder.embed_documents([TEXTS[0]])[0], first) <= SAME[name]


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
        "",
        " ",
        "\0",
        "\ud800 half a character \udfff",
        "\N{ZERO WIDTH JOINER}" * 50,
        "x" * 200_000,
        "é" * 5_000,
    ],
    ids=["empty", "blank", "nul", "surrogates", "invisible", "one-word", "accents"],
)
def test_odd_texts_have_valid_vectors(embedder: Embedder, text: str) -> None:
    vector = embedder.embed_query(text)
    assert np.isfinite(vector).all()
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_a_call_may_carry_as_many_texts_as_the_limits_say(embedder: Embedder) -> None:
    count = embedder.limits.texts
    assert embedder.embed_documents(["short"] * count).shape == (count, embedder.dimensions)
    assert embedder.limits.tokens_per_text >= 1


def test_another_process_gives_the_same_vectors(name: str, embedder: Embedder) -> None:
    """Python's own `hash` differs per process; nothing of it may be in a vector that is stored."""
    code = (
        "import json, sys; from pipeline.embedding import EmbeddingOptions, open_embedder\n"
        f"embedder = open_embedder(EmbeddingOptions(provider={name!r}))\n"
        "print(json.dumps(embedder.embed_documents(json.load(sys.stdin)).tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(TEXTS), capture_output=True, text=True, check=True
    )
    there = np.array(json.loads(done.stdout), dtype=np.float32)
    assert far(there, embedder.embed_documents(TEXTS)) <= SAME[name]
