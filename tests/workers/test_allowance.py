"""From a configuration to what may be embedded, and what the operator sees of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from sqlalchemy import Connection, text

from pipeline.embedding.budget import BudgetedEmbedder, Cost
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import BudgetSpent, EmbedderRefused
from pipeline.ledger import embedding_use
from tests.conftest import Addresses
from tests.ledger import ago, ahead, of_connection
from tests.pipeline.source_ledger import SourceLedger, document
from workers import runtime as runtimes
from workers.app import status
from workers.app.doctor import doctor
from workers.app.health.judgement import Diagnosis
from workers.app.ingestion import maintenance, pump, sync, sync_now
from workers.limits.allowance import PROBE_DOCUMENTS
from workers.local import embedded
from workers.queue.app import configure
from workers.runtime import Runtime
from workers.settings import SettingsError, load

KEY = "sk-very-secret-0123456789"
PAID: dict[str, Any] = {"provider": "openai", "model": "text-embedding-3-small", "apiKey": KEY}
Open = Callable[..., Runtime]


@pytest.fixture
def opened(tmp_path: Path, shared_addresses: Addresses, servers: embedded.Servers) -> Iterator[Open]:
    """`opened(**embedding)`: an installation with this section `embedding`."""
    made: list[Runtime] = []

    def build(**section: Any) -> Runtime:
        written = ", ".join(f"{k}: {v}" for k, v in section.items())
        (tmp_path / "larder.yaml").write_text(
            f"rag: {{tenant: acme, project: app, embedding: {{{written}}}}}\n"
        )
        settings = load(tmp_path / "larder.yaml", {"LARDER_DATA": str(tmp_path / "data")})
        where = runtimes.Addresses(
            database=shared_addresses.app,
            control=shared_addresses.control,
            admin=shared_addresses.admin,
            broker=servers.broker_url,
        )
        made.append(Runtime(settings, where))
        configure(settings.rag.queue, servers.broker_url)
        return made[-1]

    with redis.Redis.from_url(servers.broker_url) as broker:
        broker.flushdb()  # what waits from another test takes the room of what is to be embedded
        yield build
        broker.flushdb()
    for runtime in made:
        with runtime.database.control() as connection:
            for table in ("document", "source", "embedding_hold", "embedding_usage"):
                connection.execute(text(f"delete from {table}"))
        if runtime.allowance.rate:
            runtime.allowance.rate.disconnect()
        runtime.database.close()


def state(runtime: Runtime) -> Any:
    with runtime.database.control() as connection:
        return status.embedding_state(runtime, connection)


def room(runtime: Runtime) -> int | None:
    with runtime.database.control() as connection:
        return runtime.allowance.embed_room(connection)


def held(runtime: Runtime, fix: str = "correct embedding.apiKey") -> str:
    """Put a hold on a configuration; its fingerprint."""
    name = runtime.allowance.fingerprint
    with runtime.database.control() as connection:
        embedding_use.hold(
            connection, name, EmbedderRefused("the key is refused", fix=fix), probe_seconds=300
        )
    return name


def stuck(runtime: Runtime, due_at: datetime, reason: str = "used up") -> None:
    """A document that waits to be embedded."""
    notes = SourceLedger(
        runtime.database,
        runtime.settings.tenant_id,
        runtime.settings.project_id,
    )
    notes.admit(document("a"))
    notes.set("a", stage="chunked", waits=3, last_error=reason, due_at=due_at)


def diagnosed(runtime: Runtime) -> Diagnosis:
    """What the doctor says of the embedder."""
    return next(one for one in doctor.examine(runtime) if one.check == "embedding")


class TestTheConfiguration:
    def test_a_model_inside_our_processes_is_free_unless_it_is_limited(self, opened: Open) -> None:
        free = opened(provider="hashing").allowance
        assert (free.metered, free.rate, free.terms.budget) == (False, None, None)
        assert opened(provider="hashing", textsPerMinute=100).allowance.metered
        assert opened(provider="hashing", dailyTokens=100).allowance.metered

    def test_a_service_is_metered(self, opened: Open) -> None:
        allowance = opened(**PAID, requestsPerMinute=60, tokensPerMinute=1000, queryShare=0.25).allowance
        assert allowance.terms.budget is not None
        assert allowance.rate is not None
        limits = allowance.rate.limits
        assert (limits.requests, limits.texts, limits.tokens, limits.query_share) == (60, None, 1000, 0.25)

    @pytest.mark.parametrize(
        "change",
        [
            {"apiKey": "sk-other"},
            {"model": "text-embedding-3-large"},
            {"dimensions": 256},
            {"baseUrl": "http://a"},
        ],
    )
    def test_each_part_of_it_makes_another_fingerprint(self, opened: Open, change: dict[str, Any]) -> None:
        first = opened(**PAID).allowance.fingerprint
        assert opened(**PAID).allowance.fingerprint == first
        assert opened(**{**PAID, **change}).allowance.fingerprint != first

    def test_the_key_is_nowhere(self, opened: Open, servers: embedded.Servers) -> None:
        runtime = opened(**PAID, textsPerMinute=10)
        assert runtime.allowance.rate is not None
        runtime.allowance.rate.take(Cost(texts=1, tokens=1))
        held(runtime)
        with redis.Redis.from_url(servers.broker_url) as broker:
            seen = b" ".join(k + b" " + (broker.dump(k) or b"") for k in broker.keys("larder:embed:*"))
        assert b"openai-" in seen
        assert KEY.encode() not in seen
        assert KEY not in repr(state(runtime)) + repr(runtime.allowance.terms)

    def test_one_key_is_one_bucket_whatever_the_model(self, opened: Open) -> None:
        limits = {"textsPerMinute": 10, "queryShare": 0}
        one, other = (
            opened(**{**PAID, **limits, "model": f"text-embedding-3-{size}"}) for size in ("small", "large")
        )
        assert one.allowance.rate
        assert other.allowance.rate
        one.allowance.rate.take(Cost(texts=10, tokens=0))
        with pytest.raises(BudgetSpent):
            other.allowance.rate.take(Cost(texts=1, tokens=0))
        another = opened(**{**PAID, **limits, "apiKey": "sk-other"}).allowance.rate
        assert another
        another.take(Cost(texts=10, tokens=0))

    def test_only_the_configured_model_is_within_the_budget(self, opened: Open) -> None:
        runtime = opened(**PAID)
        old = HashingEmbedder(8)
        assert runtime.allowance.budgeted(runtime.settings.tenant_id, old, "hashing-8") is old
        wrapped = runtime.allowance.budgeted(runtime.settings.tenant_id, old, runtime.model)
        assert isinstance(wrapped, BudgetedEmbedder)

    def test_money_needs_a_price(self, opened: Open) -> None:
        with pytest.raises(SettingsError, match="costPerMillionTokens"):
            opened(**PAID, dailyCost=5)


class TestTheRoom:
    def test_as_much_as_the_queue_takes(self, opened: Open) -> None:
        assert room(opened(**PAID)) is None
        assert room(opened(provider="hashing")) is None

    def test_nothing_while_held_but_a_few_to_probe(self, opened: Open) -> None:
        runtime = opened(**PAID)
        held(runtime)
        assert room(runtime) == 0
        assert room(opened(**{**PAID, "apiKey": "sk-mended"})) is None
        with runtime.database.control() as connection:
            of_connection(connection).holds.set(probe_at=ago())
        assert room(runtime) == PROBE_DOCUMENTS

    def test_nothing_while_the_provider_is_away_then_a_few(self, opened: Open) -> None:
        runtime = opened(**PAID)
        assert runtime.allowance.rate
        for _ in range(3):
            runtime.allowance.rate.failed(None)
        assert room(runtime) == 0
        with redis.Redis.from_url(runtime.addresses.broker) as broker:
            broker.delete(*broker.keys("larder:embed:*closed"))
        assert room(runtime) == PROBE_DOCUMENTS
        runtime.allowance.rate.answered()
        assert room(runtime) is None

    def test_the_pump_keeps_to_it(self, opened: Open) -> None:
        runtime = opened(**PAID)
        stuck(runtime, ago(minutes=1))

        def sent(connection: Connection) -> int:
            return sum(one is not None for one in of_connection(connection).documents.values("enqueued_at"))

        held(runtime)
        pump.pump_once(runtime)
        with runtime.database.control() as connection:
            assert sent(connection) == 0
            embedding_use.release_hold(connection, runtime.allowance.fingerprint)
        pump.pump_once(runtime)
        with runtime.database.control() as connection:
            assert sent(connection) == 1


class TestWhatTheOperatorSees:
    def test_all_is_well(self, opened: Open) -> None:
        runtime = opened(**PAID)
        found = status.status(runtime)
        assert found["embedding"] == {
            "state": "ok",
            "until": None,
            "error": None,
            "since": None,
            "fingerprint": runtime.allowance.fingerprint,
            "documents": 0,
            "failures": 0,
            "today": [],
            "budget_left": None,
            "cache_bytes": found["embedding"]["cache_bytes"],
            "last_load": {"texts": 0, "cut": 0},
        }
        assert diagnosed(runtime).status == "ok"

    def test_a_hold_and_what_to_do(self, opened: Open) -> None:
        runtime = opened(**PAID)
        name = held(runtime)
        found = status.status(runtime)
        shown = found["embedding"]
        assert (shown["state"], shown["fingerprint"]) == ("held", name)
        assert shown["error"] == "the key is refused (correct embedding.apiKey)"
        assert shown["since"] < shown["until"]
        assert (
            found["next"][0]["detail"] == "nothing is embedded: the key is refused (correct embedding.apiKey)"
        )
        diagnosis = diagnosed(runtime)
        assert diagnosis.status == "error"
        assert "correct embedding.apiKey" in diagnosis.detail

    def test_a_hold_of_workers_with_another_configuration(self, opened: Open) -> None:
        held(opened(**{**PAID, "apiKey": "sk-old"}))
        shown = state(opened(**PAID))
        assert shown["state"] == "held"
        assert "restart" in shown["error"]

    def test_a_wait(self, opened: Open) -> None:
        runtime = opened(**PAID)
        stuck(runtime, ahead(hours=2))
        shown = state(runtime)
        assert (shown["state"], shown["error"], shown["documents"]) == ("waiting", "used up", 1)
        assert diagnosed(runtime).status == "warning"

    def test_a_provider_that_is_left_alone(self, opened: Open) -> None:
        runtime = opened(**PAID)
        assert runtime.allowance.rate
        runtime.allowance.rate.failed(60.0)
        assert state(runtime)["state"] == "waiting"

    def test_held_documents_are_not_late(self, opened: Open) -> None:
        runtime = opened(**PAID)
        stuck(runtime, ago(hours=1))
        assert doctor.waiting(runtime).status == "warning"
        held(runtime)
        assert doctor.waiting(runtime).status == "ok"

    def test_todays_use(self, opened: Open) -> None:
        runtime = opened(**PAID, costPerMillionTokens=0.02)
        sync.register(runtime)
        budget = runtime.allowance.budget(runtime.settings.tenant_id)
        budget.spent(budget.take(Cost(texts=3, tokens=500_000)), None)
        (row,) = state(runtime)["today"]
        assert row == {
            "tenant": row["tenant"],
            "provider": "openai",
            "model": runtime.model,
            "kind": "document",
            "calls": 1,
            "texts": 3,
            "tokens": 500_000,
            "cost": 0.01,
            "cache_hits": 0,
        }


class TestAStart:
    def test_a_mended_configuration_takes_its_old_holds_away(self, opened: Open) -> None:
        old = opened(**{**PAID, "apiKey": "sk-old"})
        held(old)
        held(runtime := opened(**PAID))
        sync.register(runtime)
        with runtime.database.control() as connection:
            assert of_connection(connection).holds.values("fingerprint") == [runtime.allowance.fingerprint]

    def test_what_waits_tries_again(self, opened: Open) -> None:
        runtime = opened(**PAID)
        stuck(runtime, ahead(hours=10))
        sync.register(runtime)
        assert state(runtime)["state"] == "ok"


class TestACommandThatWaits:
    def test_it_does_not_wait_for_a_person(self, opened: Open) -> None:
        runtime = opened(**PAID)
        held(runtime)
        with pytest.raises(EmbedderRefused, match="correct embedding"):
            sync_now.raise_if_stuck(runtime)

    def test_it_does_not_wait_for_tomorrow(self, opened: Open) -> None:
        runtime = opened(**PAID)
        stuck(runtime, ahead(seconds=30))
        sync_now.raise_if_stuck(runtime)
        stuck(runtime, ahead(hours=3))
        with pytest.raises(BudgetSpent, match="used up"):
            sync_now.raise_if_stuck(runtime)


def test_old_use_and_dead_claims_are_trimmed(opened: Open) -> None:
    runtime = opened(**PAID)
    sync.register(runtime)
    meter = embedding_use.Meter(tenant_id=runtime.settings.tenant_id, provider="p", model="m", kind="query")
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        embedding_use.add_usage(connection, meter, embedding_use.Used(calls=1))
        embedding_use.add_usage(connection, meter, embedding_use.Used(calls=1))
        used = of_connection(connection)
        used.usage.set(day=ago(days=401).date())
        embedding_use.add_usage(connection, meter, embedding_use.Used(calls=7))
        dead = {"token": uuid4(), "until": ago(days=2)}
        used.claimed_texts.add(tenant_id=runtime.settings.tenant_id, model="m", hash=b"h", **dead)
    maintenance.trim(runtime)
    with runtime.database.tenant(runtime.settings.tenant_id) as connection:
        left = of_connection(connection)
        assert left.usage.values("calls") == [7]
        assert left.claimed_texts() == []
