"""The store of a tenant of its own, in a database that the tests of a file share."""

from __future__ import annotations

from uuid import uuid4

import pytest

from pipeline.database.engine import Database
from pipeline.ledger import sources
from tests.contracts.stores.stock import NOWHERE, InLedger


@pytest.fixture
def store(shared_database: Database) -> InLedger:
    tenant = uuid4()
    with shared_database.tenant(tenant) as connection:
        sources.ensure_tenant(connection, tenant, str(tenant), NOWHERE, "nowhere")
    return InLedger(shared_database, tenant)
