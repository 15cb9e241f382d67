"""The azure-devops client library on the guarded session, without disk cache, retries and proxies; its errors."""

from __future__ import annotations

import logging
import re
import sys
import time
import types
import uuid
from collections import defaultdict
from functools import lru_cache
from typing import Any

from connectors.azure_devops.options import PRODUCT
from connectors.web.answers import FOREIGN, LASTS, BadAnswer, translate
from connectors.web.session import Access, guard
from pipeline.errors import (
    ConfigurationError,
    DocumentRejected,
    LarderError,
    RateLimited,
    SourceDenied,
)


def _load() -> Any:
    """Import the library's module of connections.

    The import creates a folder in the user's home, which may be read-only, and its cache there is shared by
    all processes without a lock. A module in place of that cache avoids any access to the disk.
    """
    name = "azure.devops._file_cache"
    if name not in sys.modules:
        replacement = types.ModuleType(name)
        vars(replacement).update(
            OPTIONS_CACHE=defaultdict(type(None)), RESOURCE_CACHE=defaultdict(type(None))
        )
        sys.modules[name] = replacement
    from azure.devops import connection

    for logger in ("azure.devops", "msrest"):  # both log whole answers when debugging
        logging.getLogger(logger).setLevel(logging.INFO)
    return connection


def sdk_models() -> Any:
    """The library's module of request and answer classes for work items."""
    _load()  # any other import of the library first would load its disk cache
    from azure.devops.v7_1.work_item_tracking import models

    return models


@lru_cache(maxsize=1)
def _routes(_hour: int) -> dict[str, Any]:
    """Cache of the routes of servers, renewed every hour; the library would keep them until the process ends."""
    return {}


