"""How work is shared out, leased, retried and kept."""

from __future__ import annotations

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
    """Leases, limits and retries.

    These must be in order, or the file is refused: `leaseSeconds / 3` (how often a lease is renewed) <
    `leaseSeconds` < `resendSeconds` < `visibilityTimeout`, and `softTimeLimit` < `timeLimit` <
    `visibilityTimeout`.
    """

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
        lease, resend, timeout, limit = (
            f"leaseSeconds ({self.lease_seconds:g})",
            "lease_seconds" if self.resend_seconds is None else "resend_seconds",
            f"visibilityTimeout ({self.visibility_timeout})",
            f"timeLimit ({self.time_limit:g})",
        )
        half = "half of " if self.resend_seconds is None else ""
        twice = "else the broker delivers a task again that is still running"
        early = "else work is sent again while its worker still has it"
        late = "else the broker delivers a message again before the ledger looks after it"
        rules = (
            (self.resend_after < self.visibility_timeout, resend, f"less than {half}{timeout}", late),
            (self.lease_seconds < self.resend_after, "resend_seconds", f"more than {lease}", early),
            (self.time_limit < self.visibility_timeout, "time_limit", f"less than {timeout}", twice),
            (self.soft_time_limit < self.time_limit, "soft_time_limit", f"less than {limit}", ""),
            (
                self.retry_base_seconds <= self.retry_max_seconds,
                "retry_base_seconds",
                f"at most retryMaxSeconds ({self.retry_max_seconds:g})",
                "",
            ),
        )
        refuse(self, [Mismatch(key=k, expected=text, fix=fix) for holds, k, text, fix in rules if not holds])
        return self
