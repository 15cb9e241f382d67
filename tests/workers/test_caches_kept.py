"""Which caches a configuration makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.search import SearchResults
from workers.runtime import Addresses, Runtime
from workers.settings import load

BROKER = "redis://127.0.0.1:1/0"  # connected to at the first use


def runtime(tmp_path: Path, text: str, broker: str = BROKER) -> Runtime:
    path = tmp_path / "larder.yaml"
    path.write_text(f"rag:\n{text}")
    return Runtime(load(path, {}), Addresses(database="", control="", admin="", broker=broker))


@pytest.mark.req("001-048", "001-079", "001-098")
def test_each_process_keeps_answers_and_vectors_of_its_own(tmp_path: Path) -> None:
    made = runtime(
        tmp_path, "  embedding: {provider: minilm}\n  retrieval: {cache: {maxEntries: 2, ttl: 60}}\n"
    )
    caches = made.caches
    assert caches.answers is not None
    assert caches.vectors is not None
    for n in range(3):
        caches.answers.put("s", str(n), SearchResults())
        caches.vectors.put("s", str(n), np.zeros(1, np.float32))
    assert caches.answers.get("s", "0") is None
    assert caches.vectors.get("s", "0") is None
    assert caches.answers.get("s", "2") == SearchResults()


def test_switched_off_nothing_is_kept(tmp_path: Path) -> None:
    caches = runtime(tmp_path, "  retrieval: {cache: {enabled: false}}\n").caches
    assert (caches.vectors, caches.answers) == (None, None)


def test_who_was_forked_makes_caches_of_his_own(tmp_path: Path) -> None:
    made = runtime(tmp_path, "  embedding: {provider: minilm}\n")
    before = made.caches
    made.forget_connections()
    assert made.caches is not before
