"""What is lifted from an item, decided from its text and state alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.enrichment import Enricher, EnrichmentRequest, decisions
from pipeline.enrichment.citations import Citations
from pipeline.enrichment.context import Item, PastDecision
from pipeline.enrichment.found import Found
from pipeline.enrichment.learnings import is_abandoned, learnings
from pipeline.enrichment.passages import best_passages
from pipeline.enrichment.sentences import QUOTED
from pipeline.enrichment.texts import DocumentText
from pipeline.retrieval import Hit, SearchRequest, SearchResults
from pipeline.stores import StoredDocument
from pipeline.words import stems

CRITERIA = "## Acceptance criteria\n\n- It is fast\n- It is cheap\n- It is blue"


def found(*contents: str, question: str = "", hit: int = 0, title: str = "Item", **metadata: Any) -> Found:
    """An item with these chunks, as a search finds it."""
    chunks = [Chunk(ord=n, content=content) for n, content in enumerate(contents)]
    stored = StoredDocument(
        id=UUID(int=1),
        version=1,
        title=title,
        source_type=SourceType.PBI,
        kind=Kind.WORK,
        metadata=metadata,
    )
    text = DocumentText(external_id="PBI-1", chunks=chunks)
    return Found.of(Hit(document=stored, chunk=chunks[hit], score=1.0), text, stems(question))


def lifted(*contents: str, **facts: Any) -> list[str]:
    return [s.text for s in learnings(found(*contents, **facts))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "## Lessons learned\n\nMeasure first.\n\n## Outcome\n\nHalf the calls.",
            ["Measure first.", "Half the calls."],
        ),
        ("## Erkenntnisse\n\nZuerst messen.", ["Zuerst messen."]),
        ("## Enseignements\n\nMesurer avant.", ["Mesurer avant."]),
        (
            "Do it.\n\nResolution: the cache is gone. It is fast.",
            ["Resolution: the cache is gone.", "It is fast."],
        ),
        (
            "As a clerk I want more. It turned out that less is enough.",
            ["It turned out that less is enough."],
        ),
        ("The limit was read as feet. I want metres.", ["The limit was read as feet."]),
        ("As a clerk I want more.", []),
    ],
)
def test_what_was_learned_is_found_below_headings_behind_labels_and_by_its_words(
    text: str, expected: list[str]
) -> None:
    assert lifted(text) == expected


def test_criteria_count_as_met_when_the_work_is_done_or_the_box_is_ticked() -> None:
    assert lifted(CRITERIA, status="Done") == ["It is fast", "It is cheap"]
    assert lifted(CRITERIA, status="Active") == []
    assert lifted(CRITERIA) == []
    assert lifted("## Acceptance criteria\n\n- [ ] It is fast\n- [x] It is cheap") == ["It is cheap"]


def test_of_ended_work_the_last_comment_is_told_and_of_open_work_none() -> None:
    text = "## Comments\n\n### Ada\n\nFirst try.\n\n### Bert\n\nShipped it. All good. Bye."
    assert lifted(text, state="Closed") == ["Shipped it.", "All good."]
    assert lifted(text, state="Closed as duplicate", resolution="Won't fix") == ["Shipped it.", "All good."]
    assert lifted(text, state="Active") == []


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("## Outcome\n\nFixed", {"status": "Done"}),
        ("## Resolution\n\nWontfix", {"status": "Closed", "resolution": "Wontfix"}),
        ("## Resolution\n\nSent back.", {"status": "Closed", "resolution": "sent back"}),
        ("## Outcome\n\n**Duplicate**", {}),
        ("## Comments\n\n### Ada\n\nDone.", {"status": "Done"}),
        ("Results:\n[INFO] -----< org.apache.hadoop:hadoop-client >----- it was built", {}),
        (
            "It gave b36-b764-a3b8b1c45201\\r\\nCorrelation ID 4eb4a71e-2eef-4788-9c8c-24f4c84f6981 and was shown",
            {},
        ),
        ('The answer was {"error_codes":[700016], "message": "no such user in this directory at all"}', {}),
        ("## Resolution\n\n| a | b |:--|--:| 3 | 4 | | {x} ; [y] | was", {}),
        ("It failed\n\nat org.apache.Foo.bar(Foo.java:12) was called", {"state": "Done"}),
    ],
)
def test_a_bare_state_a_log_and_a_table_teach_nothing(text: str, facts: dict[str, Any]) -> None:
    assert [said for said in lifted(text, **facts) if said != "It failed"] == []


def test_figures_do_not_make_a_sentence_a_log() -> None:
    said = "Half the calls: 3.2 s -> 1.1 s (p95), with `max_connections=200`."
    assert lifted(f"## Outcome\n\n{said}") == [said]


def test_the_first_sentence_of_a_long_outcome_and_the_one_that_fits_best_are_kept() -> None:
    outcome = "## Outcome\n\nIt is live. The sky is blue. The export needs a replica. Birds sing."
    assert lifted(outcome, question="export of a replica") == ["It is live.", "The export needs a replica."]


def test_at_most_four_sentences_each_short_enough_to_quote() -> None:
    long = "We learned that " + "more and more words " * 20 + "matter."
    text = f"## Lessons\n\n{long}\n\nTwo.\n\n## Resolution\n\nThree.\n\nFour.\n\n## Outcome\n\nFive.\n\nSix."
    found_ = lifted(text)
    assert len(found_) == 4
    assert all(len(text) <= QUOTED for text in found_)
    assert found_[0].endswith(" …")


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"state": "Removed"}, True),
        ({"state": "Closed", "resolution": "Won't Fix"}, True),
        ({"status": "wontfix"}, True),
        ({"status": "Won’t do"}, True),
        ({"state": "closed", "reason": "not_planned"}, True),
        ({"state": "Resolved", "reason": "As Designed"}, True),
        ({"status": "Verworfen"}, True),
        ({"state": "Closed", "resolution": "Fixed"}, False),
        ({"state": "Executed"}, False),
        ({}, False),
    ],
)
def test_work_that_was_given_up_is_told_by_its_state_or_resolution(
    facts: dict[str, Any], expected: bool
) -> None:
    assert is_abandoned(found("x", **facts)) is expected


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("## Status\n\nAccepted on 2025-01-01", "accepted"),
        ("## Status\n\nAccepted, later superseded by ADR 9", "superseded"),
        ("Status: proposed\n\n## Decision\n\nWe wait.", "proposed"),
        ("## Statut\n\nAcceptée", "accepted"),
        ("## Status\n\nTo be discussed", "unknown"),
        ("## Context\n\nIt was accepted by all.", "unknown"),
    ],
)
def test_the_status_of_a_decision_is_read_from_its_part_of_the_text(text: str, status: str) -> None:
    assert decisions.status_of(found(text)) == status
    assert decisions.status_of(found(text, decision_status="implementing")) == "implementing"
    assert decisions.status_of(found(text, decision_status="accepted", superseded_by="ADR 9")) == "superseded"


def test_a_decision_is_its_first_sentences_and_never_a_whole_page() -> None:
    page = "## Decision\n\n" + " ".join(f"We decide point {n} of the long list of points." for n in range(40))
    kept = decisions.decision_of(found(page))
    assert kept[0].text == "We decide point 0 of the long list of points."
    assert 1 < len(kept) < 8


def test_a_decision_without_such_a_heading_is_told_by_its_best_passage() -> None:
    one = found("Some words first.\n\nWe stream every export.", question="stream the export")
    assert [s.text for s in decisions.decision_of(one)] == ["We stream every export."]


def test_a_decision_begins_with_what_is_decided_and_not_with_what_the_page_is_for() -> None:
    page = "## What\n\nThis document describes our choice.\n\n| Option | Cost |\n\nWe stream every export."
    assert [s.text for s in decisions.decision_of(found(page))] == ["We stream every export."]
    alone = found("## Decision\n\nThis document describes our choice.")
    assert [s.text for s in decisions.decision_of(alone)] == ["This document describes our choice."]


CONTEXT = "## Context\n\nExports run out of memory at night.\n\n"


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        (
            f"{CONTEXT}## Decision Drivers\n\n- It is very cheap\n\n## Decision Outcome\n\nChosen option: “Rows”, because rows never fill memory.",
            ["rows never fill memory."],
        ),
        (
            f"{CONTEXT}## Decision Outcome\n\nChosen option: “Rows”, because\n\n- rows always fit\n- rows are simple\n\n### More\n\n- A B C",
            ["rows always fit", "rows are simple"],
        ),
        (
            f"{CONTEXT}## Decision Outcome\n\nChosen option: “Rows”, because it comes out best (see below).",
            ["Exports run out of memory at night."],
        ),
        (
            f"{CONTEXT}## Decision\n\nWe stream, because a file is big.\n\n### Rationale\n\nRows are simple to write.",
            ["Rows are simple to write."],
        ),
        (f"{CONTEXT}## Decision\n\nWe stream because files are big.", ["We stream because files are big."]),
        (f"{CONTEXT}## Decision\n\nWe stream.", ["Exports run out of memory at night."]),
        ("## Why\n\n| Rows | Files |\n\n{why we do it}\n\nhttps://wiki.example/why\n\nTODO", []),
        ("## Decision\n\nWe stream.", []),
    ],
)
def test_reasons_are_the_record_s_own(text: str, reasons: list[str]) -> None:
    assert [s.text for s in decisions.rationale_of(found(text))] == reasons


def test_constraints_are_what_binds_and_at_most_three() -> None:
    text = (
        "## Context\n\nAll users must log in.\n\n## Decision\n\nWe stream rows. Every export must be streamed. Files are"
        " written only by the exporter. It was the only choice.\n\n## Consequences\n\n- Bad, because teams must learn it\n"
        "- No team may not skip the header\n\n## Constraints\n\n- One database for all exports\n- No new servers"
    )
    assert [s.text for s in decisions.constraints_of(found(text))] == [
        "Every export must be streamed.",
        "Files are written only by the exporter.",
        "No team may not skip the header",
    ]
    named = "## Constraints\n\n- One database for all exports"
    assert [s.text for s in decisions.constraints_of(found(named))] == ["One database for all exports"]


@pytest.mark.parametrize(
    ("status", "superseded_by", "in_force", "ended"),
    [
        ("accepted", None, True, False),
        ("implementing", None, True, False),
        ("implemented", None, True, False),
        ("accepted", "ADR 9", False, True),
        ("proposed", None, False, False),
        ("unknown", None, False, False),
        ("rejected", None, False, True),
        ("deprecated", None, False, True),
        ("superseded", None, False, True),
    ],
)
def test_only_what_is_known_to_hold_is_in_force(
    status: str, superseded_by: str | None, in_force: bool, ended: bool
) -> None:
    item = Item(
        ref="1",
        title="t",
        link="#",
        document_id="",
        source="s",
        source_type="text",
        updated_at=None,
        age_days=None,
    )
    past = PastDecision(**vars(item), decision="x", status=status, superseded_by=superseded_by)
    assert (past.in_force, past.ended) == (in_force, ended)


def test_passages_prefer_the_chunk_that_the_search_chose_and_leave_out_the_weak() -> None:
    chunks = ("Export as mail here.", "Export as mail there.", "Mail is nice. Nothing else.")
    best = best_passages(found(*chunks, question="export mail", hit=1), most=2)
    assert [b.shown for b in best] == ["Export as mail there.", "Export as mail here."]
    (only,) = best_passages(
        found("Export by mail to tax office.\n\nMail.", question="export mail tax office"), most=2
    )
    assert only.shown == "Export by mail to tax office."


def test_the_words_of_a_link_s_target_and_mere_pointers_do_not_make_a_passage() -> None:
    text = "Read [this](/docs/export/mail-tax-office).\n\nAn export goes by mail."
    (best,) = best_passages(found(text, question="export mail tax office docs"), most=1)
    assert best.shown == "An export goes by mail."
    text = "The export goes by mail.\n\n## What's next\n\nLearn about export, mail and tax."
    (best,) = best_passages(found(text, question="export mail tax"), most=1)
    assert best.shown == "The export goes by mail."


def test_passages_of_one_document_do_not_overlap() -> None:
    text = "Export one by mail. Export two by mail. Export three by mail."
    shown = [b.shown for b in best_passages(found(text, question="export mail one two three"), most=2)]
    assert len(" ".join(shown)) <= len(text)


def test_a_heading_stands_before_a_passage_only_if_there_is_room_and_it_is_not_the_title() -> None:
    def shown(heading: str, text: str) -> str:
        return best_passages(found(f"## {heading}\n\n{text}", question="export"), most=1)[0].shown

    assert shown("Encoding", "The export is UTF-8.") == "Encoding: The export is UTF-8."
    assert shown("ITEM", "The export is UTF-8.") == "The export is UTF-8."
    assert shown("*Encoding* of [it](a.md)", "The export is UTF-8.") == "Encoding of it: The export is UTF-8."
    assert shown("Which encoding?", "The export is UTF-8.") == "Which encoding? The export is UTF-8."
    exact = "Export " + "x" * (QUOTED - 17)
    assert shown("Encoding", exact) == f"Encoding: {exact}"
    assert shown("Encoding", exact + "x") == exact + "x"


def test_without_the_whole_text_the_chunk_found_is_the_document() -> None:
    hit = found("Only this.", pbi_id="PBI-5").hit
    alone = Found.of(hit, None, frozenset())
    assert alone.external_id == "PBI-5"
    assert [s.text for s in alone.sentences] == ["Only this."]


def test_a_document_without_a_title_gets_a_word_in_place_of_it() -> None:
    assert found("x", title=" ").title == "Similar PBI"


def test_decisions_in_force_stand_first_and_one_that_no_longer_holds_loses_two_places() -> None:
    def past(n: int, status: str) -> Hit:
        stored = StoredDocument(
            id=UUID(int=n),
            version=1,
            title=f"ADR {n}",
            source_type=SourceType.DOCUMENTATION,
            kind=Kind.DECISION,
            metadata={"decision_status": status, "source_path": f"adr/{n}"},
        )
        return Hit(document=stored, chunk=Chunk(ord=0, content="We export invoices."), score=1 - n / 10)

    hits = [past(1, "superseded"), *(past(n, "accepted") for n in (2, 3, 4, 5))]

    class Nothing:
        def of(self, _ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
            return {}

    def shown(most: int) -> list[str]:
        def search(request: SearchRequest) -> SearchResults:
            return SearchResults(hits=hits if request.filter.kinds == (Kind.DECISION,) else ())

        pbi = {"title": "export invoices"}
        request = EnrichmentRequest.from_json({"pbi": pbi, "numbers": {"past_decisions": most}})
        return [d.title for d in Enricher(search, Nothing()).enrich(request).past_decisions]

    assert shown(1) == ["ADR 2"]
    assert shown(2) == ["ADR 2", "ADR 1"]
    assert shown(3) == ["ADR 2", "ADR 3", "ADR 1"]
    assert shown(9) == ["ADR 2", "ADR 3", "ADR 4", "ADR 5", "ADR 1"]


_PIECES = st.sampled_from(
    ["We learned that. ", "It was export", " by mail… ", "\n", "\n\n", "- ", "> ", "## Decision\n\n", "# Outcome\n", "e.g. ",
     "| a | b |\n", "```\n", "... ", "x" * 150, " export mail " * 9, "We. We. ", "[x] ", "1. ", "Ende！"]
)  # fmt: skip


@given(st.lists(st.lists(_PIECES, max_size=12).map("".join), min_size=1, max_size=4))
def test_whatever_the_text_all_that_is_lifted_stands_in_the_chunk_it_names(contents: list[str]) -> None:
    one = found(*contents, question="export by mail", state="Done")
    kept = [*learnings(one), *decisions.decision_of(one), *(b.sentence for b in best_passages(one, most=2))]
    for sentence in kept:
        bare = " ".join(sentence.text.removeprefix("… ").removesuffix(" …").split())
        assert bare in " ".join(contents[sentence.ord].split())
        assert len(sentence.text) <= QUOTED


def test_with_no_word_in_common_the_chunk_that_the_search_chose_is_shown() -> None:
    (best,) = best_passages(found("Nothing here.", "The bill. More.", question="invoice", hit=1), most=2)
    assert best.shown == "The bill."


def test_the_same_words_of_the_same_chunk_have_one_number() -> None:
    one = found("We learned that. Twice.")
    first, second = one.sentences
    cited = Citations()
    assert [cited.cite(one, s) for s in (first, second, first)] == [1, 2, 1]
    assert [c.quoted for c in cited.listed] == ["We learned that.", "Twice."]
