"""A database that is slow is waited for, one that says nothing is gone, and the way to it is gone seldom."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy import text

from pipeline.database.engine import Database, translated
from pipeline.database.timed_connection import TimedConnection
from pipeline.errors import StoreSilent, StoreUnavailable
from tests.conftest import Addresses
from tests.fakes.tcp_proxy import TcpProxy


@pytest.fixture
def proxy(addresses: Addresses) -> Iterator[TcpProxy]:
    with TcpProxy.to(addresses.app) as made:
        yield made


def test_a_server_that_answers_slowly_is_waited_for_answer_by_answer(
    proxy: TcpProxy, addresses: Addresses
) -> None:
    """Three answers let a connection in, which together take longer than one may."""
    proxy.delay = 1.1
    begun = time.monotonic()
    with TimedConnection.opened(3.0, proxy.url(addresses.app)) as connection:
        assert time.monotonic() - begun > 3.0, "the proxy does not slow it down"
        assert connection.execute("select 1").fetchone() == (1,)
        proxy.delay = 0


def test_a_server_that_lets_nobody_in_is_found_out_after_one_silence(
    proxy: TcpProxy, addresses: Addresses
) -> None:
    proxy.freeze()
    database = Database(proxy.url(addresses.app), answer_timeout=0.5)
    with pytest.raises(StoreSilent, match=r"no answer within 0\.5 seconds"), database.tenant(uuid4()):
        pass
    proxy.thaw()
    database.close()


def test_a_server_that_is_being_started_is_waited_for(proxy: TcpProxy, addresses: Addresses) -> None:
    """As after a crash, while it reads its log."""
    proxy.starting = True
    hasty = Database(proxy.url(addresses.app), answer_timeout=5)
    with pytest.raises(StoreUnavailable, match="starting up"), hasty.tenant(uuid4()):
        pass
    patient = Database(proxy.url(addresses.app), answer_timeout=5, start_timeout=30)
    threading.Timer(1.0, setattr, (proxy, "starting", False)).start()
    begun = time.monotonic()
    with patient.tenant(uuid4()):
        assert time.monotonic() - begun > 0.9
    for one in (hasty, patient):
        one.close()


def test_the_ways_to_the_server_are_few(proxy: TcpProxy, addresses: Addresses) -> None:
    """Where each takes two seconds, their number decides whether Step 4 is answered in time."""
    database = Database(proxy.url(addresses.app))

    def ways_of_one() -> int:
        before = proxy.ways
        with database.tenant(uuid4()) as connection:
            connection.execute(text("select 1"))
        return proxy.ways - before

    first, second = ways_of_one(), ways_of_one()
    assert second == 3, "the tenant with its BEGIN, the statement, COMMIT"
    with database.tenant(uuid4()):
        further = ways_of_one() - second
    assert further <= 5, "three for the password, and the types of vectors"
    assert first - second <= 12, "the same, and what the library wants to know of a server it sees first"
    database.close()


def test_a_host_of_several_addresses_is_silent_as_long_as_one_of_them() -> None:
    """As localhost is, which stands for one address of each version of the protocol."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        where = (
            f"host=localhost,localhost,other hostaddr=127.0.0.1,127.0.0.1,127.0.0.1 port={port},{port},{port}"
        )
        begun = time.monotonic()
        with pytest.raises(StoreSilent) as caught, translated():
            TimedConnection.opened(1.0, where)
        assert 2.0 <= time.monotonic() - begun < 2.9, "another host is asked, another address of one is not"
    assert caught.value.message == "the database says nothing: no answer within 1 seconds"
