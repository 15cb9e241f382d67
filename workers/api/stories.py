"""The memory of user stories over HTTP: search, statistics, and seeding with earlier stories."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import BaseModel, Field, StrictBool
from starlette.concurrency import run_in_threadpool

from pipeline.access import WRITE, Caller
from pipeline.errors import NotFound
from pipeline.ledger.jobs import JobRow
from workers.api import problems
from workers.api.callers import CurrentRuntime, NotFlag, Reader, RequestBody, may
from workers.api.enrichment import Asking, Prefer, waited
from workers.app.enrichment.stories import StoryQuery, search
from workers.app.enrichment.story_jobs import BATCH, MOST_K, MOST_STORIES, AcceptedStories, summary
from workers.app.search import LONGEST_QUERY
from workers.runtime import acting_as

router = APIRouter(prefix="/rag", tags=["stories"])


class RAGSearchRequest(RequestBody):
    """A search for similar stories."""

    query: Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY, examples=["reset a password"])]
    k: Annotated[int, Field(ge=1, le=MOST_K), NotFlag] | None = Field(
        default=None, description="5 unless configured."
    )
    threshold: Annotated[float, Field(ge=0, le=1), NotFlag] | None = Field(
        default=None, description="Minimum similarity; 0.70 unless configured or measured for the model."
    )
    tags: Annotated[list[str], Field(max_length=100)] | None = Field(
        default=None, description="A story must have one of these.", examples=[["auth"]]
    )
    examples: StrictBool = Field(
        default=False,
        description="Rank as examples for a prompt: confident stories only, edited first, none while there are few.",
    )


class SimilarStory(BaseModel):
    """A stored story."""

    id: str
    user_story_id: str
    title: str
    user_story_text: str
    acceptance_criteria: list[str] | None
    description: str | None
    requirement_id: str | None
    requirement_text: str | None
    tags: list[str] | None
    priority: str | None
    tshirt_size: str | None
    confidence_score: float | None
    source_agent: str
    source_doc_id: str | None
    created_at: datetime
    user_rating: int | None
    was_edited: bool
    similarity_score: float


class SimilarStories(BaseModel):
    """Similar stories, nearest first."""

    stories: list[SimilarStory]


class StoryStats(BaseModel):
    """Counts of stories."""

    total_stories: int
    by_source_agent: dict[str, int]
    average_confidence_score: float | None
    edited: int
    by_model: dict[str, int] = Field(
        description="Stories of other models than the configured one are not found."
    )


class RAGSeedRequest(RequestBody):
    """Stories of earlier runs, in the spelling of either agent or of an export."""

    user_stories: Annotated[list[dict[str, Any]], Field(max_length=MOST_STORIES)] | None = Field(
        default=None, description="If left out, stories of a former model are embedded again, some at a time."
    )
    source_agent: Annotated[str, Field(max_length=50)] = Field(
        default="unknown",
        description="Agent that wrote the stories; overrides their own field unless `unknown`.",
    )
    requirement_texts: dict[str, str] | None = Field(
        default=None, description="Texts of the requirements by the ids that the stories name."
    )


class RefusedStory(BaseModel):
    """A refused story and the reason."""

    number: int = Field(description="Position in the list, from 1.")
    reason: str


class Seeded(BaseModel):
    """Result of seeding; accepted stories are stored exactly once."""

    accepted: int
    jobs: list[UUID]
    stored: int = Field(description="Stories stored by the jobs that have ended.")
    skipped: int = Field(description="Stories whose text was stored already.")
    refused: list[RefusedStory]
    failed: int = Field(description="Jobs that failed; none of their stories is stored.")
    pending: int = Field(description="Jobs that have not ended; query them at this address.")
    error: str | None = Field(description="Error of the first failed job.")


Writer = Annotated[Caller, Depends(may(WRITE))]
JobIds = Annotated[
    list[UUID],
    Query(min_length=1, max_length=MOST_STORIES // BATCH, description="`jobs` of an earlier answer."),
]


@router.post("/search")
def find(body: RAGSearchRequest, runtime: CurrentRuntime, caller: Reader) -> SimilarStories:
    """Find similar past user stories."""
    rows = search(runtime, caller.tenant, StoryQuery(**body.model_dump()), by=caller.subject)
    return SimilarStories(stories=[SimilarStory(**one) for one in rows])


@router.get("/stats")
def stats(client: Asking) -> StoryStats:
    """Counts of stories by agent, and their average confidence."""
    return StoryStats(**client.story_stats())


@router.post("/seed", status_code=202)
async def seed(
    request: Request,
    response: Response,
    client: Asking,
    caller: Writer,
    body: RAGSeedRequest | None = None,
    prefer: Prefer = None,
) -> Seeded:
    """Store stories of earlier runs; 200 with the result if it is ready in time."""

    def accept() -> AcceptedStories:
        with acting_as(caller.subject):
            if body is None or body.user_stories is None:
                return client.embed_stories_anew()
            return client.store_stories(body.user_stories, body.source_agent, body.requirement_texts)

    accepted = await run_in_threadpool(accept)
    return _seeded_json(accepted, await waited(request, client, client.job, accepted.jobs, prefer, response))


@router.get("/seed", responses=problems.responses(404))
async def seeded(
    request: Request,
    response: Response,
    client: Asking,
    _caller: Writer,
    jobs: JobIds,
    prefer: Prefer = None,
) -> Seeded:
    """Result of stories that were accepted earlier."""

    def look(one: UUID) -> JobRow:
        row = client.job(one)
        if "stories" not in row.request:
            raise NotFound("one of the jobs is not one that stores stories")
        return row

    rows = await waited(request, client, look, jobs, prefer, response)
    accepted = sum(len(row.request["stories"] or ()) for row in rows)
    return _seeded_json(AcceptedStories(jobs=jobs, accepted=accepted, refused=()), rows)


def _seeded_json(accepted: AcceptedStories, rows: Sequence[JobRow]) -> Seeded:
    done = summary(accepted, [row.result for row in rows if row.state == "done" and row.result])
    failed = [row for row in rows if row.ended and row.state != "done"]
    return Seeded(
        accepted=accepted.accepted,
        jobs=list(accepted.jobs),
        stored=done["stored"],
        skipped=done["skipped"],
        refused=[RefusedStory(number=number, reason=reason) for number, reason in done["refused"]],
        failed=len(failed),
        pending=sum(not row.ended for row in rows),
        error=failed[0].error if failed else None,
    )
