"""The doctor: schedules, figures, versions, grown indexes and dead rows; each is broken, found and mended."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.ledger import upkeep
from tests.ledger import Ledger, ago, ahead
from tests.workers.doctor.installation import SQL, Store
from workers.app.doctor import doctor


def test_a_source_that_a_wrong_clock_put_off_is_planned_anew(store: Store, ledger: Ledger) -> None:
    ledger.sources.set(schedule="*/10 * * * *", next_sync_at=ahead(days=1))
    assert "notes by '*/10 * * * *'" in store.mend("schedules")["detail"]
    due = ledger.sources.one()["next_sync_at"]
    assert due - datetime.now(UTC) <= timedelta(minutes=10)
    ledger.sources.set(next_sync_at=ahead(days=1), paused_at=ago())
    assert store.examine()["schedules"]["status"] == "ok"


def test_figures_that_drifted_are_corrected(store: Store, omniscient: SQL, ledger: Ledger) -> None:
    def told() -> tuple[int, int]:
        return sum(ledger.counts.values("documents")), sum(ledger.counts.values("chunks"))

    right = told()
    ledger.counts.set({"state": "done"}, documents=right[0] + 5)
    omniscient.execute("alter table document disable trigger user")
    ledger.documents.set("%berth.md", hidden=True)
    omniscient.execute("alter table document enable trigger user")
    assert store.mend("figures")["status"] == "error"
    assert told() == right


def test_libraries_and_servers_other_than_the_tested_ones_are_named(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert store.examine()["versions"]["status"] == "ok"

    def older(name: str, real: Any = importlib.metadata.version) -> str:
        return "5.7.0" if name == "celery" else str(real(name))

    monkeypatch.setattr(doctor, "version", older)
    found = store.examine()["versions"]
    assert (found["status"], "celery 5.7.0 instead of ==5.6.3" in found["detail"]) == ("error", True)
    assert [doctor.too_old(one) for one in ("Redis 6.0.16", "Redis 7.0.15", "Valkey 7.2.4")] == [
        True,
        False,
        False,
    ]
    assert [doctor.too_old(one) for one in ("PostgreSQL 14.9 (Debian)", "PostgreSQL 18.4")] == [
        True,
        False,
    ]


def test_an_index_with_many_holes_is_built_anew(
    store: Store, omniscient: SQL, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    omniscient.execute("select build_vector_index((select id from search_index), 1)")
    index = ledger.indexes.one()["id"]
    active = f"chunk_{index}"
    named = (
        "select column_name from information_schema.columns where table_name = %s and is_generated = 'NEVER'"
    )
    columns = {name: name for (name,) in omniscient.execute(named, [active]).fetchall()}
    vector = "(select array_agg(random() + g * 0) from generate_series(1, 64) g where n > 0)::halfvec"
    values = {**columns, "ord": "1000 + n", "embedding": vector}
    omniscient.execute(
        f"insert into {active} ({', '.join(columns)}) select {', '.join(values[name] for name in columns)}"
        f" from (select * from {active} limit 1) c, generate_series(1, 2000) n"
    )
    omniscient.execute(f"delete from {active} where ord >= 1000")
    omniscient.execute(f"vacuum analyze {active}")
    monkeypatch.setattr(upkeep, "LEAST_BYTES", 100_000)
    assert f"chunk_{index}_vector has" in store.mend("index size")["detail"]
    size = omniscient.execute(f"select pg_relation_size('chunk_{index}_vector')").fetchall()
    assert size < [(100_000,)]


def test_dead_rows_that_nobody_cleans_up_are_cleaned_up(store: Store, omniscient: SQL) -> None:
    omniscient.execute("alter table worker set (autovacuum_enabled = off)")
    omniscient.execute(
        "insert into worker (name, queues, host, pid) select n, '', '', 0 from generate_series(1, 25000) n"
    )
    omniscient.execute("delete from worker where queues = ''")
    omniscient.execute("select pg_stat_force_next_flush()")
    assert "worker has 25000 dead rows" in store.mend("vacuum")["detail"]
