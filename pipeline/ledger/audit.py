"""The audit: a chain of entries per tenant, with actor, action and subject; each has the hash of the one before."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.database.engine import Database, lift_statement_timeout
from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.ledger import storable

SEARCH = "rag_search"
MOST_QUERY = 100
"""Characters of a query that are kept."""
PAUSE = 0.1
"""Seconds for which entries are collected before they are written in one transaction."""
AT_ONCE = 200
"""The most entries of one transaction, which locks the chain."""
MOST_WAITING = 10_000
"""The most entries that wait to be written while the database does not answer."""

logger = logging.getLogger(__name__)

_APPEND = text("select audit_append(:tenant, :by, :action, :subject, cast(:detail as jsonb))")


def append(
    connection: Connection, tenant: UUID, action: str, subject: str, detail: Json | None = None, *, by: str
) -> None:
    """Write an entry into the chain of a tenant, as the last statement of the transaction of the action.

    Other writers of the same chain wait for the end of the transaction. On the control role it must be one of
    `Database.control(tenant)`.
    """
    connection.execute(_APPEND, _values(tenant, action, subject, detail or {}, by))


def _values(tenant: UUID, action: str, subject: str, detail: Json, by: str) -> dict[str, Any]:
    values = {"by": storable(by), "action": action, "subject": storable(subject)}
    return {"tenant": tenant, **values, "detail": json.dumps(storable(detail))}


class AuditLog:
    """Writes entries from a thread, after the answer: no request waits for an entry or fails with it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[tuple[UUID, dict[str, Any]]] = deque()
        self._hurry = threading.Event()
        # The process waits for this thread at its end, so a command writes its entries.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def search(self, tenant: UUID, query: str, hit_count: int, *, by: str) -> None:
        """Add an entry about a search with `hit_count` results."""
        self.add(tenant, SEARCH, query[:MOST_QUERY], {"resultsCount": hit_count}, by=by)

    def add(self, tenant: UUID, action: str, subject: str, detail: Json, *, by: str) -> None:
        """Write an entry as `append` does, a moment later and in another transaction."""
        if len(self._waiting) >= MOST_WAITING:
            logger.warning("an entry was not written to the audit: too many wait for the database")
            return
        self._waiting.append((tenant, _values(tenant, action, subject, detail, by)))
        self._writer.submit(self._write)

    def _write(self) -> None:
        """Write up to AT_ONCE waiting entries, in a transaction for each tenant; called once for each added entry."""
        entries: dict[UUID, list[dict[str, Any]]] = {}
        if self._waiting:
            self._hurry.wait(PAUSE)
        for _ in range(min(len(self._waiting), AT_ONCE)):
            tenant, values = self._waiting.popleft()
            entries.setdefault(tenant, []).append(values)
        for tenant, tenant_entries in entries.items():
            try:
                with self._database.tenant(tenant) as connection:
                    connection.execute(_APPEND, tenant_entries)
            except Exception as error:  # noqa: BLE001 (on any error the log must show that entries are missing)
                # Only its class is sure to contain no document text.
                why = getattr(error, "message", type(error).__name__)
                lost = plural(len(tenant_entries), "entry was", "entries were")
                logger.warning("%s not written to the audit: %s", lost, why)

    def flush(self) -> None:
        """Wait until all waiting entries were written, or failed."""
        self._hurry.set()
        self._writer.submit(self._write).result()
        self._hurry.clear()


@dataclass(frozen=True, kw_only=True)
class Damage:
    """A place at which a chain is broken."""

    seq: int
    """The number of the first such entry."""
    problem: str


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Result of the check of a tenant's chain."""

    entries: int
    first: int
    """The number of the oldest entry; 0 if there is none."""
    head: str
    """The hash of the newest entry; stored elsewhere, it proves later that no entry before it was changed."""
    problems: tuple[Damage, ...]


