"""What a work item looks like as a document."""

from __future__ import annotations

import re
from typing import Any

import pytest

from connectors.azure_devops.document import (
    PARENT,
    Relation,
    WorkItem,
    document_of,
    heading_of,
    whole_number,
)
from connectors.documents.headings import nested
from connectors.documents.options import DecisionRules
from pipeline.documents import Document, Kind, SourceType
from tests.connectors.azure_devops.world import Store, options_for, source_for
from tests.fakes.azure_devops import FakeAzureDevOps

CRITERIA = "Microsoft.VSTS.Common.AcceptanceCriteria"


def read(fake: FakeAzureDevOps, item: int, **changes: Any) -> Document:
    store = Store()
    store.take(source_for(fake, **changes).read([str(item)]))
    assert store.failed == []
    return store.documents[str(item)]


@pytest.mark.req("001-056", "001-057")
def test_fields_become_sections_and_metadata(fake: FakeAzureDevOps) -> None:
    fake.add_area("Web", "Team A")
    item = fake.add_item(
        "Web", "User Story", "Pay by card",
        description="<div>As a buyer</div><div>I&nbsp;pay</div>",
        acceptance_criteria="<ul><li>Visa</li><li>Master</li></ul>",
        tags=["pay", "card"], area="Team A", assigned_to="Ada L <ada@acme.example>", created_by="Bob <b@x>", priority=1,
    )  # fmt: skip
    fake.advance(days=2)
    fake.set_state(item, "Closed", "Completed")

    document = read(fake, item, metadata={"category": "work_items", "state": "fixed one"})

    assert document.title == "Pay by card"
    assert document.text.split("\n\n## ")[:2] == [
        "## Description\n\nAs a buyer\nI pay",
        "Acceptance criteria\n\n- Visa\n- Master",
    ]
    assert document.tags == ("pay", "card")
    assert document.kind is Kind.WORK
    assert document.source_type is SourceType.AZURE_DEVOPS
    assert document.created_at is not None
    assert document.created_at.isoformat().startswith("2025-03-04T09:30:00.137")
    assert document.updated_at is not None
    assert document.updated_at.date().isoformat() == "2025-03-06"
    assert document.url.startswith(fake.url + "/")
    assert document.url.endswith(f"/_workitems/edit/{item}")
    assert "_apis" not in document.url
    facts = dict(document.metadata)
    assert facts.pop("closed_at").startswith("2025-03-06T")
    assert facts == {
        "category": "work_items", "source_path": document.url, "rev": 2, "work_item_type": "User Story",
        "state": "Closed", "reason": "Completed", "area": "Web\\Team A", "iteration": "Web",
        "assigned_to": "Ada L", "created_by": "Bob", "project": "Web", "priority": 1,
    }  # fmt: skip


def test_steps_to_reproduce_are_read_though_not_configured(services: FakeAzureDevOps) -> None:
    bug = services.add_item("Web", "Bug", "Crash", repro_steps="<p>Click twice</p>")

    assert "## Steps to reproduce\n\nClick twice" in read(services, bug).text


def test_markdown_fields_are_left_as_they_are_and_html_ones_are_converted(services: FakeAzureDevOps) -> None:
    text = "# Head\n\n1 < 2 && `a<b>c`\n\n```\n# no heading\n```"
    item = services.add_item(
        "Web",
        "Task",
        "x",
        description=text,
        acceptance_criteria="<b>bold</b>",
        markdown=["System.Description"],
    )

    document = read(services, item)

    assert "### Head\n\n1 < 2 && `a<b>c`\n\n```\n# no heading\n```" in document.text
    assert "**bold**" in document.text


