"""Which caches a configuration makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.search.cache import LayeredCache
from workers.limits.caches import Behind
from workers.runtime import Addresses, Runtime
from workers.settings import load

BROKER = "redis://127.0.0.1:1/0"  # connected to at the first use


def parts(tmp_path: Path, text: str, broker: str = BROKER) -> Runtime:
    path = tmp_path / "larder.yaml"
    path.write_text(f"rag:\n{text}")
    return Runtime(load(path, {}), Addresses(database="", control="", admin="", broker=broker))


@pytest.mark.req("001-048", "001-079", "001-098")
def test_answers_and_vectors_are_kept_for_all_processes(tmp_path: Path) -> None:
    caches = parts(tmp_path, "  embedding: {provider: minilm}\n").caches
    assert isinstance(caches.vectors, LayeredCache)
    assert isinstance(caches.results, Behind), "nobody waits for an answer to be kept"


def test_vectors_that_are_made_sooner_than_asked_for_are_not_kept(tmp_path: Path) -> None:
    caches = parts(tmp_path, "  embedding: {provider: hashing}\n").caches
    assert caches.vectors is None
    assert isinstance(caches.results, Behind)


def test_switched_off_nothing_is_kept(tmp_path: Path) -> None:
    caches = parts(tmp_path, "  retrieval: {cache: {enabled: false}}\n").caches
    assert (caches.vectors, caches.results) == (None, None)


def test_without_a_broker_a_process_keeps_its_own_vectors(tmp_path: Path) -> None:
    caches = parts(tmp_path, "  embedding: {provider: minilm}\n", broker="").caches
    assert caches.vectors is not None
    assert caches.results is None


def test_who_was_forked_makes_caches_of_his_own(tmp_path: Path) -> None:
    made = parts(tmp_path, "  embedding: {provider: minilm}\n")
    before = made.caches
    made.forget_connections()
    assert made.caches is not before
