"""Documents of one tenant for commands: found by the names people use, read as a corpus, counted, cleared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from pgvector import HalfVector
from sqlalchemy import Connection, Row, text

from pipeline.documents import Json
from pipeline.embedding import Vectors
from pipeline.errors import ConfigurationError
from pipeline.ledger import ACTIVE, Item, work

PAGE = 500
"""Documents of a corpus read at a time."""


# By name ------------------------------------------------------------------------------------------

_FACTS = f"""
    select d.id, d.external_id, s.name as source, d.source_type, d.kind, d.title, d.url, d.tags, d.metadata,
           d.state, coalesce(w.stage, 'done') as stage, d.hidden, d.deleted, d.desired_version, d.indexed_version,
           d.pipeline_version, d.indexed_pipeline, coalesce(w.attempts, 0) as attempts,
           coalesce(w.crash_count, 0) as crash_count, w.last_error, d.chunk_count, d.created_at, d.updated_at,
           d.last_indexed, w.due_at, w.lease_until, d.security_level, d.served_level, d.acl, d.served_acl, d.project_id,
           p.name as project,
           (select to_jsonb(l) from (select x.stage, x.code, x.reason, x.attempts, x.version, x.created_at
            from dead_letter x where x.document_id = d.id and x.resolved_at is null
            order by x.id desc limit 1) l) as dead_letter
    from document d join source s on s.id = d.source_id left join project p on p.id = d.project_id
    left join index_work w on w.document_id = d.id and w.index_id = {ACTIVE}"""

# Ways to name a document, the most exact first; the first one with a match decides.
_NAMES = (
    "cast(d.id as text) = lower(split_part(:name, ':', 1))",
    # Backlog items of several runs may share an id; only the first has it as its external id.
    """d.external_id = :name or d.metadata ->> 'pbi_id' = :name or d.metadata ->> 'source_path' = :name
       or d.url = :name""",
    """right('/' || d.external_id, length(:name) + 1) = '/' || :name
       or right('/' || (d.metadata ->> 'source_path'), length(:name) + 1) = '/' || :name""",
    "lower(d.title) = lower(:name)",
    "strpos(lower(d.title), lower(:name)) > 0",
)


def find(connection: Connection, name: str, *, most: int) -> list[Json]:
    """The rows of the documents that `name` matches best: by id, external id, end of a path or part of a title."""
    for condition in _NAMES:
        statement = text(f"{_FACTS} where {condition} order by d.deleted, d.external_id, d.id limit :most")
        rows = connection.execute(statement, {"name": name, "most": most})
        if matches := [dict(row) for row in rows.mappings()]:
            return matches
    return []


def with_ref(connection: Connection, ref: str, source: str | None) -> Sequence[Row[Any]]:
    """Documents of this external id or id, of all sources or one: id, external_id, title, deleted, source."""
    statement = text("""
        select d.id, d.external_id, d.title, d.deleted, s.name as source
        from document d join source s on s.id = d.source_id
        where (d.external_id = :ref or cast(d.id as text) = lower(:ref))
          and (cast(:source as text) is null or s.name = :source)
        order by d.deleted, s.name limit 20""")
    return connection.execute(statement, {"ref": ref, "source": source}).all()


def similar_refs(connection: Connection, ref: str, *, most: int) -> Sequence[str]:
    """External ids of documents with `ref` in their id or title, the shortest first."""
    statement = text("""
        select d.external_id from document d
        where not d.deleted and (strpos(lower(d.external_id), lower(:ref)) > 0
                                 or strpos(lower(d.title), lower(:ref)) > 0)
        order by length(d.external_id), d.external_id limit :most""")
    return connection.execute(statement, {"ref": ref, "most": most}).scalars().all()


def items(connection: Connection, external_id: str) -> Sequence[Row[Any]]:
    """The document of this id in each project that has one: id, title, project_id, name (of the project), body."""
    statement = text("""
        select distinct on (d.project_id) d.id, d.title, d.project_id, p.name,
               coalesce((select b.body from document_body b where b.document_id = d.id
                         order by b.version desc limit 1), '') as body
        from document d left join project p on p.id = d.project_id
        where d.external_id = :item order by d.project_id, d.deleted, d.id""")
    return connection.execute(statement, {"item": external_id}).all()


def searchable_texts(connection: Connection, document: UUID) -> Sequence[str]:
    """The chunks of a document in the index that is read, with their context, as they were embedded."""
    statement = text("""
        select concat_ws(E'\\n\\n', nullif(context, ''), content) from searchable_chunk
        where document_id = :document and index_id = (select id from search_index where status = 'active')""")
    return connection.execute(statement, {"document": document}).scalars().all()


# All of them --------------------------------------------------------------------------------------

# Documents with the same external id in several sources are named with their source.
_CORPUS = """
    select case when count(*) over (partition by d.external_id) = 1 then d.external_id
                else s.name || ':' || d.external_id end as "_id", d.id{columns}
    from document d join source s on s.id = d.source_id join project p on p.id = d.project_id
    left join document_body b on b.document_id = d.id and b.version = d.indexed_version
    where d.indexed_version is not null and not d.hidden and not d.deleted order by d.number"""
_COLUMNS = """, d.external_id, s.name as source, p.name as project, d.kind, d.source_type, d.title, b.body as text,
    d.url, d.tags, d.metadata - 'encrypted' as metadata, d.created_at, d.updated_at"""


def corpus(connection: Connection) -> Iterator[Json]:
    """All searchable documents, with their indexed text; keys without a value are left out, times are texts."""
    statement = text(_CORPUS.format(columns=_COLUMNS))
    for row in connection.execute(statement.execution_options(yield_per=PAGE)).mappings():
        times = {key: row[key].isoformat() for key in ("created_at", "updated_at") if row[key]}
        yield {key: value for key, value in {**row, **times}.items() if value not in (None, "", [], {})}


def exist(connection: Connection) -> bool:
    """False if the tenant has no document at all."""
    return bool(connection.execute(text("select exists (select from document)")).scalar())


def facts(connection: Connection, ids: Sequence[UUID]) -> Mapping[UUID, Json]:
    """External id, number of chunks and security level of documents, by id."""
    statement = text("""
        select id, external_id, chunk_count, coalesce(served_level, security_level) as security_level
        from document where id = any(:ids)""")
    return {row["id"]: dict(row) for row in connection.execute(statement, {"ids": list(ids)}).mappings()}


def corpus_names(connection: Connection) -> Mapping[UUID, str]:
    """Document -> its `_id` in the corpus."""
    return {row.id: row[0] for row in connection.execute(text(_CORPUS.format(columns="")))}


def similarities(connection: Connection, index: int, vector: Vectors, ids: Sequence[UUID]) -> list[float]:
    """The cosine similarity of each document's nearest chunk."""
    statement = text("""
        select 1 - min(embedding <=> cast(:vector as halfvec)) as similarity
        from searchable_chunk where index_id = :index and document_id = any(:ids) and embedding is not null
        group by document_id""")
    rows = connection.execute(
        statement, {"vector": HalfVector(vector).to_text(), "index": index, "ids": list(ids)}
    )
    return [float(row.similarity) for row in rows]


