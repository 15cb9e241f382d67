"""Step 4 over HTTP: submit items, fetch answers, and give feedback on them.

Requests that wait for an answer wait in the event loop, all of a process on one database connection: a thread or a
connection each would leave none for new requests.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from pipeline.access import WRITE, Caller
from pipeline.errors import DocumentRejected, RequestRejected, StoreUnavailable
from pipeline.ledger import storable
from pipeline.ledger.jobs import BULK, INTERACTIVE, JobRow
from workers.api import problems
from workers.api.callers import CurrentRuntime, Reader, RequestBody, Waiter, may
from workers.app.enrichment.messaging import JobNotifications
from workers.app.feedback import mark_as
from workers.client import Client
from workers.runtime import Runtime
from workers.step4_file import MOST_INTERACTIVE, backlog_of

router = APIRouter(prefix="/api/v1", tags=["enrichment"])

MAX_ITEMS = 200
LONGEST_WAIT = 60.0
"""Maximum seconds of `Prefer: wait`."""
POLL_SECONDS = 0.2
"""Seconds between two reads of several jobs."""
KEEP_ALIVE = 15.0
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)


class Job(BaseModel):
    """A job: the request for the context of one item."""

    id: UUID
    state: Literal["queued", "running", "done", "failed", "expired"]
    degradation_level: int | None = None
    context: dict[str, Any] | None = Field(default=None, description="The answer, once it is done.")
    error: str | None = None
    url: str


class Jobs(BaseModel):
    """Jobs in the order of the items."""

    jobs: list[Job]


async def client_of(request: Request, runtime: CurrentRuntime, caller: Reader) -> Client:
    """A client for the caller's tenant on the connections of this process."""
    return client_for(request, runtime, caller)


def client_for(request: Request, runtime: Runtime, caller: Caller) -> Client:
    """A client for a caller from another dependency."""
    return Client.of_runtime(
        runtime, caller.tenant_name, runtime.settings.project, request.app.state.publisher
    )


Asking = Annotated[Client, Depends(client_of)]


Prefer = Annotated[str | None, Header(description="`wait=20`: wait up to 20 s for the answer.")]


@contextmanager
def _watching(request: Request, tenant: UUID, job_ids: Sequence[UUID]) -> Iterator[asyncio.Event]:
    """An event of this loop that is set when one of the jobs may have changed."""
    loop, moved = asyncio.get_running_loop(), asyncio.Event()
    notifications: JobNotifications = request.app.state.notifications
    with notifications.watch(tenant, job_ids, lambda: loop.call_soon_threadsafe(moved.set)):
        yield moved


async def _moves(moved: asyncio.Event, seconds: float) -> bool:
    """Wait up to `seconds` for the event and clear it; False if it was not set."""
    with suppress(TimeoutError):
        await asyncio.wait_for(moved.wait(), seconds)
    came = moved.is_set()
    moved.clear()
    return came


def _read_jobs(read: Callable[[UUID], JobRow], ids: Iterable[UUID]) -> dict[UUID, JobRow]:
    return {one: read(one) for one in ids}


def _open(rows: Mapping[UUID, JobRow]) -> list[UUID]:
    return [one for one, row in rows.items() if not row.ended]


async def waited(
    request: Request,
    client: Client,
    read: Callable[[UUID], JobRow],
    ids: Sequence[UUID],
    prefer: str | None,
    response: Response,
) -> list[JobRow]:
    """Jobs when all have ended, or after the time of `prefer`; status 200 if they ended in time."""
    preference = _WAIT.search(prefer or "")
    rows = await run_in_threadpool(_read_jobs, read, ids)
    remaining = min(LONGEST_WAIT, float(preference[1])) if preference else 0.0
    clock = asyncio.get_running_loop().time
    end = clock() + remaining
    waiting = _open(rows)
    if remaining and waiting:
        with _watching(request, client.tenant, ids) as moved:
            while True:
                rows |= await run_in_threadpool(partial(_read_jobs, read, waiting))
                waiting, remaining = _open(rows), end - clock()
                if not waiting or remaining <= 0:
                    break
                await _moves(moved, remaining)
                # Jobs that end in quick succession are read together.
                await asyncio.sleep(min(POLL_SECONDS, remaining) if len(waiting) > 1 else 0)
    ended_rows = [rows[one] for one in ids]
    if preference and all(row.ended for row in ended_rows):
        response.status_code = 200
        response.headers["Preference-Applied"] = f"wait={preference[1]}"
    return ended_rows


