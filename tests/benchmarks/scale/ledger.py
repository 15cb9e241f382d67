"""What a tick of the pump, the status and each further document cost while a thousand to a million documents are due."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import psycopg
from sqlalchemy import Connection, text

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.ledger import Limits, due_work, runs
from tests.benchmarks.corpus import Pages
from tests.benchmarks.ledger_bench import LOOKED
from tests.benchmarks.scale.clock import Took, each, measured
from tests.pipeline.source_ledger import SourceLedger, document
from workers.app.status import status
from workers.local import embedded
from workers.runtime import Addresses, Runtime
from workers.settings import load

TENANTS, SOURCES = 4, 5
MANY_TENANTS = 1000
FURTHER = 128
"""Documents that are indexed beside what waits."""
LOOKS = 5
_FIRST = """
insert into tenant (id, name) select cast(lpad(t::text, 32, '0') as uuid), 'tenant ' || t from generate_series(1, 4) t;
insert into project (id, tenant_id, name) select id, id, name from tenant on conflict do nothing;
insert into source (id, tenant_id, project_id, name, kind)
    select gen_random_uuid(), id, id, 'source ' || s, 'text' from tenant, generate_series(1, 5) s;
insert into sync_run (tenant_id, source_id, trigger, state) select tenant_id, id, 'manual', 'processing' from source
"""
_MORE = (
    """
    insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, metadata,
                          desired_hash, pipeline_version, due_at, chunk_count)
        select gen_random_uuid(), s.tenant_id, s.id, s.project_id, 'page ' || n, 'text', 'reference', 'A title ' || n,
               jsonb_build_object('source_path', 'docs/' || n || '.md'), md5(n::text), 'p',
               timestamptz '9999-01-01 00:00+00', 1
        from source s, generate_series(cast(%(first)s as int), cast(%(last)s as int)) n where s.name <> 'notes'""",
    """
    insert into index_work (tenant_id, document_id, source_id, version, stage, due_at, turn)
        select tenant_id, id, source_id, 1, case when n %% 2 = 0 then 'chunked' else 'fetched' end,
               now() - interval '1 hour' - n * interval '1 ms', n / 8 * 8
        from (select *, cast(split_part(external_id, ' ', 2) as int) as n from document where number > %(before)s) d""",
    """
    insert into run_item (run_id, tenant_id, document_id, version)
        select r.id, d.tenant_id, d.id, 1 from document d join sync_run r on r.source_id = d.source_id
        where d.number > %(before)s""",
    """
    insert into chunk (index_id, tenant_id, project_id, document_id, ord, version, content, context, hash, lexemes,
                       length)
        select %(index)s, tenant_id, project_id, id, 0, 1, 'What stands on page ' || number, title,
               decode(md5(number::text), 'hex'), to_tsvector('english', title), 5
        from document where number > %(before)s""",
)
_SPLIT = (
    "insert into tenant (id, name) select gen_random_uuid(), 'many ' || t from generate_series(1, %(tenants)s) t",
    "insert into project (id, tenant_id, name) select id, id, name from tenant where name like 'many %%'",
    """
    insert into source (id, tenant_id, project_id, name, kind)
        select id, id, id, 'only', 'text' from tenant where name like 'many %%'""",
    """
    insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, desired_hash,
                          pipeline_version, due_at)
        select gen_random_uuid(), tenant_id, id, project_id, 'page ' || n, 'text', 'reference', 'A title', 'h', 'p',
               timestamptz '9999-01-01 00:00+00'
        from source, generate_series(1, 4) n where name = 'only'""",
    """
    insert into index_work (tenant_id, document_id, source_id, version, due_at, turn)
        select d.tenant_id, d.id, s.id, 1, now() - interval '1 day', 0
        from source s join document d on d.source_id = s.id where s.name = 'only'""",
)


class Backlog:
    """An installation in which documents of 20 sources of four tenants wait, and one more source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.servers = embedded.ensure(folder)
        migrations.upgrade(self.servers.admin_url)
        self.database = Database(self.servers.database_url, self.servers.control_url)
        (folder / "larder.yaml").write_text("rag: {embedding: {provider: hashing}}\n", encoding="utf-8")
        settings = load(folder / "larder.yaml", {})
        where = Addresses(
            database=self.servers.database_url,
            control=self.servers.control_url,
            admin=self.servers.admin_url,
            broker=self.servers.broker_url,
        )
        self.parts = Runtime(settings, where)
        self.owner = psycopg.connect(
            host="127.0.0.1",
            port=urlsplit(self.servers.database_url).port,
            user="postgres",
            password=embedded.Credentials.of_folder(folder).postgres,
            dbname="larder",
            autocommit=True,
        )
        self.owner.execute("set synchronous_commit = off")
        for statement in _FIRST.split(";\n"):
            self.owner.execute(statement)
        self.notes = SourceLedger(self.database, uuid4(), uuid4())
        self.notes.chunker = open_chunker(ChunkingOptions())
        self.pages, self.read, self.waiting = Pages(), 0, 0
        self._index(1)  # makes the search index
        with self.database.control() as connection:
            self.index = connection.execute(text("select max(id) from search_index")).scalar_one()

    def grow(self, documents: int) -> None:
        """Let so many wait."""
        before = self.owner.execute("select coalesce(max(number), 0) from document").fetchall()[0][0]
        each_source = documents // (TENANTS * SOURCES)
        values = {"first": self.waiting + 1, "last": each_source, "before": before, "index": self.index}
        for statement in _MORE:
            cursor = psycopg.ClientCursor(self.owner)
            cursor.execute(statement, values)
        self.waiting = each_source
        with self.database.control() as connection:
            runs.compact_counts(connection)
        self.owner.execute("vacuum (analyze, parallel 0)")

    # -- looks ---------------------------------------------------------------------------------------

    def look(self, what: Callable[[Connection], object]) -> list[Took]:
        """A look on the control role of which nothing is kept, so that each finds the same."""
        found = []
        for _ in range(LOOKS):
            with self.database.controller.connect() as connection:
                backend = connection.execute(text("select pg_backend_pid()")).scalar_one()
                found += each(backend, 1, lambda c=connection: what(c))  # type: ignore[misc]
        return found

    def idle_tick(self) -> list[Took]:
        """A tick that finds as much under way as may be."""
        with self.database.controller.connect() as connection:
            backend = connection.execute(text("select pg_backend_pid()")).scalar_one()
            _sent(connection)
            return each(backend, LOOKS, lambda: LOOKED["pump"](connection))

    def status(self) -> list[Took]:
        """The whole of `larder status --json`, its looks at the broker too; `cpu` is that of this process alone.

        It takes several connections, and closes those that it opened.
        """
        status(self.parts)
        return each(os.getpid(), LOOKS, lambda: status(self.parts))

    def messages(self) -> int:
        """How many messages the ticks send until no more are under way than may be; nothing is kept."""
        with self.database.controller.connect() as connection:
            sent = _sent(connection)
            connection.rollback()
        return sent

    def split(self, tenants: int) -> None:
        """Let as many tenants have four documents each that wait."""
        values = {"tenants": tenants}
        for statement in _SPLIT:
            cursor = psycopg.ClientCursor(self.owner)
            cursor.execute(statement, values)

    # -- one more document ---------------------------------------------------------------------------

    def further(self) -> dict[str, Took]:
        """What each step of so many further documents takes; the worst of what is done once a message included."""
        self._index(FURTHER)  # what is planned once is planned
        return self._index(FURTHER)

    def _index(self, documents: int) -> dict[str, Took]:
        notes, first = self.notes, self.read
        self.read += documents
        texts = {
            f"page {n}": self.pages.page(n % 1000) + f"\n\nNumber {n}.\n" for n in range(first, self.read)
        }
        with self.database.tenant(notes.tenant) as connection:
            backend = connection.execute(text("select pg_backend_pid()")).scalar_one()
        run, took = notes.open_run(), {}
        indexer = notes.indexer()
        with measured(backend) as took["admit"]:
            notes.admit(*(document(name, body) for name, body in texts.items()), run=run)
        todo = notes.items()
        for name, step in (("chunk", indexer.chunk), ("embed", indexer.embed), ("upsert", indexer.upsert)):
            with measured(backend) as took[name]:
                for start in range(0, len(todo), Limits().batch):
                    step(notes.tenant, todo[start : start + Limits().batch])
        notes.close_run(run)
        return took


