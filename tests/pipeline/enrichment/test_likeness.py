"""How alike an item and what was found for it are, and what follows: nothing, knowledge, a likely duplicate."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.documents import Json
from pipeline.enrichment import Enricher, EnrichmentRequest
from pipeline.enrichment.enricher import EnrichmentOptions
from pipeline.retrieval import Explanation, Hit, SearchRequest, SearchResults
from tests.pipeline.enrichment.library import PBI, answer, checked, enricher, refs, stocked, work
from tests.pipeline.workshop import MODEL, Workshop


@pytest.mark.parametrize(
    "pbi",
    [
        {"id": "PBI-7", "title": "Quite another title", "description": "Export invoices as CSV"},
        {
            "id": "OTHER",
            "title": "Export  invoices as csv",
            "description": "As a billing clerk I want to export invoices as CSV, so that the tax office can\nread them.",
        },
    ],
)
def test_the_items_own_document_is_left_out_by_id_or_by_title_and_text(shop: Workshop, pbi: Json) -> None:
    found = answer(stocked(shop), pbi)
    assert "PBI-7" not in refs(found, "similar_work")
    assert found["likely_duplicates"] == []


def test_an_item_of_the_same_title_and_another_text_is_shown_as_a_likely_duplicate(shop: Workshop) -> None:
    found = answer(
        stocked(shop), {"id": "N", "title": "Export invoices as CSV", "description": "Of invoices."}
    )
    assert refs(found, "likely_duplicates") == ["PBI-7"]
    (check,) = [s for s in found["suggestion_details"] if s["kind"] == "duplicate"]
    assert "“Export invoices as CSV” (PBI-7)" in check["text"]


def doctored(shop: Workshop, **changes: Any) -> Enricher:
    """An enricher whose search gives every hit this explanation and level."""
    real = enricher(shop).search
    level = changes.pop("level", 0)

    def search(request: SearchRequest) -> SearchResults:
        found = real(request)

        def changed(hit: Hit) -> Hit:
            explanation = hit.explanation
            assert isinstance(explanation, Explanation)
            return replace(hit, explanation=replace(explanation, **changes))

        return replace(found, hits=[changed(h) for h in found.hits], degradation_level=level)

    return enricher(shop, search=search, options=EnrichmentOptions(duplicate_thresholds={MODEL: 0.77}))


def test_without_an_embedder_likeness_is_that_of_words_and_chance_words_do_not_count(shop: Workshop) -> None:
    stocked(shop)
    degraded = doctored(shop, similarity=None, level=3)
    found = checked(shop, degraded.enrich(EnrichmentRequest.from_json(PBI)))
    assert found["degradation_level"] == 3
    assert refs(found, "similar_work") == ["PBI-7"]
    item = found["similar_work"][0]
    assert item["similarity_by"] == "words"
    assert 30 <= item["similarity"] <= 100
    assert found["likely_duplicates"] == []


@pytest.mark.req("002-007")
def test_a_document_below_the_threshold_is_no_knowledge_unless_it_has_the_rarest_words(
    shop: Workshop,
) -> None:
    stocked(shop)
    request = EnrichmentRequest.from_json(PBI)
    far = doctored(shop, similarity=0.3, min_similarity=0.37, rare=0.1).enrich(request).to_json()
    assert far["similar_work"] == far["past_decisions"] == far["technical_docs"] == far["suggestions"] == []
    near = doctored(shop, similarity=0.38, min_similarity=0.37, rare=0.1).enrich(request).to_json()
    assert "PBI-7" in refs(near, "similar_work")
    assert [s for s in near["suggestion_details"] if s["kind"] == "acceptance_criterion"] == [], (
        "too far to borrow from"
    )
    rare = doctored(shop, similarity=0.3, min_similarity=0.37, rare=0.4).enrich(request).to_json()
    assert "PBI-7" in refs(rare, "similar_work")


def test_likely_duplicates_reach_the_models_threshold_within_the_first_five(shop: Workshop) -> None:
    more = [
        work(f"TWIN-{n}", f"Export invoices as CSV, part {n}", "## Description\n\nCSV.") for n in range(7)
    ]
    stocked(shop, *more)
    request = EnrichmentRequest.from_json({"pbi": PBI, "topK": 1})
    flagged = doctored(shop, similarity=0.77).enrich(request)
    assert len(flagged.similar_work) == 1
    assert len(flagged.likely_duplicates) == 5
    assert doctored(shop, similarity=0.76).enrich(request).likely_duplicates == []


def test_similarity_stays_between_0_and_100(shop: Workshop) -> None:
    stocked(shop)
    request = EnrichmentRequest.from_json(PBI)
    for cosine, percent in ((1.0000001, 100), (-0.2, 0), (0.555, 56)):
        found = doctored(shop, similarity=cosine, rare=1.0).enrich(request)
        assert {item.similarity for item in found.similar_work} == {percent}
