"""Hints: items that webhooks named, read soon, each at most three times a minute."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

from pipeline.ledger import storable
from pipeline.ledger.admission import LONGEST_ID

HOOK = "hook"
"""The trigger of runs that read only what was named."""
TRIES = 3
"""Reads of an item that seems unchanged: at once, after 5 seconds and a minute later, since services tell of a change
before they show it. Hints that come in between are no reason for more."""


def record(
    connection: Connection, tenant: UUID, source: UUID, ids: Sequence[str], *, event_id: str = ""
) -> list[str]:
    """Note that these items changed; returns their ids, none if the event was received before."""
    values = {"tenant": tenant, "source": source, "event": event_id or str(uuid4())}
    statement = text("""
        insert into source_event (tenant_id, source_id, event_id) values (:tenant, :source, :event)
        on conflict do nothing returning event_id""")
    if connection.execute(statement, values).first() is None:
        return []
    noted_ids = [one for one in storable([*ids]) if len(one.encode()) <= LONGEST_ID]
    statement = text("""
        insert into source_hint as h (tenant_id, source_id, external_id)
        select :tenant, :source, id from unnest(cast(:ids as text[])) as n(id) order by id
        on conflict (source_id, external_id) do update
        set hinted_at = now(), tries = case when h.reads[1] > now() - interval '60 seconds' then h.tries else 0 end,
            due_at = greatest(now(), h.reads[1] + make_interval(secs => case when h.tries < 2 then 3 else 60 end),
                              h.reads[3] + interval '60 seconds')""")
    if noted_ids:
        connection.execute(statement, {**values, "ids": sorted({*noted_ids})})
    return noted_ids


def are_due(connection: Connection, source: UUID) -> bool:
    """True if an item of the source is to be read now."""
    statement = text("select exists (select from source_hint where source_id = :source and due_at <= now())")
    return bool(connection.execute(statement, {"source": source}).scalar())


def claim(connection: Connection, source: UUID, most: int) -> list[str]:
    """Take up to `most` items that are due, the longest due first; they are due again soon unless they are settled.

    One caller at a time for each source: whoever has the lease on its sync.
    """
    statement = text("""
        update source_hint set tries = tries + 1, reads = (array[now()] || reads)[1:3],
               due_at = greatest(now() + make_interval(secs => case tries when 0 then 5 else 60 end),
                                 reads[2] + interval '60 seconds')
        where source_id = :source and external_id in (
            select external_id from source_hint where source_id = :source and due_at <= now()
            order by due_at limit :most)
        returning external_id""")
    return sorted(connection.execute(statement, {"source": source, "most": most}).scalars())


def settle(connection: Connection, source: UUID, ids: Collection[str], changed_ids: Collection[str]) -> None:
    """End the hints of items that were read and had changed, or were read often enough, if none came meanwhile."""
    statement = text("""
        update source_hint h set tries = case when changed then 0 else tries end,
               due_at = case when hinted_at <= reads[1] and (changed or tries >= :tries) then null else due_at end
        from unnest(cast(:ids as text[])) as r(id) cross join lateral (select r.id = any(:changed) as changed) c
        where h.source_id = :source and h.external_id = r.id""")
    values = {"source": source, "ids": [*ids], "changed": [*changed_ids], "tries": TRIES}
    connection.execute(statement, values)


def trim(connection: Connection) -> None:
    """Forget events of more than a day ago, but the last of each source, and hints that were settled long ago.

    On the control role.
    """
    for statement in (
        """delete from source_event e where received_at < now() - interval '1 day' and exists (
               select from source_event l where l.source_id = e.source_id and l.received_at > e.received_at)""",
        "delete from source_hint where due_at is null and hinted_at < now() - interval '1 hour'",
    ):
        connection.execute(text(statement))


def last_event(connection: Connection, source: UUID) -> datetime | None:
    """When the last event of a source came; None if none did."""
    statement = text("select max(received_at) from source_event where source_id = :source")
    received_at: datetime | None = connection.execute(statement, {"source": source}).scalar()
    return received_at