def test_any_configured_field_is_read_with_a_heading_people_understand(services: FakeAzureDevOps) -> None:
    services.add_field("Custom.RiskAssessment", "html")
    services.add_field("Custom.Plain")
    item = services.add_item(
        "Web", "Task", "x", story_points=5,
        **{"Custom.RiskAssessment": "<div>High, &lt;very&gt;</div>", "Custom.Plain": "a < b and c > d"},
    )  # fmt: skip
    fields = (
        "Custom.RiskAssessment",
        "Custom.Plain",
        "Microsoft.VSTS.Scheduling.StoryPoints",
        "System.AssignedTo",
        "System.CreatedDate",
        "System.Nothing",
    )

    text = read(services, item, fields=fields).text

    assert "- Risk assessment: High, <very>" in text or "- Risk assessment: High, \\<very>" in text
    assert "- Plain: a < b and c > d" in text
    assert "- Story points: 5" in text
    assert "- Created date: 2025-03-04" in text
    assert "Assigned" not in text
    assert "Nothing" not in text


def test_an_item_without_any_text_still_says_what_it_is(services: FakeAzureDevOps) -> None:
    item = services.add_item("Web", "Task", "Only a title")

    document = read(services, item)

    assert document.text.startswith("## History\n\n- Created 2025-03-04 by Robo Writer\n- State New")


def test_links_show_titles_of_the_sources_projects_and_numbers_of_others(services: FakeAzureDevOps) -> None:
    parent = services.add_item("Web", "Feature", "The [big] one")
    item = services.add_item("Web", "Task", "x")
    child = services.add_item("Web", "Epic", "Of a type that is not read")
    foreign = services.add_item("Other", "Bug", "Not for these readers")
    services.link(item, foreign, "related")
    services.link(item, child, "child")
    services.link(item, parent, "parent")
    services.attach(item, "AttachedFile", f"{services.url}/_apis/wit/attachments/1", name="plan.docx")
    services.attach(item, "Hyperlink", "https://x.example/a?token=abc123secret&b=1", comment="wiki")
    services.attach(item, "ArtifactLink", "vstfs:///Git/Commit/17", name="Commit")

    document = read(services, item)

    lines = document.text.split("## Links\n\n")[1].split("\n\n")[0].split("\n")
    assert lines == [
        f"- Parent: [Feature {parent}: The (big) one]({services.url}/Web/_workitems/edit/{parent})",
        f"- Child: [Epic {child}: Of a type that is not read]({services.url}/Web/_workitems/edit/{child})",
        f"- Related: #{foreign}",
        "- Attachment: plan.docx",
        "- Hyperlink: wiki: <https://x.example/a?token=REDACTED&b=1>",
    ]
    assert document.metadata["parent_id"] == str(parent)
    assert "Links" not in read(services, item, include_links=False).text


def test_titles_of_linked_items_cost_one_request_for_a_whole_page(services: FakeAzureDevOps) -> None:
    parents = [services.add_item("Web", "Epic", f"Parent {n}") for n in range(50)]
    for parent in parents:
        services.link(services.add_item("Web", "Task", "x"), parent, "parent")

    list(source_for(services).pages(None))

    assert len([s for s in services.log if s.path.lower().endswith("workitemsbatch")]) == 2


def test_how_an_item_was_closed_is_told(services: FakeAzureDevOps) -> None:
    bug = services.add_item("Web", "Bug", "x", resolution="<p>Other cable</p>")
    services.advance(days=1)
    services.set_state(bug, "Resolved", "Fixed")
    services.advance(days=1)
    services.set_state(bug, "Closed", "Verified")

    document = read(services, bug)

    assert "## Resolution\n\nOther cable" in document.text
    history = document.text.split("## History\n\n")[1].split("\n")
    assert history == [
        "- Created 2025-03-04 by Robo Writer",
        "- Resolved 2025-03-05: Fixed",
        "- Closed 2025-03-06 by Robo Writer: Verified",
        "- State Closed (Verified) since 2025-03-06",
    ]
    assert document.metadata["resolution"] == "Fixed"


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"story_points": 13.0}, {"story_points": 13}),
        ({"effort": 8}, {"story_points": 8}),
        ({"size": 0.5, "remaining_work": 2}, {"story_points": 0.5, "remaining_hours": 2}),
        ({"original_estimate": 12, "completed_work": 20.5}, {"estimated_hours": 12, "actual_hours": 20.5}),
        ({"story_points": -1, "effort": 1e9, "size": 3, "completed_work": True}, {"story_points": 3}),
    ],
)
def test_efforts_are_metadata(
    services: FakeAzureDevOps, fields: dict[str, Any], facts: dict[str, Any]
) -> None:
    item = services.add_item("Web", "User Story", "x", **fields)

    found = read(services, item).metadata

    names = ("story_points", "estimated_hours", "actual_hours", "remaining_hours")
    assert {name: found[name] for name in names if name in found} == facts


