"""The memory of user stories over HTTP: similar ones, how many there are, and earlier ones to begin with."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from pipeline.access import WRITE, Caller
from workers.api.callers import Parts, Reader, RequestBody, may
from workers.api.enrichment import Asking, Prefer, waited
from workers.enrichment.stories import StoryQuery, find, memory_of
from workers.enrichment.story_jobs import MOST_STORIES, summary

router = APIRouter(prefix="/rag", tags=["stories"])


class RAGSearchRequest(RequestBody):
    """What stories are to be like."""

    query: Annotated[str, Field(min_length=1, max_length=10_000, examples=["reset a password"])]
    k: Annotated[int, Field(ge=1, le=100)] | None = Field(default=None, description="5 unless configured.")
    threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(
        default=None, description="Least similarity; 0.70 unless configured or measured for the model."
    )
    tags: Annotated[list[str], Field(max_length=100)] | None = Field(
        default=None, description="A story has one of these.", examples=[["auth"]]
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


@router.post("/search")
def search(asked: RAGSearchRequest, parts: Parts, caller: Reader) -> SimilarStories:
    """Find past user stories that are alike."""
    found = find(memory_of(parts, caller.tenant), StoryQuery(**asked.model_dump()))
    return SimilarStories(stories=[SimilarStory(**one) for one in found])


@router.get("/stats")
def stats(client: Asking) -> StoryStats:
    """Tell how many stories there are, by agent, and how sure their agents were."""
    return StoryStats(**client.story_stats())


@router.post("/seed", status_code=202)
async def seed(
    response: Response,
    client: Asking,
    _caller: Annotated[Caller, Depends(may(WRITE))],
    asked: RAGSeedRequest | None = None,
    prefer: Prefer = None,
) -> Seeded:
    """Store stories of earlier runs; 200 with what became of them if that came while you waited."""
    given = asked.user_stories if asked else None
    accept = client.embed_stories_anew if given is None else partial(client.store_stories, given)
    taken = await run_in_threadpool(accept)
    rows = await waited(lambda: [client.job(one) for one in taken.jobs], prefer, response)
    done = summary(taken, [row.result for row in rows if row.state == "done" and row.result])
    return Seeded(
        accepted=taken.accepted,
        jobs=list(taken.jobs),
        stored=done["stored"],
        skipped=done["skipped"],
        refused=[RefusedStory(number=number, reason=reason) for number, reason in done["refused"]],
        failed=sum(row.ended and row.state != "done" for row in rows),
    )
