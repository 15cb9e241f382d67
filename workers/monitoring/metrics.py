"""Metrics for Prometheus: counts of processes, and figures that are read from the ledger for each scrape.

Workers are several processes: with `PROMETHEUS_MULTIPROC_DIR` set before they start, `exposition` counts all
that share the folder together.
"""

from __future__ import annotations

import base64
import fcntl
import hmac
import logging
import os
import threading
import time
from collections import Counter as Counting
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import psutil
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Metric,
    disable_created_metrics,
    generate_latest,
    multiprocess,
    values,
)
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.registry import Collector

from pipeline.documents import Json
from pipeline.enrichment.degradation import DegradationLevel
from pipeline.ledger.embedding_use import Meter, Used

# Counts of processes ----------------------------------------------------------------------------------

FIRST_BYTES = 65_536
"""Bytes of a new file of each kind and process: four times what a worker with all its figures uses."""


class _OnDisk(MmapedDict):
    """A process's figures in blocks that the disk has: a write into a hole of a file is a SIGBUS once it is full.

    Without room at its beginning a process keeps them to itself.
    """

    def __init__(self, filename: str) -> None:
        try:
            with Path(filename).open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, FIRST_BYTES)
        except OSError:
            with suppress(OSError):
                Path(filename).unlink()
            filename = f"/proc/self/fd/{os.memfd_create('metrics')}"
        super().__init__(filename)  # type: ignore[no-untyped-call]

    def _init_value(self, key: str) -> None:
        if self._used + len(key.encode()) + 32 > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


values.MmapedDict = _OnDisk  # type: ignore[attr-defined, assignment]
disable_created_metrics()  # type: ignore[no-untyped-call]  # each would be one more line per counter
_STEP = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120)
_ANSWER = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

PROCESSED = Counter("larder_documents_processed", "Documents that were made searchable in a new version")
DURATIONS = {
    "chunk": Histogram("larder_chunking_duration_seconds", "Cutting a message's documents", buckets=_STEP),
    "embed": Histogram("larder_embedding_duration_seconds", "Embedding a message's documents", buckets=_STEP),
    "upsert": Histogram("larder_indexing_duration_seconds", "Writing a message's documents", buckets=_STEP),
}
FAILURES = Counter(
    "larder_failure_count",
    "Steps and syncs that failed, and what was decided: retry, wait, dead",
    ["code", "decision"],
)
QUERIES = Counter("larder_query_count", "Searches")
QUERY_SECONDS = Histogram("larder_query_duration_seconds", "From a question to its hits", buckets=_ANSWER)
RESULTS = Histogram("larder_result_count", "Hits of a search", buckets=(0, 1, 2, 3, 5, 10, 20, 50, 100))
RERANKING = Histogram("larder_reranking_duration_seconds", "The reranker's look at a search", buckets=_ANSWER)
QUERY_CACHE = Gauge(
    "larder_query_cache_size",
    "Vectors of questions and answers that living processes remember",
    multiprocess_mode="livesum",
)
LOOKS = Counter("larder_query_vector_lookups", "Looks for a question's vector", ["cache", "found"])
LEVEL = Gauge(
    "larder_degradation_level",
    "The level this process answers at: 0 is normal, 5 switched off; the worst of all processes that live",
    multiprocess_mode="livemax",
)
ENRICHMENTS = Counter(
    "larder_enrichments", "Requests of Step 4 that ended, by how and at which level", ["state", "level"]
)
FALLBACKS = Counter(
    "larder_fallbacks",
    "Requests of Step 4 that their asker had to answer another way, by the error",
    ["reason"],
)
QUEUE_WAIT = Histogram(
    "larder_enrichment_wait_seconds",
    "From the request of Step 4 to the worker that takes it",
    buckets=_STEP,
)
TASKS = Histogram("larder_task_duration_seconds", "Tasks of Celery that ended", ["task"], buckets=_STEP)
TASK_FAILURES = Counter(
    "larder_task_failures", "Tasks that ended with an error of ours, or with their process", ["task", "error"]
)
UNSENT = Counter(
    "larder_publish_failures", "Messages that the broker did not take; the pump sends them later"
)
REQUESTS = Histogram(
    "larder_http_request_duration_seconds", "Requests to the API", ["method", "status"], buckets=_ANSWER
)
_EMBEDDING = ("provider", "model", "kind")
USED = {
    "calls": Counter("larder_embedding_calls", "Calls of the embedder", _EMBEDDING),
    "texts": Counter("larder_embedding_texts", "Texts embedded", _EMBEDDING),
    "tokens": Counter("larder_embedding_tokens", "Tokens embedded, as far as they are counted", _EMBEDDING),
    "cost": Counter("larder_embedding_cost", "What that cost, by costPerMillionTokens", _EMBEDDING),
    "cache_hits": Counter("larder_embedding_cache_hits", "Texts whose vector was there already", _EMBEDDING),
}


