"""The azure-devops client library: without its disk cache, retries and proxies, on our guarded session; its errors."""

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
    """The library's module of connections.

    Importing it makes a folder in the user's home, which may be read-only, and its cache there is shared by
    all processes without a lock. With a module of ours in the place of that cache nothing touches the disk.
    """
    name = "azure.devops._file_cache"
    if name not in sys.modules:
        stand_in = types.ModuleType(name)
        vars(stand_in).update(OPTIONS_CACHE=defaultdict(type(None)), RESOURCE_CACHE=defaultdict(type(None)))
        sys.modules[name] = stand_in
    from azure.devops import connection

    for logger in ("azure.devops", "msrest"):  # both log whole answers when debugging
        logging.getLogger(logger).setLevel(logging.INFO)
    return connection


def sdk_models() -> Any:
    """The library's module of request and answer classes for work items."""
    _load()  # importing anything of the library first would bring its cache on disk
    from azure.devops.v7_1.work_item_tracking import models

    return models


@lru_cache(maxsize=1)
def _routes(_hour: int) -> dict[str, Any]:
    """The routes of servers, asked for anew every hour: the library would keep them until the process ends."""
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
    from azure.devops import client as theirs
    from msrest.authentication import BasicAuthentication
    from msrest.universal_http.requests import ClientRetryPolicy

    # Each client looks up a thousand codes in them: 5 ms in a list.
    ClientRetryPolicy.safe_codes = frozenset(ClientRetryPolicy.safe_codes)  # type: ignore[assignment]
    routes = _routes(int(time.monotonic() // 3600))
    for url in [url for url, found in routes.items() if not found]:
        del routes[url]  # an empty answer may be a broken one
    theirs.Client._locations_cache = routes  # noqa: SLF001 (there is no public way)
    theirs.OPTIONS_FILE_CACHE.clear()

    class Credentials(BasicAuthentication):
        """The library signs each session, which is when our adapter is mounted."""

        def signed_session(self, session: Any = None) -> Any:
            signed = super().signed_session(session)
            guard(signed, access)
            return signed

    connection = library.Connection(base_url=base_url, creds=Credentials("", pat.strip()))
    # The areas would tell on which hosts to find the services; no other host may be asked anyway.
    connection._resource_areas = []  # noqa: SLF001 (spares the request)
    client = connection.clients_v7_1.get_work_item_tracking_client()
    client.config.proxies.use_env_settings = False
    client.config.retry_policy.retries = 0
    client.config.keep_alive = True
    # Else the library sends one session id, the last that any server answered with, to all servers.
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
    """The item does not exist, is deleted, or may not be read: the service does not say which."""


class TooManyHits(ConfigurationError):
    """A query hits more items than the service lists."""


class WiqlRefused(ConfigurationError):
    """The service does not take a query."""


class ProjectMissing(SourceDenied):
    """There is no such project, or the account may not see it."""


class BoardsRefused(SourceDenied):
    """The service refuses a request for a reason of its own."""


Row = tuple[type[LarderError], str, str]
"""Our error, what was found, what to do."""

_CREDENTIALS: Row = (SourceDenied, "does not accept the credentials", TOKEN)
_BROKEN: Row = (BadAnswer, "could not be asked, or gave an answer that cannot be read", LASTS)
_MEANINGS: dict[Row, tuple[str, ...]] = {
    (WorkItemMissing, "does not show the item", SCOPE): (
        "WorkItemUnauthorizedAccessException", "WorkItemNotFoundException",
    ),
    (TooManyHits, "finds more items than it lists", "narrow the selection"): (
        "WorkItemTrackingQueryResultSizeLimitExceededException",
    ),
    (RateLimited, "asks to come back later", "nothing to do: it is tried again"): ("RequestBlockedException",),
    (ProjectMissing, "does not know the project", PROJECT): (
        "ProjectDoesNotExistWithNameException", "ProjectDoesNotExistException",
    ),
    (BoardsRefused, "does not offer this version of its interface", VERSION): (
        "VssInvalidPreviewVersionException", "VssVersionOutOfRangeException",
    ),
    (SourceDenied, "does not let this account or token do it", SCOPE): (
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
    _BROKEN: (
        "azure.devops.exceptions.AzureDevOpsClientError", "msrest.exceptions.ClientRequestError",
        "msrest.exceptions.ClientException", "msrest.exceptions.HttpOperationError",
        "azure.core.exceptions.DeserializationError", "json.decoder.JSONDecodeError",
    ),
}  # fmt: skip
FOREIGN_ERRORS = {name: row for row, names in _MEANINGS.items() for name in names}
"""What an error of the library means: by its `type_key`, since the library drops the HTTP status, or by its class,
whose nearest base class counts. Names, so that the library needs no import here. Others, such as a TypeError, come of
an answer of another shape, which the library walks into."""


def translated(error: Exception, doing: str) -> LarderError:
    """Our error for whatever a call of the library raised; `doing` tells what was asked for.

    The original is not kept as the cause: it cannot be pickled, and its text may hold addresses and answers.
    """
    if isinstance(error, LarderError):
        return error
    for cause in (error, getattr(error, "inner_exception", None)):
        if isinstance(cause, FOREIGN):
            return translate(cause, PRODUCT)
    kind, found, fix = _row(error)
    said = f"{PRODUCT} {found} ({doing})"
    if kind is WiqlRefused:  # tells where the query is wrong; holds nothing but the query
        said += f": {' '.join(str(error).split())[:LONGEST_MESSAGE]}"
    elif code := _CODE.search(str(error)):
        said += f": {code[0]}"
    elif kind is BoardsRefused and (key := getattr(error, "type_key", None)):
        said += f": {str(key)[:80]}"
    return kind(said, fix=fix, retry_after=BLOCKED_SECONDS if kind is RateLimited else None)


def _row(error: Exception) -> Row:
    key, text = getattr(error, "type_key", None), str(error)
    if key in FOREIGN_ERRORS:
        return FOREIGN_ERRORS[key]
    if key is not None and ("Query" in key or text.startswith("TF51")):
        return (WiqlRefused, "does not take the query", "check wiql, areaPaths, states and workItemTypes")
    if (status := _STATUS.search(text)) or "is not registered on" in text:
        return _answered(status[1] if status else "404")
    if "Cannot deserialize content-type" in text:  # a sign-in page, as the library sees it
        return _CREDENTIALS
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    return next(filter(None, map(FOREIGN_ERRORS.get, names)), _BROKEN)


def _answered(code: str) -> Row:
    """What an answer without an error object in it means: it is of another server, or of a gateway."""
    if code in {"401", "403"}:
        return (SourceDenied, f"answered {code}", f"{TOKEN}; {SCOPE}")
    if code in {"400", "404", "405", "410"}:
        return (BoardsRefused, "does not offer work items at this address", ADDRESS)
    return (BadAnswer, f"answered {code}", LASTS)
