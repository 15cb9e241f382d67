"""Errors of the azure-devops client library, translated into ours where they enter."""

from __future__ import annotations

import re
from typing import Any

from connectors.azure_devops.options import PRODUCT
from connectors.web import FOREIGN, translate
from connectors.web.faults import LASTS
from pipeline.errors import (
    ConfigurationError,
    DocumentRejected,
    LarderError,
    RateLimited,
    SourceDenied,
    SourceUnavailable,
)

LONGEST_MESSAGE = 300
BLOCKED_SECONDS = 30.0
TOKEN = "check auth.pat: the token may be wrong, expired or revoked"  # noqa: S105 (advice, no token)
SCOPE = (
    "give the token the scope Work Items (read), and its account the right to view the project's work items"
)
ADDRESS = "check organization: the name as in https://dev.azure.com/NAME, or the full address of a collection"
PROJECT = "check project: its name as the address shows it, and whether the token's account is a member"
VERSION = "use Azure DevOps Services, or a Server of version 2020 or newer"
_CODE = re.compile(r"\b(?:TF|VS)\d{4,7}\b")
_STATUS = re.compile(r"Operation returned a (\d{3}) status code")


class ItemMissing(DocumentRejected):
    """The item does not exist, is deleted, or may not be read: the service does not say which."""


class TooManyHits(ConfigurationError):
    """A query hits more items than the service lists."""


class QueryRefused(ConfigurationError):
    """The service does not take a query."""


class ProjectMissing(SourceDenied):
    """There is no such project, or the account may not see it."""


class Refused(SourceDenied):
    """The service refuses a request for a reason of its own."""


Row = tuple[type[LarderError], str, str]
"""Our error, what was found, what to do."""

KEYS: dict[str, Row] = {
    "WorkItemUnauthorizedAccessException": (ItemMissing, "does not show the item", SCOPE),
    "WorkItemNotFoundException": (ItemMissing, "does not know the item", SCOPE),
    "WorkItemTrackingQueryResultSizeLimitExceededException": (
        TooManyHits,
        "finds more items than it lists",
        "narrow the selection",
    ),
    "RequestBlockedException": (RateLimited, "asks to come back later", "nothing to do: it is tried again"),
    "ProjectDoesNotExistWithNameException": (ProjectMissing, "does not know the project", PROJECT),
    "ProjectDoesNotExistException": (ProjectMissing, "does not know the project", PROJECT),
    "VssInvalidPreviewVersionException": (Refused, "does not offer this version of its interface", VERSION),
    "VssVersionOutOfRangeException": (Refused, "does not offer this version of its interface", VERSION),
    "UnauthorizedRequestException": (SourceDenied, "does not let this token do it", SCOPE),
    "AccessCheckException": (SourceDenied, "does not let this account do it", SCOPE),
    "UnauthorizedAccessException": (SourceDenied, "does not let this account do it", SCOPE),
}
"""By `type_key`: the library drops the HTTP status."""

_REFUSED: Row = (
    Refused,
    "refuses the request",
    "look up the code; check organization, project and the settings",
)
_BROKEN: Row = (SourceUnavailable, "gave an answer that cannot be read", LASTS)
_BROKE: Row = (SourceUnavailable, "could not be asked", LASTS)
_CREDENTIALS: Row = (SourceDenied, "does not accept the credentials", TOKEN)

CLASSES: dict[str, Row] = {
    "azure.devops.exceptions.AzureDevOpsClientError": _BROKE,
    "azure.devops.exceptions.AzureDevOpsAuthenticationError": _CREDENTIALS,
    "azure.devops.exceptions.AzureDevOpsClientRequestError": _REFUSED,
    "azure.devops.exceptions.AzureDevOpsServiceError": _REFUSED,
    "msrest.exceptions.AuthenticationError": _CREDENTIALS,
    "msrest.exceptions.TokenExpiredError": _CREDENTIALS,
    "msrest.exceptions.ClientRequestError": _BROKE,
    "msrest.exceptions.ClientException": _BROKE,
    "msrest.exceptions.HttpOperationError": _BROKE,
    "msrest.exceptions.ValidationError": _REFUSED,
    "azure.core.exceptions.DeserializationError": _BROKEN,
    "azure.core.exceptions.SerializationError": _REFUSED,
    "json.decoder.JSONDecodeError": _BROKEN,
    "builtins.ValueError": _BROKEN,
    "builtins.AttributeError": _BROKEN,  # the library walks into an answer of another shape
    "builtins.TypeError": _BROKEN,
    "builtins.LookupError": _BROKEN,
}
"""By class name, so that the library needs no import here; the nearest base class counts."""


def translated(error: Exception, doing: str) -> LarderError:
    """Our error for whatever a call of the library raised; `doing` tells what was asked for.

    The original is not kept as the cause: it cannot be pickled, and its text may hold addresses and answers.
    """
    if isinstance(error, LarderError):
        return error
    for cause in (error, getattr(error, "inner_exception", None)):
        if isinstance(cause, FOREIGN):
            return translate(cause, PRODUCT)
    return _made(_row(error), error, doing)


def _row(error: Exception) -> Row:
    key = getattr(error, "type_key", None)
    text = str(error)
    if key in KEYS:
        return KEYS[key]
    if key is not None and ("Query" in key or text.startswith("TF51")):
        return (QueryRefused, "does not take the query", "check wiql, areaPaths, states and workItemTypes")
    if "is not registered on" in text or _STATUS.search(text):
        return _by_status(text)
    if "Cannot deserialize content-type" in text:  # a sign-in page, as the library sees it
        return _CREDENTIALS
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    return next((CLASSES[name] for name in names if name in CLASSES), _BROKEN)


def _by_status(text: str) -> Row:
    """For an answer without an error object in it: another server, or a gateway."""
    status = _STATUS.search(text)
    if status and status[1] in {"401", "403"}:
        return (SourceDenied, f"answered {status[1]}", f"{TOKEN}; {SCOPE}")
    if status and status[1] not in {"400", "404", "405", "410"}:
        return (SourceUnavailable, f"answered {status[1]}", LASTS)
    return (Refused, "does not offer work items at this address", ADDRESS)


def _made(row: Row, error: Exception, doing: str) -> LarderError:
    kind, found, fix = row
    said = f"{PRODUCT} {found} ({doing})"
    more: dict[str, Any] = {"retry_after": BLOCKED_SECONDS} if kind is RateLimited else {}
    if kind is QueryRefused:  # tells where the query is wrong; holds nothing but the query
        said += f": {' '.join(str(error).split())[:LONGEST_MESSAGE]}"
    elif code := _CODE.search(str(error)):
        said += f": {code[0]}"
    elif kind is Refused and getattr(error, "type_key", None):
        said += f": {str(getattr(error, 'type_key', ''))[:80]}"
    return kind(said, fix=fix, **more)
