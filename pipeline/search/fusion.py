"""One ranking out of two: vector and keyword scores scaled over the same candidates, then weighted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, Protocol, TypeVar
from uuid import UUID

from pipeline.search.chunks import Mode


class Scored(Protocol):
    """A chunk with the scores of both arms; all that a ranking must know of it."""

    @property
    def document_id(self) -> UUID:
        """Its document."""
        ...

    @property
    def ord(self) -> int:
        """Its number in the document."""
        ...

    @property
    def similarity(self) -> float | None:
        """Cosine similarity; None if the vector arm was left out."""
        ...

    @property
    def bm25(self) -> float | None:
        """BM25 score; None if the keyword arm was left out."""
        ...


@dataclass(frozen=True, kw_only=True)
class FusionWeights:
    """The share of each arm in a hybrid score."""

    vector: float = 0.7
    keyword: float = 0.3


class Fused(NamedTuple):
    """A candidate with its score, the sum of both parts; a tuple, since a search makes hundreds."""

    candidate: Scored
    score: float
    """Hybrid: 0 to the sum of the weights. Vector: the similarity. Keyword: 0 to 1."""
    vector_part: float
    keyword_part: float


class Placed(Protocol):
    """A candidate with its score, whatever else is known of it."""

    @property
    def candidate(self) -> Scored:
        """What was scored."""
        ...

    @property
    def score(self) -> float:
        """The higher, the earlier it comes."""
        ...


P = TypeVar("P", bound=Placed)


DEFAULT_WEIGHTS = FusionWeights()


def fuse(
    candidates: Sequence[Scored], weights: FusionWeights = DEFAULT_WEIGHTS, mode: Mode = "hybrid"
) -> list[Fused]:
    """The candidates, best first; equal scores are ordered by document id and ordinal.

    Candidates are the union of both arms, each scored in every arm that was asked, and scaling is over all of
    them. In a single-arm mode, candidates which that arm did not find are left out: those without a
    similarity in `vector`, those without a matching word in `keyword`.
    """
    return in_order(_FUSE[mode](candidates, weights))


def above_threshold(fused: Iterable[P], *, min_similarity: float | None) -> list[P]:
    """Those whose similarity reaches the threshold, and every keyword hit; order is kept.

    The threshold is about the vector score alone: a fused score has no fixed meaning, and a chunk that holds
    the very words asked for is worth showing however far its vector lies.
    """
    if min_similarity is None:
        return list(fused)
    return [f for f in fused if _reaches(f.candidate, min_similarity)]


def best_per_document(ranked: Iterable[P]) -> list[P]:
    """The first of each document, in the order given."""
    seen: set[int] = set()  # of numbers, which are looked up five times as fast as ids
    first = []
    for one in ranked:
        document = one.candidate.document_id.int
        if document not in seen:
            seen.add(document)
            first.append(one)
    return first


def in_order(fused: Iterable[P]) -> list[P]:
    """By score, highest first; then by document id and ordinal, so that a repeated search looks the same."""
    found = sorted(fused, key=attrgetter("score"), reverse=True)
    if len({one.score for one in found}) == len(
        found
    ):  # the rule, and looking at one key takes a third of the time
        return found
    return sorted(found, key=lambda f: (-f.score, f.candidate.document_id, f.candidate.ord))


def weighted(
    similarities: Sequence[float | None], bm25s: Sequence[float | None], weights: FusionWeights
) -> list[tuple[float, float]]:
    """The vector part and the keyword part of each candidate's hybrid score."""
    pairs = zip(scaled(similarities), scaled(bm25s), strict=True)
    return [(weights.vector * v, weights.keyword * k) for v, k in pairs]


def _hybrid(candidates: Sequence[Scored], weights: FusionWeights) -> list[Fused]:
    parts = weighted([c.similarity for c in candidates], [c.bm25 for c in candidates], weights)
    return [_fused(candidate, v, k) for candidate, (v, k) in zip(candidates, parts, strict=True)]


def _vector_only(candidates: Sequence[Scored], _weights: FusionWeights) -> list[Fused]:
    return [_fused(c, c.similarity, 0.0) for c in candidates if c.similarity is not None]


def _keyword_only(candidates: Sequence[Scored], _weights: FusionWeights) -> list[Fused]:
    hits = [c for c in candidates if c.bm25]
    return [_fused(c, 0.0, part) for c, part in zip(hits, scaled([c.bm25 for c in hits]), strict=True)]


_FUSE = {"hybrid": _hybrid, "vector": _vector_only, "keyword": _keyword_only}


def _fused(candidate: Scored, vector_part: float, keyword_part: float) -> Fused:
    return Fused(candidate, vector_part + keyword_part, vector_part, keyword_part)


def scaled(values: Sequence[float | None]) -> list[float]:
    """Smallest to 0, largest to 1; values that are all the same become 1 if above 0; no value counts as 0."""
    known = [v for v in values if v is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if low == high:
        return [1.0 if v is not None and v > 0.0 else 0.0 for v in values]
    return [0.0 if v is None else (v - low) / (high - low) for v in values]


def _reaches(candidate: Scored, min_similarity: float) -> bool:
    if candidate.bm25 is not None and candidate.bm25 > 0.0:
        return True
    return candidate.similarity is None or candidate.similarity >= min_similarity
