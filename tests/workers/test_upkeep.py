"""Upkeep on the real database: another model, deferred indexes, limits of caches and records."""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pipeline.errors import ConfigurationError
from pipeline.ledger import search_indexes, upkeep
from pipeline.search import term_statistics
from pipeline.search.chunk_store import indexes
from tests.ledger import Ledger, ago
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs
from tests.workers.indexed import Build, index, write_pages
from workers.app import operations
from workers.app.ingestion import maintenance
from workers.processes.background import Loop
from workers.runtime import Runtime, use
from workers.tasks import trim


def statuses(runtime: Runtime) -> list[tuple[str, int, str]]:
    with runtime.database.control() as connection:
        return [(i.model, i.dimensions, i.status) for i in indexes(connection)]


@pytest.mark.req("001-095")
def test_another_model_in_the_configuration_changes_nothing_by_itself(
    build: Build, tmp_path: Path, ledger: Ledger
) -> None:
    write_pages(tmp_path, 5)
    index(build(384))
    write_pages(tmp_path, 6)
    after = build(256)
    index(after)
    maintenance.build_indexes(after)
    assert statuses(after) == [("hashing-384", 384, "active")]
    assert ledger.documents.values("generation") == [1] * 6, "the new page is indexed, and no other is again"
    assert {len(json.loads(vector)) for vector in ledger.chunks.values("embedding")} == {384}


def test_another_chunk_size_indexes_everything_anew_in_the_same_index(
    build: Build, tmp_path: Path, ledger: Ledger
) -> None:
    write_pages(tmp_path, 3)
    index(build())
    small = len(ledger.chunks())
    index(build(max_size=200))
    more = ledger.chunks.values("content")
    assert len(more) > small
    assert max(map(len, more)) <= 200
    assert statuses(build(max_size=200)) == [("hashing-384", 384, "active")]
    index(build(max_size=200))
    assert set(ledger.documents.values("generation")) == {2}


def test_deferred_indexes_are_built_when_the_backlog_is_empty(
    build: Build, tmp_path: Path, omniscient: psycopg.Connection[Any], ledger: Ledger
) -> None:
    write_pages(tmp_path, 4)
    runtime = build(retrieval="{exactBelow: 3}")
    index(runtime)

    def kinds() -> set[str]:
        rows = omniscient.execute("select indexdef from pg_indexes where tablename like 'chunk_%%'")
        return {kind for row in rows for kind in ("using hnsw", "using gin") if kind in row[0].lower()}

    assert kinds() == set(), "nothing is built while loading"
    ledger.documents.set("docs/page-1.md", state="pending")
    maintenance.build_indexes(runtime)
    assert kinds() == set(), "nothing is built while work is waiting"
    ledger.documents.set("docs/page-1.md", state="done")
    maintenance.build_indexes(runtime)
    assert kinds() == {"using hnsw", "using gin"}
    maintenance.build_indexes(runtime)


def built(ledger: Ledger) -> int:
    return len(ledger.indexes(keyword_built=True))


