"""Servers on loopback for the tests of the edge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fakes.server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        yield made


@pytest.fixture
def elsewhere() -> Iterator[ScriptedServer]:
    with ScriptedServer() as made:
        yield made
