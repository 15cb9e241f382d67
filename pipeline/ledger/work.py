"""Work items: documents on their way into a search index, claimed for a stage, finished, put back or given up on.

The row of a `document` is its work item for the search index that is read, a row of `index_document` that for another
index. Both have the same columns for leases, attempts and errors, and the same statements.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from pydantic import TypeAdapter
from sqlalchemy import Connection, text

from pipeline.errors import LarderError
from pipeline.ledger import Item, Lease, Stage, runs, search_indexes
from pipeline.ledger.leases import UNCOUNTED, Leased
from pipeline.ledger.search_indexes import IndexedDocument
from pipeline.search.records import StoredDocument

MOST_CRASHES = 3
"""Crashes of one document before it is given up on, unless the configuration says otherwise."""

STORED = """document.id, document.title, document.source_type, document.kind, document.url, document.tags,
    document.metadata, document.project_id, document.created_at, document.updated_at,
    (select s.name from source s where s.id = document.source_id) as source"""
"""Columns of `document` that a store needs beside the `version`."""


@dataclass(frozen=True, kw_only=True)
class WaitingDocument(StoredDocument):
    """A document on its way into a search index, in the version that is required there."""

    attempts: int
    waits: int


@dataclass(frozen=True, kw_only=True)
class Claim(Lease):
    """Documents under a lease of this worker, for one stage."""

    documents: Mapping[UUID, WaitingDocument]
    index: int | None = None
    """The search index whose own rows are claimed; None: the documents' rows, for the index that is read."""

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


class WorkRows:
    """The statements about work items of one table, in which `document` is the column with the document's id.

    `claimable` is the condition for rows that may be worked on, `later` a further assignment to postponed rows, `dead`
    the one that marks a row as given up if `:dead` is true; `failed` selects the columns of dead letters of such rows.
    """

    def __init__(
        self,
        leased: Leased,
        *,
        document: str,
        claimable: str,
        returning: str,
        later: str = "",
        dead: str,
        failed: str,
    ) -> None:
        waiting = f"""{UNCOUNTED}, due_at = now() + make_interval(secs => :delay), enqueued_at = null,
            last_error = :reason{later}"""
        self.leased, self.document = leased, document
        self.claim = leased.claim(
            # A doubled message must not cut a wait short, nor a late one claim a row that the pump is to give up, nor
            # claim together what crashed together: one of them kills the worker, and all of them would be given up.
            f"{claimable} and due_at <= now() and crash_count < :crashes and (crash_count = 0 or :single)",
            also="enqueued_at = coalesce(enqueued_at, now())",  # a row with a lease always counts as sent
            returning=returning,
        )
        self.renew, self.lock, self.mark_unsent = leased.renew(), leased.lock(), leased.mark_unsent()
        self.put_back = leased.give_back(f"{UNCOUNTED}, enqueued_at = null", returning=document)
        self.postpone = leased.give_back(f"waits = waits + 1, {waiting}")
        self.fail = leased.give_back(f"attempts = attempts + 1, {waiting}, {dead}", returning=document)
        self.write_letters = text(f"""
            with failed as ({failed}),
            replaced as (
                update dead_letter l set resolved_at = now(), resolution = 'replaced' from failed f
                where l.document_id = f.id and l.resolved_at is null and l.version < f.version
                  and l.index_id is not distinct from cast(:index as integer))
            insert into dead_letter (tenant_id, source_id, document_id, version, stage, attempts, crash_count,
                                     code, reason, index_id)
            select f.*, :code, :reason, cast(:index as integer) from failed f
            where not exists (select from dead_letter l
                              where l.document_id = f.id and l.resolved_at is null and l.version = f.version
                                and l.index_id is not distinct from cast(:index as integer))""")