def test_a_build_that_is_asked_for_is_done_by_a_thread_that_no_task_waits_for(
    build: Build, tmp_path: Path, ledger: Ledger
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    maintenance.build_requested(runtime)
    ledger.indexes.set(keyword_built=False)
    maintenance.build_requested(runtime)
    assert built(ledger) == 0, "nobody has asked since"
    use(runtime)
    trim()
    assert built(ledger) == 0, "the task only asks"
    builder = Loop("builder", 0.05, partial(maintenance.build_requested, runtime))
    builder.start()
    end = time.monotonic() + 10
    while not built(ledger):
        assert time.monotonic() < end
        time.sleep(0.05)
    builder.stop()


def test_a_build_is_begun_as_soon_as_a_process_of_the_worker_asks(
    build: Build, tmp_path: Path, ledger: Ledger
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    maintenance.wait_for_request(0.0)  # what was asked for until now
    ledger.indexes.set(keyword_built=False)
    begun = time.monotonic()
    asked = multiprocessing.get_context("fork").Process(target=ask_for_builds, args=(runtime,))
    asked.start()
    maintenance.wait_for_request(60.0)
    assert time.monotonic() - begun < 30
    maintenance.build_requested(runtime)
    asked.join()
    assert (built(ledger), asked.exitcode) == (1, 0)


def test_no_build_is_begun_by_a_thread_that_was_stopped_while_it_waited() -> None:
    waits, goes_on, begun = threading.Event(), threading.Event(), list[str]()

    def wait(_seconds: float) -> None:
        waits.set()
        goes_on.wait(20)

    loop = Loop("stopped", 1.0, lambda: begun.append("a build"), wait)
    loop.start()
    assert waits.wait(20)
    loop.stop()
    goes_on.set()
    for thread in threading.enumerate():
        if thread.name == "larder-stopped":
            thread.join(20)
    assert begun == []


def test_what_a_thread_does_is_over_when_it_was_told_to_stop() -> None:
    """Its connections are closed then."""
    begun, over = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        time.sleep(0.2)
        over.set()

    loop = Loop("working", 0.01, work)
    loop.start()
    assert begun.wait(10)
    loop.stop()
    assert over.is_set()


def ask_for_builds(runtime: Runtime) -> None:
    """As a process of a worker's pool, whose parent builds."""
    maintenance.request_builds(Runtime(runtime.settings, runtime.addresses))


def test_each_index_is_built_by_one_at_a_time_as_long_as_that_one_lives(
    build: Build, tmp_path: Path, ledger: Ledger
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    number = ledger.indexes.one()["id"]

    def claimed() -> search_indexes.Build | None:
        with runtime.database.control() as connection:
            return search_indexes.claim_build(connection, number, lease=60)

    first = claimed()
    assert first is not None
    assert claimed() is None
    with runtime.database.control() as connection:
        assert search_indexes.renew_build(connection, first, lease=60)
        assert search_indexes.is_being_built(connection, number)
    ledger.indexes.set(lease_until=ago(seconds=1))
    second = claimed()
    assert second is not None, "the first one died"
    with runtime.database.control() as connection:
        assert not search_indexes.renew_build(connection, first, lease=60)
        search_indexes.finish_build(connection, first)
        assert search_indexes.is_being_built(connection, number), "by the second one"
        search_indexes.request_builds(connection)
        search_indexes.finish_build(connection, second)
    assert claimed() is not None, "somebody asked while the second one was at it"


def test_a_build_stays_with_who_is_at_it_however_long_it_takes(
    build: Build,
    tmp_path: Path,
    omniscient: psycopg.Connection[Any],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    maintenance.request_builds(runtime)
    monkeypatch.setitem(vars(runtime.rag.queue), "lease_seconds", 1.0)
    number = ledger.indexes.one()["id"]
    with ThreadPoolExecutor() as pool:
        with omniscient.transaction():
            omniscient.execute("lock table chunk in access exclusive mode")
            building = pool.submit(maintenance.build_requested, runtime)
            time.sleep(4)
            assert not building.done(), "it waits for the table"
            with runtime.database.control() as connection:
                search_indexes.request_builds(connection)
                assert search_indexes.claim_build(connection, number, lease=60) is None
        building.result(60)
    assert built(ledger) == 1


def test_a_build_that_fails_keeps_no_writes_waiting_and_is_done_when_asked_for_again(
    build: Build,
    tmp_path: Path,
    omniscient: psycopg.Connection[Any],
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    function = "function build_keyword_index(integer)"
    omniscient.execute(f"revoke execute on {function} from larder_control, public")
    maintenance.build_requested(runtime)
    assert "could not be built" in caplog.text
    assert ledger.indexes.values("lease_token", "build_asked_at") == [(None, None)]
    omniscient.execute(f"grant execute on {function} to larder_control")
    maintenance.request_builds(runtime)
    maintenance.build_requested(runtime)
    assert built(ledger) == 1


def test_a_look_that_finds_nothing_to_build_lets_no_document_wait_for_a_build(
    build: Build, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    maintenance.build_indexes(runtime)
    leased: list[bool] = []
    build_due = term_statistics.build_due

    def look_from_beside(*args: Any, **options: Any) -> tuple[bool, bool]:
        leased.extend(ledger.indexes.values("lease_until"))
        return build_due(*args, **options)

    monkeypatch.setattr(term_statistics, "build_due", look_from_beside)
    maintenance.request_builds(runtime)
    maintenance.build_requested(runtime)
    assert leased == [None]
    assert ledger.indexes.values("lease_token", "build_asked_at") == [(None, None)]


def test_few_chunks_need_no_vector_index(
    build: Build, tmp_path: Path, omniscient: psycopg.Connection[Any]
) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    maintenance.build_indexes(runtime)
    rows = omniscient.execute(
        "select count(*) from pg_indexes where indexdef ilike '%%using hnsw%%'"
    ).fetchone()
    assert rows == (0,)


@pytest.mark.req("001-042")
def test_the_cache_is_trimmed_to_its_size_longest_unused_first(
    build: Build, tmp_path: Path, omniscient: psycopg.Connection[Any], ledger: Ledger
) -> None:
    write_pages(tmp_path, 3)
    runtime = build(cache=1)
    index(runtime)
    ledger.cached_vectors.set(used_at=ago(days=9))
    one = ledger.cached_vectors()[0]
    for n in range(1500):
        ledger.cached_vectors.add(**{**one, "hash": sha256(b"%d" % n).digest(), "used_at": ago()})
    maintenance.trim(runtime)
    assert all(used_at > ago(days=1) for used_at in ledger.cached_vectors.values("used_at"))
    size = omniscient.execute("select sum(pg_column_size(e.*)) from embedding_cache e").fetchone()
    assert size is None or size[0] is None or size[0] <= 1_000_000


def test_chunks_that_outlived_their_document_go(build: Build, tmp_path: Path, ledger: Ledger) -> None:
    write_pages(tmp_path, 2)
    runtime = build()
    index(runtime)
    ledger.documents.set("%0.md", deleted=True)
    maintenance.trim(runtime)
    assert set(ledger.chunks.values("document_id")) == set(ledger.documents.values("id", deleted=False))


def test_old_runs_and_resolved_letters_age_out(build: Build, tmp_path: Path, ledger: Ledger) -> None:
    write_pages(tmp_path, 1)
    runtime = build()
    index(runtime)
    ledger.runs.set(finished_at=ago(days=31))
    for resolved_at in (ago(days=91), ago(), None):
        ledger.add_letter(resolved_at=resolved_at)
    maintenance.trim(runtime)
    assert len(ledger.runs()) == 0
    assert len(ledger.dead()) == 2


def test_upkeep_that_fails_for_one_keeps_the_others_from_nothing(
    build: Build,
    tmp_path: Path,
    omniscient: psycopg.Connection[Any],
    ledger: Ledger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_pages(tmp_path, 1)
    runtime = build()
    index(runtime)
    ledger.runs.set(finished_at=ago(days=31))
    omniscient.execute("revoke delete on embedding_claim from larder_app")
    maintenance.trim(runtime)
    assert len(ledger.runs()) == 0
    assert "permission denied for table embedding_claim" in caplog.text


def test_words_that_cannot_be_counted_keep_no_run_of_another_tenant_open(
    build: Build, omniscient: psycopg.Connection[Any], ledger: Ledger
) -> None:
    runtime = build()
    others = [SourceLedger(runtime.database, uuid4(), uuid4()) for _ in range(2)]
    for notes in others:
        notes.admit(document("a"))
        notes.index()
    for size, notes in ((9, others[0]), (5, others[1]), (12, others[1])):
        notes.admit(document("b", paragraphs(size)))
        notes.index()
        with runtime.database.control() as connection:
            first = upkeep.tenants_to_count(connection)[0]
        assert (first == notes.tenant) == (size == 5), "who has less need not wait for who has more"
    for bad, good in (others, others[::-1]):
        ledger.statistics.clear()
        omniscient.execute(f"""
            create function refuse() returns trigger language plpgsql as $$ begin
                raise exception 'out of memory' using errcode = '53200'; end $$;
            create trigger refuse before insert on index_stat for each row
                when (new.tenant_id = '{bad.tenant}') execute function refuse()""")
        maintenance.refresh_statistics(runtime)
        assert good.statistics.values("tenant_id") == [good.tenant]
        omniscient.execute("drop function refuse cascade")


def test_clear_removes_one_source_or_all_and_the_next_sync_brings_it_back(
    build: Build, tmp_path: Path, omniscient: psycopg.Connection[Any], ledger: Ledger
) -> None:
    write_pages(tmp_path, 3)
    runtime = build()
    index(runtime)
    ledger.add_source("empty", cursor={}, stamp="x")
    ledger.sources.set("docs", cursor={}, stamp="x", held=4)
    assert operations.count_documents(runtime, runtime.settings.tenant_id, "empty") == 0
    assert operations.clear(runtime, runtime.settings.tenant_id, "empty")["documents"] == 0
    with pytest.raises(ConfigurationError, match="no source is called 'dogs'"):
        operations.clear(runtime, runtime.settings.tenant_id, "dogs")
    assert ledger.sources.values("name", "cursor", "stamp", "held") == [
        ("docs", {}, "x", 4),
        ("empty", None, None, 0),
    ]
    assert operations.count_documents(runtime, runtime.settings.tenant_id, "docs") == 3
    assert operations.clear(runtime, runtime.settings.tenant_id, "docs")["documents"] == 3
    for table in ("chunk", "document", "document_body", "lexeme_stat", "dead_letter"):
        assert omniscient.execute(f"select count(*) from {table}").fetchone() == (0,), table
    assert len(ledger.cached_vectors()) != 0
    index(runtime)
    assert operations.clear(runtime, runtime.settings.tenant_id, None)["documents"] == 3
    assert len(ledger.cached_vectors()) == 0
    actions = ledger.audit.values("action", "subject")
    assert actions == [("clear", "empty"), ("clear", "docs"), ("clear", "everything")]


def test_the_canary_tells_when_its_queue_was_served(build: Build, ledger: Ledger) -> None:
    runtime = build()
    maintenance.record_canary(runtime, "embed")
    maintenance.record_canary(runtime, "embed")
    row = ledger.canaries.values("queue", "sung_at")
    assert [r[0] for r in row] == ["embed"]
    assert datetime.now(UTC) - row[0][1] < timedelta(minutes=1)
