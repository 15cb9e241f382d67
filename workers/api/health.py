"""Health and metrics of the installation; no token needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from connectors.sections import secret_value
from pipeline.documents import Json
from pipeline.enrichment.degradation import DegradationLevel
from workers.api.callers import Attempts, CurrentRuntime, address_of
from workers.app.status import recent
from workers.app.tokens import TokenUnproved
from workers.monitoring import metrics
from workers.runtime import Runtime
from workers.settings.monitoring import MonitoringSettings

router = APIRouter(tags=["health"])

State = Literal["ok", "starting", "degraded", "error"]


class Alive(BaseModel):
    """Answer of a live process."""

    status: Literal["ok"] = "ok"


class HealthReport(BaseModel):
    """State of store, broker and embedder."""

    status: State
    store: State
    broker: State
    embedder: State
    backlog: int | None
    """Documents that wait to be indexed."""
    degradation_level: int
    """Degradation level: 0 is normal, 5 switched off."""
    errors: list[str]
    """Checks of `larder doctor` that fail by the figures of `larder status`."""


@router.get("/health/live")
def live() -> Alive:
    """Answer as long as the process is alive."""
    return Alive()


def rag(request: Request, response: Response, runtime: CurrentRuntime) -> HealthReport:
    """Health of store, broker, model and backlog; at most eight seconds old."""
    ready, figures = request.app.state.ready, recent(request.app.state.watcher)
    store, broker = _SERVER[figures["database"]], _SERVER[figures["broker"]]
    embedder: State = _EMBEDDER[(figures["embedding"] or {}).get("state", "ok")] if ready else "starting"
    level = _degradation_level(runtime, figures)
    response.status_code = 200 if ready and store == "ok" else 503
    errors = list(dict.fromkeys(one["check"] for one in figures["next"] if one["status"] == "error"))
    state: State = "degraded" if any((level, errors, embedder != "ok")) else "ok"
    return HealthReport(
        status="error" if store == "error" else state if ready else "starting",
        store=store,
        broker=broker,
        embedder=embedder,
        backlog=figures["backlog"].get("pending"),
        degradation_level=level,
        errors=errors,
    )


def _degradation_level(runtime: Runtime, figures: Json) -> int:
    if figures["database"] == "ok" and runtime.health.level() == DegradationLevel.STATIC_ONLY:
        # Without searches, nothing else would notice that the database answers again.
        runtime.health.record("store", ok=True, seconds=figures["database_seconds"])
    level: int = figures["degradation_level"]
    return max(int(runtime.health.level()), level)


_SERVER: Mapping[str, State] = {"ok": "ok", "error": "error", "refused": "error"}
_EMBEDDER: Mapping[str, State] = {"ok": "ok", "waiting": "degraded", "held": "error"}
"""State of embedding in the ledger -> state of the embedder."""


def metrics_page(request: Request, runtime: CurrentRuntime) -> Response:
    """Metrics of this machine's processes and of the ledger, for Prometheus.

    Names of tenants and sources need the token, since anybody may read the rest.
    """
    token = secret_value(runtime.rag.monitoring.metrics.token)
    attempts: Attempts = request.app.state.attempts
    with attempts.counted(f"metrics {address_of(request)}"):
        if not metrics.is_authorized(token, request.headers.get("Authorization", "")):
            raise TokenUnproved("the token of monitoring.metrics is missing or wrong")
    figures = recent(request.app.state.watcher)
    exposition = metrics.exposition(runtime.metrics_folder, figures if token else {**figures, "sources": []})
    return Response(exposition, media_type=CONTENT_TYPE_LATEST)


def install(app: FastAPI, settings: MonitoringSettings) -> None:
    """Add the routes of the configuration."""
    app.include_router(router)
    also: APIRouter = APIRouter(tags=["health"])
    if settings.health_check.enabled:
        not_ready = {"model": HealthReport, "description": "Not ready, or no store"}
        also.get(settings.health_check.endpoint, responses={503: not_ready})(rag)
    if settings.metrics.enabled:
        also.get("/metrics", response_class=Response)(metrics_page)
    app.include_router(also)
