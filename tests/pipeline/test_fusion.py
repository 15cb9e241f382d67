"""Fusion: scaling, weights, thresholds, one hit per document."""

from __future__ import annotations

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.search.chunks import Candidate, StoredDocument
from pipeline.search.fusion import (
    Fused,
    FusionWeights,
    above_threshold,
    best_per_document,
    fuse,
)


def candidate(
    number: int, similarity: float | None = None, bm25: float | None = None, *, at: int = 0
) -> Candidate:
    document = StoredDocument(
        id=UUID(int=number), version=1, title=f"d{number}", source_type=SourceType.TEXT, kind=Kind.WORK
    )
    chunk = Chunk(ord=at, content=f"chunk {at} of {number}")
    return Candidate(document=document, chunk=chunk, similarity=similarity, bm25=bm25)


def places(fused: list[Fused]) -> list[tuple[int, int]]:
    return [(f.candidate.document_id.int, f.candidate.ord) for f in fused]


def numbers(fused: list[Fused]) -> list[int]:
    return [number for number, _ in places(fused)]


@pytest.mark.req("001-093", "ORD-05")
def test_seventy_thirty_over_the_scaled_union() -> None:
    fused = fuse([candidate(1, 0.9, 0.0), candidate(2, 0.5, 8.0), candidate(3, 0.1, 2.0)])
    assert numbers(fused) == [1, 2, 3]
    assert [f.vector_part for f in fused] == pytest.approx([0.7, 0.35, 0.0])
    assert [f.keyword_part for f in fused] == pytest.approx([0.0, 0.3, 0.075])
    assert [f.score for f in fused] == pytest.approx([0.7, 0.65, 0.075])


@pytest.mark.req("001-093")
def test_keywords_lift_an_exact_term_past_a_slightly_closer_vector() -> None:
    fused = fuse([candidate(1, 0.52, 0.0), candidate(2, 0.50, 9.0), candidate(3, 0.20, 0.0)])
    assert numbers(fused) == [2, 1, 3]


def test_weights_are_settings() -> None:
    candidates = [candidate(1, 0.9, 0.0), candidate(2, 0.1, 5.0)]
    assert numbers(fuse(candidates, FusionWeights(vector=0.2, keyword=0.8))) == [2, 1]
    assert fuse(candidates, FusionWeights(vector=0.2, keyword=0.8))[0].score == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("similarity", "bm25", "score"), [(0.4, 3.0, 1.0), (0.4, 0.0, 0.7), (-0.4, 3.0, 0.3), (0.0, 0.0, 0.0)]
)
def test_an_arm_without_differences_gives_all_or_nothing(
    similarity: float, bm25: float, score: float
) -> None:
    """One candidate, or many with the same score: there is nothing to scale by, and no division by zero."""
    assert fuse([candidate(1, similarity, bm25)])[0].score == pytest.approx(score)
    both = fuse([candidate(1, similarity, bm25), candidate(2, similarity, bm25)])
    assert [f.score for f in both] == pytest.approx([score, score])


def test_no_candidates() -> None:
    assert fuse([]) == []
    assert fuse([], mode="vector") == []
    assert fuse([], mode="keyword") == []


def test_vector_mode_scores_by_similarity_as_it_is() -> None:
    fused = fuse([candidate(1, 0.3), candidate(2, 0.8), candidate(3, None, 4.0)], mode="vector")
    assert numbers(fused) == [2, 1]
    assert [(f.score, f.vector_part, f.keyword_part) for f in fused] == [(0.8, 0.8, 0.0), (0.3, 0.3, 0.0)]


def test_keyword_mode_scores_by_scaled_bm25_and_takes_hits_only() -> None:
    fused = fuse(
        [candidate(1, None, 2.0), candidate(2, None, 6.0), candidate(3, None, 4.0), candidate(4, 0.9, 0.0)],
        mode="keyword",
    )
    assert numbers(fused) == [2, 3, 1]
    assert [f.score for f in fused] == pytest.approx([1.0, 0.5, 0.0])
    assert all(f.vector_part == 0.0 for f in fused)


