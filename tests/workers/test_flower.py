"""Who is let into Flower by a provider of OAuth, against one on this machine that speaks as Okta does."""

from __future__ import annotations

import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest

from tests import forked
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import ScriptedServer
from tests.forked import Forked
from workers.local import embedded
from workers.local.embedded import free_port

CONFIG = """
rag:
  flower:
    urlPrefix: /queue
    unprotected: [healthcheck]
    oauth: {{provider: okta, server: '{server}', key: larder, secret: "the secret",
            redirectUrl: 'http://127.0.0.1:{port}/queue/login', emails: ['*@example.com']}}
"""


class Provider(ScriptedServer):
    """Sends everybody back as `email`."""

    email = "ann@example.com"

    def answer(self, seen: Seen) -> Answer:
        if seen.path == "/v1/authorize":
            [back], [state] = seen.query["redirect_uri"], seen.query["state"]
            return Answer(status=302, headers={"Location": f"{back}?code=c&state={state}"})
        if seen.path == "/v1/token":
            sent = parse_qs(seen.body.decode())
            assert (sent["client_id"], sent["client_secret"]) == (["larder"], ["the secret"])
            return Answer(json={"access_token": "t"})
        return Answer(json={"email": self.email, "email_verified": True})


@pytest.fixture
def shown(tmp_path: Path, servers: embedded.Servers) -> Iterator[tuple[str, Provider]]:
    """The address of a Flower, and the provider that it asks."""
    port = free_port()
    with Provider() as provider:
        (tmp_path / "larder.yaml").write_text(CONFIG.format(server=provider.address, port=port))
        env = forked.environment(
            LARDER_CONFIG=str(tmp_path / "larder.yaml"),
            LARDER_DATABASE_URL="postgresql://nobody:5432/larder",
            LARDER_BROKER_URL=servers.broker_url,
        )
        flower = Forked(["flower", "--port", str(port)], cwd=tmp_path, env=env, out=tmp_path / "log")
        end = time.monotonic() + 60
        while asked(f"http://127.0.0.1:{port}/queue/api/workers")[0] == 0:
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/queue", provider
        flower.kill()  # told to end it would wait for answers of workers that there are none of
        flower.wait(30)


def asked(url: str, jar: CookieJar | None = None) -> tuple[int, str]:
    """Status, and where that was after all redirects; 0 while nobody listens."""
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    try:
        with opener.open(url, timeout=30) as answer:
            return answer.status, urlsplit(answer.url).path
    except urllib.error.HTTPError as error:
        with error:
            return error.code, urlsplit(error.url or "").path
    except OSError:
        return 0, ""


def test_whom_the_provider_names_is_let_in_and_nobody_else(shown: tuple[str, Provider]) -> None:
    url, provider = shown
    jar = CookieJar()
    assert asked(f"{url}/api/workers", jar)[0] == 401
    provider.email = "eve@elsewhere.com"
    assert asked(f"{url}/healthcheck") == (200, "/queue/healthcheck"), "the configuration opens it"
    for page in ("/tasks", "/metrics"):
        assert asked(f"{url}{page}", jar) == (403, "/queue/login")
    assert asked(f"{url}/api/workers", jar)[0] == 401
    provider.email = "ann@example.com"
    assert asked(f"{url}/login", jar)[0] == 200
    for page in ("/tasks", "/api/workers", "/metrics"):
        assert asked(f"{url}{page}", jar) == (200, f"/queue{page}")


def test_whoever_interrupts_it_twice_reads_no_traceback(tmp_path: Path, servers: embedded.Servers) -> None:
    """As `timeout -s INT` does, which tells the process and its group."""
    port = free_port()
    env = forked.environment(
        LARDER_DATABASE_URL="postgresql://nobody:5432/larder",
        LARDER_BROKER_URL=servers.broker_url,
        LARDER_FLOWER_AUTH="ann:a password of some length",
        LARDER_DATA=str(tmp_path / "data"),
    )
    command = [sys.executable, "-m", "workers.cli", "flower", "--port", str(port)]
    with (
        (tmp_path / "log").open("wb") as log,
        psutil.Popen(command, env=env, cwd=tmp_path, stdout=log, stderr=log) as one,
    ):
        end = time.monotonic() + 60
        while asked(f"http://127.0.0.1:{port}/")[0] == 0:
            assert time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.2)
        for _ in range(10):
            one.send_signal(signal.SIGINT)
            time.sleep(0.1)
        one.wait(60)
    assert "Traceback" not in (tmp_path / "log").read_text()
