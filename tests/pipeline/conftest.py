"""Workshops: in a database that the tests of a file share, each test with a tenant of its own, or in one alone."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from pipeline.database.engine import Database
from tests.conftest import Addresses
from tests.pipeline.second_index import SecondIndex
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs


@pytest.fixture
def notes(shared_database: Database) -> SourceLedger:
    """A source called `notes` of a new tenant; other tests have left their tenants behind."""
    return SourceLedger(shared_database, uuid4(), uuid4())


@pytest.fixture
def alone(addresses: Addresses) -> Iterator[SourceLedger]:
    """A source in a database of its own, with connections for many threads: for what looks at all tenants."""
    database = Database(addresses.app, addresses.control, pool_size=12)
    yield SourceLedger(database, uuid4(), uuid4())
    database.close()


@pytest.fixture
def second_index(alone: SourceLedger) -> SecondIndex:
    """Two documents that are searchable, and an empty second index."""
    alone.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "other")))
    alone.index()
    return SecondIndex(alone)
