"""The interface of Larder's clients in Python, by the database or by the API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self
from uuid import UUID

from pipeline.documents import Json

if TYPE_CHECKING:
    from workers.app.enrichment.story_jobs import AcceptedStories


class KnowledgeClient(Protocol):
    """What a program may ask of Larder, whichever way it reaches it; `Client` and `HttpClient` implement it."""

    def search(self, text: str, *, projects: Sequence[str] = (), **options: Any) -> Json:
        """The document of `larder search --json`, from these projects or all that the client may see."""
        ...

    def submit(
        self, request: Mapping[str, Any], *, project: str | None = None, projects: Sequence[str] = ()
    ) -> UUID:
        """Ask for the context of a PBI, or of `{"pbi", "scores"}`; the id to fetch the answer with."""
        ...

    def result(self, job_id: UUID | str, *, wait: float = 0.0) -> Json:
        """The answer of a job, waiting up to `wait` seconds for it."""
        ...

    def enrich(
        self,
        pbi: Mapping[str, Any],
        scores: Mapping[str, Any] | None = None,
        *,
        project: str | None = None,
        projects: Sequence[str] = (),
        deadline: float = 120.0,
    ) -> Json:
        """Ask and wait up to `deadline` seconds: the context of one PBI."""
        ...

    def upload(
        self,
        files: Sequence[tuple[str, bytes]] = (),
        documents: Sequence[Mapping[str, Any]] = (),
        *,
        project: str,
    ) -> Json:
        """Send files (name, content) or documents to a project."""
        ...

    def feedback(
        self, item: str, ref: str, verdict: str, *, project: str | None = None, source: str | None = None
    ) -> Json:
        """Say that a document is `useful` or `noise` for an item, or `undo` that."""
        ...

    def store_stories(
        self,
        stories: Sequence[object],
        source_agent: str = "unknown",
        requirement_texts: Mapping[str, str] | None = None,
    ) -> AcceptedStories:
        """Have stories stored; the jobs that do it."""
        ...

    def embed_stories_anew(self) -> AcceptedStories:
        """Have some stories embedded that only a former model did."""
        ...

    def stored_stories(self, accepted: AcceptedStories, *, wait: float = 0.0) -> Json:
        """`{"stored", "skipped", "refused": [(number, reason)]}`, within `wait` seconds."""
        ...

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
        """Similar stories, nearest first."""
        ...

    def story_stats(self) -> Json:
        """Numbers of stories, by agent and model, and their mean confidence."""
        ...

    def close(self) -> None:
        """Give the connections back."""
        ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
