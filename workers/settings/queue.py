"""How work is shared out, leased, retried and kept."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from pydantic import Field, model_validator

from connectors.sections import ConfigSection, Mismatch, Number, Whole, refuse


class ConcurrencySettings(ConfigSection):
    """Processes per worker when all run on one machine."""

    control: Whole = Field(default=2, ge=1, le=16)
    """Syncs, the pump and upkeep: one to read while one pumps."""
    ingest: Whole = Field(default=2, ge=1, le=256)
    """Cutting documents and writing chunks."""
    embed: Whole = Field(default=1, ge=1, le=256)
    """Embedding; each process holds the model once."""
    enrich: Whole = Field(default=2, ge=1, le=256)
    """Answering Step 4; each process holds the model once."""


class DeletionGuardSettings(ConfigSection):
    """When a sync would delete more than this, a person decides; both must be exceeded."""

    share: Number = Field(default=0.2, ge=0, le=1)
    """Share of the source's documents."""
    documents: Whole = Field(default=25, ge=0)
    """Number of documents."""


class QueueSettings(ConfigSection):
    """Leases, limits and retries. In order: leaseSeconds / 3, leaseSeconds, resendSeconds, visibilityTimeout."""

    lease_seconds: Number = Field(default=120, ge=1, le=86_400)
    """How long a silent worker keeps its work."""
    resend_seconds: Number | None = Field(default=None, ge=1, le=86_400)
    """When work that was sent is sent again. Empty: twice leaseSeconds."""
    max_in_flight: Whole = Field(default=2000, ge=1, le=1_000_000)
    """Most documents sent and not finished."""
    batch_documents: Whole = Field(default=32, ge=1, le=1000)
    """Most documents of one message."""
    upsert_rows: Whole = Field(default=500, ge=1, le=10_000)
    """Most chunks written in one transaction."""
    max_attempts: Whole = Field(default=8, ge=1, le=100)
    """Failures until a document is a dead letter."""
    max_crashes: Whole = Field(default=3, ge=1, le=100)
    """Crashes of a worker until its document is one."""
    visibility_timeout: Whole = Field(default=900, ge=10, le=86_400)
    """Seconds until the broker delivers an unfinished message again."""
    soft_time_limit: Number = Field(default=240, ge=1, le=86_400)
    """Seconds until a task is asked to stop."""
    time_limit: Number = Field(default=300, ge=1, le=86_400)
    """Seconds until a task is stopped."""
    tick_seconds: Number = Field(default=5, ge=0.1, le=3600)
    """Seconds between looks for due work."""
    concurrency: ConcurrencySettings = ConcurrencySettings()
    """Processes per worker on one machine."""
    retry_base_seconds: Number = Field(default=2, ge=0, le=3600)
    """Pause before the first retry; then doubled."""
    retry_max_seconds: Number = Field(default=600, ge=0, le=86_400)
    """Longest pause before a retry."""
    deletion_guard: DeletionGuardSettings = DeletionGuardSettings()
    """Deletions held back for a person to release."""
    keep_runs_days: Number = Field(default=30, ge=0)
    """Days the records of syncs are kept."""
    keep_dead_days: Number = Field(default=90, ge=0)
    """Days dead letters are kept."""
    reconcile_hours: Number = Field(default=24, gt=0)
    """Hours between full walks through a source's ids."""

    @property
    def resend_after(self) -> float:
        """Seconds after which sent work is sent again."""
        return 2 * self.lease_seconds if self.resend_seconds is None else self.resend_seconds

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        refuse(self, [*self._resend_out_of_order(), *self._limits_out_of_order()])
        return self

    def _resend_out_of_order(self) -> Iterator[Mismatch]:
        timeout = f"visibilityTimeout ({self.visibility_timeout})"
        early = "else work is sent again while its worker still has it"
        late = "else the broker delivers a message again before the ledger looks after it"
        if self.resend_after >= self.visibility_timeout:
            if self.resend_seconds is None:
                yield Mismatch(key="lease_seconds", expected=f"less than half of {timeout}", fix=late)
            else:
                yield Mismatch(key="resend_seconds", expected=f"less than {timeout}", fix=late)
        if self.resend_after <= self.lease_seconds:
            more = f"more than leaseSeconds ({self.lease_seconds:g})"
            yield Mismatch(key="resend_seconds", expected=more, fix=early)

    def _limits_out_of_order(self) -> Iterator[Mismatch]:
        if self.time_limit >= self.visibility_timeout:
            less = f"less than visibilityTimeout ({self.visibility_timeout})"
            twice = "else the broker delivers a task again that is still running"
            yield Mismatch(key="time_limit", expected=less, fix=twice)
        if self.soft_time_limit >= self.time_limit:
            yield Mismatch(key="soft_time_limit", expected=f"less than timeLimit ({self.time_limit:g})")
        if self.retry_base_seconds > self.retry_max_seconds:
            most = f"at most retryMaxSeconds ({self.retry_max_seconds:g})"
            yield Mismatch(key="retry_base_seconds", expected=most)
