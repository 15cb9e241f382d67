"""The memory of user stories over HTTP: similar ones, how many there are, and earlier ones to begin with."""

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
from workers.api.callers import NotFlag, Parts, Reader, RequestBody, may
from workers.api.enrichment import Asking, Prefer, waited
from workers.enrichment.stories import StoryQuery, search
from workers.enrichment.story_jobs import BATCH, MOST_K, MOST_STORIES, AcceptedStories, summary
from workers.runtime import acting_as
from workers.search import LONGEST_QUERY

router = APIRouter(prefix="/rag", tags=["stories"])


class RAGSearchRequest(RequestBody):
    """What stories are to be like."""

    query: Annotated[str, Field(min_length=1, max_length=LONGEST_QUERY, examples=["reset a password"])]
    k: Annotated[int, Field(ge=1, le=MOST_K), NotFlag] | None = Field(
        default=None, description="5 unless configured."
    )
    threshold: Annotated[float, Field(ge=0, le=1), NotFlag] | None = Field(
        default=None, description="Least similarity; 0.70 unless configured or measured for the model."
    )
    tags: Annotated[list[str], Field(max_length=100)] | None = Field(
        default=None, description="A story has one of these.", examples=[["auth"]]
    )
    examples: StrictBool = Field(
        default=False,
        description="As for a prompt: sure ones, edited ones first, and none while there are few.",
    )


class SimilarStory(BaseModel):
    """A story as it is kept."""

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
    """How many stories there are."""

    total_stories: int
    by_source_agent: dict[str, int]
    average_confidence_score: float | None
    edited: int
    by_model: dict[str, int] = Field(
        description="Those of another model than the configured one are not found."
    )


class RAGSeedRequest(RequestBody):
    """Stories of earlier runs, in the spelling of either agent or of an export."""

    user_stories: Annotated[list[dict[str, Any]], Field(max_length=MOST_STORIES)] | None = Field(
        default=None, description="Left out: stories of a former model are embedded anew, some at a time."
    )
    source_agent: Annotated[str, Field(max_length=50)] = Field(
        default="unknown", description="Who made them; unless it is unknown, it replaces what they say."
    )
    requirement_texts: dict[str, str] | None = Field(
        default=None, description="Texts of the requirements by the ids that the stories name."
    )


class RefusedStory(BaseModel):
    """A story that is none, and why."""

    number: int = Field(description="Its place in the list, from 1.")
    reason: str


class Seeded(BaseModel):
    """What becomes of the stories: those that are accepted are stored, once, whatever happens."""

    accepted: int
    jobs: list[UUID]
    stored: int = Field(description="By the jobs that have ended.")
    skipped: int = Field(description="Their text was there already.")
    refused: list[RefusedStory]
    failed: int = Field(description="Jobs that failed; none of their stories is stored.")
    pending: int = Field(description="Jobs that have not ended; they can be asked after at this address.")
    error: str | None = Field(description="Why the first of those that failed did.")


Writer = Annotated[Caller, Depends(may(WRITE))]
Taken = Annotated[
    list[UUID],
    Query(min_length=1, max_length=MOST_STORIES // BATCH, description="`jobs` of an earlier answer."),
]


@router.post("/search")
def find(asked: RAGSearchRequest, parts: Parts, caller: Reader) -> SimilarStories:
    """Find past user stories that are alike."""
    found = search(parts, caller.tenant, StoryQuery(**asked.model_dump()), by=caller.subject)
    return SimilarStories(stories=[SimilarStory(**one) for one in found])


@router.get("/stats")
def stats(client: Asking) -> StoryStats:
    """Tell how many stories there are, by agent, and how sure their agents were."""
    return StoryStats(**client.story_stats())


@router.post("/seed", status_code=202)
async def seed(
    request: Request,
    response: Response,
    client: Asking,
    caller: Writer,
    asked: RAGSeedRequest | None = None,
    prefer: Prefer = None,
) -> Seeded:
    """Store stories of earlier runs; 200 with what became of them if that came while you waited."""

    def accept() -> AcceptedStories:
        with acting_as(caller.subject):
            if asked is None or asked.user_stories is None:
                return client.embed_stories_anew()
            return client.store_stories(asked.user_stories, asked.source_agent, asked.requirement_texts)

    taken = await run_in_threadpool(accept)
    return _told(taken, await waited(request, client, client.job, taken.jobs, prefer, response))


@router.get("/seed", responses=problems.responses(404))
async def seeded(
    request: Request,
    response: Response,
    client: Asking,
    _caller: Writer,
    jobs: Taken,
    prefer: Prefer = None,
) -> Seeded:
    """Tell what became of stories that were accepted earlier."""

    def look(one: UUID) -> JobRow:
        row = client.job(one)
        if "stories" not in row.request:
            raise NotFound("one of the jobs stores no stories")
        return row

    rows = await waited(request, client, look, jobs, prefer, response)
    accepted = sum(len(row.request["stories"] or ()) for row in rows)
    return _told(AcceptedStories(jobs=jobs, accepted=accepted, refused=()), rows)


def _told(taken: AcceptedStories, rows: Sequence[JobRow]) -> Seeded:
    done = summary(taken, [row.result for row in rows if row.state == "done" and row.result])
    failed = [row for row in rows if row.ended and row.state != "done"]
    return Seeded(
        accepted=taken.accepted,
        jobs=list(taken.jobs),
        stored=done["stored"],
        skipped=done["skipped"],
        refused=[RefusedStory(number=number, reason=reason) for number, reason in done["refused"]],
        failed=len(failed),
        pending=sum(not row.ended for row in rows),
        error=failed[0].error if failed else None,
    )
