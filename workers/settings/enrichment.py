"""How Step 4 is answered: how long for, how often tried, how long kept."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import BeforeValidator, Field

from workers.settings.values import Number, OneOf, Section, Whole

GENERATORS: Mapping[str, str] = MappingProxyType({"extract": "sentences as they stand in the sources"})
"""Only what this version does: a choice that is accepted and ignored would mislead."""

Generator = Annotated[str, BeforeValidator(OneOf(GENERATORS)), OneOf(GENERATORS)]


class EnrichmentSettings(Section):
    """How Step 4 is answered."""

    generator: Generator = Field(
        default="extract", description="Who words learnings and suggestions: " + ", ".join(GENERATORS) + "."
    )
    results_kept_hours: Number = Field(
        default=24, gt=0, le=8760, description="Hours an answer is kept; the same question gets it again."
    )
    deadline_seconds: Number = Field(
        default=120, gt=0, le=86_400, description="Seconds a caller waits who names no time of its own."
    )
    max_attempts: Whole = Field(default=3, ge=1, le=100, description="Failures until a request has failed.")
    lease_seconds: Number = Field(
        default=15, ge=1, le=3600, description="How long a silent worker keeps a request."
    )
    resend_seconds: Number = Field(
        default=15, ge=1, le=3600, description="When a request whose message was not heard is sent again."
    )
