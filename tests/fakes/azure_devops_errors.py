"""Refusals of a pretended Azure DevOps, worded and keyed as the service does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class Refusal(Exception):
    """An answer that is an error; `json` is what the service says of it."""

    def __init__(
        self, status: int, type_key: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type_key = type_key
        self.message = message
        self.headers = dict(headers or {})

    @property
    def json(self) -> dict[str, Any]:
        return error_json(self.type_key, self.message)


def error_json(type_key: str, message: str) -> dict[str, Any]:
    """The body of every JSON error."""
    return {
        "$id": "1",
        "innerException": None,
        "message": message,
        "typeName": f"Microsoft.TeamFoundation.Server.{type_key}, Microsoft.TeamFoundation.Server",
        "typeKey": type_key,
        "errorCode": 0,
        "eventId": 3000,
    }


def bad_request(message: str, type_key: str = "VssPropertyValidationException") -> Refusal:
    return Refusal(400, type_key, message)


def bad_query(message: str, cause: str = "") -> Refusal:
    """A WIQL text the service does not take."""
    tail = f" The error is caused by «{cause}»." if cause else ""
    return Refusal(400, "WorkItemTrackingQueryException", message + tail)


def too_many(limit: int) -> Refusal:
    return Refusal(
        400,
        "WorkItemTrackingQueryResultSizeLimitExceededException",
        f"VS402337: The number of work items returned exceeds the size limit of {limit}. "
        "Change the query to return fewer items.",
    )


def no_item(item_id: object) -> Refusal:
    """Missing, deleted or forbidden: the service does not say which."""
    return Refusal(
        404,
        "WorkItemUnauthorizedAccessException",
        f"TF401232: Work item {item_id} does not exist, or you do not have permissions to read it.",
    )


def no_project(name: str) -> Refusal:
    if len(name) == 36 and name.count("-") == 4:
        text = f"VS800075: The project with id '{name}' does not exist, or you do not have permission to access it."
        return Refusal(404, "ProjectDoesNotExistException", text)
    return Refusal(
        404,
        "ProjectDoesNotExistWithNameException",
        f"TF200016: The following project does not exist: {name}. Verify that the name of the project is correct "
        "and that the project exists on the specified Azure DevOps Server.",
    )


def throttled(headers: Mapping[str, str] | None = None) -> Refusal:
    return Refusal(
        429,
        "RequestBlockedException",
        "TF400733: The request has been canceled: Request was blocked due to exceeding usage of resource "
        "'Concurrency' in namespace 'User'.",
        headers,
    )


def not_allowed() -> Refusal:
    """The token is good and lacks the scope."""
    return Refusal(
        401,
        "UnauthorizedRequestException",
        "TF400813: The user 'aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa' is not authorized to access this resource.",
    )
