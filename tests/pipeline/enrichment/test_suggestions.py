"""What an answer suggests, and from which item or decision each suggestion comes."""

from __future__ import annotations

import pytest

from tests.pipeline.enrichment.library import PBI, answer, by_ref, decision, stocked, work
from tests.pipeline.workshop import Workshop


def test_criteria_that_similar_items_had_are_suggested_when_this_item_lacks_them(shop: Workshop) -> None:
    stocked(shop)
    texts = [s["text"] for s in answer(shop)["suggestion_details"] if s["kind"] == "acceptance_criterion"]
    assert texts == [
        (
            "“Export invoices as CSV” (PBI-7) also asked for: “The export finishes within two minutes for 50,000"
            " invoices”"
        ),
        "“Export invoices as CSV” (PBI-7) also asked for: “Umlauts survive the trip through the spreadsheet”",
    ]
    had = {**PBI, "acceptance_criteria": ["An export of 50,000 invoices finishes within 2 minutes"]}
    texts = [
        s["text"] for s in answer(shop, had)["suggestion_details"] if s["kind"] == "acceptance_criterion"
    ]
    assert not any("50,000" in text for text in texts)
    assert texts


def test_criteria_of_work_that_was_given_up_come_last_and_say_so(shop: Workshop) -> None:
    dropped = work(
        "PBI-60",
        "Export invoices as CSV for the tax office",
        "## Acceptance criteria\n\n- Every line carries a seal",
        status="Closed",
        resolution="Won't fix",
    )
    found = answer(stocked(shop, dropped), {**PBI, "title": "CSV export of invoices for the tax office"})
    texts = [s["text"] for s in found["suggestion_details"] if s["kind"] == "acceptance_criterion"]
    assert "(PBI-7)" in texts[0]
    assert texts[-1] == (
        "“Export invoices as CSV for the tax office” (PBI-60, Won't fix) also asked for: “Every line carries a seal”"
    )


def test_a_duplicate_that_was_given_up_covers_nothing(shop: Workshop) -> None:
    found = answer(stocked(shop), {"title": "Import invoices of the old system", "description": "Once more."})
    (check,) = [s["text"] for s in found["suggestion_details"] if s["kind"] == "duplicate"]
    assert check.startswith("Ask why “Import invoices of the old system” (PBI-8, Won't fix) was not done: ")


def test_two_items_with_the_same_criterion_suggest_it_once(shop: Workshop) -> None:
    twin = work(
        "PBI-70",
        "Export invoices as CSV again",
        "## Acceptance criteria\n\n- Umlauts survive the trip through a spreadsheet",
    )
    texts = answer(stocked(shop, twin))["suggestions"]
    assert sum("Umlauts" in text for text in texts) == 1


def test_decisions_in_force_are_to_be_respected_and_others_not_to_be_built_on(shop: Workshop) -> None:
    texts = [s["text"] for s in answer(stocked(shop))["suggestion_details"] if s["kind"] == "decision"]
    assert texts == [
        (
            "Respect the decision “ADR 3: Exports are streamed” (adr/0003.md, 2025-04-02): “Every export of invoices is"
            " streamed row by row as CSV.”"
        ),
        "Do not build on “ADR 1: Export of invoices as CSV by mail” (adr/0001.md): it is superseded by ADR 3.",
    ]


@pytest.mark.parametrize(
    ("facts", "status"), [({"decision_status": "proposed"}, "proposed"), ({}, "unknown")]
)
def test_a_proposal_binds_nobody(shop: Workshop, facts: dict[str, str], status: str) -> None:
    text = "## Decision\n\nInvoices are exported as CSV for the tax office."
    stocked(shop, decision("adr/8.md", "ADR 8: CSV export of invoices", text, **facts))
    found = answer(shop)
    assert by_ref(found, "past_decisions", "adr/8.md")["status"] == status
    assert not any("ADR 8" in text for text in found["suggestions"])
