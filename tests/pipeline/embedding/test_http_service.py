"""The client of embedding services: bounded, translated, at one address, and safe to fork."""

from __future__ import annotations

import inspect
import os
import time
import traceback
from collections.abc import Iterator

import httpx2
import pytest

from pipeline.embedding.http_client import FOREIGN, TABLE, DeadlineTransport, translated
from pipeline.embedding.known_models import ProviderFacts
from pipeline.embedding.providers import http_service as module
from pipeline.embedding.providers.http_service import HttpService
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    LarderError,
)
from tests.fakes.messages import Answer
from tests.fakes.server import FakeServer, Fault, ScriptedServer

KEY = "sk-secret-0123456789"
FAKE = ProviderFacts(title="Fake", about="", model="m", models={})
THEIRS = sorted(
    (e for _, e in inspect.getmembers(httpx2, inspect.isclass) if issubclass(e, Exception)),
    key=lambda e: e.__name__,
)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda _: Answer(json={"data": [1]})) as made:
        yield made


def service_at(server: FakeServer, *, timeout: float = 20.0, key: str = KEY) -> HttpService:
    return HttpService(FAKE, model="m", base_url=server.address, key=key, timeout=timeout)


def test_a_call_is_json_with_a_key(server: ScriptedServer) -> None:
    assert service_at(server).post("v1/x", {"input": ["é \ud800"]}) == {"data": [1]}
    (seen,) = server.requests()
    assert (seen.method, seen.path) == ("POST", "/v1/x")
    assert seen.headers["Authorization"] == f"Bearer {KEY}"
    assert seen.headers["Content-Type"] == "application/json"
    assert seen.json == {"input": ["é ?"]}


def test_without_a_key_none_is_sent(server: ScriptedServer) -> None:
    service_at(server, key="").post("x", {})
    assert server.requests()[0].headers.get("Authorization") is None


def test_one_connection_serves_many_calls(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[httpx2.Client] = []
    original = httpx2.Client.__init__

    def counted(self: httpx2.Client, *args: object, **kwargs: object) -> None:
        made.append(self)
        original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx2.Client, "__init__", counted)
    service = service_at(server)
    assert made == []
    for _ in range(3):
        service.post("x", {})
    assert len(made) == 1


def test_every_exception_of_the_library_is_translated() -> None:
    """A new one in a later version of the library fails here."""
    assert set(TABLE) <= set(THEIRS)
    for kind in THEIRS:
        error = kind.__new__(kind)
        assert isinstance(error, FOREIGN), kind
        found = translated(error, "Fake at http://here")
        assert isinstance(found, EmbeddingError), kind
        assert found.fix
        assert "http://here" in found.message


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.reset(), "broke the connection"),
        (Fault.reset_in_body(), "broke the connection"),
        (Fault.cut_body(), "broke the connection"),
        (Fault.truncated(), "not JSON"),
        (Fault.html(), "web page"),
        (Fault.status(500), "answered 500"),
        (Fault.with_headers({"Content-Encoding": "gzip"}), "damaged"),
    ],
    ids=["reset", "reset-in-body", "cut", "truncated", "page", "500", "not-gzip"],
)
def test_a_broken_answer_may_work_later(server: ScriptedServer, fault: Fault, words: str) -> None:
    server.faults.next(fault)
    service = service_at(server)
    with pytest.raises(EmbedderUnavailable, match=words):
        service.post("x", {})
    assert server.faults.waiting == 0
    assert service.post("x", {}) == {"data": [1]}


@pytest.mark.parametrize("fault", [Fault.slow(240), Fault.dripping(16)], ids=["silent", "dripping"])
def test_a_slow_answer_is_given_up_in_time(server: ScriptedServer, fault: Fault) -> None:
    server.faults.next(fault)
    started = time.monotonic()
    with pytest.raises(EmbedderUnavailable, match="in time"):
        service_at(server, timeout=1).post("x", {})
    # Each drop of the dripping one comes within the time: only the whole answer does not.
    assert time.monotonic() - started < 60


def test_nobody_at_the_address_may_work_later() -> None:
    with ScriptedServer() as gone:
        there = service_at(gone)
    with pytest.raises(EmbedderUnavailable, match="cannot be reached") as caught:
        there.post("x", {})
    assert "baseUrl" in caught.value.fix


def test_a_redirect_is_not_followed(server: ScriptedServer) -> None:
    with ScriptedServer() as elsewhere:
        server.faults.next(Fault.redirect(f"{elsewhere.address}/x", code=307))
        with pytest.raises(EmbedderRefused, match="answered 307"):
            service_at(server).post("x", {})
        assert elsewhere.requests() == []


def test_proxies_of_the_environment_are_not_used(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert service_at(server).post("x", {}) == {"data": [1]}


def test_an_answer_larger_than_sensible_is_refused(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 5)
    with pytest.raises(EmbedderRefused, match="larger than 5 bytes") as caught:
        service_at(server).post("x", {})
    assert "batchSize" in caught.value.fix


def test_a_large_error_is_read_in_part(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.faults.next(Fault.status(400, body=b" " * 1_000_000 + b"{}", content_type="application/json"))
    monkeypatch.setattr(module, "checked_json", lambda answer, _service: answer)
    answer = service_at(server).post("x", {})
    assert (answer.status, len(answer.content)) == (400, 65_536)


@pytest.mark.parametrize("url", ["http://", "ftp://here", "http://[::1", "nowhere"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(EmbedderRefused, match="address"):
        HttpService(FAKE, model="m", base_url=url).post("x", {})


@pytest.mark.parametrize("key", ["sk-1\n", "sk 1", "sk-é", "\u2018sk\u2019", "a\tb"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(key: str) -> None:
    with pytest.raises(ConfigurationError, match="characters") as caught:
        HttpService(FAKE, model="m", base_url="http://here", key=key)
    assert key not in str(caught.value)


def test_the_key_is_in_no_repr_and_no_error(server: ScriptedServer) -> None:
    server.faults.next(Fault.reset())
    here = service_at(server)
    with pytest.raises(LarderError) as caught:
        here.post("x", {"input": ["salary list"]})
    told = "".join(traceback.format_exception(caught.value)) + repr(here) + str(here)
    assert KEY not in told
    assert "salary" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_process_opens_connections_of_its_own(server: ScriptedServer) -> None:
    """Two processes that read from one connection would get each other's vectors."""
    service = service_at(server)
    service.post("x", {})
    before = service._client.get()
    child = os.fork()
    if child == 0:
        fresh = service._client.get() is not before
        os._exit(0 if fresh else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert service._client.get() is before


def test_a_certificate_nobody_trusts_is_no_matter_of_waiting() -> None:
    import ssl

    error = httpx2.ConnectError("no")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed")
    found = translated(error, "Fake at https://here")
    assert isinstance(found, EmbedderRefused)
    assert "certificate" in found.message


def test_a_host_that_is_not_there_costs_no_more_than_the_time_to_connect() -> None:
    asked: dict[str, float] = {}

    class Recorder(httpx2.BaseTransport):
        def handle_request(self, request: httpx2.Request) -> httpx2.Response:
            asked.update({part: request.extensions["timeout"].get(part) for part in ("connect", "read")})
            return httpx2.Response(200, stream=httpx2.ByteStream(b"{}"))

    timeouts = httpx2.Timeout(60.0, connect=module.CONNECT_SECONDS)
    with httpx2.Client(transport=DeadlineTransport(Recorder()), timeout=timeouts) as client:
        client.post("http://here/x")
    assert asked["connect"] == 10.0
    assert 50 < asked["read"] <= 60
