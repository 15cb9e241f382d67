"""The doctor: schedules, figures, versions, grown indexes and dead rows; each is broken, found and mended."""

from __future__ import annotations

import importlib.metadata
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.ledger import upkeep
from tests.workers.doctor.installation import SQL, Store
from workers.app.doctor import doctor


def test_a_source_that_a_wrong_clock_put_off_is_planned_anew(store: Store, omniscient: SQL) -> None:
    omniscient.execute("update source set schedule = '*/10 * * * *', next_sync_at = now() + interval '1 day'")
    assert "notes by '*/10 * * * *'" in store.mend("schedules")["detail"]
    [(due,)] = omniscient.execute("select next_sync_at from source").fetchall()
    assert due - datetime.now(UTC) <= timedelta(minutes=10)
    omniscient.execute("update source set next_sync_at = now() + interval '1 day', paused_at = now()")
    assert store.examine()["schedules"]["status"] == "ok"


def test_figures_that_drifted_are_corrected(store: Store, omniscient: SQL) -> None:
    told = "select sum(documents), sum(chunks) from document_count"
    right = omniscient.execute(told).fetchone()
    omniscient.execute(
        "update document_count set documents = documents + 5 where state = 'done' and documents > 0"
    )
    omniscient.execute("alter table document disable trigger user")
    omniscient.execute("update document set hidden = true where external_id like '%berth.md'")
    omniscient.execute("alter table document enable trigger user")
    assert store.mend("figures")["status"] == "error"
    assert omniscient.execute(told).fetchone() == right


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
    store: Store, omniscient: SQL, monkeypatch: pytest.MonkeyPatch
) -> None:
    omniscient.execute("select build_vector_index((select id from search_index), 1)")
    [(index, active)] = omniscient.execute("select id, 'chunk_' || id from search_index").fetchall()
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