ACTIVE = WorkRows(
    Leased(table="document"),
    document="id",
    claimable="""(id, desired_version) in (
        select * from unnest(cast(:ids as uuid[]), cast(:versions as integer[])))
        and stage = :stage and state = 'pending'""",
    returning=f"{STORED}, desired_version as version, attempts, waits",
    later=", turn = null",  # the pump gives one when it is due
    dead="state = case when :dead then 'dead' else state end",
    failed="""
        select tenant_id, source_id, id, desired_version as version, stage, attempts, crash_count
        from document where id = any(:ids)""",
)
"""Work for the search index that is read."""
BESIDE = WorkRows(
    Leased(
        table="index_document",
        rows="index_id = :index and document_id = any(:ids)",
        key="tenant_id, index_id, document_id",
    ),
    document="document_id",
    claimable="""exists (
        select from document d where d.id = document_id and index_document.version < d.indexed_version
          and not d.deleted and dead_version is distinct from d.indexed_version)""",
    returning="document_id",
    dead="""dead_version = case when :dead then cast(cast(:versions as jsonb) ->> cast(document_id as text) as integer)
        else dead_version end""",
    failed="""
        select d.tenant_id, d.source_id, d.id, x.dead_version as version, 'fill' as stage, x.attempts, x.crash_count
        from document d join index_document x on x.document_id = d.id and x.index_id = :index
        where d.id = any(:ids)""",
)
"""Work for each other search index."""
_SEARCHABLE = text(f"""
    select {STORED}, indexed_version as version, x.attempts, x.waits
    from document join index_document x on x.index_id = :index and x.document_id = document.id
    where document.id = any(:ids) and indexed_version is not null and not deleted""")
_WAITING = TypeAdapter(WaitingDocument)


def rows_of(index: int | None) -> WorkRows:
    """The statements about work for a search index; None is the one that is read."""
    return ACTIVE if index is None else BESIDE


def claim(
    connection: Connection,
    tenant_id: UUID,
    stage: Stage,
    items: Sequence[Item],
    *,
    lease: float,
    crashes: int = MOST_CRASHES,
    index: int | None = None,
) -> Claim:
    """Claim those of `items` that wait for this stage in this version; the others are claimed already, or outdated.

    A document that crashed a worker is claimed only if it comes alone. For an `index` beside the one that is read: the
    documents that it lacks, in the version that is searchable.
    """
    token, ids = uuid4(), [item.document_id for item in items]
    values = {"ids": ids, "versions": [item.version for item in items], "stage": stage, "index": index}
    values |= {"lease": lease, "crashes": crashes, "token": token, "single": len(items) == 1}
    result = connection.execute(rows_of(index).claim, values)
    if index is not None:
        result = connection.execute(_SEARCHABLE, {"ids": list(result.scalars()), "index": index})
    documents = {row["id"]: _WAITING.validate_python(dict(row)) for row in result.mappings()}
    return Claim(tenant_id=tenant_id, token=token, documents=documents, index=index)


def renew(connection: Connection, claimed: Claim, *, lease: float) -> None:
    """Extend the lease; rows whose lease is lost stay untouched."""
    connection.execute(rows_of(claimed.index).renew, claimed.parameters(claimed.ids, lease=lease))


def lock_documents(connection: Connection, ids: Sequence[UUID]) -> None:
    """Lock documents before their rows of other indexes, in the order that every writer of both keeps."""
    statement = text("select from document where id = any(:ids) order by id for no key update")
    connection.execute(statement, {"ids": list(ids)})


def still_ours(connection: Connection, claimed: Claim) -> list[UUID]:
    """Lock the claimed documents that still have our token; returns their ids, and only these may be written.

    A document that another worker claimed after the lease ran out, or that changed meanwhile, has another token. A
    deletion removes a document's rows of all indexes before its chunks, so that no chunk is written after it.
    """
    if claimed.index is not None:
        lock_documents(connection, claimed.ids)
    rows = rows_of(claimed.index)
    return [
        getattr(row, rows.document) for row in connection.execute(rows.lock, claimed.parameters(claimed.ids))
    ]


def mark_unsent(connection: Connection, items: Sequence[Item], *, index: int | None = None) -> None:
    """Note that messages about these items could not be published; the pump sends them on its next tick."""
    values = {"ids": [item.document_id for item in items], "index": index}
    connection.execute(rows_of(index).mark_unsent, values)


# Ends of a claim ----------------------------------------------------------------------------------

# A document that waited for its turn to be embedded is due anew, or a load that goes well would count as overdue.
_NEXT_STAGE = """stage = :stage, crash_count = 0, last_error = null, waits = 0,
    enqueued_at = case when :stage <> 'chunked' then now() end"""  # the pump chooses what is embedded next