def test_a_single_keyword_hit_scores_one() -> None:
    assert fuse([candidate(1, None, 0.01)], mode="keyword")[0].score == 1.0


def test_an_arm_that_was_left_out_adds_nothing() -> None:
    fused = fuse([candidate(1, 0.9, None), candidate(2, 0.2, None)])
    assert [f.score for f in fused] == pytest.approx([0.7, 0.0])


def test_equal_scores_are_ordered_by_document_then_place() -> None:
    candidates = [candidate(n, 0.5, 1.0, at=at) for n in (3, 1, 2) for at in (10, 2)]
    expected = [(1, 2), (1, 10), (2, 2), (2, 10), (3, 2), (3, 10)]
    rng = random.Random(2)
    for _ in range(5):
        assert places(fuse(rng.sample(candidates, len(candidates)))) == expected


def test_one_hit_per_document_is_its_best_chunk() -> None:
    fused = fuse(
        [
            candidate(1, 0.9, 0.0, at=0),
            candidate(1, 0.8, 9.0, at=4),
            candidate(2, 0.85, 0.0, at=1),
            candidate(3, 0.1, 0.0, at=2),
            candidate(2, 0.2, 0.0, at=0),
        ]
    )
    assert places(best_per_document(fused)) == [(1, 4), (2, 1), (3, 2)]
    assert places(best_per_document(reversed(fused))) == [(3, 2), (2, 0), (1, 0)], "in the order given"


def test_the_threshold_is_about_the_vector_alone_and_spares_keyword_hits() -> None:
    fused = fuse(
        [
            candidate(1, 0.71, 0.0),
            candidate(2, 0.70, 0.0),
            candidate(3, 0.69, 0.0),
            candidate(4, 0.05, 0.4),
            candidate(5, 0.05, 0.0),
        ]
    )
    assert sorted(numbers(above_threshold(fused, min_similarity=0.7))) == [1, 2, 4]
    assert above_threshold(fused, min_similarity=None) == fused


def test_the_threshold_keeps_the_order_and_what_has_no_vector_score() -> None:
    fused = fuse([candidate(1, None, 1.0), candidate(2, None, 3.0)], mode="keyword")
    assert above_threshold(fused, min_similarity=0.99) == fused
    vectors = fuse([candidate(1, 0.2), candidate(2, 0.9), candidate(3, 0.8)], mode="vector")
    assert numbers(above_threshold(vectors, min_similarity=0.5)) == [2, 3]


SCORES = st.tuples(st.floats(-1, 1), st.floats(0, 1e6))


@given(st.lists(SCORES, max_size=30))
def test_hybrid_scores_stay_between_zero_and_one_and_fall(scores: list[tuple[float, float]]) -> None:
    fused = fuse([candidate(n, similarity, bm25) for n, (similarity, bm25) in enumerate(scores)])
    values = [f.score for f in fused]
    assert values == sorted(values, reverse=True)
    assert all(-1e-9 <= value <= 1 + 1e-9 for value in values)
    assert sorted(numbers(fused)) == list(range(len(scores)))
    assert all(f.score == pytest.approx(f.vector_part + f.keyword_part) for f in fused)


@given(st.lists(SCORES, min_size=2, max_size=10), st.floats(0.1, 100))
def test_a_models_own_scale_does_not_matter(scores: list[tuple[float, float]], factor: float) -> None:
    """Another model's similarities lie elsewhere; the ranking of the same order of scores must not."""
    plain = fuse([candidate(n, round(s, 3), round(b, 3)) for n, (s, b) in enumerate(scores)])
    moved = fuse(
        [candidate(n, round(s, 3) * factor, round(b, 3) * factor) for n, (s, b) in enumerate(scores)]
    )
    by_number = {f.candidate.document_id: f.score for f in moved}
    assert [by_number[f.candidate.document_id] for f in plain] == pytest.approx(
        [f.score for f in plain], abs=1e-6
    )
