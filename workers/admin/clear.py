"""Removing what was indexed, for one tenant."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json
from pipeline.errors import ConfigurationError
from pipeline.ledger import audit
from workers.control.maintenance import refresh_tenant
from workers.runtime import Runtime


def _source(connection: Connection, name: str | None) -> UUID | None:
    if name is None:
        return None
    row = connection.execute(text("select id from source where name = :n"), {"n": name}).one_or_none()
    if row is None:
        known = [r.name for r in connection.execute(text("select name from source order by name"))]
        raise ConfigurationError(
            f"no source is called {name!r}", fix=f"known are {', '.join(known) or 'none'}"
        )
    found: UUID = row.id
    return found


def count(parts: Runtime, tenant: UUID, source: str | None) -> int:
    """How many living documents `clear` would remove."""
    with parts.database.tenant(tenant) as connection:
        wanted = _source(connection, source)
        row = connection.execute(
            text("""
                select count(*) from document
                where not deleted and source_id = coalesce(cast(:s as uuid), source_id)"""),
            {"s": wanted},
        )
        return int(row.scalar_one())


def clear(parts: Runtime, tenant: UUID, source: str | None) -> Json:
    """Remove documents with all that hangs on them, and forget where their sources stopped.

    One transaction: either all of it is gone, or nothing is. Open runs end here.
    """
    with parts.database.tenant(tenant) as connection:
        wanted = _source(connection, source)
        where = {"s": wanted}
        connection.execute(
            text("""
                update sync_run set state = 'failed', finished_at = now(), error = 'cleared'
                where finished_at is null and source_id = coalesce(cast(:s as uuid), source_id)"""),
            where,
        )
        # First the rows that whoever fills another search index holds while it writes chunks there.
        connection.execute(
            text("""
                delete from index_document where document_id in
                    (select id from document where source_id = coalesce(cast(:s as uuid), source_id))"""),
            where,
        )
        chunks = connection.execute(
            text("""
                delete from chunk where document_id in
                    (select id from document where source_id = coalesce(cast(:s as uuid), source_id))"""),
            where,
        ).rowcount
        documents = connection.execute(
            text(
                "delete from document where source_id = coalesce(cast(:s as uuid), source_id) returning deleted"
            ),
            where,
        )
        living = sum(not row.deleted for row in documents)
        connection.execute(
            text("""
                update source set cursor = null, stamp = null, held = 0, last_sync_at = null,
                       sync_token = null, sync_lease_until = null
                where id = coalesce(cast(:s as uuid), id)"""),
            where,
        )
        if wanted is None:
            connection.execute(text("delete from embedding_cache"))
        audit.append(connection, tenant, "clear", source or "everything", {}, by="cli")
    refresh_tenant(parts, tenant)
    return {"documents": living, "chunks": chunks}
