"""A server is trusted by its certificate or not at all."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import requests

from connectors.web.session import Access, guard
from pipeline.errors import SourceDenied

# Made for this test, valid for 127.0.0.1 until 2126, signed by nobody else.
SELF_SIGNED = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg2VzNSxXdvBPZMb6h
9kM+2dUqhIIlGucX9HH/3kWQ6aChRANCAATQwlvw0ThkJJofBoHfBA6Mo5p/9+Dy
UqUWmhXpe9ydWLDVK5c41mxdMtaBgr3Swlcuu5rM3oZJUkmEIXrCP/YC
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBkTCCATagAwIBAgIUALp9D2L4DiCwv/xOeowbCznZg4AwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJMTI3LjAuMC4xMCAXDTI2MTEyMjA0MTIwMFoYDzIxMjYxMDI5
MDQxMjAwWjAUMRIwEAYDVQQDDAkxMjcuMC4wLjEwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAATQwlvw0ThkJJofBoHfBA6Mo5p/9+DyUqUWmhXpe9ydWLDVK5c41mxd
MtaBgr3Swlcuu5rM3oZJUkmEIXrCP/YCo2QwYjAdBgNVHQ4EFgQUMMgzzwR5Myxp
bIG6mA4YgtQPHIkwHwYDVR0jBBgwFoAUMMgzzwR5MyxpbIG6mA4YgtQPHIkwDwYD
VR0TAQH/BAUwAwEB/zAPBgNVHREECDAGhwR/AAABMAoGCCqGSM49BAMCA0kAMEYC
IQCz10XY1w5rMTI2zYeOE1s63TPRFsHcc6iT11dcC9W7GwIhAOOlH6BJ0Uh3yFty
PU4fFZUskfAtJ6BWHJg6dUZQfktk
-----END CERTIFICATE-----
"""


class Greeting(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"ok": true}')

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    path = tmp_path / "server.pem"
    path.write_text(SELF_SIGNED)
    return path


@pytest.fixture
def address(certificate: Path) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Greeting)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("verify", [True, False])
def test_an_unknown_certificate_is_refused_even_if_the_sdk_would_take_it(address: str, verify: bool) -> None:
    with requests.Session() as session:
        guard(session, Access(base_url=address, product="Confluence"))
        session.verify = verify
        with pytest.raises(SourceDenied) as caught:
            session.get(address, verify=verify)
    assert "certificate" in caught.value.fix


def test_a_certificate_of_our_own_is_trusted_when_it_is_given(address: str, certificate: Path) -> None:
    with requests.Session() as session:
        guard(session, Access(base_url=address, ca_file=str(certificate)))
        assert session.get(address).json() == {"ok": True}
