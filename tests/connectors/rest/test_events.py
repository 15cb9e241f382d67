"""Events of the services that presets read, in the shapes in which they send them: which records they name."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from connectors.rest.expressions import value_at
from connectors.rest.options import RestOptions
from connectors.rest.presets import preset, preset_names

SECRET = "a-secret-of-the-hook"
KEY_CHANGE = {"items": [{"field": "project", "toString": "Quay"}, {"field": "Key", "fromString": "SHOP-7", "toString": "QUAY-3"}]}  # fmt: skip
EVENTS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("jira", {"webhookEvent": "jira:issue_updated", "issue": {"id": "10007", "key": "SHOP-7"}}, ["SHOP-7"]),
    ("jira", {"webhookEvent": "comment_created", "comment": {"id": "5"}, "issue": {"key": "SHOP-7"}}, ["SHOP-7"]),
    ("jira", {"issue": {"key": "QUAY-3"}, "changelog": KEY_CHANGE}, ["QUAY-3", "SHOP-7"]),
    ("jira", {"webhookEvent": "sprint_started", "sprint": {"id": 8}}, []),
    ("jira_datacenter", {"webhookEvent": "jira:issue_deleted", "issue": {"key": "SHOP-7"}}, ["SHOP-7"]),
    ("jira_datacenter", {"ids": ["SHOP-7"]}, ["SHOP-7"]),
    ("github", {"action": "opened", "issue": {"number": 7, "id": 1}}, ["7"]),
    ("github", {"action": "created", "issue": {"number": 7}, "comment": {"id": 9}}, ["7"]),
    ("github", {"action": "closed", "number": 8, "pull_request": {"number": 8}}, ["8"]),
    ("github", {"zen": "Keep it simple.", "hook_id": 1}, []),
    ("github_discussions", {"action": "created", "discussion": {"number": 21, "node_id": "D_kw"}}, ["D_kw"]),
    ("gitlab_wiki", {"object_kind": "wiki_page", "object_attributes": {"slug": "locks/north"}}, ["locks/north"]),
    ("gitlab", {"object_kind": "issue", "object_attributes": {"id": 301, "iid": 23}}, ["23"]),
    ("gitlab", {"object_kind": "merge_request", "object_attributes": {"id": 99, "iid": 1}}, ["1"]),
    ("gitlab", {"object_kind": "note", "object_attributes": {"id": 5}, "issue": {"iid": 17}}, ["17"]),
    ("gitlab", {"object_kind": "note", "object_attributes": {"id": 5}, "merge_request": {"iid": 4}}, ["4"]),
    ("gitlab", {"object_kind": "note", "object_attributes": {"id": 5}, "snippet": {"id": 53}}, []),
    ("gitlab", {"object_kind": "pipeline", "object_attributes": {"id": 31, "iid": 3}}, []),
    ("linear", {"action": "update", "type": "Issue", "data": {"id": "u-u", "identifier": "ENG-12"}}, ["ENG-12"]),
    ("linear", {"type": "Comment", "data": {"id": "c", "issue": {"identifier": "ENG-12"}}}, ["ENG-12"]),
    ("linear", {"type": "Project", "data": {"id": "p"}}, []),
    ("notion", {"type": "page.content_updated", "entity": {"id": "59b8", "type": "page"}}, ["59b8"]),
    ("notion", {"source": {"type": "automation"}, "data": {"object": "page", "id": "59b8"}}, ["59b8"]),
    ("notion", {"type": "comment.created", "entity": {"id": "c1", "type": "comment"}}, []),
    ("redmine", {"type": "issue.updated", "data": {"issue": {"id": 42}, "journal": {"id": 7}}}, ["42"]),
    ("redmine", {"type": "wiki_page.updated", "data": {"wiki_page": {"title": "Wiki"}}}, []),
    ("servicenow", {"ids": ["9d385017"]}, ["9d385017"]),
    ("zendesk", {"ids": ["35436"]}, ["35436"]),
    ("gitea", {"action": "created", "issue": {"id": 904, "number": 4}, "is_pull": False}, ["4"]),
    ("gitea", {"action": "opened", "number": 5, "pull_request": {"id": 9, "number": 5}}, ["5"]),
    ("bitbucket", {"pullrequest": {"id": 3}, "comment": {"id": 17}}, ["3"]),
]  # fmt: skip


def options(name: str, **hook: Any) -> RestOptions:
    values = dict.fromkeys(preset(name).get("values") or {}, "x")
    section = {"name": "x", "preset": name, "values": values, "baseUrl": "https://x.example"}
    return RestOptions.model_validate({**section, "hook": {"secret": SECRET, **hook}})


@pytest.mark.parametrize(("name", "event", "ids"), EVENTS)
def test_an_event_names_records(name: str, event: dict[str, Any], ids: list[str]) -> None:
    assert options(name).hinted_ids(event) == ids


def test_every_preset_has_events_and_steps() -> None:
    assert {name for name, _, _ in EVENTS} == set(preset_names())
    for name in preset_names():
        assert options(name).event_steps
        assert options(name).event_steps != RestOptions.hook_steps, name


def test_without_a_secret_a_preset_takes_no_events() -> None:
    section = {"name": "x", "preset": "github", "values": {"repo": "a/b"}, "baseUrl": "https://x.example"}
    assert RestOptions.model_validate(section).hook is None


def test_expressions_of_a_section_of_its_own() -> None:
    section = {"name": "x", "baseUrl": "https://x.example", "list": {"path": "/tickets"}}
    hook = {"secret": SECRET, "ids": "join('-', [team, number])"}
    own = RestOptions.model_validate({**section, "hook": hook})
    assert own.hinted_ids({"team": "A", "number": "7", "ids": [3]}) == ["3", "A-7"]
    assert own.hinted_ids({"team": "A", "number": 7}) == [], "join takes texts alone"
    several = options("github", ids=["tickets[].id", "ticket"])
    assert several.hinted_ids({"tickets": [{"id": 1}, {"id": "2"}, {"id": None}], "ticket": True}) == [
        "1",
        "2",
    ]
    with pytest.raises(ValidationError, match=r"hook\.ids\.0"):
        options("github", ids=["tickets[.id"])


def test_a_discussion_of_another_repository_is_none_and_a_fault_is_no_deletion() -> None:
    values = {"owner": "example", "repo": "shop"}
    section = {"name": "x", "preset": "github_discussions", "values": values, "baseUrl": "https://x.example"}
    item = RestOptions.model_validate(section).item
    assert item is not None
    here = {"repository": {"id": "R_1"}, "node": {"id": "D_1", "repository": {"id": "R_1"}}}
    elsewhere = {"repository": {"id": "R_1"}, "node": {"id": "D_2", "repository": {"id": "R_2"}}}
    answers: list[tuple[dict[str, Any], bool, bool]] = [
        ({"data": here}, True, False),
        ({"data": elsewhere}, False, True),
        ({"data": {**here, "node": None}, "errors": [{"type": "NOT_FOUND"}]}, False, True),
        ({"data": {**here, "node": None}, "errors": [{"type": "INTERNAL"}]}, False, False),
        ({"data": {**here, "repository": None}, "errors": [{"type": "FORBIDDEN"}]}, False, False),
        ({"data": None, "errors": [{"type": "INTERNAL"}]}, False, False),
    ]
    for answer, is_there, is_gone in answers:
        assert isinstance(value_at(item.record, answer), dict) is is_there, answer
        assert bool(value_at(item.gone, answer)) is is_gone, answer
