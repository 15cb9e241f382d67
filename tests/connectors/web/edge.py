"""How the tests of the edge open a session, and look at how a request fails."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from connectors.web.limiter import LocalRequestLimiter, RequestLimits
from connectors.web.session import Access, GuardedSession
from pipeline.errors import LarderError, RateLimited
from tests.fakes.server import FakeServer

TOKEN = "s3cr3t-token"
GOOD = {"results": [1, 2, 3]}


def access_to(server: FakeServer, **more: Any) -> Access:
    return Access(base_url=f"{server.address}/wiki", product="Confluence", read_timeout=1.0, **more)


def opened(server: FakeServer, **more: Any) -> requests.Session:
    session = GuardedSession(access_to(server, **more))
    session.headers.update({"Authorization": f"Bearer {TOKEN}", "Accept": "application/json"})
    return session


def failure(server: FakeServer, path: str = "/x", **more: Any) -> LarderError:
    """What a GET raises; nothing in it may tell the token, and the limiter is free again."""
    limiter = LocalRequestLimiter()
    limits = RequestLimits(at_once=1)
    with opened(server, limiter=limiter, limits=limits, **more) as session:
        with pytest.raises(LarderError) as caught:
            session.get(server.address + path)
        assert TOKEN not in f"{caught.value!r}{caught.value}{caught.value.__cause__!r}"
        assert caught.value.fix
        if not isinstance(caught.value, RateLimited):
            limiter.acquire(access_to(server).origin.key, limits)  # the failed request left
        return caught.value
