"""Workshops: in a database that the tests of a file share, each test with a tenant of its own, or in one alone."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from pipeline.database.engine import Database
from tests.conftest import Addresses
from tests.pipeline.shelf import Shelf
from tests.pipeline.workshop import Workshop, document, paragraphs


@pytest.fixture
def shop(shared_database: Database) -> Workshop:
    """A source called `notes` of a new tenant; other tests have left their tenants behind."""
    return Workshop(shared_database, uuid4(), uuid4())


@pytest.fixture
def alone(addresses: Addresses) -> Iterator[Workshop]:
    """A source in a database of its own, with connections for many threads: for what looks at all tenants."""
    database = Database(addresses.app, addresses.control, pool_size=12)
    yield Workshop(database, uuid4(), uuid4())
    database.close()


@pytest.fixture
def shelf(alone: Workshop) -> Shelf:
    """Two documents that are searchable, and an empty second index."""
    alone.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "other")))
    alone.index()
    return Shelf(alone)
