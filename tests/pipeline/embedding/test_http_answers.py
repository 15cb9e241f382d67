"""What each answer of an embedding service means for us."""

from __future__ import annotations

import json
from typing import Any

import pytest
from requests.structures import CaseInsensitiveDict

from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.embedding.providers.http_service import HttpAnswer, HttpService, checked_json
from pipeline.errors import EmbedderRefused, EmbedderUnavailable, LarderError, TextRejected, TextTooLong

SECRET = "sk-0123456789 and a text of a customer"


SERVICE = HttpService(PROVIDER_FACTS["openai"], model="m-1", base_url="http://here")


def answer(status: int, body: Any, *, headers: dict[str, str] | None = None) -> HttpAnswer:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return HttpAnswer(status=status, headers=CaseInsensitiveDict(headers or {}), content=content)


def openai(message: str = SECRET, **more: Any) -> Any:
    return {"error": {"message": message, "type": "x", "param": None, "code": None, **more}}


PAGE = b"<!DOCTYPE html><html><body>Sign in</body></html>"

CASES: list[tuple[str, int, Any, type[LarderError], str]] = [
    ("bad key", 401, openai(code="invalid_api_key"), EmbedderRefused, "does not accept the key"),
    ("forbidden", 403, openai(), EmbedderRefused, "does not accept the key"),
    ("no balance", 402, {"error": SECRET}, EmbedderRefused, "plan or the balance"),
    ("quota", 429, openai(type="insufficient_quota"), EmbedderRefused, "plan or the balance"),
    (
        "quota in words",
        429,
        openai("You exceeded your current quota"),
        EmbedderRefused,
        "plan or the balance",
    ),
    ("credits", 403, {"error": "You have exceeded your monthly credits"}, EmbedderRefused, "plan"),
    ("rate", 429, openai(code="rate_limit_exceeded"), EmbedderUnavailable, "too many requests"),
    ("rate of a model", 429, openai("Rate limit: model not available now"), EmbedderUnavailable, "too many"),
    ("no model", 404, openai(code="model_not_found"), EmbedderRefused, "no embedding model m-1"),
    (
        "no model here",
        400,
        {"error": "Model not supported by provider"},
        EmbedderRefused,
        "no embedding model",
    ),
    ("chat model", 501, {"error": "this model does not support embeddings"}, EmbedderRefused, "no embedding"),
    (
        "not made for it",
        501,
        {"error": "start the server with --embeddings"},
        EmbedderRefused,
        "no embedding API",
    ),
    ("no path", 404, b"404 page not found", EmbedderRefused, "there is no embedding API"),
    ("page for 404", 404, PAGE, EmbedderRefused, "there is no embedding API"),
    ("redirect", 302, b"", EmbedderRefused, "there is no embedding API"),
    ("method", 405, b"", EmbedderRefused, "there is no embedding API"),
    ("dimensions", 400, openai(param="dimensions"), EmbedderRefused, "does not accept dimensions"),
    ("too long", 400, openai("maximum context length is 8192 tokens"), TextTooLong, "too long for m-1"),
    ("too long by code", 400, openai(code="context_length_exceeded"), TextTooLong, "too long"),
    ("too long, Ollama", 400, {"error": "the input length exceeds the context length"}, TextTooLong, "long"),
    (
        "too long, TEI",
        413,
        {"error": "`inputs` must have less than 512 tokens. Given: 9"},
        TextTooLong,
        "long",
    ),
    ("too long, llama.cpp", 500, openai("input is too large to process"), TextTooLong, "too long"),
    ("too large a call", 413, PAGE, TextTooLong, "call is too large"),
    ("too large a batch", 422, {"error": "batch size 64 > maximum allowed"}, TextRejected, "refuses a text"),
    ("a bad text", 400, openai(param="input"), TextRejected, "refuses a text"),
    (
        "a text about models",
        400,
        {"error": "Invalid: 'the model was not found'"},
        TextRejected,
        "refuses a text",
    ),
    ("a page for 400", 400, PAGE, EmbedderRefused, "no embedding API"),
    ("timeout", 408, b"", EmbedderUnavailable, "answered 408"),
    ("crash", 500, {"error": "llama runner process has terminated"}, EmbedderUnavailable, "answered 500"),
    ("gateway", 502, PAGE, EmbedderUnavailable, "answered 502"),
    ("busy", 503, {"error": "server busy, please try again"}, EmbedderUnavailable, "answered 503"),
    ("page", 200, PAGE, EmbedderUnavailable, "web page"),
    ("half of a JSON", 200, b'{"data": [', EmbedderUnavailable, "not JSON"),
    ("nothing", 200, b"", EmbedderUnavailable, "not JSON"),
    ("endless nesting", 200, b"[" * 100_000, EmbedderUnavailable, "not JSON"),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "words"), [c[1:] for c in CASES], ids=[c[0] for c in CASES]
)
def test_each_answer_is_one_of_our_errors(
    status: int, body: Any, kind: type[LarderError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        checked_json(answer(status, body), SERVICE)
    assert type(caught.value) is kind
    assert words in caught.value.message
    assert caught.value.message.startswith("OpenAI at http://here")
    assert caught.value.fix


@pytest.mark.parametrize(("status", "body", "kind"), [c[1:4] for c in CASES], ids=[c[0] for c in CASES])
def test_the_words_of_the_service_are_never_repeated(status: int, body: Any, kind: type[LarderError]) -> None:
    """They quote keys and texts."""
    with pytest.raises(kind) as caught:
        checked_json(answer(status, body), SERVICE)
    assert "sk-" not in str(caught.value)
    assert "customer" not in str(caught.value)


def test_a_good_answer_is_its_json() -> None:
    assert checked_json(answer(200, {"data": [1]}), SERVICE) == {"data": [1]}


@pytest.mark.parametrize(
    ("status", "body", "headers", "wait"),
    [
        (429, b"", {"retry-after": "12"}, 12.0),
        (429, b"", {}, None),
        (503, b"", {"retry-after": "12"}, 12.0),
        (503, {"error": "loading", "estimated_time": 20.5}, {}, 20.5),
        (503, {"error": "loading", "estimated_time": 1e9}, {}, 3600.0),
        (503, {"error": "loading", "estimated_time": "soon"}, {}, None),
        (503, {"error": "loading", "estimated_time": True}, {}, None),
        (500, b"", {}, None),
    ],
)
def test_the_time_to_stay_away_goes_with_the_error(
    status: int, body: Any, headers: dict[str, str], wait: float | None
) -> None:
    with pytest.raises(EmbedderUnavailable) as caught:
        checked_json(answer(status, body, headers=headers), SERVICE)
    assert caught.value.retry_after == wait


@pytest.mark.parametrize(
    "body", [[1, 2], 7, None, {"error": None}, {"error": [1]}, {"detail": "x"}, {"error": {}}]
)
def test_an_error_in_no_known_form_is_still_judged_by_its_status(body: Any) -> None:
    with pytest.raises(TextRejected):
        checked_json(answer(400, body), SERVICE)
