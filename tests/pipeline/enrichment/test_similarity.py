"""How alike an item and what was found for it are, and what follows: nothing, knowledge, a likely duplicate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Json, Kind
from pipeline.enrichment.enricher import Enricher
from pipeline.enrichment.references import (
    CANDIDATES,
    LikelyDocument,
    likely_documents,
    likely_duplicates,
    likest,
)
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import stems
from pipeline.search import Hit, SearchRequest, SearchResults
from pipeline.search.records import Filter
from tests.connectors.outputs import read
from tests.pipeline.enrichment.library import (
    LIBRARY,
    PBI,
    answer,
    by_ref,
    checked,
    enricher,
    refs,
    stocked,
    work,
)
from tests.pipeline.enrichment.stock import FAR, MINILM, SAME, Stock, explained, hit
from tests.pipeline.source_ledger import MODEL, SourceLedger

SAMPLE = Path(__file__).resolve().parents[3] / "deploy/sample"
COFFEE = {
    "id": "COFFEE-1",
    "title": "Descale the coffee machine",
    "description": "The espresso in the kitchen tastes of limestone, so somebody has to descale the machine monthly.",
}
STEPS = [n / 100 for n in range(101)]
KINDS = pytest.mark.parametrize("kind", list(Kind))


# An item's own document, and its twins --------------------------------------------------------------


@pytest.mark.parametrize(
    ("pbi", "wanted"),
    [
        ({"id": "PBI-7", "title": "EXPORT invoices as  CSV", "description": "Export invoices as CSV"}, {}),
        ({**PBI, "title": "Export invoices as CSV"}, {"exclude": ["PBI-1", "PBI-7"]}),
    ],
)
def test_own_is_what_has_the_items_id_or_one_that_the_request_calls_its_own(
    notes: SourceLedger, pbi: Json, wanted: Json
) -> None:
    found = answer(stocked(notes), pbi, **wanted)
    assert "PBI-7" not in refs(found, "similar_work")
    assert found["likely_duplicates"] == []
    assert "PBI-7" not in str(found["suggestions"])


@pytest.mark.parametrize(
    ("own", "left"), [({}, ["D-1", "D-2"]), ({"id": "D-1"}, ["D-2"]), ({"id": "D-3"}, ["D-1", "D-2"])]
)
def test_own_is_known_by_the_id_of_its_source_too(own: Json, left: list[str]) -> None:
    hits = [hit(1), hit(2), hit(3, "A page of that name.", kind=Kind.REFERENCE)]
    found = Stock(hits).answer({"title": "Export invoices", **own})
    assert refs(found, "similar_work") == left
    assert refs(found, "technical_docs") == ["D-3"]
    assert refs(Stock(hits).answer({"title": "Export"}, exclude=["D-2", "D-1"]), "similar_work") == []


def test_items_filed_again_word_for_word_are_shown_and_flagged(notes: SourceLedger) -> None:
    items = list(read(SAMPLE)[0].values())
    stocked(notes, *items)
    every = [d for d in [*items, *LIBRARY] if d.kind is Kind.WORK][:20]
    assert len(every) == 20
    for n, document in enumerate(every):
        title, _, text = document.text.removeprefix("# ").partition("\n")
        assert title == document.title
        found = answer(notes, {"id": f"NEW-{n}", "title": title, "description": text})
        assert refs(found, "similar_work")[0] == document.external_id
        assert refs(found, "likely_duplicates") == [document.external_id]


def test_an_item_of_the_same_title_and_another_text_is_shown_as_a_likely_duplicate(
    notes: SourceLedger,
) -> None:
    found = answer(
        stocked(notes), {"id": "N", "title": "Export invoices as csv", "description": "Of invoices."}
    )
    assert refs(found, "likely_duplicates") == ["PBI-7"]
    (check,) = [s for s in found["suggestion_details"] if s["kind"] == "duplicate"]
    assert check["text"].startswith(
        "Check whether “Export invoices as CSV” (PBI-7, Done) already covers this: "
    )


def test_work_that_was_closed_as_a_duplicate_names_its_master(notes: SourceLedger) -> None:
    closed = work(
        "PBI-71",
        "Export of invoices as CSV for the tax office",
        "## Description\n\nAs a billing clerk I want a CSV export of invoices.",
        status="Closed",
        resolution="Duplicate",
        duplicate_of="PBI-7",
    )
    found = answer(stocked(notes, closed), {**PBI, "title": closed.title})
    item = by_ref(found, "similar_work", "PBI-71")
    assert (item["duplicate_of"], item["abandoned"]) == ("PBI-7", False)
    assert by_ref(found, "likely_duplicates", "PBI-71")["duplicate_of"] == "PBI-7"
    (text,) = [s["text"] for s in found["suggestion_details"] if s["ref"] == "PBI-71"]
    assert text.startswith(
        "Check whether “Export of invoices as CSV for the tax office” (PBI-71, closed as duplicate of PBI-7)"
    )


def test_the_items_own_document_found_in_a_cache_keeps_no_other_out() -> None:
    own = hit(1, title="Export", pbi_id="P-1", told=explained(1.0, overlap=1.0))
    other = hit(2, told=explained(_weakest(Kind.WORK)))
    found = Stock([own, other], away=True).answer({"id": "P-1", "title": "Unlike"})
    assert refs(found, "similar_work") == ["D-2"]
    assert found["degradation_level"] == 2


# What is worth showing ------------------------------------------------------------------------------


def without_vectors(notes: SourceLedger) -> Enricher:
    """An enricher while no embedder answers."""
    real = enricher(notes).search

    def search(request: SearchRequest) -> SearchResults:
        found = real(request)
        hits = [
            replace(one, explanation=replace(one.explanation, similarity=None, centroid=None))
            for one in found.hits
            if one.explanation
        ]
        return replace(found, hits=hits, degradation_level=3)

    return enricher(notes, search=search)


@pytest.mark.parametrize("level", [0, 3])
def test_an_item_that_is_like_nothing_gets_nothing(notes: SourceLedger, level: int) -> None:
    enriching = without_vectors(stocked(notes)) if level else enricher(stocked(notes))
    request = EnrichmentRequest.from_json({"pbi": COFFEE})
    asked = SearchRequest(text=request.question, filter=Filter(kinds=(Kind.WORK,)), explain=True)
    assert enriching.search(asked).hits, "there is something to turn down"
    found = checked(notes, enriching.enrich(request))
    assert found["degradation_level"] == level
    parts = ("similar_work", "past_decisions", "technical_docs", "suggestions", "risk_hints", "citations")
    assert [part for part in (*parts, "likely_duplicates") if found[part]] == []
    assert found["effort_of_similar"] is None


def test_without_an_embedder_likeness_is_that_of_words(notes: SourceLedger) -> None:
    request = EnrichmentRequest.from_json({"pbi": PBI})
    found = checked(notes, without_vectors(stocked(notes)).enrich(request))
    assert refs(found, "similar_work") == ["PBI-7"]
    assert found["similar_work"][0]["similarity_by"] == "words"
    assert found["likely_duplicates"] == []


def ask(*hits: Hit, kind: Kind = Kind.WORK, model: str = MINILM, question: str = "") -> list[LikelyDocument]:
    return likely_documents(SearchResults(hits=hits, model=model), kind, stems(question))


def numbers(found: list[LikelyDocument]) -> list[int]:
    return [one.hit.document.id.int for one in found]


def _weakest(kind: Kind) -> float:
    """The least likeness in meaning that is shown of a document found alone."""
    return next(s for s in STEPS if ask(hit(kind=kind, told=explained(s)), kind=kind))


@KINDS
def test_what_is_far_is_not_shown_and_what_is_near_is(kind: Kind) -> None:
    assert ask(hit(kind=kind, told=explained(FAR)), kind=kind) == []
    (near,) = ask(hit(kind=kind, told=explained(SAME)), kind=kind)
    assert near.probability > 0.7
    assert near.by == "meaning"
    assert FAR < _weakest(kind) < SAME


@KINDS
def test_what_would_do_alone_is_left_out_by_words_far_behind_a_better_one(kind: Kind) -> None:
    question = "export invoices as csv for the tax office every month"
    texts = [" ".join(question.split()[:n]) for n in range(1, 10)]
    weak = next(
        one
        for one in (hit(1, text, kind=kind) for text in texts)
        if ask(one, kind=kind, model="", question=question)
    )
    best = hit(2, question, kind=kind, told=explained(None, overlap=1.0))
    assert numbers(ask(weak, best, kind=kind, model="", question=question)) == [2]


@KINDS
def test_what_is_alike_to_the_likest_other_document_is_likelier(kind: Kind) -> None:
    hits = [hit(n, kind=kind, told=explained(0.6)) for n in (1, 2)]
    kin = {hits[0].document.id: 0.9, hits[1].document.id: 0.2}
    found = likely_documents(SearchResults(hits=hits[::-1], model=MINILM), kind, frozenset(), kin)
    assert numbers(found)[:1] == [1]


@pytest.mark.parametrize("kind", [Kind.DECISION, Kind.REFERENCE])
def test_copies_of_one_text_are_one_line_that_names_the_current_one(kind: Kind) -> None:
    text = "Images come from the registry of the team and have a signature of it."
    told = [explained(0.9 - n / 100) for n in range(4)]
    old = hit(1, text, title="Images", kind=kind, told=told[0], source_path="docs/version-2.8/images.md")
    now = hit(2, f"{text} Always.", title="images ", kind=kind, told=told[1], source_path="docs/images.md")
    other = hit(3, "Nobody keeps a key in a file.", title="Images", kind=kind, told=told[2])
    named = hit(4, text, title="Registry", kind=kind, told=told[3])
    found = ask(old, now, other, named, kind=kind)
    assert numbers(found) == [2, 3, 4]
    assert found[0].probability == ask(old, other, named, now, kind=kind)[0].probability
    ended = replace(now, outdated="superseded by 9")
    assert numbers(ask(old, ended, kind=kind)) == [1]
    assert numbers(
        ask(*(replace(one, document=replace(one.document, kind=Kind.WORK)) for one in (old, now)))
    ) == [1, 2]


def test_likeness_to_others_is_read_of_the_store(notes: SourceLedger) -> None:
    request = SearchRequest(text="export invoices", k=CANDIDATES, explain=True)
    hits = enricher(stocked(notes)).search(request).hits
    two = likest(hits, stems("export invoices"))
    kin = enricher(notes).texts.kinship(two, hits)
    assert kin[two[0].document.id] == kin[two[1].document.id] == max(kin[one.document.id] for one in two)
    assert {*kin} == {one.document.id for one in hits}
    assert len({*kin.values()}) > 1
    assert all(-1 <= value < 0.9999 for value in kin.values()), "none is compared with itself"
    assert enricher(notes).texts.kinship(two[:1], hits) == {}


@KINDS
def test_what_no_longer_holds_loses_and_does_not_keep_out_what_took_its_place(kind: Kind) -> None:
    new = hit(1, kind=kind, told=explained(_weakest(kind)))
    old = replace(hit(2, kind=kind, told=explained(1.0, overlap=1.0)), outdated="superseded by 1")
    assert numbers(ask(old, new, kind=kind)) == [2, 1]
    (holds,) = ask(replace(old, outdated=""), kind=kind)
    (ended,) = ask(old, kind=kind)
    assert ended.probability < holds.probability
    assert ask(replace(new, outdated=old.outdated), kind=kind) == []


@KINDS
def test_the_same_likeness_says_more_where_others_have_less(kind: Kind) -> None:
    def probability(of_others: float) -> float:
        others = [hit(n, kind=kind, told=explained(of_others)) for n in range(2, CANDIDATES)]
        return ask(hit(1, kind=kind, told=explained(0.8)), *others, kind=kind)[0].probability

    assert probability(0.1) > probability(0.5) > probability(0.7)


@KINDS
def test_few_candidates_are_compared_with_what_is_usual_elsewhere(kind: Kind) -> None:
    lone = ask(hit(told=explained(0.7), kind=kind), kind=kind)
    among = ask(
        hit(told=explained(0.7), kind=kind),
        *(hit(n, kind=kind, told=explained(0.25)) for n in range(2, CANDIDATES)),
        kind=kind,
    )
    assert numbers(lone) == numbers(among) == [1]
    assert lone[0].probability == pytest.approx(among[0].probability, abs=0.02)
    assert ask(kind=kind) == []


@KINDS
def test_chunk_document_words_and_rare_words_all_speak_for_a_document(kind: Kind) -> None:
    def probability(**told: float) -> float:
        text = "Export invoices" if told.pop("words", 0) else "Nothing in common"
        (one,) = ask(
            hit(1, text, kind=kind, told=explained(**{"similarity": 0.7, "centroid": 0.7, **told})),
            kind=kind,
            question="export of invoices",
        )
        return one.probability

    plain = probability()
    assert plain < min(probability(similarity=0.9), probability(centroid=0.9), probability(words=1))
    assert plain <= probability(overlap=0.5)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.booleans()), max_size=20))
def test_the_likest_come_first_each_at_a_probability_and_in_whatever_order_they_were_found(
    given_: list[tuple[float, float, float, bool]],
) -> None:
    hits = [
        replace(
            hit(n, told=explained(similarity, centroid, overlap)),
            outdated="rejected" if ended else "",
        )
        for n, (similarity, centroid, overlap, ended) in enumerate(given_)
    ]
    found = ask(*hits)
    chances = [one.probability for one in found]
    assert chances == sorted(chances, reverse=True)
    assert all(0 < chance <= 1 for chance in chances)
    assert {*numbers(found)} == {*numbers(ask(*reversed(hits)))}


@pytest.mark.req("002-007")
def test_a_document_below_the_configured_similarity_is_none_unless_it_has_a_rare_word() -> None:
    assert numbers(ask(hit(told=explained(0.8, least=0.37)))) == [1]
    assert ask(hit(told=explained(0.8, least=0.81))) == []
    assert ask(hit(told=explained(0.8, least=0.81, overlap=0.1))) == []
    assert numbers(ask(hit(told=explained(0.8, least=0.81, overlap=0.25)))) == [1]


@pytest.mark.parametrize("model", [MODEL, "openai/text-embedding-unheard-of", ""])
def test_of_a_model_without_judged_pairs_only_the_words_count(model: str) -> None:
    question = "export invoices as csv for the tax office"
    for similarity in (0.0, 1.0):
        told = explained(similarity, least=-1.0)
        (one,) = ask(hit(1, question, told=told), hit(2, told=told), model=model, question=question)
        assert (one.hit.document.id.int, one.by) == (1, "words")
    assert one.probability == ask(hit(1, question), model=model, question=question)[0].probability


def test_a_hit_without_a_vector_is_compared_by_words_and_changes_nothing_for_others() -> None:
    question = "export invoices as csv for the tax office"
    alone = ask(hit(1, question), question=question)
    bare = hit(2, question, told=explained(None))
    found = {one.hit.document.id.int: one for one in ask(hit(1, question), bare, question=question)}
    assert {n: one.by for n, one in found.items()} == {1: "meaning", 2: "words"}
    assert found[1].probability == alone[0].probability
    assert found[2].probability == ask(bare, model=MODEL, question=question)[0].probability


# What may be the very same --------------------------------------------------------------------------


def one_likely(
    probability: float,
    title: str = "Other",
    *,
    by: str = "meaning",
    similarity: float = 0.7,
    ahead: float = 0,
) -> LikelyDocument:
    one = hit(title=title, told=explained(similarity))
    return LikelyDocument(hit=one, probability=probability, by=by, ahead=ahead)


@pytest.mark.parametrize(
    ("ranked", "twins"),
    [
        ([one_likely(0.99, ahead=1.5), one_likely(0.98)], []),
        ([one_likely(0.86, ahead=1.7), one_likely(0.5)], [0]),
        ([one_likely(0.84, ahead=1.7), one_likely(0.5)], []),
        ([one_likely(0.99, ahead=0.1), one_likely(0.98, ahead=2.1), one_likely(0.7)], [0, 1]),
        ([one_likely(0.99, ahead=0.1), one_likely(0.98, ahead=1.9), one_likely(0.95)], []),
        ([one_likely(0.99), one_likely(0.99), one_likely(0.98, ahead=3), one_likely(0.7)], [0, 1, 2]),
        ([one_likely(0.99), one_likely(0.99), one_likely(0.98), one_likely(0.98, ahead=3)], []),
        ([one_likely(0.99, ahead=0.1), one_likely(0.84, ahead=3)], []),
        ([one_likely(0.9, similarity=0.95), one_likely(0.9, similarity=0.94), one_likely(0.9)], [0, 1]),
        ([one_likely(0.99, by="words", ahead=3), one_likely(0.5, by="words")], []),
        ([one_likely(0.6), one_likely(0.55, "Export  as\tCSV")], [1]),
        ([one_likely(0.6, "Export as CSV", by="words")], [0]),
        ([], []),
    ],
)
def test_the_same_are_the_first_if_sure_and_far_ahead_and_what_has_the_title_or_nearly_the_text(
    ranked: list[LikelyDocument], twins: list[int]
) -> None:
    assert likely_duplicates(ranked, "export as csv") == [ranked[n] for n in twins]


def test_the_lead_of_a_document_is_over_the_next_even_if_that_one_is_not_shown() -> None:
    first = hit(1, told=explained(0.8))
    (ahead,) = ask(first, hit(2, told=explained(0.4)))
    (far_ahead,) = ask(first, hit(2, told=explained(0.3, least=0.37)))
    (alone,) = ask(first)
    assert far_ahead.ahead > ahead.ahead > 3
    assert 0 < alone.ahead < ahead.ahead, "with nothing beside it, only a very probable one is a duplicate"


def test_an_item_that_is_very_like_and_no_duplicate_says_why() -> None:
    text = "Export invoices as CSV for the tax office."
    hits = [hit(n, text, title=f"Export invoices {n}", told=explained(0.9 - n / 1000)) for n in range(1, 5)]
    similar = Stock(hits).answer({"title": "Export invoices as CSV for the tax office"})["similar_work"]
    assert len(similar) == 3
    for one in similar:
        assert one["similarity"] >= 90
        assert one["why"].endswith("not called a duplicate, since others are as close")


def test_two_items_without_a_title_are_not_the_same_for_that() -> None:
    assert likely_duplicates([one_likely(0.5, title=" ")], "") == []


def test_likely_duplicates_are_of_the_first_five_and_more_than_are_shown() -> None:
    stock = Stock([hit(n, told=explained(1 - n / 1000)) for n in range(1, 9)])
    found = stock.answer({"title": "Export invoices"}, topK=1)
    assert refs(found, "similar_work") == ["D-1"]
    assert refs(found, "likely_duplicates") == [f"D-{n}" for n in range(1, 6)]
    assert len([s for s in found["suggestion_details"] if s["kind"] == "duplicate"]) < 5