WARMING = ContextVar("warming", default=False)
"""True while a search only loads models and connects: nobody asked, and it is not counted."""


def record_vector_look(hit: bool) -> None:
    """Count a look for a question's vector in the cache: found or not."""
    if not WARMING.get():
        LOOKS.labels("near", "yes" if hit else "no").inc()


def record_level(_old: DegradationLevel, new: DegradationLevel) -> None:
    """Set the gauge of this process's degradation level."""
    LEVEL.set(int(new))


def record_job(state: str, level: int | None) -> None:
    """Count a request that ended as done, at a level, or failed, at none."""
    ENRICHMENTS.labels(state=state, level="" if level is None else str(level)).inc()


def record_fallback(error: BaseException) -> None:
    """Count an answer that its asker did not get, by the class of the error."""
    FALLBACKS.labels(reason=type(error).__name__).inc()


def record_embedding_use(meter: Meter, used: Used) -> None:
    """Count texts, tokens and cost of the embedder."""
    for name, counter in USED.items():
        counter.labels(meter.provider, meter.model, meter.kind).inc(max(0.0, float(getattr(used, name))))


def record_search(seconds: float, results: int) -> None:
    """Count a search, its time in seconds and its number of results."""
    QUERIES.inc()
    QUERY_SECONDS.observe(seconds)
    RESULTS.observe(results)


@contextmanager
def timed(histogram: Histogram) -> Iterator[None]:
    """Observe how long the block takes, unless it raises."""
    begun = time.monotonic()
    yield
    histogram.observe(time.monotonic() - begun)


# Figures of the ledger ---------------------------------------------------------------------------------

_Values = Iterable[tuple[tuple[str, ...], float | None]]
"""Labels and a value; None: nothing is known."""
_QUEUE_OF = {"fetched": "ingest", "chunked": "embed", "embedded": "ingest"}
_STATES = ("documents", "pending", "dead", "hidden", "held")


def value_at(document: Json, *path: str) -> Any:
    """Value at this path of a document; None if there is none."""
    for key in path[:-1]:
        document = document.get(key) or {}
    return document.get(path[-1])


def _one(*path: str) -> Callable[[Json], _Values]:
    """Reader of the value at this path of a document."""
    return lambda document: [((), value_at(document, *path))]


def _each(*path: str) -> Callable[[Json], _Values]:
    """Reader of the mapping at this path of a document: each value with its key."""
    return lambda document: [((key,), value) for key, value in (value_at(document, *path) or {}).items()]


def _sources(key: str) -> Callable[[Json], _Values]:
    return lambda document: [
        ((s["tenant"], s["name"]), s[key]) for s in document["sources"] if not s["removed"]
    ]


def _counts(document: Json) -> _Values:
    for s in document["sources"]:
        for state in _STATES:
            yield (s["tenant"], s["name"], state), s[state]
        yield (s["tenant"], s["name"], "left_out"), sum(s["left_out"].values())
        yield (s["tenant"], s["name"], "noted"), s["noted"]


def _runs(document: Json) -> _Values:
    for s in document["sources"]:
        run = s["last_run"]
        if run and not run["finished_at"]:
            for name in ("listed", "queued", "indexed", "dead"):
                yield (s["tenant"], s["name"], name), run[name]