_ADVANCE = ACTIVE.leased.give_back(
    f"{_NEXT_STAGE}, due_at = case when :stage = 'embedded' then now() else due_at end"
)
_CUT = ACTIVE.leased.give_back(
    f"""{_NEXT_STAGE},
        chunk_count = coalesce(cast(cast(:chunks as jsonb) ->> cast(id as text) as integer), chunk_count)"""
)
_BACK_TO_STAGE = ACTIVE.leased.give_back(f"stage = :stage, {UNCOUNTED}, enqueued_at = null")
_FINISH = ACTIVE.leased.give_back(
    """indexed_version = desired_version, indexed_hash = desired_hash, indexed_pipeline = pipeline_version,
       generation = generation + 1, stage = 'done', state = 'done', last_indexed = now(), crash_count = 0,
       attempts = 0, enqueued_at = null, last_error = null, served_level = null, served_acl = null,
       chunk_count = (select chunks from jsonb_to_recordset(cast(:rows as jsonb)) as r(document_id uuid, chunks integer)
                      where r.document_id = document.id)""",
    condition="(indexed_version is null or indexed_version < desired_version)",
)
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
    values = claimed.parameters(ids, stage=stage)
    if chunks:
        values["chunks"] = json.dumps({str(i): n for i, n in chunks.items()})
        invalidate_answers(connection, claimed.tenant_id)
    return claimed.items(list(connection.execute(_CUT if chunks else _ADVANCE, values).scalars()))


def put_back(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], stage: Stage | None = None
) -> list[Item]:
    """End the lease without counting an error, at the same stage or an earlier one; the pump chooses them again."""
    if not ids:  # the triggers of the table take their time for nothing, too
        return []
    earlier = stage is not None and claimed.index is None
    statement = _BACK_TO_STAGE if earlier else rows_of(claimed.index).put_back
    return claimed.items(list(connection.execute(statement, claimed.parameters(ids, stage=stage)).scalars()))


def postpone(
    connection: Connection, claimed: Claim, ids: Sequence[UUID], *, delay: float, reason: str | None
) -> None:
    """End the lease and retry after `delay` seconds, since a service is not available; no attempt is counted."""
    if ids:
        connection.execute(
            rows_of(claimed.index).postpone, claimed.parameters(ids, delay=delay, reason=reason)
        )


def finish(connection: Connection, claimed: Claim, results: Sequence[IndexedDocument]) -> int:
    """Mark documents as searchable in their version, and settle them in their runs; returns how many.

    Documents whose lease is lost, or that are searchable in this version already, are left as they are. The caller has
    recorded the results in the index, which for an index beside the one that is read ends the lease.
    """
    ids = [result.document_id for result in results]
    if claimed.index is not None:
        resolve_letters(connection, ids, "indexed", index=claimed.index)
        if connection.execute(_FILLED, {"ids": ids, "index": claimed.index}).rowcount:
            invalidate_answers(connection, claimed.tenant_id)
        return len(ids)
    names = ("document_id", "version", "chunks", "written", "unchanged")
    rows = {r.document_id: {name: getattr(r, name) for name in names} for r in results}
    values = claimed.parameters(ids, rows=json.dumps(list(rows.values()), default=str))
    done = list(connection.execute(_FINISH, values).scalars())
    statement = text("""
        update run_item i set outcome = 'done', chunks = r.chunks, chunks_written = r.written, chunks_kept = r.unchanged
        from jsonb_to_recordset(cast(:rows as jsonb)) as r(
            document_id uuid, version integer, chunks integer, written integer, unchanged integer)
        where i.document_id = r.document_id and i.version = r.version and i.outcome is null""")
    connection.execute(statement, {"rows": json.dumps([rows[i] for i in done], default=str)})
    connection.execute(text("delete from chunk_stage where document_id = any(:ids)"), {"ids": done})
    search_indexes.enqueue_lacking(connection, done)  # before the letters: the lock order of filling an index
    resolve_letters(connection, done, "indexed")
    return len(done)


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

    An index beside the one that is read then lacks them; every other index keeps the version it has.
    """
    if claimed.index is not None:
        lock_documents(connection, ids)
    versions = json.dumps({str(i): claimed.documents[i].version for i in ids})
    values = claimed.parameters(ids, delay=delay, reason=str(error), dead=dead, versions=versions)
    failed = list(connection.execute(rows_of(claimed.index).fail, values).scalars())
    if dead and failed:
        write_letters(connection, failed, code=error.code, reason=str(error), index=claimed.index)


def write_letters(
    connection: Connection, ids: Sequence[UUID], *, code: str, reason: str, index: int | None = None
) -> None:
    """Write dead letters for documents that were given up; settle them in their runs, and resolve older letters."""
    values = {"ids": list(ids), "code": code, "reason": reason, "index": index}
    connection.execute(rows_of(index).write_letters, values)
    if index is None:
        runs.settle_items(connection, ids, "dead")


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
