"""`larder sources check` tells what is wrong, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from connectors.confluence.options import ConfluenceOptions
from connectors.sections import secret_value
from pipeline.documents import Finding
from pipeline.errors import LarderError
from tests.connectors.confluence.world import confluence, options_for, source_for
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Answer, Fault, ScriptedServer


def _problems(fake: FakeConfluence, **changes: Any) -> list[Finding]:
    found = [f for f in source_for(fake, **changes).check() if not f.ok]
    assert all(f.fix and f.detail and f.subject for f in found)
    assert not any(fake.token in str(f) for f in found)
    return found


def test_all_well_says_who_answers_with_how_many_spaces_and_pages(fake: FakeConfluence) -> None:
    for n in range(3):
        fake.add_page("ENG", f"Page {n}")
    fake.add_page("OPS", "Page")

    found = source_for(fake, space_keys=()).check()

    assert all(f.ok for f in found)
    said = " ".join(f.detail for f in found)
    assert ("Cloud" in said) == fake.cloud
    assert "2 spaces" in said
    assert "4 pages" in said


def test_an_unknown_space_is_named(fake: FakeConfluence) -> None:
    fake.add_space("HID", visible=False)

    found = _problems(fake, space_keys=("ENG", "HID", "NONE"))

    assert [f.subject for f in found] == ["space HID", "space NONE"]
    assert all("spaceKeys" in f.fix for f in found)


def test_an_archived_space_is_named(fake: FakeConfluence) -> None:
    fake.add_space("OLD", archived=True)

    (found,) = _problems(fake, space_keys=("ENG", "OLD"))

    assert found.subject == "space OLD"
    assert "includeArchived" in found.fix


@pytest.mark.req("001-052")
def test_wrong_credentials_are_told_from_a_wrong_address(fake: FakeConfluence) -> None:
    options = options_for(fake)
    fake.token, fake.password = "another", "another"
    wrong = {"api_token": options.api_token, "token": options.token}

    (credentials,) = _problems(fake, **wrong)
    fake.token = secret_value(options.api_token or options.token)
    (address,) = _problems(
        fake, base_url=f"{fake.address}/elsewhere", deployment="cloud" if fake.cloud else "server"
    )

    assert "401" in credentials.detail
    assert "token" in credentials.fix
    assert "404" in address.detail
    assert "baseUrl" in address.fix


@pytest.mark.parametrize("code", [200, 203])
def test_a_sign_in_page_is_told(fake: FakeConfluence, code: int) -> None:
    fake.faults.next(Fault.html(code), times=None)

    (found,) = _problems(fake)

    assert "sign-in page" in found.detail


def test_a_web_page_that_is_no_api_is_told() -> None:
    page = "<html><head><title>Welcome</title></head><body>Our shop</body></html>"
    with (
        ScriptedServer(lambda _: Answer(body=page, content_type="text/html")) as notes,
        confluence("server") as fake,
    ):
        options = options_for(fake, base_url=notes.address)
        access = type(options.access)(base_url=notes.address, product="Confluence")

        (found,) = _problems(fake, base_url=notes.address, access=access)

    assert "web page" in found.detail
    assert "baseUrl" in found.fix


def test_missing_credentials_on_cloud_are_a_missing_permission(cloud: FakeConfluence) -> None:
    (found,) = _problems(cloud, username=None, api_token=None)

    assert "403" in found.detail
    assert "apiToken" in found.fix


def test_cloud_that_is_called_a_server_is_told(cloud: FakeConfluence) -> None:
    (found,) = _problems(cloud, deployment="server")

    assert "Cloud answers" in found.detail
    assert "set deployment to cloud" in found.fix


def test_a_server_below_wiki_that_is_called_cloud_is_told() -> None:
    with confluence("server") as fake:
        fake.context = "/wiki"
        fake._rendering.context = "/wiki"
        fake.add_space("ENG")

        (found,) = _problems(fake, deployment="cloud")

    assert "set deployment to server" in found.fix


def test_permission_to_see_no_space_at_all_is_told(fake: FakeConfluence) -> None:
    for space in fake.spaces.values():
        space.visible = False

    (found,) = _problems(fake, space_keys=())

    assert "permission" in found.fix


def test_a_server_that_takes_us_for_an_anonymous_visitor_is_told(server: FakeConfluence) -> None:
    body = '{"type": "anonymous", "displayName": "Anonymous"}'
    server.faults.next(Fault.status(200, body=body, content_type="application/json"), times=None)

    (found,) = _problems(server)

    assert "anonymous" in found.detail


def test_a_cap_that_leaves_pages_out_is_said(fake: FakeConfluence) -> None:
    for n in range(3):
        fake.add_page("ENG", f"Page {n}")

    said = " ".join(f.detail for f in source_for(fake, max_pages=2).check())

    assert "maxPages" in said


def test_out_of_reach_is_an_error_of_ours_that_passes(fake: FakeConfluence) -> None:
    source = source_for(fake)
    fake.stop()

    for attempt in (
        source.check,
        source.ids,
        lambda: list(source.pages(None)),
        lambda: list(source.read(["1"])),
    ):
        with pytest.raises(LarderError) as caught:
            attempt()
        assert caught.value.transient
        assert caught.value.fix


@pytest.mark.parametrize("given", ["with", "without", "slash"])
def test_the_address_of_cloud_may_come_with_or_without_its_context(cloud: FakeConfluence, given: str) -> None:
    page = cloud.add_page("ENG", "Page", "<p>x</p>")
    base = {"with": cloud.base, "without": cloud.address, "slash": f"{cloud.base}/"}[given]

    for deployment in ("auto", "cloud"):
        source = source_for(cloud, base_url=base, deployment=deployment)
        assert source.ids().ids == {page}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"deployment": "datacenter"}, "deployment"),
        ({"max_pages": 0}, "max_pages"),
        ({"page_size": 0}, "page_size"),
        ({"username": "me@example.org", "api_token": None}, "apiToken"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(cloud: FakeConfluence, changes: Any, word: str) -> None:
    with pytest.raises(ValidationError, match=word) as caught:
        options_for(cloud, **changes)

    assert cloud.token not in str(caught.value)


def test_options_keep_secrets_out_of_their_text(fake: FakeConfluence) -> None:
    options: ConfluenceOptions = options_for(fake)

    assert fake.token not in repr(options)
    assert fake.token not in options.selection_hash
