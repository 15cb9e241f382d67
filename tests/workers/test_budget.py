"""What a tenant may embed: its day in a real PostgreSQL, the provider's minute in a real Valkey."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest

from pipeline.database.engine import Database
from pipeline.embedding import EmbedderLimits, Vectors
from pipeline.embedding.budget import BudgetedEmbedder, Cost
from pipeline.errors import BudgetSpent, EmbedderRefused, EmbedderUnavailable, LarderError
from pipeline.ledger import sources
from tests.ledger import ago, of_connection
from workers.limits.allowance import TenantBudget
from workers.limits.limiters import ProviderRateLimiter, RateLimits
from workers.local import embedded
from workers.settings.embedding import EmbeddingBudgetSettings

_names = itertools.count(1)


@dataclass
class TenantSpending:
    """A tenant with a budget, and what stands in its books."""

    database: Database
    tenant: UUID
    broker: str
    slept: list[float] = field(default_factory=list)
    rates: list[ProviderRateLimiter] = field(default_factory=list)

    def budget(self, daily: EmbeddingBudgetSettings | None = None, **limits: Any) -> TenantBudget:
        self.rates.append(
            ProviderRateLimiter(
                self.broker, f"spending-{next(_names)}", RateLimits(**limits), chance=lambda: 1.0
            )
        )
        return TenantBudget(
            tenant_id=self.tenant,
            database=self.database,
            provider="paid",
            model="m",
            daily=daily or EmbeddingBudgetSettings(),
            rate=self.rates[-1],
            sleep=self.slept.append,
        )

    def used(self) -> dict[str, tuple[int, int, int, Any]]:
        """(calls, texts, tokens, cost) by kind."""
        with self.database.tenant(self.tenant) as connection:
            rows = of_connection(connection).usage()
        return {r["kind"]: (r["calls"], r["texts"], r["tokens"], r["cost"]) for r in rows}


@pytest.fixture
def spending(shared_database: Database, servers: embedded.Servers) -> Iterator[TenantSpending]:
    tenant = uuid4()
    with shared_database.tenant(tenant) as connection:
        sources.ensure_tenant(connection, tenant, "t", uuid4(), "p")
    made = TenantSpending(shared_database, tenant, servers.broker_url)
    yield made
    for rate in made.rates:
        rate.disconnect()


def spent(budget: TenantBudget, cost: Cost) -> BudgetSpent:
    with pytest.raises(BudgetSpent) as caught:
        budget.take(cost)
    return caught.value


HUNDRED = Cost(texts=10, tokens=100)
PRICED = EmbeddingBudgetSettings(cost_per_million_tokens=0.15)


class TestTheDay:
    def test_a_call_is_counted_before_it_is_made(self, spending: TenantSpending) -> None:
        spending.budget(PRICED).take(HUNDRED)
        assert spending.used() == {"document": (1, 10, 100, Decimal("0.000015"))}

    def test_what_the_service_charged_counts_in_the_end(self, spending: TenantSpending) -> None:
        budget = spending.budget(PRICED)
        budget.spent(budget.take(HUNDRED), 80)
        assert spending.used() == {"document": (1, 10, 80, Decimal("0.000012"))}

    @pytest.mark.parametrize("end", ["failed", "refused"])
    def test_what_was_not_done_costs_nothing(self, spending: TenantSpending, end: str) -> None:
        budget = spending.budget(PRICED)
        grant = budget.take(HUNDRED)
        if end == "failed":
            budget.failed(grant, EmbedderUnavailable("away"))
        else:
            budget.refused(grant)
        assert spending.used() == {"document": (1, 0, 0, 0)}

    def test_documents_wait_for_the_next_day_and_questions_go_on_within_the_reserve(
        self, spending: TenantSpending
    ) -> None:
        budget = spending.budget(EmbeddingBudgetSettings(daily_tokens=1000, query_share=0.2))
        for _ in range(8):
            budget.take(HUNDRED)
        error = spent(budget, Cost(texts=1, tokens=1))
        midnight = (
            86_400 - (datetime.now(UTC) - datetime.now(UTC).replace(hour=0, minute=0, second=0)).seconds
        )
        assert error.retry_after == pytest.approx(midnight, abs=60)
        question = Cost(texts=1, tokens=100, query=True)
        budget.take(question)
        budget.take(question)
        assert "daily" in spent(budget, question).message

    def test_money_is_a_ceiling_too(self, spending: TenantSpending) -> None:
        budget = spending.budget(
            EmbeddingBudgetSettings(daily_cost=0.02, cost_per_million_tokens=100, query_share=0.0)
        )
        budget.take(HUNDRED)
        budget.take(HUNDRED)
        spent(budget, Cost(texts=1, tokens=1))

    def test_the_day_belongs_to_one_tenant_and_one_date(self, spending: TenantSpending) -> None:
        budget = spending.budget(EmbeddingBudgetSettings(daily_tokens=100, query_share=0.0))
        grant, yesterday = budget.take(HUNDRED), ago(days=1).date()
        spent(budget, HUNDRED)
        other = uuid4()
        with spending.database.tenant(other) as connection:
            sources.ensure_tenant(connection, other, "o", uuid4(), "p")
        theirs = replace(budget, tenant_id=other)
        theirs.take(HUNDRED)
        with spending.database.tenant(spending.tenant) as connection:
            of_connection(connection).usage.set(day=yesterday)
        budget.take(HUNDRED)
        assert grant.day == datetime.now(UTC).date()

    def test_what_is_given_back_goes_to_the_day_it_was_taken_from(self, spending: TenantSpending) -> None:
        budget = spending.budget()
        grant = budget.take(HUNDRED)
        with spending.database.tenant(spending.tenant) as connection:
            of_connection(connection).usage.set(day=date(2026, 1, 1))
        budget.refused(type(grant)(cost=grant.cost, day=date(2026, 1, 1)))
        assert spending.used() == {"document": (1, 0, 0, 0)}

    def test_workers_together_stay_below_the_ceiling(self, spending: TenantSpending) -> None:
        budget = spending.budget(EmbeddingBudgetSettings(daily_tokens=1000, query_share=0.0))
        taken: list[int] = []

        def worker() -> None:
            for _ in range(8):
                try:
                    budget.take(HUNDRED)
                except BudgetSpent:
                    return
                taken.append(1)

        threads = [threading.Thread(target=worker) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(taken), spending.used()["document"][2]) == (10, 1000)


class TestTheMinute:
    def test_a_short_wait_is_slept_and_a_long_one_is_the_ledgers(self, spending: TenantSpending) -> None:
        budget = spending.budget(texts=10, query_share=0.0, window=60.0)
        budget.take(HUNDRED)
        error = spent(budget, HUNDRED)
        assert spending.slept == []
        # It comes back through the queue, which is late by some seconds: the rest is slept.
        assert error.retry_after is not None
        assert 57 < error.retry_after < 61

    def test_the_short_one(self, spending: TenantSpending) -> None:
        budget = spending.budget(texts=10, query_share=0.0, window=1.0)
        budget.take(HUNDRED)
        # Nobody really sleeps here, so the time to sleep ends before the window does.
        spent(budget, HUNDRED)
        assert spending.slept
        assert sum(spending.slept) <= 2.0

    def test_a_question_never_sleeps(self, spending: TenantSpending) -> None:
        budget = spending.budget(texts=10, window=1.0)
        budget.take(Cost(texts=10, tokens=1, query=True))
        spent(budget, Cost(texts=1, tokens=1, query=True))
        assert spending.slept == []

    def test_a_refusal_leaves_the_books_as_they_were(self, spending: TenantSpending) -> None:
        budget = spending.budget(texts=10, query_share=0.0)
        budget.take(HUNDRED)
        before = spending.used()
        spent(budget, HUNDRED)
        assert spending.used() == before


@dataclass
class Asked:
    """An embedder that does what it is told."""

    trouble: LarderError | None = None
    used_tokens: int | None = None
    model: str = "m"
    dimensions: int = 2
    limits: EmbedderLimits = field(default_factory=lambda: EmbedderLimits(texts=100, tokens=5000))

    def embed_documents(self, texts: Any) -> Vectors:
        if self.trouble:
            raise self.trouble
        return np.ones((len(texts), 2), dtype=np.float32)

    def embed_query(self, text: str) -> Vectors:
        vector: Vectors = self.embed_documents([text])[0]
        return vector

    def count_tokens(self, text: str) -> int:
        return len(text)


class TestTheEmbedder:
    def test_documents_and_questions_are_counted_apart(self, spending: TenantSpending) -> None:
        embedder = BudgetedEmbedder(Asked(), spending.budget())
        assert embedder.embed_documents(["abc", "de"]).shape == (2, 2)
        assert embedder.embed_query("abcd").shape == (2,)
        assert spending.used() == {"document": (1, 2, 5, 0), "query": (1, 1, 4, 0)}

    def test_it_passes_on_what_the_service_charged(self, spending: TenantSpending) -> None:
        BudgetedEmbedder(Asked(used_tokens=3), spending.budget()).embed_documents(["abc", "de"])
        assert spending.used()["document"][2] == 3

    def test_calls_have_no_more_texts_than_the_budget_could_ever_allow(
        self, spending: TenantSpending
    ) -> None:
        limits = BudgetedEmbedder(Asked(), spending.budget(texts=20, tokens=1000, query_share=0.5)).limits
        assert (limits.texts, limits.tokens) == (10, 5000)
        limits = BudgetedEmbedder(Asked(), spending.budget(texts=2000)).limits
        assert limits.texts == 100
        limits = BudgetedEmbedder(Asked(), spending.budget()).limits
        assert limits.texts == 100

    def test_a_provider_that_sends_us_away_is_left_alone_by_all(self, spending: TenantSpending) -> None:
        budget = spending.budget()
        trouble = EmbedderUnavailable("busy", retry_after=40)
        with pytest.raises(EmbedderUnavailable):
            BudgetedEmbedder(Asked(trouble), budget).embed_documents(["a"])
        assert 37 < (spent(budget, HUNDRED).retry_after or 0) <= 40

    def test_the_third_failure_tells_when_to_come_back(self, spending: TenantSpending) -> None:
        budget = spending.budget(base=30.0)
        told = []
        for _ in range(3):
            trouble = EmbedderUnavailable("away")
            with pytest.raises(EmbedderUnavailable):
                BudgetedEmbedder(Asked(trouble), budget).embed_documents(["a"])
            told.append(trouble.retry_after)
        assert told == [None, None, 30.0]

    def test_a_refusal_shows_that_the_provider_is_there(self, spending: TenantSpending) -> None:
        budget = spending.budget(base=30.0)

        def call(trouble: LarderError) -> Callable[[], Any]:
            return lambda: BudgetedEmbedder(Asked(trouble), budget).embed_documents(["a"])

        for trouble in (
            EmbedderUnavailable(),
            EmbedderUnavailable(),
            EmbedderRefused(),
            EmbedderUnavailable(),
        ):
            with pytest.raises(LarderError):
                call(trouble)()
        budget.take(HUNDRED)