_SOURCE = ("tenant", "source")
FIGURES: tuple[tuple[str, str, tuple[str, ...], Callable[[Json], _Values]], ...] = (
    (
        "up",
        "Whether the server answers",
        ("server",),
        lambda f: [((s,), f[s] == "ok") for s in ("database", "broker")],
    ),
    ("database_round_trip_seconds", "A way to the database and back", (), _one("database_seconds")),
    (
        "broker_memory_ratio",
        "Share of its memory that the broker uses; none without a limit",
        (),
        _one("broker_memory"),
    ),
    ("disk_free_bytes", "Free bytes on the disk of the data", (), _one("disk_free")),
    (
        "backlog",
        "Documents that wait for a step",
        ("queue", "stage"),
        lambda f: [((_QUEUE_OF.get(s, ""), s), n) for s, n in (f["backlog"].get("by_stage") or {}).items()],
    ),
    ("in_flight", "Documents whose message is under way", (), _one("backlog", "in_flight")),
    (
        "oldest_due_seconds",
        "How long the oldest document has been due",
        (),
        _one("backlog", "oldest_due_seconds"),
    ),
    ("queue_messages", "Messages that wait in the broker", ("queue",), _each("backlog", "queues")),
    ("set_aside_messages", "Messages that no worker could take", (), _one("backlog", "set_aside")),
    ("dead_letters", "Documents the queue gave up on", (), _one("backlog", "dead")),
    ("source_documents", "Documents of a source by state", (*_SOURCE, "state"), _counts),
    ("source_freshness_seconds", "Since the last complete sync", _SOURCE, _sources("freshness_seconds")),
    (
        "source_late_seconds",
        "Since a sync was due by the schedule, and none was completed",
        _SOURCE,
        _sources("late_seconds"),
    ),
    ("source_failures", "Syncs of a source that failed one after another", _SOURCE, _sources("failures")),
    (
        "run_documents",
        "What the open run of a source has listed, queued, indexed and given up",
        (*_SOURCE, "count"),
        _runs,
    ),
    ("canary_age_seconds", "Since a queue did its task of the minute", ("queue",), _each("canaries")),
    ("queue_unserved_seconds", "Since no worker serves a queue", ("queue",), _each("unserved")),
    (
        "problems",
        "What `larder status` says is to be done",
        ("check", "status"),
        lambda f: Counting((one["check"], one["status"]) for one in f["next"]).items(),
    ),
    (
        "worker_age_seconds",
        "Since a worker gave a sign of life",
        ("worker",),
        lambda f: [((w["name"],), w["age_seconds"]) for w in f["workers"]],
    ),
    (
        "enrichment_jobs",
        "Requests of Step 4 that wait or are worked on",
        ("state",),
        lambda f: [((s,), (f.get("enrichment") or {}).get(s)) for s in ("waiting", "running")],
    ),
    (
        "enrichment_oldest_seconds",
        "How long the oldest of them waits",
        (),
        _one("enrichment", "oldest_seconds"),
    ),
    (
        "answered_level",
        "The worst degradation level of Step 4's answers of the last minute",
        (),
        _one("degradation_level"),
    ),
    ("vector_store_size", "Chunks in the search index", (), _one("index", "chunks")),
    (
        "store_outbox",
        "Chunks that a vector store beside PostgreSQL has yet to learn, and those that it refused",
        ("store", "state"),
        lambda f: [
            ((s["name"], k), s[k]) for s in f["vector_stores"]["stores"] for k in ("outbox", "refused")
        ],
    ),
    (
        "store_unsent_seconds",
        "Age of the oldest change that a vector store lacks; pgvector is part of each transaction",
        ("store",),
        lambda f: [
            (("pgvector",), 0.0),
            *(((s["name"],), s["oldest_unsent_seconds"] or 0.0) for s in f["vector_stores"]["stores"]),
        ],
    ),
    ("embedding_cache_size", "Bytes of the embedding cache", (), _one("embedding", "cache_bytes")),
    (
        "embedding_budget_left_ratio",
        "What the tenant with the least may still embed today",
        (),
        _one("embedding", "budget_left"),
    ),
    (
        "embedding_held",
        "Whether the provider refuses what is configured",
        (),
        lambda f: [((), (f.get("embedding") or {}).get("state") == "held")],
    ),
    (
        "alerts",
        "Alerts that are raised",
        ("alert", "severity"),
        lambda f: [((a["name"], a["severity"]), 1) for a in f.get("alerts") or ()],
    ),
)
"""Name after `larder_`, meaning, labels, and where it stands in the document of `larder status --json`."""


class _Figures(Collector):
    """The figures of a document, each declared though it has no value at this moment."""

    def __init__(self, document: Json) -> None:
        self._document = document

    def collect(self) -> Iterator[Metric]:
        """All figures of the table."""
        for name, meaning, labels, read in FIGURES:
            family = GaugeMetricFamily(f"larder_{name}", meaning, labels=labels)
            for label_values, value in dict(read(self._document)).items():
                if value is not None:
                    family.add_metric(label_values, float(value))
            yield family


