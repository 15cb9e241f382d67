"""The store of a tenant of its own."""

from __future__ import annotations

from uuid import UUID

import pytest

from pipeline.database.engine import Database
from tests.contracts.stores.stock import InLedger


@pytest.fixture
def store(database: Database, tenant: UUID) -> InLedger:
    return InLedger(database, tenant)