# Work of a command that has no workers ------------------------------------------------------------


def restart_pending(connection: Connection) -> list[Item]:
    """Restart pending documents at the first step, since their worker may have stopped between two; returns them."""
    statement = text(f"""
        with restarted as (
            update index_work set stage = 'fetched', lease_token = null, lease_until = null, due_at = now()
            where index_id = {ACTIVE} and not dead returning document_id, version)
        select document_id, r.version from restarted r join document d on d.id = document_id order by d.number""")
    return [Item(row.document_id, row.version) for row in connection.execute(statement)]


def seconds_put_off(connection: Connection) -> float | None:
    """Seconds until all postponed documents are due; None if none is postponed."""
    statement = text(f"""
        select cast(extract(epoch from max(due_at) - now()) as double precision) from index_work
        where index_id = {ACTIVE} and not dead and waits > 0""")
    seconds: float | None = connection.execute(statement).scalar()
    return seconds


def never_indexed(connection: Connection) -> tuple[int, str | None]:
    """The number of documents that are in no index, and the last error of one of them."""
    statement = text(f"""
        select count(*) filter (where indexed_version is null) as failed, max(w.last_error) as reason
        from document left join index_work w on document_id = id and index_id = {ACTIVE} where not deleted""")
    row = connection.execute(statement).one()
    return row.failed, row.reason


# Clearing -----------------------------------------------------------------------------------------


def source_named(connection: Connection, name: str) -> UUID:
    """The id of a source.

    Raises:
        ConfigurationError: there is none of that name; the message lists the sources there are.
    """
    rows = connection.execute(text("select name, id from source order by name"))
    ids_by_name: dict[str, UUID] = {row.name: row.id for row in rows}
    if name not in ids_by_name:
        fix = f"known are {', '.join(ids_by_name) or 'none'}"
        raise ConfigurationError(f"no source is called {name!r}", fix=fix)
    return ids_by_name[name]


