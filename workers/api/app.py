"""The application: what every request meets before and after its handler."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

import structlog
from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from workers import installed_version
from workers.api import agents, callers, console, enrichment, health, hooks, knowledge, problems, stories
from workers.app.enrichment import job
from workers.app.enrichment.messaging import JobNotifications, JobPublisher
from workers.app.ingestion.hooks import MOST_BYTES, PATH
from workers.app.status import watcher
from workers.app.tokens import Verifier
from workers.monitoring import metrics, tracing
from workers.monitoring.liveness import touch
from workers.runtime import Runtime

NAME = "api"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
}
UNPROVED_BYTES = 64_000
"""Bytes of a body that are read before its token is proved, so that callers without one send nothing large."""
HEAD_SECONDS = 20.0
"""Seconds in which a request must begin on a connection; at most twice as long after the one before."""
BODY_SECONDS = 20.0
"""Seconds of waiting for the next piece of a body."""
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

logger = logging.getLogger(__name__)


class Envelope:
    """Gives each request an id and a largest body, and each answer its headers; what is unforeseen is a problem.

    Written for ASGI itself, which is asynchronous: handlers are not.
    """

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self.app = app
        self.most_bytes = most_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, begun, since = Headers(scope=scope), False, time.monotonic()
        sent_id = headers.get("X-Request-Id", "")
        request_id = sent_id if _REQUEST_ID.fullmatch(sent_id) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                timer = metrics.REQUESTS.labels(scope["method"], str(message["status"]))
                timer.observe(time.monotonic() - since)
                answer = MutableHeaders(scope=message)
                for name, value in {"X-Request-Id": request_id, **HEADERS}.items():
                    answer.setdefault(name, value)
            await send(message)

        sender = tracing.received(headers.get("traceparent"))
        with structlog.contextvars.bound_contextvars(request=request_id), sender:
            try:
                length, most_bytes = headers.get("Content-Length", "0"), self._most_bytes(scope)
                if length.isascii() and length.isdigit() and int(length[:20]) > most_bytes:
                    too_large = f"the body is larger than {most_bytes:,} bytes"
                    await problems.problem(scope, 413, too_large)(scope, receive, send_with_headers)
                    return
                await self.app(scope, self._bounded(scope, receive), send_with_headers)
            except Exception as error:  # noqa: BLE001 (whatever it is, whoever asked must be told)
                # Where it happened, without its words: they may hold a text.
                trace = "".join(traceback.format_tb(error.__traceback__)[-4:])
                logger.error("a request failed with %s\n%s", type(error).__name__, trace)  # noqa: TRY400
                if not begun:
                    detail = "it failed unexpectedly; the log has the request id"
                    await problems.problem(scope, 500, detail)(scope, receive, send_with_headers)

    def _most_bytes(self, scope: Scope) -> int:
        return min(self.most_bytes, MOST_BYTES) if _is_hook(scope) else self.most_bytes

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """`receive` with limits: the body must not be too large or stop coming; a large one needs a proved token.

        An event of a webhook is proved by all of its body, and may not be as large.
        """
        received, whole, proved, most_bytes = 0, False, _is_hook(scope), self._most_bytes(scope)

        async def receive_bounded() -> Message:
            nonlocal received, whole, proved
            try:
                message = await asyncio.wait_for(receive(), None if whole else BODY_SECONDS)
            except TimeoutError:
                raise HTTPException(408, "the rest of the body did not come") from None
            whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > most_bytes:
                raise HTTPException(413, f"the body is larger than {most_bytes:,} bytes")
            if received > UNPROVED_BYTES and not proved:
                request = Request(scope)
                _, _, bearer_token = request.headers.get("Authorization", "").partition(" ")
                token = bearer_token or request.cookies.get(callers.COOKIE, "")
                await run_in_threadpool(callers.prove_caller, request, token)
                proved = True
            return message

        return receive_bounded


def _is_hook(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")).startswith(PATH)


class Protocol(H11Protocol):
    """Ends connections on which no request comes whole; uvicorn waits for ever for the end of its head."""

    _before: object = ()
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Look soon whether there is a request."""
        super().connection_made(transport)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        """Look no more."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._before:
            self.transport.close()
            return
        self._before = self.cycle
        self._timer = self.loop.call_later(HEAD_SECONDS, self._look)


def create_app(runtime: Runtime) -> FastAPI:
    """The application on this runtime; it loads its model while it starts, and says so at `/health/rag`.

    Raises:
        ConfigurationError: there is nothing to prove tokens with.
    """
    settings = runtime.rag.api

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(run_in_threadpool(job.warm, runtime))

        async def live() -> None:
            await asyncio.shield(warming)
            app.state.ready = True
            while True:
                touch(runtime.heartbeat_folder, NAME)
                await asyncio.sleep(1.0)

        life = asyncio.create_task(live())
        async with app.state.agents.session_manager.run():
            yield
        life.cancel()
        await warming  # what it opens is closed with the rest
        await run_in_threadpool(app.state.notifications.close)
        await run_in_threadpool(runtime.audit_log.flush)
        app.state.watcher.close()

    app = FastAPI(
        title="Larder",
        version=installed_version(),
        summary="What the team already built, decided and wrote down.",
        root_path=settings.root_path,
        lifespan=lifespan,
        docs_url=None,  # their pages load scripts from elsewhere
        redoc_url=None,
        responses=problems.responses(),
    )
    app.state.runtime, app.state.ready, app.state.verifier = runtime, False, Verifier(runtime.settings)
    app.state.attempts = callers.Attempts(settings.wrong_tokens_per_minute)
    app.state.agents = agents.server(runtime, agents.caller_of_request)
    app.state.agents.streamable_http_app(
        stateless_http=True, json_response=True, transport_security=agents.BY_TOKEN
    )
    app.state.publisher = JobPublisher(runtime.addresses.broker)
    app.state.notifications = JobNotifications(runtime.database, runtime.addresses.database)
    problems.install(app, console.problem)
    app.add_exception_handler(console.LoggedOut, console.logged_out)
    app.state.watcher = watcher(runtime)
    health.install(app, runtime.rag.monitoring)
    app.add_api_route("/", console.entered, include_in_schema=False)
    app.state.routes = []
    for module in (knowledge, enrichment, stories, hooks, agents, console):
        app.include_router(module.router)
        app.state.routes += module.router.routes
    app.add_middleware(Envelope, most_bytes=int(settings.max_body))
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "Prefer", "X-Request-Id"],
            expose_headers=["X-Request-Id", "Location", "Retry-After"],
        )
    return app
