"""Each store in turn; one joins by an entry in FACTORIES."""

from __future__ import annotations

import pytest

from pipeline.search.chunks import VectorStore
from tests.contracts.stores.stock import FACTORIES


@pytest.fixture(params=sorted(FACTORIES))
def store(request: pytest.FixtureRequest) -> VectorStore:
    return FACTORIES[str(request.param)](request)