# Hashes the same text as audit_append. The hash before the first entry is the one in the newest entry about a pruning,
# else empty. A pruning removes entries in several transactions: those that remain lead to the hash in that entry.
_VERIFY = text("""
    with start as (
        select case when through ~ '^[0-9]{1,18}$' then through::bigint else -1 end as seq, coalesce(hash, '') as hash
        from (select detail ->> 'through' as through, detail ->> 'hash' as hash from audit
              where action = 'audit.prune' order by seq desc limit 1) pruned),
    oldest as (select seq, prev_hash from audit order by seq limit 1),
    begun as (
        select case when s.seq is null then 0 else least(s.seq, o.seq - 1) end as seq,
               case when s.seq >= o.seq then o.prev_hash else coalesce(s.hash, '') end as hash
        from oldest o left join start s on true),
    entry as (
        select seq, hash, prev_hash,
               lag(seq, 1, (select seq from begun)) over (order by seq) as before,
               lag(hash, 1, (select hash from begun)) over (order by seq) as before_hash,
               encode(sha256(convert_to(jsonb_build_array(prev_hash, tenant_id, seq, extract(epoch from at), actor,
                                                          action, subject, detail)::text, 'UTF8')), 'hex') as again
        from audit),
    judged as (
        select seq, hash, prev_hash, before, case when seq <> before + 1 then 'gap' when hash <> again then 'changed'
                                                  when prev_hash <> before_hash then 'unlinked' end as problem
        from entry)
    select count(*) as entries, coalesce(min(seq), 0) as first, coalesce(max(seq), 0) as last,
           min(array[seq, before]) filter (where problem = 'gap') as gap,
           min(seq) filter (where problem = 'changed') as changed,
           min(seq) filter (where problem = 'unlinked') as unlinked,
           bool_or(:noted in (hash, prev_hash)) as noted,
           coalesce((select hash from audit order by seq desc limit 1), '') as last_hash,
           coalesce((select seq from audit_head), 0) as head_seq,
           coalesce((select hash from audit_head), '') as head
    from judged""")


def verify(connection: Connection, noted_head: str | None = None) -> Chain:
    """Check every entry of the tenant's chain; `noted_head` is a head hash that was stored elsewhere before.

    One statement in constant memory, however many entries there are.
    """
    lift_statement_timeout(connection)
    counts = connection.execute(_VERIFY, {"noted": noted_head}).one()._asdict()
    problems = [Damage(seq=seq, problem=problem) for seq, problem in _problems(counts)]
    if noted_head and not counts["noted"]:
        problem = "no entry has the noted hash: the chain was cut or written anew, or the entry was pruned"
        problems.append(Damage(seq=counts["last"], problem=problem))
    return Chain(
        entries=counts["entries"], first=counts["first"], head=counts["last_hash"], problems=tuple(problems)
    )


def _problems(counts: Json) -> Iterator[tuple[int, str]]:
    """Number and message for the first entry of each kind of damage."""
    seq, before = counts["gap"] or (0, 0)
    if seq > before + 1:
        yield before + 1, f"entry {before + 1} is missing"
    elif seq:
        yield seq, f"entry {seq} was put in"
    if seq := counts["changed"]:
        yield seq, f"entry {seq} was changed"
    if seq := counts["unlinked"]:
        yield seq, f"entry {seq} does not follow on {seq - 1}: one of them was changed or put in"
    last, head = counts["last"], counts["head_seq"]
    if last < head:
        yield last + 1, f"entry {last + 1} is missing, and all up to {head}"
    elif last > head:
        yield head + 1, f"entry {head + 1} was put in at the end"
    elif counts["last_hash"] != counts["head"]:
        yield last, f"entry {last} is another one than was written"


def listed(connection: Connection, most: int, action: str | None = None) -> list[Json]:
    """The tenant's newest entries, the newest first; with `action`, only of it and its subactions, `action.*`."""
    statement = text("""
        select seq, at, actor, action, subject, detail, hash from audit
        where cast(:action as text) is null or action = :action or starts_with(action, :action || '.')
        order by seq desc limit :most""")
    rows = connection.execute(statement, {"action": action, "most": most}).mappings()
    return [{**row, "at": row["at"].isoformat()} for row in rows]


def prune(connection: Connection, *, days: int) -> bool:
    """Remove some of the tenant's entries older than `days`; True if there may be more. Call in a transaction each.

    The first call only writes an entry about where the chain begins from then on. Only that call makes writers of
    other entries wait.
    """
    lift_statement_timeout(connection)
    return bool(connection.execute(text("select audit_prune(:days)"), {"days": days}).scalar())
