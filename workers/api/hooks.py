"""Webhooks over HTTP: what a service tells of its changes."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from workers.api import problems
from workers.api.callers import Attempts, CurrentRuntime, address_of, whole_body
from workers.app.ingestion import hooks

router = APIRouter(tags=["hooks"])


class HookAnswer(BaseModel):
    """What became of an event."""

    hints: int = Field(description="Items that are read soon; 0 for an event that was received before.")


@router.post(
    hooks.PATH + "{source}",
    status_code=202,
    responses=problems.responses(),
    openapi_extra={
        "requestBody": {"content": {"application/json": {"schema": {"type": "object"}}}, "required": True}
    },
)
def hook(
    source: str, body: Annotated[bytes, Depends(whole_body)], request: Request, runtime: CurrentRuntime
) -> HookAnswer:
    """Take an event of a source's service, proved by the secret of the source."""
    attempts: Attempts = request.app.state.attempts
    with attempts.counted(f"hook {address_of(request)}"):
        return HookAnswer(hints=hooks.receive(runtime, source, request.headers, body))
