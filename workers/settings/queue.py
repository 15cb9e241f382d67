"""Settings of leases, retries, limits and retention of work."""

from __future__ import annotations

from typing import ClassVar, Self

from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from connectors.sections import ConfigSection, Flag, Mismatch, Number, Whole, refuse
from workers.settings.values import Processes


class ConcurrencySettings(ConfigSection):
    """Processes per worker when all run on one machine."""

    control: Whole = Field(default=2, ge=1, le=16)
    """The pump and upkeep: one to count while one pumps."""
    ingest: Whole = Field(default=2, ge=1, le=256)
    """Reading sources, cutting documents and writing chunks."""
    embed: Processes = "auto"
    """Embedding; each process holds the model once. auto: one per core that memory allows, and one for a service."""
    enrich: Whole = Field(default=2, ge=1, le=256)
    """Answering Step 4; each process holds the model once."""
    mirror: Whole = Field(default=1, ge=1, le=64)
    """Carrying chunks over into vector stores beside PostgreSQL, where there are some."""


class DeletionGuardSettings(ConfigSection):
    """When a sync would delete more than this, a person decides; both must be exceeded."""

    share: Number = Field(default=0.2, ge=0, le=1)
    """Share of the source's documents."""
    documents: Whole = Field(default=25, ge=0)
    """Number of documents."""


_ORDER = (
    ("lease_seconds", "resend_seconds", "else work is sent again while its worker still has it"),
    ("resend_seconds", "visibility_timeout", "left out, resendSeconds is twice leaseSeconds"),
    ("time_limit", "visibility_timeout", "else a task is delivered again that is still running"),
    ("soft_time_limit", "time_limit", ""),
    ("retry_base_seconds", "retry_max_seconds", ""),
)
"""Key that must be less, key that must be more, and why."""


class QueueSettings(ConfigSection):
    """Leases, limits and retries.

    These must be in order, or the file is refused: `leaseSeconds / 3` (how often a lease is renewed) <
    `leaseSeconds` < `resendSeconds` < `visibilityTimeout`, `softTimeLimit` < `timeLimit` <
    `visibilityTimeout`, and `retryBaseSeconds` < `retryMaxSeconds`.
    """

    max_in_flight: ClassVar[int] = 2000
    """Most documents sent and not finished."""
    upsert_rows: ClassVar[int] = 500
    """Most chunks written in one transaction."""
    max_crashes: ClassVar[int] = 3
    """Crashes of a worker until its document is a dead letter."""
    lease_seconds: Number = Field(default=120, ge=1, le=86_400)
    """Seconds that a silent worker keeps its work."""
    resend_seconds: Number | None = Field(default=None, ge=1, le=86_400)
    """Seconds after which work that was sent is sent again. Empty: twice leaseSeconds."""
    batch_documents: Whole = Field(default=128, ge=1, le=1000)
    """Most documents of one message."""
    max_attempts: Whole = Field(default=8, ge=1, le=100)
    """Failures until a document is a dead letter."""
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
    """Hours between full walks through a source's ids; of files, after which a sync reads them all, changed or not."""
    answer_apps: Flag = False
    """Answer tasks that carry their request, of Celery apps that lack this package: whoever can write to the broker
    then asks as the tenant of this file, and answers lie in the broker for an hour."""

    @property
    def resend_after(self) -> float:
        """Seconds after which sent work is sent again."""
        return 2 * self.lease_seconds if self.resend_seconds is None else self.resend_seconds

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        values = {**dict(self), "resend_seconds": self.resend_after}
        mismatches = []
        for low, high, why in _ORDER:
            if values[low] >= values[high]:
                # The key that the file gives is the one to correct.
                if high in self.model_fields_set and low not in self.model_fields_set:
                    key, expected = high, f"more than {to_camel(low)} ({values[low]:g})"
                else:
                    key, expected = low, f"less than {to_camel(high)} ({values[high]:g})"
                mismatches.append(Mismatch(key=key, expected=expected, fix=why))
        refuse(self, mismatches)
        return self
