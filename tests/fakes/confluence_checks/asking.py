"""Asking the fake Confluence, with the real client and without."""

from __future__ import annotations

from typing import Any

import atlassian
import pytest
import requests

from tests.fakes.confluence import FakeConfluence

Json = dict[str, Any]
SDK: Any = atlassian
"""The client publishes types for a part of itself only."""
KINDS = ("cloud", "server", "server at the root")


def make(kind: str) -> FakeConfluence:
    if kind == "cloud":
        return FakeConfluence("cloud")
    return FakeConfluence("server", context="" if kind.endswith("root") else "/confluence")


def fill(fake: FakeConfluence, count: int) -> list[str]:
    """Pages, one a second."""
    made = []
    for n in range(count):
        made.append(fake.add_page("ENG", f"Page {n:03d}", f"<p>Text {n}</p>"))
        fake.advance(seconds=1)
    return made


def client(fake: FakeConfluence, **options: Any) -> Any:
    """The class that works for v1 search on both products."""
    user, secret = fake.basic
    return SDK.ConfluenceServer(fake.base, username=user, password=secret, cloud=fake.cloud, **options)


def v2(fake: FakeConfluence) -> Any:
    with pytest.warns(DeprecationWarning, match="V1 methods"):  # the client warns of itself
        return SDK.ConfluenceV2(fake.base, username=fake.email, password=fake.token, cloud=True)


def ask(fake: FakeConfluence, path: str, **params: Any) -> requests.Response:
    """A request as it is, without the client."""
    return requests.get(f"{fake.base}/{path}", params=params, auth=fake.basic, timeout=5)


def search(fake: FakeConfluence, cql: str, **params: Any) -> Json:
    answer = ask(fake, "rest/api/content/search", cql=cql, **params)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def ids(listing: Json) -> list[str]:
    return [result["id"] for result in listing["results"]]


def walk(fake: FakeConfluence, cql: str, **params: Any) -> list[str]:
    """All ids, read rightly: `next` as it was sent, below the base."""
    listing = search(fake, cql, **params)
    found = ids(listing)
    while following := listing["_links"].get("next"):
        listing = requests.get(f"{listing['_links']['base']}{following}", auth=fake.basic, timeout=5).json()
        found += ids(listing)
    return found
