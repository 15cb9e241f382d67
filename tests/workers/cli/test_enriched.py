"""What a person sees of the answers of Step 4."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from pipeline.documents import Json
from pipeline.enrichment import EnrichedContext, static_context
from workers.cli import enriched

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
    enriched.show(
        Console(file=text, width=width), [{"pbi": {"id": "N-1", "title": "Login"}, "context": found}]
    )
    return text.getvalue()


def context(**found: Any) -> Json:
    return {**EnrichedContext().to_json(), **found}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"abandoned": True, "outcome": "Won't fix"}, "PBI-8 Login by mail (given up: Won't fix)"),
        (
            {"abandoned": True, "outcome": None, "status": "Removed"},
            "PBI-8 Login by mail (given up: Removed)",
        ),
        ({"abandoned": False}, "PBI-8 Login by mail"),
    ],
)
def test_work_that_was_given_up_says_so(facts: Json, words: str) -> None:
    (line,) = [line for line in shown(context(similar_work=[WORK | facts])).splitlines() if "similar" in line]
    assert line.strip().removeprefix("similar  77 %").strip() == words


@pytest.mark.req("001-108", "001-109")
def test_only_a_search_that_was_made_can_find_nothing() -> None:
    assert "nothing" in shown(context())
    assert "in stock" not in shown(static_context(5).to_json())
    assert "switched off" in shown(static_context(5).to_json())
    assert "Past work could not be looked up" in shown(static_context(4).to_json())
