"""Generators of user stories with a memory: python docs/examples/story_agents.py "REQUIREMENT" ...

Two agents write stories, a third one takes corrections. Each asks the memory before its model is called and tells it
afterwards; nothing that goes wrong with the memory stops them. `generate` is any model: a prompt in, its text out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pipeline.stories import format_examples_for_prompt, retrieve_similar_examples, store_generated_stories
from workers.app.enrichment.stories import connect
from workers.settings import load

INSTRUCTIONS = """\
You write user stories. Answer with a JSON list of objects with user_story_id, title, user_story, description,
acceptance_criteria, requirement_id, tags, priority, tshirt_size and confidence_score, and with nothing else."""

Generate = Callable[[str], str]
Story = dict[str, Any]


def user_story_agent(
    requirements: Sequence[Mapping[str, str]], generate: Generate, source_agent: str = "UserStoryAgent"
) -> list[Story]:
    """Stories for requirements with requirement_id and requirement_text; a command line names its own agent."""
    similar = retrieve_similar_examples(" ".join(r["requirement_text"] for r in requirements))
    stories = _answer(generate, similar, "Requirements:", json.dumps(list(requirements), indent=1))
    texts = {r["requirement_id"]: r["requirement_text"] for r in requirements}
    store_generated_stories(stories, source_agent, texts)
    return stories


def requirement_user_story_agent(raw_info: str, reference: str, generate: Generate) -> list[Story]:
    """Stories for what was read off a screen or an image."""
    combined_info = f"{raw_info}\n{reference}"
    similar = retrieve_similar_examples(combined_info[:500])
    stories = _answer(generate, similar, "Input:", combined_info)
    store_generated_stories(stories, "RequirementUserStoryAgent")
    return stories


def user_story_feedback_agent(story: Story, correction: str, generate: Generate) -> Story:
    """The story as a person wants it; it goes before others of its kind from now on."""
    asked = f"Change this story as is said below it:\n{json.dumps(story, default=str)}\n\n{correction}"
    updated: Story = {**story, **json.loads(generate(f"{INSTRUCTIONS}\n\n{asked}"))[0], "was_edited": True}
    store_generated_stories([updated], "UserStoryFeedbackAgent")
    return updated


def _answer(generate: Generate, similar: Sequence[Story], head: str, given: str) -> list[Story]:
    """Examples stand between the instructions and what is asked."""
    examples = format_examples_for_prompt(similar)
    prompt = "\n\n".join(part for part in (INSTRUCTIONS, examples, f"{head}\n{given}") if part)
    stories: list[Story] = json.loads(generate(prompt))
    return stories


def gemini(api_key: str, base_url: str | None = None) -> Generate:
    """Gemini 2.5 Flash."""
    from google import genai

    options = genai.types.HttpOptions(base_url=base_url)
    as_json = genai.types.GenerateContentConfig(response_mime_type="application/json")

    def generate(prompt: str) -> str:
        with genai.Client(api_key=api_key, http_options=options) as client:
            answer = client.models.generate_content(model="gemini-2.5-flash", contents=prompt, config=as_json)
        return answer.text or "[]"

    return generate


if __name__ == "__main__":
    connect(load(None, os.environ))
    numbered = [
        {"requirement_id": f"REQ-{n:03}", "requirement_text": t} for n, t in enumerate(sys.argv[1:], 1)
    ]
    made = user_story_agent(numbered, gemini(os.environ["GEMINI_API_KEY"]), "CLI-UserStoryAgent")
    print(json.dumps(made, indent=1))
