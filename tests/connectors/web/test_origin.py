"""One host is contacted, and no other ever hears of us."""

from __future__ import annotations

import pytest
import requests
from requests.adapters import HTTPAdapter

from connectors.web.session import Access, GuardedAdapter, GuardedSession, guard
from pipeline.errors import ConfigurationError, SourceDenied
from tests.connectors.web.edge import GOOD, TOKEN, access_to, failure, opened
from tests.fakes.server import Answer, Fault, ScriptedServer, Seen


def test_a_redirect_to_another_port_is_refused_and_sends_nothing(
    server: ScriptedServer, elsewhere: ScriptedServer
) -> None:
    for code in (301, 302, 303, 307, 308):
        server.faults.next(Fault.redirect(f"{elsewhere.address}/steal?token=abc", code=code))
        error = failure(server)
        assert isinstance(error, SourceDenied)
        assert "abc" not in str(error)
    assert elsewhere.log == []


@pytest.mark.parametrize(
    "target",
    ["http://localhost:{port}/x", "https://127.0.0.1:{port}/x", "//example.invalid/x", "ftp://127.0.0.1/x"],
)
def test_a_redirect_to_another_host_or_scheme_is_refused(server: ScriptedServer, target: str) -> None:
    port = server.address.rpartition(":")[2]
    server.faults.next(Fault.redirect(target.format(port=port)))

    assert isinstance(failure(server), SourceDenied)
    assert len(server.log) == 1


def test_a_direct_request_to_elsewhere_is_refused_and_sends_nothing(
    server: ScriptedServer, elsewhere: ScriptedServer
) -> None:
    with opened(server) as session:
        for url in (f"{elsewhere.address}/x", f"http://127.0.0.1@localhost:{server.address[-4:]}/"):
            with pytest.raises(SourceDenied):
                session.get(url)
    assert (server.log, elsewhere.log) == ([], [])


def test_a_redirect_inside_the_host_is_followed_with_the_token(server: ScriptedServer) -> None:
    server.faults.next(Fault.redirect("/wiki/there"))
    with opened(server) as session:
        assert session.get(f"{server.address}/wiki/here").json() == GOOD
    assert [s.path for s in server.log] == ["/wiki/here", "/wiki/there"]
    assert server.log[1].headers["Authorization"] == f"Bearer {TOKEN}"


def test_a_circle_of_redirects_is_no_endless_walk(server: ScriptedServer) -> None:
    server.faults.next(Fault.redirect("/again"), times=None)

    error = failure(server)

    assert isinstance(error, SourceDenied)
    assert len(server.log) < 40


def test_an_adapter_of_the_sdk_for_the_same_address_is_taken_off(
    server: ScriptedServer, elsewhere: ScriptedServer
) -> None:
    access = access_to(server)
    with requests.Session() as session:
        session.mount(elsewhere.address, HTTPAdapter())
        guard(session, access)
        adapter = session.adapters["https://"]
        guard(session, access)
        assert session.adapters["https://"] is adapter
        with pytest.raises(SourceDenied):
            session.get(elsewhere.address)
    assert elsewhere.log == []


@pytest.mark.parametrize(
    "address",
    [
        "",
        "wiki.example.org",
        "ftp://example.org",
        "http://",
        "https://[::1",
        "file:///etc/passwd",
        "https://a:b:c/",
    ],
)
def test_an_address_that_is_none_is_a_matter_of_configuration(address: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Access(base_url=address)
    assert caught.value.fix


def test_a_password_in_the_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Access(base_url="https://me:hunter2@example.org/wiki")
    assert "hunter2" not in f"{caught.value!r}{caught.value}"


@pytest.mark.parametrize(
    ("address", "url", "same"),
    [
        ("https://Example.org/wiki", "https://example.org:443/x", True),
        ("https://bücher.example/", "https://xn--bcher-kva.example/x", True),
        ("https://example.org", "http://example.org/", False),
        ("https://example.org", "https://example.org.evil.test/", False),
        ("https://example.org", "https://example.org:444/", False),
        ("https://example.org", "https://example.org@evil.test/", False),
        ("https://example.org", "https://evil.test/https://example.org", False),
        ("https://example.org", "https://[::1", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(address: str, url: str, same: bool) -> None:
    assert Access(base_url=address).origin.holds(url) is same


def test_the_adapter_sees_requests_of_a_session_made_by_an_sdk(server: ScriptedServer) -> None:
    with requests.Session() as session:
        guard(session, access_to(server))
        assert isinstance(session.get_adapter(server.address), GuardedAdapter)
        server.faults.next(Fault.html(203))
        with pytest.raises(SourceDenied):
            session.post(server.address, json={"query": "x"})


def test_an_answer_in_pieces_is_put_together(server: ScriptedServer) -> None:
    server.faults.next(Fault.dripping(0.1))
    with opened(server) as session:
        assert session.get(server.address).json() == GOOD


def test_a_seen_request_names_its_product_in_errors_only(server: ScriptedServer) -> None:
    def answer(seen: Seen) -> Answer:
        return Answer(status=500, json={"message": "body with a secret"})

    with ScriptedServer(answer) as broken:
        error = failure(broken, "/x?token=abc")
    assert "Confluence" in error.message
    assert "secret" not in str(error)
    assert "abc" not in str(error)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("name", ["2852039166", "169.254.43518", "0xa9fea9fe", "[::ffff:a9fe:a9fe]"])
def test_a_name_that_leads_to_where_clouds_hand_out_keys_is_not_followed(scheme: str, name: str) -> None:
    """As the resolver of this machine reads these names: the address itself is refused when it is configured."""
    access = Access(base_url=f"{scheme}://{name}", connect_timeout=0.2)
    with GuardedSession(access) as session, pytest.raises(SourceDenied, match="metadata service"):
        session.get(f"{scheme}://{name}/latest/meta-data/")
