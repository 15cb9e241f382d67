"""Step 4 over HTTP: items in, an address to fetch the answer from, and what people say of an answer.

Whoever waits for an answer waits in the event loop, and all of a process on one connection: a thread or a connection
for each would leave none for those who ask.
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
from workers.admin.feedback import mark_as
from workers.api import problems
from workers.api.callers import Parts, Reader, RequestBody, Waiter, may
from workers.client import Client
from workers.enrichment.messaging import JobNotifications
from workers.enrichment.step4_file import MOST_INTERACTIVE, backlog_of
from workers.runtime import Runtime

router = APIRouter(prefix="/api/v1", tags=["enrichment"])

MOST_ITEMS = 200
LONGEST_WAIT = 60.0
"""Seconds, whatever is preferred."""
LOOKS_APART = 0.2
"""Seconds between two looks at several jobs."""
KEEP_ALIVE = 15.0
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})", re.IGNORECASE)


class Job(BaseModel):
    """An item that was asked about."""

    id: UUID
    state: Literal["queued", "running", "done", "failed", "expired"]
    degradation_level: int | None = None
    context: dict[str, Any] | None = Field(default=None, description="The answer, once it is done.")
    error: str | None = None
    url: str


class Jobs(BaseModel):
    """What was asked, in the order of the items."""

    jobs: list[Job]


async def client_of(request: Request, parts: Parts, caller: Reader) -> Client:
    """What asks for the caller's tenant, on the connections of this process."""
    return client_for(request, parts, caller)


def client_for(request: Request, parts: Runtime, caller: Caller) -> Client:
    """The same, for a caller that was proved in another way."""
    return Client.of_parts(parts, caller.tenant_name, parts.settings.project, request.app.state.publisher)


Asking = Annotated[Client, Depends(client_of)]


Prefer = Annotated[str | None, Header(description="`wait=20`: answer within that time, if there is one.")]


@contextmanager
def _watching(request: Request, tenant: UUID, job_ids: Sequence[UUID]) -> Iterator[asyncio.Event]:
    """An event of this loop that is set when one of the jobs may have moved."""
    loop, moved = asyncio.get_running_loop(), asyncio.Event()
    notifications: JobNotifications = request.app.state.notifications
    with notifications.watch(tenant, job_ids, lambda: loop.call_soon_threadsafe(moved.set)):
        yield moved


async def _moves(moved: asyncio.Event, seconds: float) -> bool:
    """Wait so long for the event, and clear it; False if it did not come."""
    with suppress(TimeoutError):
        await asyncio.wait_for(moved.wait(), seconds)
    came = moved.is_set()
    moved.clear()
    return came


def _looked(look: Callable[[UUID], JobRow], ids: Iterable[UUID]) -> dict[UUID, JobRow]:
    return {one: look(one) for one in ids}


def _open(rows: Mapping[UUID, JobRow]) -> list[UUID]:
    return [one for one, row in rows.items() if not row.ended]


async def waited(
    request: Request,
    client: Client,
    look: Callable[[UUID], JobRow],
    ids: Sequence[UUID],
    prefer: str | None,
    response: Response,
) -> list[JobRow]:
    """Jobs when they have ended, or as they stand after the time that is preferred; 200 if they ended in it."""
    asked = _WAIT.search(prefer or "")
    rows = await run_in_threadpool(_looked, look, ids)
    left = min(LONGEST_WAIT, float(asked[1])) if asked else 0.0
    clock = asyncio.get_running_loop().time
    end = clock() + left
    waiting = _open(rows)
    if left and waiting:
        with _watching(request, client.tenant, ids) as moved:
            while True:
                rows |= await run_in_threadpool(partial(_looked, look, waiting))
                waiting, left = _open(rows), end - clock()
                if not waiting or left <= 0:
                    break
                await _moves(moved, left)
                # Jobs that end one soon after another are looked at together.
                await asyncio.sleep(min(LOOKS_APART, left) if len(waiting) > 1 else 0)
    found = [rows[one] for one in ids]
    if asked and all(row.ended for row in found):
        response.status_code = 200
        response.headers["Preference-Applied"] = f"wait={asked[1]}"
    return found


def _told(request: Request, job: JobRow) -> Job:
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


