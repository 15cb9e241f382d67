"""After every kind of fault the store equals the service, and nothing was deleted meanwhile."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from atlassian import errors as sdk_errors

from connectors.confluence.client import CATCH, ConfluenceClient, by_status
from connectors.web.limiter import LocalRequestLimiter
from connectors.web.session import Access
from pipeline.errors import LarderError, RateLimited, SourceDenied
from tests.connectors.confluence.world import Store, options_for, source_for, truth
from tests.connectors.worlds import Clock
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import FakeServer, Fault

PASSING: dict[str, Callable[[], Fault]] = {
    "429 with seconds": lambda: Fault.status(429, headers={"Retry-After": "7"}),
    "429 with a date": lambda: Fault.status(
        429, headers={"Retry-After": format_datetime(datetime.now(UTC) + timedelta(seconds=20), usegmt=True)}
    ),
    "429 without a word": lambda: Fault.status(429),
    "503 with seconds": lambda: Fault.status(503, headers={"Retry-After": "3"}),
    "500": lambda: Fault.status(500),
    "502": lambda: Fault.status(502),
    "503": lambda: Fault.status(503),
    "reset": Fault.reset,
    "reset in the body": Fault.reset_in_body,
    "body cut off": Fault.cut_body,
    "truncated JSON": Fault.truncated,
    "no list of results": lambda: Fault.status(
        200, body='{"message": "hm"}', content_type="application/json"
    ),
    "an empty answer": lambda: Fault.status(200, body="", content_type="application/json"),
}
STOPPING: dict[str, Callable[[], Fault]] = {
    "401": lambda: Fault.status(401),
    "sign-in page 200": lambda: Fault.html(200),
    "sign-in page 203": lambda: Fault.html(203),
    "sent to a sign-in page": lambda: Fault.redirect("/login.action"),
    "403": lambda: Fault.status(403, body='{"message": "no"}', content_type="application/json"),
}


def _fill(fake: FakeConfluence, number: int = 14) -> list[str]:
    made = []
    for n in range(number):
        made.append(fake.add_page("ENG", f"Page {n}", f"<p>Text {n}</p>"))
        if n % 3 == 0:
            fake.comment(made[-1], "<p>Comment</p>")
        fake.advance(minutes=1)
    fake.advance(hours=1)
    return made


def _count(fake: FakeConfluence) -> int:
    store = Store()
    before = len(fake.requests())
    store.sync(source_for(fake, page_size=2))
    return len(fake.requests()) - before


FAULTS = {**PASSING, **STOPPING}
ROUNDS = [("cloud", name) for name in FAULTS] + [("server", name) for name in list(FAULTS)[::3]]
"""A server answers the same way; each kind of fault at each of its requests would repeat the proof."""


@pytest.mark.parametrize(("kind", "name"), ROUNDS)
def test_a_fault_at_any_request_costs_nothing_but_time(
    kind: str, name: str, request: pytest.FixtureRequest
) -> None:
    fake = request.getfixturevalue(kind)
    _fill(fake, 4)
    fault = FAULTS[name]

    for number in range(_count(fake)):
        clock, store = Clock(), Store()
        fake.faults.next(fault(), after=number)
        errors = store.sync_through(fake, clock, page_size=2)
        assert store.seen() == truth(fake)
        assert store.deleted == []
        assert store.failed == []
        assert all(isinstance(e, SourceDenied) or e.transient for e in errors)
        assert all(e.fix for e in errors)


@pytest.mark.parametrize("headers", [{"Retry-After": "9"}, {}])
def test_no_request_comes_before_its_time(fake: FakeConfluence, headers: dict[str, str]) -> None:
    fake.add_page("ENG", "Page", "<p>x</p>")
    clock = Clock()
    limiter = LocalRequestLimiter(clock)
    access = Access(base_url=fake.base, limiter=limiter, product="Confluence")
    fake.faults.next(Fault.status(429, headers=headers), when=lambda seen: "search" in seen.path)
    store = Store()

    with pytest.raises(RateLimited) as caught:
        store.sync(source_for(fake, access=access))
    seconds = caught.value.retry_after
    assert seconds == float(headers.get("Retry-After", 30))
    before = len(fake.requests())
    clock.now += seconds - 1
    with pytest.raises(RateLimited):
        store.sync(source_for(fake, access=access))
    assert len(fake.requests()) == before
    clock.now += 2
    store.sync(source_for(fake, access=access))

    assert store.seen() == truth(fake)


def test_edits_while_syncs_fail_again_and_again_are_all_found(fake: FakeConfluence) -> None:
    made = _fill(fake)
    store, clock = Store(), Clock()
    for round_ in range(8):
        fake.faults.next(Fault.status(502), when=lambda seen: "search" in seen.path, after=round_ % 4)
        fake.edit(made[round_], f"<p>Round {round_}</p>")
        fake.comment(made[round_ + 5], "<p>Comment</p>")
        fake.add_page("ENG", f"New {round_}", "<p>x</p>")
        fake.advance(minutes=3)
        store.sync_through(fake, clock, page_size=4)
        fake.faults.clear()
    store.sync(source_for(fake, page_size=4))

    assert store.seen() == truth(fake)
    assert store.reconcile(source_for(fake)) == []


def test_a_redirect_to_another_host_is_refused_and_no_token_goes_there(fake: FakeConfluence) -> None:
    fake.add_page("ENG", "Page", "<p>x</p>")
    with FakeServer() as elsewhere:
        fake.faults.next(
            Fault.redirect(f"{elsewhere.address}/rest/api"), when=lambda seen: "search" in seen.path
        )

        with pytest.raises(SourceDenied):
            list(source_for(fake).pages(None))

        assert elsewhere.log == []


def test_links_to_another_host_are_followed_on_translated(cloud: FakeConfluence) -> None:
    for n in range(230):
        cloud.add_page("ENG", f"Page {n}", "<p>x</p>")
    with FakeServer() as elsewhere:
        public = f"{elsewhere.address}/wiki"
        plain = cloud.answer

        def renamed(seen: object) -> object:
            answer = plain(seen)  # type: ignore[arg-type]
            if isinstance(answer.json, dict) and "_links" in answer.json:
                answer.json["_links"]["base"] = public
            return answer

        cloud.answer = renamed  # type: ignore[method-assign, assignment]
        store = Store()
        store.sync(source_for(cloud))

        assert elsewhere.log == []
    assert len(store.documents) == 230
    assert all(d.url.startswith(public) for d in store.documents.values())


def _classes(module: object) -> list[type[Exception]]:
    return [c for _, c in inspect.getmembers(module, inspect.isclass) if issubclass(c, Exception)]


@pytest.mark.parametrize("kind", _classes(sdk_errors), ids=lambda c: c.__name__)
def test_every_error_of_the_client_has_a_translation(
    kind: type[Exception], cloud: FakeConfluence, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_args: object, **_named: object) -> None:
        raise kind("the body of the page with token=secret")

    monkeypatch.setattr("atlassian.confluence.ConfluenceServer.get", broken)
    assert issubclass(kind, CATCH)
    with pytest.raises(SourceDenied) as caught:
        _ = ConfluenceClient(options_for(cloud)).deployment

    assert caught.value.fix
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("status", [400, 403, 404, 409, 410, 413])
def test_every_refusal_has_a_fix(status: int) -> None:
    error = by_status(status)

    assert str(status) in error.message
    assert error.fix


def test_a_denial_says_nothing_secret(fake: FakeConfluence, caplog: pytest.LogCaptureFixture) -> None:
    fake.add_page("ENG", "Confidential title", "<p>Confidential text</p>")
    fake.faults.next(
        Fault.status(400, body='{"message": "token abc"}', content_type="application/json"),
        when=lambda seen: "container in" in seen.first("cql"),
    )
    with caplog.at_level(logging.DEBUG), pytest.raises(LarderError) as caught:
        list(source_for(fake).pages(None))

    assert fake.token not in f"{caught.value} {caplog.text}"
    assert "abc" not in str(caught.value)
    assert "Confidential text" not in caplog.text
