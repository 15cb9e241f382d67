"""Which documents count as decisions, and what is read of their status."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from connectors.documents.decisions import (
    DecisionRules,
    Evidence,
    decision_facts,
    is_decision,
    kind_and_facts,
)
from connectors.documents.headings import headings_of, title_of
from pipeline.documents import Kind, SourceType
from tests.complexity import assert_linear

OFF = DecisionRules(frontmatter_types=(), paths=(), tags=(), headings=())


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
            evidence("# T\n\nStatus: agreed", path="docs/ADR/2024/x.md"),
            evidence("# T\n\n| Status | Draft |", path="docs/adrs/x.md"),
            evidence("# T\n\n## Decision\n\nx", path="a/decisions/x.md"),
            evidence("# T\n\n## Context\n\nx", path="docs/Architecture Decision Records/x.md"),
            evidence(path="architecture_decisions/team/ABC-ADR-XY-001.md"),
            evidence(path="rfcs/text/0042-x.md"),
            evidence(path="docs/team/adr-007-x.md"),
            evidence(path="docs/team/ABC-ADR-0007-x.md"),
            evidence(front_matter={"status": "implemented", "date": date(2024, 1, 2)}),
            evidence(
                "# T\n\n## Context and Problem Statement\n\n## Considered Options\n\n## Decision Outcome\n\nx"
            ),
            evidence("# T\n\n## Context\n\nx\n\n## Decision\n\ny\n\n## Consequences\n\nz"),
            evidence("# Architecture Decision Record: queues\n\nx", path="queues/index.md"),
            evidence("# ADR-7: queues\n\nx"),
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
            evidence(path="adr/images.md"),
            evidence(
                "# Errors\n\n| Status | Meaning |\n|---|---|\n| 404 | Gone |", path="decisions/api/errors.md"
            ),
            evidence(path="adr/2024-01-02 notes.md"),
            evidence("# T\n\nStatus: accepted", path="adr/README.md"),
            evidence("# T\n\nStatus: accepted", path="decisions/index.md"),
            evidence("# T\n\nStatus: accepted", path="docs/quadr.md"),
            evidence(tags=("adr",), path="adr/contributing.md"),
            evidence(front_matter={"status": "draft", "date": date(2024, 1, 2)}),
            evidence(front_matter={"status": "accepted"}),
            evidence("words", front_matter={"status": "accepted", "date": date(2024, 1, 2)}),
            evidence("# T\n\n## Context\n\nx\n\n## Decision\n\ny"),
            evidence("# Architecture Decision Records\n\nx"),
        ],
    )
    def test_no_decision(self, found: Evidence) -> None:
        assert not is_decision(DecisionRules(), found)
        assert kind_and_facts(DecisionRules(), found, SourceType.DOCUMENTATION) == (Kind.REFERENCE, {})

    @pytest.mark.parametrize(
        "found",
        [
            evidence(path="adr/0000-template.md"),
            evidence(path="adr/adr-template-short.md"),
            evidence(path="adr/TEMPLATE.md", front_matter={"type": "adr"}),
            evidence(path="docs/templates/adr/0001-x.md"),
            evidence("# {short title, of problem and solution}", path="adr/0001-x.md"),
            evidence("# [short title]", path="adr/0001-x.md"),
            evidence("# <!-- short title -->", path="adr/0001-x.md"),
            evidence("# T", path="adr/0001-x.md", front_matter={"title": "{title}"}),
            evidence("# 1. T\n\nDate: DATE\n\n## Status\n\nSTATUS", path="adr/0001-x.md"),
            evidence("# T\n\n* Status: proposed | accepted | rejected", path="adr/0001-x.md"),
            evidence("# T\n\n## Status\n\nOne of proposed, accepted or rejected.", path="adr/0001-x.md"),
        ],
    )
    def test_a_template_is_no_decision(self, found: Evidence) -> None:
        assert not is_decision(DecisionRules(), found)

    def test_a_record_about_templates_is_one(self) -> None:
        assert is_decision(
            DecisionRules(), evidence("# 5. Use a template", path="adr/0005-use-a-template.md")
        )
        assert is_decision(DecisionRules(), evidence("# [ADR-5] Templates", path="adr/0005-templates.md"))

    def test_the_root_may_be_the_folder_of_records(self) -> None:
        inside = replace(evidence(path="0001-x.md"), above="docs/adr")
        assert is_decision(DecisionRules(), inside)
        assert not is_decision(DecisionRules(), replace(inside, above="docs/guide"))
        assert not is_decision(DecisionRules(paths=("adr/**",)), inside), (
            "a glob without ** starts at the root"
        )

    def test_what_a_glob_of_files_names_needs_no_further_sign(self) -> None:
        assert is_decision(DecisionRules(paths=("**/adr/*.md",)), evidence(path="adr/images.md"))
        assert not is_decision(DecisionRules(paths=("**/adr/*.md",)), evidence(path="adr/readme.md"))

    def test_rules_can_be_replaced(self) -> None:
        rules = DecisionRules(
            frontmatter_types=("beschluss",), paths=("wiki/**/protokoll-*.md",), tags=("x",), headings=()
        )

        assert is_decision(rules, evidence(front_matter={"type": "Beschluss"}))
        assert is_decision(rules, evidence(path="wiki/2024/protokoll-1.md"))
        assert is_decision(rules, evidence(tags=("X",)))
        assert not is_decision(rules, evidence(front_matter={"type": "adr"}, path="adr/x.md", tags=("adr",)))

    @pytest.mark.parametrize(
        ("text", "ended"),
        [
            ("# P\n\n| Authors | Ann |\n| Status | Obsolete |\n\ntext", {"decision_status": "deprecated"}),
            (
                "# P\n\n- Date: 2024-02-03\n- Status: Replaced by [B](b.md)\n\ntext",
                {"decision_status": "superseded", "superseded_by": "B"},
            ),
            ("# P\n\n| Authors | Ann |\n| Status | Accepted |\n\ntext", {}),
            ("# P\n\n| Status | Obsolete |\n\ntext", {}),
            ("# P\n\n| Status | Means | Next |\n| --- | --- | --- |\n| rejected | no | none |", {}),
            ("# P\n\nAuthor: Ann\n\n## Status\n\nDeprecated calls are listed here.", {}),
        ],
    )
    def test_a_page_that_has_ended_says_so_beside_its_date_or_authors(
        self, text: str, ended: dict[str, str]
    ) -> None:
        found = evidence(text)
        assert kind_and_facts(DecisionRules(), found, SourceType.DOCUMENTATION) == (Kind.REFERENCE, ended)
        assert kind_and_facts(OFF, found, SourceType.PBI) == (Kind.WORK, {})

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
            ("Under review", "proposed"),
            ("Agreed", "accepted"),
            ("Implementing", "implementing"),
            ("Implemented in 2.1", "implemented"),
            ("Withdrawn", "rejected"),
            ("Abandoned", "rejected"),
            ("Obsolete", "deprecated"),
            ("Umgesetzt", "implemented"),
            ("Approuvée", "accepted"),
            ("✅ Accepted", "accepted"),
            ("~~Proposed~~ Accepted", "accepted"),
            ("<!-- proposed | accepted -->\nRejected", "rejected"),
            ("- [ ] Proposed\n- [x] Accepted\n- [ ] Rejected", "accepted"),
            ("Proposed → Accepted → Deprecated", "deprecated"),
            ("Proposed, not yet accepted", "proposed"),
            ("Not accepted", ""),
            ("It will be implemented in spring.", ""),
            ("Accepted, partially superseded by ADR-9", "accepted"),
            ("![status](https://badges.example/badge/status-in%20review-blue)", "proposed"),
            ("Unclear", ""),
            ("", ""),
        ],
    )
    def test_the_section_tells(self, section: str, expected: str) -> None:
        text = f"# T\n\n## Context\n\nRejected ideas.\n\n## Status\n\n{section}\n\n## Decision\n\nDeprecated stays."

        assert facts(text).get("decision_status", "") == expected

    @pytest.mark.parametrize(
        "head",
        [
            "Status: accepted",
            "* Status: accepted",
            "- **Status**: Accepted",
            "**Status:** accepted",
            "> Status: Accepted",
            "**Date:** 2024-01-02 | **Status:** accepted",
            "| Status | Accepted |",
            "| | |\n|---|---|\n| **Status** | Accepted on 2024-01-02 |",
            "| Field | Value |\n|---|---|\n| Status | `Accepted` |",
            "| Status | Accepted |\n|---|---|\n| Scope | All |",
            "| Version | Status | Author |\n|---|---|---|\n| 1 | Accepted | Ann |",
            "<table>\n<tr><th>Status</th>\n<td><b>Accepted</b></td></tr></table>",
            "![status](https://badges.example/badge/status-accepted-green)",
            "![](https://badges.example/badge/ADR%20Status-Accepted-green.svg?style=flat)",
            '<img src="green.svg" alt="Status: accepted">',
        ],
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
            ("Superseded by ADR-007 on 2025-01-01", "ADR-007"),
            ("Ersetzt durch ADR-007", "ADR-007"),
            ("![](https://badges.example/badge/status-superseded_by_ADR--007-red)", "ADR-007"),
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

    @pytest.mark.parametrize(
        ("value", "expected"), [("[ADR-007](7.md)", "ADR-007"), ("N/A", ""), ("none", ""), ("", "")]
    )
    def test_a_successor_in_a_table(self, value: str, expected: str) -> None:
        found = facts(f"# T\n\n| Status | Accepted |\n| Superseded by: | {value} |\n| Supersedes | ADR-001 |")

        assert found.get("superseded_by", "") == expected
        assert found["decision_status"] == ("superseded" if expected else "accepted")

    def test_what_is_no_head_does_not_tell(self) -> None:
        body = "\n\n## Options\n\nStatus: rejected\n\n| Status | Rejected |\n\n### Status\n\nReplaced by nothing."
        assert facts("# T\n\n## Status\n\nAccepted" + body) == {"decision_status": "accepted"}
        assert facts("# T\n\n```\nStatus: accepted\n```\n") == {}

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
            ("# T\n\n| Date | Oct 4, 2023 |\n", {}, "2023-10-04"),
            ("# T\n\n| Date | insert date |\n", {}, ""),
            ("# T\n\n**Decision date**: 11-April-2023\n", {}, "2023-04-11"),
            ("# T\n\n## Date\n\n16. März 2024\n", {}, "2024-03-16"),
        ],
    )
    def test_the_day_is_the_one_of_the_decision(self, text: str, front: dict[str, Any], day: str) -> None:
        assert facts(text, **front).get("decided_at", "") == day

    def test_nothing_said_is_nothing_known(self) -> None:
        assert facts("# T\n\ntext") == {}


class TestDeciders:
    @pytest.mark.parametrize(
        ("text", "front", "names"),
        [
            ("# T\n\n* Deciders: Ann Lee, @bob\n", {}, "Ann Lee, @bob"),
            ("# T\n\n* Deciders:\n  * Ann\n  * Bob\n", {}, "Ann, Bob"),
            ("# T\n\n| Decision makers | [Ann](@ann) and Bob |\n| Author | Cy |\n", {}, "Ann, Bob"),
            ("# T\n\n| Authors | Ann Lee - ann@firm.example |\n", {}, "Ann Lee"),
            ("# T\n\n**Approver:** Ann <ann@firm.example>; Bob\n", {}, "Ann, Bob"),
            ("# T\n\n* Deciders: ann@firm.example\n* Owner: Bob\n", {}, "Bob"),
            (
                "# T\n\n| Authors | Ann Lee <[a@b.example](mailto:a@b.example)> Bo Ek <[c@d.example](mailto:c@d.example)>, Cy |",
                {},
                "Ann Lee, Bo Ek, Cy",
            ),
            ("# T\n\n* Deciders: [list everyone who decides]\n", {}, ""),
            ("# T\n\n* Deciders: N/A\n", {}, ""),
            ("# T\n\n## Deciders\n\n- Ann\n- Bob\n", {}, "Ann, Bob"),
            ("# T\n\n## Owner\n\nWhoever has the pager of the team that runs it this week.\n", {}, ""),
            ("# T", {"decision-makers": ["Ann", "Bob"], "author": "Cy"}, "Ann, Bob"),
            ("# T", {"decision_makers": "Ann; Bob"}, "Ann, Bob"),
            ("# T", {"author": "Cy"}, "Cy"),
        ],
    )
    def test_who_decided_is_told_by_name(self, text: str, front: dict[str, Any], names: str) -> None:
        assert facts(text, **front).get("deciders", "") == names


@pytest.mark.parametrize(
    "piece",
    [
        "| ",
        "\n",
        " ",
        "<tr ",
        "~",
        "<!--",
        "Status: ",
        "a@",
        "[",
        "*",
        "not ",
        "in ",
        "by ",
        "accepted, ",
        "superseded by ",
    ],
)
def test_hostile_heads_cost_linear_time(piece: str) -> None:
    def read(text: str) -> None:
        for head in (f"# T\n\n{text}x", f"# T\n\n## Status\n{text}x"):
            found = evidence(head, "adr/0001-x.md", {"status": text + "x", "date": text + "x"})
            kind_and_facts(DecisionRules(), found, SourceType.TEXT)

    assert_linear(lambda size: piece * (size // len(piece)), 400_000, read)


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("# [RFC] Use one clock", "[RFC] Use one clock"),
        ("# `fill(value[, offset[, end]])`", "fill(value[, offset[, end]])"),
        ("# See [the **pilot**](http://x) and [tides][1]", "See the pilot and tides"),
    ],
)
def test_a_title_keeps_brackets_that_are_no_links(line: str, title: str) -> None:
    assert title_of([*headings_of(line)]) == title
