"""Every error of ours, each with its code and its mark: may work later, or will not.

    LarderError
    |- ConfigurationError              E005  permanent   a key, a file or a variable is wrong
    |- StoreError                      E001
    |  |- StoreUnavailable                   transient   PostgreSQL or the broker cannot be reached
    |  |  |- StoreSilent                      transient   ... or keeps connections open and says nothing
    |  |  |- StoreRefused                     transient   ... or answers and does not let us in
    |  |  `- StoreHindered                    transient   ... or lacks disk, memory, a table or the right to write
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
       `- RequestRejected                    permanent   ... because it is none: a field is missing or wrong

`workers/queue/retry.py` asks for the marks and `retry_after`, never for a class.
"""

from __future__ import annotations

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


class StoreHindered(StoreUnavailable):
    """The database cannot do this now, whatever it is given: its disk is full, or it only reads."""


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
