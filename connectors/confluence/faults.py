"""Errors of the Confluence client, translated into ours, with refusals told apart by their status."""

from __future__ import annotations

from typing import Any

from atlassian import errors as theirs

from connectors.confluence.options import PRODUCT
from connectors.web import FOREIGN, ServerFault, translate
from pipeline.errors import LarderError, SourceDenied, SourceUnavailable

SDK: tuple[type[Exception], ...] = (theirs.ApiError, theirs.JsonRPCError)
"""All that the client raises on its own; the rest of what comes out of it is `FOREIGN`."""

CATCH = (*FOREIGN, *SDK)

PERMISSION = "give the account permission to view these spaces, and permission to use Confluence"


class Refused(SourceDenied):
    """Confluence understood the request and will not answer it."""

    def __init__(self, message: str = "", *, status: int = 0, **more: Any) -> None:
        """`status` is the HTTP status; the rest as in LarderError."""
        super().__init__(message, **more)
        self.status = status


class Missing(SourceUnavailable):
    """There is nothing at this address, or nothing that this account may see."""


def ours(error: Exception) -> LarderError:
    """Our error for one of `CATCH`; texts of theirs hold what the service said and are left out."""
    if isinstance(error, theirs.ApiNotFoundError):
        return missing()
    if isinstance(error, theirs.ApiPermissionError):
        return refused(403)
    if isinstance(error, theirs.ApiError):
        reason = error.reason
        if isinstance(reason, FOREIGN):
            return translate(reason, PRODUCT)
        return refused(400)
    if isinstance(error, theirs.JsonRPCError):
        return refused(400)
    return translate(error, PRODUCT)


def by_status(status: int) -> LarderError:
    """What an answer other than 2xx means that the guarded session let pass."""
    return missing() if status == 404 else refused(status)  # noqa: PLR2004 (Not Found)


def missing() -> Missing:
    """The error for a 404 of the API itself."""
    fix = "check baseUrl; if single items are missing, they were removed or are hidden from this account"
    return Missing(f"{PRODUCT} answered 404", fix=fix)


def refused(status: int) -> Refused:
    """The error for a refusal with this status."""
    fix = _FIXES.get(status, "check baseUrl, deployment and the account's permissions")
    return Refused(f"{PRODUCT} answered {status}{_MEANING.get(status, '')}", fix=fix, status=status)


_MEANING = {
    400: ": it does not understand the search",
    403: ": not permitted",
    410: ": this part of its API is gone",
}
_FIXES = {
    400: "check spaceKeys, labels and ancestors for signs that are no part of a key",
    403: PERMISSION,
    410: "set deployment to cloud if this is Confluence Cloud, else update Larder",
}

__all__ = ["CATCH", "SDK", "Missing", "Refused", "ServerFault", "by_status", "missing", "ours", "refused"]
