"""docs/step4.schema.json and docs/step4.d.ts say what Step 4 reads and writes, no more and no less."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pipeline.enrichment.context import static_context
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.errors import LarderError, RequestRejected
from pipeline.step4 import EnrichContextStep
from tests.pipeline.enrichment.everything import EVERYTHING
from tests.pipeline.enrichment.library import answer, stocked
from tests.pipeline.source_ledger import SourceLedger
from tests.step4_contract import SCHEMA, TYPES, complaints, objects, schema, written
from tests.typescript import declarations

Json = dict[str, Any]
PUBLISHED: Json = json.loads(SCHEMA.read_text(encoding="utf-8"))


def test_both_files_are_what_make_contract_writes() -> None:
    assert SCHEMA.read_text(encoding="utf-8") == written(schema()), "run `make contract`"
    assert TYPES.read_text(encoding="utf-8") == declarations(PUBLISHED), "run `make contract`"
    Draft202012Validator.check_schema(PUBLISHED)


def test_every_property_is_described() -> None:
    bare = [
        name
        for part in objects(PUBLISHED["$defs"])
        for name, one in part["properties"].items()
        if "$ref" not in one and not one.get("description")
    ]
    assert bare == []


# What is written ----------------------------------------------------------------------------------


def test_an_answer_that_has_everything_has_every_key_of_the_contract() -> None:
    assert complaints(EVERYTHING) == []
    assert _unwritten(EVERYTHING, PUBLISHED["$defs"]["EnrichedContext"], "context") == ["context.error"]


def test_answers_of_a_real_search_keep_the_contract(notes: SourceLedger) -> None:
    found = answer(stocked(notes))
    assert found["similar_work"]
    assert found["past_decisions"]
    assert found["suggestions"]
    assert complaints(found) == []


@pytest.mark.parametrize("given", [static_context(4).to_json(), static_context(5).to_json()])
def test_answers_without_a_search_keep_the_contract(given: Json) -> None:
    assert complaints(given) == []


class Refusing:
    """Enriches nothing."""

    def __init__(self, error: LarderError) -> None:
        self.error = error

    def enrich(self, pbi: Json, scores: Json) -> Json:  # noqa: ARG002 (the port has them)
        raise self.error


def test_refused_and_failed_items_keep_the_contract() -> None:
    for error in (RequestRejected("the PBI has no title"), LarderError("the store is away")):
        run: Json = {"scored_pbis": {"scored_pbis": [{"pbi": {"id": "a"}, "scores": None}]}}
        written_ = EnrichContextStep(Refusing(error)).execute(run)
        validator = Draft202012Validator(PUBLISHED)
        assert [e.message for e in validator.iter_errors(written_)] == []
        assert complaints(written_["enriched_pbis"]["enriched_pbis"][0]["context"]) == []


def _put(path: str, value: object) -> Callable[[Json], None]:
    def change(context: Json) -> None:
        place: Any = context
        *way, last = path.split(".")
        for step in way:
            place = place[int(step) if step.isdigit() else step]
        if value is None:
            del place[last]
        else:
            place[int(last) if last.isdigit() else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_put("suggestions.0", {"text": "a"}), "suggestions[0]: {'text': 'a'} is not of type 'string'"),
        (_put("similar_work.0.similarity", 104), "similarity: 104 is greater than"),
        (_put("similar_work.0.similarity", "84"), "similarity: '84' is not of type 'integer'"),
        (_put("past_decisions.0.status", "in doubt"), "status: 'in doubt' is not one of"),
        (_put("past_decisions.0.date", "2 May"), "date: '2 May' is not a 'date'"),
        (_put("past_decisions.0.constraints", None), "'constraints' is a required property"),
        (_put("risk_hints.0.severity", "low"), "severity: 'low' is not one of"),
        (_put("project", None), "'project' is a required property"),
        (_put("degradation_level", 6), "degradation_level: 6 is greater than"),
        (_put("novelty", 1), "('novelty' was unexpected)"),
    ],
)
def test_what_breaks_the_contract_is_seen(change: Callable[[Json], None], words: str) -> None:
    broken = copy.deepcopy(EVERYTHING)
    change(broken)
    (complaint,) = complaints(broken)
    assert words in complaint


def test_additions_are_allowed() -> None:
    run = {
        "enriched_pbis": {
            "enriched_pbis": [
                {"pbi": {"id": 1, "x": 2}, "scores": {"y": 1}, "context": EVERYTHING | {"z": 1}}
            ],
            "model": "m",
        }
    }
    assert Draft202012Validator(PUBLISHED).is_valid(run)


# What is read -------------------------------------------------------------------------------------

TITLED = {"title": "Export"}


@pytest.mark.parametrize(
    ("request_", "good"),
    [
        ({"pbi": TITLED}, True),
        ({"pbi": {"id": 7, "title": "a", "description": ["b"], "acceptance_criteria": "c\nd", "x": {}}}, True),
        ({"pbi": {"title": "a", "acceptance_criteria": [{"given": "g"}, "b"]}, "scores": {"any": 1}}, True),
        ({"pbi": {"id": None, "title": "a", "description": None, "acceptance_criteria": None}}, True),
        ({"pbi": TITLED, "filters": {"tags": "a", "source_types": ["confluence"], "since": "2026-01-31"}}, True),
        ({"pbi": TITLED, "filters": {"date_range": {"start": "2026-01-31"}, "metadata": {"team": "a"}}}, True),
        ({"pbi": TITLED, "top_k": 0, "numbers": {"similar_work": 20}, "project": "a", "projects": ["b"]}, True),
        ({"pbi": TITLED, "exclude": ["a", "b"]}, True),
        ({"pbi": TITLED, "exclude": "a"}, True),
        ({"scores": {}, "pbi": "text"}, False),
        ({"pbi": {"title": ["a"]}}, False),
        ({"pbi": {"id": {"n": 1}, "title": "a"}}, False),
        ({"pbi": {"title": "a", "acceptance_criteria": 5}}, False),
        ({"pbi": TITLED, "top_k": 21}, False),
        ({"pbi": TITLED, "top_k": "3"}, False),
        ({"pbi": TITLED, "numbers": {"stories": 1}}, False),
        ({"pbi": TITLED, "exclude": [1]}, False),
        ({"pbi": TITLED, "filters": {"colour": "red"}}, False),
        ({"pbi": TITLED, "filters": {"tags": [1]}}, False),
        ({"pbi": TITLED, "filters": {"metadata": ["a"]}}, False),
    ],
)  # fmt: skip
def test_the_schema_accepts_a_request_exactly_if_step_4_does(request_: Json, good: bool) -> None:
    asked = Draft202012Validator(PUBLISHED | {"$ref": "#/$defs/EnrichmentRequest"})
    assert asked.is_valid(request_) is good
    if good:
        read = EnrichmentRequest.from_json(request_).to_json()
        assert asked.is_valid(read), "what is sent on keeps the contract too"
    else:
        with pytest.raises(RequestRejected):
            EnrichmentRequest.from_json(request_)


def _unwritten(value: Any, part: Json, where: str) -> list[str]:
    """Properties of the schema that an answer lacks."""
    if "$ref" in part:
        part = PUBLISHED["$defs"][part["$ref"].rpartition("/")[2]]
    if "anyOf" in part:
        return _unwritten(value, part["anyOf"][0], where)
    if isinstance(value, list):
        return [
            name
            for n, one in enumerate(value)
            for name in _unwritten(one, part.get("items", {}), f"{where}[{n}]")
        ]
    if not isinstance(value, dict):
        return []
    lacking = [f"{where}.{name}" for name in part["properties"] if name not in value]
    known = [(name, one) for name, one in part["properties"].items() if name in value]
    return lacking + [name for key, one in known for name in _unwritten(value[key], one, f"{where}.{key}")]