def _sent(connection: Connection) -> int:
    sent = 0
    while (
        found := due_work.pump_once(connection, Limits(), embed=due_work.EmbedRoom(waiting={}))
    ) and found.batches:
        sent += len(found.batches)
    return sent


def measure(folder: Path, sizes: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A row of figures for each number of documents that wait; milliseconds by the clock and of the processor."""
    backlog = Backlog(folder)
    for size in sizes:
        backlog.grow(size)
        looks = {name: backlog.look(look) for name, look in LOOKED.items()}
        looks["idle tick"] = backlog.idle_tick()
        looks["status, all of it"] = backlog.status()
        steps = backlog.further()
        yield {
            "documents": size,
            "looks": {name: _milliseconds(took) for name, took in looks.items()},
            "messages": backlog.messages(),
            "steps": {name: _of_each(took) for name, took in steps.items()},
            "document_ms": sum(_of_each(took)["cpu"] for took in steps.values()),
            "load": round(max(took.load for took in steps.values()), 1),
        }
    backlog.split(MANY_TENANTS)
    yield {"tenants": MANY_TENANTS, "messages": backlog.messages()}
    backlog.parts.close()
    backlog.database.close()


def _milliseconds(took: Sequence[Took]) -> dict[str, float]:
    return {
        name: round(1000 * statistics.median(getattr(t, name) for t in took), 2)
        for name in ("seconds", "cpu")
    }


def _of_each(took: Took) -> dict[str, float]:
    return {name: round(1000 * getattr(took, name) / FURTHER, 3) for name in ("seconds", "cpu")}
