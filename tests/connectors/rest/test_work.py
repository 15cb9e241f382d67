"""Issues of Jira and GitHub as Step 4 reads them: what it knows of a work item of Azure DevOps it knows of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from connectors import ProtectedSource
from pipeline.documents import Document, Kind
from pipeline.search.records import StoredDocument, outdated, repeats, validity_note
from tests.connectors.azure_devops import world as boards
from tests.connectors.rest.world import at, source_for
from tests.connectors.worlds import SourceStore
from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.rest_service import FakeGitHub, FakeGitLab, FakeJira
from tests.fakes.server import Fault

MOMENT = "2025-03-04T10:00:00+00:00"
DUPLICATES = {"name": "Duplicate", "inward": "is duplicated by", "outward": "duplicates"}
CLOSED = {"name": "Closed", "statusCategory": {"key": "done"}}
EFFORT = {"story_points", "estimated_hours", "actual_hours"}
COMMON = {"work_item_type", "assigned_to", "created_by", "parent_id", "resolution", "closed_at"}
"""Metadata of a work item of Azure DevOps that Step 4, filters or readers use."""


def document(source: ProtectedSource, number: str) -> Document:
    store = SourceStore()
    store.take(source.read([number]))
    assert store.failed == []
    return store.documents[number]


def verdict(document: Document) -> tuple[Kind, bool, bool, str | None]:
    """What Step 4 makes of a document: its kind, whether it repeats another or is outdated, and the note on it."""
    stored = StoredDocument(
        id=uuid4(),
        version=1,
        title=document.title,
        source_type=document.source_type,
        kind=document.kind,
        metadata=document.metadata,
    )
    return document.kind, repeats(stored), bool(outdated(stored)), validity_note(stored)


@pytest.fixture
def azure() -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(pat=boards.PAT) as fake:
        fake.add_project("Web")
        yield fake


@pytest.fixture
def jira() -> Iterator[FakeJira]:
    with FakeJira() as fake:
        yield fake


@pytest.fixture
def github() -> Iterator[FakeGitHub]:
    with FakeGitHub() as fake:
        yield fake


def of_jira(fake: FakeJira, number: str) -> Document:
    return document(source_for(fake, preset="jira"), number)


def of_github(fake: FakeGitHub, number: str) -> Document:
    return document(source_for(fake, preset="github", values={"repo": "example/shop"}), number)


def of_azure(fake: FakeAzureDevOps, **fields: Any) -> Document:
    number = fake.add_item("Web", "Bug", "Gate jams")
    fake.edit(number, **fields)
    return document(boards.source_for(fake), str(number))


def test_an_issue_of_jira_has_what_a_work_item_has(jira: FakeJira) -> None:
    person = {"displayName": "Ann Lee"}
    key = jira.add(
        status=CLOSED, resolution={"name": "Fixed"}, resolutiondate=MOMENT, statuscategorychangedate=MOMENT,
        assignee=person, reporter=person, parent={"key": "SHOP-3"}, priority={"name": "High"},
        customfield_10016=5, timeoriginalestimate=7200, timespent=10800,
    )  # fmt: skip
    metadata = of_jira(jira, key).metadata
    assert COMMON | EFFORT | {"priority", "resolved_at"} <= metadata.keys()
    assert (metadata["story_points"], metadata["estimated_hours"], metadata["actual_hours"]) == (5, 2, 3)
    assert (metadata["parent_id"], metadata["closed_at"]) == ("SHOP-3", MOMENT)
    assert "started_at" not in metadata


def test_an_issue_of_github_has_what_it_can_have(github: FakeGitHub) -> None:
    here = f"{github.address}/repos/example/shop"
    number = github.add(
        state="closed", state_reason="completed", closed_at=MOMENT, assignees=[{"login": "bob"}],
        repository_url=here, parent_issue_url=f"{here}/issues/3",
    )  # fmt: skip
    metadata = of_github(github, number).metadata
    assert metadata.keys() >= COMMON
    assert metadata["parent_id"] == "3"
    github.edit(number, parent_issue_url=f"{github.address}/repos/example/shop-floor/issues/3")
    assert "parent_id" not in of_github(github, number).metadata, "a number of another repository"


def test_duplicates_are_known_alike(azure: FakeAzureDevOps, jira: FakeJira, github: FakeGitHub) -> None:
    link = {"type": DUPLICATES, "outwardIssue": {"key": "SHOP-9", "fields": {"summary": "Gate"}}}
    translated = {**link, "type": {**DUPLICATES, "name": "Doppelt"}}
    for link_as_named in (link, translated):
        issue = of_jira(
            jira, jira.add(status=CLOSED, resolution={"name": "Done"}, issuelinks=[link_as_named])
        )
        assert verdict(issue) == (Kind.WORK, True, False, "closed as duplicate of SHOP-9")
    theirs = {**link, "inwardIssue": link["outwardIssue"], "outwardIssue": None}
    assert verdict(of_jira(jira, jira.add(issuelinks=[theirs])))[1] is False, "SHOP-9 repeats this one"
    expected = verdict(of_azure(azure, state="Closed", reason="Duplicate"))
    assert expected == (Kind.WORK, True, False, "closed as a duplicate")
    assert verdict(of_jira(jira, jira.add(status=CLOSED, resolution={"name": "Duplicate"}))) == expected
    assert verdict(of_github(github, github.add(state="closed", state_reason="duplicate"))) == expected


def test_work_that_was_given_up_is_known_alike(
    azure: FakeAzureDevOps, jira: FakeJira, github: FakeGitHub
) -> None:
    expected = verdict(of_azure(azure, state="Closed", reason="Won't fix"))
    assert expected == (Kind.WORK, False, True, "closed without being done")
    for resolution in ("Won't Do", "Won't Fix"):
        assert verdict(of_jira(jira, jira.add(status=CLOSED, resolution={"name": resolution}))) == expected
    assert verdict(of_github(github, github.add(state="closed", state_reason="not_planned"))) == expected


def test_open_and_finished_work_is_neither(jira: FakeJira, github: FakeGitHub) -> None:
    nothing = (Kind.WORK, False, False, None)
    assert verdict(of_jira(jira, jira.add())) == nothing
    assert verdict(of_jira(jira, jira.add(status=CLOSED, resolution={"name": "Done"}))) == nothing
    assert verdict(of_github(github, github.add())) == nothing
    merged: dict[str, Any] = {"pull_request": {"merged_at": MOMENT}, "state": "closed"}
    assert verdict(of_github(github, github.add(**merged))) == nothing


def test_work_that_has_begun_has_its_time(jira: FakeJira) -> None:
    status = {"name": "With the bank", "statusCategory": {"key": "indeterminate"}}
    metadata = of_jira(jira, jira.add(status=status, statuscategorychangedate=MOMENT)).metadata
    assert metadata["started_at"] == MOMENT
    assert "closed_at" not in metadata


@pytest.mark.parametrize(
    ("sprints", "name"),
    [
        ([{"name": "Sprint 7"}, {"name": "Sprint 8"}], "Sprint 8"),
        (["com.x.Sprint@1f[id=1,name=Old]", "com.x.Sprint@1f[id=8,state=CLOSED,name=Sprint 8, berths,startDate=<null>]"], "Sprint 8, berths"),
        (["com.x.Sprint@1f[id=8,name=Sprint 8]"], "Sprint 8"),
        ([], None),
    ],
)  # fmt: skip
def test_the_last_sprint_is_named_however_it_is_shown(sprints: list[Any], name: str | None) -> None:
    with FakeJira(cloud=False) as fake:
        key = fake.add(customfield_10104=sprints, customfield_10101="SHOP-3")
        values = {"epic": "customfield_10101"}
        metadata = document(source_for(fake, preset="jira_datacenter", values=values), key).metadata
        assert metadata.get("sprint") == name
        assert metadata["parent_id"] == "SHOP-3"


def test_a_duplicate_of_gitlab_names_its_master_in_the_same_project() -> None:
    with FakeGitLab() as fake:
        links = {"project": "https://x.example/api/v4/projects/5"}

        def duplicate_of(address: str | None) -> Any:
            number = fake.add(_links={**links, "closed_as_duplicate_of": address})
            source = source_for(fake, preset="gitlab", values={"project": "example/shop"})
            return document(source, number).metadata.get("duplicate_of")

        assert duplicate_of("https://x.example/api/v4/projects/5/issues/4") == "4"
        assert duplicate_of("https://x.example/api/v4/projects/55/issues/4") is None
        assert duplicate_of(None) is None


@pytest.mark.parametrize("repository", ["repositories/5", "repos/example/elsewhere"])
def test_an_issue_that_was_transferred_or_deleted_is_gone(github: FakeGitHub, repository: str) -> None:
    moved, deleted = github.add(), github.add()
    for number, fault in (
        (moved, Fault.redirect(f"{github.address}/{repository}/issues/9", code=301)),
        (deleted, Fault.status(410, body='{"message": "This issue was deleted"}', content_type="application/json")),
    ):  # fmt: skip
        github.faults.next(fault, when=at(f"/repos/example/shop/issues/{number}"), times=None)
    store = SourceStore()
    store.take(source_for(github, preset="github", values={"repo": "example/shop"}).read([moved, deleted]))
    assert (store.deleted, store.failed) == ([moved, deleted], [])
