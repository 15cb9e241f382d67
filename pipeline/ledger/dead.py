"""Dead letters: documents that were given up, for a person to inspect, replay or drop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json
from pipeline.ledger import ACTIVE, Lane
from pipeline.ledger.leases import RESTARTED
from pipeline.ledger.work import resolve_letters


@dataclass(frozen=True, kw_only=True)
class DeadLetter:
    """The reason why work on one version of a document ended; never its text."""

    id: int
    tenant_id: UUID
    tenant: str
    source_id: UUID
    source: str
    document_id: UUID
    item: str
    """The document's id in its source: a path, a page id."""
    version: int
    stage: str
    code: str
    reason: str
    attempts: int
    crash_count: int
    at: datetime
    resolved_at: datetime | None
    resolution: str | None
    state: str
    """The document's state today."""
    desired_version: int
    indexed_version: int | None
    """The version that is searchable meanwhile, if any."""

    def to_json(self) -> Json:
        """All fields; ids as text, times in ISO 8601."""
        values: Json = dict(vars(self))
        times = {name: value.isoformat() for name, value in values.items() if isinstance(value, datetime)}
        return (
            values | times | {name: str(values[name]) for name in ("tenant_id", "source_id", "document_id")}
        )


_COLUMNS = """
    l.id, l.tenant_id, t.name as tenant, l.source_id, s.name as source, l.document_id, d.external_id as item,
    l.version, l.stage, l.code, l.reason, l.attempts, l.crash_count, l.created_at as at, l.resolved_at,
    l.resolution, d.state, d.desired_version, d.indexed_version"""
_FROM = """
    from dead_letter l join document d on d.id = l.document_id
    join source s on s.id = l.source_id join tenant t on t.id = l.tenant_id"""
# A letter about a version that was replaced meanwhile is not open: the new version is on its way.
_OPEN = """l.resolved_at is null and (
    (l.index_id is null and d.state = 'dead' and l.version = d.desired_version)
    or exists (select from index_work w where w.document_id = l.document_id and w.index_id = l.index_id
               and w.dead and w.version = l.version and d.indexed_version = l.version))"""


def listed(
    connection: Connection,
    *,
    source_ids: Sequence[UUID] | None = None,
    every: bool = False,
    most_per_source: int = 1000,
) -> list[DeadLetter]:
    """Open letters, newest first; with `every` the resolved ones, too."""
    sources = None if source_ids is None else list(source_ids)
    return _letters(
        connection,
        f"(:every or ({_OPEN})) and (cast(:sources as uuid[]) is null or l.source_id = any(cast(:sources as uuid[])))",
        {"every": every, "sources": sources, "most": most_per_source},
    )


def of_document(connection: Connection, document_id: UUID) -> list[DeadLetter]:
    """All letters about one document, newest first."""
    return _letters(connection, "l.document_id = :id", {"id": document_id})


def get(connection: Connection, letter_id: int) -> DeadLetter | None:
    """One letter, or None."""
    return next(iter(_letters(connection, "l.id = :id", {"id": letter_id})), None)


def count(connection: Connection) -> int:
    """The number of documents with an open letter."""
    row = connection.execute(text(f"select count(distinct l.document_id) {_FROM} where {_OPEN}"))
    return int(row.scalar_one())


def count_since_success(connection: Connection) -> int:
    """The number of documents that were given up since the last one became searchable."""
    statement = text(f"""
        select count(distinct l.document_id) {_FROM} where {_OPEN}
          and l.created_at > coalesce((select max(at) from document_count where state = 'done'), '-infinity')""")
    return int(connection.execute(statement).scalar_one())


MOST_DAMAGED = 10
"""Documents with an error of the database itself from which on the database is at fault, and not single documents."""


def damaged_alone(connection: Connection, document: UUID, *, index: int) -> bool:
    """True if few documents besides this one have an error of the database itself on their way into the index."""
    statement = text(r"""
        select count(*) < :most
        from (select from index_work where index_id = :index and document_id <> :id
              and last_error ~ '[(]XX...[)]' limit :most) others""")
    values = {"id": document, "index": index, "most": MOST_DAMAGED}
    return bool(connection.execute(statement, values).scalar_one())


def _letters(connection: Connection, condition: str, values: Json) -> list[DeadLetter]:
    statement = text(f"""
        select {", ".join(DeadLetter.__dataclass_fields__)} from (
            select {_COLUMNS}, row_number() over (partition by l.source_id order by l.id desc) as place
            {_FROM} where {condition}
        ) x where place <= coalesce(:most, place) order by id desc""")
    return [DeadLetter(**row) for row in connection.execute(statement, {"most": None, **values}).mappings()]


def replay(connection: Connection, document_ids: Sequence[UUID]) -> list[UUID]:
    """Queue dead documents anew in the version that failed; returns those that were dead.

    Documents that were given up only for another search index are queued for that one. The run with the failure stays
    closed. The document is due at once; the pump sends it on its next tick.
    """
    values = {"ids": list(document_ids)}
    statement = text("""
        update document set state = 'pending'
        where id in (select id from document where id = any(:ids) and not deleted order by id for no key update)
          and state = 'dead'""")
    connection.execute(statement, values)
    statement = text(f"""
        update index_work set dead = false, stage = 'fetched', turn = null, last_error = null, {RESTARTED},
               lane = case when index_id = {ACTIVE} then {Lane.BULK} else lane end
        where (document_id, index_id) in (
            select document_id, index_id from index_work w where document_id = any(:ids) and dead
              and exists (select from document d where d.id = w.document_id and not d.deleted)
            order by document_id, index_id for update)
        returning document_id""")
    replayed = set(connection.execute(statement, values).scalars())
    resolve_letters(connection, sorted(replayed), "replayed")
    return sorted(replayed)


def drop(connection: Connection, document_ids: Sequence[UUID]) -> int:
    """Take documents off the list; they stay dead until they change or are replayed. Returns how many letters."""
    return resolve_letters(connection, document_ids, "dropped")