def test_the_course_of_an_item_is_metadata_and_costs_no_request(services: FakeAzureDevOps) -> None:
    item = services.add_item("Web", "Bug", "x")
    for state in ("Active", "Resolved", "Closed"):
        services.advance(days=2)
        services.set_state(item, state, "Fixed")
    requests = len(services.log)

    found = read(services, item).metadata

    days = {name: found[name][:10] for name in ("started_at", "resolved_at", "closed_at")}
    assert days == {"started_at": "2025-03-06", "resolved_at": "2025-03-08", "closed_at": "2025-03-10"}
    assert not services.requests("/updates")
    assert not services.requests("/revisions")
    assert len(services.log) - requests <= 4


def test_a_copy_names_the_item_it_repeats_and_not_the_other_way(services: FakeAzureDevOps) -> None:
    master = services.add_item("Web", "Bug", "The first")
    copy = services.add_item("Web", "Bug", "The same again")
    services.link(copy, master, "duplicate of")
    services.set_state(copy, "Closed", "Duplicate")

    found = read(services, copy)

    assert found.metadata["duplicate_of"] == str(master)
    assert found.metadata["reason"] == "Duplicate"
    assert f"- Duplicate of: [Bug {master}: The first]" in found.text
    assert "duplicate_of" not in read(services, master).metadata
    assert f"- Duplicate: [Bug {copy}: The same again]" in read(services, master).text


def test_comments_come_oldest_first_all_of_them_without_deleted_ones(fake: FakeAzureDevOps) -> None:
    item = fake.add_item("Web", "Bug", "x")
    ids = [
        fake.comment(item, f"<div>number {n} <b>bold</b></div>", by=f"Person {n % 3} <p@x>")
        for n in range(205)
    ]
    fake.comment(item, "# Mark\n\n*down*", format="markdown")
    fake.delete_comment(item, ids[4])

    text = read(fake, item).text

    comments = re.split(r"(?m)^### ", text.split("## Comments\n\n")[1])[1:]
    assert len(comments) == 205
    assert comments[0] == "Person 0, 2025-03-04\n\nnumber 0 **bold**\n\n"
    assert "number 4 " not in text
    assert "#### Mark\n\n*down*" in text
    assert text.index("number 0 ") < text.index("number 203 ") < text.index("Mark")
    assert len(fake.requests("/comments")) == 2


def test_comments_cost_a_request_only_where_there_are_some(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 3)
    services.comment(2, "word")

    list(source_for(services).pages(None))
    list(source_for(services, include_comments=False).pages(None))

    assert [s.path.split("/")[-2] for s in services.requests("/comments")] == ["2"]


def test_secrets_in_addresses_never_reach_a_document(services: FakeAzureDevOps) -> None:
    secret = "https://user:hunter2@git.example/r?access_token=tok3n&x=1"
    item = services.add_item(
        "Web", "Bug", f"See {secret}", description=f"<a href='{secret}'>{secret}</a>", tags=[secret]
    )
    services.comment(item, f"**{secret}**", format="markdown")
    services.comment(item, f"<p>{secret}</p>")
    services.attach(item, "Hyperlink", secret)

    document = read(services, item)

    assert "hunter2" not in repr(document)
    assert "tok3n" not in repr(document)
    assert document.text.count("REDACTED") >= 4


