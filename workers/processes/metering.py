"""What embedding used, counted for Prometheus; no label holds a text, a key or a tenant."""

from __future__ import annotations

from prometheus_client import Counter

from pipeline.ledger.embedding_use import Meter, Used
from pipeline.search.cache import Cache, Value

_LABELS = ("provider", "model", "kind")
CALLS = Counter("larder_embedding_calls", "Calls of the embedder", _LABELS)
TEXTS = Counter("larder_embedding_texts", "Texts embedded", _LABELS)
TOKENS = Counter("larder_embedding_tokens", "Tokens embedded, as far as they are counted", _LABELS)
COST = Counter("larder_embedding_cost", "What that cost, by costPerMillionTokens", _LABELS)
CACHE_HITS = Counter("larder_embedding_cache_hits", "Texts whose vector was there already", _LABELS)
LOOKS = Counter("larder_query_vector_lookups", "Looks for a question's vector", ["cache", "found"])


def count(meter: Meter, used: Used) -> None:
    """Add what was used."""
    labels = (meter.provider, meter.model, meter.kind)
    CALLS.labels(*labels).inc(used.calls)
    TEXTS.labels(*labels).inc(used.texts)
    TOKENS.labels(*labels).inc(max(0, used.tokens))
    COST.labels(*labels).inc(max(0.0, float(used.cost)))
    CACHE_HITS.labels(*labels).inc(used.cache_hits)


class CountedCache:
    """A cache whose looks are counted as those of `name`; a pipeline.search.cache.Cache itself."""

    def __init__(self, name: str, cache: Cache) -> None:
        self._name = name
        self._cache = cache

    def get(self, space: str, key: str) -> bytes | None:
        """As the cache's."""
        found = self._cache.get(space, key)
        LOOKS.labels(self._name, "no" if found is None else "yes").inc()
        return found

    def put(self, space: str, key: str, value: Value) -> None:
        """As the cache's."""
        self._cache.put(space, key, value)
