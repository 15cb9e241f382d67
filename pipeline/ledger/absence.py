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
    restored: int = 0
    held: int = 0


def prune(connection: Connection, source_id: UUID, listing: Listing, guard: DeletionGuard) -> Pruned:
    """Compare the ledger with a complete walk. An incomplete walk proves nothing and changes nothing."""
    if not listing.complete:
        return Pruned()
    # Compared in the database: of a source with a hundred thousand items only those that matter come here.
    rows = connection.execute(
        text("""
            select d.id, d.hidden, w.id is null as absent from document d
            left join (select distinct unnest(cast(:here as text[])) as id) w on w.id = d.external_id
            where d.source_id = :source and not d.deleted and (w.id is null or d.hidden)"""),
        {"source": source_id, "here": [clean(i) for i in listing.ids]},
    ).all()
    living = connection.execute(
        text("select count(*) from document where source_id = :source and not deleted"), {"source": source_id}
    ).scalar_one()
    back = [row.id for row in rows if not row.absent]
    admission.show_again(connection, back)
    newly = [row.id for row in rows if row.absent and not row.hidden]
    again = [row.id for row in rows if row.absent and row.hidden]
    many = len(newly) > guard.documents and len(newly) > guard.share * living
    if many and not _released(connection, source_id):
        connection.execute(
            text("update source set held = :n where id = :id"), {"n": len(newly), "id": source_id}
        )
        return Pruned(held=len(newly), deleted=admission.remove(connection, again), restored=len(back))
    connection.execute(text("update source set held = 0 where id = :id and held > 0"), {"id": source_id})
    connection.execute(
        text("""
            update document set hidden = true
            where id in (select id from document where id = any(:ids) order by id for update)"""),
        {"ids": newly},
    )
    return Pruned(hidden=len(newly), deleted=admission.remove(connection, again), restored=len(back))


def differing(connection: Connection, source_id: UUID, listing: Listing, after: str = "") -> list[str]:
    """The external ids behind `after`, in order, of which the walk shows something else than the ledger has.

    A walk may read an item again although the ledger knows it is broken: what broke it may be mended.
    """
    rows = connection.execute(
        text("""
            select w.id from unnest(cast(:ids as text[]), cast(:marks as text[])) as w(id, mark)
            left join document d on d.source_id = :source and d.external_id = w.id and not d.deleted
            where d.fingerprint is distinct from w.mark and w.id collate "C" > :after
            order by w.id collate "C" asc"""),
        {
            "source": source_id,
            "ids": [clean(i) for i in listing.versions],
            "marks": [clean(mark) for mark in listing.versions.values()],
            "after": after,
        },
    )
    return list(rows.scalars())


def _released(connection: Connection, source_id: UUID) -> bool:
    row = connection.execute(
        text("select coalesce(released_until > now(), false) from source where id = :id"),
        {"id": source_id},
    )
    return bool(row.scalar_one())
