"""What is lifted from an item, decided from its text and state alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.documents import Chunk, Kind, SourceType
from pipeline.enrichment.context import AnswerItem, PastDecision
from pipeline.enrichment.enricher import Citations
from pipeline.enrichment.extraction import (
    best_passages,
    constraints_of,
    decision_of,
    learnings,
    rationale_of,
    reasons_of_rejection,
    rule_of,
    status_of_decision,
)
from pipeline.enrichment.references import DocumentText, FoundDocument, LikelyDocument
from pipeline.enrichment.text import QUOTED, stems
from pipeline.search import Hit
from pipeline.search.records import StoredDocument
from tests.pipeline.enrichment import stock


def found(
    *contents: str,
    question: str = "",
    hit: int = 0,
    title: str = "Item",
    similarities: Sequence[float] = (),
    **metadata: Any,
) -> FoundDocument:
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
    text = DocumentText("PBI-1", chunks, dict(enumerate(similarities)))
    likely = LikelyDocument(
        hit=Hit(document=stored, chunk=chunks[hit], score=1.0), probability=0.9, by="meaning"
    )
    return FoundDocument(likely, text, stems(question))


def lifted(*contents: str, **facts: Any) -> list[str]:
    return [s.text for s in learnings(found(*contents, **facts))]


SAID = "The export runs on a replica now."


@pytest.mark.parametrize(
    "heading",
    ["Lessons learned", "Retro", "Retrospective", "Postmortem", "Post-Mortem", "3. Outcome", "Results", "Resolution",
     "**Root cause**", "Erkenntnisse", "Rückblick", "Lösung", "Ergebnis", "Enseignements", "Rétrospective", "Bilan"],
)  # fmt: skip
@pytest.mark.parametrize("facts", [{"status": "Done"}, {"state": "Removed"}, {}])
def test_what_was_learned_is_what_ended_work_says_came_of_it(heading: str, facts: dict[str, Any]) -> None:
    text = f"As a clerk I want the export to run elsewhere.\n\n## {heading}\n\n{SAID}"
    assert lifted(text, **facts) == [SAID]


@pytest.mark.parametrize(
    "heading",
    ["Final Summary", "Implementation Notes", "Umsetzungsnotizen", "Résumé final", "Notes d’implémentation"],
)
def test_of_notes_on_the_work_only_findings_on_the_same_thing_are_lifted(heading: str) -> None:
    finding = "The export now runs on a replica, because it locked the invoice table for minutes each night."
    other = "The buttons of the settings page are green now, because the old colour could hardly be seen."
    text = f"## {heading}\n\n- Moved the export.\n- {finding}\n- {other}\n- {finding[:-1]}:"
    assert lifted(text, status="Done", question="a nightly export") == [finding]
    assert lifted(text, status="Open", question="a nightly export") == []


def test_a_label_before_a_paragraph_is_as_good_as_a_heading() -> None:
    text = f"Do it.\n\nResolution: the whole cache is gone. {SAID}"
    assert lifted(text, status="Done") == ["Resolution: the whole cache is gone.", SAID]


@pytest.mark.parametrize(
    "state", ["New", "Active", "In progress", "Reopened", "Resolved, reopened", "Backlog"]
)
def test_work_that_has_not_ended_teaches_nothing(state: str) -> None:
    text = f"## Lessons learned\n\n{SAID}\n\n## Outcome\n\n{SAID}\n\n## Comments\n\n### Ada\n\nIt turned out that {SAID}"
    assert lifted(text, status=state) == []


@pytest.mark.parametrize(
    "text",
    [
        "The limit was read as feet, and the pilot had no warning. It turned out that less is enough.",
        "## Description\n\nThe root cause was found in the cache by the team.",
        "## Context\n\nIn hindsight the export was too slow for them.",
        "## Acceptance criteria\n\n- The export was fast for all of them\n- [x] The export is cheap for all of them",
        "## Comments\n\n### Ada\n\nIt turned out that the export needs a replica.",
        "## Next steps\n\nWe learned that the export needs a replica.",
    ],
)
def test_symptoms_criteria_and_remarks_are_no_lessons(text: str) -> None:
    assert lifted(text, status="Done") == []
    assert lifted(text) == []


@pytest.mark.parametrize(
    "routine",
    ["Added tests for the new export.", "Added unit tests for all of it.", "Updated the documentation for this change.", "Updated README with new export flags.",
     "Tests pass on all three platforms.", "Committed to trunk and to branch-2.", "Merged to main after one review.",
     "Fixed in release 3.2 by Ada.", "Verified by hand on staging today.", "All acceptance criteria are met now.",
     "Thanks Ada for the quick patch!", "See the pull request for the details.", "Closing as there was no answer.",
     "Duplicate of PBI-7 in this project."],
)  # fmt: skip
@pytest.mark.parametrize("heading", ["Outcome", "Resolution", "Lessons learned"])
def test_what_is_done_with_every_item_teaches_nothing(routine: str, heading: str) -> None:
    text = f"## {heading}\n\n{routine}\n\n{SAID}"
    assert lifted(text, status="Done") == [SAID]


def test_of_given_up_work_the_last_comment_is_told_if_it_says_why_and_of_other_work_none() -> None:
    text = (
        "## Comments\n\n### Ada\n\nIt turned out to be hard for us.\n\n"
        "### Bert\n\nThe old export has no numbers. Given up: the old export has no tax numbers. All good. Bye."
    )
    for facts in ({"state": "Removed"}, {"state": "Closed", "resolution": "Won't fix"}):
        assert lifted(text, **facts) == ["Given up: the old export has no tax numbers."]
    for facts in ({"state": "Closed"}, {"state": "Active"}, {}):
        assert lifted(text, **facts) == []


def test_work_that_was_closed_as_a_duplicate_teaches_nothing_of_its_own() -> None:
    text = f"## Resolution\n\n{SAID}"
    assert lifted(text, status="Closed", resolution="Duplicate") == []
    assert lifted(text, status="Closed", duplicate_of="PBI-1") == []
    assert lifted(text, status="Closed", resolution="Fixed") == [SAID]


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("## Outcome\n\nFixed", {"status": "Done"}),
        ("## Resolution\n\nWontfix", {"status": "Closed", "resolution": "Wontfix"}),
        ("## Resolution\n\nSent back.", {"status": "Closed", "resolution": "sent back"}),
        ("## Outcome\n\n**Duplicate**", {}),
        ("## Lessons learned\n\nMeasure first.", {"status": "Done"}),
        ("## Resolution\n\n[INFO] -----< org.apache.hadoop:hadoop-client >----- it was built", {}),
        (
            "## Resolution\n\nIt gave b36-b764-a3b8b1c45201\\r\\nCorrelation ID 4eb4a71e-2eef-4788-9c8c-24f4c84f6981 and was shown",
            {},
        ),
        (
            '## Outcome\n\nThe answer was {"error_codes":[700016], "message": "no such user in this directory at all"}',
            {},
        ),
        ("## Resolution\n\n| a | b |:--|--:| 3 | 4 | | {x} ; [y] | was", {}),
        ("## Outcome\n\nat org.apache.Foo.bar(Foo.java:12) was called and did fail", {"state": "Done"}),
    ],
)
def test_a_bare_state_a_short_remark_a_log_and_a_table_teach_nothing(
    text: str, facts: dict[str, Any]
) -> None:
    assert lifted(text, **facts) == []


def test_figures_do_not_make_a_sentence_a_log() -> None:
    said = "Half the calls: 3.2 s -> 1.1 s (p95), with `max_connections=200`."
    assert lifted(f"## Outcome\n\n{said}") == [said]


def test_the_first_sentence_of_a_long_outcome_and_the_one_that_fits_best_are_kept() -> None:
    outcome = "## Outcome\n\nIt is live for everybody now. The sky is blue and wide. The export needs a replica now. Birds sing in all trees."
    assert lifted(outcome, question="export of a replica") == ["The export needs a replica now."]
    lessons = outcome.replace("Outcome", "Lessons")
    assert lifted(lessons, question="export of a replica") == [
        "It is live for everybody now.",
        "The export needs a replica now.",
    ]
    assert lifted(outcome, question="tax office") == [], "nothing of it is on the same thing"


def test_at_most_two_sentences_lessons_first_each_short_enough_to_quote() -> None:
    long = "We learned that " + "more and more words " * 20 + "matter."
    text = f"## Resolution\n\nThree is in the resolution.\n\n## Lessons\n\n{long}\n\nTwo is among the lessons.\n\n## Outcome\n\n{SAID}"
    kept = lifted(text)
    assert len(kept) == 2
    assert all(len(text) <= QUOTED for text in kept)
    assert kept[0].endswith(" …")


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
    assert found("x", **facts).abandoned is expected


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"decision_status": "implementing"}, "implementing"),
        ({"decision_status": "accepted", "superseded_by": "ADR 9"}, "superseded"),
        ({"decision_status": "agreed upon"}, "unknown"),
        ({}, "unknown"),
    ],
)
def test_the_status_of_a_decision_is_what_its_source_says(facts: dict[str, Any], status: str) -> None:
    assert status_of_decision(found("## Status\n\nRejected", **facts)) == status


def test_a_decision_is_its_first_sentences_and_never_a_whole_page() -> None:
    page = "## Decision\n\n" + " ".join(f"We decide point {n} of the long list of points." for n in range(40))
    kept = decision_of(found(page))
    assert kept[0].text == "We decide point 0 of the long list of points."
    assert 1 < len(kept) < 8


def test_a_decision_without_such_a_heading_is_told_by_its_best_passage() -> None:
    one = found("Some words first.\n\nWe stream every export.", question="stream the export")
    assert [s.text for s in decision_of(one)] == ["We stream every export."]


def test_a_decision_without_such_a_heading_is_told_by_its_summary_where_it_has_one() -> None:
    page = "- Feature Name: `stream`\n\n## Abstract\n[a]: #a\n\nWe stream each file.\n\n## Motivation\n\nThe export is slow."
    assert [s.text for s in decision_of(found(page, question="stream the export"))] == [
        "We stream each file."
    ]


def test_a_decision_is_not_told_by_the_rule_that_it_changes() -> None:
    page = "## Summary\n\nThe rule says:\n\n> Ask the owner first.\n\nThis proposal takes the rule away."
    assert [s.text for s in decision_of(found(page))] == ["This proposal takes the rule away."]
    quoted = found("## Decision\n\n> We stream every\n> export.")
    assert [s.text for s in decision_of(quoted)] == ["We stream every export."]


def test_a_decision_begins_with_what_is_decided_and_not_with_what_the_page_is_for() -> None:
    page = "## What\n\nThis document describes our choice.\n\n| Option | Cost |\n\nWe stream every export."
    assert [s.text for s in decision_of(found(page))] == ["We stream every export."]
    alone = found("## Decision\n\nThis document describes our choice.")
    assert [s.text for s in decision_of(alone)] == ["This document describes our choice."]


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
    assert [s.text for s in rationale_of(found(text))] == reasons


def test_constraints_are_what_binds_and_at_most_three() -> None:
    text = (
        "## Context\n\nAll users must log in.\n\n## Decision\n\nWe stream rows. Every export must be streamed. Files are"
        " written only by the exporter. It was the only choice.\n\n## Consequences\n\n- Bad, because teams must learn it\n"
        "- No team may not skip the header\n\n## Constraints\n\n- One database for all exports\n- No new servers"
    )
    assert [s.text for s in constraints_of(found(text))] == [
        "Every export must be streamed.",
        "Files are written only by the exporter.",
        "No team may not skip the header",
    ]
    named = "## Constraints\n\n- One database for all exports"
    assert [s.text for s in constraints_of(found(named))] == ["One database for all exports"]


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
    item = AnswerItem(
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
    assert [b.display for b in best] == ["Export as mail there.", "Export as mail here."]
    (only,) = best_passages(
        found("Export by mail to tax office.\n\nMail.", question="export mail tax office"), most=2
    )
    assert only.display == "Export by mail to tax office."


def test_passages_prefer_the_chunk_that_is_nearest_to_the_item_in_meaning() -> None:
    chunks = ("Export as mail here.", "Export as mail there.", "Export nothing.")

    def shown(*similarities: float) -> list[str]:
        one = found(*chunks, question="export mail", similarities=similarities)
        return [b.display for b in best_passages(one, most=1)]

    assert shown(0.3, 0.6) == ["Export as mail there."]
    assert shown(0.5, 0.55) == ["Export as mail here."]  # nearly as near, and the chunk that the search chose
    assert shown(0.3, 0.3, 0.8) == ["Export nothing."]


def test_the_words_of_a_link_s_target_and_mere_pointers_do_not_make_a_passage() -> None:
    text = "Read [this](/docs/export/mail-tax-office).\n\nAn export goes by mail."
    (best,) = best_passages(found(text, question="export mail tax office docs"), most=1)
    assert best.display == "An export goes by mail."
    text = "The export goes by mail.\n\n## What's next\n\nLearn about export, mail and tax."
    (best,) = best_passages(found(text, question="export mail tax"), most=1)
    assert best.display == "The export goes by mail."


def test_passages_of_one_document_do_not_overlap() -> None:
    text = "Export one by mail. Export two by mail. Export three by mail."
    shown = [b.display for b in best_passages(found(text, question="export mail one two three"), most=2)]
    assert len(" ".join(shown)) <= len(text)


def test_a_heading_stands_before_a_passage_only_if_there_is_room_and_it_is_not_the_title() -> None:
    def shown(heading: str, text: str) -> str:
        return best_passages(found(f"## {heading}\n\n{text}", question="export"), most=1)[0].display

    assert shown("Encoding", "The export is UTF-8.") == "Encoding: The export is UTF-8."
    assert shown("ITEM", "The export is UTF-8.") == "The export is UTF-8."
    assert (
        shown("*Encoding* of [it](a.md) {#enc}", "The export is UTF-8.")
        == "Encoding of it: The export is UTF-8."
    )
    assert shown("Which encoding?", "The export is UTF-8.") == "Which encoding? The export is UTF-8."
    exact = ("Export " + "word " * QUOTED)[: QUOTED - 10]
    assert shown("Encoding", exact) == f"Encoding: {exact}"
    assert shown("Encoding", exact + "x") == exact + "x"


def test_without_the_whole_text_the_chunk_found_is_the_document() -> None:
    hit = found("Only this.", pbi_id="PBI-5").hit
    alone = FoundDocument(LikelyDocument(hit=hit, probability=0.5, by="words"), None, frozenset())
    assert alone.external_id == "PBI-5"
    assert [s.text for s in alone.sentences] == ["Only this."]


def test_a_document_without_a_title_gets_a_word_in_place_of_it() -> None:
    assert found("x", title=" ").title == "Similar PBI"


def test_decisions_stand_by_percentage_whatever_became_of_them() -> None:
    def past(n: int, status: str, likeness: float) -> Hit:
        told = stock.explained(likeness, overlap=likeness)
        text = "We export invoices."
        return stock.hit(n, text, title=f"ADR {n}", kind=Kind.DECISION, told=told, decision_status=status)

    hits = [past(1, "superseded", 1.0), *(past(n, "accepted", 0.9 - n / 50) for n in (2, 3))]
    found = stock.Stock(hits).answer({"title": "export invoices"}, numbers={"past_decisions": 2})
    assert [one["title"] for one in found["past_decisions"]] == ["ADR 1", "ADR 2"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("# R\n\n## Decision\n\nSend mail.\n\n## Why rejected\n\nMail is lost too often.", "Mail is lost too often."),
        ("# R\n\n## Status\n\nRejected because mail is lost too often.\n\n## Decision\n\nSend mail.",
         "Rejected because mail is lost too often."),
        ("# R\n\n## Decision\n\nSend mail.\n\n## Notes\n\nThe board declined it since mail is lost.",
         "The board declined it since mail is lost."),
        ("# R\n\n## Status\n\nRejected\n\n## Decision\n\nSend mail because it is simple.", ""),
    ],
)  # fmt: skip
def test_a_rejected_record_is_told_by_its_reason_and_not_by_what_it_proposed(text: str, reason: str) -> None:
    assert " ".join(s.text for s in reasons_of_rejection(found(text))) == reason


@pytest.mark.parametrize(
    ("decision", "rule"),
    [
        ("Mail was slow. We will stream every export.", "We will stream every export."),
        ("We will do this:\n\n- Stream every export now\n- Mail no export", "Stream every export now"),
        ("Every export is streamed.", "Every export is streamed."),
        ("| a | b |\n|---|---|\n| c | d |", None),
    ],
)
def test_the_rule_of_a_decision_is_its_sentence_and_no_head_of_a_list(
    decision: str, rule: str | None
) -> None:
    told = rule_of(found(f"# D\n\n## Context\n\nExports fail.\n\n## Decision\n\n{decision}"))
    assert (told.text if told else None) == rule


_PIECES = st.sampled_from(
    ["We learned that. ", "It was export", " by mail… ", "\n", "\n\n", "- ", "> ", "## Decision\n\n", "# Outcome\n", "e.g. ",
     "| a | b |\n", "```\n", "... ", "x" * 150, " export mail " * 9, "We. We. ", "[x] ", "1. ", "Ende！"]
)  # fmt: skip


@example([" export mail" * 9 + " We learned that. 1. We learned that. "])
@given(st.lists(st.lists(_PIECES, max_size=12).map("".join), min_size=1, max_size=4))
def test_whatever_the_text_all_that_is_lifted_stands_in_the_chunk_it_names(contents: list[str]) -> None:
    one = found(*contents, question="export by mail", state="Done")
    kept = [*learnings(one), *decision_of(one), *(b.sentence for b in best_passages(one, most=2))]
    for sentence in kept:
        bare = " ".join(sentence.text.removeprefix("… ").removesuffix(" …").split())
        # A sentence of a quotation goes on behind the mark of its next line.
        there = contents[sentence.ord], re.sub(r"(?m)^[\s>]*>\s?", "", contents[sentence.ord])
        assert any(bare in " ".join(text.split()) for text in there)
        assert len(sentence.text) <= QUOTED


def test_with_no_word_in_common_the_chunk_that_the_search_chose_is_shown() -> None:
    (best,) = best_passages(found("Nothing here.", "The bill. More.", question="invoice", hit=1), most=2)
    assert best.display == "The bill."


def test_the_same_words_of_the_same_chunk_have_one_number() -> None:
    one = found("We learned that. Twice.")
    first, second = one.sentences
    cited = Citations()
    assert cited.cite(one, first, second, first) == (1, 2, 1)
    assert [c.quoted for c in cited.listed] == ["We learned that.", "Twice."]
