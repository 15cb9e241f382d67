"""All errors of Larder, with their codes; transient ones may pass later, permanent ones will not.

    LarderError
    |- ConfigurationError              E005  permanent   a key, a file or a variable is wrong
    |- StoreError                      E001
    |  |- StoreUnavailable                   transient   PostgreSQL or the broker cannot be reached
    |  |  |- StoreSilent                      transient   ... or keeps connections open and does not answer
    |  |  |- StoreRefused                     transient   ... or refuses the login
    |  |  |  `- StoreMisnamed                 transient   ... since a part of its address is missing or wrong
    |  |  `- StoreHindered                    transient   ... or lacks disk, memory, a table or a right
    |  |     `- StoreDamaged                  transient   ... or has an internal error or damaged rows
    |  |- DocumentDamaged                    transient   internal error of the store with this document alone
    |  `- StoreRejected                      permanent   the store refuses a value
    |- EmbeddingError                  E002
    |  |- EmbedderUnavailable                transient   the provider is down, slow or busy
    |  |  |- AnswerMalformed                  transient   ... or answers without a vector for each text
    |  |  `- BudgetSpent                      transient   ... or our own limit is used up for now
    |  |- EmbedderRefused                    permanent   the provider refuses our key, model or plan
    |  |- ModelMissing                       permanent   the model files are absent or wrong
    |  `- TextRejected                       permanent   the provider refuses this text
    |     `- TextTooLong                     permanent   ... because it is too long for the model
    |- IndexingError                   E003
    |  |- SourceUnavailable                  transient   a source cannot be reached
    |  |  `- RateLimited                     transient   ... and says when to retry
    |  |- SourceDenied                       permanent   the source refuses credentials or rights
    |  |- DocumentRejected                   permanent   this one document cannot be indexed
    |  `- LeaseLost                          transient   another worker has this work now
    `- SearchError                     E004              a query that cannot be answered
       |- RequestRejected                    permanent   ... because a field is missing or wrong
       |- TokenRefused                       permanent   ... because the caller is not authenticated
       |- Forbidden                          permanent   ... because the caller lacks the right
       `- NotFound                           permanent   ... because there is no such project, document or job

`workers/app/ingestion/steps.py` uses `transient`, `waits` and `retry_after`, never the class.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar


class LarderError(Exception):
    """Larder failed."""

    code: ClassVar[str] = "E003"
    name: ClassVar[str] = "INDEXING_FAILURE"
    transient: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    """True if the work is not to blame: retries are not counted as failed attempts."""
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str = "",
        *,
        fix: str = "",
        retry_after: float | None = None,
        cause: BaseException | None = None,
    ) -> None:
        """`message` says what is wrong, `fix` what to do, `retry_after` after how many seconds to retry.

        Message and fix are shown, logged and stored: they must not contain secrets or texts of documents.
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
        """Alias of `transient` in the specifications."""
        return self.transient

    def to_json(self) -> dict[str, str]:
        """`{"code", "name", "message", "fix"}`."""
        return {"code": self.code, "name": self.name, "message": self.message, "fix": self.fix}

    def __str__(self) -> str:
        return f"{self.message} ({self.fix})" if self.fix else self.message


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and all errors that it wraps, each once."""
    todo, visited = [error], set()
    while todo:
        current = todo.pop()
        if id(current) in visited:
            continue
        visited.add(id(current))
        yield current
        inner = (current.__cause__, current.__context__, getattr(current, "reason", None), *current.args)
        todo += [e for e in inner if isinstance(e, BaseException)]


RAGError = LarderError
"""Alias in the specifications."""


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
    """The database does not answer in time."""


class StoreRefused(StoreUnavailable):
    """The database refuses the login; waiting work continues once it is corrected."""


class StoreMisnamed(StoreRefused):
    """An address of the database is missing or incomplete."""

    exit_code = 2


class StoreHindered(StoreUnavailable):
    """The database cannot do this now with any value, for example because its disk is full or it is read-only."""


class StoreDamaged(StoreHindered):
    """The database or a vector store has an internal error, or rows that cannot be read."""


class DocumentDamaged(StoreError):
    """The database has an internal error with this document alone; attempts are counted."""

    transient = True


class StoreRejected(StoreError):
    """The store refuses this value."""


class EmbeddingError(LarderError):
    """Embedding failed."""

    code = "E002"
    name = "EMBEDDING_FAILURE"


class EmbedderUnavailable(EmbeddingError):
    """The embedding provider does not answer."""

    transient = True
    waits = True


class AnswerMalformed(EmbedderUnavailable):
    """The embedding provider's answer lacks a usable vector for each text; the next answer may have them."""


class BudgetSpent(EmbedderUnavailable):
    """The limit for embedding is used up for now; waiting is no failed attempt."""


class EmbedderRefused(EmbeddingError):
    """The embedding provider refuses key, model or plan, for every text."""


class ModelMissing(EmbeddingError):
    """The model's files are missing or not the expected ones."""


class TextRejected(EmbeddingError):
    """The embedding provider refuses this text."""


class TextTooLong(TextRejected):
    """The text is too long for the model; pieces of it may fit."""


class IndexingError(LarderError):
    """Indexing failed."""


class SourceUnavailable(IndexingError):
    """The source cannot be reached."""

    transient = True


class RateLimited(SourceUnavailable):
    """The source asks to retry later."""


class SourceDenied(IndexingError):
    """The source refuses our credentials."""


class DocumentRejected(IndexingError):
    """This document cannot be indexed."""


class LeaseLost(IndexingError):
    """Another worker has the lease of this work now; the transaction is rolled back."""

    transient = True


class SearchError(LarderError):
    """The search cannot be answered."""

    code = "E004"
    name = "SEARCH_FAILURE"


class RequestRejected(SearchError):
    """The request itself is wrong; no server could answer it."""


class TokenRefused(SearchError):
    """The token is missing or not valid."""


class Forbidden(SearchError):
    """The caller may not do this."""


class NotFound(SearchError):
    """The requested item does not exist, or is not visible to the caller."""


def pause_after(failures: int, *, first: float = 1.0, most: float) -> float:
    """Seconds to wait after so many failures in a row: `first`, doubled with each further one, at most `most`."""
    # Failures are not limited in number, and a number has an end.
    return min(most, first * 2.0 ** min(max(0, failures - 1), 60))
