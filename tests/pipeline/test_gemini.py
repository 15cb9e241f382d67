"""The client of Gemini against a server of ours: what reaches it, and what its errors become."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from google.genai import errors as foreign

from pipeline.embedding.providers import gemini
from pipeline.errors import (
    AnswerMalformed,
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    LarderError,
    TextRejected,
)
from tests.fakes import gemini_errors as says
from tests.fakes.gemini_embedding import FakeGeminiEmbedding
from tests.fakes.server import Fault

KEY = "AIza-secret-of-the-tests"
MODEL = "gemini-embedding-001"
TEXT = "the text nobody may repeat"


@pytest.fixture
def fake() -> Iterator[FakeGeminiEmbedding]:
    with FakeGeminiEmbedding(key=KEY) as made:
        yield made


def ask(fake: FakeGeminiEmbedding, *, key: str = KEY, model: str = MODEL, timeout: float = 20.0) -> Any:
    with (
        gemini.open_client(key, fake.address, timeout) as client,
        gemini.translating(),
    ):
        return client.models.embed_content(model=model, contents=[TEXT]).embeddings


def failure(fake: FakeGeminiEmbedding, **how: Any) -> LarderError:
    with pytest.raises(LarderError) as caught:
        ask(fake, **how)
    whole = f"{caught.value!s} {caught.value!r} {caught.value.fix}"
    assert KEY not in whole
    assert TEXT not in whole
    assert caught.value.__suppress_context__, "a traceback would show the client's words"
    return caught.value


def test_a_call_carries_the_key_in_a_header_and_a_time(fake: FakeGeminiEmbedding) -> None:
    assert len(ask(fake)) == 1
    (seen,) = fake.requests()
    assert seen.headers["x-goog-api-key"] == KEY
    assert KEY not in seen.target
    assert seen.headers["x-server-timeout"] == "20"


@pytest.mark.parametrize(
    ("planned", "error", "pause"),
    [
        (says.fault(400, "INVALID_ARGUMENT", TEXT), TextRejected, None),
        (says.fault(400, "INVALID_ARGUMENT", TEXT, says.BAD_KEY), EmbedderRefused, None),
        (says.fault(400, "FAILED_PRECONDITION", "User location is not supported"), EmbedderRefused, None),
        (says.fault(401, "UNAUTHENTICATED"), EmbedderRefused, None),
        (says.fault(403, "PERMISSION_DENIED", KEY), EmbedderRefused, None),
        (says.fault(404, "NOT_FOUND"), EmbedderRefused, None),
        (Fault.status(413), TextRejected, None),
        (says.too_many(), EmbedderUnavailable, None),
        (says.too_many(says.retry_info("37s")), EmbedderUnavailable, 37.0),
        (says.too_many(says.quota("PerMinute"), says.retry_info("3.25s")), EmbedderUnavailable, 3.25),
        (says.too_many(says.retry_info("soon")), EmbedderUnavailable, None),
        (says.too_many(says.retry_info("999999999s")), EmbedderUnavailable, 86_400.0),
        (
            says.too_many(says.quota("GenerateRequestsPerDayPerProjectPerModel"), says.retry_info("11s")),
            EmbedderUnavailable,
            3600.0,
        ),
        (Fault.status(429, headers={"Retry-After": "7"}), EmbedderUnavailable, 7.0),
        (says.fault(500, "INTERNAL", TEXT), EmbedderUnavailable, None),
        (says.fault(503, "UNAVAILABLE", "The model is overloaded."), EmbedderUnavailable, None),
        (Fault.status(503, headers={"Retry-After": "9"}), EmbedderUnavailable, 9.0),
        (Fault.status(408), EmbedderUnavailable, None),
        (Fault.status(502), EmbedderUnavailable, None),
        (Fault.html(), AnswerMalformed, None),
        (Fault.html(203), EmbedderUnavailable, None),
        (Fault.redirect("http://127.0.0.1:9/v1"), EmbedderRefused, None),
        (Fault.reset(), EmbedderUnavailable, None),
        (Fault.reset_in_body(), EmbedderUnavailable, None),
        (Fault.cut_body(), EmbedderUnavailable, None),
        (Fault.truncated(), AnswerMalformed, None),
        (
            Fault.status(200, body='{"embeddings": 7}', content_type="application/json"),
            AnswerMalformed,
            None,
        ),
        (Fault.status(200, body=b"\xff\xfe", content_type="application/json"), AnswerMalformed, None),
        (
            Fault.status(429, body='["no", "object"]', content_type="application/json"),
            EmbedderUnavailable,
            None,
        ),
        (
            Fault.status(429, body='{"error": {"details": [7, {"violations": "x"}]}}'),
            EmbedderUnavailable,
            None,
        ),
        (Fault.status(400, body='{"error": "text"}', content_type="application/json"), TextRejected, None),
    ],
)
def test_every_answer_becomes_an_error_of_ours(
    fake: FakeGeminiEmbedding, planned: Fault, error: type[LarderError], pause: float | None
) -> None:
    fake.faults.next(planned)
    found = failure(fake)
    assert type(found) is error
    assert found.retry_after == pause
    assert fake.faults.waiting == 0
    assert len(fake.requests()) == 1, "tried once"


def test_the_fake_refuses_a_wrong_key_and_a_wrong_model_as_the_service_does(
    fake: FakeGeminiEmbedding,
) -> None:
    assert "does not accept the key" in str(failure(fake, key="another"))
    assert "no such model" in str(failure(fake, model="gemini-embedding-0"))


def test_a_server_that_is_not_there(fake: FakeGeminiEmbedding) -> None:
    fake.stop()
    assert isinstance(failure(fake), EmbedderUnavailable)


@pytest.mark.parametrize("planned", [Fault.slow(240), Fault.dripping(240)])
def test_a_late_answer_is_given_up_in_time_also_when_it_drips(
    fake: FakeGeminiEmbedding, planned: Fault
) -> None:
    fake.faults.next(planned)
    begun = time.monotonic()
    found = failure(fake, timeout=1.0)
    assert isinstance(found, EmbedderUnavailable)
    assert "in time" in str(found)
    assert time.monotonic() - begun < 60


@pytest.mark.parametrize(
    "error",
    [
        e
        for _, e in inspect.getmembers(foreign, inspect.isclass)
        if issubclass(e, Exception) and not issubclass(e, Warning)
    ],
)
def test_every_error_of_the_client_is_translated(error: type[Exception]) -> None:
    given = (500, {"error": {"message": TEXT}}, None) if issubclass(error, foreign.APIError) else (TEXT,)
    made: Exception = error(*given)
    found = gemini.translated(made)
    assert isinstance(found, LarderError)
    assert TEXT not in str(found)


@pytest.mark.parametrize(
    "error",
    [
        e
        for _, e in inspect.getmembers(httpx2, inspect.isclass)
        if issubclass(e, Exception) and not issubclass(e, httpx2.HTTPStatusError)
    ],
)
def test_every_error_of_the_connection_is_translated(error: type[Exception]) -> None:
    try:
        made = error(TEXT)
    except TypeError:
        made = error()
    found = gemini.translated(made)
    assert isinstance(found, LarderError)
    assert TEXT not in str(found)


def test_an_error_that_is_not_the_clients_goes_on_as_it_is() -> None:
    class TimeLimit(Exception):
        pass

    with pytest.raises(TimeLimit), gemini.translating():
        raise TimeLimit


@pytest.mark.parametrize("key", ["", "  ", "clé", "a\nb"])
def test_a_key_that_cannot_be_sent_is_a_wrong_configuration(key: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        gemini.open_client(key)
    assert "clé" not in str(caught.value)


def test_the_environment_changes_nothing(fake: FakeGeminiEmbedding) -> None:
    code = f"""
from pipeline.embedding.providers import gemini
client = gemini.open_client({KEY!r}, {fake.address!r}, 20)
print(len(client.models.embed_content(model={MODEL!r}, contents=["x"]).embeddings))
"""
    surprising = {
        "HTTP_PROXY": "http://127.0.0.1:9",
        "HTTPS_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
        "GOOGLE_API_KEY": "another",
        "GEMINI_API_KEY": "another",
        "GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:9",
        "GOOGLE_GENAI_USE_VERTEXAI": "true",
        "GOOGLE_GENAI_USE_ENTERPRISE": "true",
        "GOOGLE_CLOUD_PROJECT": "another",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **surprising},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1\n", done.stderr
    assert KEY not in done.stderr
