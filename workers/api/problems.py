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
"""Class of an error -> status; others are 503 if transient, else 500."""
SERVER_ERROR = 500


class FieldProblem(BaseModel):
    """One wrong field of a request."""

    field: str = Field(examples=["body.query_text"])
    problem: str = Field(examples=["String should have at least 1 character"])


class ProblemDetails(BaseModel):
    """Problem details of an error (RFC 9457)."""

    type: str = Field(examples=["about:blank"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["there is no such project"])
    instance: str = Field(examples=["/api/v1/rag/query"])
    request_id: str = Field(description="Also in the log.", examples=["5f1c9f0e2b7d4a06"])
    code: str | None = Field(default=None, description="E001 to E005.", examples=["E004"])
    errors: list[FieldProblem] | None = Field(default=None, description="Wrong fields; 422 only.")


def problem(
    scope: Mapping[str, Any],
    status: int,
    detail: str = "",
    *,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
    errors: Sequence[Json] | None = None,
) -> JSONResponse:
    """A response with problem details; empty fields are left out."""
    details = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail or HTTPStatus(status).description or HTTPStatus(status).phrase,
        "instance": str(scope.get("path", "")),
        "request_id": scope.get("state", {}).get("request_id", ""),
        **{key: value for key, value in (("code", code), ("errors", errors)) if value},
    }
    return JSONResponse(details, status, dict(headers or {}), MEDIA_TYPE)


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Error responses of a route for the OpenAPI description."""
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in sorted({400, 401, 403, 413, 422, 429, 500, 503, *statuses})
    }


def message_for_callers(error: LarderError) -> str:
    """The message of an error without advice for operators, which may name folders.

    Database errors end at their colon, since roles and tables follow it.
    """
    return error.message.partition(": ")[0] if isinstance(error, StoreError) else error.message


def _without_advice(error: LarderError, status: int) -> str:
    detail = message_for_callers(error)
    if detail != error.message:
        logger.warning("answered with %d: %s", status, error.message)
    return detail


def _larder_error(request: Request, error: Any) -> JSONResponse:
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
    errors = [{"field": _field_path(e["loc"]), "problem": str(e["msg"])} for e in error.errors()[:20]]
    return problem(request.scope, 422, "the request is wrong: see errors", code="E004", errors=errors)


def _field_path(location: Iterable[Any]) -> str:
    # Unknown keys come from the caller and may be long.
    return ".".join(str(part)[:40] for part in location)


def _http(request: Request, error: Any) -> JSONResponse:
    if isinstance(error.__cause__, LarderError):  # raised while the body was read
        return _larder_error(request, error.__cause__)
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Methods of all handlers of the address; the router names those of one handler.
        matching = [r for r in request.app.state.routes if r.matches(request.scope)[0] != Match.NONE]
        headers = (
            {"Allow": ", ".join(sorted({m for r in matching for m in r.methods}))} if matching else headers
        )
    detail = error.detail if error.detail != HTTPStatus(error.status_code).phrase else ""
    return problem(request.scope, error.status_code, detail, headers=headers)


def _too_deep(request: Request, _error: RecursionError) -> JSONResponse:
    return problem(request.scope, 422, "the request is nested too deeply", code="E004")


def install(app: FastAPI, page: Callable[[Request, int, str], Response]) -> None:
    """Answer all errors with problem details; `workers.api.app.Envelope` handles unexpected ones.

    The console renders a `page` with status and detail instead.
    """

    def handled(
        to_response: Callable[[Request, Any], JSONResponse],
    ) -> Callable[[Request, Exception], Response]:
        def answer(request: Request, error: Exception) -> Response:
            response = to_response(request, error)
            if "/console" not in request.url.path:
                return response
            html = page(request, response.status_code, json.loads(bytes(response.body))["detail"])
            if "Retry-After" in response.headers:
                html.headers["Retry-After"] = response.headers["Retry-After"]
            return html

        return answer

    for kind, to_response in (
        (LarderError, _larder_error),
        (RequestValidationError, _invalid),
        (HTTPException, _http),
        (RecursionError, _too_deep),
    ):
        app.add_exception_handler(kind, handled(to_response))
    plain = app.openapi

    def described() -> Json:
        description = plain()
        schema = ProblemDetails.model_json_schema(ref_template="#/components/schemas/{model}")
        description["components"]["schemas"] |= {**schema.pop("$defs"), "ProblemDetails": schema}
        return description

    app.openapi = described  # type: ignore[method-assign]
