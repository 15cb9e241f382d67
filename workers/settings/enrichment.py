"""How Step 4 is answered: how long for, how often tried, how long kept."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from workers.settings.values import Mismatch, Number, OneOf, Secret, Section, Text, WebUrl, Whole, refuse

GENERATORS: Mapping[str, str] = MappingProxyType(
    {
        "extract": "sentences as they stand in the sources",
        "gemini": "the same sentences in the words of a model, each checked against what it cites",
    }
)
"""One line per generator that this version knows."""

Generator = Annotated[str, BeforeValidator(OneOf(GENERATORS)), OneOf(GENERATORS)]


class EnrichmentSettings(Section):
    """How Step 4 is answered."""

    generator: Generator = Field(
        default="extract", description="Who words learnings and suggestions: " + ", ".join(GENERATORS) + "."
    )
    model: Text = Field(default="gemini-2.5-flash", description="Model of the generator gemini.")
    api_key: Secret | None = Field(
        default=None, examples=["${GEMINI_API_KEY}"], description="Key of the generator gemini."
    )
    base_url: WebUrl | None = Field(
        default=None,
        examples=["https://gemini.example.com"],
        description="Address of the generator gemini. Empty: its public one.",
    )
    timeout: Number = Field(
        default=20,
        gt=0,
        le=600,
        description="Seconds the generator gemini may take; less if the deadline is nearer.",
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

    @model_validator(mode="after")
    def _with_a_key(self) -> Self:
        if self.generator == "gemini" and self.api_key is None:
            refuse(self, [Mismatch(key="api_key", expected="the key of the generator gemini")])
        return self
