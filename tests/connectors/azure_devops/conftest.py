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
def tenths(monkeypatch: pytest.MonkeyPatch) -> None:
    """We ask for a tenth at once: 23 items are as many batches and pages as 230."""
    monkeypatch.setattr("connectors.azure_devops.source.BATCH", 20)
    monkeypatch.setattr("connectors.azure_devops.source.PAGE_ITEMS", 5)


@pytest.fixture
def services() -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(pat=PAT) as running:
        running.add_project("Web")
        running.add_project("Other")
        yield running
