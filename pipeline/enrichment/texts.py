"""The whole text of found documents, read under the rights of their tenant."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Chunk

MOST_CHUNKS = 100
"""Of one document: outcome, decision and lessons of anything longer than a book chapter are not looked for."""


@dataclass(frozen=True, kw_only=True)
class DocumentText:
    """What the index holds of a document."""

    external_id: str
    chunks: Sequence[Chunk]


class Texts(Protocol):
    """Reads documents that a search has found."""

    def of(self, document_ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
        """Their chunks in order; a document that is gone meanwhile is left out.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        ...

    def ids(self, refs: Collection[str]) -> Sequence[UUID]:
        """The work items that a source knows by one of these ids.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        ...


class PgTexts:
    """Reads the active search index of one tenant."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant

    def of(self, document_ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
        """See `Texts`; one statement."""
        if not document_ids:
            return {}
        with self.database.tenant(self.tenant) as connection:
            rows = connection.execute(
                text("""
                    select d.id, d.external_id, c.ord, c.content, c.context
                    from document d join chunk c on c.document_id = d.id
                    where c.index_id = (select id from search_index where status = 'active')
                      and d.id = any(:ids) and not d.hidden and not d.deleted and c.ord < :most
                    order by d.id, c.ord"""),
                {"ids": list(document_ids), "most": MOST_CHUNKS},
            ).all()
        names = {row.id: row.external_id for row in rows}
        chunks: dict[UUID, list[Chunk]] = {}
        for row in rows:
            found = Chunk(ord=row.ord, content=row.content, context=row.context)
            chunks.setdefault(row.id, []).append(found)
        return {key: DocumentText(external_id=names[key], chunks=chunks[key]) for key in names}

    def ids(self, refs: Collection[str]) -> Sequence[UUID]:
        """See `Texts`; a look into each source, by its key."""
        if not refs:
            return ()
        with self.database.tenant(self.tenant) as connection:
            rows = connection.execute(
                text("""
                    select d.id from source s cross join lateral (
                        select d.id from document d
                        where d.tenant_id = s.tenant_id and d.source_id = s.id and d.external_id = any(:refs)
                          and d.kind = 'work' offset 0) d"""),
                {"refs": list(refs)},
            )
            return [row.id for row in rows]
