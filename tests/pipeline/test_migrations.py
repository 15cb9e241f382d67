"""Migrations may be run again, by two at once, and lead to what the code needs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from pipeline import migrations
from tests.conftest import Addresses, with_database
from workers import embedded


@pytest.fixture
def empty(
    servers: embedded.Servers, template: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> Iterator[str]:
    """The owner's address of a database without tables."""
    name = "empty_for_migrations"
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} owner larder_owner")
    with superuser(name) as connection:
        connection.execute("create extension vector")
        connection.execute("grant create on schema public to larder_owner")
    yield with_database(servers.admin_url, name)
    with superuser("postgres") as connection:
        connection.execute(f"drop database {name} with (force)")


def shape(connection: psycopg.Connection[Any]) -> list[Any]:
    return connection.execute("""
        select table_name, column_name, data_type from information_schema.columns
        where table_schema = 'public' order by 1, 2""").fetchall()


def current(url: str) -> str | None:
    engine = migrations.owner_engine(url)
    try:
        return migrations.current(engine)
    finally:
        engine.dispose()


def test_a_migrated_database_is_at_the_newest_revision(addresses: Addresses) -> None:
    assert current(addresses.admin) == migrations.newest()


def test_a_second_upgrade_changes_nothing(addresses: Addresses, omniscient: psycopg.Connection[Any]) -> None:
    before = shape(omniscient)
    assert migrations.upgrade(addresses.admin) == migrations.newest()
    assert shape(omniscient) == before
    assert len(before) > 100


def test_two_at_once_run_each_step_once(empty: str) -> None:
    assert current(empty) is None
    reached: list[str] = []
    threads = [threading.Thread(target=lambda: reached.append(migrations.upgrade(empty))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reached == [migrations.newest()] * 2
    assert current(empty) == migrations.newest()


def test_logins_are_given_to_the_two_roles_only(
    addresses: Addresses, servers: embedded.Servers, omniscient: psycopg.Connection[Any]
) -> None:
    before = omniscient.execute("select rolpassword from pg_authid where rolname = 'postgres'").fetchone()
    migrations.give_logins(addresses.admin, {"postgres": "taken'over"})
    after = omniscient.execute("select rolpassword from pg_authid where rolname = 'postgres'").fetchone()
    assert before == after
