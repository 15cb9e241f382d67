"""What embedding may use: per minute as the provider allows, per day as somebody pays."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from workers.settings.values import Mismatch, Number, Section, Whole, refuse


class EmbeddingBudgetSettings(Section):
    """The allowance for embedding; a part of the section `embedding`."""

    requests_per_minute: Whole | None = Field(
        default=None, ge=1, description="Most calls a minute, of all workers together. Empty: no limit."
    )
    texts_per_minute: Whole | None = Field(
        default=None, ge=1, description="Most texts a minute, of all workers together. Empty: no limit."
    )
    tokens_per_minute: Whole | None = Field(
        default=None, ge=1, description="Most tokens a minute, of all workers together. Empty: no limit."
    )
    query_share: Number = Field(
        default=0.1, ge=0, le=0.9, description="Part of every limit that documents leave to searches."
    )
    daily_tokens: Whole | None = Field(
        default=None, ge=1, description="Most tokens of a tenant's day (UTC). Empty: no limit."
    )
    daily_cost: Number | None = Field(
        default=None,
        gt=0,
        description="Most money of a tenant's day, by costPerMillionTokens. Empty: no limit.",
    )
    cost_per_million_tokens: Number = Field(
        default=0, ge=0, description="Price of a million tokens, for the cost that is shown and limited."
    )
    probe_seconds: Number = Field(
        default=300,
        ge=1,
        le=86_400,
        description="Pause between tries while the provider refuses key, model or plan.",
    )

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.daily_cost is not None and not self.cost_per_million_tokens:
            expected = "more than 0, since dailyCost is set"
            refuse(self, [Mismatch(key="cost_per_million_tokens", expected=expected)])
        return self

    @property
    def limited(self) -> bool:
        """True if any limit is set."""
        limits = (self.requests_per_minute, self.texts_per_minute, self.tokens_per_minute)
        return any(n is not None for n in (*limits, self.daily_tokens, self.daily_cost))
