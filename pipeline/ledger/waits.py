"""Documents that wait because the embedder may not be asked now; none of them has failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.ledger import Stage, work

SHOWN_SECONDS = 2.0
"""A shorter wait is part of ordinary work."""


def wait(
    connection: Connection, claimed: work.Claim, ids: Sequence[UUID], *, delay: float, reason: str | None
) -> None:
    """Give documents back for `delay` seconds; their tries stay what they were."""
    connection.execute(
        text("""
            update document set waits = waits + 1, crash_count = greatest(crash_count - 1, 0),
                   due_at = now() + make_interval(secs => :delay), enqueued_at = null, last_error = :reason,
                   lease_token = null, lease_until = null
            where id in (select id from document where id = any(:ids) and lease_token = :token
                         order by id for update)"""),
        {"ids": list(ids), "token": claimed.token, "delay": delay, "reason": reason},
    )


def wake(connection: Connection) -> None:
    """Let all that waits try again now: what it waited for may be another one."""
    connection.execute(
        text("""
            update document set due_at = now()
            where id in (select id from document where state = 'pending' and stage = :stage and waits > 0
                         and due_at > now() and lease_token is null order by id for update)"""),
        {"stage": Stage.CHUNKED},
    )


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What waits for the embedder, over all tenants."""

    documents: int
    waits: int
    """How often the one that waits for the longest was put back."""
    until: datetime
    """When the first of them goes on."""
    reason: str


def waiting(connection: Connection) -> Waiting | None:
    """What was put back with a reason and is not due yet; None if nothing was."""
    row = connection.execute(
        text("""
            select count(*) as documents, max(waits) as waits, min(due_at) as until,
                   (array_agg(last_error order by due_at))[1] as reason
            from document
            where state = 'pending' and stage = :stage and waits > 0 and last_error is not null and not deleted
              and due_at > now() + make_interval(secs => :shown)"""),
        {"stage": Stage.CHUNKED, "shown": SHOWN_SECONDS},
    ).one()
    if not row.documents:
        return None
    return Waiting(documents=row.documents, waits=row.waits, until=row.until, reason=row.reason)
