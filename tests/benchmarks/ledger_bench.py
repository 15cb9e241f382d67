"""What the pump, the status and upkeep cost at a million documents: `ledger_bench.py [--documents N] [--done]`.

Rows are made in the database, without texts; milliseconds are the median of the looks, on a database that is not busy.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from sqlalchemy import Connection

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.ledger import Limits, due_work, overview, runs, search_indexes, upkeep
from pipeline.search import term_statistics
from pipeline.search.chunk_store import indexes
from workers.local import embedded

LOOKS = 5
ROWS = """
    insert into tenant (id, name) select cast(lpad(t::text, 32, '0') as uuid), 'tenant ' || t from generate_series(1, 4) t;
    insert into source (id, tenant_id, project_id, name, kind)
        select gen_random_uuid(), id, id, 'source ' || s, 'text' from tenant, generate_series(1, 5) s;
    insert into sync_run (tenant_id, source_id, trigger, state) select tenant_id, id, 'manual', 'processing' from source;
    select open_search_index('hashing', 'a', 3, 'structure', 'p');
    select begin_search_index('hashing', 'b', 3, 'structure', 'p', '');
    insert into document (id, tenant_id, source_id, project_id, external_id, source_type, kind, title, metadata,
                          desired_hash, pipeline_version, state, due_at, indexed_version, last_indexed, chunk_count)
        select gen_random_uuid(), s.tenant_id, s.id, s.project_id, 'page ' || n, 'text', 'reference', 'A title ' || n,
               '{"a": "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"}', md5(n::text), 'p',
               case when %(done)s then 'done' else 'pending' end,
               timestamptz '9999-01-01 00:00+00', case when %(done)s then 1 end,
               case when %(done)s then now() end, case when %(done)s then 5 else 0 end
        from source s, generate_series(1, %(each)s) n;
    insert into index_work (tenant_id, document_id, source_id, version, stage, due_at, turn)
        select tenant_id, id, source_id, 1, case when n %% 2 = 0 then 'chunked' else 'fetched' end,
               now() - interval '1 hour' - n * interval '1 millisecond', n / 8 * 8
        from (select *, row_number() over (partition by source_id) as n from document where state = 'pending') d;
    insert into run_item (run_id, tenant_id, document_id, version, outcome)
        select r.id, d.tenant_id, d.id, 1, case when %(done)s then 'done' end
        from document d join sync_run r on r.source_id = d.source_id;
    insert into index_document (tenant_id, index_id, document_id, version, chunk_count)
        select tenant_id, i.id, d.id, 1, 5 from document d, search_index i where d.state = 'done';
    insert into index_stat select id, 1, 1, 1, now() + interval '1 day' from tenant;
"""


def load(url: str, documents: int, *, done: bool) -> None:
    """Plant the rows, as a superuser."""
    with psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor) as connection:
        connection.execute("set synchronous_commit = off")
        for statement in ROWS.split(";\n"):
            if statement.strip():
                connection.execute(statement, {"each": documents // 20, "done": done})
        connection.execute("vacuum analyze")


def _limited(embed: int | None) -> Callable[[Connection], object]:
    room = due_work.EmbedRoom(documents=embed, waiting={})  # as a tick that finds empty queues in the broker
    return lambda c: due_work.pump_once(c, Limits(), embed=room)


def _progress(c: Connection) -> object:
    return runs.progress(c, list(range(1, 21)))


def _build(c: Connection) -> object:
    return [term_statistics.build_due(c, i, exact_below=10_000, build_at=10**9) for i in indexes(c)[:1]]


LOOKED: dict[str, Callable[[Connection], object]] = {
    "pump": _limited(None),
    "pump, embedder held": _limited(0),
    "settled runs": runs.list_settled,
    "what an index lacks": lambda c: due_work.choose_fills(c, Limits()),
    "words to count?": upkeep.tenants_to_count,
    "indexes to build?": _build,
    "status: sources": overview.sources,
    "status: backlog": lambda c: overview.backlog(c, resend=240),
    "status: index": overview.index,
    "status: waiting": overview.waiting,
    "progress of runs": _progress,
    "progress of an index": lambda c: search_indexes.progress(c, 2),
}
"""What is looked at on every tick and for the operator's screen."""


def measure(database: Database) -> None:
    """Print what each look takes."""
    for name, look in LOOKED.items():
        took = []
        for _ in range(LOOKS):
            with database.controller.connect() as connection:  # and nothing is committed: each finds the same
                begun = time.perf_counter()
                look(connection)
                took.append(time.perf_counter() - begun)
        print(
            f"{name:24} {1000 * statistics.median(took):9.1f} ms, first {1000 * took[0]:9.1f} ms", flush=True
        )


def main() -> None:
    """Start a server, load, measure, and leave nothing behind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--done", action="store_true", help="all searchable in two indexes; else all pending")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="larder-bench-"))
    folder.chmod(0o755)
    try:
        servers = embedded.ensure(folder)
        migrations.upgrade(servers.admin_url)
        password = embedded.Credentials.of_folder(folder).postgres
        superuser = psycopg.conninfo.make_conninfo(servers.admin_url, user="postgres", password=password)
        begun = time.perf_counter()
        load(superuser, given.documents, done=given.done)
        print(f"{given.documents} documents made in {time.perf_counter() - begun:.0f} s", flush=True)
        database = Database(servers.database_url, servers.control_url)
        measure(database)
        database.close()
    finally:
        embedded.stop(folder)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
