"""What every embedder on the network must do when its service misbehaves; nothing leaves the machine."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import ATTEMPTS, TextsRejected, embed_checked, embed_query_checked
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    LarderError,
)
from tests.contracts.embedders import SERVICES, Running, Service, running
from tests.fakes.embedding_words import Change, unchanged
from tests.fakes.faults import Fault
from tests.fakes.server import FakeServer

PRIVATE = "salary of the managers"


@pytest.fixture(scope="module", params=SERVICES)
def started(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as found:
        yield found


@pytest.fixture
def fake(started: Running) -> Iterator[FakeServer]:
    """The service, well-behaved again afterwards."""
    assert started.fake is not None
    yield started.fake
    started.fake.faults.clear()
    spoil(started.fake, unchanged)


def service_of(started: Running) -> Service:
    assert started.candidate.service is not None
    return started.candidate.service


def spoil(fake: FakeServer, change: Change) -> None:
    """Have this done to the vectors of every answer from now on."""
    assert hasattr(fake, "change")
    fake.change = change


def ways(embedder: Embedder, text: str) -> tuple[Callable[[], Vectors], ...]:
    """As a document, and as a question."""
    return (lambda: embedder.embed_documents([text])), (lambda: embedder.embed_query(text))


def told(error: BaseException) -> str:
    """Everything that a log would show of an error."""
    extras = [str(error), repr(error), getattr(error, "fix", "")]
    return "".join([*traceback.format_exception(error), *extras])


def test_nothing_is_sent_before_the_first_call(started: Running, fake: FakeServer) -> None:
    before = len(fake.log)
    embedder = started.open()
    embedder.count_tokens("some words")
    assert len(fake.log) == before


DOWN = {
    "500": Fault.status(500),
    "502": Fault.status(502),
    "503": Fault.status(503),
    "408": Fault.status(408),
    "reset": Fault.reset(),
    "reset in the body": Fault.reset_in_body(),
    "cut body": Fault.cut_body(),
    "truncated": Fault.truncated(),
    "a page": Fault.html(),
    "no JSON": Fault.status(200, body="OK", content_type="text/plain"),
    "empty": Fault.status(200, body="", content_type="application/json"),
    "a list": Fault.status(200, body="[1, 2]", content_type="application/json"),
    "null": Fault.status(200, body="null", content_type="application/json"),
    "no number": Fault.status(
        200, body='{"embeddings": [{"values": ["x"]}], "data": 7}', content_type="application/json"
    ),
}


@pytest.mark.parametrize("kind", DOWN)
def test_a_service_in_trouble_may_work_later(started: Running, fake: FakeServer, kind: str) -> None:
    embedder = started.open()
    fake.faults.next(DOWN[kind], times=2)
    for embed in ways(embedder, PRIVATE):
        with pytest.raises(EmbedderUnavailable) as caught:
            embed()
        assert PRIVATE not in told(caught.value)
    assert fake.faults.waiting == 0
    assert embedder.embed_documents(["well again"]).shape == (1, embedder.dimensions)


def test_a_server_that_is_not_there_may_come_back(started: Running, fake: FakeServer) -> None:
    embedder = started.open()
    embedder.embed_documents(["before"])
    fake.stop()
    try:
        with pytest.raises(EmbedderUnavailable):
            embedder.embed_documents(["nobody listens"])
    finally:
        fake.start()
    assert embedder.embed_documents(["back"]).shape == (1, embedder.dimensions)


@pytest.mark.parametrize("fault", [Fault.slow(240), Fault.dripping(240)], ids=["silent", "dripping"])
def test_a_slow_answer_is_given_up_in_time(started: Running, fake: FakeServer, fault: Fault) -> None:
    started.open().embed_documents(["loads the client"])  # which a busy machine does not within half a second
    embedder = started.open(timeout=0.5)
    fake.faults.next(fault)
    begun = time.monotonic()
    with pytest.raises(EmbedderUnavailable):
        embedder.embed_documents(["slow"])
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize("seconds", [37.0, 0.25, None])
def test_too_many_calls_wait_as_long_as_the_service_says(
    started: Running, fake: FakeServer, seconds: float | None
) -> None:
    embedder = started.open()
    fake.faults.next(service_of(started).too_many(seconds))
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder.embed_documents(["one more"])
    if seconds is None:
        assert caught.value.retry_after is None
    else:
        # A header can carry whole seconds only.
        assert caught.value.retry_after in {seconds, float(math.ceil(seconds))}


def test_a_wait_that_the_service_asks_for_is_not_slept_here(started: Running, fake: FakeServer) -> None:
    slept: list[float] = []
    fake.faults.next(service_of(started).too_many(30.0))
    with pytest.raises(EmbedderUnavailable):
        embed_checked(started.open(), ["one"], attempts=ATTEMPTS.copy(sleep=slept.append))
    assert slept == []


def test_a_wrong_key_is_refused_and_not_shown(started: Running, fake: FakeServer) -> None:
    key = "wrong-key-0123456789"
    embedder = started.open(api_key=key)
    for embed in ways(embedder, PRIVATE):
        with pytest.raises(EmbedderRefused) as caught:
            embed()
        assert not caught.value.transient
        assert "apiKey" in caught.value.fix
        assert key not in told(caught.value)
        assert PRIVATE not in told(caught.value)
    assert key not in repr(embedder)
    assert key not in repr(embedder.limits)


@pytest.mark.parametrize("code", [400, 401, 403, 404, 413, 418, 422, 429, 500, 503])
def test_no_error_shows_what_was_sent(started: Running, fake: FakeServer, code: int) -> None:
    """Services quote the text, the key or the address in what they say."""
    key = service_of(started).key
    said = f'{{"error": {{"code": {code}, "message": "bad: {PRIVATE}, key={key}", "status": "{PRIVATE}"}}}}'
    fake.faults.next(Fault.status(code, body=said, content_type="application/json"))
    with pytest.raises(LarderError) as caught:
        started.open().embed_documents([PRIVATE])
    assert PRIVATE not in told(caught.value)
    assert key not in told(caught.value)
    assert isinstance(caught.value, EmbeddingError)


def test_a_redirect_is_not_followed(started: Running, fake: FakeServer) -> None:
    """It would carry the key and the texts to another host."""
    before = len(fake.log)
    fake.faults.next(Fault.redirect(f"{fake.address}/elsewhere"))
    with pytest.raises(EmbeddingError):
        started.open().embed_documents([PRIVATE])
    assert [seen.path for seen in fake.log[before:] if seen.path == "/elsewhere"] == []


ANSWERS: dict[str, tuple[Change, type[LarderError]]] = {
    "one less": (lambda vectors: vectors[:-1], EmbeddingError),
    "one more": (lambda vectors: [*vectors, vectors[0]], EmbeddingError),
    "none": (lambda _vectors: [], EmbeddingError),
    "narrower": (lambda vectors: [vector[:-1] for vector in vectors], ConfigurationError),
    "wider": (lambda vectors: [[*vector, 0.1] for vector in vectors], ConfigurationError),
    "uneven": (lambda vectors: [vectors[0][:-1], *vectors[1:]], ConfigurationError),  # so is one alone
}


@pytest.mark.req("003-026")
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_of_another_shape_is_refused(started: Running, fake: FakeServer, kind: str) -> None:
    change, expected = ANSWERS[kind]
    spoil(fake, change)
    with pytest.raises(expected):
        embed_checked(
            started.open(), ["one", "two", "three"], attempts=ATTEMPTS.copy(sleep=lambda _seconds: None)
        )


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, 1e300])
def test_numbers_nobody_can_compare_are_a_refused_text(
    started: Running, fake: FakeServer, value: float
) -> None:
    bad: list[list[float]] = []

    def remember(vectors: list[list[float]]) -> list[list[float]]:
        bad.extend(vectors)
        return vectors

    def one_bad(vectors: list[list[float]]) -> list[list[float]]:
        return [[value] * len(vector) if vector in bad else vector for vector in vectors]

    embedder = started.open()
    spoil(fake, remember)
    embedder.embed_documents(["two"])
    spoil(fake, one_bad)
    with pytest.raises(TextsRejected) as caught:
        embed_checked(embedder, ["one", "two", "three"], attempts=ATTEMPTS.copy(sleep=lambda _seconds: None))
    assert caught.value.indexes == (1,)
    spoil(fake, lambda vectors: [[value] * len(vector) for vector in vectors])
    with pytest.raises(EmbeddingError):
        embed_query_checked(embedder, "one")


def test_vectors_of_another_length_are_brought_to_length_one(started: Running, fake: FakeServer) -> None:
    embedder = started.open()
    expected = embedder.embed_documents(["one", "two"])
    spoil(fake, lambda vectors: [[7 * value for value in v] for v in vectors])
    assert np.allclose(embedder.embed_documents(["one", "two"]), expected, atol=1e-6)
