"""Search indexes beside each other: begin one, switch to one, drop one, copy from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Chunk
from pipeline.errors import StoreRejected
from pipeline.search.chunk_store import SearchIndex, indexes


@dataclass(frozen=True, kw_only=True)
class WantedIndex:
    """What an index is to be made with."""

    provider: str
    model: str
    dimensions: int
    strategy: str = ""
    """Cuts the documents of every source; empty: as each source is configured."""

    def fits(self, index: SearchIndex) -> bool:
        """True if the index is made like this."""
        mine = (self.provider, self.model, self.dimensions, self.strategy)
        return mine == (index.provider, index.model, index.dimensions, index.strategy)

    def __str__(self) -> str:
        cut = f", cut by {self.strategy}" if self.strategy else ""
        return f"{self.provider} {self.model}, {self.dimensions} dimensions{cut}"


def made_with(index: SearchIndex) -> WantedIndex:
    """What an index was made with."""
    return WantedIndex(
        provider=index.provider, model=index.model, dimensions=index.dimensions, strategy=index.strategy
    )


def begin_index(connection: Connection, wanted: WantedIndex, *, chunker: str) -> SearchIndex:
    """An empty index beside the active one, or the one that is being filled already; on the control role.

    The caller looks whether it is the one that was wanted.
    """
    made = connection.execute(
        text("select begin_search_index(:provider, :model, :dimensions, :chunker, :pipeline, :strategy)"),
        {
            "provider": wanted.provider,
            "model": wanted.model,
            "dimensions": wanted.dimensions,
            "chunker": wanted.strategy or chunker,
            "pipeline": f"{wanted.strategy or chunker}|{wanted.model}:{wanted.dimensions}",
            "strategy": wanted.strategy,
        },
    ).scalar_one()
    return next(index for index in indexes(connection) if index.id == made)


def activate(connection: Connection, new: SearchIndex, old: SearchIndex) -> None:
    """Let searches read `new` from the commit on; `old` is kept and followed. On the control role.

    Work that waits was cut for the old index; if the new one is cut in another way, it begins anew.
    """
    connection.execute(text("select activate_search_index(:i)"), {"i": new.id})
    if new.strategy != old.strategy:
        connection.execute(
            text("""
                update document set stage = 'fetched', lease_token = null, lease_until = null, enqueued_at = null
                where id in (select id from document where state = 'pending' and stage <> 'fetched'
                             order by id for update)"""),
        )


def drop_index(connection: Connection, index: SearchIndex) -> None:
    """Remove an index that is not read, with its chunks; on the control role.

    Raises:
        StoreRejected: it is the active one.
        StoreUnavailable: searches hold its tables for too long; try again.
    """
    if index.status == "active":
        raise StoreRejected(f"search index {index.id} is the active one", fix="switch to another one first")
    connection.execute(text("select drop_search_index(:i)"), {"i": index.id})


def forget_words(connection: Connection, index: int) -> None:
    """Remove what was counted for an index that is gone, for this tenant."""
    for table in ("lexeme_stat", "index_stat"):
        connection.execute(text(f"delete from {table} where index_id = :i"), {"i": index})


def contents(connection: Connection, keys: Sequence[tuple[UUID, int, int]]) -> dict[UUID, list[Chunk]]:
    """The chunks of documents as (document, index, version) has them; a document without such chunks is left out."""
    rows = connection.execute(
        text("""
            select c.document_id, c.ord, c.content, c.context
            from unnest(cast(:ids as uuid[]), cast(:indexes as integer[]), cast(:versions as integer[]))
                 as k(id, index, version)
            join chunk c on c.index_id = k.index and c.document_id = k.id and c.version = k.version
            order by c.document_id, c.ord"""),
        {"ids": [k[0] for k in keys], "indexes": [k[1] for k in keys], "versions": [k[2] for k in keys]},
    )
    found: dict[UUID, list[Chunk]] = {}
    for row in rows:
        chunk = Chunk(ord=row.ord, content=row.content, context=row.context)
        found.setdefault(row.document_id, []).append(chunk)
    return found


def touch_documents(connection: Connection, index: SearchIndex, ids: Sequence[UUID]) -> None:
    """Let answers die that were kept from before these documents were filled into the index that is read."""
    connection.execute(
        text("""
            update document set indexed_version = indexed_version
            where id in (select id from document where id = any(:ids)
                         and exists (select from search_index where id = :index and status = 'active')
                         order by id for update)"""),
        {"ids": list(ids), "index": index.id},
    )
