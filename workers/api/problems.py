"""Errors as problem details (RFC 9457): a sentence and a request id, never a traceback, a text or a secret."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match

from pipeline.documents import Json
from pipeline.errors import (
    DocumentRejected,
    Forbidden,
    LarderError,
    NotFound,
    RateLimited,
    RequestRejected,
    StoreError,
    TokenRefused,
)

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
STATUS: Mapping[type[LarderError], int] = {
    TokenRefused: 401,
    Forbidden: 403,
    NotFound: 404,
    RequestRejected: 422,
    DocumentRejected: 422,
    RateLimited: 429,
}
"""Class of an error -> status; others are 503 if they pass, else 500."""
SERVER_ERROR = 500


class FieldProblem(BaseModel):
    """One wrong field of a request."""

    field: str = Field(examples=["body.query_text"])
    problem: str = Field(examples=["String should have at least 1 character"])


class ProblemDetails(BaseModel):
    """Why there is no answer (RFC 9457)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no such project"])
    instance: str = Field(examples=["/api/v1/rag/query"])
    request_id: str = Field(description="Is in the log, too.", examples=["5f1c9f0e2b7d4a06"])
    code: str | None = Field(default=None, description="E001 to E005.", examples=["E004"])
    errors: list[FieldProblem] | None = Field(default=None, description="With 422: the fields.")


def problem(
    scope: Mapping[str, Any],
    status: int,
    detail: str = "",
    *,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Json] | None = None,
) -> JSONResponse:
    """The response; what it lacks is left out."""
    found = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail or HTTPStatus(status).description or HTTPStatus(status).phrase,
        "instance": str(scope.get("path", "")),
        "request_id": scope.get("state", {}).get("request_id", ""),
        **{key: value for key, value in (("code", code), ("errors", errors)) if value},
    }
    return JSONResponse(found, status, dict(headers or {}), MEDIA_TYPE)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """What the description of an address says of its errors."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in sorted({400, 401, 403, 413, 422, 429, 500, 503, *statuses})
    }


def told_to_callers(error: LarderError) -> str:
    """What an error says without what to do about the installation, which is for its operator and may name folders.

    Behind the colon of one of the database stand its own words, with roles and tables.
    """
    return error.message.partition(": ")[0] if isinstance(error, StoreError) else error.message


def _without_advice(error: LarderError, status: int) -> str:
    detail = told_to_callers(error)
    if detail != error.message:
        logger.warning("answered with %d: %s", status, error.message)
    return detail


def _ours(request: Request, error: Any) -> JSONResponse:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 0)
    status = status or (503 if error.transient else SERVER_ERROR)
    headers = {}
    if status == STATUS[TokenRefused]:
        headers["WWW-Authenticate"] = 'Bearer realm="larder"'
    if error.retry_after is not None or status == 503:  # noqa: PLR2004 (Service Unavailable)
        headers["Retry-After"] = str(math.ceil(error.retry_after or 5))
    detail = str(error) if status < SERVER_ERROR else _without_advice(error, status)
    return problem(request.scope, status, detail, code=error.code, headers=headers)


def _invalid(request: Request, error: Any) -> JSONResponse:
    errors = [{"field": _place(e["loc"]), "problem": str(e["msg"])} for e in error.errors()[:20]]
    return problem(request.scope, 422, "the request is wrong: see errors", code="E004", errors=errors)


def _place(parts: Iterable[Any]) -> str:
    # A key that the caller made up is no place of ours, and may be long.
    return ".".join(str(part)[:40] for part in parts)


def _http(request: Request, error: Any) -> JSONResponse:
    if isinstance(error.__cause__, LarderError):  # one that ended the reading of a body
        return _ours(request, error.__cause__)
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Of all handlers of the address; the router tells those of one.
        matching = [r for r in request.app.state.routes if r.matches(request.scope)[0] != Match.NONE]
        headers = (
            {"Allow": ", ".join(sorted({m for r in matching for m in r.methods}))} if matching else headers
        )
    said = error.detail if error.detail != HTTPStatus(error.status_code).phrase else ""
    return problem(request.scope, error.status_code, said, headers=headers)


def _too_deep(request: Request, _error: RecursionError) -> JSONResponse:
    return problem(request.scope, 422, "what was sent is nested too deeply", code="E004")


def install(app: FastAPI, page: Callable[[Request, int, str], Response]) -> None:
    """Answer every error of the application this way; `workers.api.app.Envelope` does so for what is unforeseen.

    People get a `page` with the status and the detail instead.
    """

    def handled(told: Callable[[Request, Any], JSONResponse]) -> Callable[[Request, Exception], Response]:
        def answer(request: Request, error: Exception) -> Response:
            found = told(request, error)
            if "/console" not in request.url.path:
                return found
            shown = page(request, found.status_code, json.loads(bytes(found.body))["detail"])
            if "Retry-After" in found.headers:
                shown.headers["Retry-After"] = found.headers["Retry-After"]
            return shown

        return answer

    for kind, told in (
        (LarderError, _ours),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (RecursionError, _too_deep),
    ):
        app.add_exception_handler(kind, handled(told))
    plain = app.openapi

    def described() -> Json:
        found = plain()
        own = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        found["components"]["schemas"] |= {**own.pop("$defs"), "ProblemDetails": own}
        return found

    app.openapi = described  # type: ignore[method-assign]
