"""Outputs of the backlog pipeline as one document per PBI."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors.pbi.shapes import holds_pbis, pbi_items
from pipeline.documents import Document, Kind, SourceType
from pipeline.documents.plain_text import plain_keys
from tests.connectors.outputs import ONE, TWO, read, source, write


def only(root: Path, data: Any, name: str = "run-2025-01-10/final-output.json") -> Document:
    write(root, name, data)
    documents, failed, _ = read(root)
    assert not failed, failed
    (document,) = documents.values()
    return document


FULL: dict[str, Any] = {
    "id": "PBI-007",
    "type": "story",
    "title": "Reset  the password",
    "description": "Users reset it by mail.\n\nSecond paragraph.",
    "acceptance_criteria": ["Given a mail, it comes within 60 s", "An old link fails"],
    "priority": "high",
    "status": "done",
    "created_at": "2025-01-09T09:00:00Z",
    "updated_at": "2025-01-11T09:00:00+00:00",
    "confidence_score": 0.87,
    "dependencies": ["PBI-001", "PBI-002"],
    "labels": ["auth", "mail"],
    "notes": "Ask Ada.",
    "lessons_learned": ["Mail is slow"],
    "user_story": "As a user I reset it.",
}


class TestDocument:
    @pytest.mark.req("001-015", "001-016", "001-049", "001-066", "001-068", "002-003")
    def test_everything_a_pbi_says_is_kept(self, tmp_path: Path) -> None:
        found = only(tmp_path, {"metadata": {"created_at": "2025-01-10T08:00:00Z"}, "pbis": [FULL]})

        assert found.external_id == "PBI-007"
        assert found.title == "Reset the password"
        assert found.source_type is SourceType.PBI
        assert found.kind is Kind.WORK
        assert found.tags == ("auth", "mail")
        assert found.url == (tmp_path / "output/run-2025-01-10/final-output.json").as_uri() + "#PBI-007"
        assert found.created_at == datetime(2025, 1, 9, 9, tzinfo=UTC)
        assert found.updated_at == datetime(2025, 1, 11, 9, tzinfo=UTC)
        assert found.metadata == {
            "category": "historical",
            "pbi_id": "PBI-007",
            "timestamp": "2025-01-09T09:00:00Z",
            "quality_score": 0.87,
            "runs": ["run-2025-01-10"],
            "version": 1,
            "priority": "high",
            "labels": ["auth", "mail"],
            "type": "story",
            "status": "done",
            "dependencies": ["PBI-001", "PBI-002"],
            "source_path": "output/run-2025-01-10/final-output.json",
        }

    @pytest.mark.req("001-066")
    def test_the_text_has_a_section_for_each_part(self, tmp_path: Path) -> None:
        assert only(tmp_path, {"pbis": [FULL]}).text == (
            "# Reset the password\n\n"
            "## User story\n\nAs a user I reset it.\n\n"
            "## Description\n\nUsers reset it by mail.\n\nSecond paragraph.\n\n"
            "## Acceptance criteria\n\n- Given a mail, it comes within 60 s\n- An old link fails\n\n"
            "## Notes\n\nAsk Ada.\n\n"
            "## Dependencies\n\n- PBI-001\n- PBI-002\n\n"
            "## Lessons learned\n\n- Mail is slow"
        )

    @pytest.mark.parametrize(
        ("given", "lines"),
        [
            (["a", "- b", "", "3. c"], ["a", "b", "c"]),
            ("a\n\n* b\n2) c", ["a", "b", "c"]),
            ([{"criterion": "a"}, {"description": "b"}], ["a", "b"]),
            ([{"given": "x", "when": "y", "then": "z"}], ["Given x When y Then z"]),
            ([{"odd": "x", "n": 1}], ["odd: x; n: 1"]),
            ({"text": "a"}, ["a"]),
            ([["a", "b"], 3, None], ["a; b", "3"]),
            (["a\nb"], ["a\n  b"]),
        ],
    )
    def test_criteria_are_bullets(self, tmp_path: Path, given: Any, lines: list[str]) -> None:
        text = only(tmp_path, {"pbis": [{**ONE, "acceptance_criteria": given}]}).text

        assert text == "# One\n\n## Acceptance criteria\n\n" + "\n".join(f"- {line}" for line in lines)

    @pytest.mark.parametrize("given", [None, [], "", {}, [None, ""], "\n"])
    def test_no_criteria_are_no_section(self, tmp_path: Path, given: Any) -> None:
        assert only(tmp_path, {"pbis": [{**ONE, "acceptance_criteria": given}]}).text == "# One"

    def test_camel_case_and_lists_of_text_are_read(self, tmp_path: Path) -> None:
        pbi = {
            "userStoryId": 12,
            "title": "T",
            "description": ["first", "second"],
            "acceptanceCriteria": "only",
            "createdAt": 1_736_413_200,
            "confidenceScore": "0.5",
            "tags": "a, b",
            "labels": ["b", "c"],
        }

        found = only(tmp_path, {"scoredPBIs": [{"pbi": pbi, "scores": {}}]})

        assert found.external_id == "12"
        assert "## Description\n\n- first\n- second\n\n## Acceptance criteria\n\n- only" in found.text
        assert found.metadata["timestamp"] == "2025-01-09T09:00:00+00:00"
        assert found.metadata["quality_score"] == 0.5
        assert found.tags == ("b", "c", "a")

    @pytest.mark.parametrize(
        ("pbi", "scores", "quality"),
        [
            ({"confidence_score": 0.9}, {"overall_confidence": 0.1}, 0.9),
            ({}, {"overall_confidence": 0.7}, 0.7),
            ({}, {"overallConfidence": "0.7"}, 0.7),
            ({}, {"clarity": 1, "overall": 0.6}, 0.6),
            ({"confidence_score": 0}, {}, 0),
            ({"confidence_score": 92}, {}, 0.92),
            ({}, {"overall_score": 87, "clarity": 90}, 0.87),
            ({}, {"overall": {"score": "85 %"}}, 0.85),
            ({"confidence_score": 1}, {}, 1),
            ({"confidence_score": -1}, {"overall_score": 870}, None),
            ({"confidence_score": True}, {}, None),
            ({"confidence_score": "high"}, {}, None),
            ({}, {}, None),
            ({}, None, None),
        ],
    )
    @pytest.mark.req("001-068")
    def test_quality(self, tmp_path: Path, pbi: dict[str, Any], scores: Any, quality: float | None) -> None:
        found = only(tmp_path, {"scored_pbis": [{"pbi": {**ONE, **pbi}, "scores": scores}]})

        assert found.metadata.get("quality_score") == quality

    def test_numbers_that_are_none_do_not_reach_the_store(self, tmp_path: Path) -> None:
        found = only(
            tmp_path,
            '{"pbis": [{"id": "1", "title": "a\\u0000\\ud83d", "confidence_score": 1e999, "priority": NaN}]}',
        )

        json.dumps(found.metadata, allow_nan=False)
        assert "quality_score" not in found.metadata
        assert "priority" not in found.metadata
        found.title.encode()
        assert "\0" not in found.title + found.text

    def test_the_run_gives_the_time_if_the_pbi_does_not(self, tmp_path: Path) -> None:
        found = only(
            tmp_path, {"metadata": {"run_id": "x", "created_at": "2025-01-10T08:00:00Z"}, "pbis": [ONE]}
        )

        assert found.metadata["timestamp"] == "2025-01-10T08:00:00Z"
        assert found.created_at == datetime(2025, 1, 10, 8, tzinfo=UTC)

    def test_without_any_time_it_is_the_files(self, tmp_path: Path) -> None:
        found = only(tmp_path, [ONE])

        assert "timestamp" not in found.metadata
        assert found.created_at is not None
        assert found.created_at.utcoffset() is not None

    def test_without_an_id_the_title_names_it(self, tmp_path: Path) -> None:
        first = only(tmp_path, {"pbis": [{"title": "Same  Title", "description": "one"}]})
        second = only(tmp_path, {"pbis": [{"title": "same title", "description": "two"}]})

        assert first.external_id.startswith("title-")
        assert first.external_id == second.external_id

    def test_without_a_title_the_id_is_one(self, tmp_path: Path) -> None:
        assert only(tmp_path, {"pbis": [{"id": "PBI-9", "description": "x"}]}).title == "PBI-9"


class TestShapes:
    @pytest.mark.parametrize(
        "data",
        [
            [ONE, TWO],
            [{"pbi": ONE, "scores": {}}, {"pbi": TWO}],
            {"pbis": [ONE, TWO]},
            {"scored_pbis": [{"pbi": ONE, "scores": {"overall_confidence": 1}}, TWO]},
            {"enriched_pbis": [{"pbi": ONE, "context": {}}, {"pbi": TWO}]},
            {"final_output": {"pbis": [ONE, TWO]}},
            {"finalOutput": {"pbis": [ONE, TWO]}},
            {"scored_pbis": {"scored_pbis": [{"pbi": ONE}, {"pbi": TWO}]}},
            {"score_confidence": {"scored_pbis": [{"pbi": ONE}, {"pbi": TWO}]}},
            {"enrichedPBIs": {"enriched_pbis": [{"pbi": ONE}, {"pbi": TWO}]}},
            {"publish": {"final_output": {"pbis": [ONE, TWO]}}},
            {"step_1": {"pbis": [ONE]}, "step_2": {"pbis": [TWO]}, "other": {"pbis": "text"}},
            {"step": "extract", "result": {"total_found": 2, "candidates": [ONE, TWO]}},
            {"step": "check_risks", "result": {"pbis_with_risks": [{"pbi": ONE, "risks": {}}, {"pbi": TWO}]}},
            {"result": {"pbis_with_questions": [{"pbi_id": "PBI-1", "title": "One"}, TWO]}},
            {"result": {"readiness_summary": {"ready": 2}, "assessed_pbis": [{"pbi": ONE}, {"pbi": TWO}]}},
            {
                "ready_pbis": [ONE],
                "not_ready_pbis": [TWO],
                "ready_ids": ["PBI-1"],
                "metadata": {"ready_count": 1},
            },
        ],
    )
    @pytest.mark.req("001-066")
    def test_every_shape_is_read(self, tmp_path: Path, data: Any) -> None:
        write(tmp_path, "run-2025-01-10/final-output.json", data)

        documents, failed, skipped = read(tmp_path)

        assert {i: d.title for i, d in documents.items()} == {"PBI-1": "One", "PBI-2": "Two"}
        assert not failed
        assert not skipped

    def test_of_one_pbi_in_a_whole_context_the_latest_stage_counts(self, tmp_path: Path) -> None:
        def state(word: str) -> dict[str, str]:
            return {**ONE, "description": word}

        found = only(
            tmp_path,
            {
                "final_output": {"pbis": [state("final")]},
                "enrich": {"enriched_pbis": [{"pbi": state("enriched")}]},
                "score": {"scored_pbis": [{"pbi": state("scored"), "scores": {"overall_confidence": 0.4}}]},
                "extract": {"pbis": [state("extracted")]},
            },
        )

        assert "final" in found.text
        assert found.metadata["quality_score"] == 0.4
        assert found.metadata["version"] == 1

    @pytest.mark.parametrize(
        "data",
        [
            {**ONE, "description": "x"},
            {"metadata": {"run_id": "7"}, "pbi": ONE, "quality": {"scores": {"overall_score": 92}}},
            {"result": ONE},
            {"enriched_pbi": {"pbi": ONE, "scores": {"overall": 0.5}}, "context": {"similar_work": [TWO]}},
            {"output": {"pbi": ONE, "context": {}}},
        ],
    )
    def test_a_file_may_hold_one_pbi(self, tmp_path: Path, data: Any) -> None:
        write(tmp_path, "run-2025-01-10/step-8.json", data)

        documents, failed, skipped = read(tmp_path)

        assert {i: d.title for i, d in documents.items()} == {"PBI-1": "One"}
        assert not failed
        assert not skipped

    def test_scores_beside_a_pbi_count_wherever_they_stand(self, tmp_path: Path) -> None:
        data = {"pbi": ONE, "quality": {"scores": {"overall_score": 92}}, "metadata": {"runId": "1763"}}

        found = only(tmp_path, data).metadata

        assert found["quality_score"] == 0.92
        assert found["quality_score_given"] == 92

    @pytest.mark.parametrize(
        "data",
        [
            {"metadata": {"total_pbis": 3, "ready_count": 1}},
            {"pbis": 3, "ready": 1},
            {"pbis": ["PBI-1", "PBI-2"]},
            {"step": "detect_event_type", "result": {"event_type": "refinement", "confidence": 0.98}},
            [{"op": "add", "path": "/fields/System.Title", "value": "x"}],
            {"id": "run-7", "title": ["no text"]},
        ],
    )
    def test_counts_and_other_lists_are_left_out_with_a_reason(self, tmp_path: Path, data: Any) -> None:
        write(tmp_path, "run-2025-01-10/summary.json", data)

        documents, failed, skipped = read(tmp_path, "output/run-*/summary.json")

        assert not documents
        assert not failed
        assert "no PBIs" in skipped["output/run-2025-01-10/summary.json"].reason

    @pytest.mark.parametrize(
        "data", [{}, {"pbis": {}}, {"a": 1, "b": {"c": []}}, ["text"], 3, None, '"text"']
    )
    def test_a_file_without_pbis_is_left_out_and_says_what_it_holds(self, tmp_path: Path, data: Any) -> None:
        write(tmp_path, "run-2025-01-10/step-1-load.json", data)

        documents, failed, skipped = read(tmp_path)

        assert not documents
        assert not failed
        reason = skipped["output/run-2025-01-10/step-1-load.json"].reason
        assert "no PBIs" in reason
        for key in data if isinstance(data, dict) else []:
            assert key in reason
        assert source(tmp_path).ids().complete

    def test_an_empty_list_of_pbis_is_no_problem(self, tmp_path: Path) -> None:
        write(tmp_path, "run-2025-01-10/final-output.json", {"pbis": []})

        assert read(tmp_path) == ({}, {}, {})

    def test_items_without_id_and_title_fail_by_file_and_place(self, tmp_path: Path) -> None:
        write(
            tmp_path, "run-2025-01-10/final-output.json", {"pbis": [ONE, {"description": "x"}, "text", None]}
        )

        documents, failed, _ = read(tmp_path)

        assert list(documents) == ["PBI-1"]
        assert set(failed) == {f"output/run-2025-01-10/final-output.json#{n}" for n in (1, 2, 3)}
        assert "number 2" in failed["output/run-2025-01-10/final-output.json#1"].reason

    def test_keys_in_two_spellings(self) -> None:
        assert plain_keys({"acceptance_criteria": [], "acceptanceCriteria": ["x"]}) == {
            "acceptancecriteria": ["x"]
        }

    def test_any_json_is_told_from_pbis(self) -> None:
        assert holds_pbis({"pbis": [ONE]})
        assert holds_pbis([{"pbi": ONE}])
        assert holds_pbis({"pbi": ONE, "quality": {}})
        assert holds_pbis({"result": {"assessed_pbis": [{"pbi": ONE}]}})
        assert not holds_pbis({"candidates": [{"id": "1", "content": "x"}]})
        assert not holds_pbis({**ONE, "description": "x"})
        assert holds_pbis([{"title": "x", "acceptanceCriteria": []}])
        assert not holds_pbis([{"title": "x", "description": "y"}])
        assert not holds_pbis({"pbis": []})
        assert not holds_pbis("x")
        assert pbi_items({"pbis": []}) == []
