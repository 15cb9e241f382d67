"""Gemini through google-genai: a client that keeps its time, and its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    TextRejected,
)
from pipeline.retry_after import duration, retry_after

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError

PUBLIC = "https://generativelanguage.googleapis.com"
DAY_QUOTA_PAUSE = 3600.0
"""Seconds to stay away when a day's quota is spent: whose midnight ends the day is not told."""
LONGEST_PAUSE = 86_400.0

_KEY_REASONS = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED"})


@dataclass(frozen=True, kw_only=True)
class _Meaning:
    """What a status is for us."""

    error: type[EmbeddingError]
    says: str
    fix: str = ""


_BAD_KEY = _Meaning(
    error=EmbedderRefused, says="the key is refused", fix="check {section}.apiKey and what it may do"
)
_BAD_PLAN = _Meaning(
    error=EmbedderRefused,
    says="not with this account or from this place",
    fix="check the plan behind {section}.apiKey",
)
_BAD_MODEL = _Meaning(
    error=EmbedderRefused, says="there is no such model, or no longer", fix="check {section}.model"
)
_REDIRECT = _Meaning(
    error=EmbedderRefused, says="this is not Gemini's address", fix="check {section}.baseUrl"
)
_BAD_TEXT = _Meaning(error=TextRejected, says="it refuses what was sent")
_BUSY = _Meaning(error=EmbedderUnavailable, says="it is down or busy")
_TOO_MANY = _Meaning(error=EmbedderUnavailable, says="too many calls")
_DAY_IS_SPENT = _Meaning(
    error=EmbedderUnavailable,
    says="the quota of the day is spent",
    fix="wait for tomorrow, or raise the quota",
)
_MEANINGS: Mapping[int, _Meaning] = {
    400: _BAD_TEXT,
    401: _BAD_KEY,
    403: _BAD_KEY,
    404: _BAD_MODEL,
    405: _REDIRECT,
    413: _BAD_TEXT,
    429: _TOO_MANY,
}
"""Status -> what it means; any other in the three hundreds is a redirect, and the rest passes."""
_REDIRECTS = 3


def open_client(api_key: str, base_url: str = "", timeout_seconds: float = 30.0) -> Client:
    """A client for one process, opened after the fork and kept: one that is let go is closed under its calls.

    It takes nothing from the environment, follows no redirect, goes through no proxy, tries once, and gives up a
    call after `timeout_seconds`.

    Raises:
        ConfigurationError: no key, or one that cannot be sent.
    """
    from google import genai

    from pipeline.embedding.deadline_transport import Timely

    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            "the key for Gemini is empty" if not key else "the key for Gemini holds characters no key has",
            fix="set apiKey, by a variable such as ${GEMINI_API_KEY}",
        )
    # Given as arguments, the client is the library's own, which closes it.
    http = {"transport": Timely(), "trust_env": False, "follow_redirects": False}
    options = genai.types.HttpOptions(
        base_url=base_url or PUBLIC, timeout=milliseconds(timeout_seconds), client_args=http
    )
    return genai.Client(vertexai=False, api_key=key, http_options=options)


def milliseconds(seconds: float) -> int:
    """What `http_options.timeout` wants; never 0, which would mean to wait for ever."""
    return max(1, round(seconds * 1000))


@contextmanager
def translating(section: str) -> Iterator[None]:
    """Put around one call of the client: its errors leave as ours. `section` as in `translated`."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 (what is not the client's goes on as it is)
        raise translated(error, section) from None


def translated(error: Exception, section: str) -> EmbeddingError:
    """What an error of the client means to us, told without any of its words: they may hold a text or the key.

    `section` is the part of the configuration to look at, such as `embedding`.

    Raises:
        Exception: `error` itself, if it is none of the client's, such as a time limit of the caller.
    """
    import httpx2
    from google.genai import errors

    name = type(error).__name__
    if isinstance(error, errors.APIError):
        return _answered(error, section)
    if isinstance(error, httpx2.TimeoutException):
        return EmbedderUnavailable(
            f"Gemini did not answer in time ({name})", fix=f"or raise {section}.timeout"
        )
    if isinstance(error, httpx2.InvalidURL):
        return EmbedderRefused("the address of Gemini is none", fix=f"correct {section}.baseUrl")
    if isinstance(error, httpx2.HTTPError | httpx2.StreamError | httpx2.CookieConflict):
        return EmbedderUnavailable(f"the connection to Gemini failed ({name})")
    shapes = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
    broken = (*shapes, errors.ContinuationInterruptedError)
    if isinstance(error, broken):
        # The client takes the shape of an answer for granted.
        return EmbedderUnavailable(f"Gemini's answer cannot be read ({name})")
    raise error


def _answered(error: APIError, section: str) -> EmbeddingError:
    """By the status of the answer, and what its details say."""
    code = error.code if isinstance(error.code, int) else 0
    status, details = _status(error), _details(error)
    meaning = _MEANINGS.get(code, _REDIRECT if code // 100 == _REDIRECTS else _BUSY)
    if _KEY_REASONS & {str(d.get("reason")) for d in details}:
        meaning = _BAD_KEY
    elif meaning is _BAD_TEXT and status == "FAILED_PRECONDITION":
        meaning = _BAD_PLAN
    pause = _retry_after(error, details) if meaning.error is EmbedderUnavailable else None
    if meaning is _TOO_MANY and _is_of_the_day(details):
        meaning, pause = _DAY_IS_SPENT, DAY_QUOTA_PAUSE
    return meaning.error(
        " ".join(part for part in (f"Gemini answers {code}", status) if part) + f": {meaning.says}",
        fix=meaning.fix.format(section=section),
        retry_after=pause,
    )


def _is_of_the_day(details: list[Mapping[str, Any]]) -> bool:
    """True if a quota that was passed is one of the day."""
    violations = (violation for d in details for violation in _mappings(d.get("violations")))
    return any("perday" in str(violation.get("quotaId")).lower() for violation in violations)


def _retry_after(error: APIError, details: list[Mapping[str, Any]]) -> float | None:
    """Seconds that the answer asks to wait, in its body or its header; None if it does not say."""
    delays = [wait for d in details if (wait := duration(str(d.get("retryDelay")))) is not None]
    wait = delays[0] if delays else retry_after(getattr(error.response, "headers", None) or {})
    return None if wait is None else min(max(wait, 0.0), LONGEST_PAUSE)


def _status(error: APIError) -> str:
    """Its status, if it is one of Google's words and not somebody's sentence."""
    status = error.status
    return status if isinstance(status, str) and re.fullmatch(r"[A-Z_]{2,40}", status) else ""


def _details(error: APIError) -> list[Mapping[str, Any]]:
    body = error.details if isinstance(error.details, Mapping) else {}
    inner = body.get("error", body)
    listed = inner.get("details") if isinstance(inner, Mapping) else None
    return _mappings(listed)


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    """The objects of a list; of anything else, none."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []
