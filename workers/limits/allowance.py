"""The allowance for embedding by the settings: budgets, holds, and how many documents the pump may send."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import Connection

from connectors.sections import secret_value
from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.embedding import Embedder
from pipeline.embedding.budget import BudgetedEmbedder, Cost, Grant
from pipeline.embedding.known_models import PROVIDER_FACTS
from pipeline.errors import BudgetSpent, EmbedderUnavailable
from pipeline.ingest.text_embedding import EmbeddingTerms
from pipeline.ledger import embedding_use
from workers.monitoring import metrics
from workers.settings import Configuration, EmbeddingModel
from workers.settings.embedding import EmbeddingBudgetSettings

if TYPE_CHECKING:
    from workers.limits.limiters import ProviderRateLimiter

LONGEST_SLEEP = 2.0
"""Seconds; shorter waits are slept, longer ones are left to the ledger, so that no worker is blocked."""


@dataclass(frozen=True)
class TenantBudget:
    """A `pipeline.embedding.budget.Budget`: per day in PostgreSQL, then per minute in Valkey."""

    tenant_id: UUID
    database: Database
    provider: str
    model: str
    daily: EmbeddingBudgetSettings
    """Limits of one tenant per day (UTC), and the price."""
    rate: ProviderRateLimiter | None = None
    """Limiter per minute; None for a command without a broker, which makes few calls."""
    sleep: Callable[[float], None] = time.sleep

    @property
    def texts(self) -> int | None:
        """See Budget."""
        return self.rate.limits.most(self.rate.limits.texts, query=False) or None if self.rate else None

    @property
    def tokens(self) -> int | None:
        """See Budget."""
        return self.rate.limits.most(self.rate.limits.tokens, query=False) or None if self.rate else None

    def take(self, cost: Cost) -> Grant:
        """See Budget. Usage is counted before the call, since a process killed meanwhile has probably paid."""
        daily = self.daily
        share = Decimal(1) if cost.query else 1 - Decimal(str(daily.query_share))
        ceiling = embedding_use.DailyLimit(
            tokens=None if daily.daily_tokens is None else int(daily.daily_tokens * share),
            cost=None if daily.daily_cost is None else Decimal(str(daily.daily_cost)) * share,
        )
        used = self._used(cost.texts, cost.tokens, calls=1)
        with self.database.tenant(self.tenant_id, durable=not cost.query) as connection:
            day = embedding_use.reserve(connection, self._meter(cost), used, ceiling)
            retry_after = embedding_use.seconds_to_midnight(connection) if day is None else 0.0
        if day is None:
            raise BudgetSpent(
                "the daily embedding budget is used up",
                fix="nothing to do: work continues tomorrow (UTC); raise dailyTokens or dailyCost to continue today",
                retry_after=retry_after,
            )
        grant = Grant(cost=cost, day=day)
        try:
            return replace(grant, slot=self._take_rate(cost, 0.0 if cost.query else LONGEST_SLEEP))
        except BudgetSpent:
            self._add(grant, self._used(-cost.texts, -cost.tokens, calls=-1))
            raise

    def spent(self, grant: Grant, tokens: int | None) -> None:
        """See Budget."""
        cost = grant.cost
        real = cost.tokens if tokens is None else tokens
        more = real - cost.tokens
        if more:
            self._add(grant, self._used(0, more))
        if self.rate is not None:
            self.rate.answered(grant.slot, more)
        metrics.record_embedding_use(self._meter(cost), self._used(cost.texts, real, calls=1))

    def failed(self, grant: Grant, error: EmbedderUnavailable) -> None:
        """See Budget."""
        self._add(grant, self._used(-grant.cost.texts, -grant.cost.tokens))
        seconds = self.rate.failed(error.retry_after) if self.rate is not None else 0.0
        if seconds and error.retry_after is None:
            error.retry_after = seconds

    def refused(self, grant: Grant) -> None:
        """See Budget."""
        self._add(grant, self._used(-grant.cost.texts, -grant.cost.tokens))
        if self.rate is not None:
            self.rate.answered()

    def _take_rate(self, cost: Cost, sleep_at_most: float) -> str:
        if self.rate is None:
            return ""
        try:
            return self.rate.take(cost)
        except BudgetSpent as error:
            wait = error.retry_after or 0.0
            if wait > sleep_at_most:
                # The way back through the queue takes time: ask again early and sleep the rest.
                error.retry_after = max(wait - LONGEST_SLEEP, LONGEST_SLEEP / 8)
                raise
        self.sleep(wait)
        return self._take_rate(cost, sleep_at_most - wait)

    def _add(self, grant: Grant, used: embedding_use.Used) -> None:
        with self.database.tenant(self.tenant_id, durable=not grant.cost.query) as connection:
            embedding_use.add_usage(connection, self._meter(grant.cost), used, grant.day)

    def _used(self, texts: int, tokens: int, calls: int = 0) -> embedding_use.Used:
        cost = Decimal(str(self.daily.cost_per_million_tokens)) * tokens / 1_000_000
        return embedding_use.Used(calls=calls, texts=texts, tokens=tokens, cost=cost)

    def _meter(self, cost: Cost) -> embedding_use.Meter:
        return embedding_use.Meter(
            tenant_id=self.tenant_id,
            provider=self.provider,
            model=self.model,
            kind="query" if cost.query else "document",
        )


PROBE_DOCUMENTS = 4
"""Documents sent to find out whether the provider works again."""


@dataclass(frozen=True)
class Allowance:
    """Embedding limits by the installation's configuration; built once per process."""

    rag: Configuration
    model: str
    database: Database
    broker_url: str

    @cached_property
    def metered(self) -> bool:
        """True if calls are paid or limited; False for models in our own processes."""
        e = self.rag.embedding
        return PROVIDER_FACTS[e.provider].remote or e.limited

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of the embedder's configuration, key and address included."""
        e, previous = self.rag.embedding, self.rag.embedding.previous
        return embedding_use.fingerprint(self.model, *_named(e), *(_named(previous) if previous else ()))

    @cached_property
    def rate(self) -> ProviderRateLimiter | None:
        """The limiter shared by all callers with this address and key; None without a broker."""
        if not self.metered or not self.broker_url:
            return None
        from workers.limits.limiters import (  # imports the broker's client, needed for services alone
            ProviderRateLimiter,
            RateLimits,
        )

        e, q = self.rag.embedding, self.rag.queue
        limits = RateLimits(
            requests=e.requests_per_minute,
            texts=e.texts_per_minute,
            tokens=e.tokens_per_minute,
            query_share=e.query_share,
            base=q.retry_base_seconds,
            longest=q.retry_max_seconds,
        )
        name = f"{e.provider}-{embedding_use.fingerprint(e.base_url, secret_value(e.api_key))}"
        return ProviderRateLimiter(self.broker_url, name, limits)

    def budget(self, tenant: UUID) -> TenantBudget:
        """The embedding budget of a tenant."""
        e = self.rag.embedding
        return TenantBudget(tenant, self.database, e.provider, self.model, e, self.rate)

    def budgeted(self, tenant: UUID, embedder: Embedder, model: str) -> Embedder:
        """The embedder within the tenant's budget; embedders of other models are returned unchanged."""
        if not self.metered or model != self.model:
            return embedder
        return BudgetedEmbedder(embedder, self.budget(tenant))

    @cached_property
    def terms(self) -> EmbeddingTerms:
        """Terms for embedding documents."""
        return EmbeddingTerms(
            provider=self.rag.embedding.provider,
            budget=self.budget if self.metered else None,
            fingerprint=self.fingerprint,
            probe_seconds=self.rag.embedding.probe_seconds,
            counted=metrics.record_embedding_use,
        )

    def terms_of(self, provider: str, model: str) -> EmbeddingTerms:
        """Terms for a search index; models other than the configured one have no limits."""
        return self.terms if model == self.model else replace(self.terms, provider=provider, budget=None)

    def budget_left(self, today: Sequence[Json]) -> float | None:
        """Smallest remaining share of the daily budget among all tenants; None without a limit.

        `today` is the result of `embedding_use.usage_today`.
        """
        e = self.rag.embedding
        most = {key: m for key, m in (("tokens", e.daily_tokens), ("cost", e.daily_cost)) if m}
        used: dict[tuple[str, str], float] = defaultdict(float)
        for row in today:
            for key, ceiling in most.items():
                used[row["tenant"], key] += row[key] / ceiling
        return max(0.0, 1.0 - max(used.values(), default=0.0)) if most else None

    def embed_room(self, connection: Connection) -> int | None:
        """Number of documents that may be sent for embedding now; None means no limit."""
        if embedding_use.hold_on(connection, self.fingerprint, probe_seconds=self.terms.probe_seconds):
            return PROBE_DOCUMENTS if embedding_use.probe_due(connection, self.fingerprint) else 0
        outlook = self.rate.state() if self.rate else None
        if outlook and outlook.closed_seconds > 0:
            return 0
        return PROBE_DOCUMENTS if outlook and outlook.doubtful else None


def _named(e: EmbeddingModel) -> tuple[object, ...]:
    """The fields that identify a configured model."""
    return e.provider, e.dimensions, e.base_url, secret_value(e.api_key), e.model_path, e.model
