"""What is counted for Prometheus."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import numpy as np
from prometheus_client import REGISTRY

from pipeline.ledger.embedding_use import Meter, Used
from workers.monitoring.metrics import record_embedding_use
from workers.runtime import Addresses, Runtime
from workers.settings import load


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_use_is_added_up() -> None:
    meter = Meter(tenant_id=uuid4(), provider="p", model="metered", kind="document")
    used = Used(calls=1, texts=2, tokens=30, cost=Decimal("0.25"), cache_hits=4)
    record_embedding_use(meter, used)
    record_embedding_use(meter, used)
    labels = {"provider": "p", "model": "metered", "kind": "document"}
    found = {
        name: value(f"larder_embedding_{name}_total", **labels)
        for name in ("calls", "texts", "tokens", "cost", "cache_hits")
    }
    assert found == {"calls": 2, "texts": 4, "tokens": 60, "cost": 0.5, "cache_hits": 8}


def test_looks_for_a_questions_vector_tell_whether_it_was_there(tmp_path: Path) -> None:
    (tmp_path / "larder.yaml").write_text("rag: {}\n")
    nowhere = Addresses(database="", control="", admin="", broker="")
    cache = Runtime(load(tmp_path / "larder.yaml", {}), nowhere).caches.vectors
    assert cache is not None
    looks = "larder_query_vector_lookups_total"
    before = [value(looks, cache="near", found=found) for found in ("no", "yes")]
    vector = np.ones(3, np.float32)
    assert cache.get("vector", "k") is None
    cache.put("vector", "k", vector)
    assert cache.get("vector", "k") is vector
    after = [value(looks, cache="near", found=found) for found in ("no", "yes")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1]
