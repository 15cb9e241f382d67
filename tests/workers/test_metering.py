"""What is counted for Prometheus."""

from __future__ import annotations

from decimal import Decimal
from uuid import uuid4

import numpy as np
from prometheus_client import REGISTRY

from pipeline.ledger.embedding_use import Meter, Used
from workers.processes.metrics import CountedCache, count


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_use_is_added_up() -> None:
    meter = Meter(tenant_id=uuid4(), provider="p", model="metered", kind="document")
    used = Used(calls=1, texts=2, tokens=30, cost=Decimal("0.25"), cache_hits=4)
    count(meter, used)
    count(meter, used)
    labels = {"provider": "p", "model": "metered", "kind": "document"}
    found = {
        name: value(f"larder_embedding_{name}_total", **labels)
        for name in ("calls", "texts", "tokens", "cost", "cache_hits")
    }
    assert found == {"calls": 2, "texts": 4, "tokens": 60, "cost": 0.5, "cache_hits": 8}


def test_looks_for_a_questions_vector_tell_whether_it_was_there() -> None:
    cache = CountedCache("t-near")
    vector = np.ones(3, np.float32)
    assert cache.get("vector", "k") is None
    cache.put("vector", "k", vector)
    assert cache.get("vector", "k") is vector
    looks = "larder_query_vector_lookups_total"
    assert (value(looks, cache="t-near", found="no"), value(looks, cache="t-near", found="yes")) == (1, 1)
