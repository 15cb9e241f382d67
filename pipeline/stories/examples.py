"""Feedback loop of a generator: similar stories go into its prompt, and generated stories into the store."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pipeline.documents import Json
from pipeline.documents.plain_text import without_controls
from pipeline.embedding.calls import TextsRejected, embed_query_checked
from pipeline.errors import LarderError
from pipeline.stories.embedding import compose_embedding_text, generate_embeddings_batch
from pipeline.stories.memory import MAX_EXAMPLES, THRESHOLD, K, StoryMemory, current, in_use
from pipeline.stories.store import (
    get_story_count,
    search_similar_stories,
    store_user_stories_batch,
    stored_texts_of,
)
from pipeline.stories.story import Story, as_list, read_stories

logger = logging.getLogger(__name__)

HEADER = """\
Below are high-quality user stories previously generated for similar requirements.
Use these as reference for style, detail level, and acceptance criteria quality.
Do NOT copy these stories -- generate original content for the new requirements."""
EXAMPLE = """\
--- Reference Example {number} (relevance: {relevance:.2f}) ---
Original Requirement: {requirement}
Generated User Story:
{story}"""
FOOTER = "Now generate user stories for the following NEW requirements:"


@contextmanager
def _non_blocking(operation: str) -> Iterator[None]:
    """Log any error as a warning, without story texts, and continue: the generator must not stop."""
    try:
        yield
    except LarderError as error:
        logger.warning("RAG %s failed (non-blocking): %s", operation, error)
    except Exception as error:  # noqa: BLE001 (a failing memory must not stop the generator)
        logger.warning("RAG %s failed (non-blocking): %s", operation, type(error).__name__)


def retrieve_similar_examples(
    requirement_text: str,
    k: int = K,
    threshold: float = THRESHOLD,
    tag_filter: Sequence[str] | None = None,
    *,
    memory: StoryMemory | None = None,
) -> list[Json]:
    """Past stories for a prompt, best first, each with its `similarity_score`; `store` says how edited ones rank.

    Empty if the memory is switched off, has fewer than `min_stories`, or fails, which is logged as a warning.
    Default values of `k` and `threshold` are replaced by those of the configuration.
    """
    with _non_blocking("retrieval"):
        memory = memory or current()
        options = memory.options
        has_query, least = options.enabled and requirement_text.strip(), options.min_stories
        if has_query and get_story_count(most=least, memory=memory) >= least:
            vector = embed_query_checked(memory.open_embedder(), requirement_text)
            return search_similar_stories(
                vector.tolist(),
                options.k if k == K else k,
                options.threshold if threshold == THRESHOLD else threshold,
                tag_filter,
                as_examples=True,
                memory=memory,
            )
    return []


def format_examples_for_prompt(
    examples: Sequence[Mapping[str, Any]],
    max_examples: int = MAX_EXAMPLES,
    *,
    memory: StoryMemory | None = None,
) -> str:
    """The first examples as text for a prompt, before the requirements; empty without examples.

    Their texts are JSON, so that none can pass for a line of the prompt. The default of `max_examples` is replaced
    by that of the configuration.
    """
    memory = memory or in_use()
    most = memory.options.max_examples if memory and max_examples == MAX_EXAMPLES else max_examples
    example_texts = [_example(number, one) for number, one in enumerate(examples[: max(0, most)], start=1)]
    return without_controls("\n\n".join([HEADER, *example_texts, FOOTER])) if example_texts else ""


def _example(number: int, example: Mapping[str, Any]) -> str:
    story = {
        "user_story_id": example.get("user_story_id"),
        "title": example.get("title"),
        "user_story": example.get("user_story_text") or example.get("user_story") or example.get("story"),
        "description": example.get("description"),
        "acceptance_criteria": as_list(example.get("acceptance_criteria"), "\n"),
        "tags": as_list(example.get("tags"), ","),
        "tshirt_size": example.get("tshirt_size"),
        "priority": example.get("priority"),
        "confidence_score": example.get("confidence_score"),
    }
    return EXAMPLE.format(
        number=number,
        relevance=example.get("similarity_score") or 0.0,
        requirement=json.dumps(example.get("requirement_text") or "N/A", ensure_ascii=False),
        story=json.dumps(story, indent=4, ensure_ascii=False),
    )


def store_generated_stories(
    stories: Sequence[Mapping[str, Any]],
    source_agent: str = "unknown",
    requirement_texts: Mapping[str, str] | None = None,
    *,
    memory: StoryMemory | None = None,
) -> int:
    """Embed and store generated stories; returns how many were stored, without texts that existed already.

    `requirement_texts` are requirements by id, stored with their stories. Nothing is raised: stories that cannot be
    stored are logged as warnings, and the others are stored.
    """
    with _non_blocking("storage"):
        memory = memory or current()
        if memory.options.enabled and stories:
            read, refused = read_stories(stories, source_agent, requirement_texts)
            done = store_stories(memory, read)
            for number, why in [*refused, *done.refused]:
                logger.warning("RAG storage excluded story %d of %d: %s", number, len(stories), why)
            return done.stored
    return 0


@dataclass(frozen=True, kw_only=True)
class StoredStories:
    """Counts of stored, skipped and refused stories."""

    stored: int
    skipped: int
    """Stories whose text was stored already."""
    refused: Sequence[tuple[int, str]] = ()
    """Position, counted from 1, and reason of each story that the model refused."""


def store_stories(memory: StoryMemory, stories: Sequence[Story]) -> StoredStories:
    """Embed and store stories in one transaction; stories that the model refuses are left out.

    Raises:
        EmbedderUnavailable: the model does not answer; nothing was stored.
        EmbedderRefused: the provider refuses key or plan.
        StoreUnavailable: the database does not answer.
    """
    stories = [memory.read(one) for one in stories]
    new = _new_stories(memory, stories)
    texts = [compose_embedding_text(one.model_dump()) for _, one in new]
    bad: dict[int, str] = {}
    try:
        vectors = generate_embeddings_batch(texts, memory=memory)
    except TextsRejected as error:
        vectors = error.vectors.tolist()
        bad = dict.fromkeys(error.indexes, error.message)
    good = [at for at in range(len(new)) if at not in bad]
    ids = store_user_stories_batch([new[at][1] for at in good], [vectors[at] for at in good], memory=memory)
    refused = [(new[at][0], why) for at, why in bad.items()]
    return StoredStories(stored=len(ids), skipped=len(stories) - len(ids) - len(refused), refused=refused)


def _new_stories(memory: StoryMemory, stories: Sequence[Story]) -> list[tuple[int, Story]]:
    """Stories to store with their positions, from 1: those corrected or rated, and those whose text is not stored."""
    with memory.connected() as connection:
        stored_texts = stored_texts_of(connection, memory, [story.user_story_text for story in stories])
    return [
        (number, story)
        for number, story in enumerate(stories, start=1)
        if story.was_edited or story.user_rating or story.user_story_text not in stored_texts
    ]
