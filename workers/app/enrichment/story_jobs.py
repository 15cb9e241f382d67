"""Asking workers to store and to find user stories: what a client sends and gets, without a model of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection

from pipeline.access import READ, WRITE, Caller
from pipeline.documents import Json
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.errors import ConfigurationError, RequestRejected
from pipeline.ledger import audit
from pipeline.ledger.jobs import BULK, ENRICH, INTERACTIVE
from workers.app.search import LONGEST_QUERY
from workers.runtime import current_user
from workers.settings import Configuration, Settings

STORE, SEARCH = "larder.stories.store", "larder.stories.search"
BATCH = 100
"""Stories of one job: one transaction, and one call of most models."""
MOST_K = 100
MOST_STORIES = 10_000
"""Most stories of one call; more go in several."""


@dataclass(frozen=True, kw_only=True)
class AcceptedStories:
    """Stories that will be stored whatever ends; each once, and those of a job all or none."""

    jobs: Sequence[UUID]
    accepted: int
    refused: Sequence[tuple[int, str]]
    """Number, counted from 1, and reason of those that are none; they are not stored."""


def requests_of(
    rows: Sequence[object],
    source_agent: str,
    requirement_texts: Mapping[str, str] | None,
    redact: Callable[[str], str],
) -> tuple[list[Json], list[tuple[int, str]]]:
    """Requests of jobs that store these stories, redacted, and the stories that are refused with their reasons.

    Raises:
        ConfigurationError: there are more than `MOST_STORIES`.
    """
    from pipeline.stories.story import read_stories

    if len(rows) > MOST_STORIES:
        raise ConfigurationError(f"{len(rows):,} stories at once", fix=f"send {MOST_STORIES:,} at most")
    read, refused = read_stories(rows, source_agent, requirement_texts)
    bad = {number for number, _ in refused}
    numbers = [number for number in range(1, len(rows) + 1) if number not in bad]
    stories = [story.redacted(redact).model_dump(exclude_none=True) for story in read]
    starts = range(0, len(stories), BATCH)
    return [{"stories": stories[n : n + BATCH], "numbers": numbers[n : n + BATCH]} for n in starts], refused


def audited(task: str, request: Json) -> Iterator[tuple[str, Json]]:
    """Action and detail of the audit's entry about a job."""
    if task == ENRICH:
        yield "enrich", {"pbi": EnrichmentRequest.from_json(request).id[: audit.MOST_QUERY]}
    elif task == STORE and request["stories"]:
        agents = sorted({one["source_agent"] for one in request["stories"]})
        yield "stories.store", {"stories": len(request["stories"]), "agents": agents}


class StoryMethods:
    """Methods of a client for user stories."""

    tenant: UUID
    _settings: Settings | None
    _caller: Caller | None
    ask: Callable[..., UUID]
    _story_result: Callable[..., Json]
    _store: Callable[[], AbstractContextManager[Connection]]

    @property
    def _subject(self) -> str:
        """Name of who asks, for the audit."""
        return self._caller.subject if self._caller else current_user()

    def _needs(self, permission: str) -> None:
        if self._caller:
            self._caller.require(permission)

    def store_stories(
        self,
        stories: Sequence[object],
        source_agent: str = "unknown",
        requirement_texts: Mapping[str, str] | None = None,
    ) -> AcceptedStories:
        """Have stories stored by the workers; they step aside for whoever waits, and have all the time they need.

        Raises:
            ConfigurationError: there are more than `MOST_STORIES`.
            Forbidden: the client's caller, who may not write.
            StoreUnavailable: the database does not answer; what had not been accepted can be sent again with all else.
        """
        self._needs(WRITE)
        options = (self._settings.rag if self._settings else Configuration()).stories
        requests, refused = requests_of(stories, source_agent, requirement_texts, options.redactor)
        jobs = [self.ask(STORE, request, priority=BULK, deadline=math.inf) for request in requests]
        return AcceptedStories(jobs=jobs, accepted=len(stories) - len(refused), refused=refused)

    def embed_stories_anew(self) -> AcceptedStories:
        """Have the workers' model embed up to `BATCH` stories that only a former one did; may raise Forbidden."""
        self._needs(WRITE)
        job = self.ask(STORE, {"stories": None}, priority=BULK, deadline=math.inf)
        return AcceptedStories(jobs=[job], accepted=0, refused=())

    def stored_stories(self, accepted: AcceptedStories, *, wait: float = 0.0) -> Json:
        """`{"stored", "skipped", "refused": [[number, reason]]}`, within `wait` seconds; raises as `result` does."""
        end = time.monotonic() + wait
        done = [self._story_result(job, max(0.0, end - time.monotonic())) for job in accepted.jobs]
        return summary(accepted, done)

    def search_stories(
        self,
        query: str,
        *,
        k: int | None = None,
        threshold: float | None = None,
        tags: Sequence[str] | None = None,
        examples: bool = False,
        wait: float = 30.0,
    ) -> list[Json]:
        """Similar stories by the workers' model, nearest first, each with its `similarity_score`.

        `examples` are for a prompt, by the rules of `retrieve_similar_examples`: none while there are few stories.

        Raises:
            RequestRejected: it is no question; the message says why.
            Forbidden: the client's caller, who may not read.
            NoAnswerYet: no worker answered in time.
            EnrichmentFailed: the question has no vector.
            StoreUnavailable: the database does not answer.
        """
        self._needs(READ)
        if not (isinstance(query, str) and query.strip() and len(query) <= LONGEST_QUERY):
            raise RequestRejected(f"query must be a question of 1 to {LONGEST_QUERY:,} characters")
        if k is not None and not 1 <= k <= MOST_K:
            raise RequestRejected(f"k must be a whole number from 1 to {MOST_K}")
        if threshold is not None and not 0 <= threshold <= 1:
            raise RequestRejected("threshold must be a number from 0 to 1")
        request = {"query": query, "k": k, "threshold": threshold, "tags": tags, "examples": examples}
        request["by"] = self._subject
        job = self.ask(SEARCH, request, priority=INTERACTIVE, deadline=wait)
        stories: list[Json] = self._story_result(job, wait)["stories"]
        return stories

    def story_stats(self) -> Json:
        """Number of stories, by agent and model, and their mean confidence; may raise Forbidden."""
        self._needs(READ)
        from pipeline.stories.store import story_stats

        with self._store() as connection:
            return story_stats(connection, self.tenant)


def summary(accepted: AcceptedStories, done: Sequence[Json]) -> Json:
    """Sum of the answers of an acceptance's jobs."""
    refused = [*accepted.refused, *((n, why) for one in done for n, why in one["refused"])]
    return {
        "stored": sum(one["stored"] for one in done),
        "skipped": sum(one["skipped"] for one in done),
        "refused": sorted(refused),
    }
