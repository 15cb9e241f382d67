"""Lanes and turns of documents: the order in which the pump sends them, by start-time fair queueing.

A lane has a clock, the newest turn that was sent to be embedded. Documents that are admitted get the turns after those
that their source has waiting already, counted from the clock. So a source that comes later is cut before the rest of a
large load until it has caught up, and then both take turns.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.ledger.leases import RESTARTED


class Lane(IntEnum):
    """Priority class of work items, and the priority of their messages: smaller numbers are sent first."""

    CHANGED = 0
    """Edits: documents that were indexed before and changed since, up to SHORT_OF of a source."""
    FEW = 3
    """Documents of a source with at most SHORT_OF to do, such as a small new one."""
    BULK = 6
    FILL = 9
    """Documents for a search index beside the one that is read."""


SHORT_OF = 64
"""The most waiting documents of a source that go before those of larger loads."""
BLOCK = 8
"""Documents of a source that have the same turn, so that they travel in one message."""
REQUEUED = f"{RESTARTED}, lane = {Lane.BULK}, turn = null"
"""Due at once, as part of a load; the pump gives the turn."""


@dataclass(frozen=True, kw_only=True)
class Turns:
    """Lane and turns of the next documents of a source."""

    lane: Lane
    first: int
    step: int
    """The number of sources of the tenant with waiting documents: they share its turns."""


_WAITING = text("""
    select cast(coalesce(sum(documents) filter (where source_id = :source), 0) as bigint) as documents,
           cast(coalesce(sum(documents) filter (where source_id = :source and indexed), 0) as bigint) as edited,
           (select count(*) from (select from document_count where state = 'pending' and source_id <> :source
                                  group by source_id having sum(documents) > 0) others) as other_sources,
           (select jsonb_object_agg(lane, turn) from lane_clock) as clocks
    from document_count where state = 'pending'""")


def next_turns(connection: Connection, source: UUID, *, edited: int, new: int) -> tuple[Turns, Turns]:
    """Turns for so many edited documents of a source, and for so many that were never searchable."""
    waiting = connection.execute(_WAITING, {"source": source}).one()

    def turns(lane: Lane, before: int) -> Turns:
        step = waiting.other_sources + 1
        return Turns(lane=lane, first=waiting.clocks[str(int(lane))] + before * step, step=step)

    bulk = turns(Lane.BULK, waiting.documents)
    few_edits = waiting.edited + edited <= SHORT_OF
    few = waiting.documents + edited + new <= SHORT_OF
    return (
        turns(Lane.CHANGED, waiting.edited) if few_edits else bulk,
        turns(Lane.FEW, waiting.documents) if few else bulk,
    )


def tag(
    connection: Connection, source: UUID, rows: Sequence[dict[str, Any]], *, edits: Collection[str]
) -> None:
    """Set `lane` and `turn` of documents that are admitted; `edits` are the external ids of searchable ones."""
    edited = [row for row in rows if row["external_id"] in edits]
    new = [row for row in rows if row["external_id"] not in edits]
    of_edited, of_new = next_turns(connection, source, edited=len(edited), new=len(new))
    for group, turns in ((edited, of_edited), (new, of_new)):
        for place, row in enumerate(group):
            row["lane"], row["turn"] = turns.lane, turns.first + place // BLOCK * BLOCK * turns.step


_GIVE = text(f"""
    with due as materialized (
        select id, source_id, lane, due_at from document
        where state = 'pending' and turn is null and due_at <= now() order by due_at limit :most
        for no key update skip locked
    ), placed as (
        select id, lane, row_number() over (partition by source_id, lane order by due_at, id) - 1 as place from due)
    update document d set turn = c.turn + p.place / {BLOCK} * {BLOCK}
    from placed p join lane_clock c on c.lane = p.lane where d.id = p.id""")


def give_turns(connection: Connection, *, most: int) -> None:
    """Give turns to due documents that were postponed or requeued, or admitted by a worker of before.

    On the control role. The index of those that can be sent then has no document that waits for its time.
    """
    connection.execute(_GIVE, {"most": most})
