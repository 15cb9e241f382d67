"""A memory of stories of its own, stories for it, and vectors whose similarity is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import numpy as np

from pipeline.database.engine import Database
from pipeline.embedding import Embedder, EmbedderLimits, Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.stories import StoryMemory, StoryOptions

CRITERIA = ["Given a user, When they ask, Then they get it"]


def story(text: str = "As a user, I want a thing so that I have it", **changes: Any) -> dict[str, Any]:
    """What UserStoryAgent gives."""
    plain = {
        "user_story_id": "US-001",
        "title": f"Title of {text}"[:100],
        "user_story": text,
        "acceptance_criteria": CRITERIA,
        "description": "What it is about",
        "requirement_id": "REQ-001",
        "tags": ["auth"],
        "priority": "High",
        "tshirt_size": "M",
        "confidence_score": 0.9,
    }
    return {**plain, **changes}


def angle(similarity: float) -> list[float]:
    """A vector of length 1 that is so similar to `NORTH`."""
    return [similarity, math.sqrt(max(0.0, 1 - similarity**2))]


NORTH = [1.0, 0.0]


class Pointing:
    """An embedder that gives every question the vector `NORTH`, and every text the one that was set for it."""

    model = "pointing"
    dimensions = 2
    limits = EmbedderLimits()

    def __init__(self) -> None:
        self.known: dict[str, list[float]] = {}

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        return np.array([self.known.get(text, NORTH) for text in texts], dtype=np.float32)

    def embed_query(self, _text: str) -> Vectors:
        return np.array(NORTH, dtype=np.float32)

    def count_tokens(self, text: str) -> int:
        return len(text)


def remembering(
    database: Database,
    embedder: Embedder | None = None,
    *,
    of: Callable[[], Embedder] | None = None,
    **options: Any,
) -> StoryMemory:
    """A memory of a new tenant; there are examples from the first story on, unless `options` say otherwise."""
    found = embedder or HashingEmbedder(64)
    wanted = StoryOptions(**{"min_stories": 0, "threshold": 0.0, **options})
    return StoryMemory(
        database=database,
        tenant=uuid4(),
        open_embedder=of or (lambda: found),
        model=found.model,
        dimensions=found.dimensions,
        options=wanted,
    )
