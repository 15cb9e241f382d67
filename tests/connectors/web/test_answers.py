"""Refusals, pages of gateways and busy services are told from answers."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from connectors.web import session as sessions
from connectors.web.answers import ServerFault
from connectors.web.limiter import LocalRequestLimiter, RequestLimits
from connectors.web.session import GuardedSession
from pipeline.errors import RateLimited, SourceDenied
from tests.connectors.web.edge import GOOD, access_to, failure, opened
from tests.connectors.worlds import Clock
from tests.fakes.server import Fault, ScriptedServer


@pytest.mark.parametrize("status", [407, 408, 500, 502, 503, 504, 599])
def test_faults_of_the_server_carry_their_status(server: ScriptedServer, status: int) -> None:
    server.faults.next(Fault.status(status))

    error = failure(server)

    assert isinstance(error, ServerFault)
    assert not isinstance(error, RateLimited)
    assert (error.status, error.transient) == (status, True)


def test_401_is_permanent_and_tells_an_expired_token(server: ScriptedServer) -> None:
    server.faults.next(Fault.status(401, body=b""))
    server.faults.next(Fault.status(401, body="Access Denied: The Personal Access Token used has expired."))

    first, second = failure(server), failure(server)

    assert isinstance(first, SourceDenied)
    assert not first.transient
    assert "expired" not in first.message
    assert "expired" in second.message


@pytest.mark.parametrize("code", [200, 203])
def test_a_sign_in_page_is_no_answer(server: ScriptedServer, code: int) -> None:
    server.faults.next(Fault.html(code))

    error = failure(server)

    assert isinstance(error, SourceDenied)
    assert "sign-in page" in error.message
    assert "token" in error.fix


@pytest.mark.parametrize(
    "target",
    [
        "/login.action?os_destination=x",
        "https://login.microsoftonline.invalid/x/oauth2",
        "https://sps.visualstudio.invalid/_signin?realm=acme",
        "/sso",
    ],
)
def test_a_redirect_to_a_sign_in_page_is_about_credentials(server: ScriptedServer, target: str) -> None:
    server.faults.next(Fault.redirect(target))

    error = failure(server)

    assert isinstance(error, SourceDenied)
    assert "sign-in page" in error.message
    assert len(server.log) == 1


def test_another_web_page_is_about_the_address(server: ScriptedServer) -> None:
    page = "<html><head><title>Our company</title></head><body><a href='/in'>Log in</a></body></html>"
    server.faults.next(Fault.html(200, body=page))
    server.faults.next(
        Fault.status(200, body="\ufeff\n<!-- x --><!DOCTYPE html><html>..", content_type="text/plain")
    )

    for _ in range(2):
        error = failure(server)
        assert isinstance(error, SourceDenied)
        assert "baseUrl" in error.fix
        assert "sign-in" not in error.message


def test_an_error_page_is_not_the_word_of_the_api(server: ScriptedServer) -> None:
    for status in (400, 403, 404):
        server.faults.next(Fault.status(status))
        error = failure(server)
        assert isinstance(error, ServerFault)
        assert error.status == status


def test_html_is_welcome_as_a_download_and_when_asked_for(server: ScriptedServer) -> None:
    server.faults.next(Fault.html(200), times=2)
    with opened(server) as session:
        assert session.get(f"{server.address}/wiki/download/attachments/1/a.html").status_code == 200
        assert session.get(server.address, headers={"Accept": "text/html"}).status_code == 200


def test_an_account_that_must_answer_a_captcha_is_told_so(server: ScriptedServer) -> None:
    server.faults.next(Fault.status(403, headers={"X-Seraph-LoginReason": "AUTHENTICATION_DENIED"}))

    assert "browser" in failure(server).fix


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"Retry-After": "7"}, 7),
        (429, {}, 30),
        (503, {"Retry-After": "120"}, 120),
        (429, {"Retry-After": "0"}, 1),
    ],
)
def test_a_busy_service_closes_the_gate_for_everybody(
    server: ScriptedServer, status: int, headers: dict[str, str], seconds: float
) -> None:
    clock = [1000.0]
    limiter = LocalRequestLimiter(lambda: clock[0])
    server.faults.next(Fault.status(status, headers=headers))
    with opened(server, limiter=limiter) as one, opened(server, limiter=limiter) as another:
        with pytest.raises(RateLimited) as caught:
            one.get(server.address)
        assert caught.value.retry_after == seconds
        clock[0] += seconds - 0.5
        with pytest.raises(RateLimited) as caught:
            another.get(server.address)
        assert caught.value.retry_after == pytest.approx(0.5)
        assert len(server.log) == 1
        clock[0] += 0.5
        assert another.get(server.address).json() == GOOD


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "12"}, 12),
        ({"X-RateLimit-NearLimit": "true"}, 5),
        ({"X-RateLimit-Remaining": "0", "X-RateLimit-Interval-Seconds": "9"}, 9),
    ],
)
def test_a_good_answer_with_a_warning_is_used_and_closes_the_gate(
    server: ScriptedServer, headers: dict[str, str], seconds: float
) -> None:
    server.faults.next(Fault.with_headers(headers))
    with opened(server) as session:
        assert session.get(server.address).json() == GOOD
        with pytest.raises(RateLimited) as caught:
            session.get(server.address)
    assert caught.value.retry_after == pytest.approx(seconds, abs=0.5)
    assert len(server.log) == 1


def test_a_full_gate_refuses_before_anything_is_sent(server: ScriptedServer) -> None:
    limiter = LocalRequestLimiter()
    access = access_to(server, limiter=limiter, limits=RequestLimits(at_once=1))
    ticket = limiter.acquire(access.origin.key, access.limits)
    with GuardedSession(access) as session:
        with pytest.raises(RateLimited):
            session.get(server.address)
        assert server.log == []
        limiter.release(access.origin.key, ticket)
        for _ in range(3):
            assert session.get(server.address).json() == GOOD


def test_requests_per_minute_are_counted_over_redirects_too(server: ScriptedServer) -> None:
    server.faults.next(Fault.redirect("/there"))
    with opened(
        server, limiter=LocalRequestLimiter(lambda: 0.0), limits=RequestLimits(per_minute=2)
    ) as session:
        session.get(server.address)
        with pytest.raises(RateLimited):
            session.get(server.address)
    assert len(server.log) == 2


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Time that passes only by waiting in the session."""
    made = Clock()

    def sleep(seconds: float) -> None:
        made.now += seconds

    monkeypatch.setattr(sessions, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    return made


def test_short_pauses_are_waited_out_where_they_are_met(server: ScriptedServer, clock: Clock) -> None:
    server.faults.next(Fault.with_headers({"Retry-After": "1"}), times=None)
    with opened(server, limiter=LocalRequestLimiter(clock), max_pause=30.0) as asking:
        for _ in range(30):
            assert asking.get(server.address).json() == GOOD
    assert clock.now - 1000 == pytest.approx(29)
    assert len(server.log) == 30


def test_a_refusal_for_seconds_is_asked_again_after_them(server: ScriptedServer, clock: Clock) -> None:
    server.faults.next(Fault.status(429, headers={"Retry-After": "7"}), times=2)
    with opened(server, limiter=LocalRequestLimiter(clock), max_pause=30.0) as asking:
        assert asking.get(server.address).json() == GOOD
    assert clock.now - 1000 == pytest.approx(14)


def test_a_pause_beyond_what_is_left_of_the_patience_is_the_callers(
    server: ScriptedServer, clock: Clock
) -> None:
    server.faults.next(Fault.status(429, headers={"Retry-After": "7"}), times=None)
    with (
        opened(server, limiter=LocalRequestLimiter(clock), max_pause=10.0) as asking,
        pytest.raises(RateLimited) as caught,
    ):
        asking.get(server.address)
    assert (caught.value.retry_after, len(server.log)) == (7, 2)
