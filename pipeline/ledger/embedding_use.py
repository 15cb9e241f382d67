"""Use and budget of embedding per day, holds on a refused configuration, and claims on texts."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Literal
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError, EmbeddingError, LarderError, TextRejected
from pipeline.ledger import Lease
from pipeline.ledger.leases import TERM, Leased

UsageKind = Literal["document", "query"]


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Tenant, provider, model and kind of call: the key under which use is counted."""

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
class DailyLimit:
    """The most that a tenant may use in a day, over all models; None: no limit."""

    tokens: int | None = None
    cost: Decimal | None = None

    @property
    def any(self) -> bool:
        """True if either limit is set."""
        return self.tokens is not None or self.cost is not None


_ADD = text("""
    insert into embedding_usage as u (tenant_id, day, provider, model, kind, calls, texts, tokens, cost, cache_hits)
    values (:tenant_id, coalesce(:day, current_date), :provider, :model, :kind, :calls, :texts, :tokens, :cost,
            :cache_hits)
    on conflict (tenant_id, day, provider, model, kind) do update set
        calls = u.calls + excluded.calls, texts = u.texts + excluded.texts, tokens = u.tokens + excluded.tokens,
        cost = u.cost + excluded.cost, cache_hits = u.cache_hits + excluded.cache_hits
    returning day""")


def add_usage(connection: Connection, meter: Meter, used: Used, day: date | None = None) -> date:
    """Count use for `day`, today by default; returns the day. Last in a transaction: it locks the tenant's row."""
    counted_day: date = connection.execute(_ADD, {**vars(meter), **vars(used), "day": day}).scalar_one()
    return counted_day


def reserve(connection: Connection, meter: Meter, used: Used, ceiling: DailyLimit) -> date | None:
    """Count use before the call is made, so that a killed process cannot forget it; None if the day has no room."""
    if ceiling.any:
        statement = text("select pg_advisory_xact_lock(hashtext('larder.usage'), hashtext(:tenant))")
        connection.execute(statement, {"tenant": str(meter.tenant_id)})
        statement = text("""
            select coalesce(sum(tokens), 0) as tokens, coalesce(sum(cost), 0) as cost
            from embedding_usage where tenant_id = :tenant and day = current_date""")
        spent = connection.execute(statement, {"tenant": meter.tenant_id}).one()
        if ceiling.tokens is not None and spent.tokens + used.tokens > ceiling.tokens:
            return None
        if ceiling.cost is not None and spent.cost + used.cost > ceiling.cost:
            return None
    return add_usage(connection, meter, used)


def seconds_to_midnight(connection: Connection) -> float:
    """Seconds until the next day begins, by the database's clock in UTC."""
    statement = text("select extract(epoch from date_trunc('day', now(), 'UTC') + interval '1 day' - now())")
    return float(connection.execute(statement).scalar_one())


def usage_today(connection: Connection) -> list[Json]:
    """Today's use by tenant, model and kind, for the operator."""
    statement = text("""
        select t.name as tenant, u.provider, u.model, u.kind, u.calls, u.texts, u.tokens,
               cast(u.cost as double precision) as cost, u.cache_hits
        from embedding_usage u join tenant t on t.id = u.tenant_id
        where u.day = current_date order by t.name, u.provider, u.model, u.kind""")
    return [dict(row) for row in connection.execute(statement).mappings()]


def cache_bytes(connection: Connection) -> int:
    """Bytes of the embedding cache, of all tenants."""
    return int(connection.execute(text("select pg_total_relation_size('embedding_cache')")).scalar_one())


OLD_PROBES = 3
"""Intervals between probes after which a hold that was not confirmed no longer counts."""


@dataclass(frozen=True, kw_only=True)
class Hold:
    """Why nothing is embedded with a configuration, and when that is tried again."""

    fingerprint: str
    code: str
    error: str
    """The error message, with what to do; without any text or secret."""
    since: datetime
    probe_at: datetime


def fingerprint(*parts: object) -> str:
    """The short hash that names a configuration; secrets may be among `parts`, since only their hash gets out."""
    joined = "\0".join(hashlib.sha256(str(part).encode()).hexdigest() for part in parts)
    return hashlib.sha256(joined.encode()).hexdigest()[:16]


def is_configuration_error(error: LarderError) -> bool:
    """True if the configuration causes the error, so that it will come again with any text."""
    if error.transient or isinstance(error, TextRejected):
        return False
    return isinstance(error, EmbeddingError | ConfigurationError)


def hold(connection: Connection, name: str, error: LarderError, *, probe_seconds: float) -> None:
    """Stop embedding with this configuration, in all workers, until it is probed again."""
    statement = text("""
        insert into embedding_hold (fingerprint, code, error, probe_at)
        values (:name, :code, :error, now() + make_interval(secs => :probe))
        on conflict (fingerprint) do update set code = excluded.code, error = excluded.error,
            seen_at = now(), probe_at = excluded.probe_at""")
    connection.execute(
        statement, {"name": name, "code": error.code, "error": str(error), "probe": probe_seconds}
    )


