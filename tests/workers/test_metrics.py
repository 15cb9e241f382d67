"""What is counted, in one process and in several."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from pipeline.search import SearchRequest
from tests.conftest import Addresses
from tests.ledger import Ledger, ago
from tests.pipeline.source_ledger import SourceLedger
from tests.workers.indexed import Build, index, write_pages
from tests.workers.installed import installed
from workers.api.app import create_app
from workers.app import status
from workers.app.search import retriever
from workers.local import embedded
from workers.monitoring import metrics
from workers.processes.background import Loops
from workers.runtime import Runtime

NOWHERE = "postgresql://x:x@127.0.0.1:1/x"
ROOT = Path(__file__).parents[2]
COUNT = """
import sys, time
from pipeline.enrichment.degradation import DegradationLevel
from pipeline.errors import StoreUnavailable
from workers.monitoring import metrics
level = DegradationLevel(int(sys.argv[1]))
metrics.record_level(DegradationLevel.FULL_RAG, level)
metrics.record_job("done", int(level))
metrics.record_job("failed", None)
metrics.record_fallback(StoreUnavailable("a secret"))
metrics.QUEUE_WAIT.observe(0.02)
print(metrics.exposition().decode() if len(sys.argv) > 2 else "", flush=True)
sys.stdin.read()
"""
SHOW = "import sys, pathlib; from workers.monitoring import metrics; print(metrics.exposition(pathlib.Path(sys.argv[1])).decode())"


def counting(folder: Path | None, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, **({"PROMETHEUS_MULTIPROC_DIR": str(folder)} if folder else {})}
    return subprocess.Popen(
        [sys.executable, "-c", COUNT, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def shown(folder: Path) -> list[str]:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", SHOW, str(folder)]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_one_process_tells_its_own() -> None:
    told, _ = counting(None, "3", "show").communicate(timeout=60)
    lines = told.splitlines()
    assert "larder_degradation_level 3.0" in lines
    assert 'larder_enrichments_total{level="3",state="done"} 1.0' in lines
    assert 'larder_enrichments_total{level="",state="failed"} 1.0' in lines
    assert 'larder_fallbacks_total{reason="StoreUnavailable"} 1.0' in lines
    assert 'larder_enrichment_wait_seconds_bucket{le="0.03"} 1.0' in lines
    assert "secret" not in told


def test_processes_are_counted_together_and_the_dead_have_no_level(tmp_path: Path) -> None:
    one, other = counting(tmp_path, "2"), counting(tmp_path, "4")
    for process in (one, other):
        assert process.stdout is not None
        process.stdout.readline()
    assert "larder_degradation_level 4.0" in shown(tmp_path)
    other.kill()
    other.communicate()
    lines = shown(tmp_path)
    assert "larder_degradation_level 2.0" in lines
    assert 'larder_fallbacks_total{reason="StoreUnavailable"} 2.0' in lines
    one.communicate()


def test_what_ended_processes_counted_stays_in_one_file(tmp_path: Path) -> None:
    for _ in range(3):
        counting(tmp_path, "1").communicate()
    for _ in range(2):
        lines = shown(tmp_path)
        assert 'larder_fallbacks_total{reason="StoreUnavailable"} 3.0' in lines
        assert 'larder_enrichment_wait_seconds_bucket{le="0.03"} 3.0' in lines
        assert "larder_enrichment_wait_seconds_sum 0.06" in lines
    # Those of the process that showed it, and the sums.
    assert len(list(tmp_path.glob("counter_*.db"))) <= 2


@pytest.fixture
def installation(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers
) -> Iterator[Callable[[str], Runtime]]:
    """Configured with these lines."""
    with ExitStack() as opened:
        start = "rag:\n  embedding: {provider: hashing, dimensions: 64}\n  auth: {secret: a-secret-of-the-tests-of-32-bytes-and-more}\n"
        yield lambda lines: opened.enter_context(
            installed(tmp_path, addresses, servers, f"{start}  {lines}\n")
        )


def test_the_folder_does_not_grow_with_the_processes_that_end_and_waits_for_nobody(tmp_path: Path) -> None:
    for _ in range(3):
        counting(tmp_path, "1").communicate()
    with (tmp_path / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as one who was frozen in the middle
        metrics.compact(tmp_path)
        assert len(list(tmp_path.glob("counter_*.db"))) == 3
        assert 'larder_fallbacks_total{reason="StoreUnavailable"} 3.0' in shown(tmp_path)
    metrics.compact(tmp_path)
    assert {path.name for path in tmp_path.glob("[ch]*.db")} >= {"counter_0.db", "histogram_0.db"}
    assert len(list(tmp_path.glob("counter_*.db"))) == 1
    assert 'larder_fallbacks_total{reason="StoreUnavailable"} 3.0' in shown(tmp_path)


GIVEN = {
    "indexing": {
        "larder_documents_processed": "counter",
        "larder_chunking_duration_seconds": "histogram",
        "larder_embedding_duration_seconds": "histogram",
        "larder_indexing_duration_seconds": "histogram",
        "larder_failure_count": "counter",
    },
    "search": {
        "larder_query_count": "counter",
        "larder_query_duration_seconds": "histogram",
        "larder_result_count": "histogram",
        "larder_cache_hit_rate": "gauge",
        "larder_reranking_duration_seconds": "histogram",
    },
    "system": {
        "larder_vector_store_size": "gauge",
        "larder_embedding_cache_size": "gauge",
        "larder_query_cache_size": "gauge",
        "larder_degradation_level": "gauge",
    },
}


@pytest.mark.req("001-122", "001-123", "001-124", "001-080")
@pytest.mark.parametrize("kind", GIVEN)
def test_metrics_have_the_types_that_were_asked_for(kind: str, runtime: Runtime) -> None:
    found = types_of(metrics.exposition(None, status.recent(runtime)).decode())
    assert {name: found[name] for name in GIVEN[kind]} == GIVEN[kind]


def types_of(exposition: str) -> dict[str, str]:
    return {family.name: family.type for family in text_string_to_metric_families(exposition)}


def value(exposition: str, name: str, **labels: str) -> float | None:
    """Of one sample; None if it is not there."""
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def test_whatever_nobody_counted_yet_is_declared_all_the_same(runtime: Runtime, tmp_path: Path) -> None:
    alone = types_of(metrics.exposition(None, status.recent(runtime)).decode())
    ours = {name: kind for name, kind in alone.items() if name.startswith("larder_")}
    assert types_of(metrics.exposition(tmp_path, status.recent(runtime)).decode()) == ours
    assert len(ours) > 40


def test_figures_come_from_the_ledger(build: Build, tmp_path: Path) -> None:
    write_pages(tmp_path, 3)
    runtime = build(64)
    index(runtime)
    before = metrics.exposition(None).decode()
    retriever(runtime, runtime.settings.tenant_id).search(SearchRequest(text="page 1", k=2))
    shown = metrics.exposition(None, status.recent(runtime)).decode()
    assert value(shown, "larder_up", server="database") == 1
    assert value(shown, "larder_source_documents", source="docs", state="documents") == 3
    assert value(shown, "larder_vector_store_size") == status.recent(runtime)["index"]["chunks"] > 0
    assert value(shown, "larder_backlog", queue="embed", stage="chunked") == 0
    assert (value(shown, "larder_embedding_cache_size") or 0) > 0
    assert (value(shown, "larder_query_cache_size") or 0) > 0
    for name, more in (
        ("larder_query_count_total", 1),
        ("larder_result_count_sum", 2),
        ("larder_query_duration_seconds_count", 1),
    ):
        assert (value(shown, name) or 0) - (value(before, name) or 0) == more, name


@pytest.mark.req("001-125")
def test_a_search_is_counted_with_its_time_and_its_results() -> None:
    before = metrics.exposition().decode()
    metrics.record_search(0.3, 4)
    after = metrics.exposition().decode()

    def more(name: str, **labels: str) -> float:
        return (value(after, name, **labels) or 0) - (value(before, name, **labels) or 0)

    assert more("larder_query_count_total") == 1
    assert more("larder_query_duration_seconds_sum") == pytest.approx(0.3)
    assert (
        more("larder_query_duration_seconds_bucket", le="0.25"),
        more("larder_query_duration_seconds_bucket", le="0.5"),
    ) == (0, 1)
    assert more("larder_result_count_sum") == 4


def test_figures_without_a_database(runtime: Runtime) -> None:
    away = Runtime(runtime.settings, replace(runtime.addresses, database=NOWHERE, control=NOWHERE))
    shown = metrics.exposition(None, status.recent(away)).decode()
    assert value(shown, "larder_up", server="database") == 0
    assert value(shown, "larder_up", server="broker") == 1
    assert value(shown, "larder_oldest_due_seconds") is None


def test_a_late_source_is_one_that_the_schedule_has_passed(build: Build, ledger: Ledger) -> None:
    runtime = build(64)
    ledger.sources.set(schedule="0 * * * *", timezone="UTC", next_sync_at=None)
    for hours, late in ((0, 0), (3, 2)):
        this_hour = ago().replace(minute=0, second=1, microsecond=0)
        ledger.sources.set(last_sync_at=this_hour - timedelta(hours=hours))
        (found,) = status.status(runtime)["sources"]
        assert late <= found["late_seconds"] / 3600 < late + 1 if late else found["late_seconds"] == 0
    ledger.sources.set(paused_at=ago())
    assert status.status(runtime)["sources"][0]["late_seconds"] == 0


@pytest.mark.req("001-126", "001-058")
def test_snapshots_are_written_where_and_as_often_as_configured(
    installation: Callable[[str], Runtime], tmp_path: Path
) -> None:
    runtime = installation("monitoring: {metrics: {exportPath: ./metrics/rag, exportInterval: 1}}")
    running = Loops(runtime)
    running.start()
    file = tmp_path / "metrics/rag/larder.prom"
    seen: set[float | None] = set()
    end = time.monotonic() + 30
    while len(seen) < 2 and time.monotonic() < end:
        metrics.record_search(0.1, 1)
        if file.exists():
            seen.add(value(file.read_text(), "larder_query_count_total"))
        time.sleep(0.1)
    running.stop()
    assert len(seen) >= 2
    assert value(file.read_text(), "larder_up", server="database") == 1


def test_a_port_of_its_own_asks_for_the_token() -> None:
    port = embedded.free_port()
    metrics.serve("127.0.0.1", port, "a-token", None)
    address = f"http://127.0.0.1:{port}/metrics"
    assert httpx2.get(address).status_code == 401
    assert httpx2.get(address, headers={"Authorization": "Bearer wrong"}).status_code == 401
    found = httpx2.get(address, headers={"Authorization": "Bearer a-token"})
    assert (found.status_code, "larder_query_count" in found.text) == (200, True)
    assert httpx2.get(address, auth=("prometheus", "a-token")).status_code == 200
    with pytest.raises(OSError, match="in use"):
        metrics.serve("127.0.0.1", port, "", None)


class TestThePage:
    def test_names_of_tenants_and_sources_are_not_for_anybody(
        self, installation: Callable[[str], Runtime]
    ) -> None:
        runtime = installation("enabled: true")
        SourceLedger(runtime.database, uuid4(), uuid4(), "merger-with-acme")
        with TestClient(create_app(runtime)) as api:
            while api.get("/health/rag").json()["status"] == "starting":  # it has connections open that long
                time.sleep(0.05)
            found = api.get("/metrics").text
        assert value(found, "larder_up", server="broker") == 1
        assert not re.search(r'(tenant|source)="|merger', found)

    def test_it_asks_for_the_token(self, installation: Callable[[str], Runtime]) -> None:
        runtime = installation("monitoring: {metrics: {token: a-token}, healthCheck: {endpoint: /well}}")
        SourceLedger(runtime.database, uuid4(), uuid4(), "merger-with-acme")
        with TestClient(create_app(runtime)) as api:
            refused = api.get("/metrics")
            assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (
                401,
                'Bearer realm="larder"',
            )
            found = api.get("/metrics", headers={"Authorization": "Bearer a-token"}).text
            assert value(found, "larder_http_request_duration_seconds_count", status="401", method="GET")
            assert value(found, "larder_up", server="broker") == 1
            assert 'source="merger-with-acme"' in found
            assert (api.get("/well").json()["store"], api.get("/health/rag").status_code) == ("ok", 404)

    def test_switched_off_there_is_none(self, installation: Callable[[str], Runtime]) -> None:
        runtime = installation("monitoring: {metrics: {enabled: false}, healthCheck: {enabled: false}}")
        with TestClient(create_app(runtime)) as api:
            assert [api.get(path).status_code for path in ("/metrics", "/health/rag")] == [404, 404]
            assert api.get("/health/live").status_code == 200


@pytest.mark.parametrize("full", [False, True])
def test_a_full_disk_ends_no_process_that_counts(tmp_path: Path, full: bool) -> None:
    """What is written has its blocks already, a hole in the file would be a SIGBUS; without them, none is in the file."""
    program = f"""
import errno, os
def refuse(*_):
    raise OSError(errno.ENOSPC, "No space left on device")
if {full}:
    os.posix_fallocate = refuse
from workers.monitoring import metrics
metrics.PROCESSED.inc(3)
print([one.value for one in metrics.PROCESSED.collect()[0].samples])"""
    shared = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=shared, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "[3.0]\n"), done.stderr
    assert all(f.stat().st_blocks * 512 >= f.stat().st_size > 0 for f in tmp_path.glob("*.db"))
    shown = value(metrics.exposition(tmp_path).decode(), "larder_documents_processed_total")
    assert shown == (None if full else 3)
