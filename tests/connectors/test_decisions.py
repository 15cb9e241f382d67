"""Which documents count as decisions, and what is read of their status."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from connectors.decisions import DecisionRules, Evidence, decision_facts, is_decision, kind_and_facts
from connectors.headings import headings_of
from pipeline.documents import Kind, SourceType

OFF = DecisionRules(types=(), paths=(), tags=(), headings=())


def evidence(
    text: str = "# Title\n\ntext",
    path: str = "docs/x.md",
    front_matter: dict[str, Any] | None = None,
    tags: tuple[str, ...] = (),
) -> Evidence:
    return Evidence(
        path=path, text=text, front_matter=front_matter or {}, tags=tags, headings=list(headings_of(text))
    )


class TestRules:
    @pytest.mark.parametrize(
        "found",
        [
            evidence(front_matter={"type": "adr"}),
            evidence(front_matter={"type": "ADR"}),
            evidence(front_matter={"kind": "Decision"}),
            evidence(front_matter={"type": "page", "kind": "rfc"}),
            evidence(path="adr/0001-x.md"),
            evidence(path="docs/ADR/2024/x.md"),
            evidence(path="docs/adrs/x.md"),
            evidence(path="a/decisions/x.md"),
            evidence(tags=("queue", "Decision")),
            evidence(tags=("rfc",)),
            evidence("# T\n\n## Status\n\nx\n\n## Decision\n\ny"),
            evidence("# T\n\n## 1. Status:\n\nx\n\n### 2. DECISION\n\ny"),
            evidence("T\n=\n\nStatus\n------\n\nx\n\nDecision\n--------\n\ny"),
        ],
    )
    def test_a_decision(self, found: Evidence) -> None:
        assert is_decision(DecisionRules(), found)
        assert kind_and_facts(DecisionRules(), found, SourceType.DOCUMENTATION)[0] is Kind.DECISION
        assert not is_decision(OFF, found)

    @pytest.mark.parametrize(
        "found",
        [
            evidence(),
            evidence(front_matter={"type": "guide", "kind": ["adr"], "status": "accepted"}),
            evidence(path="docs/adr.md"),
            evidence(path="docs/madr/x.md"),
            evidence(tags=("decisions", "adrian")),
            evidence("# T\n\n## Status\n\nok"),
            evidence("# T\n\n## Decision\n\nok"),
            evidence("# T\n\n```\n## Status\n## Decision\n```\n"),
            evidence("# T\n\n## Status report\n\nx\n\n## Decision log\n\ny"),
        ],
    )
    def test_no_decision(self, found: Evidence) -> None:
        assert not is_decision(DecisionRules(), found)
        assert kind_and_facts(DecisionRules(), found, SourceType.DOCUMENTATION) == (Kind.REFERENCE, {})

    def test_rules_can_be_replaced(self) -> None:
        rules = DecisionRules(
            types=("beschluss",), paths=("wiki/**/protokoll-*.md",), tags=("x",), headings=()
        )

        assert is_decision(rules, evidence(front_matter={"type": "Beschluss"}))
        assert is_decision(rules, evidence(path="wiki/2024/protokoll-1.md"))
        assert is_decision(rules, evidence(tags=("X",)))
        assert not is_decision(rules, evidence(front_matter={"type": "adr"}, path="adr/x.md", tags=("adr",)))

    def test_the_kind_of_others_follows_from_the_source_type(self) -> None:
        assert kind_and_facts(DecisionRules(), evidence(), SourceType.PBI)[0] is Kind.WORK


def facts(text: str = "", **front_matter: Any) -> dict[str, str]:
    return decision_facts(evidence(text, front_matter=front_matter))


class TestStatus:
    @pytest.mark.parametrize(
        ("section", "expected"),
        [
            ("Accepted", "accepted"),
            ("**Accepted**", "accepted"),
            ("- accepted", "accepted"),
            ("Approved by the board", "accepted"),
            ("Proposed", "proposed"),
            ("Draft", "proposed"),
            ("Rejected.", "rejected"),
            ("Deprecated", "deprecated"),
            ("Superseded", "superseded"),
            ("Proposed\n\nAccepted", "accepted"),
            ("2020-01-01 proposed\n2020-02-02: accepted", "accepted"),
            ("Accepted\n\nIt was proposed by the queue team.", "accepted"),
            ("The board has accepted this.", "accepted"),
            ("Accepted. Supersedes ADR-3", "accepted"),
            ("proposed | rejected | accepted | deprecated", ""),
            ("Unclear", ""),
            ("", ""),
        ],
    )
    def test_the_section_tells(self, section: str, expected: str) -> None:
        text = f"# T\n\n## Context\n\nRejected ideas.\n\n## Status\n\n{section}\n\n## Decision\n\nDeprecated stays."

        assert facts(text).get("decision_status", "") == expected

    @pytest.mark.parametrize(
        "head", ["Status: accepted", "* Status: accepted", "- **Status**: Accepted", "**Status:** accepted"]
    )
    def test_a_line_in_the_head_tells(self, head: str) -> None:
        assert facts(f"# T\n\n{head}\n\n## Context\n\nStatus: rejected")["decision_status"] == "accepted"

    def test_front_matter_goes_before_the_section(self) -> None:
        text = "# T\n\n## Status\n\nProposed\n"

        assert facts(text, status="Accepted")["decision_status"] == "accepted"
        assert facts(text, status="in review")["decision_status"] == "proposed"
        assert facts(text)["decision_status"] == "proposed"

    @pytest.mark.parametrize(
        ("line", "successor"),
        [
            ("Superseded by ADR-007", "ADR-007"),
            ("Superseded by [ADR-007](0007-use-valkey.md).", "ADR-007"),
            ("**Superseded by**: ADR-007", "ADR-007"),
            ("superseded-by: ADR-007", "ADR-007"),
            ("Accepted, then superseded by [7. Use Valkey](0007.md)", "7. Use Valkey"),
            ("Accepted\n\nSuperseded by ADR-007", "ADR-007"),
            ("Replaced by ADR-007", "ADR-007"),
        ],
    )
    @pytest.mark.req("001-065")
    def test_a_successor_is_named(self, line: str, successor: str) -> None:
        found = facts(f"# T\n\n## Status\n\n{line}\n\n## Decision\n\nx")

        assert found["decision_status"] == "superseded"
        assert found["superseded_by"] == successor

    @pytest.mark.parametrize(
        "front",
        [
            {"superseded_by": "ADR-007"},
            {"supersededBy": "ADR-007", "status": "accepted"},
            {"superseded-by": ["ADR-007", "ADR-008"]},
            {"status": "superseded by ADR-007"},
            {"status": "superseded by [ADR-007](0007-x.md)"},
        ],
    )
    def test_a_successor_in_front_matter(self, front: dict[str, Any]) -> None:
        assert facts("# T", **front) == {"decision_status": "superseded", "superseded_by": "ADR-007"}

    def test_an_unfilled_template_names_no_successor(self) -> None:
        assert facts("# T\n\n* Status: proposed | accepted | superseded by ADR-0005\n") == {}


class TestDay:
    @pytest.mark.parametrize(
        ("text", "front", "day"),
        [
            ("# T", {"date": date(2024, 2, 3)}, "2024-02-03"),
            ("# T", {"decided_at": "2024-02-03T10:00:00Z", "date": date(2020, 1, 1)}, "2024-02-03"),
            ("# T\n\nDate: 2024-02-03\n\n## Context\n\n2019-01-01", {}, "2024-02-03"),
            ("# T\n\n* Date: 2024-02-03\n* Status: accepted\n", {}, "2024-02-03"),
            ("# T\n\n## Status\n\nAccepted on 2024-02-03\n", {}, "2024-02-03"),
            (
                "# T\n\n## Status\n\nAccepted on 2024-02-03\n\nSuperseded by ADR-7 on 2025-01-01",
                {},
                "2024-02-03",
            ),
            ("# T\n\n## Status\n\nSuperseded by ADR-7 on 2025-01-01", {}, ""),
            ("# T\n\n## Status\n\nAccepted on 2024-02-31\n", {}, ""),
            ("# T\n\n## Status\n\nAccepted\n", {"date": "spring"}, ""),
        ],
    )
    def test_the_day_is_the_one_of_the_decision(self, text: str, front: dict[str, Any], day: str) -> None:
        assert facts(text, **front).get("decided_at", "") == day

    def test_nothing_said_is_nothing_known(self) -> None:
        assert facts("# T\n\ntext") == {}
