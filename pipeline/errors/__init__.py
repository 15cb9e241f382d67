"""Every error of ours, each with its code and its mark: may work later, or will not.

    LarderError
    |- ConfigurationError              E005  permanent   a key, a file or a variable is wrong
    |- StoreError                      E001
    |  |- StoreUnavailable                   transient   PostgreSQL or the broker cannot be reached
    |  |  |- StoreSilent                      transient   ... or keeps connections open and says nothing
    |  |  |- StoreRefused                     transient   ... or answers and does not let us in
    |  |  |  `- StoreMisnamed                 transient   ... since a part of our addresses is missing or wrong
    |  |  `- StoreHindered                    transient   ... or lacks disk, memory, a table or the right to write
    |  |     `- StoreDamaged                  transient   ... or fails in itself, over every document or over one
    |  |- DocumentDamaged                    transient   it fails in itself over this document alone
    |  `- StoreRejected                      permanent   the store refuses what we gave it
    |- EmbeddingError                  E002
    |  |- EmbedderUnavailable                transient   the provider is down, slow or busy
    |  |  |- AnswerMalformed                  transient   ... or answers, and not with a vector for each text
    |  |  `- BudgetSpent                      transient   ... or our own allowance is used up for now
    |  |- EmbedderRefused                    permanent   the provider refuses our key, model or plan
    |  |- ModelMissing                       permanent   the model files are absent or wrong
    |  `- TextRejected                       permanent   the provider refuses this text
    |     `- TextTooLong                     permanent   ... because it is too long for the model
    |- IndexingError                   E003
    |  |- SourceUnavailable                  transient   a source cannot be reached
    |  |  `- RateLimited                     transient   ... and said when to come back
    |  |- SourceDenied                       permanent   credentials or permissions
    |  |- DocumentRejected                   permanent   this one document cannot be indexed
    |  `- LeaseLost                          transient   somebody else owns this work now
    `- SearchError                     E004              a query that cannot be answered
       |- RequestRejected                    permanent   ... because it is none: a field is missing or wrong
       |- TokenRefused                       permanent   ... because nobody knows who asks
       |- Forbidden                          permanent   ... because whoever asks may not
       `- NotFound                           permanent   ... because there is no such project, document or job

`workers/control/steps.py` asks for the marks and `retry_after`, never for a class.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import ClassVar


class LarderError(Exception):
    """Something went wrong in Larder."""

    code: ClassVar[str] = "E003"
    name: ClassVar[str] = "INDEXING_FAILURE"
    transient: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    """True: nothing that met it is to blame, so coming back later is no failed try, however often."""
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str = "",
        *,
        fix: str = "",
        retry_after: float | None = None,
        cause: BaseException | None = None,
    ) -> None:
        """`message` says what was found, `fix` what to do, `retry_after` how many seconds to stay away.

        Neither may hold a secret or a document's text: both are shown, logged and stored.
        """
        self.message = message or (type(self).__doc__ or "").splitlines()[0]
        self.fix = fix
        self.retry_after = retry_after
        self.cause = cause
        super().__init__(self.message)
        if cause is not None:
            self.__cause__ = cause

    @property
    def recoverable(self) -> bool:
        """The word the specifications use for `transient`."""
        return self.transient

    def to_json(self) -> dict[str, str]:
        """`{"code", "name", "message", "fix"}`."""
        return {"code": self.code, "name": self.name, "message": self.message, "fix": self.fix}

    def __str__(self) -> str:
        return f"{self.message} ({self.fix})" if self.fix else self.message


def pause_after(failures: int, *, first: float = 1.0, most: float) -> float:
    """Seconds to wait after so many failures in a row: `first`, doubled with each further one, at most `most`."""
    # Failures are not limited in number, and a number has an end.
    return min(most, first * 2.0 ** min(max(0, failures - 1), 60))


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, each once."""
    todo, seen = [error], set()
    while todo:
        current = todo.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        inner = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        todo += [e for e in inner if isinstance(e, BaseException)]


RAGError = LarderError
"""The name the specifications use."""


class ConfigurationError(LarderError):
    """The configuration is wrong."""

    code = "E005"
    name = "CONFIGURATION_ERROR"
    exit_code = 2


class StoreError(LarderError):
    """The store failed."""

    code = "E001"
    name = "VECTOR_STORE_UNAVAILABLE"


class StoreUnavailable(StoreError):
    """The database or the broker cannot be reached."""

    transient = True
    waits = True


class StoreSilent(StoreUnavailable):
    """The database says nothing."""


class StoreRefused(StoreUnavailable):
    """The database answers and does not let us in: whoever mends the login mends it for all that waits."""


class StoreMisnamed(StoreRefused):
    """An address of the database is missing or lacks something."""

    exit_code = 2


class StoreHindered(StoreUnavailable):
    """The database cannot do this now, whatever it is given: its disk is full, or it only reads."""


class StoreDamaged(StoreHindered):
    """The database fails in itself: an internal error, or rows that cannot be read."""


class DocumentDamaged(StoreError):
    """The database fails in itself over this document alone: there is no use in trying for ever."""

    transient = True


class StoreRejected(StoreError):
    """The store refuses this value."""


class EmbeddingError(LarderError):
    """An embedding could not be made."""

    code = "E002"
    name = "EMBEDDING_FAILURE"


class EmbedderUnavailable(EmbeddingError):
    """The embedding provider does not answer."""

    transient = True
    waits = True


class AnswerMalformed(EmbedderUnavailable):
    """The embedding provider's answer has no usable vector for each text; the next one may have."""


