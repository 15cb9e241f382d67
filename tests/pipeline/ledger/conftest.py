"""The audit that sees every kind of damage, and others that write at the same moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

AUDIT = """
    select count(*) filter (where d.state <> 'done') as unfinished,
           count(*) filter (where c.pieces <> d.chunk_count or c.pieces = 0) as lost,
           count(*) filter (where c.foreign_text or c.oldest <> d.desired_version
                            or d.indexed_version is distinct from d.desired_version
                            or d.indexed_hash is distinct from d.desired_hash) as stale,
           count(*) filter (where c.oldest <> c.newest) as mixed,
           count(*) filter (where c.pieces <> c.different) as doubled
    from document d join document_body b on b.document_id = d.id and b.version = d.desired_version
    cross join lateral (
        select count(*) as pieces, count(distinct content) as different, min(version) as oldest,
               max(version) as newest, coalesce(bool_or(strpos(b.body, content) = 0), false) as foreign_text
        from chunk where chunk.document_id = d.id) c
    where not d.deleted"""
"""Documents by kind of damage: what search has, against what the ledger wants. Texts must not repeat themselves."""


@pytest.fixture
def audit(omniscient: psycopg.Connection[Any]) -> Callable[[], dict[str, int]]:
    """Counts the damaged documents of all tenants, by kind of damage."""

    def look() -> dict[str, int]:
        cursor = omniscient.execute(AUDIT)
        row = cursor.fetchone()
        assert row is not None
        assert cursor.description is not None
        return {column.name: int(n) for column, n in zip(cursor.description, row, strict=True)}

    return look


GATE = 42
"""An advisory lock at which a trigger makes a statement wait."""


class Others:
    """What runs in threads of its own, and the gate at which a statement waits for the test."""

    def __init__(self, sql: psycopg.Connection[Any]) -> None:
        self.sql = sql
        self.pool = ThreadPoolExecutor(2)

    def begin(self, do: Callable[[], object], *, waiting: int = 1) -> Future[Any]:
        """Start it, and come back when so many wait for locks or it is over."""
        begun = self.pool.submit(do)
        self.settle(begun, waiting=waiting)
        return begun

    def settle(self, begun: Future[Any], *, waiting: int = 1) -> None:
        """Until so many wait for locks, or it is over."""
        end = time.monotonic() + 30
        while not begun.done() and self._waiting() < waiting:
            assert time.monotonic() < end
            time.sleep(0.02)

    def _waiting(self) -> int:
        row = self.sql.execute("""
            select count(*) from pg_stat_activity
            where wait_event_type = 'Lock' and datname = current_database()""").fetchone()
        assert row is not None
        return int(row[0])

    def gate(self, moment: str) -> None:
        """Close the gate: whoever comes to this moment waits in its transaction until it is opened."""
        self.sql.execute(f"""
            create function wait_at_gate() returns trigger language plpgsql as $$
                begin perform pg_advisory_xact_lock_shared({GATE}); return new; end $$;
            create trigger gate {moment} execute function wait_at_gate();
            select pg_advisory_lock({GATE})""")

    def open(self) -> None:
        self.sql.execute(f"select pg_advisory_unlock({GATE})")


@pytest.fixture
def others(omniscient: psycopg.Connection[Any]) -> Others:
    return Others(omniscient)
