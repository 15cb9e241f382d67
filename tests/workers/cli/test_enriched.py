"""What a person sees of the answers of Step 4."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pipeline.documents import Json
from pipeline.enrichment.context import EnrichedContext, static_context
from tests.pipeline.enrichment.everything import EVERYTHING
from workers.cli.enrich import show

WORK: Json = {
    "ref": "PBI-8",
    "title": "Login by mail",
    "similarity": 77,
    "status": "Closed",
    "outcome": "Fixed",
}


def shown(found: Json, width: int = 80) -> str:
    """The block of one PBI."""
    text = io.StringIO()
    show(Console(file=text, width=width), [{"pbi": {"id": "N-1", "title": "Login"}, "context": found}])
    return text.getvalue()


def context(**found: Any) -> Json:
    return {**EnrichedContext().to_json(), **found}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"abandoned": True, "outcome": "Won't fix"}, "(given up: Won't fix)"),
        ({"abandoned": True, "outcome": None, "status": "Removed"}, "(given up: Removed)"),
        ({"abandoned": False}, "(Closed, Fixed)"),
        ({"outcome": "Duplicate", "duplicate_of": "PBI-3"}, "(closed as duplicate of PBI-3)"),
        ({"outcome": "Closed", "effort": "took 5 points; 2 days"}, "(Closed; took 5 points; 2 days)"),
        ({"status": None, "outcome": None}, ""),
    ],
)
def test_work_says_what_became_of_it_and_what_it_took(facts: Json, words: str) -> None:
    (line,) = [line for line in shown(context(similar_work=[WORK | facts])).splitlines() if "similar" in line]
    said = line.strip().removeprefix("similar  77 %").strip()
    assert said == f"PBI-8 Login by mail {words}".strip()


def test_a_long_title_does_not_push_the_facts_out_of_the_line() -> None:
    text = shown(context(similar_work=[WORK | {"title": "Login by mail " * 30, "duplicate_of": "PBI-3"}]))
    assert "(closed as duplicate of PBI-3)" in " ".join(text.split())


def test_everything_a_person_has_to_know_first_is_on_the_screen() -> None:
    text = " ".join(shown(EVERYTHING).split())
    for words in (
        "possibly the same: PBI-7 Export invoices as CSV (closed as duplicate of PBI-3; took 21 points, estimated 13;",
        "effort five like it: median 9 days (n = 5)",
        "ADR 3: Exports are streamed (superseded by ADR 9; Ada Lovelace, Bert Sutherland)",
        "risk MEDIUM PBI-7 took 21 points and was estimated at 13.",
        "suggestion Check whether “Export invoices as CSV”",
    ):
        assert words in text
    unknown = {"ref": "a/b.md", "title": "Numbers", "status": "unknown", "similarity": 61}
    assert "decision 61 % Numbers (status unknown)" in " ".join(
        shown(context(past_decisions=[unknown])).split()
    )


def test_all_documents_stand_by_percentage_whatever_their_kind() -> None:
    def one(n: int) -> dict[str, Any]:
        return {"ref": f"D-{n}", "title": f"Title {n}", "similarity": n}

    found = context(
        similar_work=[one(95), one(76)], past_decisions=[one(99), one(62)], technical_docs=[one(97), one(84)]
    )
    shares = [line.split()[:2] for line in shown(found).splitlines() if "%" in line]
    assert [" ".join(share) for share in shares] == [
        "decision 99",
        "document 97",
        "similar 95",
        "document 84",
        "similar 76",
        "decision 62",
    ]


def test_no_title_can_drive_the_screen() -> None:
    text = shown(context(similar_work=[WORK | {"title": "a\x1b]0;x\x07b\u202ec"}]))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


@pytest.mark.req("001-108", "001-109")
def test_only_a_search_that_was_made_can_find_nothing() -> None:
    assert "nothing" in shown(context())
    assert "in stock" not in shown(static_context(5).to_json())
    assert "switched off" in shown(static_context(5).to_json())
    assert "Past work could not be looked up" in shown(static_context(4).to_json())
