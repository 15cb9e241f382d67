"""Connections act as the role and tenant they were asked for, and nothing else."""

from __future__ import annotations

import time
from uuid import uuid4

import pytest
from sqlalchemy import text

from pipeline.database import Database
from pipeline.errors import StoreRejected, StoreUnavailable
from tests.conftest import Addresses
from tests.fakes.tcp_proxy import TcpProxy


def test_each_way_in_acts_as_its_role(database: Database) -> None:
    with database.tenant(uuid4()) as connection:
        assert connection.execute(text("select current_user")).scalar() == "larder_app"
    with database.control() as connection:
        assert connection.execute(text("select current_user")).scalar() == "larder_control"


def test_the_tenant_ends_with_its_transaction(database: Database) -> None:
    tenant = uuid4()
    with database.tenant(tenant) as connection:
        assert connection.execute(text("select current_tenant()")).scalar() == tenant
    with database.app.begin() as connection:
        assert connection.execute(text("select current_tenant()")).scalar() is None


def test_only_steps_that_can_be_done_again_do_not_wait_for_the_disk(database: Database) -> None:
    shown = text("select setting, source from pg_settings where name = 'synchronous_commit'")
    with database.tenant(uuid4(), durable=False) as connection:
        assert tuple(connection.execute(shown).one()) == ("off", "session")
    with database.tenant(uuid4()) as connection:
        assert connection.execute(shown).one().source != "session", "it outlived its transaction"


def test_a_server_that_is_away_is_passing_trouble() -> None:
    away = Database("postgresql://larder_app:x@127.0.0.1:1/larder")
    with pytest.raises(StoreUnavailable), away.tenant(uuid4()):
        pass


def test_a_refused_statement_is_no_passing_trouble_and_shows_no_values(database: Database) -> None:
    with pytest.raises(StoreRejected) as caught, database.tenant(uuid4()) as connection:
        connection.execute(text("select cast(:v as integer)"), {"v": "sesame"}).all()
    assert not caught.value.transient
    assert "select" not in str(caught.value)


def test_plans_are_never_generic(database: Database) -> None:
    with database.tenant(uuid4()) as connection:
        assert connection.execute(text("show plan_cache_mode")).scalar() == "force_custom_plan"


def test_whoever_has_no_time_gives_up_on_a_server_that_says_nothing(addresses: Addresses) -> None:
    with TcpProxy.to(addresses.app) as proxy:
        database = Database(proxy.url(addresses.app), patience=0.5)
        with database.tenant(uuid4()) as connection:
            assert connection.execute(text("select 1")).scalar() == 1
        for what in ("with a connection", "without one"):
            proxy.freeze()
            begun = time.monotonic()
            with pytest.raises(StoreUnavailable), database.tenant(uuid4()):
                pass
            assert 0.4 < time.monotonic() - begun < 20, what
        proxy.thaw()
        with database.tenant(uuid4()) as connection:
            assert connection.execute(text("select 2")).scalar() == 2
        database.close()


def test_in_the_middle_of_a_transaction_as_well(addresses: Addresses) -> None:
    with TcpProxy.to(addresses.app) as proxy:
        database = Database(proxy.url(addresses.app), patience=0.5)
        with pytest.raises(StoreUnavailable), database.tenant(uuid4()) as connection:  # noqa: PT012 (both can raise)
            connection.execute(text("select 1"))
            proxy.freeze()
            connection.execute(text("select 2"))
        proxy.thaw()
        with database.tenant(uuid4()) as connection:
            assert connection.execute(text("select 3")).scalar() == 3
        database.close()
