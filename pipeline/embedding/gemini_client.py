"""Gemini through google-genai: a client that keeps its time, and its errors in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    TextRejected,
)
from pipeline.errors.retry_after import duration, retry_after

if TYPE_CHECKING:
    from google.genai import Client
    from google.genai.errors import APIError

PUBLIC = "https://generativelanguage.googleapis.com"
DAY_QUOTA_PAUSE = 3600.0
"""Seconds to stay away when a day's quota is spent: whose midnight ends the day is not told."""
LONGEST_PAUSE = 86_400.0

_KEY_REASONS = frozenset({"API_KEY_INVALID", "API_KEY_EXPIRED", "API_KEY_SERVICE_BLOCKED"})


Row = tuple[type[EmbeddingError], str, str]
_KEY: Row = (EmbedderRefused, "the key is refused", "check {section}.apiKey and what it may do")
_PLAN: Row = (
    EmbedderRefused,
    "not with this account or from this place",
    "check the plan behind {section}.apiKey",
)
_REDIRECT: Row = (EmbedderRefused, "this is not Gemini's address", "check {section}.baseUrl")
_BAD_TEXT: Row = (TextRejected, "it refuses what was sent", "")
_BUSY: Row = (EmbedderUnavailable, "it is down or busy", "")
_TOO_MANY: Row = (EmbedderUnavailable, "too many calls", "")
_DAY_IS_SPENT: Row = (
    EmbedderUnavailable,
    "the quota of the day is spent",
    "wait for tomorrow, or raise the quota",
)
_STATUS: Mapping[int, Row] = {
    400: _BAD_TEXT,
    401: _KEY,
    403: _KEY,
    404: (EmbedderRefused, "there is no such model, or no longer", "check {section}.model"),
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

    from pipeline.embedding.http_client import DeadlineTransport

    key = api_key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            "the key for Gemini is empty" if not key else "the key for Gemini holds characters no key has",
            fix="set apiKey, by a variable such as ${GEMINI_API_KEY}",
        )
    # Given as arguments, the client is the library's own, which closes it.
    http = {"transport": DeadlineTransport(), "trust_env": False, "follow_redirects": False}
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
    from google.genai import errors

    from pipeline.embedding import http_client

    if isinstance(error, errors.APIError):
        return _answered(error, section)
    if isinstance(error, http_client.FOREIGN):
        return http_client.translated(error, "Gemini", section)
    shapes = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
    if isinstance(error, (*shapes, errors.ContinuationInterruptedError)):
        # The client takes the shape of an answer for granted.
        return EmbedderUnavailable(f"Gemini's answer cannot be read ({type(error).__name__})")
    raise error


def _answered(error: APIError, section: str) -> EmbeddingError:
    """By the status of the answer, and what its details say."""
    code = error.code if isinstance(error.code, int) else 0
    status, details = _status(error), _details(error)
    meaning = _STATUS.get(code, _REDIRECT if code // 100 == _REDIRECTS else _BUSY)
    if _KEY_REASONS & {str(d.get("reason")) for d in details}:
        meaning = _KEY
    elif meaning is _BAD_TEXT and status == "FAILED_PRECONDITION":
        meaning = _PLAN
    pause = _pause(error, details) if meaning[0] is EmbedderUnavailable else None
    if meaning is _TOO_MANY and _is_of_the_day(details):
        meaning, pause = _DAY_IS_SPENT, DAY_QUOTA_PAUSE
    kind, says, fix = meaning
    said = f"Gemini answers {code} {status}".rstrip()
    return kind(f"{said}: {says}", fix=fix.format(section=section), retry_after=pause)


def _is_of_the_day(details: list[Mapping[str, Any]]) -> bool:
    """True if a quota that was passed is one of the day."""
    violations = (violation for d in details for violation in _mappings(d.get("violations")))
    return any("perday" in str(violation.get("quotaId")).lower() for violation in violations)


def _pause(error: APIError, details: list[Mapping[str, Any]]) -> float | None:
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
