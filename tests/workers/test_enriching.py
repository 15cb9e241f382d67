"""What a request of Step 4 gets while parts of the installation are slow or away: always an answer, at the right level."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.documents import Json
from pipeline.embedding import Embedder, EmbedderLimits
from pipeline.enrichment.degradation import Health
from pipeline.errors import ConfigurationError, EmbedderUnavailable, SearchError
from tests.conftest import Addresses
from tests.workers.indexed import index
from workers import runtime as runtimes
from workers.app.enrichment import job
from workers.app.enrichment.job import answer_version
from workers.app.ingestion import sync
from workers.local import embedded
from workers.queue.app import configure
from workers.runtime import Runtime
from workers.settings import load

PBI = {"id": "PBI-9", "title": "Warn of shallow water at the bar", "description": "Tell the pilot in time."}
CONFIG = """
rag:
  embedding: {provider: hashing}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/**/*.md'], autoIndex: false}
    - {name: backlog, type: pbi_json, paths: ['./output/run-*/final-output.json'], autoIndex: false}
"""


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Away:
    """An embedder whose service does not answer."""

    dimensions = 384
    limits = EmbedderLimits()

    def count_tokens(self, text: str) -> int:
        return len(text)

    def embed_query(self, _text: str) -> Any:
        raise EmbedderUnavailable("the provider does not answer")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runtime(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, clock: Clock
) -> Iterator[Runtime]:
    """An installation with an item, a decision and a page about tides; its health runs on the clock of the test."""
    files = {
        "larder.yaml": CONFIG,
        "docs/tides.md": "# Tides\n\nThe bar is shallow water for three hours; the pilot waits for the tide.\n",
        "docs/adr/0001-bar.md": "# Warn of shallow water at the bar\n\n## Status\n\nAccepted\n\n## Decision\n\nWe warn of shallow water"
        " before a pilot is ordered.\n",
        "output/run-2026-01-01/final-output.json": '{"pbis": [{"id": "PBI-1", "title": "Warn of shallow water",'
        ' "description": "Tell the pilot", "acceptance_criteria": ["A warning below two metres"]}]}',
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    where = runtimes.Addresses(
        database=addresses.app, control=addresses.control, admin=addresses.admin, broker=servers.broker_url
    )
    made = Runtime(load(tmp_path / "larder.yaml", {}), where)
    configure(made.rag.queue, where.broker)
    sync.register(made)
    index(made)
    made.__dict__["health"] = Health(clock=clock)
    yield made
    made.database.close()


@pytest.fixture
def enrich(runtime: Runtime) -> Callable[[Json], Json]:
    return job.enricher(runtime, runtime.settings.tenant_id)


def ask(enrich: Callable[[Json], Json], title: str = PBI["title"]) -> Json:
    return enrich({"pbi": {**PBI, "title": title}, "scores": {}})


@pytest.mark.req("001-112")
def test_with_everything_well_the_answer_is_whole(enrich: Callable[[Json], Json]) -> None:
    found = ask(enrich)
    assert found["degradation_level"] == 0
    assert [work["ref"] for work in found["similar_work"]] == ["PBI-1"]
    assert found["past_decisions"][0]["status"] == "accepted"
    assert found["technical_docs"]


@pytest.mark.req("001-139")
def test_without_the_embedder_words_alone_answer_and_it_comes_back(runtime: Runtime, clock: Clock) -> None:
    good: Embedder = runtime.embedder
    runtime.__dict__["embedder"] = Away()
    enrich = job.enricher(runtime, runtime.settings.tenant_id)
    for n in range(3):
        found = ask(enrich, f"Warn of shallow water {n}")
        assert found["degradation_level"] == 3
        assert [work["ref"] for work in found["similar_work"]] == ["PBI-1"]
    assert runtime.health.level() == 3
    runtime.__dict__["embedder"] = good
    clock.now += 30
    ask(enrich, "Warn of shallow water, a try in between")
    assert runtime.health.level() == 3, "left before a quiet minute was over"
    clock.now += 60
    ask(enrich, "Warn of shallow water, the try that counts")
    assert runtime.health.level() == 0
    assert ask(enrich, "Warn of shallow water once more")["degradation_level"] == 0


def test_without_the_store_the_answer_is_a_prepared_one_and_it_comes_back(
    runtime: Runtime,
    enrich: Callable[[Json], Json],
    superuser: Callable[[str], psycopg.Connection[Any]],
    addresses: Addresses,
    clock: Clock,
) -> None:
    with superuser("postgres") as connection:
        connection.execute(f"alter database {addresses.name} with allow_connections false")
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (addresses.name,)
        )
        for n in range(3):
            found = ask(enrich, f"Warn of shallow water {n}")
            assert found["degradation_level"] == 4
            assert (found["similar_work"], found["risk_flags"]) == ([], [])
            assert "looked up" in str(found["suggestions"])
        connection.execute(f"alter database {addresses.name} with allow_connections true")
    clock.now += 61
    ask(enrich, "Warn of shallow water, the try that counts")
    assert ask(enrich, "Warn of shallow water once more")["degradation_level"] == 0


def test_a_store_that_is_slow_is_left_alone_and_comes_back(
    runtime: Runtime, enrich: Callable[[Json], Json], clock: Clock
) -> None:
    for _ in range(3):
        runtime.health.record("store", ok=True, seconds=2.5)
    found = [ask(enrich, f"Warn of shallow water {n}")["degradation_level"] for n in range(3)]
    assert found[1:] == [4, 4], "the first may be the one full try in five seconds"
    clock.now += 61
    ask(enrich, "Warn of shallow water, the try that counts")
    assert ask(enrich, "Warn of shallow water once more")["degradation_level"] == 0


def test_switched_off_says_so(runtime: Runtime) -> None:
    off = runtime.rag.model_copy(update={"enabled": False})
    runtime.rag = off
    assert ask(job.enricher(runtime, runtime.settings.tenant_id))["degradation_level"] == 5


def test_a_wrong_request_is_told_to_whoever_asks(enrich: Callable[[Json], Json]) -> None:
    with pytest.raises(SearchError, match="title"):
        enrich({"pbi": {"id": "PBI-9", "title": ["no", "text"]}, "scores": {}})


@pytest.mark.req("001-108")
@pytest.mark.parametrize(
    "changed",
    [
        "retrieval: {topK: 3}",
        "retrieval: {weights: {vector: 0.5, keyword: 0.5}}",
        "retrieval: {synonyms: ./synonyms.yaml}",
        "retrieval: {rerank: {enabled: true}}",
        "language: german",
    ],
)
def test_an_answer_under_another_configuration_is_another_one(
    tmp_path: Path, runtime: Runtime, changed: str
) -> None:
    """What `submit` gives again to the same question was made in the same way, or is made anew."""
    (tmp_path / "synonyms.yaml").write_text("- [shallow, shoal]\n", encoding="utf-8")

    def way(more: str) -> str:
        (tmp_path / "other.yaml").write_text(f"{CONFIG}  {more}\n", encoding="utf-8")
        return answer_version(Runtime(load(tmp_path / "other.yaml", {}), runtime.addresses))

    assert way("") == way("queue: {tickSeconds: 9}") == answer_version(runtime)
    assert way(changed) != answer_version(runtime)


def test_what_configuration_gives_no_way_to_search_is_told_by_the_answer(
    tmp_path: Path, runtime: Runtime
) -> None:
    (tmp_path / "wrong.yaml").write_text(
        f"{CONFIG}  retrieval: {{synonyms: ./none.yaml}}\n", encoding="utf-8"
    )
    wrong = Runtime(load(tmp_path / "wrong.yaml", {}), runtime.addresses)
    assert answer_version(wrong) == "5"
    with pytest.raises(ConfigurationError, match="synonyms"):
        job.enricher(wrong, wrong.settings.tenant_id)({"pbi": PBI})