def open_library(base_url: str, pat: str, access: Access) -> Any:
    """The library's client of work items for `base_url`, not thread-safe; nothing is sent yet.

    Raises:
        ConfigurationError: there is no token.
    """
    if not pat.strip():
        raise ConfigurationError(
            f"there is no token for {PRODUCT}", fix="set auth.pat to a personal access token (AZURE_PAT)"
        )
    library = _load()
    from azure.devops import client as sdk_client
    from msrest.authentication import BasicAuthentication
    from msrest.universal_http.requests import ClientRetryPolicy

    # Each client looks up a thousand codes in it, which takes 5 ms in a list.
    ClientRetryPolicy.safe_codes = frozenset(ClientRetryPolicy.safe_codes)  # type: ignore[assignment]
    routes = _routes(int(time.monotonic() // 3600))
    for url in [url for url, locations in routes.items() if not locations]:
        del routes[url]  # an empty answer may be incomplete
    sdk_client.Client._locations_cache = routes  # noqa: SLF001 (there is no public way)
    sdk_client.OPTIONS_FILE_CACHE.clear()

    class Credentials(BasicAuthentication):
        """Credentials that also mount the guarded adapter, because the library signs each session."""

        def signed_session(self, session: Any = None) -> Any:
            signed = super().signed_session(session)
            guard(signed, access)
            return signed

    connection = library.Connection(base_url=base_url, creds=Credentials("", pat.strip()))
    # The areas name the hosts of the services; no other host may be contacted anyway.
    connection._resource_areas = []  # noqa: SLF001 (spares the request)
    client = connection.clients_v7_1.get_work_item_tracking_client()
    client.config.proxies.use_env_settings = False
    client.config.retry_policy.retries = 0
    client.config.keep_alive = True
    # Otherwise the library sends the last session id of any server to all servers.
    client.config.additional_headers["X-TFS-Session"] = str(uuid.uuid4())
    return client


# -- errors ----------------------------------------------------------------------------------------------

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


class WorkItemMissing(DocumentRejected):
    """The item does not exist, is deleted, or may not be read; the service does not distinguish these."""


class TooManyHits(ConfigurationError):
    """A query has more hits than the service lists."""


class WiqlRefused(ConfigurationError):
    """The service rejects a query."""


class ProjectMissing(SourceDenied):
    """There is no such project, or the account may not see it."""


class BoardsRefused(SourceDenied):
    """The service refuses a request for another reason."""


Row = tuple[type[LarderError], str, str]
"""Class of the error, description, advice."""

_CREDENTIALS: Row = (SourceDenied, "does not accept the credentials", TOKEN)
_UNUSABLE: Row = (BadAnswer, "could not be reached, or gave an answer that cannot be read", LASTS)
_MEANINGS: dict[Row, tuple[str, ...]] = {
    (WorkItemMissing, "does not show the item", SCOPE): (
        "WorkItemUnauthorizedAccessException", "WorkItemNotFoundException",
    ),
    (TooManyHits, "has more hits than it lists", "narrow the selection"): (
        "WorkItemTrackingQueryResultSizeLimitExceededException",
    ),
    (RateLimited, "asks for a pause", "nothing to do: it is tried again"): ("RequestBlockedException",),
    (ProjectMissing, "does not know the project", PROJECT): (
        "ProjectDoesNotExistWithNameException", "ProjectDoesNotExistException",
    ),
    (BoardsRefused, "does not offer this version of its interface", VERSION): (
        "VssInvalidPreviewVersionException", "VssVersionOutOfRangeException",
    ),
    (SourceDenied, "does not permit this to the account or token", SCOPE): (
        "UnauthorizedRequestException", "AccessCheckException", "UnauthorizedAccessException",
    ),
    _CREDENTIALS: (
        "azure.devops.exceptions.AzureDevOpsAuthenticationError", "msrest.exceptions.AuthenticationError",
        "msrest.exceptions.TokenExpiredError",
    ),
    (BoardsRefused, "refuses the request", "look up the code; check organization, project and the settings"): (
        "azure.devops.exceptions.AzureDevOpsClientRequestError",
        "azure.devops.exceptions.AzureDevOpsServiceError", "msrest.exceptions.ValidationError",
        "azure.core.exceptions.SerializationError",
    ),
    _UNUSABLE: (
        "azure.devops.exceptions.AzureDevOpsClientError", "msrest.exceptions.ClientRequestError",
        "msrest.exceptions.ClientException", "msrest.exceptions.HttpOperationError",
        "azure.core.exceptions.DeserializationError", "json.decoder.JSONDecodeError",
    ),
}  # fmt: skip
FOREIGN_ERRORS = {name: row for row, names in _MEANINGS.items() for name in names}
"""`type_key` or class name of a library's error -> class, description and advice; the nearest base class counts.

The library drops the HTTP status, and names need no import of it. Other errors, such as a TypeError, are caused by
answers in an unknown format."""


def translated(error: Exception, doing: str) -> LarderError:
    """Translate any error of a call of the library to a LarderError; `doing` is the request, for the message.

    The original is not kept as the cause: it cannot be pickled, and its text may hold addresses and answers.
    """
    if isinstance(error, LarderError):
        return error
    for cause in (error, getattr(error, "inner_exception", None)):
        if isinstance(cause, FOREIGN):
            return translate(cause, PRODUCT)
    kind, description, fix = _row(error)
    message = f"{PRODUCT} {description} ({doing})"
    if kind is WiqlRefused:  # the text names the error in the query, and quotes nothing else
        message += f": {' '.join(str(error).split())[:LONGEST_MESSAGE]}"
    elif code := _CODE.search(str(error)):
        message += f": {code[0]}"
    elif kind is BoardsRefused and (key := getattr(error, "type_key", None)):
        message += f": {str(key)[:80]}"
    return kind(message, fix=fix, retry_after=BLOCKED_SECONDS if kind is RateLimited else None)


def _row(error: Exception) -> Row:
    key, text = getattr(error, "type_key", None), str(error)
    if key in FOREIGN_ERRORS:
        return FOREIGN_ERRORS[key]
    if key is not None and ("Query" in key or text.startswith("TF51")):
        return (WiqlRefused, "does not accept the query", "check wiql, areaPaths, states and workItemTypes")
    if (status := _STATUS.search(text)) or "is not registered on" in text:
        return _row_of_status(status[1] if status else "404")
    if "Cannot deserialize content-type" in text:  # a sign-in page, as the library sees it
        return _CREDENTIALS
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    return next(filter(None, map(FOREIGN_ERRORS.get, names)), _UNUSABLE)


def _row_of_status(code: str) -> Row:
    """Error of an answer without an error object, from another server or a gateway."""
    if code in {"401", "403"}:
        return (SourceDenied, f"answered {code}", f"{TOKEN}; {SCOPE}")
    if code in {"400", "404", "405", "410"}:
        return (BoardsRefused, "does not offer work items at this address", ADDRESS)
    return (BadAnswer, f"answered {code}", LASTS)
