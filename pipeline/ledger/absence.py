"""Removing what a source no longer has: hidden at first absence, deleted at the second, held if it is too much."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Listing
from pipeline.ledger import admission
from pipeline.ledger.storable import clean


@dataclass(frozen=True, kw_only=True)
class DeletionGuard:
    """More than `share` and more than `documents` of a source in one walk wait for a human."""

    share: float = 0.2
    documents: int = 25


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What a walk removed; `held` documents wait for `larder sources release`."""

    hidden: int = 0
    deleted: int = 0
    held: int = 0


def prune(connection: Connection, source_id: UUID, listing: Listing, guard: DeletionGuard) -> Pruned:
    """Compare the ledger with a complete walk. An incomplete walk proves nothing and changes nothing."""
    if not listing.complete:
        return Pruned()
    here = {clean(i) for i in listing.ids}
    rows = connection.execute(
        text("select id, hidden, external_id from document where source_id = :source and not deleted"),
        {"source": source_id},
    )
    living = [(row.id, row.hidden, row.external_id not in here) for row in rows]
    absent = [(i, hidden) for i, hidden, gone in living if gone]
    newly = [i for i, hidden in absent if not hidden]
    again = [i for i, hidden in absent if hidden]
    many = len(newly) > guard.documents and len(newly) > guard.share * len(living)
    if many and not _released(connection, source_id):
        connection.execute(
            text("update source set held = :n where id = :id"), {"n": len(newly), "id": source_id}
        )
        return Pruned(held=len(newly), deleted=admission.remove(connection, again))
    connection.execute(text("update source set held = 0 where id = :id and held > 0"), {"id": source_id})
    connection.execute(
        text("""
            update document set hidden = true
            where id in (select id from document where id = any(:ids) order by id for update)"""),
        {"ids": newly},
    )
    return Pruned(hidden=len(newly), deleted=admission.remove(connection, again))


def _released(connection: Connection, source_id: UUID) -> bool:
    row = connection.execute(
        text("select coalesce(released_until > now(), false) from source where id = :id"),
        {"id": source_id},
    )
    return bool(row.scalar_one())
