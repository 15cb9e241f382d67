"""Answers and questions' vectors that are kept: under which key, in which form, and until when they hold."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from uuid import UUID

import numpy as np

from pipeline.caching import Cache
from pipeline.embedding import Vectors
from pipeline.retrieval.records import Explanation, Hit, RetrievalOptions, SearchRequest
from pipeline.stores.pgvector import SearchIndex
from pipeline.stores.pgvector_query import Ask
from pipeline.stores.pgvector_sql import ACTIVE
from pipeline.stores.pgvector_texts import read

_STATE = f"""
    select coalesce(string_agg(cast(stamp as text), ' ' order by slot), ''), {ACTIVE} from change_stamp"""


def state(ask: Ask) -> tuple[str, int | None]:
    """Names the state of what the tenant's searches may show, empty if nothing was ever indexed; the active index.

    It differs after every change, from the moment in which that becomes visible. An answer is kept under the state
    that was read before the search: if that state still holds, nothing has changed since before it was made.
    """
    ((stamps, active),) = ask(_STATE, {}, one_plan=True)
    return str(stamps), active


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What one tenant's searches remember."""

    tenant: UUID
    cache: Cache
    kind: str

    @property
    def space(self) -> str:
        """A tenant has a space of its own, in which another's entries can neither be read nor push out its own."""
        return f"{self.kind}:{self.tenant}"

    def get(self, key: str) -> bytes | None:
        """The bytes under a key."""
        return self.cache.get(self.space, key)

    def put(self, key: str, value: bytes) -> None:
        """Keep them."""
        self.cache.put(self.space, key, value)


def memory(cache: Cache | None, kind: str, tenant: UUID) -> Memory | None:
    """What a tenant remembers of this kind; None without a cache."""
    return None if cache is None else Memory(tenant=tenant, cache=cache, kind=kind)


def key_of(
    request: SearchRequest, index: SearchIndex, now: str, options: RetrievalOptions, looked: str
) -> str:
    """What makes two answers the same: the state of the data, the question, its filter and rights, the options.

    `looked` names the reranker and how it is used. A hash, so that no question can be read in the cache.
    """
    asked = replace(request, explain=False, trace=False)
    return _hash(f"{index.id} {index.model} {now} {looked} {asked!r} {options!r}")


def written(hits: Sequence[Hit]) -> bytes:
    """Ids and numbers of an answer; no text, no title."""
    rows = [
        {
            "document": str(hit.document.id),
            "ord": hit.chunk.ord,
            "score": hit.score,
            "explanation": asdict(hit.explanation) if hit.explanation else None,
        }
        for hit in hits
    ]
    return json.dumps(rows, separators=(",", ":")).encode()


def reread(ask: Ask, index: SearchIndex, kept: bytes, request: SearchRequest) -> list[Hit] | None:
    """The hits of a kept answer with their texts, as the caller may see them now; None if any of them is gone."""
    try:
        rows = json.loads(kept)
        places = [(UUID(row["document"]), int(row["ord"])) for row in rows]
        explained = [Explanation(**row["explanation"]) for row in rows]
        scores = [float(row["score"]) for row in rows]
    except (ValueError, TypeError, KeyError):
        return None  # written by another version of ours
    found = read(ask, index.id, places, request.filter)
    if any(place not in found for place in places):
        return None
    return [
        Hit(
            document=found[place].document,
            chunk=found[place].chunk,
            score=score,
            explanation=explanation if request.explain else None,
            standing=found[place].standing,
        )
        for place, score, explanation in zip(places, scores, explained, strict=True)
    ]


def vector_key(index: SearchIndex, question: str) -> str:
    """A question's vector depends on the model alone."""
    return _hash(f"{index.provider} {index.model} {index.dimensions} {question}")


def vector_bytes(vector: Vectors) -> bytes:
    """A vector as it is kept."""
    return np.asarray(vector, dtype="<f4").tobytes()


def vector_of(kept: bytes | None, index: SearchIndex) -> Vectors | None:
    """A kept vector; None if it is none of this index."""
    if kept is None or len(kept) != 4 * index.dimensions:
        return None
    vector: Vectors = np.frombuffer(kept, dtype="<f4").astype(np.float32)
    return vector if np.isfinite(vector).all() else None


def _hash(text_: str) -> str:
    return hashlib.sha256(text_.encode("utf-8", "surrogatepass")).hexdigest()
