"""How the installation is, and what this process counts; nobody needs a token for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel

from connectors.sections import secret_value
from workers.admin.status import recent
from workers.admin.tokens import TokenUnproved
from workers.api.callers import Attempts, Parts, address_of
from workers.processes import metrics
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
    errors: list[str]
    """Checks of `larder doctor` that fail by what `larder status` shows."""


@router.get("/health/live")
def live() -> Alive:
    """Whether this process answers."""
    return Alive()


def rag(request: Request, response: Response, parts: Parts) -> HealthReport:
    """Whether it can answer well: store, broker, model, what waits; at most eight seconds old."""
    ready, found = request.app.state.ready, recent(request.app.state.watcher)
    store, broker = _SERVER[found["database"]], _SERVER[found["broker"]]
    embedder: State = _EMBEDDER[(found["embedding"] or {}).get("state", "ok")] if ready else "starting"
    level = max(int(parts.health.level()), found["degradation_level"])
    response.status_code = 200 if ready and store == "ok" else 503
    errors = list(dict.fromkeys(one["check"] for one in found["next"] if one["status"] == "error"))
    state: State = "degraded" if any((level, errors, embedder != "ok")) else "ok"
    return HealthReport(
        status="error" if store == "error" else state if ready else "starting",
        store=store,
        broker=broker,
        embedder=embedder,
        backlog=found["backlog"].get("pending"),
        degradation_level=level,
        errors=errors,
    )


_SERVER: Mapping[str, State] = {"ok": "ok", "error": "error", "refused": "error"}
_EMBEDDER: Mapping[str, State] = {"ok": "ok", "waiting": "degraded", "held": "error"}
"""What the ledger says of the embedder -> how it is."""


def metrics_page(request: Request, parts: Parts) -> Response:
    """What the processes of this machine count, and figures of the ledger, for Prometheus.

    Names of tenants and sources are for who has the token: without one anybody may be who asks.
    """
    token = secret_value(parts.rag.monitoring.metrics.token)
    attempts: Attempts = request.app.state.attempts
    with attempts.counted(f"metrics {address_of(request)}"):
        if not metrics.is_authorized(token, request.headers.get("Authorization", "")):
            raise TokenUnproved("the token of monitoring.metrics is missing or wrong")
    found = recent(request.app.state.watcher)
    shown = metrics.exposition(parts.metrics_folder, found if token else {**found, "sources": []})
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
