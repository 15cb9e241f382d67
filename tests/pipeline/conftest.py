"""Workshops: in a database that the tests of a file share, each test with a tenant of its own, or in one alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from pipeline.database import Database
from tests.conftest import Addresses, with_database
from tests.pipeline.workshop import Workshop
from workers import embedded


@pytest.fixture(scope="module")
def shared_addresses(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    template: str,
    superuser: Callable[[str], psycopg.Connection[Any]],
) -> Iterator[Addresses]:
    """One database for the tests of a file: copying the template costs more than most of them."""
    name = f"shared_{os.getpid()}_{abs(hash(request.node.nodeid))}"
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} template {template} owner larder_owner")
    yield Addresses(
        name=name,
        app=with_database(servers.database_url, name),
        control=with_database(servers.control_url, name),
        admin=with_database(servers.admin_url, name),
    )
    with superuser("postgres") as connection:
        connection.execute(f"drop database if exists {name} with (force)")


@pytest.fixture(scope="module")
def shared_database(shared_addresses: Addresses) -> Iterator[Database]:
    """The application's two ways into the shared database."""
    made = Database(shared_addresses.app, shared_addresses.control, pool_size=12)
    yield made
    made.close()


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
