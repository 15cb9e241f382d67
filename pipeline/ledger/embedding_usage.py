"""What embedding used and cost, per tenant and day in UTC, and the most it may."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json

UsageKind = Literal["document", "query"]


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Whose use is counted together."""

    tenant_id: UUID
    provider: str
    model: str
    kind: UsageKind


@dataclass(frozen=True, kw_only=True)
class Used:
    """Amounts to add; negative ones take back."""

    calls: int = 0
    texts: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)
    cache_hits: int = 0


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The most of a tenant's day, over all models; None: no ceiling."""

    tokens: int | None = None
    cost: Decimal | None = None

    @property
    def any(self) -> bool:
        """True if there is one."""
        return self.tokens is not None or self.cost is not None


_ADD = text("""
    insert into embedding_usage as u (tenant_id, day, provider, model, kind, calls, texts, tokens, cost, cache_hits)
    values (:tenant, coalesce(:day, current_date), :provider, :model, :kind, :calls, :texts, :tokens, :cost,
            :cache_hits)
    on conflict (tenant_id, day, provider, model, kind) do update set
        calls = u.calls + excluded.calls, texts = u.texts + excluded.texts, tokens = u.tokens + excluded.tokens,
        cost = u.cost + excluded.cost, cache_hits = u.cache_hits + excluded.cache_hits
    returning day""")


def add(connection: Connection, meter: Meter, used: Used, day: date | None = None) -> date:
    """Count use for `day`, today by default; returns the day. Last in a transaction: it locks the tenant's row."""
    made: date = connection.execute(_ADD, {**_key(meter), "day": day, **_amounts(used)}).scalar_one()
    return made


def reserve(connection: Connection, meter: Meter, used: Used, ceiling: Ceiling) -> date | None:
    """Count use before the call is made, so that a killed process cannot forget it; None if the day has no room."""
    if ceiling.any:
        connection.execute(
            text("select pg_advisory_xact_lock(hashtext('larder.usage'), hashtext(:tenant))"),
            {"tenant": str(meter.tenant_id)},
        )
        spent = connection.execute(
            text("""
                select coalesce(sum(tokens), 0) as tokens, coalesce(sum(cost), 0) as cost
                from embedding_usage where tenant_id = :tenant and day = current_date"""),
            {"tenant": meter.tenant_id},
        ).one()
        if ceiling.tokens is not None and spent.tokens + used.tokens > ceiling.tokens:
            return None
        if ceiling.cost is not None and spent.cost + used.cost > ceiling.cost:
            return None
    return add(connection, meter, used)


def seconds_to_midnight(connection: Connection) -> float:
    """Until the next day begins, by the database's clock in UTC."""
    left = connection.execute(
        text("select extract(epoch from date_trunc('day', now(), 'UTC') + interval '1 day' - now())")
    ).scalar_one()
    return float(left)


def today(connection: Connection) -> list[Json]:
    """Today's use by tenant, model and kind, for the operator."""
    rows = connection.execute(
        text("""
            select t.name as tenant, u.provider, u.model, u.kind, u.calls, u.texts, u.tokens,
                   cast(u.cost as double precision) as cost, u.cache_hits
            from embedding_usage u join tenant t on t.id = u.tenant_id
            where u.day = current_date order by t.name, u.provider, u.model, u.kind"""),
    )
    return [dict(row) for row in rows.mappings()]


def forget_old(connection: Connection, *, days: int) -> None:
    """Drop what is older."""
    connection.execute(
        text("delete from embedding_usage where day < current_date - cast(:days as integer)"), {"days": days}
    )


def _key(meter: Meter) -> Mapping[str, Any]:
    return {
        "tenant": meter.tenant_id,
        "provider": meter.provider,
        "model": meter.model,
        "kind": meter.kind,
    }


def _amounts(used: Used) -> Mapping[str, Any]:
    return {
        "calls": used.calls,
        "texts": used.texts,
        "tokens": used.tokens,
        "cost": used.cost,
        "cache_hits": used.cache_hits,
    }
