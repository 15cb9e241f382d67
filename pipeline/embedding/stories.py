"""The vector of a user story, by Gemini: its text put together, and embedded with retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from pipeline.embedding import Embedder, EmbeddingOptions, open_embedder
from pipeline.embedding.calls import embed_checked
from pipeline.errors import ConfigurationError, EmbedderUnavailable, EmbeddingError

MODEL = "gemini-embedding-001"
DIMENSIONS = 768
ATTEMPTS = 3
LONGEST_WAIT = 60.0
"""Seconds; who asks to be left alone for longer is not waited for."""

Sleep = Callable[[float], None]


def compose_embedding_text(story: Mapping[str, Any]) -> str:
    """What is embedded of a story of either agent; parts that it does not have are left out."""
    lines = []
    if title := story.get("title"):
        lines.append(f"Title: {title}")
    if wish := story.get("user_story") or story.get("story"):
        lines.append(f"Story: {wish}")
    if criteria := _listed(story.get("acceptance_criteria") or story.get("acceptanceCriteria"), "\n"):
        lines += ["Acceptance Criteria:", *(f"- {criterion}" for criterion in criteria)]
    if tags := _listed(story.get("tags") or story.get("Tags/Labels"), ","):
        lines.append(f"Tags: {', '.join(tags)}")
    return "\n".join(lines)


def generate_embedding(
    text: str,
    api_key: str | None = None,
    dimensions: int = DIMENSIONS,
    *,
    base_url: str = "",
    sleep: Sleep = time.sleep,
) -> list[float]:
    """The text's vector, of length 1; errors as for a batch."""
    return generate_embeddings_batch([text], api_key, dimensions, base_url=base_url, sleep=sleep)[0]


def generate_embeddings_batch(
    texts: Sequence[str],
    api_key: str | None = None,
    dimensions: int = DIMENSIONS,
    *,
    base_url: str = "",
    sleep: Sleep = time.sleep,
) -> list[list[float]]:
    """A vector per text, in order, by one call for each hundred; by a call for each text if that one fails.

    Every call is tried three times, 1 and 2 seconds apart or as the service asks, and another 4 seconds pass
    before the single calls.

    Raises:
        ConfigurationError: no key was given; this module reads no variables.
        EmbedderUnavailable: the single calls fail too.
        EmbedderRefused: key or plan are refused.
        TextsRejected: some texts are refused; its `vectors` hold the others.
    """
    if not api_key:
        raise ConfigurationError(
            "no key for Gemini was given",
            fix="pass api_key, from the variable GEMINI_API_KEY or your settings",
        )
    embedder = _embedder(api_key, dimensions, base_url)
    attempts = Retrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=lambda state: _pause(state.outcome.exception() if state.outcome else None, state.attempt_number),
        retry=retry_if_exception(_passes),
        sleep=sleep,
        reraise=True,
    )
    try:
        vectors = embed_checked(embedder, texts, attempts=attempts)
    except EmbeddingError as error:
        if len(texts) == 1 or not _passes(error):
            raise
        sleep(_pause(error, ATTEMPTS))
        singles = [embed_checked(embedder, [text], attempts=attempts) for text in texts]
        vectors = np.concatenate(singles)
    found: list[list[float]] = vectors.tolist()
    return found


@lru_cache(maxsize=4)
def _embedder(api_key: str, dimensions: int, base_url: str) -> Embedder:
    """Kept, because its connection is."""
    return open_embedder(
        EmbeddingOptions(
            provider="gemini", model=MODEL, dimensions=dimensions, base_url=base_url, api_key=api_key
        )
    )


def _pause(error: BaseException | None, attempt: int) -> float:
    """Seconds after the attempt of this number, counted from 1."""
    return max(2.0 ** (attempt - 1), getattr(error, "retry_after", None) or 0.0)


def _passes(error: BaseException) -> bool:
    """Whether waiting here is worth it."""
    return isinstance(error, EmbedderUnavailable) and (error.retry_after or 0.0) <= LONGEST_WAIT


def _listed(value: Any, separator: str) -> list[str]:
    """A list of texts, or a single text that holds one."""
    items = value.split(separator) if isinstance(value, str) else value or ()
    return [text for item in items if (text := str(item).strip())]
