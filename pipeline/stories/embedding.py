"""The vector of a user story: its text put together, and embedded with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from pipeline.embedding import Embedder, EmbeddingOptions
from pipeline.embedding.calls import embed_checked, open_embedder
from pipeline.errors import ConfigurationError, EmbedderUnavailable, EmbeddingError, pause_after
from pipeline.stories.memory import LONGEST_WAIT, StoryMemory, in_use
from pipeline.stories.story import as_list

MODEL = "gemini-embedding-001"
DIMENSIONS = 768
ATTEMPTS = 3

Sleep = Callable[[float], None]


def compose_embedding_text(story: Mapping[str, Any]) -> str:
    """The text of a story to embed, whichever agent wrote it; empty fields are left out."""
    lines = []
    if title := story.get("title"):
        lines.append(f"Title: {title}")
    if wish := story.get("user_story") or story.get("story") or story.get("user_story_text"):
        lines.append(f"Story: {wish}")
    if criteria := as_list(story.get("acceptance_criteria") or story.get("acceptanceCriteria"), "\n"):
        lines += ["Acceptance Criteria:", *(f"- {criterion}" for criterion in criteria)]
    if tags := as_list(story.get("tags") or story.get("Tags/Labels"), ","):
        lines.append(f"Tags: {', '.join(tags)}")
    return "\n".join(lines)


def generate_embedding(
    text: str,
    api_key: str | None = None,
    dimensions: int = DIMENSIONS,
    *,
    memory: StoryMemory | None = None,
    base_url: str = "",
    sleep: Sleep = time.sleep,
) -> list[float]:
    """The text's vector, of length 1; model and errors as for a batch."""
    return generate_embeddings_batch(
        [text], api_key, dimensions, memory=memory, base_url=base_url, sleep=sleep
    )[0]


def generate_embeddings_batch(
    texts: Sequence[str],
    api_key: str | None = None,
    dimensions: int = DIMENSIONS,
    *,
    memory: StoryMemory | None = None,
    base_url: str = "",
    sleep: Sleep = time.sleep,
) -> list[list[float]]:
    """One vector per text, in order; texts are sent in batches, and one by one if a batch fails.

    With a key the model is Gemini with `dimensions`; without, it is the model of `memory` or of the memory in use,
    with its own dimensions. Every call is tried three times, 1 and 2 seconds apart or as the service asks; single
    calls start after another 4 seconds.

    Raises:
        ConfigurationError: there is neither key nor memory; this module reads no variables.
        EmbedderUnavailable: the single calls fail too.
        EmbedderRefused: key or plan are refused.
        TextsRejected: some texts are refused; its `vectors` hold the others.
    """
    memory = memory or in_use()
    if api_key:
        embedder = _gemini(api_key, dimensions, base_url)
    elif memory:
        embedder = memory.open_embedder()
    else:
        raise ConfigurationError(
            "there is neither a key for Gemini nor a memory of stories in use",
            fix="pass api_key, from the variable GEMINI_API_KEY or your settings, or connect() first",
        )
    longest = memory.longest_wait if memory else LONGEST_WAIT

    def passes(error: BaseException) -> bool:
        """True if the error may pass within the longest wait."""
        return isinstance(error, EmbedderUnavailable) and (error.retry_after or 0.0) <= longest

    attempts = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=lambda state: _pause(state.outcome.exception() if state.outcome else None, state.attempt_number),
        retry=retry_if_exception(passes),
        sleep=sleep,
        reraise=True,
    )
    try:
        vectors = embed_checked(embedder, texts, attempts=attempts)
    except EmbeddingError as error:
        if len(texts) == 1 or not passes(error):
            raise
        sleep(_pause(error, ATTEMPTS))
        singles = [embed_checked(embedder, [text], attempts=attempts) for text in texts]
        vectors = np.concatenate(singles)
    vector_lists: list[list[float]] = vectors.tolist()
    return vector_lists


@lru_cache(maxsize=4)
def _gemini(api_key: str, dimensions: int, base_url: str) -> Embedder:
    """Cached, to reuse its connection."""
    return open_embedder(
        EmbeddingOptions(
            provider="gemini", model=MODEL, dimensions=dimensions, base_url=base_url, api_key=api_key
        )
    )


def _pause(error: BaseException | None, attempt: int) -> float:
    """Seconds to wait after an attempt, counted from 1."""
    return max(pause_after(attempt, most=60.0), getattr(error, "retry_after", None) or 0.0)
