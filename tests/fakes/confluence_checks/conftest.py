"""A fake Confluence of every kind, of Cloud alone, and of a Server alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.confluence import FakeConfluence
from tests.fakes.confluence_checks.asking import (
    KINDS,
    make,
)


@pytest.fixture(params=KINDS)
def fake(request: pytest.FixtureRequest) -> Iterator[FakeConfluence]:
    with make(request.param) as made:
        made.add_space("ENG", "Engineering")
        yield made


@pytest.fixture
def cloud() -> Iterator[FakeConfluence]:
    with FakeConfluence("cloud") as made:
        made.add_space("ENG", "Engineering")
        yield made


@pytest.fixture(params=KINDS[1:])
def server(request: pytest.FixtureRequest) -> Iterator[FakeConfluence]:
    with make(request.param) as made:
        made.add_space("ENG", "Engineering")
        yield made
