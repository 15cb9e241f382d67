"""The rows of the ledger, to look at and to change behind its back, so that time passes or a worker dies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb
from sqlalchemy import Connection

from pipeline.database.engine import Database
from pipeline.ledger import document_id, source_id

Row = dict[str, Any]
Run = Callable[[str, Row], list[Row]]


def ahead(**of: float) -> datetime:
    """Now and so much later, as of `timedelta`."""
    return datetime.now(UTC) + timedelta(**of)


def ago(**of: float) -> datetime:
    """Now or so much earlier."""
    return datetime.now(UTC) - timedelta(**of)


class Table:
    """All rows of one kind."""

    def __init__(self, run: Run, name: str, key: str = "id", order: str = "") -> None:
        self._run, self._name, self._key, self._order = run, name, key, order or key

    def __call__(self, **like: Any) -> list[Row]:
        """The rows that have these values, in order."""
        return self._read("*", like)

    def _read(self, columns: str, like: Row) -> list[Row]:
        rows = self._run(f"select {columns} from {self._name} order by {self._order}", {})
        return [row for row in rows if all(row[column] == value for column, value in like.items())]

    def one(self, **like: Any) -> Row:
        """The only such row."""
        (row,) = self(**like)
        return row

    def values(self, *columns: str, **like: Any) -> list[Any]:
        """These columns of such rows: tuples, or of a single column what it holds."""
        found = self._read(", ".join(dict.fromkeys((*columns, *like))), like)
        rows = [tuple(row[column] for column in columns) for row in found]
        return [row[0] for row in rows] if len(columns) == 1 else rows

    def set(self, key: Any = None, /, **values: Any) -> int:
        """Change all rows, or those with this key: a pattern if it is a string, or values of columns; how many."""
        changes = ", ".join(f"{column} = %({column})s" for column in values)
        which, found_by = self._which(key)
        statement = f"update {self._name} set {changes} {which} returning 1"
        return len(self._run(statement, {**_given(values), **found_by}))

    def add(self, **values: Any) -> Row:
        """One row more."""
        given = ", ".join(f"%({column})s" for column in values)
        (row,) = self._run(
            f"insert into {self._name} ({', '.join(values)}) values ({given}) returning *", _given(values)
        )
        return row

    def clear(self, key: Any = None, /) -> int:
        """Delete all rows, or those with this key; how many."""
        which, found_by = self._which(key)
        return len(self._run(f"delete from {self._name} {which} returning 1", found_by))

    def _which(self, key: Any) -> tuple[str, Row]:
        if key is None:
            return "", {}
        values = key if isinstance(key, dict) else {self._key: key}
        each = (
            f"{c} {'like' if isinstance(v, str) else 'is not distinct from'} %(of {c})s"
            for c, v in values.items()
        )
        return f"where {' and '.join(each)}", {f"of {c}": v for c, v in values.items()}


WORK: Row = {"stage": "done", "attempts": 0, "waits": 0, "crash_count": 0} | dict.fromkeys(
    ("lane", "turn", "due_at", "enqueued_at", "lease_token", "lease_until", "last_error")
)
"""Columns of a work item, with what they are of a document that has none."""


class Documents(Table):
    """Documents with their work item for the index that is read: the columns of both as if they were one row."""

    def _read(self, columns: str, like: Row) -> list[Row]:
        named = {*columns.split(", ")}
        if not named & {"*", *WORK}:
            return super()._read(columns, like)
        work = {
            row["document_id"]: {column: row[column] for column in WORK}
            for row in self._run("select * from index_work where index_id = 0", {})
        }
        wanted = columns if columns == "*" else ", ".join({"id"} | named - WORK.keys())
        rows = self._run(f"select {wanted} from {self._name} order by {self._order}", {})
        rows = [row | work.get(row["id"], WORK) for row in rows]
        return [row for row in rows if all(row[column] == value for column, value in like.items())]

    def set(self, key: Any = None, /, **values: Any) -> int:
        of_document = {c: v for c, v in values.items() if c not in WORK}
        changed = super().set(key, **of_document) if of_document else 0
        self._match()
        of_work = {c: v for c, v in values.items() if c in WORK and (c, v) != ("stage", "done")}
        if of_work:
            which, found_by = self._which(key)
            changes = ", ".join(f"{column} = %({column})s" for column in of_work)
            statement = f"""
                update index_work set {changes}
                where index_id = 0 and document_id in (select id from {self._name} {which}) returning 1"""
            changed = len(self._run(statement, {**_given(of_work), **found_by}))
        return changed

    def add(self, **values: Any) -> Row:
        added = super().add(
            **{c: v for c, v in values.items() if c not in WORK}, due_at=datetime(9999, 1, 1, tzinfo=UTC)
        )
        self.set({"id": added["id"]}, **{c: v for c, v in values.items() if c in WORK})
        return added

    def _match(self) -> None:
        """Have a work item for each document that is not done, in its version, and none for others."""
        self._run(
            "delete from index_work using document where id = document_id and state = 'done' and index_id = 0",
            {},
        )
        self._run(
            """
            insert into index_work (tenant_id, document_id, source_id, version, dead)
            select tenant_id, id, source_id, desired_version, state = 'dead' from document where state <> 'done'
            on conflict (document_id, index_id) do update set version = excluded.version, dead = excluded.dead""",
            {},
        )


def _place(source: Row) -> Row:
    return {"tenant_id": source["tenant_id"], "project_id": source["project_id"]}


def _given(values: Row) -> Row:
    """A list of texts is an array; of objects or lists it is JSON, as an object is."""
    inner = {c: (*v, "")[0] if isinstance(v, list) else v for c, v in values.items()}
    return {c: Jsonb(v) if isinstance(inner[c], dict | list) else v for c, v in values.items()}


class Ledger:
    """The tables by what their rows are; `run` sends a statement."""

    def __init__(self, run: Run) -> None:
        table = partial(Table, run)
        self.tenants = table("tenant", "name")
        self.sources = table("source", "name")
        self.runs = table("sync_run")
        self.walk_pieces = table("walk_piece", "run_id")
        self.hints = table("source_hint", "external_id")
        self.events = table("source_event", "event_id")
        self.run_items = table("run_item", "run_id", "run_id, document_id")
        self.documents = Documents(run, "document", "external_id")
        self.work_items = table("index_work", "index_id", "index_id, document_id")
        self.counts = table("document_count", "source_id")
        self.work_counts = table("index_work_count", "index_id")
        self.bodies = table("document_body", "document_id", "document_id, version")
        self.staged_chunks = table("chunk_stage", "document_id", "document_id, ord")
        self.dead = table("dead_letter")
        self.indexes = table("search_index")
        self.indexed = table("index_document", "index_id", "index_id, document_id")
        self.statistics = table("index_stat", "index_id", "index_id, tenant_id")
        self.lexemes = table("lexeme_stat", "lexeme", "index_id, lexeme")
        self.chunks = table("chunk", "document_id", "index_id, document_id, ord")
        self.cached_vectors = table("embedding_cache", "hash")
        self.claimed_texts = table("embedding_claim", "hash")
        self.holds = table("embedding_hold", "fingerprint")
        self.usage = table("embedding_usage", "provider", "day, provider, kind")
        self.jobs = table("enrichment_job", "id", "created_at, id")
        self.feedback = table("feedback", "query_hash", "at")
        self.action_documents = table("action_document", "number")
        self.stores = table("vector_store", "name")
        self.outbox = table("vector_outbox", "lane", "lane, turn")
        self.workers = table("worker", "name")
        self.canaries = table("canary", "queue")
        self.alerts = table("alert", "name")
        self.alert_messages = table("alert_message", "address")
        self.change_stamps = table("change_stamp", "slot")
        self.audit = table("audit", "seq", "at, seq")

    def _source(self, which: str | UUID | None) -> Row:
        if which is None:
            return self.sources.one()
        return self.sources.one(**{"name" if isinstance(which, str) else "id": which})

    def add_source(self, name: str, beside: str | None = None, **values: Any) -> None:
        """A source in the project of another."""
        of = self._source(beside)
        own = {"id": source_id(of["tenant_id"], name), "name": name, "kind": "text", "config_hash": ""}
        self.sources.add(**{**_place(of), **own, **values})

    def add_document(self, name: str, source: str | UUID | None = None, **values: Any) -> UUID:
        """A document that waits for its first stage, of this source or of the only one."""
        of = self._source(source)
        own = {"id": document_id(of["id"], name), "source_id": of["id"], "external_id": name, "title": name}
        plain = {"source_type": "text", "kind": "reference", "desired_hash": "h", "pipeline_version": "p"}
        added: UUID = self.documents.add(**{**_place(of), **own, **plain, **values})["id"]
        return added

    def add_worker(self, name: str, queues: str, **values: Any) -> None:
        """A worker that has just given a sign of life."""
        self.workers.add(name=name, queues=queues, **{"host": "h", "pid": 1, **values})

    def add_letter(self, document: str | UUID | None = None, **values: Any) -> Row:
        """A dead letter of this document, or of the first."""
        which = {} if document is None else {"external_id" if isinstance(document, str) else "id": document}
        of = self.documents(**which)[0]
        own = {
            "tenant_id": of["tenant_id"],
            "source_id": of["source_id"],
            "document_id": of["id"],
            "version": 1,
        }
        plain = {"stage": "chunked", "code": "E003", "reason": "no", "attempts": 8, "crash_count": 0}
        return self.dead.add(**{**own, **plain, **values})

    def bury(self, document: str) -> None:
        """Have this document fail for good."""
        self.documents.set(document, state="dead")
        self.add_letter(document)

    def add_job(self, source: str | None = None, **values: Any) -> Row:
        """A question about the project of this source."""
        return self.jobs.add(**{"id": uuid4(), **_place(self._source(source)), "request": {}, **values})

    def add_run(self, source: str | UUID | None = None, **values: Any) -> int:
        """A run of this source or of the only one."""
        of = self._source(source)
        own = {"tenant_id": of["tenant_id"], "source_id": of["id"], "trigger": "manual"}
        added: int = self.runs.add(**{**own, **values})["id"]
        return added

    def count_waiting(self, documents: int, source: str | None = None) -> None:
        """Note so many documents more that wait, without any."""
        of = self._source(source)
        counted = {
            "state": "pending",
            "stage": "chunked",
            "hidden": False,
            "documents": documents,
            "chunks": 0,
        }
        self.counts.add(tenant_id=of["tenant_id"], source_id=of["id"], **counted)
        self.work_counts.add(tenant_id=of["tenant_id"], index_id=0, stage="chunked", items=documents)


def of_all(connect: Callable[[], AbstractContextManager[psycopg.Connection[Any]]]) -> Run:
    """Sends statements as one who sees all tenants."""

    def run(statement: str, values: Row) -> list[Row]:
        with connect() as connection:
            done = connection.cursor(row_factory=dict_row).execute(statement, values)
            return done.fetchall() if done.description else []

    return run


def _send(connection: Connection, statement: str, values: Row) -> list[Row]:
    done = connection.exec_driver_sql(statement, values)
    return [dict(row) for row in done.mappings()] if done.returns_rows else []


def of_connection(connection: Connection) -> Ledger:
    """The ledger as this connection finds it."""
    return Ledger(partial(_send, connection))


def of_tenant(database: Database, tenant: UUID) -> Run:
    """Sends statements as this tenant."""

    def run(statement: str, values: Row) -> list[Row]:
        with database.tenant(tenant) as connection:
            return _send(connection, statement, values)

    return run
