"""What is said of documents moves them in answers: within bounds, for one tenant, and no answer is kept from before."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args
from uuid import UUID, uuid4

import pytest
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Kind
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.errors import RequestRejected
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, SearchResults, feedback
from pipeline.search.cache import read_snapshot
from pipeline.search.feedback import Marks, Question, Verdict
from pipeline.search.question import key_of
from pipeline.search.records import Filter
from tests.ledger import ago, of_connection
from tests.pipeline.enrichment.library import PBI, enricher, stocked
from tests.pipeline.source_ledger import SourceLedger, document
from tests.pipeline.stores.corpus import Corpus
from tests.pipeline.test_search_cache import Asker

ASKED = "kestrel over fields"
TEXTS = {
    "one": "the kestrel hovers over wide fields",
    "two": "a kestrel hovers over fields of rye",
    "three": "kestrel nests in old church towers over there",
    "four": "an otter swims, no kestrel",
    "five": "kilns fire clay, a kestrel looks on",
}


@pytest.fixture
def notes(notes: SourceLedger) -> SourceLedger:
    notes.admit(*(document(name, words) for name, words in TEXTS.items()))
    notes.index()
    return notes


def say(
    notes: SourceLedger,
    name: str,
    verdict: str,
    question: str = ASKED,
    item: str = "",
    project: UUID | None = None,
) -> Any:
    """What was said before; `undo` takes it back."""
    asked = Question(key=key_of(question, item, project), item=item or question, content={"text": question})
    with notes.database.tenant(notes.tenant) as connection:
        if verdict == "undo":
            return feedback.undo(connection, asked.key, notes.id(name))
        (wanted,) = [v for v in get_args(Verdict) if v == verdict]
        return feedback.record(connection, notes.tenant, asked, notes.id(name), wanted)


def search(notes: SourceLedger, words: str = ASKED, **changes: Any) -> list[Hit]:
    options = RetrievalOptions(**changes.pop("options", {}))
    made = Retriever(notes.database, notes.tenant, lambda _index: notes.embedder, options)
    plain: dict[str, Any] = {"k": 4, "min_similarity": -1.0, "explain": True}
    return list(made.search(SearchRequest(text=words, **{**plain, **changes})).hits)


def names(notes: SourceLedger, hits: list[Hit]) -> list[str]:
    known = {notes.id(name): name for name in TEXTS}
    return [known[hit.document.id] for hit in hits]


def of(notes: SourceLedger, hits: list[Hit], name: str) -> Hit:
    (hit,) = [hit for hit in hits if hit.document.id == notes.id(name)]
    return hit


# The rule -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("marks", "shift"),
    [
        (Marks(0, 0), 0.0),
        (Marks(1, 0), 1.0),
        (Marks(-1, 0), -3.0),
        (Marks(0, 2), 0.3),
        (Marks(0, -2), -0.3),
        (Marks(0, 50), 0.6),
        (Marks(0, -50), -0.6),
        (Marks(1, 50), 1.0),
        (Marks(-1, -50), -3.0),
        (Marks(-1, 50), -2.4),
    ],
)
def test_the_shift_has_bounds(marks: Marks, shift: float) -> None:
    assert marks.shift == pytest.approx(shift)
    assert 0.75 <= marks.factor <= 1.25
    assert math.copysign(1, marks.factor - 1) == math.copysign(1, shift)


@pytest.mark.parametrize(
    ("marks", "why"),
    [
        (Marks(1, 0), "marked useful for this question, +1.0"),
        (Marks(-1, 0), "marked noise for this question, -3.0"),
        (Marks(0, 1), "marked useful for others (net +1), +0.15"),
        (Marks(-1, 2), "marked noise for this question and useful for others (net +2), -2.7"),
        (Marks(0, 0), ""),
    ],
)
def test_it_says_why(marks: Marks, why: str) -> None:
    assert marks.why == why


def test_a_question_is_its_item_or_its_words() -> None:
    assert key_of("Export  the\nInvoices ") == key_of("export the invoices") != key_of("export the invoice")
    assert key_of("anything", "PBI-7") == key_of("", "PBI-7") != key_of("PBI-7")
    assert key_of("", "PBI-7", UUID(int=1)) != key_of("", "PBI-7", UUID(int=2))
    assert key_of("Export", "", UUID(int=1)) == key_of("Export"), "words belong to no project"


# Its effect on a search ---------------------------------------------------------------------------


def test_useful_raises_within_bounds_and_only_for_this_tenant(
    notes: SourceLedger, shared_database: Database
) -> None:
    before = search(notes)
    last = names(notes, before)[-1]
    say(notes, last, "useful")
    other = SourceLedger(shared_database, uuid4(), uuid4())
    other.admit(*(document(name, words) for name, words in TEXTS.items()))
    other.index()
    after = search(notes)
    marked, plain = of(notes, after, last), of(notes, before, last)
    assert (marked.feedback, plain.feedback) == (1.0, 0.0)
    assert marked.score == pytest.approx(plain.score * (1 + 0.25 * math.tanh(1)))
    assert [hit.feedback for hit in search(other)] == [0.0] * 4
    with other.database.tenant(other.tenant) as connection:
        assert feedback.listed(connection) == []
    assert [hit.score for hit in after] == sorted((hit.score for hit in after), reverse=True)


@pytest.mark.parametrize("how", [{}, {"mode": "keyword"}, {"trace": True}])
def test_noise_sinks_behind_all_others_of_the_page_and_stays(
    notes: SourceLedger, how: dict[str, Any]
) -> None:
    before = search(notes, k=5, **how)
    first = names(notes, before)[0]
    say(notes, first, "noise")
    after = search(notes, k=5, **how)
    assert names(notes, after)[-1] == first
    assert {hit.id for hit in after} == {hit.id for hit in before}
    assert of(notes, after, first).feedback == -3.0
    scores = [hit.score for hit in after]
    assert scores == sorted(scores, reverse=True)
    for hit in after:
        e = hit.explanation
        assert e is not None
        parts = (
            e.vector_part,
            e.keyword_part,
            e.title_part,
            e.covered_part,
            e.outdated_part,
            e.feedback_part,
        )
        assert sum(filter(None, parts)) == pytest.approx(hit.score)


def test_one_just_behind_the_page_comes_onto_it(notes: SourceLedger) -> None:
    """With equal texts only what was said tells them apart."""
    for n in range(4):
        notes.admit(document(f"same {n}", "a heron stands in the shallow water", title="Heron"))
    notes.index()
    shown = [hit.document.id for hit in search(notes, "heron shallow water", k=3)]
    (left,) = {notes.id(f"same {n}") for n in range(4)} - set(shown)
    with notes.database.tenant(notes.tenant) as connection:
        asked = Question(key=key_of("Heron  shallow WATER"), item="heron", content={})
        feedback.record(connection, notes.tenant, asked, left, "useful")
    for changes in ({}, {"mode": "keyword"}, {"trace": True}):
        assert search(notes, "heron shallow water", k=3, **changes)[0].document.id == left


def test_other_questions_move_a_little(notes: SourceLedger) -> None:
    before = of(notes, search(notes), "two")
    for n in range(3):
        say(notes, "two", "useful", f"another question {n}")
    say(notes, "two", "noise", "one more question")
    after = of(notes, search(notes), "two")
    assert after.feedback == pytest.approx(0.3)
    assert after.score == pytest.approx(before.score * (1 + 0.25 * math.tanh(0.3)))
    assert after.explanation is not None
    assert after.explanation.feedback_why == "marked useful for others (net +2), +0.3"
    for n in range(20):
        say(notes, "two", "noise", f"bad question {n}")
    assert of(notes, search(notes), "two").feedback == -0.6


def test_the_newest_of_very_many_count(notes: SourceLedger) -> None:
    for verdict, age in (("noise", 2), ("useful", 1)):
        said = {
            "tenant_id": notes.tenant,
            "document_id": notes.id("two"),
            "verdict": verdict,
            "at": ago(days=age),
        }
        for n in range(feedback.MOST_COUNTED):
            notes.feedback.add(query_hash=f"{verdict}{n}", **said)
    assert of(notes, search(notes), "two").feedback == 0.6
    say(notes, "two", "noise")
    notes.feedback.set(key_of(ASKED), at=ago(days=3))
    assert of(notes, search(notes), "two").feedback == pytest.approx(-2.4), (
        "what is said of this question always"
    )


def test_an_item_is_asked_about_under_its_id(notes: SourceLedger) -> None:
    say(notes, "two", "noise", "whatever it says", item="PBI-7")
    assert of(notes, search(notes), "two").feedback == pytest.approx(-0.15)
    assert of(notes, search(notes, feedback_key=key_of("", "PBI-7")), "two").feedback == -3.0


def test_undone_it_is_as_it_was(notes: SourceLedger) -> None:
    before = search(notes)
    assert say(notes, "one", "noise") is None
    assert say(notes, "one", "useful") == "noise", "a second verdict replaces the first"
    assert of(notes, search(notes), "one").feedback == 1.0
    assert say(notes, "one", "undo") == "useful"
    assert say(notes, "one", "undo") is None
    assert search(notes) == before


def test_by_meaning_alone_nothing_is_moved(notes: SourceLedger) -> None:
    before = search(notes, mode="vector")
    say(notes, names(notes, before)[0], "noise")
    assert search(notes, mode="vector") == before


def test_all_chunks_of_a_document_are_moved(shared_database: Database) -> None:
    corpus = Corpus(shared_database)
    long = corpus.put("a kestrel hovers", "a kestrel rests", "a kestrel eats", title="long")
    corpus.put("a kestrel sleeps", title="short")
    corpus.count()
    asked = Question(key=key_of("kestrel"), item="kestrel", content={})
    with shared_database.tenant(corpus.tenant) as connection:
        feedback.record(connection, corpus.tenant, asked, long, "noise")
    made = Retriever(shared_database, corpus.tenant, lambda _index: corpus.embedder)
    found = made.search(SearchRequest(text="kestrel", dedupe=False, min_similarity=-1.0)).hits
    assert [hit.feedback for hit in found] == [0.0, -3.0, -3.0, -3.0]


@pytest.mark.req("001-098")
def test_no_answer_is_kept_from_before(notes: SourceLedger) -> None:
    asker = Asker(notes.database, notes.tenant, notes.embedder)
    for verdict, shift in (("noise", -3.0), ("useful", 1.0), ("undo", 0.0)):
        asker.search(ASKED)
        say(notes, "one", verdict)
        read_snapshot(asker.database, notes.tenant)
        assert not asker.search(ASKED, level=2).from_cache
        found = asker.search(ASKED)
        assert of(notes, list(found.hits), "one").feedback == shift
        assert asker.search(ASKED, level=2) == replace(found, from_cache=True, degradation_level=2)


def test_the_same_words_for_two_items_are_two_answers(notes: SourceLedger) -> None:
    asker = Asker(notes.database, notes.tenant, notes.embedder)
    say(notes, "one", "noise", item="PBI-7")
    plain, item = asker.search(ASKED), asker.search(ASKED, feedback_key=key_of("", "PBI-7"))
    assert asker.search(ASKED, level=2).hits == plain.hits != item.hits
    assert of(notes, list(plain.hits), "one").feedback == pytest.approx(-0.15)
    assert of(notes, list(item.hits), "one").feedback == -3.0


def test_step_4_asks_under_the_items_id(shared_database: Database) -> None:
    notes = stocked(SourceLedger(shared_database, uuid4(), uuid4()))
    seen: list[SearchRequest] = []
    made = enricher(notes)
    search = made.search

    def noting(request: SearchRequest) -> SearchResults:
        seen.append(request)
        return search(request)

    made.search = noting
    for project in (UUID(int=1), UUID(int=2)):
        made.enrich(EnrichmentRequest.from_json(PBI), project=project)
        assert {request.feedback_key for request in seen[-3:]} == {key_of("", "PBI-99", project)}
    say(notes, "PBI-7", "noise", item="PBI-99", project=UUID(int=1))
    asked = [request for request in seen if request.filter.kinds == (Kind.WORK,)]
    felt = [h.feedback for one in asked for h in search(one).hits if h.document.id == notes.id("PBI-7")]
    assert felt == [-3.0, -0.15], "for the item of the other project it is a verdict on another question"


# The rows -----------------------------------------------------------------------------------------


def test_what_was_said_goes_with_its_document(notes: SourceLedger) -> None:
    say(notes, "one", "useful")
    say(notes, "two", "useful")
    notes.documents.clear({"id": notes.id("one")})
    with notes.database.tenant(notes.tenant) as connection:
        assert [row["ref"] for row in feedback.listed(connection)] == ["two"]


def test_a_removal_stamps_once_and_not_for_what_hangs_on_it(notes: SourceLedger) -> None:
    """Each stamp is a row's new version, and a source may have a hundred thousand documents."""
    for name in TEXTS:
        say(notes, name, "useful")
    with notes.database.tenant(notes.tenant) as connection:
        stamps = (
            "select sum(pg_stat_get_xact_tuples_updated(oid)) from pg_class where relname = 'change_stamp'"
        )
        before = connection.execute(text(stamps)).scalar_one()
        of_connection(connection).documents.clear()
        assert of_connection(connection).feedback() == []
        assert connection.execute(text(stamps)).scalar_one() - before <= 1


