"""How the installation is, and what this process counts; nobody needs a token for it."""

from __future__ import annotations

from typing import Literal

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from connectors.sections import revealed
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import LarderError, TokenRefused
from pipeline.ledger import overview
from workers.admin.status import SLOW_LEVEL, STORE_DOWN_LEVEL, recent
from workers.api.callers import Parts
from workers.control import steps
from workers.processes import metrics
from workers.queue import broker
from workers.queue.celeryconfig import QUEUES
from workers.settings.monitoring import MonitoringSettings

router = APIRouter(tags=["health"])

State = Literal["ok", "starting", "degraded", "error"]


class Alive(BaseModel):
    """The process answers."""

    status: Literal["ok"] = "ok"


class HealthReport(BaseModel):
    """How its parts are."""

    status: State
    store: State
    broker: State
    embedder: State
    backlog: int | None
    """Documents that wait to be indexed."""
    degradation_level: int
    """0 is normal, 5 switched off."""


@router.get("/health/live")
def live() -> Alive:
    """Whether this process answers."""
    return Alive()


def rag(request: Request, response: Response, parts: Parts) -> HealthReport:
    """Whether it can answer well: store, broker, model, what waits."""
    ready, backlog = request.app.state.ready, None
    store: State = "ok"
    level = int(parts.health.level())
    try:
        with parts.database.control() as connection:
            seconds = overview.round_trip(connection)
            backlog = overview.backlog(connection, resend=steps.limits(parts.rag).resend)["pending"]
        level = max(level, SLOW_LEVEL if seconds > HealthOptions.slow_seconds else 0)
    except LarderError:
        store, level = "error", max(level, STORE_DOWN_LEVEL)
    queues = broker.lengths(parts.addresses.broker, QUEUES)
    response.status_code = 200 if ready and store == "ok" else 503
    well: State = "degraded" if level or queues is None else "ok"
    return HealthReport(
        status=store if store == "error" else well if ready else "starting",
        store=store,
        broker="error" if queues is None else "ok",
        embedder="ok" if ready else "starting",
        backlog=backlog,
        degradation_level=level,
    )


def metrics_page(request: Request, parts: Parts) -> Response:
    """What the processes of this machine count, and figures of the ledger, for Prometheus."""
    token = revealed(parts.rag.monitoring.metrics.token)
    if not metrics.admits(token, request.headers.get("Authorization", "")):
        raise TokenRefused("the token of monitoring.metrics is missing or wrong")
    shown = metrics.exposition(parts.metrics_folder, recent(request.app.state.watcher))
    return Response(shown, media_type=CONTENT_TYPE_LATEST)


def install(app: FastAPI, told: MonitoringSettings) -> None:
    """Offer what the configuration says, where it says."""
    app.include_router(router)
    also: APIRouter = APIRouter(tags=["health"])
    if told.health_check.enabled:
        not_ready = {"model": HealthReport, "description": "Not ready, or no store"}
        also.get(told.health_check.endpoint, responses={503: not_ready})(rag)
    if told.metrics.enabled:
        also.get("/metrics", response_class=Response)(metrics_page)
    app.include_router(also)
