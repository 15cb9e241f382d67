"""`larder sources check`: which of many things is wrong, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from pipeline.documents import Finding
from pipeline.errors import LarderError, SourceUnavailable
from tests.connectors.azure_devops.world import PAT, options_for, source_for
from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.server import Fault


def bad(findings: list[Finding]) -> list[Finding]:
    return [f for f in findings if not f.ok]


@pytest.mark.req("001-054")
def test_a_good_source_shows_its_numbers(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 7)
    fake.bulk("Other", 1)

    findings = source_for(fake, projects=("Web", "Other"), max_items=5).check()

    assert bad(findings) == []
    text = " ".join(f.detail for f in findings)
    assert "7 match the selection; maxItems takes the newest 5" in text
    assert "1 matches the selection" in text
    assert fake.url in text


def _expired(fake: FakeAzureDevOps) -> None:
    fake.token = "expired"


def _unscoped(fake: FakeAzureDevOps) -> None:
    fake.token = "unscoped"


def _sign_in(fake: FakeAzureDevOps) -> None:
    fake.sign_in_html = True


def _nothing(fake: FakeAzureDevOps) -> None:
    pass


WRONG: dict[str, tuple[Callable[[FakeAzureDevOps], None], dict[str, Any], str, str]] = {
    "wrong token": (_nothing, {"pat": "other"}, "401", "token"),
    "expired token": (_expired, {}, "401", "token"),
    "token without scope": (_unscoped, {}, "401", "token"),
    "sign-in page": (_sign_in, {}, "sign-in page", "token"),
    "unknown project": (_nothing, {"projects": ("Wbe",)}, "project", "project"),
    "hidden project": (lambda fake: fake.hide_project("Web"), {}, "project", "member"),
    "unknown type": (
        _nothing,
        {"work_item_types": ("Stroy", "Bug")},
        "no such work item type",
        "choose among",
    ),
    "broken wiql": (_nothing, {"wiql": "[System.Title] ="}, "does not accept the query", "wiql"),
    "unknown field in wiql": (_nothing, {"wiql": "[Custom.Nope] = 1"}, "TF51005", "wiql"),
    "bare field in wiql": (_nothing, {"wiql": "Title = 'x'"}, "does not accept the query", "wiql"),
    "unknown area": (_nothing, {"area_paths": ("Web\\Nope",)}, "does not accept the query", "areaPaths"),
    "nothing matches": (_nothing, {"states": ("Nope",)}, "nothing matches", "states"),
    "unreadable items": (lambda fake: fake.forbid(1), {}, "cannot be read", "Work Items (read)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_mistake_is_named_with_what_to_do(fake: FakeAzureDevOps, case: str) -> None:
    spoil, changes, found, fix = WRONG[case]
    fake.add_item("Web", "Bug", "secret title")
    spoil(fake)

    findings = bad(source_for(fake, **changes).check())

    assert len(findings) == 1, findings
    assert found.lower() in findings[0].detail.lower()
    assert fix.lower() in findings[0].fix.lower()
    assert PAT not in repr(findings)
    assert "secret title" not in repr(findings)


def test_a_wrong_organization_is_told(services: FakeAzureDevOps) -> None:
    findings = bad(source_for(services, organization=f"{services.address}/nobody").check())

    assert len(findings) == 1
    assert "organization" in findings[0].fix


def test_a_web_page_in_the_place_of_the_service_is_told(services: FakeAzureDevOps) -> None:
    page = "<html><body>Welcome to our shop</body></html>"
    services.faults.next(Fault.status(200, body=page, content_type="text/html"), times=None)

    findings = bad(source_for(services).check())

    assert len(findings) == 1
    assert "organization" in findings[0].fix


def test_one_wrong_project_does_not_hide_the_others(services: FakeAzureDevOps) -> None:
    services.bulk("Other", 2)

    findings = source_for(services, projects=("Nope", "Other")).check()

    assert [f.subject for f in bad(findings)] == ["project Nope"]
    assert any("2 match" in f.detail for f in findings)


def test_a_service_out_of_reach_is_an_error_that_will_pass(services: FakeAzureDevOps) -> None:
    source = source_for(services)
    services.stop()

    for attempt in (
        source.check,
        source.ids,
        lambda: list(source.pages(None)),
        lambda: list(source.read(["1"])),
    ):
        with pytest.raises(SourceUnavailable) as caught:
            attempt()
        assert caught.value.fix
    assert source.stamp() is None


def test_mistakes_in_the_settings_are_refused_at_once(services: FakeAzureDevOps) -> None:
    wrong: tuple[tuple[str, Any], ...] = (
        ("projects", ()),
        ("projects", (" ",)),
        ("maxItems", 0),
        ("wiql", " Select [System.Id] FROM WorkItems"),
        ("organization", "https://me@example.com/x"),
    )
    for key, value in wrong:
        with pytest.raises(ValidationError, match=key):
            options_for(services, **{key: value})


def test_no_token_is_a_mistake_in_the_settings(services: FakeAzureDevOps) -> None:
    with pytest.raises(LarderError) as caught:
        source_for(services, pat=" ").ids()

    assert "auth.pat" in caught.value.fix
    assert services.log == []