@pytest.mark.parametrize(
    ("kind", "fields", "rules", "expected"),
    [
        ("Bug", {"tags": ["x", "ADR"]}, DecisionRules(), Kind.DECISION),
        ("Decision", {}, DecisionRules(), Kind.DECISION),
        ("Bug", {"tags": ["x"]}, DecisionRules(), Kind.WORK),
        ("Bug", {"tags": ["adr"]}, DecisionRules(tags=()), Kind.WORK),
        ("Issue", {}, DecisionRules(frontmatter_types=("issue",)), Kind.DECISION),
        (
            "Bug",
            {"description": "<h2>Decision</h2><p>x</p><h2>Status</h2><p>Accepted</p>"},
            DecisionRules(),
            Kind.WORK,
        ),
    ],
)
def test_decisions_are_known_by_type_and_tag(
    services: FakeAzureDevOps, kind: str, fields: dict[str, Any], rules: DecisionRules, expected: Kind
) -> None:
    item = services.add_item("Web", kind, "x", **fields)

    assert read(services, item, decisions=rules, work_item_types=()).kind is expected


def test_a_decision_tells_its_status_and_day(services: FakeAzureDevOps) -> None:
    item = services.add_item("Web", "Task", "Use PostgreSQL", tags=["decision"])
    services.set_state(item, "Closed", "Done")
    services.edit(item, state="Approved")

    document = read(services, item)

    assert document.metadata["decision_status"] == "accepted"
    assert document.metadata["decided_at"] == "2025-03-04"


def test_odd_values_do_no_harm(services: FakeAzureDevOps) -> None:
    item = services.add_item("Web", "Bug", "a\x00b \n c", description="x\x00y", tags=["a", "a", " ", "b"])
    services.edit(item, **{"Microsoft.VSTS.Common.ClosedDate": "9999-01-01T00:00:00Z"})

    document = read(services, item)

    assert "\x00" not in repr(document)
    assert document.title == "ab c"
    assert document.tags == ("a", "b")
    assert "closed_at" not in document.metadata
    assert "Closed" not in document.text


@pytest.mark.parametrize(
    ("name", "heading"),
    [
        ("Custom.RiskAssessment", "Risk assessment"),
        ("Custom.API_Version", "API version"),
        ("System.Description", "Description"),
        ("Microsoft.VSTS.TCM.SystemInfo", "System info"),
        ("Custom.", "Custom."),
    ],
)
def test_headings_are_made_of_field_names(name: str, heading: str) -> None:
    assert heading_of(name) == heading


def test_headings_inside_a_field_lie_below_its_own() -> None:
    assert nested("# a\n##### b\n```\n# c\n```\n#d\n # e", 2) == "### a\n###### b\n```\n# c\n```\n#d\n ### e"


@pytest.mark.parametrize(
    ("value", "number"),
    [(12, 12), (12.0, 12), ("12", 12), ("12.0", 12), (0, 0), (12.5, None), (True, None), (None, None), ("a", None), (-1, None), (1e300, None)],
)  # fmt: skip
def test_an_id_is_whole_however_it_is_written(value: Any, number: int | None) -> None:
    assert whole_number(value) == number


@pytest.mark.parametrize("end", ["12", "12.0", "12/", "12.0/"])
def test_a_link_leads_to_its_item_however_the_id_is_written(end: str) -> None:
    assert Relation(kind=PARENT, url=f"https://dock/_apis/wit/workItems/{end}", attributes={}).target == 12


def test_numbers_persons_and_dates_of_copied_items_are_read(fake: FakeAzureDevOps) -> None:
    names = ("Custom.Berths", "Custom.Owner", "Custom.Inspected", "Custom.IsOpen", "Custom.Notes")
    fields = dict(
        zip(
            names,
            (3.0, "Ann Lee <ann@dock.example>", "2024-03-04T00:00:00+01:00", True, "<p>Oil <b>it</b></p>"),
            strict=True,
        )
    )
    item = WorkItem(id=5, rev=1, fields=fields | {"System.AssignedTo": "Bo Ray <DOCK\\bo>"})
    document = document_of(item, options_for(fake, fields=names), {}, [])
    assert document.external_id == "5"
    assert document.metadata["assigned_to"] == "Bo Ray"
    for line in (
        "- Berths: 3",
        "- Owner: Ann Lee",
        "- Inspected: 2024-03-03",
        "- Is open: true",
        "- Notes: Oil **it**",
    ):
        assert line in document.text.split("\n")
