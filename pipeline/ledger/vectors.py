"""Claims on missing vectors: of all workers that meet the same text, one has it embedded and pays."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol
from uuid import UUID

from sqlalchemy import Connection, text


class Owner(Protocol):
    """Documents under a lease, be it for a step or for filling an index."""

    @property
    def tenant_id(self) -> UUID:
        """Whose they are."""
        ...

    @property
    def token(self) -> UUID:
        """Of the lease."""
        ...


def claim(
    connection: Connection, claimed: Owner, model: str, hashes: Collection[bytes], *, lease: float
) -> set[bytes]:
    """Those of `hashes` that nobody else is embedding; they are ours as long as the documents are.

    Look at the cache after this and not before: what was embedded a moment ago is not claimed any more.
    """
    rows = connection.execute(
        text("""
            insert into embedding_claim as c (tenant_id, model, hash, token, until)
            -- in one order everywhere, so that two workers with the same texts do not block each other
            select :tenant, :model, h, :token, now() + make_interval(secs => :lease)
            from unnest(cast(:hashes as bytea[])) as h order by h
            on conflict (tenant_id, model, hash) do update set token = excluded.token, until = excluded.until
                where c.until < now()
            returning hash"""),
        {
            "tenant": claimed.tenant_id,
            "model": model,
            "token": claimed.token,
            "hashes": list(hashes),
            "lease": lease,
        },
    )
    return {bytes(row.hash) for row in rows}


def renew(connection: Connection, claimed: Owner, *, lease: float) -> None:
    """Keep the texts for another lease, as their lease keeps the documents."""
    connection.execute(
        text(f"""
            update embedding_claim set until = now() + make_interval(secs => :lease)
            where (tenant_id, model, hash) in ({_MINE})"""),
        {"tenant": claimed.tenant_id, "token": claimed.token, "lease": lease},
    )


def release(connection: Connection, claimed: Owner) -> None:
    """Give back all texts of a claim, embedded or not."""
    connection.execute(
        text(f"delete from embedding_claim where (tenant_id, model, hash) in ({_MINE})"),
        {"tenant": claimed.tenant_id, "token": claimed.token},
    )


def forget_old(connection: Connection) -> None:
    """Drop the tenant's claims of workers that died; they hold nothing up, they only lie about."""
    connection.execute(text("delete from embedding_claim where until < now() - interval '1 day'"))


_MINE = """
    select tenant_id, model, hash from embedding_claim where tenant_id = :tenant and token = :token
    order by hash for update"""
