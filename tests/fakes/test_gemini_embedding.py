"""The fake of Gemini's embeddings: its limits and quotas are those of the service."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.fakes.gemini_embedding import MOST_BYTES, FakeGeminiEmbedding


@pytest.fixture
def fake() -> Iterator[FakeGeminiEmbedding]:
    with FakeGeminiEmbedding() as started:
        yield started


def one(text: str, **more: Any) -> dict[str, Any]:
    return {"content": {"parts": [{"text": text}]}, **more}


def post(
    fake: FakeGeminiEmbedding, *requests: Any, model: str = "gemini-embedding-001", key: str = ""
) -> httpx2.Response:
    return httpx2.post(
        f"{fake.address}/v1/models/{model}:batchEmbedContents",
        content=json.dumps({"requests": list(requests)}),
        headers={"x-goog-api-key": key or fake.key, "Content-Type": "application/json"},
        trust_env=False,
        timeout=60,
    )


def values(answer: httpx2.Response) -> list[list[float]]:
    return [found["values"] for found in answer.json()["embeddings"]]


def test_only_the_whole_vector_has_length_one(fake: FakeGeminiEmbedding) -> None:
    whole, short = values(post(fake, one("a b"), one("a b", outputDimensionality=768)))
    assert math.hypot(*whole) == pytest.approx(1.0)
    assert short == whole[:768]
    assert math.hypot(*short) < 0.99


def test_the_task_moves_a_vector_a_little(fake: FakeGeminiEmbedding) -> None:
    tasks = ("RETRIEVAL_DOCUMENT", "RETRIEVAL_QUERY")
    document, question = values(post(fake, *(one("kestrel", taskType=task) for task in tasks)))
    assert 0.5 < sum(a * b for a, b in zip(document, question, strict=True)) < 0.999


def test_all_parts_of_a_content_have_one_vector(fake: FakeGeminiEmbedding) -> None:
    joined = {"content": {"parts": [{"text": "one"}, {"text": "two"}]}}
    assert values(post(fake, joined, model="gemini-embedding-2")) == values(
        post(fake, one("one\ntwo"), model="gemini-embedding-2")
    )


@pytest.mark.parametrize(
    ("requests", "said"),
    [
        ([one("x")] * 101, "at most 100"),
        ([], "at most 100"),
        ([one("x"), one("")], "not specified"),
        ([one("x"), one(" ")], "not specified"),
        ([one("x\ud800")], "surrogate"),
        ([one("x" * MOST_BYTES)], "exceeds the limit"),
        ([one("x", outputDimensionality=4000)], "between 1 and 3072"),
        ([one("x", taskType="TALK")], "task_type"),
    ],
    ids=["101", "none", "empty", "blank", "half", "bytes", "width", "task"],
)
def test_what_the_service_refuses_costs_nothing(
    fake: FakeGeminiEmbedding, requests: list[Any], said: str
) -> None:
    answer = post(fake, *requests)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert fake.usage.calls == 0


def test_key_and_model_are_checked(fake: FakeGeminiEmbedding) -> None:
    wrong = post(fake, one("x"), key="wrong").json()["error"]
    assert (wrong["code"], wrong["details"][0]["reason"]) == (400, "API_KEY_INVALID")
    assert post(fake, one("x"), model="gemini-embedding-0").status_code == 404


def test_a_long_text_is_cut_without_a_word_and_counted(fake: FakeGeminiEmbedding) -> None:
    long = "word " * 3000
    first, second = values(post(fake, one(long), one(long + "tail " * 500)))
    assert first == second
    assert fake.cut == 2


def test_quotas_count_every_text_of_a_batch(fake: FakeGeminiEmbedding) -> None:
    fake.texts_per_minute = 3
    assert post(fake, one("a"), one("b")).status_code == 200
    refused = post(fake, one("c"), one("d"))
    kinds = [detail["@type"].rpartition(".")[2] for detail in refused.json()["error"]["details"]]
    assert (refused.status_code, kinds) == (429, ["QuotaFailure", "RetryInfo"])
    assert post(fake, one("c")).status_code == 200
    assert (fake.usage.calls, fake.usage.texts) == (2, 3)


def test_a_single_content_has_an_address_of_its_own(fake: FakeGeminiEmbedding) -> None:
    found = httpx2.post(
        f"{fake.address}/v1beta/models/gemini-embedding-001:embedContent",
        json=one("a b"),
        headers={"x-goog-api-key": fake.key},
        trust_env=False,
    ).json()
    assert [found["embedding"]["values"]] == values(post(fake, one("a b")))