def items_of(given: Any) -> Sequence[Mapping[str, Any]]:
    """Requests out of a PBI, a list of them, or what Step 3 wrote."""
    if isinstance(given, Mapping) and (
        isinstance(given.get("pbi"), Mapping)
        or not any(isinstance(value, list | dict) for value in given.values())
    ):
        return [given]
    try:
        return backlog_of(Path("body"), given).items
    except DocumentRejected:
        if isinstance(given, Mapping):
            return [given]
        raise


@router.post("/enrich", status_code=202, responses=problems.responses(404))
async def enrich(
    given: Annotated[
        dict[str, Any] | list[Any],
        Body(examples=[{"pbi": {"id": "PBI-7", "title": "Show tide gates on the chart"}}]),
    ],
    request: Request,
    response: Response,
    client: Asking,
    caller: Reader,
    project: Annotated[str | None, Query(description="Id or name; else the item's own.")] = None,
    prefer: Prefer = None,
) -> Jobs:
    """Ask for the context of one backlog item or many; 200 with the answers if they came while you waited."""
    items = items_of(storable(given))
    if not 0 < len(items) <= MOST_ITEMS:
        raise RequestRejected(f"send 1 to {MOST_ITEMS} items at once, not {len(items)}")
    priority = INTERACTIVE if len(items) <= MOST_INTERACTIVE else BULK

    def submit() -> list[UUID]:
        for number, item in enumerate(items, 1):  # none is asked for if one of them is wrong
            try:
                client.checked(item, project, (), caller)
            except RequestRejected as error:
                where = f"item {number} of {len(items)}: " if len(items) > 1 else ""
                raise RequestRejected(f"{where}{error.message}", fix=error.fix) from None
        return [client.submit(item, project=project, priority=priority, caller=caller) for item in items]

    ids = await run_in_threadpool(submit)
    rows = await waited(request, client, partial(client.job, caller=caller), ids, prefer, response)
    told = [_told(request, row) for row in rows]
    if len(told) == 1:
        response.headers["Location"] = told[0].url
    return Jobs(jobs=told)


@router.get(
    "/enrich/{job_id}",
    response_model=Job,
    responses={
        **problems.responses(404),
        200: {"content": {"text/event-stream": {}}, "description": "How it stands, or its states as events"},
    },
)
async def enrichment(
    job_id: UUID,
    request: Request,
    parts: Parts,
    caller: Waiter,
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> Any:
    """How a request stands, with its answer once it is done; as events until then if `text/event-stream` is asked."""
    client = client_for(request, parts, caller)
    row = await run_in_threadpool(client.job, job_id, caller=caller)
    if "text/event-stream" not in accept:
        return _told(request, row)
    return StreamingResponse(_events(request, client, caller, row), media_type="text/event-stream")


async def _events(request: Request, client: Client, caller: Caller, row: JobRow) -> AsyncIterator[str]:
    """Each state of the job, the last one with its answer; ends with whoever listens."""
    told = ""
    with _watching(request, client.tenant, [row.id]) as moved:
        while True:
            if row.state != told:
                told = row.state
                yield f"event: {row.state}\ndata: {_told(request, row).model_dump_json()}\n\n"
            if row.ended:
                return
            if not await _moves(moved, KEEP_ALIVE):
                yield ": still there\n\n"
            with suppress(StoreUnavailable):  # it is asked again with the next sign of life
                row = await run_in_threadpool(client.job, row.id, caller=caller)


class Verdict(RequestBody):
    """What somebody says of a document for an item or a question."""

    item: Annotated[str, Field(min_length=1, max_length=10_000, description="Id of an item, or a question.")]
    ref: Annotated[
        str, Field(min_length=1, max_length=1000, description="`ref` or `document_id` of an answer.")
    ]
    verdict: Literal["useful", "noise", "undo"]
    project: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    source: Annotated[str, Field(max_length=200)] | None = None


class Marked(BaseModel):
    """What is said of it now."""

    ref: str
    document_id: UUID
    verdict: str | None
    before: str | None


@router.post("/feedback", responses=problems.responses(404))
def feedback(said: Verdict, parts: Parts, caller: Annotated[Caller, Depends(may(WRITE))]) -> Marked:
    """Say that a document is useful or noise for an item; later answers honour it."""
    return Marked.model_validate(mark_as(parts, caller, said.model_dump()))