def move(connection: Connection, old: UUID, new: UUID) -> tuple[int, int]:
    """Give the documents of a source to another one of the tenant, and remove the source; locks go as in `clear`.

    They keep their ids, and so their chunks and feedback. Of a document that both sources have, the new source's stays,
    with the feedback for both.

    Returns:
        The number of documents that were moved, and of those that both had; deleted ones are not counted.
    """
    both = {"old": old, "new": new}
    connection.execute(text("select from source where id in (:old, :new) order by id for update"), both)
    connection.execute(
        text("select from document where source_id in (:old, :new) order by id for update"), both
    )
    twins = connection.execute(
        text("""
            select case when n.deleted then n.id else o.id end as goes,
                   case when n.deleted then o.id else n.id end as stays, not (n.deleted or o.deleted) as living
            from document o join document n on n.source_id = :new and n.external_id = o.external_id
            where o.source_id = :old"""),
        both,
    ).all()
    twin_ids = {"goes": [row.goes for row in twins], "stays": [row.stays for row in twins]}
    connection.execute(
        text("""
            update feedback f set document_id = t.stays
            from unnest(cast(:goes as uuid[]), cast(:stays as uuid[])) t(goes, stays)
            where f.document_id = t.goes and not exists (
                select from feedback g where g.document_id = t.stays and g.query_hash = f.query_hash)"""),
        twin_ids,
    )
    _delete(connection, twin_ids["goes"])
    moved = connection.execute(
        text("""
            update document set source_id = :new, project_id = (select project_id from source where id = :new)
            where source_id = :old returning not deleted as living"""),
        both,
    ).all()
    connection.execute(
        text("""
            update index_work set source_id = :new where (document_id, index_id) in (
                select document_id, index_id from index_work where source_id = :old
                order by document_id, index_id for no key update)"""),
        both,
    )
    connection.execute(text("update dead_letter set source_id = :new where source_id = :old"), both)
    connection.execute(text("delete from source where id = :old"), both)
    return sum(row.living for row in moved), sum(row.living for row in twins)


_OF_SOURCE = "source_id = coalesce(cast(:s as uuid), source_id)"


def count(connection: Connection, source: UUID | None) -> int:
    """The number of documents of a source, or of all sources; deleted ones are not counted."""
    statement = text(f"select count(*) from document where not deleted and {_OF_SOURCE}")
    return int(connection.execute(statement, {"s": source}).scalar_one())


def clear(connection: Connection, source: UUID | None) -> tuple[int, int]:
    """Remove documents with their chunks and all else of them, and the cursors of their sources; open runs end.

    Rows are locked in the order in which a page is admitted: sources, documents, runs. From the first lock on no page
    is stored, from the second on no chunk is written: a write under way is either committed already, or is refused.

    Returns:
        The number of documents that were not deleted yet, and of chunks.
    """
    statement = text("""
        update source set cursor = null, stamp = null, held = 0, last_sync_at = null,
               sync_token = null, sync_lease_until = null
        where id in (select id from source where id = coalesce(cast(:s as uuid), id) order by id for no key update)""")
    connection.execute(statement, {"s": source})
    statement = text(f"select id, deleted from document where {_OF_SOURCE} order by id for update")
    removed = connection.execute(statement, {"s": source}).all()
    chunks = _delete(connection, [row.id for row in removed])
    statement = text(f"""
        update sync_run set state = 'failed', finished_at = now(), error = 'cleared'
        where finished_at is null and {_OF_SOURCE}""")
    connection.execute(statement, {"s": source})
    living = sum(not row.deleted for row in removed)
    if source is None:
        connection.execute(text("delete from embedding_cache"))
    return living, chunks


def _delete(connection: Connection, ids: Sequence[UUID]) -> int:
    """Delete documents, which are locked, with their rows in all tables; returns the number of their chunks."""
    values = {"ids": list(ids)}
    work.forget(connection, ids)
    # Chunks have no foreign key; rows of all other tables go with their document.
    chunks = connection.execute(
        text("delete from chunk where document_id = any(cast(:ids as uuid[]))"), values
    ).rowcount
    connection.execute(text("delete from document where id = any(cast(:ids as uuid[]))"), values)
    return chunks
