"""The audit: who did what, as a chain of entries per tenant in which each holds the hash of the one before it."""

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
"""Characters of a question that are kept."""
PAUSE = 0.1
"""Seconds in which entries come together that are written in one transaction."""
AT_ONCE = 200
"""Entries of one transaction; the chain is locked as long as it lasts."""
MOST_WAITING = 10_000
"""Entries that wait to be written, as long as the database does not answer."""

logger = logging.getLogger(__name__)

_APPEND = text("select audit_append(:tenant, :by, :action, :subject, cast(:detail as jsonb))")


def append(
    connection: Connection, tenant: UUID, action: str, subject: str, detail: Json | None = None, *, by: str
) -> None:
    """Write an entry into the chain of a tenant, in the transaction of what was done and as the last thing in it.

    Who writes to the same chain waits for the end of the transaction. On the control role it must be one of
    `Database.control(tenant)`.
    """
    connection.execute(_APPEND, _values(tenant, action, subject, detail or {}, by))


def _values(tenant: UUID, action: str, subject: str, detail: Json, by: str) -> dict[str, Any]:
    values = {"by": storable(by), "action": action, "subject": storable(subject)}
    return {"tenant": tenant, **values, "detail": json.dumps(storable(detail))}


class AuditLog:
    """Writes into the audit what was answered already, by a thread: nobody waits for it or fails with it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[tuple[UUID, dict[str, Any]]] = deque()
        self._hurry = threading.Event()
        # Its thread is waited for when the process ends, so a command writes what it has asked.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="audit")

    def search(self, tenant: UUID, query: str, hit_count: int, *, by: str) -> None:
        """Note that somebody searched; `found` is the number of results."""
        self.add(tenant, SEARCH, query[:MOST_QUERY], {"resultsCount": hit_count}, by=by)

    def add(self, tenant: UUID, action: str, subject: str, detail: Json, *, by: str) -> None:
        """The same as `append`, a moment later and in another transaction."""
        if len(self._waiting) >= MOST_WAITING:
            logger.warning("an entry was not written to the audit: too many wait for the database")
            return
        self._waiting.append((tenant, _values(tenant, action, subject, detail, by)))
        self._writer.submit(self._write)

    def _write(self) -> None:
        """Some of what waits, a transaction for each tenant; it is called once for each that was added."""
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
            except Exception as error:  # noqa: BLE001 (whatever it is, the log must tell that entries are missing)
                # Its class alone is sure to hold no text.
                why = getattr(error, "message", type(error).__name__)
                lost = plural(len(tenant_entries), "entry was", "entries were")
                logger.warning("%s not written to the audit: %s", lost, why)

    def flush(self) -> None:
        """Return when all that waits was written, or could not be."""
        self._hurry.set()
        self._writer.submit(self._write).result()
        self._hurry.clear()


@dataclass(frozen=True, kw_only=True)
class Damage:
    """Where a chain is broken."""

    seq: int
    """The number of the first such entry."""
    problem: str


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What was found of a tenant's chain."""

    entries: int
    first: int
    """The number of the oldest entry that is kept; 0 if there is none."""
    head: str
    """The hash of the newest entry; noted elsewhere, it proves later that nothing before it was changed."""
    problems: tuple[Damage, ...]


# The same text that audit_append hashes. Before the first entry stands what the last pruning says, else nothing. What
# it names goes in parts: as long as some entries of it are there, they lead to the hash that it names.
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
    """Look at every entry of the tenant's chain; `noted` is the hash of a head that was noted before.

    One statement that keeps nothing but its counts, however many entries there are.
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
    """Number and sentence of the first entry of each kind of damage."""
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
    """The tenant's newest entries, the newest first; of an action, and of those that begin with it and a dot."""
    statement = text("""
        select seq, at, actor, action, subject, detail, hash from audit
        where cast(:action as text) is null or action = :action or starts_with(action, :action || '.')
        order by seq desc limit :most""")
    rows = connection.execute(statement, {"action": action, "most": most}).mappings()
    return [{**row, "at": row["at"].isoformat()} for row in rows]


def prune(connection: Connection, *, days: int) -> bool:
    """Remove some of the tenant's entries that are older; True as long as there may be more, for a transaction each.

    The first one writes an entry that tells where the chain begins from then on, and removes nothing. Whoever notes
    something waits for that one only.
    """
    lift_statement_timeout(connection)
    return bool(connection.execute(text("select audit_prune(:days)"), {"days": days}).scalar())
