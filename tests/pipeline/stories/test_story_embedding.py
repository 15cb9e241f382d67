"""Vectors of user stories: the text that is embedded, one call for many, and retries."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigurationError, EmbedderRefused, EmbedderUnavailable, TextRejected
from pipeline.stories import compose_embedding_text, generate_embedding, generate_embeddings_batch
from tests.fakes.faults import Fault
from tests.fakes.gemini_embedding import FakeGeminiEmbedding
from tests.fakes.gemini_errors import retry_info, too_many

STORY = {
    "user_story_id": "US-001",
    "title": "Reset a password",
    "user_story": "As a user I want to reset my password so that I can sign in again",
    "acceptance_criteria": ["A mail is sent", "The link works once"],
    "tags": ["auth", "mail"],
    "priority": "High",
}
TEXT = """Title: Reset a password
Story: As a user I want to reset my password so that I can sign in again
Acceptance Criteria:
- A mail is sent
- The link works once
Tags: auth, mail"""


@pytest.fixture
def fake() -> Iterator[FakeGeminiEmbedding]:
    with FakeGeminiEmbedding() as started:
        yield started


@pytest.mark.req("000-020")
def test_all_parts_of_a_story_are_in_its_text() -> None:
    assert compose_embedding_text(STORY) == TEXT


@pytest.mark.req("000-021")
def test_both_agents_write_the_same_text() -> None:
    other = {
        "title": STORY["title"],
        "story": STORY["user_story"],
        "acceptanceCriteria": STORY["acceptance_criteria"],
        "Tags/Labels": STORY["tags"],
    }
    assert compose_embedding_text(other) == TEXT


@pytest.mark.req("000-020")
@pytest.mark.parametrize(
    ("story", "text"),
    [
        ({}, ""),
        ({"title": "T"}, "Title: T"),
        ({"title": "", "story": "S", "tags": []}, "Story: S"),
        ({"user_story": None, "story": "S", "acceptance_criteria": None, "tags": None}, "Story: S"),
        ({"acceptance_criteria": ["one"]}, "Acceptance Criteria:\n- one"),
        ({"acceptance_criteria": "one\ntwo"}, "Acceptance Criteria:\n- one\n- two"),
        ({"tags": "auth, mail"}, "Tags: auth, mail"),
        ({"tags": [" auth ", "", 7]}, "Tags: auth, 7"),
    ],
)
def test_parts_that_are_missing_are_left_out(story: dict[str, Any], text: str) -> None:
    assert compose_embedding_text(story) == text


@pytest.mark.req("000-022", "000-018", "000-019")
def test_a_text_has_768_numbers(fake: FakeGeminiEmbedding) -> None:
    vector = generate_embedding(TEXT, fake.key, base_url=fake.address)
    assert len(vector) == 768
    assert all(isinstance(value, float) for value in vector)
    assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)
    assert len(generate_embedding(TEXT, fake.key, 1536, base_url=fake.address)) == 1536


@pytest.mark.req("000-023")
def test_many_texts_take_one_call(fake: FakeGeminiEmbedding) -> None:
    texts = [f"text number{n}" for n in range(20)]
    vectors = generate_embeddings_batch(texts, api_key=fake.key, base_url=fake.address)
    assert len(fake.requests()) == 1
    assert np.allclose(vectors[7], generate_embedding(texts[7], fake.key, base_url=fake.address), atol=1e-6)
    assert generate_embeddings_batch([], fake.key, base_url=fake.address) == []


@pytest.mark.req("000-022", "000-023")
@pytest.mark.parametrize("key", [None, ""])
def test_no_key_says_where_it_comes_from(key: str | None) -> None:
    with pytest.raises(ConfigurationError) as caught:
        generate_embedding("one", key)
    assert "GEMINI_API_KEY" in caught.value.fix


@pytest.mark.req("000-023")
def test_a_batch_that_fails_is_tried_three_times_and_then_text_by_text(fake: FakeGeminiEmbedding) -> None:
    waits: list[float] = []
    fake.faults.next(Fault.status(503), when=lambda seen: len(seen.json["requests"]) > 1, times=None)
    vectors = generate_embeddings_batch(["one", "two"], fake.key, base_url=fake.address, sleep=waits.append)
    assert [len(seen.json["requests"]) for seen in fake.requests()] == [2, 2, 2, 1, 1]
    assert waits == [1.0, 2.0, 4.0]
    assert np.allclose(vectors[1], generate_embedding("two", fake.key, base_url=fake.address), atol=1e-6)


@pytest.mark.req("000-023")
def test_an_answer_of_too_few_vectors_is_asked_for_text_by_text(fake: FakeGeminiEmbedding) -> None:
    fake.change = lambda vectors: vectors[: max(1, len(vectors) - 1)]
    vectors = generate_embeddings_batch(
        ["one", "two"], fake.key, base_url=fake.address, sleep=lambda _seconds: None
    )
    assert [len(seen.json["requests"]) for seen in fake.requests()] == [2, 2, 2, 1, 1]
    assert len(vectors) == 2


@pytest.mark.req("000-023")
def test_a_service_that_stays_down_is_given_up(fake: FakeGeminiEmbedding) -> None:
    waits: list[float] = []
    fake.faults.next(Fault.reset(), times=None)
    with pytest.raises(EmbedderUnavailable):
        generate_embedding("one", fake.key, base_url=fake.address, sleep=waits.append)
    assert (len(fake.requests()), waits) == (3, [1.0, 2.0])
    with pytest.raises(EmbedderUnavailable):
        generate_embeddings_batch(
            ["one", "two", "three"], fake.key, base_url=fake.address, sleep=waits.append
        )
    assert len(fake.requests()) == 3 + 3 + 3  # the first single call shows that it is not the batch
    assert waits == [1.0, 2.0, 1.0, 2.0, 4.0, 1.0, 2.0]


@pytest.mark.req("000-023")
def test_a_wait_that_the_service_asks_for_is_kept(fake: FakeGeminiEmbedding) -> None:
    waits: list[float] = []
    fake.faults.next(too_many(retry_info("7.5s")))
    assert len(generate_embedding("one", fake.key, base_url=fake.address, sleep=waits.append)) == 768
    assert waits == [7.5]


def test_a_wait_of_hours_is_not_sat_out(fake: FakeGeminiEmbedding) -> None:
    waits: list[float] = []
    fake.faults.next(too_many(retry_info("3600s")))
    with pytest.raises(EmbedderUnavailable):
        generate_embeddings_batch(["one", "two"], fake.key, base_url=fake.address, sleep=waits.append)
    assert (len(fake.requests()), waits) == (1, [])


def test_what_waiting_cannot_mend_is_told_at_once(fake: FakeGeminiEmbedding) -> None:
    begun = time.monotonic()
    with pytest.raises(EmbedderRefused):
        generate_embeddings_batch(["one", "two"], "another-key", base_url=fake.address)
    with pytest.raises(TextRejected):
        generate_embeddings_batch(["one", " "], fake.key, base_url=fake.address)
    assert [len(seen.json["requests"]) for seen in fake.requests()] == [2, 1]
    assert time.monotonic() - begun < 60