def _job_json(request: Request, job: JobRow) -> Job:
    url = str(request.url_for("enrichment", job_id=job.id).path)
    done = job.state == "done"
    return Job(
        id=job.id,
        state=job.state,
        degradation_level=job.degradation_level,
        context=job.result if done else None,
        error=None if done else job.error,
        url=url,
    )


def items_of(body: Any) -> Sequence[Mapping[str, Any]]:
    """Requests in a body: a backlog item, a list of them, or the output of Step 3."""
    if isinstance(body, Mapping) and (
        isinstance(body.get("pbi"), Mapping)
        or not any(isinstance(value, list | dict) for value in body.values())
    ):
        return [body]
    try:
        return backlog_of(Path("body"), body).items
    except DocumentRejected:
        if isinstance(body, Mapping):
            return [body]
        raise


@router.post("/enrich", status_code=202, responses=problems.responses(404))
async def enrich(
    body: Annotated[
        dict[str, Any] | list[Any],
        Body(examples=[{"pbi": {"id": "PBI-7", "title": "Show tide gates on the chart"}}]),
    ],
    request: Request,
    response: Response,
    client: Asking,
    caller: Reader,
    project: Annotated[str | None, Query(description="Id or name; default: the item's project.")] = None,
    prefer: Prefer = None,
) -> Jobs:
    """Request the context of one or more backlog items; 200 with the answers if they are ready in time."""
    items = items_of(storable(body))
    if not 0 < len(items) <= MAX_ITEMS:
        raise RequestRejected(f"send 1 to {MAX_ITEMS} items at once, not {len(items)}")
    priority = INTERACTIVE if len(items) <= MOST_INTERACTIVE else BULK

    def submit() -> list[UUID]:
        for number, item in enumerate(items, 1):  # none is submitted if one is wrong
            try:
                client.checked(item, project, (), caller)
            except RequestRejected as error:
                position = f"item {number} of {len(items)}: " if len(items) > 1 else ""
                raise RequestRejected(f"{position}{error.message}", fix=error.fix) from None
        return [client.submit(item, project=project, priority=priority, caller=caller) for item in items]

    ids = await run_in_threadpool(submit)
    rows = await waited(request, client, partial(client.job, caller=caller), ids, prefer, response)
    jobs = [_job_json(request, row) for row in rows]
    if len(jobs) == 1:
        response.headers["Location"] = jobs[0].url
    return Jobs(jobs=jobs)


@router.get(
    "/enrich/{job_id}",
    response_model=Job,
    responses={
        **problems.responses(404),
        200: {"content": {"text/event-stream": {}}, "description": "The job, or its states as events"},
    },
)
async def enrichment(
    job_id: UUID,
    request: Request,
    runtime: CurrentRuntime,
    caller: Waiter,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Any:
    """State of a job, with its answer once it is done; as a stream of events if `text/event-stream` is accepted."""
    client = client_for(request, runtime, caller)
    row = await run_in_threadpool(client.job, job_id, caller=caller)
    if "text/event-stream" not in accept:
        return _job_json(request, row)
    return StreamingResponse(_events(request, client, caller, row), media_type="text/event-stream")


async def _events(request: Request, client: Client, caller: Caller, row: JobRow) -> AsyncIterator[str]:
    """Yield an event per state of the job, the last with its answer; ends when the client disconnects."""
    last_state = ""
    with _watching(request, client.tenant, [row.id]) as moved:
        while True:
            if row.state != last_state:
                last_state = row.state
                yield f"event: {row.state}\ndata: {_job_json(request, row).model_dump_json()}\n\n"
            if row.ended:
                return
            if not await _moves(moved, KEEP_ALIVE):
                yield ": still there\n\n"
            with suppress(StoreUnavailable):  # it is read again with the next event
                row = await run_in_threadpool(client.job, row.id, caller=caller)


class Verdict(RequestBody):
    """Feedback on a document for an item or a query."""

    item: Annotated[str, Field(min_length=1, max_length=10_000, description="Id of an item, or a query.")]
    ref: Annotated[
        str, Field(min_length=1, max_length=1000, description="`ref` or `document_id` of an answer.")
    ]
    verdict: Literal["useful", "noise", "undo"]
    project: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    source: Annotated[str, Field(max_length=200)] | None = None


class Marked(BaseModel):
    """The current feedback on the document."""

    ref: str
    document_id: UUID
    verdict: str | None
    before: str | None


@router.post("/feedback", responses=problems.responses(404))
def feedback(
    verdict: Verdict, runtime: CurrentRuntime, caller: Annotated[Caller, Depends(may(WRITE))]
) -> Marked:
    """Mark a document as useful or noise for an item; later answers take it into account."""
    return Marked.model_validate(mark_as(runtime, caller, verdict.model_dump()))
