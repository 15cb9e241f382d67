"""What a request may look like, and what is said of one that is wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from pipeline.documents import SourceType
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.errors import SearchError

SNAKE = {
    "id": "PBI-1",
    "title": "Export\n invoices",
    "description": "As a clerk.",
    "acceptance_criteria": ["- fast", {"given": "a", "when": "b", "then": "c"}, {"text": "plain"}, "", None],
    "labels": ["x"],
}


@pytest.mark.parametrize(
    "data",
    [
        SNAKE,
        {"pbi": SNAKE, "scores": {"overall": 0.5}},
        {
            "pbi": {
                "pbiId": "PBI-1",
                "name": "Export invoices",
                "Description": "As a clerk.",
                "acceptanceCriteria": "* fast\n* given a when b then c\n\n* plain",
            }
        },
    ],
)
def test_a_pbi_is_read_bare_or_wrapped_in_snake_or_camel_case_with_criteria_as_list_or_text(
    data: Any,
) -> None:
    request = EnrichmentRequest.from_json(data)
    assert (request.id, request.title, request.description) == ("PBI-1", "Export invoices", "As a clerk.")
    assert request.criteria == ("fast", "given a when b then c", "plain")
    assert request.question == "Export invoices\nAs a clerk.\nfast\ngiven a when b then c\nplain"


@pytest.mark.req("001-037")
def test_a_request_survives_json_with_all_it_does_not_know() -> None:
    request = EnrichmentRequest.from_json(
        {
            "pbi": {**SNAKE, "estimate": 5, "when": datetime(2026, 1, 1, tzinfo=UTC)},
            "scores": {"clarity": 0.4},
            "filters": {
                "sourceType": ["pbi", "markdown", "documentation"],
                "tags": "billing",
                "since": "2026-01-31T08:00:00Z",
                "metadata": {"team": "a"},
            },
            "topK": 5,
            "numbers": {"technical_docs": 1},
            "projectId": " shop ",
            "projects": "billing",
        }
    )
    again = EnrichmentRequest.from_json(request.to_json())
    assert again.to_json() == request.to_json()
    assert again.pbi["estimate"] == 5
    assert again.scores == {"clarity": 0.4}
    assert again.filter == request.filter
    assert again.filter.source_types == (SourceType.PBI, SourceType.DOCUMENTATION)
    assert again.filter.tags == ("billing",)
    assert again.filter.since == datetime(2026, 1, 31, 8, tzinfo=UTC)
    assert again.numbers == {"similar_work": 5, "past_decisions": 5, "technical_docs": 1}
    assert (again.project, again.projects) == ("shop", ("billing",))


@pytest.mark.req("001-037")
def test_the_names_that_a_search_query_has_are_understood_too() -> None:
    request = EnrichmentRequest.from_json(
        {
            "pbi": SNAKE,
            "filters": {"dateRange": {"start": "2026-01-01T00:00:00Z", "end": "2026-02-01T00:00:00+01:00"}},
            "options": {"topK": 5},
        }
    )
    assert request.filter.since == datetime(2026, 1, 1, tzinfo=UTC)
    assert request.filter.until == datetime(2026, 1, 31, 23, tzinfo=UTC)
    assert set(request.numbers.values()) == {5}


def test_a_day_counts_whole_as_the_first_and_as_the_last() -> None:
    for filters in (
        {"date_range": {"start": "2026-01-01", "end": "2026-01-31"}},
        {"since": "2026-01-01", "until": "2026-01-31"},
    ):
        found = EnrichmentRequest.from_json({"pbi": SNAKE, "filters": filters}).filter
        assert found.since == datetime(2026, 1, 1, tzinfo=UTC)
        assert found.until == datetime(2026, 2, 1, tzinfo=UTC)
    endless = EnrichmentRequest.from_json({"pbi": SNAKE, "filters": {"until": "9999-12-31"}}).filter
    assert endless.until == datetime(9999, 12, 31, tzinfo=UTC)


@pytest.mark.parametrize(
    ("description", "text"),
    [
        (["As a clerk", "I want", None, ""], "As a clerk\nI want"),
        ([{"text": "As a clerk"}, "- I want"], "As a clerk\nI want"),
        ([], ""),
        (None, ""),
    ],
)
def test_a_description_may_be_a_list(description: Any, text: str) -> None:
    assert EnrichmentRequest.from_json({"title": "t", "description": description}).description == text


def test_an_option_that_begins_a_criterion_keeps_its_dash() -> None:
    pbi = {
        "title": "t",
        "acceptance_criteria": ["-i asks first", "- - -n says how many", "•small", "*", "*.log is read"],
    }
    assert EnrichmentRequest.from_json(pbi).criteria == (
        "-i asks first",
        "-n says how many",
        "small",
        "*.log is read",
    )


def test_criteria_may_be_one_object() -> None:
    pbi = {"title": "t", "acceptanceCriteria": {"given": "a file", "then": "it opens"}}
    assert EnrichmentRequest.from_json(pbi).criteria == ("given a file then it opens",)


def test_without_filters_every_source_type_is_searched() -> None:
    assert EnrichmentRequest.from_json(SNAKE).filter.source_types == ()


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ([], "the request"),
        ({"pbi": "text"}, "pbi"),
        ({"pbi": {"id": 1}}, "title"),
        ({"pbi": {"title": ["secret text"]}}, "pbi.title"),
        ({"pbi": {"title": "t", "acceptance_criteria": 3}}, "pbi.acceptance_criteria"),
        ({"pbi": {"title": "t"}, "scores": [1]}, "scores"),
        ({"pbi": {"title": "t"}, "filters": {"source_types": ["jira"]}}, "filters.source_types"),
        ({"pbi": {"title": "t"}, "filters": {"tags": [1]}}, "filters.tags"),
        ({"pbi": {"title": "t"}, "filters": {"since": "soon"}}, "filters.since"),
        ({"pbi": {"title": "t"}, "filters": {"since": "2026-01-01T08:00:00"}}, "filters.since"),
        ({"pbi": {"title": "t"}, "filters": {"since": "2026-02-30"}}, "filters.since"),
        ({"pbi": {"title": "t"}, "filters": {"until": 20260101}}, "filters.until"),
        ({"pbi": {"title": "t"}, "filters": {"sourcetyp": "pbi"}}, "sourcetyp"),
        ({"pbi": {"title": "t"}, "topK": "three"}, "similar_work"),
        ({"pbi": {"title": "t"}, "topK": 21}, "similar_work"),
        ({"pbi": {"title": "t"}, "numbers": {"risks": 1}}, "risks"),
        ({"pbi": {"title": "t"}, "project": ["secret"]}, "project is a list"),
        ({"pbi": {"title": "t"}, "projects": ["a", 1]}, "projects is a list"),
        ({"pbi": {"title": "t"}, "exclude": ["A-1", 2]}, "exclude"),
        ({"pbi": {"title": "t"}, "exclude": {"secret": 2}}, "exclude"),
    ],
)
def test_a_wrong_field_is_named_with_a_fix_and_without_its_value(data: Any, name: str) -> None:
    with pytest.raises(SearchError) as caught:
        EnrichmentRequest.from_json(data)
    assert name in caught.value.message
    assert caught.value.fix
    assert "secret" not in str(caught.value)


WORDS = "words of an endless log that nobody reads to its end "
CRITERIA = ["The export ends within two minutes", "Umlauts survive"]


@pytest.mark.parametrize("description", ["", WORDS * 3, WORDS * 500, "登" * 7000, "x" * 7000])
def test_title_and_criteria_are_asked_for_however_long_the_description_is(description: str) -> None:
    pbi = {"title": "Export invoices", "description": description, "acceptance_criteria": CRITERIA}
    question = EnrichmentRequest.from_json(pbi).question
    title, *middle, first, second = question.split("\n")
    assert (title, first, second) == ("Export invoices", *CRITERIA)
    (said,) = middle or [""]
    assert description.startswith(said)
    assert bool(said) is bool(description)
    assert len(question) <= 1510


@pytest.mark.parametrize("long", [WORDS * 200, "登" * 7000])
def test_no_part_of_an_item_is_so_long_that_the_others_are_not_asked_for(long: str) -> None:
    pbi = {"title": long, "description": long, "acceptance_criteria": [long, "last"]}
    request = EnrichmentRequest.from_json(pbi)
    parts = request.question.split("\n")
    assert len(parts) == 3
    assert all(long.startswith(part) for part in parts)
    assert len(request.question) <= 1510
    assert request.text.endswith("last"), "all that it says is known, to tell what it lacks"


def test_a_part_is_cut_between_words() -> None:
    request = EnrichmentRequest.from_json({"title": "t", "description": "word " * 5000})
    assert request.question.endswith("word")
    assert {*request.question.split()} == {"t", "word"}


@pytest.mark.parametrize(
    ("exclude", "own"),
    [(None, ("PBI-1",)), ("A-1", ("PBI-1", "A-1")), (["A-1", "PBI-1", "B 2"], ("PBI-1", "A-1", "B 2"))],
)
def test_own_are_the_items_id_and_those_that_the_request_names(exclude: Any, own: tuple[str, ...]) -> None:
    request = EnrichmentRequest.from_json({"pbi": SNAKE, "exclude": exclude})
    assert request.own_ids == own
    assert EnrichmentRequest.from_json(request.to_json()).own_ids == own
    assert set(own) <= set(request.own_ids)
    assert "Export invoices" not in request.own_ids


def test_an_item_without_an_id_has_nothing_of_its_own() -> None:
    request = EnrichmentRequest.from_json({"title": "t"})
    assert request.own_ids == ()
    assert "" not in request.own_ids
