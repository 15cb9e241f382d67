"""From the settings to the allowance for embedding: budgets, holds, and how much the pump may send."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property
from uuid import UUID

from sqlalchemy import Connection

from pipeline.database.engine import Database
from pipeline.embedding import Embedder
from pipeline.embedding.budget import BudgetedEmbedder
from pipeline.embedding.known_models import KNOWN
from pipeline.ingest.embed import Terms
from pipeline.ledger import embedding_use
from workers.limits.budget import DailyLimits, TenantBudget
from workers.limits.tokens import Outlook, RateLimits, ValkeyRate
from workers.processes import metrics
from workers.settings import EmbeddingModel, RagSettings

PROBE_DOCUMENTS = 4
"""So few are sent to find out whether the provider works again."""


@dataclass(frozen=True)
class Allowance:
    """What this installation's configuration lets it embed; built once per process."""

    rag: RagSettings
    model: str
    database: Database
    broker_url: str

    @cached_property
    def metered(self) -> bool:
        """True if calls cost money or are counted by somebody; not for models inside of our own processes."""
        e = self.rag.embedding
        return KNOWN[e.provider].remote or e.limited

    @cached_property
    def fingerprint(self) -> str:
        """Names the configuration of the embedder: another key or address is another one."""
        e, previous = self.rag.embedding, self.rag.embedding.previous
        return embedding_use.fingerprint(self.model, *_named(e), *(_named(previous) if previous else ()))

    @property
    def _key(self) -> str:
        secret = self.rag.embedding.api_key
        return secret.get_secret_value() if secret else ""

    @cached_property
    def rate(self) -> ValkeyRate | None:
        """Shared by all who ask the same address with the same key; None for a command without a broker."""
        if not self.metered or not self.broker_url:
            return None
        e, q = self.rag.embedding, self.rag.queue
        limits = RateLimits(
            requests=e.requests_per_minute,
            texts=e.texts_per_minute,
            tokens=e.tokens_per_minute,
            query_share=e.query_share,
            base=q.retry_base_seconds,
            longest=q.retry_max_seconds,
        )
        name = f"{e.provider}-{embedding_use.fingerprint(e.base_url, self._key)}"
        return ValkeyRate(self.broker_url, name, limits, chance=random.random)

    def budget(self, tenant: UUID) -> TenantBudget:
        """What a tenant may embed."""
        e = self.rag.embedding
        return TenantBudget(
            tenant_id=tenant,
            database=self.database,
            provider=e.provider,
            model=self.model,
            daily=DailyLimits(
                tokens=e.daily_tokens,
                cost=None if e.daily_cost is None else Decimal(str(e.daily_cost)),
                query_share=e.query_share,
                price=Decimal(str(e.cost_per_million_tokens)),
            ),
            rate=self.rate,
        )

    def within(self, tenant: UUID, embedder: Embedder, model: str) -> Embedder:
        """The configured embedder as a tenant may use it; that of any other model as it is."""
        if not self.metered or model != self.model:
            return embedder
        return BudgetedEmbedder(embedder, self.budget(tenant))

    @cached_property
    def terms(self) -> Terms:
        """Under which documents are embedded."""
        return Terms(
            provider=self.rag.embedding.provider,
            budget=self.budget if self.metered else None,
            fingerprint=self.fingerprint,
            probe_seconds=self.rag.embedding.probe_seconds,
            counted=metrics.count,
        )

    def terms_of(self, provider: str, model: str) -> Terms:
        """Those for a search index: another model than the configured one has no limits that we know of."""
        return self.terms if model == self.model else replace(self.terms, provider=provider, budget=None)

    def room(self, connection: Connection) -> int | None:
        """How many documents may be sent for embedding now; None: as many as the queue takes."""
        if embedding_use.hold_on(connection, self.fingerprint, probe_seconds=self.terms.probe_seconds):
            return PROBE_DOCUMENTS if embedding_use.probe_due(connection, self.fingerprint) else 0
        outlook = self.rate.look() if self.rate else Outlook()
        if outlook.closed_seconds > 0:
            return 0
        return PROBE_DOCUMENTS if outlook.doubtful else None


def _named(e: EmbeddingModel) -> tuple[object, ...]:
    """What tells one description of a model from another."""
    key = e.api_key.get_secret_value() if e.api_key else ""
    return e.provider, e.dimensions, e.base_url, key, e.model_path, e.model
