"""Work items: documents on their way into a search index, claimed for a stage, finished, put back or given up on.

A row of `index_work` is what one search index lacks of one document. The index that is read gets new versions as they
are admitted; each other index gets those that are searchable there. Both are claimed, and end, by the same statements.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pydantic import TypeAdapter
from sqlalchemy import Connection, text

from pipeline.errors import LarderError
from pipeline.ledger import ACTIVE, Item, Lane, Lease, Stage, runs
from pipeline.ledger.leases import RESTARTED, UNCOUNTED, Leased
from pipeline.ledger.search_indexes import IndexedDocument
from pipeline.search.records import StoredDocument

MOST_CRASHES = 3
"""Crashes of one document before it is given up on, unless the configuration says otherwise."""

_STORED = """document.id, document.title, document.source_type, document.kind, document.url, document.tags,
    document.metadata, document.project_id, document.created_at, document.updated_at,
    (select s.name from source s where s.id = document.source_id) as source"""
_CURRENT = f"""
    not document.deleted and w.version is not distinct from
        case when w.index_id = {ACTIVE} then document.desired_version else document.indexed_version end"""
"""True if a work item is about the version that its index is to have; others are left over from older workers."""


@dataclass(frozen=True, kw_only=True)
class WaitingDocument(StoredDocument):
    """A document on its way into a search index, in the version that is required there."""

    attempts: int
    waits: int


@dataclass(frozen=True, kw_only=True)
class Claim(Lease):
    """Documents under a lease of this worker, for one stage."""

    documents: Mapping[UUID, WaitingDocument]
    index: int = ACTIVE
    """The search index to write."""

    @property
    def ids(self) -> list[UUID]:
        """The ids of the documents, in the order in which rows are locked."""
        return sorted(self.documents)

    def parameters(self, ids: Sequence[UUID], **more: Any) -> dict[str, Any]:
        """Parameters of a statement about these documents."""
        return super().parameters(ids, index=self.index, **more)

    def items(self, ids: Sequence[UUID]) -> list[Item]:
        """Ids and versions of these documents, for a message about them."""
        return [Item(i, self.documents[i].version) for i in ids]


LEASED = Leased(
    table="index_work",
    rows="index_id = :index and document_id = any(cast(:ids as uuid[]))",
    key="document_id, index_id",
)
# A doubled message must not cut a wait short, nor a late one claim a row that the pump is to give up, nor claim
# together what crashed together: one of them kills the worker, and all of them would be given up.
_TAKE = LEASED.claim(
    """(document_id, version) in (select * from unnest(cast(:ids as uuid[]), cast(:versions as integer[])))
        and stage = :stage and not dead and due_at <= now() and crash_count < :crashes
        and (crash_count = 0 or :single)""",
    also="enqueued_at = coalesce(enqueued_at, now())",  # a row with a lease always counts as sent
    returning="document_id, index_id, version, attempts, waits",
)
_CLAIM = text(f"""
    with w as ({_TAKE.text})
    select {_STORED}, w.version, w.attempts, w.waits from w join document on document.id = w.document_id
    where {_CURRENT}""")
_RENEW, _MARK_UNSENT = LEASED.renew(), LEASED.mark_unsent()
_DROP_OUTDATED = text(f"""
    delete from index_work w using document
    where w.index_id = :index and w.document_id = any(:ids) and document.id = w.document_id
      and w.lease_token = :token and not ({_CURRENT})""")
_WAITING = TypeAdapter(WaitingDocument)


def claim(
    connection: Connection,
    tenant_id: UUID,
    stage: Stage,
    items: Sequence[Item],
    *,
    lease: float,
    crashes: int = MOST_CRASHES,
    index: int = ACTIVE,
) -> Claim:
    """Claim those of `items` that wait for this stage in this version; the others are claimed already, or outdated.

    A document that crashed a worker is claimed only if it comes alone.
    """
    token, ids = uuid4(), [item.document_id for item in items]
    values = {"ids": ids, "versions": [item.version for item in items], "stage": stage, "index": index}
    values |= {"lease": lease, "crashes": crashes, "token": token, "single": len(items) == 1}
    rows = connection.execute(_CLAIM, values).mappings().all()
    documents = {row["id"]: _WAITING.validate_python(dict(row)) for row in rows}
    if len(documents) < len(items):
        connection.execute(_DROP_OUTDATED, values)
    return Claim(tenant_id=tenant_id, token=token, documents=documents, index=index)


def renew(connection: Connection, claimed: Claim, *, lease: float) -> None:
    """Extend the lease; rows whose lease is lost stay untouched."""
    connection.execute(_RENEW, claimed.parameters(claimed.ids, lease=lease))


def lock_documents(connection: Connection, ids: Collection[UUID]) -> None:
    """Lock documents before their work items, in the order that every writer of both keeps."""
    statement = text("select from document where id = any(:ids) order by id for no key update")
    connection.execute(statement, {"ids": list(ids)})


_OURS = text(f"""
    select w.document_id from index_work w join document on document.id = w.document_id
    where w.index_id = :index and w.document_id = any(:ids) and w.lease_token = :token and {_CURRENT}
    order by w.document_id for no key update of w""")


def still_ours(connection: Connection, claimed: Claim) -> list[UUID]:
    """Lock the claimed documents that still have our token; returns their ids, and only these may be written.

    A document that another worker claimed after the lease ran out, or that changed meanwhile, has another token. A
    deletion removes a document's work items before its chunks, so that no chunk is written after it.
    """
    lock_documents(connection, claimed.ids)
    return list(connection.execute(_OURS, claimed.parameters(claimed.ids)).scalars())


def mark_unsent(connection: Connection, items: Sequence[Item], *, index: int = ACTIVE) -> None:
    """Note that messages about these items could not be published; the pump sends them on its next tick."""
    connection.execute(_MARK_UNSENT, {"ids": [item.document_id for item in items], "index": index})


# Beginnings ---------------------------------------------------------------------------------------

LEFT_ALONE = "timestamptz '9999-01-01 00:00+00'"
"""`due_at` of a document that has a work item: workers of the release before leave it alone."""

_ANEW = f"""
    on conflict (document_id, index_id) do update set version = excluded.version, stage = 'fetched', dead = false,
        lane = excluded.lane, turn = excluded.turn, last_error = null, {RESTARTED}"""
_ENQUEUE = text(f"""
    insert into index_work (tenant_id, document_id, source_id, version, lane, turn)
    select d.tenant_id, d.id, d.source_id, d.desired_version, r.lane, r.turn
    from unnest(cast(:ids as uuid[]), cast(:lanes as smallint[]), cast(:turns as bigint[])) as r(id, lane, turn)
    join document d on d.id = r.id order by d.id {_ANEW}""")


def enqueue(
    connection: Connection,
    ids: Sequence[UUID],
    *,
    lanes: Sequence[int] | None = None,
    turns: Sequence[int | None] | None = None,
) -> None:
    """Queue documents, which are locked, for the index that is read, in their newest version and from the first stage.

    Due at once with a clean record, by default as part of a load; the pump gives turns that are None. Work under way
    loses its token, and with it the right to write.
    """
    values = {"lanes": [*(lanes or [Lane.BULK] * len(ids))], "turns": [*(turns or [None] * len(ids))]}
    connection.execute(_ENQUEUE, {"ids": list(ids), **values})


_BESIDE = "insert into index_work as w (tenant_id, document_id, index_id, source_id, version, lane)"
_NEWER = f"{_ANEW} where w.version < excluded.version"
_ENQUEUE_LACKING = text(f"""
    {_BESIDE}
    select d.tenant_id, d.id, i.id, d.source_id, d.indexed_version, {Lane.FILL}
    from document d cross join search_index i
    left join index_document h on h.tenant_id = d.tenant_id and h.index_id = i.id and h.document_id = d.id
    where d.id = any(:ids) and coalesce(h.version, 0) < d.indexed_version
    order by d.id, i.id {_NEWER}""")


def enqueue_lacking(connection: Connection, ids: Sequence[UUID]) -> None:
    """Queue documents, which became searchable, for each index that lacks them."""
    connection.execute(_ENQUEUE_LACKING, {"ids": list(ids)})


SLICE = 5_000
"""Documents that are checked for an index in one transaction, about 20 ms where it lacks few of them."""
CHECKED_HOURS = 1.0
"""Hours after which all documents are checked again, for work items that workers of another release did not write."""

_ENQUEUE_SLICE = text(f"""
    with slice as materialized (
        select tenant_id, id, indexed_version from document
        where not deleted and indexed_version is not null and (tenant_id, id) > (:tenant, :document)
        order by tenant_id, id limit {SLICE}
    ), lacking as (
        {_BESIDE}
        select d.tenant_id, id, :index, o.source_id, d.indexed_version, {Lane.FILL}
        from slice d join document o using (id)
        -- Looked up one by one: joins would read all rows of the index.
        where coalesce((select h.version from index_document h where h.tenant_id = d.tenant_id and h.index_id = :index
                        and h.document_id = d.id), 0) < d.indexed_version
          and coalesce((select w.version from index_work w where w.document_id = d.id and w.index_id = :index), 0)
              < d.indexed_version
        order by id for key share of o skip locked  -- whoever is deleting or moving it must not wait for us
        {_NEWER} returning 1)
    update search_index set walk_tenant = last.tenant_id, walk_document = last.id,
           walked_at = case when last.id is null then now() end
    from (select 1) as always left join lateral (
        select tenant_id, id from slice where (select count(*) from slice) = {SLICE}
        order by tenant_id desc, id desc limit 1) last on true
    where search_index.id = :index
    returning (select count(*) from lacking)""")


def enqueue_existing(connection: Connection) -> int:
    """Queue the next documents that are searchable for each index that lacks them; returns how many.

    Does nothing for an index for which all were checked lately: a document that becomes searchable later is queued
    then. On the control role.
    """
    statement = text("""
        select id as index, coalesce(walk_tenant, :first) as tenant, coalesce(walk_document, :first) as document
        from search_index where (select count(*) > 1 from search_index)
          and (walked_at is null or walked_at < now() - make_interval(secs => :seconds)) order by id""")
    places = connection.execute(statement, {"first": UUID(int=0), "seconds": CHECKED_HOURS * 3600}).mappings()
    return sum(int(connection.execute(_ENQUEUE_SLICE, dict(place)).scalar_one()) for place in places.all())


def forget(connection: Connection, ids: Sequence[UUID]) -> None:
    """Delete the work items of documents, which are locked, and their rows of all indexes; before their chunks."""
    for table, key in (
        ("index_work", "document_id, index_id"),
        ("index_document", "tenant_id, index_id, document_id"),
    ):
        statement = text(f"""
            delete from {table} where ({key}) in (
                select {key} from {table} where document_id = any(cast(:ids as uuid[])) order by {key} for update)""")
        connection.execute(statement, {"ids": list(ids)})


# Ends of a claim ----------------------------------------------------------------------------------

_ADVANCE = LEASED.give_back(
    # A document that waited for its turn to be embedded is due anew, or a load that goes well would count as overdue.
    """stage = :stage, crash_count = 0, last_error = null, waits = 0,
       enqueued_at = case when :stage <> 'chunked' then now() end,
       due_at = case when :stage = 'embedded' then now() else due_at end""",  # the pump chooses what is embedded next
    returning="document_id",
)
_PUT_BACK = LEASED.give_back(
    f"stage = coalesce(:stage, stage), {UNCOUNTED}, enqueued_at = null", returning="document_id"
)
_WAITS = f"""{UNCOUNTED}, due_at = now() + make_interval(secs => :delay), enqueued_at = null, turn = null,
    last_error = :reason"""  # the pump gives a turn when it is due
_POSTPONE = LEASED.give_back(f"waits = waits + 1, {_WAITS}")
_FAIL = LEASED.give_back(f"attempts = attempts + 1, {_WAITS}, dead = :dead", returning="document_id")
_DONE = text("""
    delete from index_work where index_id = :index and document_id = any(:ids) and lease_token = :token
    returning document_id""")
_COUNT_CHUNKS = text("""
    update document set chunk_count = cast(cast(:chunks as jsonb) ->> cast(id as text) as integer)
    where id = any(:ids)""")
_SEARCHABLE = text("""
    update document set indexed_version = desired_version, indexed_hash = desired_hash,
           indexed_pipeline = pipeline_version, generation = generation + 1, stage = 'done', state = 'done',
           last_indexed = now(), served_level = null, served_acl = null, chunk_count = r.chunks
    from jsonb_to_recordset(cast(:rows as jsonb)) as r(document_id uuid, chunks integer)
    where document.id = r.document_id""")
# If the index is the one that is read by now, the number of chunks no longer holds.
_FILLED = text("""
    update document d
    set chunk_count = case when x.version = d.indexed_version then x.chunk_count else d.chunk_count end
    from index_document x where x.tenant_id = d.tenant_id and x.index_id = :index and x.document_id = d.id
      and d.id in (select id from document where id = any(:ids)
                   and exists (select from search_index where id = :index and status = 'active')
                   order by id for no key update)""")
_RENEW_STAMP = text("""
    insert into change_stamp (tenant_id, slot) values (:tenant, pg_backend_pid() % 64)
    on conflict (tenant_id, slot) do update set stamp = gen_random_uuid()""")


def invalidate_answers(connection: Connection, tenant_id: UUID) -> None:
    """Have a tenant's cached answers forgotten once this transaction is committed.

    A trigger does so for a change of a document's own columns; this is for chunks that became searchable without one.
    """
    connection.execute(_RENEW_STAMP, {"tenant": tenant_id})


def advance(
    connection: Connection,
    claimed: Claim,
    ids: Sequence[UUID],
    stage: Stage,
    chunks: Mapping[UUID, int] | None = None,
) -> list[Item]:
    """Move documents to the next stage and end their lease; returns the items that are ready for it.

    `chunks` has the number of chunks of documents that are found by their words from now on.
    """
    if chunks:
        values = {"ids": sorted(chunks), "chunks": json.dumps({str(i): n for i, n in chunks.items()})}
        connection.execute(_COUNT_CHUNKS, values)
        invalidate_answers(connection, claimed.tenant_id)
    values = claimed.parameters(ids, stage=stage)
    return claimed.items(list(connection.execute(_ADVANCE, values).scalars()))


def put_back(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage | None = None
) -> list[Item]:
    """End the lease without counting an error, at the same stage or an earlier one; the pump chooses them again.

    Work for an index beside the one that is read has one stage only, and stays in it.
    """
    if not ids:  # the triggers of the table take their time for nothing, too
        return []
    stage = stage if claimed.index == ACTIVE else None
    return claimed.items(list(connection.execute(_PUT_BACK, claimed.parameters(ids, stage=stage)).scalars()))


def postpone(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], *, delay: float, reason: str | None
) -> None:
    """End the lease and retry after `delay` seconds, since a service is not available; no attempt is counted."""
    if ids:
        connection.execute(_POSTPONE, claimed.parameters(ids, delay=delay, reason=reason))


def finish(connection: Connection, claimed: Claim, results: Sequence[IndexedDocument]) -> int:
    """End the work on documents whose lease is valid; returns on how many. The caller has recorded them in the index.

    In the index that is read they are searchable in their version from now on, and settled in their runs.
    """
    values = claimed.parameters([result.document_id for result in results])
    done = set(connection.execute(_DONE, values).scalars())
    ids = sorted(done)
    if claimed.index != ACTIVE:
        resolve_letters(connection, ids, "indexed", index=claimed.index)
        if connection.execute(_FILLED, {"ids": ids, "index": claimed.index}).rowcount:
            invalidate_answers(connection, claimed.tenant_id)
        return len(ids)
    names = ("document_id", "version", "chunks", "written", "unchanged")
    rows = [{name: getattr(r, name) for name in names} for r in results if r.document_id in done]
    values = {"rows": json.dumps(rows, default=str)}
    connection.execute(_SEARCHABLE, values)
    statement = text("""
        update run_item i set outcome = 'done', chunks = r.chunks, chunks_written = r.written, chunks_kept = r.unchanged
        from jsonb_to_recordset(cast(:rows as jsonb)) as r(
            document_id uuid, version integer, chunks integer, written integer, unchanged integer)
        where i.document_id = r.document_id and i.version = r.version and i.outcome is null""")
    connection.execute(statement, values)
    connection.execute(text("delete from chunk_stage where document_id = any(:ids)"), {"ids": ids})
    enqueue_lacking(connection, ids)
    resolve_letters(connection, ids, "indexed")
    return len(ids)


def fail(
    connection: Connection,
    claimed: Claim,
    ids: Sequence[UUID],
    error: LarderError,
    *,
    delay: float,
    dead: bool,
) -> None:
    """Count an error of these documents: retry after `delay` seconds, or give them up as dead letters.

    The index then lacks them, or keeps the version it has; every other index is left as it is.
    """
    if dead:
        lock_documents(connection, ids)
    values = claimed.parameters(ids, delay=delay, reason=str(error), dead=dead)
    failed = list(connection.execute(_FAIL, values).scalars())
    if dead and failed:
        write_letters(connection, failed, code=error.code, reason=str(error), index=claimed.index)


_WRITE_LETTERS = text("""
    with failed as (
        select w.tenant_id, d.source_id, w.document_id, w.version,
               case when w.beside is null then w.stage else 'fill' end as stage, w.attempts, w.crash_count, w.beside
        from index_work w join document d on d.id = w.document_id
        where w.index_id = :index and w.document_id = any(:ids)),
    replaced as (
        update dead_letter l set resolved_at = now(), resolution = 'replaced' from failed f
        where l.document_id = f.document_id and l.resolved_at is null and l.version < f.version
          and l.index_id is not distinct from f.beside)
    insert into dead_letter (tenant_id, source_id, document_id, version, stage, attempts, crash_count, index_id, code,
                             reason)
    select f.*, :code, :reason from failed f
    where not exists (select from dead_letter l
                      where l.document_id = f.document_id and l.resolved_at is null and l.version = f.version
                        and l.index_id is not distinct from f.beside)""")

_DIES = text(f"""
    update document set state = 'dead' from index_work w
    where document.id = any(:ids) and w.document_id = document.id and w.index_id = {ACTIVE} and {_CURRENT}
    returning document.id""")
"""A worker of before may have admitted another version, which is on its way, or deleted the document."""


def write_letters(
    connection: Connection, ids: Sequence[UUID], *, code: str, reason: str, index: int = ACTIVE
) -> None:
    """Write dead letters for documents, which are locked, that were given up, and resolve older letters.

    In the index that is read they are dead from now on, and settled in their runs.
    """
    values = {"ids": list(ids), "code": code, "reason": reason, "index": index}
    connection.execute(_WRITE_LETTERS, values)
    if index == ACTIVE:
        runs.settle_items(connection, connection.execute(_DIES, values).scalars().all(), "dead")


def resolve_letters(
    connection: Connection, document_ids: Sequence[UUID], resolution: str, *, index: int | None = None
) -> int:
    """Resolve the open letters about these documents, or only those of one search index; returns how many."""
    statement = text("""
        update dead_letter set resolved_at = now(), resolution = :resolution
        where document_id = any(:ids) and resolved_at is null
          and index_id is not distinct from coalesce(:index, index_id)""")
    return connection.execute(
        statement, {"ids": list(document_ids), "resolution": resolution, "index": index}
    ).rowcount
