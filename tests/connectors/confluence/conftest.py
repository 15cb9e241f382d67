"""A small Confluence for each test: Cloud, and a Server below a context path.

One at the root of its host does the same with a shorter address: tests of addresses and first syncs look at it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.confluence.world import confluence
from tests.fakes.confluence import FakeConfluence


def _with_spaces(kind: str) -> Iterator[FakeConfluence]:
    with confluence(kind) as running:
        running.add_space("ENG", "Engineering")
        running.add_space("OPS")
        yield running


@pytest.fixture(params=["cloud", "server-context"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeConfluence]:
    yield from _with_spaces(request.param)


@pytest.fixture
def cloud() -> Iterator[FakeConfluence]:
    yield from _with_spaces("cloud")


@pytest.fixture
def server() -> Iterator[FakeConfluence]:
    yield from _with_spaces("server-context")