class BudgetSpent(EmbedderUnavailable):
    """The allowance for embedding is used up for now; waiting for it is no failed try."""


class EmbedderRefused(EmbeddingError):
    """The embedding provider refuses our key, our model or our plan; no text is to blame."""


class ModelMissing(EmbeddingError):
    """The model's files are missing or not the expected ones."""


class TextRejected(EmbeddingError):
    """The embedding provider refuses this text."""


class TextTooLong(TextRejected):
    """The text is too long for the model; its parts may not be."""


class IndexingError(LarderError):
    """Indexing failed."""


class SourceUnavailable(IndexingError):
    """The source cannot be reached."""

    transient = True


class RateLimited(SourceUnavailable):
    """The source asks to come back later."""


class SourceDenied(IndexingError):
    """The source refuses our credentials."""


class DocumentRejected(IndexingError):
    """This document cannot be indexed."""


class LeaseLost(IndexingError):
    """Somebody else owns this work now; whatever we did is rolled back."""

    transient = True


class SearchError(LarderError):
    """The search cannot be answered."""

    code = "E004"
    name = "SEARCH_FAILURE"


class RequestRejected(SearchError):
    """The request itself is wrong; no server could answer it."""


class TokenRefused(SearchError):
    """There is no token, or it proves nothing."""


class Forbidden(SearchError):
    """Whoever asks may not do this."""


class NotFound(SearchError):
    """There is no such thing, or none that the caller may know of."""


LEAST_SECONDS = 0.1
MOST_SECONDS = 3600.0
RATE_LIMIT_SECONDS = 30.0
"""How long to stay away from a source that is too busy to say."""
NEAR_LIMIT_SECONDS = 5.0
"""A break taken early is shorter than the one that would be ordered."""
EPOCH_FROM = 1_000_000_000
"""A smaller `X-RateLimit-Reset` is seconds from now."""

_NUMBER = re.compile(r"-?\d{1,15}(\.\d{1,9})?", re.ASCII)
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|h|m|s)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def provider_pause(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (0.1 to 3600) before the next call of a provider; None: no wish was expressed."""
    wish = _first(retry_after(headers, now), quota_reset(headers, now))
    return None if wish is None else clamped(wish)


def source_pause(status: int, headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds (1 to 3600) in which nobody should ask a source again; None: no wish was expressed.

    A good answer can carry a wish as well.
    """
    asked, wish = retry_after(headers, now), None
    if status == 429:  # noqa: PLR2004 (Too Many Requests)
        wish = _first(asked, quota_reset(headers, now), RATE_LIMIT_SECONDS)
    elif status == 503 and "Retry-After" in headers:  # noqa: PLR2004 (Service Unavailable)
        wish = _first(asked, RATE_LIMIT_SECONDS)
    elif status >= 400:  # noqa: PLR2004 (any other error)
        wish = None
    elif asked is not None and asked > 0:
        wish = asked
    elif headers.get("X-RateLimit-Remaining", "").strip() == "0":
        # A Data Center names the interval after which its bucket is filled up a little.
        interval = _number(headers.get("X-RateLimit-Interval-Seconds", ""))
        wish = _first(quota_reset(headers, now), interval, NEAR_LIMIT_SECONDS)
    elif headers.get("X-RateLimit-NearLimit", "").strip().lower() == "true":
        wish = NEAR_LIMIT_SECONDS
    return None if wish is None else clamped(wish, least=1.0)


def retry_after(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """`retry-after-ms`, or `Retry-After` as seconds or date; negative if that is past, None if missing or nonsense."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("Retry-After", "")
    seconds = _number(text)
    return _until(http_date(text), headers, now) if seconds is None else seconds


def quota_reset(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Seconds until a used-up quota is full again; None if no header says so.

    `X-RateLimit-Reset` is epoch seconds, seconds from now, or ISO text. Of `x-ratelimit-reset-requests` and
    `-tokens`, such as `1m30s`, the one that is used up counts, else the longer one.
    """
    if text := headers.get("X-RateLimit-Reset", "").strip():
        seconds = _number(text)
        return (
            seconds if seconds is not None and seconds < EPOCH_FROM else _until(_moment(text), headers, now)
        )
    names = ("requests", "tokens")
    waits = {name: duration(headers.get(f"x-ratelimit-reset-{name}", "")) for name in names}
    spent = [n for n in names if headers.get(f"x-ratelimit-remaining-{n}", "").strip() == "0"]
    return max((wait for name in spent or names if (wait := waits[name]) is not None), default=None)


def duration(text: str) -> float | None:
    """Seconds of `1s`, `6m0s`, `20ms` or a bare number; None for anything else."""
    text = text.strip()
    parts = _PARTS.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text:
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return _number(text)


def clamped(seconds: float, *, least: float = LEAST_SECONDS) -> float:
    """A wait that is neither an endless loop nor a day off."""
    return min(MOST_SECONDS, max(least, seconds))


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)


def _number(text: str) -> float | None:
    text = text.strip()
    return float(text) if _NUMBER.fullmatch(text) else None


def _until(moment: datetime | None, headers: Mapping[str, str], now: datetime | None) -> float | None:
    there = http_date(headers.get("Date", "")) or now or datetime.now(UTC)
    return (moment - there).total_seconds() if moment else None


def _moment(text: str) -> datetime | None:
    """Epoch seconds or ISO text; whole minutes are usual."""
    seconds = _number(text)
    try:
        return _utc(datetime.fromisoformat(text)) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def http_date(text: str) -> datetime | None:
    """The time of a header such as `Date`; None for anything else."""
    try:
        return _utc(parsedate_to_datetime(text))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