def release_hold(connection: Connection, name: str) -> None:
    """Remove the hold on this configuration, which works again."""
    connection.execute(text("delete from embedding_hold where fingerprint = :name"), {"name": name})


def release_other_holds(connection: Connection, name: str) -> None:
    """Remove the holds on all configurations but `name`; a worker that still has an old one sets its hold again."""
    connection.execute(text("delete from embedding_hold where fingerprint <> :name"), {"name": name})


def resume_waiting(connection: Connection) -> None:
    """Make all postponed work due now, since the provider or model it waited for may be another one."""
    statement = text("""
        update index_work set due_at = now() where (document_id, index_id) in (
            select document_id, index_id from index_work
            where not dead and waits > 0 and due_at > now() and lease_token is null
            order by document_id, index_id for update)""")
    connection.execute(statement)


def hold_on(connection: Connection, name: str, *, probe_seconds: float) -> Hold | None:
    """The hold on this configuration, if there is one that was confirmed lately."""
    newest = latest_hold(connection, name, probe_seconds=probe_seconds)
    return newest if newest and newest.fingerprint == name else None


def latest_hold(connection: Connection, name: str, *, probe_seconds: float) -> Hold | None:
    """The hold to show: that on this configuration, else the newest of workers that have another one."""
    statement = text("""
        select fingerprint, code, error, since, probe_at from embedding_hold
        where seen_at > now() - make_interval(secs => :old)
        order by fingerprint = :name desc, seen_at desc limit 1""")
    row = connection.execute(statement, {"name": name, "old": OLD_PROBES * probe_seconds}).mappings()
    newest = row.one_or_none()
    return Hold(**newest) if newest else None


def claim_probe(connection: Connection, name: str, *, probe_seconds: float) -> bool:
    """True for one caller when it is time to try again; for the others False until that try has ended."""
    statement = text("""
        update embedding_hold set probe_at = now() + make_interval(secs => :probe)
        where fingerprint = :name and probe_at <= now() returning fingerprint""")
    return connection.execute(statement, {"name": name, "probe": probe_seconds}).one_or_none() is not None


def probe_due(connection: Connection, name: str) -> bool:
    """True if it is time to try again."""
    statement = text("select probe_at <= now() from embedding_hold where fingerprint = :name")
    return bool(connection.execute(statement, {"name": name}).scalar())


# The claim inserts the rows, and the release deletes them.
_TEXTS = Leased(
    table="embedding_claim",
    rows="tenant_id = :tenant",
    key="tenant_id, model, hash",
    token="token",  # noqa: S106 - the name of a column
    until="until",
    crashes=False,
)
_RENEW = _TEXTS.renew()


def claim_texts(
    connection: Connection, claimed: Lease, model: str, hashes: Collection[bytes], *, lease: float
) -> set[bytes]:
    """Claim the `hashes` that nobody else is embedding, for as long as the documents are claimed; returns them.

    Look at the cache after this and not before: what was embedded a moment ago is not claimed any more.
    """
    # In one order everywhere, so that two workers with the same texts do not block each other.
    statement = text(f"""
        insert into embedding_claim as c (tenant_id, model, hash, token, until)
        select :tenant, :model, h, :token, {TERM} from unnest(cast(:hashes as bytea[])) as h order by h
        on conflict (tenant_id, model, hash) do update set token = excluded.token, until = excluded.until
            where c.until < now()
        returning hash""")
    owner = {"tenant": claimed.tenant_id, "token": claimed.token, "lease": lease}
    rows = connection.execute(statement, {**owner, "model": model, "hashes": list(hashes)})
    return {bytes(row.hash) for row in rows}


def renew_texts(connection: Connection, claimed: Lease, *, lease: float) -> None:
    """Keep the texts for another lease, as their lease keeps the documents."""
    connection.execute(_RENEW, {"tenant": claimed.tenant_id, "token": claimed.token, "lease": lease})


def release_texts(connection: Connection, claimed: Lease) -> None:
    """Give back all texts of a claim, embedded or not."""
    values = {"tenant": claimed.tenant_id, "token": claimed.token}
    connection.execute(_TEXTS.lock(), values)  # in the order of their keys
    statement = text("delete from embedding_claim where tenant_id = :tenant and token = :token")
    connection.execute(statement, values)


def forget_old_claims(connection: Connection) -> None:
    """Delete the tenant's claims of workers that died; they stop no work, they only take space."""
    connection.execute(text("delete from embedding_claim where until < now() - interval '1 day'"))
