"""Answers and questions' vectors that are kept: under which key, in which form, and until when they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import numpy as np
from pydantic_core import from_json, to_json

from pipeline.embedding import Vectors
from pipeline.reranking import RerankOptions
from pipeline.search.arms import Ask
from pipeline.search.cache import Cache, Value
from pipeline.search.chunk_store import SearchIndex
from pipeline.search.filters import names_of, values_of
from pipeline.search.records import Explanation, Hit, RetrievalOptions, SearchRequest
from pipeline.search.statements import STATE
from pipeline.search.texts import reread


def state(ask: Ask) -> str:
    """Names the state of what the tenant's searches may show, empty if nothing was ever indexed.

    It differs after every change, from the moment in which that becomes visible. An answer is kept with the state that
    was read in the statement that found it, or before: if that still holds, nothing has changed since.
    """
    ((now,),) = ask(f"select {STATE}", {}, one_plan=True)
    return now or ""


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

    def put(self, key: str, value: Value) -> None:
        """Keep them."""
        self.cache.put(self.space, key, value)


def memory(cache: Cache | None, kind: str, tenant: UUID) -> Memory | None:
    """What a tenant remembers of this kind; None without a cache."""
    return None if cache is None else Memory(tenant=tenant, cache=cache, kind=kind)


def way_of(options: RetrievalOptions, rerank: RerankOptions) -> str:
    """A name for the way in which a retriever answers."""
    return _hash(f"{options!r} {rerank!r}")


def key_of(request: SearchRequest, index: SearchIndex, way: str) -> str:
    """What makes two questions the same: their words, filter and rights, the index, and the way they are answered.

    A hash, so that no question can be read in the cache.
    """
    names = names_of(request.filter)
    values = values_of(request.filter, names) if names else ""
    how = (request.mode, request.k, request.min_similarity, request.dedupe, request.feedback_key)
    return _hash(f"{index.id} {index.model} {way} {how} {names} {values} {request.text}")


def written(hits: Sequence[Hit], now: str) -> bytes:
    """Ids and numbers of an answer, and the state it was found in; no text, no title."""
    rows = [
        {
            "document": hit.document.id,
            "ord": hit.chunk.ord,
            "score": hit.score,
            "explanation": vars(hit.explanation) if hit.explanation else None,
        }
        for hit in hits
    ]
    return to_json({"state": now, "hits": rows})


def given_again(ask: Ask, index: SearchIndex, kept: bytes, request: SearchRequest) -> list[Hit] | None:
    """The hits of a kept answer with their texts, as the caller may see them now; None if it no longer holds.

    That is told by the statement that reads the texts, so a state cannot end between the two.
    """
    try:
        entry = from_json(kept)
        then, rows = str(entry["state"]), entry["hits"]
        places = [(UUID(row["document"]), int(row["ord"])) for row in rows]
        explained = [Explanation(**row["explanation"]) for row in rows]
        scores = [float(row["score"]) for row in rows]
    except (ValueError, TypeError, KeyError):
        return None  # written by another version of ours
    found, now = reread(ask, index.id, places, request.filter, request.question_key)
    if not now or now != then or any(place not in found for place in places):
        return None
    return [
        Hit(
            document=found[place].document,
            chunk=found[place].chunk,
            score=score,
            explanation=explanation if request.explain else None,
            standing=found[place].standing,
            feedback=found[place].shift,
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
