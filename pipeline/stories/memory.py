"""Tenant, model and options of a memory of stories, on which all functions of this package work."""

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
"""Stories searched, minimum cosine similarity, examples in a prompt, stories needed before there are examples."""
MIN_CONFIDENCE = 0.80
LONGEST_WAIT = 60.0
"""Seconds; a service that asks for a longer pause is not retried."""

AnySession = Session | Connection
"""A transaction of the caller, with its tenant set: nothing is committed in it."""


@dataclass(frozen=True, kw_only=True)
class StoryOptions:
    """Options for storing and searching stories."""

    enabled: bool = True
    """False: no story is stored or found."""
    k: int = K
    threshold: float = THRESHOLD
    max_examples: int = MAX_EXAMPLES
    min_stories: int = MIN_STORIES
    min_confidence: float = MIN_CONFIDENCE
    """Minimum confidence of an example; stories without one qualify."""
    redact: Callable[[str], str] = str
    """Removes secrets and personal data from every text before it is embedded or stored."""


@dataclass(frozen=True, kw_only=True)
class StoryMemory:
    """The stories of one tenant."""

    database: Database
    tenant: UUID
    tenant_name: str = ""
    open_embedder: Callable[[], Embedder]
    """Opens the model on first use."""
    model: str
    """Name stored with its vectors."""
    dimensions: int
    options: StoryOptions = StoryOptions()
    longest_wait: float = LONGEST_WAIT

    def read(self, story: Mapping[str, Any] | Story, source_agent: str = "unknown") -> Story:
        """Parse and redact a story; raises as `Story.read` does."""
        parsed = story if isinstance(story, Story) else Story.read(story, source_agent)
        return parsed.redacted(self.options.redact)

    @contextmanager
    def connected(self, session: AnySession | None = None) -> Iterator[Any]:
        """The caller's transaction, or a new one that is committed at the end."""
        if session is not None:
            yield session
            return
        with self.database.tenant(self.tenant) as connection:
            yield connection


_in_use: list[StoryMemory] = []


def use(memory: StoryMemory | None) -> None:
    """Set the default memory of all functions, in all threads; None removes it."""
    _in_use[:] = [memory] if memory else []


def in_use() -> StoryMemory | None:
    """The default memory; None if there is none."""
    return _in_use[0] if _in_use else None


def current() -> StoryMemory:
    """The default memory.

    Raises:
        ConfigurationError: none is set.
    """
    if not _in_use:
        raise ConfigurationError(
            "no memory of stories is in use",
            fix="call workers.app.enrichment.stories.connect() when the program starts",
        )
    return _in_use[0]
