"""The example of docs/stories.md as it stands there: generate, store, retrieve, show, correct, and retrieve again."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipeline.stories import (
    get_story_count,
    retrieve_similar_examples,
    store_generated_stories,
    use,
)
from pipeline.stories.examples import FOOTER, HEADER
from tests.conftest import Addresses
from tests.fakes.gemini_embedding import FakeGeminiEmbedding
from tests.fakes.server import Answer, Seen
from workers.app.enrichment.stories import connect, rows_of
from workers.local import embedded
from workers.settings import load

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
QUESTION = "The system shall allow users to reset their password via email."
REQUIREMENT = {"requirement_id": "REQ-001", "requirement_text": QUESTION}


class FakeGemini(FakeGeminiEmbedding):
    """Embeds, and writes the stories that it was given, one for each prompt; keeps the prompts."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[dict[str, Any]] = []
        self.prompts: list[str] = []

    def answer(self, seen: Seen) -> Answer:
        if not seen.path.endswith(":generateContent"):
            return super().answer(seen)
        self.prompts.append(seen.json["contents"][0]["parts"][0]["text"])
        text = json.dumps([self.written.pop(0)])
        return Answer(json={"candidates": [{"content": {"parts": [{"text": text}], "role": "model"}}]})


@pytest.fixture
def model() -> Iterator[FakeGemini]:
    with FakeGemini() as fake:
        yield fake


@pytest.fixture(params=["gemini", "minilm"])
def agents(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    addresses: Addresses,
    servers: embedded.Servers,
    model: FakeGemini,
) -> Iterator[ModuleType]:
    """The example, connected to a memory whose model is Gemini's, or the one on this machine that needs no key."""
    variables = {"LARDER_DATABASE_URL": addresses.app, "LARDER_BROKER_URL": servers.broker_url}
    if request.param == "gemini":
        section = f"rag:\n  stories:\n    embedding: {{baseUrl: '{model.address}', apiKey: {model.key}}}\n"
        # A fake knows words and not what they mean: nothing is as near to it as it is to Gemini.
        variables |= {"RAG_EMBEDDING_MODEL": "gemini-embedding-001", "RAG_SIMILARITY_THRESHOLD": "0.2"}
    else:
        section = "rag: {}\n"
    (tmp_path / "larder.yaml").write_text(section)
    memory = connect(load(tmp_path / "larder.yaml", variables))
    spec = importlib.util.spec_from_file_location("story_agents", EXAMPLES / "story_agents.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    use(None)
    memory.database.close()


def written(text: str, **changes: Any) -> dict[str, Any]:
    plain = {
        "user_story_id": "US-101",
        "title": "Reset a password by mail",
        "user_story": text,
        "description": "The way back in",
        "acceptance_criteria": ["Given a user asks for it, When the mail comes, Then its link works once."],
        "requirement_id": "REQ-001",
        "tags": ["authentication", "password"],
        "priority": "High",
        "tshirt_size": "M",
        "confidence_score": 0.9,
    }
    return {**plain, **changes}


STORY = "As a user, I want to reset my password via email so that I can sign in again."


@pytest.mark.req("000-001", "000-002", "000-003", "000-026", "000-030", "000-035", "000-048", "000-055")
def test_the_loop_of_the_document(agents: ModuleType, model: FakeGemini) -> None:
    generate = agents.gemini(model.key, model.address)

    # Before there are ten stories the prompt is the plain one, and what is made is stored.
    model.written = [written(STORY)]
    assert agents.user_story_agent([REQUIREMENT], generate) == [written(STORY)]
    assert model.prompts == [f"{agents.INSTRUCTIONS}\n\nRequirements:\n{json.dumps([REQUIREMENT], indent=1)}"]
    assert get_story_count() == 1

    # Earlier ones are seeded; then similar ones stand between the instructions and the requirements.
    rows = [row for _, row in rows_of(EXAMPLES / "stories.csv")]
    assert store_generated_stories(rows) == 12
    found = retrieve_similar_examples("password reset")
    assert {"authentication"} <= set(found[0]["tags"])
    model.written = [
        written("As a user, I want to be told by mail when my password was changed.", user_story_id="US-102")
    ]
    agents.user_story_agent([REQUIREMENT], generate, "CLI-UserStoryAgent")
    instructions, shown, asked = re.split(f"{re.escape(HEADER)}|{re.escape(FOOTER)}", model.prompts[-1])
    assert instructions.strip() == agents.INSTRUCTIONS
    assert asked.strip().startswith("Requirements:")
    assert 1 <= shown.count("--- Reference Example") <= 3
    assert STORY in shown
    assert f"Original Requirement: {json.dumps(QUESTION)}" in shown

    # A person corrects a story: the next generation sees the corrected one first.
    before = [one["user_story_text"] for one in retrieve_similar_examples(QUESTION)]
    earlier = next(one for one in retrieve_similar_examples(QUESTION) if one["user_story_text"] == STORY)
    better = "As a user, I want to reset my password via email within an hour so that I can sign in again."
    model.written = [written(better)]
    assert better not in before
    agents.user_story_feedback_agent(earlier, "The link shall work for an hour.", generate)
    again = retrieve_similar_examples(QUESTION)
    assert (again[0]["user_story_text"], again[0]["was_edited"]) == (better, True)
    assert again[0]["source_agent"] == "UserStoryFeedbackAgent"
    assert again[0]["requirement_text"] == QUESTION
    model.written = [written("As a user, I want to choose a new password.")]
    agents.user_story_agent([REQUIREMENT], generate)
    assert model.prompts[-1].index(better) < model.prompts[-1].index("--- Reference Example 2")


@pytest.mark.req("000-026", "000-035", "000-021")
def test_the_agent_of_images_asks_with_the_first_500_characters_and_its_stories_are_kept(
    agents: ModuleType, model: FakeGemini
) -> None:
    rows = [row for _, row in rows_of(EXAMPLES / "stories.csv")]
    store_generated_stories(rows)
    other = {
        "title": "T",
        "story": "As a clerk, I want a list",
        "acceptanceCriteria": ["x"],
        "Tags/Labels": ["list"],
    }
    model.written = [other, other]
    generate = agents.gemini(model.key, model.address)
    raw = "password reset " * 40
    agents.requirement_user_story_agent(raw, "billing " * 50, generate)
    assert "--- Reference Example 1" in model.prompts[0]
    assert model.prompts[0].index(FOOTER) < model.prompts[0].index("Input:")
    if model.usage.texts:  # asked of the fake
        asked = [
            seen.json["requests"][0]["content"]["parts"][0]["text"]
            for seen in model.requests("Embed")
            if "requests" in seen.json
        ]
        assert raw[:500] in asked
    agents.requirement_user_story_agent(raw, "", generate)
    assert get_story_count() == 13, "the same text is stored once"
