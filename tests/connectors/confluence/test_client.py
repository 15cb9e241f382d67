"""The traps of the client library, each shown to be there and to be avoided."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from atlassian.confluence import ConfluenceServer

from connectors.confluence.client import ConfluenceClient
from pipeline.errors import ConfigurationError, RateLimited, SourceUnavailable
from tests.connectors.confluence.world import Store, confluence_world, options_for, source_for, truth
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault


def _plain(fake: FakeConfluence) -> Any:
    name, secret = fake.basic
    library: Any = ConfluenceServer
    return library(fake.base, cloud=fake.cloud, username=name, password=secret)


def test_the_library_reads_html_as_text_and_we_do_not(fake: FakeConfluence) -> None:
    fake.faults.next(Fault.truncated())
    assert isinstance(_plain(fake).get("rest/api/user/current"), str)
    fake.faults.next(Fault.truncated())

    with pytest.raises(SourceUnavailable):
        _ = ConfluenceClient(options_for(fake)).deployment


def test_the_library_reads_an_empty_answer_as_nothing_and_we_do_not(fake: FakeConfluence) -> None:
    empty = Fault.status(200, body="", content_type="application/json")
    fake.faults.next(empty)
    assert _plain(fake).get("rest/api/user/current") is None
    fake.faults.next(empty)

    with pytest.raises(SourceUnavailable):
        _ = ConfluenceClient(options_for(fake)).deployment


def test_nothing_sleeps_or_is_asked_again_inside_a_call(fake: FakeConfluence) -> None:
    for status in (429, 503, 500, 413):
        fake.faults.clear()
        fake.faults.next(Fault.status(status, headers={"Retry-After": "300"}), times=None)
        before, started = len(fake.log), time.monotonic()
        with pytest.raises(Exception, match=str(status)) as caught:
            _ = ConfluenceClient(options_for(fake)).deployment
        assert time.monotonic() - started < 60
        assert len(fake.log) - before == 1
        if status == 429:
            assert isinstance(caught.value, RateLimited)


@pytest.mark.parametrize("kind", ["cloud", "server", "server-context"])
def test_every_request_stays_below_the_context_and_second_pages_come(kind: str) -> None:
    with confluence_world(kind) as world:
        store = Store()
        store.sync(world.source())
        world.source().ids()

        fake = world.fake
        assert all(seen.path.startswith(f"{fake.context}/") for seen in fake.log)
        assert {seen.status for seen in fake.log} == {200}
        assert store.seen() == truth(fake)


def test_cloud_is_asked_for_nothing_that_is_gone() -> None:
    with confluence_world("cloud") as world:
        fake = world.fake
        store = Store()
        fake.trash("65545")
        store.sync(world.source())
        world.source().ids()
        world.source().check()
        store.take(world.source().read(["65545", "65548", "att1"]), cursors=False)

        v1 = {seen.path.removeprefix("/wiki/rest/api/") for seen in fake.log if "/rest/api/" in seen.path}
        assert v1 <= {"content/search", "search", "user/current"}
        assert 410 not in {seen.status for seen in fake.log}
        assert not any("start" in seen.query and "cursor" not in seen.query for seen in fake.log)


def test_cursors_go_back_as_they_came(cloud: FakeConfluence) -> None:
    for n in range(450):
        cloud.add_page("ENG", f"Page {n}", "<p>x</p>")
    given: list[str] = []
    plain = cloud.answer

    def noting(seen: object) -> object:
        answer = plain(seen)  # type: ignore[arg-type]
        if isinstance(answer.json, dict) and (link := answer.json.get("_links", {}).get("next")):
            given.append(parse_qs(urlsplit(link).query)["cursor"][0])
        return answer

    cloud.answer = noting  # type: ignore[method-assign, assignment]
    source_for(cloud).ids()

    sent = [seen.first("cursor") for seen in cloud.log if "cursor" in seen.query]
    assert sent == given
    assert all(set("+/") & set(cursor) for cursor in sent)


def test_a_link_that_ends_with_a_slash_keeps_it(cloud: FakeConfluence) -> None:
    client = ConfluenceClient(options_for(cloud))
    _ = client.deployment

    with pytest.raises(Exception, match="404"):
        client.follow(f"{cloud.base}/rest/api/nothing?cursor=ab/")

    assert cloud.log[-1].first("cursor") == "ab/"


def test_names_and_tokens_may_hold_any_letter(server: FakeConfluence) -> None:
    server.account, server.password = "jürgen", "pässwörd€"
    options = options_for(server, token=None, username="jürgen", api_token="pässwörd€")

    assert ConfluenceClient(options).deployment.base == server.base


def test_a_token_with_a_line_break_is_said_to_be_wrong(server: FakeConfluence) -> None:
    with pytest.raises(ConfigurationError) as caught:
        _ = ConfluenceClient(options_for(server, token="to\nken")).deployment

    assert "to\nken" not in str(caught.value)
