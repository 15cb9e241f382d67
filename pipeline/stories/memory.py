"""Whose stories are remembered, by which model and how: what every function of this room works on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from pipeline.database.engine import Database
from pipeline.embedding import Embedder
from pipeline.errors import ConfigurationError
from pipeline.stories.story import Story

K, THRESHOLD, MAX_EXAMPLES, MIN_STORIES = 5, 0.70, 3, 10
"""Stories looked at, least cosine similarity, examples in a prompt, stories below which there are no examples."""
MIN_CONFIDENCE = 0.80
LONGEST_WAIT = 60.0
"""Seconds; a service that asks to be left alone for longer is not waited for."""

AnySession = Session | Connection
"""A transaction of the caller, with its tenant set: nothing is committed in it."""


@dataclass(frozen=True, kw_only=True)
class StoryOptions:
    """How stories are stored and found."""

    enabled: bool = True
    """False: nothing is stored and nothing found."""
    k: int = K
    threshold: float = THRESHOLD
    max_examples: int = MAX_EXAMPLES
    min_stories: int = MIN_STORIES
    min_confidence: float = MIN_CONFIDENCE
    """Least confidence of an example; a story that tells none is no worse for it."""
    redact: Callable[[str], str] = str
    """Takes out of every text what may be neither embedded nor stored."""


@dataclass(frozen=True, kw_only=True)
class StoryMemory:
    """The stories of one tenant."""

    database: Database
    tenant: UUID
    tenant_name: str = ""
    open_embedder: Callable[[], Embedder]
    """Asked for the model at its first use."""
    model: str
    """The name its vectors are kept under."""
    dimensions: int
    options: StoryOptions = StoryOptions()
    longest_wait: float = LONGEST_WAIT

    def read(self, story: Mapping[str, Any] | Story, source_agent: str = "unknown") -> Story:
        """The story without what may not be stored; raises as `Story.read` does."""
        found = story if isinstance(story, Story) else Story.read(story, source_agent)
        return found.redacted(self.options.redact)

    @contextmanager
    def connected(self, session: AnySession | None = None) -> Iterator[Any]:
        """The caller's transaction, or one of our own that is committed at the end."""
        if session is not None:
            yield session
            return
        with self.database.tenant(self.tenant) as connection:
            yield connection


_in_use: list[StoryMemory] = []


def use(memory: StoryMemory | None) -> None:
    """From now on functions that are given no memory work on this one, in all threads; None ends that."""
    _in_use[:] = [memory] if memory else []


def in_use() -> StoryMemory | None:
    """The memory that `use` was given."""
    return _in_use[0] if _in_use else None


def current() -> StoryMemory:
    """The same, where nothing can be done without one.

    Raises:
        ConfigurationError: there is none.
    """
    if not _in_use:
        raise ConfigurationError(
            "no memory of stories is in use",
            fix="call workers.enrichment.stories.connect() when the program starts",
        )
    return _in_use[0]
