"""The edge to HTTP brings good answers whole, and ends in time with those that are broken."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

import pytest
import requests
from urllib3.util.retry import Retry

from connectors.web.answers import AnswerTooLarge, BadAnswer, ServerFault
from connectors.web.session import Access, GuardedSession, guard
from pipeline.errors import SourceDenied, SourceUnavailable
from tests.connectors.web.edge import GOOD, TOKEN, access_to, failure, opened
from tests.fakes.server import Answer, Fault, ScriptedServer


def test_a_good_answer_comes_back_whole(server: ScriptedServer) -> None:
    with opened(server) as session:
        for stream in (False, True):
            answer = session.get(f"{server.address}/wiki/x", stream=stream)
            assert answer.json() == GOOD
            assert b"".join(answer.iter_content(4)) == answer.content
    assert server.log[0].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("status", [200, 201, 204, 400, 403, 404, 409, 410, 413])
def test_what_the_api_itself_says_is_left_to_the_connector(status: int) -> None:
    said = None if status == 204 else {"message": "said"}
    with ScriptedServer(lambda _: Answer(status=status, json=said)) as server, opened(server) as session:
        assert session.get(server.address).status_code == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
def test_every_method_passes(server: ScriptedServer, method: str) -> None:
    with opened(server) as session:
        assert session.request(method, server.address).status_code == 200


@pytest.mark.parametrize("timeout", [None, 100, (None, None)])
def test_a_slow_server_ends_in_time_whatever_the_caller_asks_for(
    server: ScriptedServer, timeout: Any
) -> None:
    server.faults.next(Fault.slow(240))
    access = Access(base_url=server.address, read_timeout=0.2)
    began = time.monotonic()
    with requests.Session() as session:
        guard(session, access)
        with pytest.raises(SourceUnavailable, match="in time"):
            session.get(server.address, timeout=timeout)
    assert time.monotonic() - began < 60, "it ended when the server did"


def test_a_dripping_body_ends_in_time(server: ScriptedServer) -> None:
    server.faults.next(Fault.dripping(12))  # no two parts are further apart than a read may take
    session = GuardedSession(Access(base_url=server.address, read_timeout=0.8))
    began = time.monotonic()
    with session, pytest.raises(SourceUnavailable, match="in time"):
        session.get(server.address)
    assert time.monotonic() - began > 3.9


def test_retries_of_an_sdk_are_not_heard(server: ScriptedServer) -> None:
    access = access_to(server)
    with requests.Session() as session:
        guard(session, access)
        session.adapters["http://"].max_retries = Retry(total=5, status_forcelist=[500])  # type: ignore[attr-defined]
        server.faults.next(Fault.status(500), times=None)
        with pytest.raises(ServerFault):
            session.get(server.address)
    assert len(server.log) == 1


@pytest.mark.parametrize("fault", [Fault.reset(), Fault.reset_in_body(), Fault.cut_body()])
def test_a_broken_connection_is_transient(server: ScriptedServer, fault: Fault) -> None:
    server.faults.next(fault)

    error = failure(server)

    assert error.transient
    assert type(error) is BadAnswer
    assert len(server.log) == 1


def test_a_server_that_is_down_is_transient_and_says_so(server: ScriptedServer) -> None:
    server.stop()

    error = failure(server)

    assert type(error) is SourceUnavailable
    assert "refuses connections" in str(error)


def test_an_unknown_host_name_is_named_as_such() -> None:
    session = GuardedSession(Access(base_url="http://no-such-host.invalid"))
    with session, pytest.raises(SourceUnavailable) as caught:
        session.get("http://no-such-host.invalid/")
    assert "cannot be resolved" in str(caught.value)


def test_https_at_a_port_without_tls_is_permanent(server: ScriptedServer) -> None:
    address = server.address.replace("http:", "https:")
    with (
        GuardedSession(Access(base_url=address, read_timeout=1)) as session,
        pytest.raises(SourceDenied) as caught,
    ):
        session.get(address, verify=False)
    assert caught.value.fix


def test_damaged_compression_is_transient(server: ScriptedServer) -> None:
    server.faults.next(
        Fault.status(
            200,
            headers={"Content-Encoding": "gzip"},
            body=b"\x1f\x8b no gzip",
            content_type="application/json",
        )
    )

    assert type(failure(server)) is BadAnswer


def test_compressed_answers_are_unpacked() -> None:
    packed = gzip.compress(b'{"text": "' + b"abc" * 100_000 + b'"}')
    headers = {"Content-Encoding": "gzip"}
    answer = Answer(body=packed, headers=headers, content_type="application/json")
    with ScriptedServer(lambda _: answer) as server, opened(server) as session:
        assert len(session.get(server.address).json()["text"]) == 300_000


@pytest.mark.parametrize("packed", [False, True])
def test_an_answer_above_the_limit_is_refused_while_it_comes(packed: bool) -> None:
    body = b"[" + b"1," * 5_000_000 + b"1]"
    headers = {"Content-Encoding": "gzip"} if packed else {}
    answer = Answer(
        body=gzip.compress(body) if packed else body, headers=headers, content_type="application/json"
    )
    with ScriptedServer(lambda _: answer) as server:
        error = failure(server, most_bytes=1_000_000)
    assert isinstance(error, AnswerTooLarge)
    assert not error.transient


def test_proxies_and_passwords_of_the_environment_are_ignored(
    server: ScriptedServer, elsewhere: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password hidden\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, elsewhere.address)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    # The environment does reach a plain session here; else this test would show nothing.
    with requests.Session() as plain:
        plain.get(server.address)
    assert len(elsewhere.log) == 1
    with requests.Session() as sdk:
        guard(sdk, access_to(server))
        sdk.get(server.address, proxies={"http": elsewhere.address})
        sdk.trust_env = True
        sdk.get(server.address)
        guard(sdk, access_to(server))
        sdk.get(server.address)

    assert len(elsewhere.log) == 1
    assert len(server.log) == 3
    assert "Authorization" not in server.log[0].headers
    assert "Authorization" not in server.log[2].headers
