"""The base of the fakes does what the tests built on it rely on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest
import requests

from tests.fakes.server import Answer, FakeServer, Fault, ScriptedServer, Seen


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        yield made


@pytest.fixture
def client() -> Iterator[requests.Session]:
    with requests.Session() as made:
        made.trust_env = False
        yield made


def test_a_request_is_answered_and_logged(server: FakeServer, client: requests.Session) -> None:
    answer = client.post(f"{server.address}/a%20b/c?x=1&x=2&y=", json={"k": 1}, headers={"X-One": "two"})

    assert answer.json() == {"results": [1, 2, 3]}
    (seen,) = server.requests("/a b")
    assert (seen.method, seen.path, seen.target) == ("POST", "/a b/c", "/a%20b/c?x=1&x=2&y=")
    assert seen.query == {"x": ["1", "2"], "y": [""]}
    assert seen.headers.get("x-one") == "two"
    assert seen.json == {"k": 1}
    assert seen.status == 200
    assert server.requests("/elsewhere") == []


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_every_method_is_served_over_one_connection(
    server: FakeServer, client: requests.Session, method: str
) -> None:
    for _ in range(2):
        assert client.request(method, server.address).status_code == 200

    assert [seen.method for seen in server.log] == [method, method]


def test_faults_come_where_and_as_often_as_planned(server: FakeServer, client: requests.Session) -> None:
    server.faults.next(Fault.status(503), when=lambda s: s.path == "/x", times=2, after=1)

    codes = [client.get(server.address + path).status_code for path in ("/x", "/y", "/x", "/x", "/y", "/x")]

    assert codes == [200, 200, 503, 503, 200, 200]
    assert server.faults.waiting == 0


def test_a_fault_for_ever_ends_with_clear(server: FakeServer, client: requests.Session) -> None:
    server.faults.next(Fault.status(429, headers={"Retry-After": "7"}), times=None)
    answers = [client.get(server.address) for _ in range(3)]
    server.faults.clear()

    assert [(a.status_code, a.headers["Retry-After"]) for a in answers] == [(429, "7")] * 3
    assert client.get(server.address).status_code == 200


@pytest.mark.parametrize("fault", [Fault.reset(), Fault.reset_in_body(), Fault.cut_body()])
def test_a_broken_connection_is_an_error_to_the_client(
    server: FakeServer, client: requests.Session, fault: Fault
) -> None:
    server.faults.next(fault)

    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        client.get(server.address)
    assert client.get(server.address).status_code == 200


def test_a_reset_in_the_body_comes_after_the_status(server: FakeServer, client: requests.Session) -> None:
    server.faults.next(Fault.reset_in_body())

    answer = client.get(server.address, stream=True)

    assert answer.status_code == 200
    with pytest.raises((requests.ConnectionError, requests.exceptions.ChunkedEncodingError)):
        _ = answer.content


def test_truncated_json_has_a_correct_length(server: FakeServer, client: requests.Session) -> None:
    server.faults.next(Fault.truncated())

    answer = client.get(server.address)

    assert answer.status_code == 200
    assert len(answer.content) == int(answer.headers["Content-Length"])
    with pytest.raises(requests.exceptions.JSONDecodeError):
        answer.json()


def test_html_redirects_and_headers(server: FakeServer, client: requests.Session) -> None:
    server.faults.next(Fault.html(203))
    server.faults.next(Fault.redirect(f"{server.address}/there"))
    server.faults.next(Fault.with_headers({"X-More": "yes"}))

    assert "Sign in" in client.get(server.address).text
    assert client.get(server.address, allow_redirects=False).headers["Location"].endswith("/there")
    answer = client.get(server.address)
    assert (answer.headers["X-More"], answer.json()) == ("yes", {"results": [1, 2, 3]})


def test_slow_answers_take_their_time_and_no_stop_waits_for_them(client: requests.Session) -> None:
    server = ScriptedServer()
    server.start()
    server.faults.next(Fault.slow(0.1))
    server.faults.next(Fault.dripping(0.1))
    for _ in range(2):
        began = time.monotonic()
        assert client.get(server.address).json() == {"results": [1, 2, 3]}
        assert time.monotonic() - began >= 0.08
    server.faults.next(Fault.slow(240))
    asking = threading.Thread(target=lambda: _quietly(client, server.address))
    asking.start()
    while len(server.log) < 3:
        time.sleep(0.005)

    server.stop()
    asking.join(60)

    assert not asking.is_alive()


def _quietly(client: requests.Session, url: str) -> None:
    try:
        client.get(url)
    except requests.RequestException:
        return


def test_a_stopped_server_refuses_also_on_a_kept_connection_and_comes_back_at_the_same_address(
    server: FakeServer, client: requests.Session
) -> None:
    address = server.address
    assert client.get(address).status_code == 200
    server.stop()
    with pytest.raises(requests.ConnectionError):
        client.get(address)

    server.start()

    assert server.address == address
    assert client.get(address).status_code == 200


def test_a_mistake_in_a_fake_fails_the_test_that_uses_it(client: requests.Session) -> None:
    def broken(_seen: Seen) -> Answer:
        raise ValueError("a bug of the fake")

    with pytest.raises(AssertionError, match="a bug of the fake"), ScriptedServer(broken) as server:
        assert client.get(server.address).status_code == 500


def test_answers_without_a_body_have_none(client: requests.Session) -> None:
    with ScriptedServer(lambda _: Answer(status=204)) as server:
        answer = client.get(server.address)

        assert (answer.status_code, answer.content) == (204, b"")
        assert client.get(server.address).status_code == 204


def test_a_request_that_ends_in_the_middle_is_nobodys(server: FakeServer, client: requests.Session) -> None:
    """Its sender was killed."""
    place = urlsplit(server.address)
    with socket.create_connection((place.hostname, place.port or 0)) as torn:
        torn.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
        torn.shutdown(socket.SHUT_WR)
        assert torn.recv(1) == b""
    assert server.log == []
    assert client.get(server.address).ok
