"""A small Azure DevOps for each test, once as Services and once as a Server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.azure_devops.world import PAT
from tests.fakes.azure_devops import FakeAzureDevOps


@pytest.fixture(params=[None, "DefaultCollection"], ids=["services", "server"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(server_collection=request.param, pat=PAT) as running:
        running.add_project("Web")
        running.add_project("Other")
        yield running


@pytest.fixture
def services() -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(pat=PAT) as running:
        running.add_project("Web")
        running.add_project("Other")
        yield running
