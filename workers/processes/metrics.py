"""What this process counts for Prometheus.

Workers are several processes: with `PROMETHEUS_MULTIPROC_DIR` set before they start, `exposition` counts all
that share the folder together.
"""

from __future__ import annotations

from pathlib import Path

import psutil
from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    multiprocess,
)

from pipeline.enrichment.degradation import DegradationLevel
from pipeline.ledger.embedding_use import Meter, Used

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
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120),
)


def moved(_old: DegradationLevel, new: DegradationLevel) -> None:
    """The level of this process is another one now."""
    LEVEL.set(int(new))


def ended(state: str, level: int | None) -> None:
    """A request ended as done or failed; one that failed was answered at no level."""
    ENRICHMENTS.labels(state=state, level="" if level is None else str(level)).inc()


def fell_back(error: BaseException) -> None:
    """Whoever asked has to do without the answer that was asked for."""
    FALLBACKS.labels(reason=type(error).__name__).inc()


def exposition(shared: Path | None = None) -> bytes:
    """All of it in the text format of Prometheus; with `shared`, of all processes that count in that folder."""
    if shared is None:
        return bytes(generate_latest(REGISTRY))
    for file in shared.glob("gauge_live*.db"):
        # What a process counted outlives it; its level does not.
        if not psutil.pid_exists(int(file.stem.rpartition("_")[2])):
            file.unlink(missing_ok=True)
    together = CollectorRegistry()
    multiprocess.MultiProcessCollector(together, path=str(shared))  # type: ignore[no-untyped-call]
    return bytes(generate_latest(together))


_LABELS = ("provider", "model", "kind")
USED = {
    "calls": Counter("larder_embedding_calls", "Calls of the embedder", _LABELS),
    "texts": Counter("larder_embedding_texts", "Texts embedded", _LABELS),
    "tokens": Counter("larder_embedding_tokens", "Tokens embedded, as far as they are counted", _LABELS),
    "cost": Counter("larder_embedding_cost", "What that cost, by costPerMillionTokens", _LABELS),
    "cache_hits": Counter("larder_embedding_cache_hits", "Texts whose vector was there already", _LABELS),
}
LOOKS = Counter("larder_query_vector_lookups", "Looks for a question's vector", ["cache", "found"])


def count(meter: Meter, used: Used) -> None:
    """Add what was used."""
    for name, counter in USED.items():
        counter.labels(meter.provider, meter.model, meter.kind).inc(max(0.0, float(getattr(used, name))))
