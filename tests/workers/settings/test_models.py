"""The sections other than sources: documented values, defaults, and values that must fit each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import QueuePool

from connectors.documents.options import DecisionRules
from pipeline.chunking.splitting import ChunkingOptions
from pipeline.database.engine import SPARE_CONNECTIONS
from pipeline.embedding.calls import PROVIDERS
from pipeline.search import Weights
from workers.runtime import Addresses, Runtime
from workers.settings import EMBEDDING_PROVIDERS, Configuration, Settings, SettingsProblem

Loaded = Callable[..., Settings]
Problems = Callable[..., list[SettingsProblem]]


@pytest.mark.req(
    "001-028", "001-030", "001-039", "001-041", "001-042", "001-045", "001-046", "001-047", "001-048"
)
def test_the_documented_values_of_the_search_sections(loaded: Loaded) -> None:
    rag = loaded(
        """\
        rag:
          enabled: true
          provider: ${RAG_PROVIDER:-chroma}
          embedding:
            model: ${EMBEDDING_MODEL:-all-MiniLM-L6-v2}
            dimensions: 384
            batchSize: 32
            device: cpu
            cache: {enabled: true, path: ./cache/embeddings, maxSize: 1000}
          chunking:
            strategy: semantic
            minSize: 100
            maxSize: 500
            overlap: 50
            splitOn: ['\\n\\n', '\\n', '. ', ', ']
            preserveWhitespace: false
          retrieval:
            topK: 5
            minSimilarity: 0.7
            maxDistance: 0.5  # For distance metrics
            rerank: {enabled: true, model: cross-encoder/ms-marco-MiniLM-L-6-v2, topK: 3, batchSize: 10}
            cache: {enabled: true, ttl: 900, maxEntries: 100}
        """,
        {"RAG_PROVIDER": "pgvector"},
    ).rag
    assert (rag.enabled, rag.provider) == (True, "pgvector")
    assert (rag.embedding.model, rag.embedding.dimensions) == ("all-MiniLM-L6-v2", 384)
    assert (rag.embedding.batch_size, rag.embedding.device) == (32, "cpu")
    assert rag.chunking.options() == ChunkingOptions(
        strategy="semantic", min_size=100, max_size=500, overlap=50
    )
    assert (rag.retrieval.top_k, rag.retrieval.min_similarity, rag.retrieval.max_distance) == (5, 0.7, 0.5)
    assert (rag.retrieval.rerank.enabled, rag.retrieval.rerank.top_k) == (True, 3)
    assert (rag.retrieval.cache.enabled, rag.retrieval.cache.ttl, rag.retrieval.cache.max_entries) == (
        True,
        900,
        100,
    )


@pytest.mark.req("001-058", "001-059", "001-060", "001-061", "001-062", "001-063", "001-064")
def test_the_documented_monitoring(loaded: Loaded) -> None:
    monitoring = loaded(
        """\
        rag:
          monitoring:
            metrics: {enabled: true, exportPath: ./metrics/rag, exportInterval: 60}
            logging:
              level: ${LOG_LEVEL:-info}
              path: ./logs/rag.log
              maxFiles: 10
              maxSize: 10m
            healthCheck: {enabled: true, endpoint: /health/rag, interval: 30}
            alerts:
              enabled: true
              channels:
                - {type: console, minSeverity: warning}
                - {type: file, path: ./logs/alerts.log, minSeverity: error}
              conditions:
                - {name: slow_query, threshold: 1000, severity: warning}
                - {name: indexing_failure, threshold: 5, severity: error}
                - {name: store_unreachable, threshold: 3, severity: critical}
        """
    ).rag.monitoring
    defaults = Configuration().monitoring
    assert (str(monitoring.metrics.export_path), monitoring.metrics.export_interval) == ("metrics/rag", 60)
    assert (monitoring.logging.level, monitoring.logging.max_files, monitoring.logging.max_size) == (
        "info",
        10,
        10_485_760,
    )
    assert monitoring.health_check == defaults.health_check
    assert [(c.type, c.min_severity) for c in monitoring.alerts.channels] == [
        ("console", "warning"),
        ("file", "error"),
    ]
    assert monitoring.alerts.conditions == defaults.alerts.conditions
    assert [(c.name, c.threshold, c.severity) for c in defaults.alerts.conditions] == [
        ("slow_query", 1000, "warning"),
        ("indexing_failure", 5, "error"),
        ("store_unreachable", 3, "critical"),
    ]


@pytest.mark.req("001-073")
def test_defaults() -> None:
    rag = Configuration()
    assert (rag.enabled, rag.provider, rag.rollout_percentage, rag.feature_flags.rag_enrichment) == (
        True,
        "pgvector",
        100,
        True,
    )
    assert (rag.embedding.provider, rag.embedding.cache.max_size) == ("minilm", 1000)
    assert rag.chunking.options() == ChunkingOptions()
    assert (rag.retrieval.min_similarity, rag.retrieval.candidates, rag.retrieval.rerank.candidates) == (
        "auto",
        100,
        30,
    )
    assert (rag.retrieval.exact_below, rag.retrieval.build_at) == (10_000, 200_000)
    weights = rag.retrieval.weights
    assert Weights(**weights.model_dump()) == Weights(), "as measured, see docs/search.md"
    assert rag.retrieval.rerank.enabled is False
    assert rag.decisions == DecisionRules()
    assert rag.sources == ()
    assert (rag.timezone, rag.flower.port, rag.flower.url_prefix) == ("UTC", 0, "")


@pytest.mark.req("001-045")
@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ("", (100, 1000, 200)),
        ("strategy: recursive", (100, 1000, 200)),
        ("strategy: semantic", (100, 500, 50)),
        ("strategy: Semantic, maxSize: 800", (100, 800, 50)),
        ("strategy: semantic, max_size: 300, minSize: 0, overlap: 0", (0, 300, 0)),
    ],
)
def test_sizes_depend_on_the_strategy(loaded: Loaded, keys: str, sizes: tuple[int, ...]) -> None:
    chunking = loaded(f"rag:\n  chunking: {{{keys}}}\n").rag.chunking
    assert (chunking.min_size, chunking.max_size, chunking.overlap) == sizes


def test_a_semantic_chunk_smaller_than_its_default_overlap_is_refused(problems: Problems) -> None:
    (problem,) = problems("rag:\n  chunking: {strategy: semantic, minSize: 0, maxSize: 50}\n")
    assert (problem.key, problem.actual, problem.allowed) == (
        "chunking.overlap",
        "the default 50",
        "less than maxSize (50)",
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"['\n\n', '\n']", ("\n\n", "\n")),
        (r'["\n", "\t"]', ("\n", "\t")),
        (r"['\t', ', ']", ("\t", ", ")),
        ("', '", (", ",)),
    ],
)
def test_escapes_in_single_quotes_are_meant_as_line_breaks(
    loaded: Loaded, written: str, meant: tuple[str, ...]
) -> None:
    assert loaded(f"rag:\n  chunking: {{splitOn: {written}}}\n").rag.chunking.split_on == meant


@pytest.mark.parametrize(
    ("text", "value"),
    [("auto", "auto"), ("0", 0), ("1", 1), ("0.35", 0.35), ("${S:-0.5}", 0.5), ("${S:-auto}", "auto")],
)
def test_similarity_is_auto_or_a_number(loaded: Loaded, text: str, value: float | str) -> None:
    found = loaded(f"rag:\n  retrieval:\n    minSimilarity: {text}\n").rag.retrieval.min_similarity
    assert found == value
    assert type(found) is type(value)


def test_embedders_here_are_those_of_the_pipeline() -> None:
    assert set(EMBEDDING_PROVIDERS) == set(PROVIDERS)


class TestQueue:
    """Leases and limits."""

    def test_defaults(self) -> None:
        queue = Configuration().queue
        assert (queue.lease_seconds, queue.resend_after, queue.visibility_timeout) == (120, 240, 900)
        assert (queue.soft_time_limit, queue.time_limit, queue.tick_seconds) == (240, 300, 5)
        assert (queue.max_in_flight, queue.batch_documents, queue.upsert_rows) == (2000, 128, 500)
        assert (queue.max_attempts, queue.max_crashes) == (8, 3)
        assert (queue.retry_base_seconds, queue.retry_max_seconds) == (2, 600)
        assert (queue.concurrency.control, queue.concurrency.ingest, queue.concurrency.embed) == (
            2,
            2,
            "auto",
        )
        assert (queue.deletion_guard.share, queue.deletion_guard.documents) == (0.2, 25)
        assert (queue.keep_runs_days, queue.keep_dead_days, queue.reconcile_hours) == (30, 90, 24)

    @pytest.mark.parametrize(
        "keys",
        [
            "leaseSeconds: 10, resendSeconds: 11, visibilityTimeout: 12, timeLimit: 11, softTimeLimit: 10",
            "leaseSeconds: 449",
            "timeLimit: 899",
            "softTimeLimit: 299.5",
        ],
    )
    def test_values_in_order(self, loaded: Loaded, keys: str) -> None:
        queue = loaded(f"rag:\n  queue: {{{keys}}}\n").rag.queue
        assert queue.lease_seconds < queue.resend_after < queue.visibility_timeout
        assert queue.soft_time_limit < queue.time_limit < queue.visibility_timeout

    @pytest.mark.parametrize(
        ("keys", "key", "allowed"),
        [
            ("resendSeconds: 120", "resendSeconds", "more than leaseSeconds (120)"),
            ("resendSeconds: 900", "resendSeconds", "less than visibilityTimeout (900)"),
            ("leaseSeconds: 450", "resendSeconds", "less than visibilityTimeout (900)"),
            ("timeLimit: 900", "timeLimit", "less than visibilityTimeout (900)"),
            ("timeLimit: 200", "timeLimit", "more than softTimeLimit (240)"),
            ("softTimeLimit: 300", "softTimeLimit", "less than timeLimit (300)"),
            ("retryBaseSeconds: 600", "retryBaseSeconds", "less than retryMaxSeconds (600)"),
        ],
    )
    def test_values_out_of_order(self, problems: Problems, keys: str, key: str, allowed: str) -> None:
        (problem,) = problems(f"rag:\n  queue: {{{keys}}}\n")
        assert (problem.at.line, problem.key, problem.allowed) == (2, f"queue.{key}", allowed)
        assert problem.actual == (keys.partition(": ")[2] if key in keys else "nothing")


def test_a_process_keeps_as_many_connections_as_it_is_told(loaded: Loaded) -> None:
    settings = loaded("rag:\n  storage:\n    database: {poolSize: 9}\n")
    where = Addresses(database="postgresql://x:x@127.0.0.1:1/x", control="", admin="", broker="")
    database = Runtime(settings, where).database
    for engine in (database.app, database.controller):
        assert isinstance(engine.pool, QueuePool)
        assert engine.pool.size() == 9 + SPARE_CONNECTIONS
    database.close()


@pytest.mark.parametrize(
    ("written", "stored"), [("none", "halfvec"), ("None", "halfvec"), ("HalfVec", "halfvec"), ("bit", "bit")]
)
def test_no_quantization_is_the_index_of_vectors_as_they_are_stored(
    loaded: Loaded, written: str, stored: str
) -> None:
    settings = loaded(f"rag:\n  retrieval: {{quantization: {written}}}\n")
    assert settings.rag.retrieval.quantization == stored