def test_another_tenants_document_is_not_marked(notes: SourceLedger, shared_database: Database) -> None:
    other = SourceLedger(shared_database, uuid4(), uuid4())
    asked = Question(key=key_of(ASKED), item=ASKED, content={})
    with other.database.tenant(other.tenant) as connection:
        assert of_connection(connection).feedback() == []
        with pytest.raises(RequestRejected, match="no document"):
            feedback.record(connection, other.tenant, asked, notes.id("one"), "useful")
        assert of_connection(connection).feedback() == []


def test_names_are_cut_for_people_and_questions_are_kept(notes: SourceLedger) -> None:
    long = "kestrel " * 100
    say(notes, "one", "useful", long)
    with notes.database.tenant(notes.tenant) as connection:
        (row,) = feedback.listed(connection, "", key_of(long))
        assert (len(row["item"]), row["question"]) == (200, {"text": long})
        assert feedback.listed(connection, "", key_of("other")) == []


def test_documents_are_found_by_an_index(notes: SourceLedger) -> None:
    """For the removal of a document, which looks up what hangs on it."""
    rows = notes.sql(
        "select indexdef from pg_indexes where tablename = 'feedback' and indexdef like '%btree (document_id,%'"
    )
    assert len(rows) == 1


def test_a_filter_is_kept(notes: SourceLedger) -> None:
    say(notes, "one", "useful")
    only = search(notes, filter=Filter(exclude=(notes.id("one"),)))
    assert "one" not in names(notes, only)