class _Counted(Collector):
    """Counts of the processes of a folder; without one, those of this process."""

    def __init__(self, shared: Path | None) -> None:
        self._shared = shared

    def collect(self) -> Iterator[Metric]:
        """All metrics that are declared, and the share of looks that found something."""
        metrics_by_name = {metric.name: metric for metric in REGISTRY.collect()}
        if self._shared is not None:
            # A metric with labels has no file before it is counted first.
            empty = {
                n: Metric(n, m.documentation, m.type)
                for n, m in metrics_by_name.items()
                if n.startswith("larder_")
            }
            metrics_by_name = empty | {metric.name: metric for metric in _together(self._shared)}
        yield from metrics_by_name.values()
        looks = {
            (s.labels["cache"], s.labels["found"]): s.value
            for s in metrics_by_name["larder_query_vector_lookups"].samples
            if s.name.endswith("_total")
        }
        rate = GaugeMetricFamily("larder_cache_hit_rate", "Share of questions whose vector was remembered")
        if looks:
            hits = sum(value for (_, outcome), value in looks.items() if outcome == "yes")
            rate.add_metric([], hits / max(sum(looks.values()), 1))
        yield rate


LOCK_SECONDS = 2.0


@contextmanager
def _alone(shared: Path, seconds: float) -> Iterator[bool]:
    """Hold the lock of all counts, if it can be had in so many seconds: another process may be frozen with it."""
    end = time.monotonic() + seconds
    with (shared / "lock").open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= end:
                    yield False
                    return
                time.sleep(0.05)
            else:
                yield True
                return


def compact(shared: Path) -> None:
    """Sum the counts of ended processes in one file, and drop their gauges, unless another process does.

    Workers replace their processes after some tasks, and the folder must not grow with them.
    """
    with _alone(shared, 0.0) as alone:
        if alone:
            _tidy(shared)


def _tidy(shared: Path) -> None:
    for file in shared.glob("*.db"):
        kind, _, pid = file.stem.rpartition("_")
        if pid == "0" or psutil.pid_exists(int(pid)):
            continue
        if kind in {"counter", "histogram"}:
            total = _OnDisk(str(shared / f"{kind}_0.db"))
            for key, value, at, _ in MmapedDict.read_all_values_from_file(file):  # type: ignore[no-untyped-call]
                total.write_value(key, total.read_value(key)[0] + value, at)  # type: ignore[no-untyped-call]
            total.close()  # type: ignore[no-untyped-call]
        file.unlink()


def _together(shared: Path) -> list[Metric]:
    """The sums over the processes of a folder, those that have ended included; gauges are of those that live."""
    with _alone(shared, LOCK_SECONDS) as alone:
        if alone:
            _tidy(shared)
        return list(multiprocess.MultiProcessCollector(None, path=str(shared)).collect())  # type: ignore[no-untyped-call]


def exposition(shared: Path | None = None, status: Json | None = None) -> bytes:
    """Metrics in the text format of Prometheus.

    Args:
        shared: The folder of the processes that are counted together; None: this process alone.
        status: The document of `larder status --json`; None: no figures of the ledger.
    """
    registry = CollectorRegistry()
    registry.register(_Counted(shared))
    if status is not None:
        registry.register(_Figures(status))
    return bytes(generate_latest(registry))


def is_authorized(token: str, authorization: str) -> bool:
    """Whether the sender of this header may read the metrics: with the token as a bearer, or as a password."""
    scheme, _, credential = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            credential = base64.b64decode(credential).decode().partition(":")[2]
    return not token or hmac.compare_digest(credential.strip().encode(), token.encode())


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log scrapes at debug only: there is a line for each."""
        logging.getLogger(__name__).debug("counts were asked for")


def serve(host: str, port: int, token: str, shared: Path | None) -> None:
    """Serve the counts at a port of its own, in a thread.

    Raises:
        OSError: the port is taken.
    """

    def page(environ: Mapping[str, object], respond: Callable[..., object]) -> list[bytes]:
        admitted = is_authorized(token, str(environ.get("HTTP_AUTHORIZATION", "")))
        respond("200 OK" if admitted else "401 Unauthorized", [("Content-Type", CONTENT_TYPE_LATEST)])
        return [exposition(shared) if admitted else b""]

    server = make_server(host, port, page, ThreadingWSGIServer, _Quiet)
    threading.Thread(target=server.serve_forever, name="larder-metrics", daemon=True).start()


def export(path: Path, snapshot: bytes) -> None:
    """Write a snapshot as `larder.prom`, whole or not at all, as the textfile collector of Prometheus reads it."""
    path.mkdir(parents=True, exist_ok=True)
    fresh = path / "larder.prom.new"
    fresh.write_bytes(snapshot)
    fresh.replace(path / "larder.prom")
