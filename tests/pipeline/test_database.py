"""Connections act as the role and tenant they were asked for, and nothing else."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from pgvector import HalfVector, Vector
from pgvector.psycopg.halfvec import HalfVectorDumper
from pgvector.psycopg.vector import VectorDumper
from sqlalchemy import Connection, Engine, text

from pipeline.database.driver_errors import translate
from pipeline.database.engine import (
    MAX_STATEMENT_SIZE,
    ROW_SIZE,
    SPARE_CONNECTIONS,
    Database,
    ServerTimeouts,
    Transfer,
    driver_of,
    lift_statement_timeout,
    transfer,
)
from pipeline.database.migrations import owner_engine
from pipeline.errors import StoreError, StoreHindered, StoreRejected, StoreUnavailable
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


@pytest.mark.parametrize(
    "statement",
    [
        "select cast(:v as integer)",
        "select cast(cast(:v as text) as integer)",
        "insert into tenant (id, name) values (gen_random_uuid(), :v)",
        "insert into worker (name, queues) values (:v, 'x')",
        "select * from no_such_table where name = :v",
    ],
)
def test_no_value_is_in_an_error_or_its_traceback(database: Database, statement: str) -> None:
    value = str(uuid4())  # which no line of the traceback shows
    with pytest.raises(StoreError) as caught, database.tenant(uuid4()) as connection:
        connection.execute(text(statement), {"v": value}).all()
    assert value not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "state",
    [
        "53100",
        "53200",
        "53300",
        "25006",
        "58030",
        "42703",
        "42P01",
        "42501",
        "23503",
        "40P01",
        "57014",
        "57P01",
        "XX000",
        "XX001",
    ],
)
def test_trouble_of_the_server_or_its_tables_is_waited_for(state: str) -> None:
    error = translate(psycopg.errors.lookup(state)("no room"))
    assert isinstance(error, StoreUnavailable)
    assert (error.transient, error.waits) == (True, True)


@pytest.mark.parametrize("state", ["22001", "22021", "22P02", "23502", "23505", "23514", "54000", "P0001"])
def test_a_value_that_nobody_could_write_is_refused_for_good(state: str) -> None:
    assert isinstance(translate(psycopg.errors.lookup(state)("no such value")), StoreRejected)


def test_a_server_that_only_reads_is_waited_for(database: Database) -> None:
    with pytest.raises(StoreHindered, match="read-only") as caught, database.tenant(uuid4()) as connection:
        connection.exec_driver_sql(
            "set transaction read only; insert into tenant values (current_tenant(), 'x')"
        )
    assert "not a standby" in caught.value.fix


def test_plans_are_kept_only_where_that_is_asked_for(database: Database) -> None:
    with database.tenant(uuid4()) as connection:
        assert connection.execute(text("show plan_cache_mode")).scalar() == "force_custom_plan"
    for _ in range(10):
        assert database.fetch(uuid4(), "select 'once' || %(v)s::text", {"v": "x"}, one_plan=True) == [
            ("oncex",)
        ]
        assert database.fetch(uuid4(), "select 'anew' || %(v)s::text", {"v": "x"}) == [("anewx",)]
    kept = "select statement, generic_plans > 0 from pg_prepared_statements"
    ((statement, generic),) = database.fetch(uuid4(), kept, {})
    assert "once" in statement
    assert generic, "planned anew for each value"


# --- clients that stall ---


@pytest.fixture
def opened(addresses: Addresses) -> Iterator[Callable[..., Database]]:
    """Ways into this test's database for two clients of this patience."""
    with ExitStack() as stack:

        def make(**patience: float) -> Database:
            made = Database(addresses.app, addresses.control, timeouts=ServerTimeouts(**patience))
            stack.callback(made.close)
            return made

        yield make


LOCK = text("select pg_advisory_xact_lock(7)")


def seconds_until_free(database: Database) -> float:
    """How long somebody else waits for the lock."""
    begun = time.monotonic()
    with database.control() as connection:
        connection.execute(LOCK)
    return time.monotonic() - begun


def test_who_stalls_in_the_middle_of_a_transaction_keeps_its_locks_no_longer_than_a_lease(
    opened: Callable[..., Database],
) -> None:
    """Frozen, or its machine gone without a word: the server hears nothing in either case."""
    stalled, waited = opened(idle=0.5), []

    def stall() -> None:
        with stalled.tenant(uuid4()) as connection:
            connection.execute(LOCK)
            waited.append(seconds_until_free(opened()))
            connection.execute(text("select 1"))  # it wakes up

    with pytest.raises(StoreUnavailable):
        stall()
    assert 0.3 < waited[0] < 3
    with stalled.tenant(uuid4()) as connection:
        assert connection.execute(LOCK).all(), "the next transaction has a connection that lives"


def test_who_stalls_while_it_sends_rows_keeps_its_locks_no_longer_than_a_statement_may_take(
    opened: Callable[..., Database],
) -> None:
    """The pump looks for such at each tick."""
    stalled, other = opened(), opened(statement=0.3)

    def stall() -> None:
        with stalled.tenant(uuid4()) as connection:
            connection.execute(LOCK)
            connection.execute(text("create temporary table sent (n integer)"))
            with driver_of(connection) as driver, driver.cursor().copy("copy sent from stdin") as copy:
                other.end_stalled()
                with pytest.raises(StoreUnavailable):
                    seconds_until_free(opened(lock=0.1))
                time.sleep(0.5)
                other.end_stalled()
                assert seconds_until_free(other) < 1
                copy.write_row([1])

    with pytest.raises(StoreUnavailable):
        stall()


def test_nobody_waits_for_a_lock_for_ever(opened: Callable[..., Database]) -> None:
    with opened().control() as connection:
        connection.execute(LOCK)
        with pytest.raises(StoreUnavailable), opened(lock=0.2).tenant(uuid4()) as second:
            second.execute(LOCK)


def test_only_what_touches_every_row_may_take_long(opened: Callable[..., Database]) -> None:
    database, slow = opened(statement=0.2), text("select pg_sleep(0.5)")
    with pytest.raises(StoreUnavailable), database.control() as connection:
        connection.execute(slow)
    with database.control() as connection:
        lift_statement_timeout(connection)
        connection.execute(slow)
    with pytest.raises(StoreUnavailable), database.control() as connection:
        connection.execute(slow)


def test_every_kind_of_connection_is_ended_below_the_lease_and_told_from_a_machine_that_is_gone(
    database: Database, addresses: Addresses
) -> None:
    assert ServerTimeouts.within(120, 15) == ServerTimeouts(), (
        "those of the queue and of enrichments by default"
    )
    asked = text("""
        select cast(current_setting('idle_in_transaction_session_timeout') as interval)
                   between interval '1 s' and interval '14 s',  -- 0 is never
               current_setting('tcp_keepalives_idle') = '15',
               current_setting('lock_timeout') <> '0', current_setting('statement_timeout') <> '0'""")
    for engine in (database.app, database.query_engine, database.controller):
        with engine.connect() as connection:
            assert tuple(connection.execute(asked).one()) == (True, True, True, True)
            client = connection.connection.driver_connection.info.get_parameters()  # type: ignore[union-attr]
            assert client["keepalives_idle"] == "15"
    owner = owner_engine(addresses.admin)
    with owner.connect() as connection:
        # A step of a migration takes as long as it takes.
        assert tuple(connection.execute(asked).one()) == (True, False, False, False)
    owner.dispose()


# --- one statement, one round trip ---


def in_pool(database: Database) -> tuple[int, int]:
    """Connections for questions: idle, in use."""
    pool: Any = database.query_engine.pool
    return pool.checkedin(), pool.checkedout()


def test_a_question_is_asked_as_its_tenant_and_leaves_nothing_behind(database: Database) -> None:
    tenant = uuid4()
    asked = (
        "select current_tenant(), current_user, current_setting('hnsw.ef_search'), %(n)s::int + %(n)s::int"
    )
    assert database.fetch(tenant, asked, {"n": 2, "unused": 3}, ef_search=300) == [
        (tenant, "larder_app", "300", 4)
    ]
    kept = (
        "select current_tenant(), current_setting('hnsw.ef_search'), current_setting('hnsw.iterative_scan')"
    )
    with database.query_engine.connect() as connection:
        assert tuple(connection.exec_driver_sql(kept).one()) == (None, "100", "relaxed_order")


def test_what_is_asked_is_one_transaction(database: Database) -> None:
    """The tenant is set for a transaction, and the statement that follows is in the same."""
    same = "select current_setting('app.tenant') = %(t)s, pg_current_xact_id() = pg_current_xact_id()"
    tenant = uuid4()
    assert database.fetch(tenant, same, {"t": str(tenant)}) == [(True, True)]
    with pytest.raises(StoreRejected):
        database.fetch(tenant, "select cast(%(v)s as integer)", {"v": "sesame"})
    with database.tenant(tenant) as connection:
        connection.execute(text("insert into tenant (id, name) values (:t, 'x')"), {"t": tenant})
    assert database.fetch(tenant, "select name from tenant", {}) == [("x",)]
    assert database.fetch(uuid4(), "select name from tenant", {}) == []


def test_a_refused_question_shows_no_values_and_harms_no_later_one(database: Database) -> None:
    for _ in range(3):
        with pytest.raises(StoreRejected) as caught:
            database.fetch(uuid4(), "select cast(%(v)s as integer)", {"v": "sesame"})
        assert not caught.value.transient
        assert "select" not in str(caught.value)
        with database.tenant(uuid4()) as connection:
            assert connection.execute(text("select 1")).scalar() == 1
        assert database.fetch(uuid4(), "select 1", {}) == [(1,)]


def test_connections_that_the_server_has_ended_are_replaced(
    database: Database, addresses: Addresses, superuser: Callable[[str], psycopg.Connection[Any]]
) -> None:
    """No connection is asked beforehand whether it is alive, so the first use must find out."""

    def end_all() -> None:
        with ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(database.tenant(uuid4()))
        with superuser("postgres") as owner:
            owner.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (addresses.name,)
            )

    for _ in range(2):
        end_all()
        with database.tenant(uuid4()) as connection:
            assert connection.execute(text("select 1")).scalar() == 1
        end_all()
        assert database.fetch(uuid4(), "select 1", {}) == [(1,)]
        assert database.fetch(uuid4(), "select 2", {}) == [(2,)]


def test_who_breaks_off_leaves_no_half_answered_connection_behind(database: Database) -> None:
    """As a time limit of a worker does, by a signal that raises in the middle of waiting."""

    class LateError(Exception):
        pass

    def late(_signal: int, _frame: object) -> None:
        raise LateError

    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(LateError):
            database.fetch(uuid4(), "select pg_sleep(30)", {})
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert in_pool(database)[1] == 0
    assert database.fetch(uuid4(), "select 1", {}) == [(1,)]


def test_a_connection_that_is_closed_leaves_nothing_behind(addresses: Addresses) -> None:
    """The library makes classes for each connection, and the driver keeps all it has seen: 5 KB each time."""
    database = Database(addresses.app)

    def classes() -> int:
        seen = [VectorDumper, HalfVectorDumper]
        for one in seen:
            seen += one.__subclasses__()
        return len(seen)

    def connect() -> int:
        vector = HalfVector([1, 2])
        found = database.fetch(
            uuid4(), "select %(v)s::halfvec as v, %(w)s::vector as w", {"v": vector, "w": Vector([3])}
        )
        assert [one.to_list() for one in found[0]] == [[1.0, 2.0], [3.0]]
        database.query_engine.dispose()
        return classes()

    first = connect()
    assert {connect() for _ in range(5)} == {first}
    database.close()


def test_many_who_ask_at_once_wait_for_each_other(
    addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many connections and no more, which stay open: a new one costs as much as a search."""
    database, most = Database(addresses.app, pool_size=1), 1 + SPARE_CONNECTIONS
    active = """
        select count(*) from pg_sleep(.2), pg_stat_activity
        where datname = current_database() and application_name = 'larder-app' and state = 'active'"""
    with ThreadPoolExecutor(3 * most) as threads:
        answers = list(threads.map(lambda _: database.fetch(uuid4(), active, {}), range(3 * most)))
    assert 1 < max(count for ((count,),) in answers) <= most
    assert in_pool(database) == (most, 0)
    monkeypatch.setattr(database.query_engine.pool, "_timeout", 0.2)
    with ThreadPoolExecutor(most) as threads:
        slow = [threads.submit(database.fetch, uuid4(), "select pg_sleep(3)", {}) for _ in range(most)]
        while in_pool(database)[1] < most:
            time.sleep(0.01)
        with pytest.raises(StoreUnavailable):
            database.fetch(uuid4(), "select 1", {})
        assert [len(one.result()) for one in slow] == [1] * most
    assert database.fetch(uuid4(), "select 1", {}) == [(1,)]
    database.close()
    assert in_pool(database)[0] == 0
    assert database.fetch(uuid4(), "select 1", {}) == [(1,)], "closed is not over"
    database.close()


def test_a_transaction_that_no_connection_is_free_for_is_passing_trouble(
    addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an API whose threads all wait for a slow database; threads that live on errors of ours live on."""
    database = Database(addresses.app, addresses.control, pool_size=1)
    ways: dict[Engine, Callable[[], AbstractContextManager[Connection]]] = {
        database.app: partial(database.tenant, uuid4()),
        database.controller: database.control,
    }
    for engine, begin in ways.items():
        monkeypatch.setattr(engine.pool, "_timeout", 0.2)
        with ExitStack() as held:
            for _ in range(1 + SPARE_CONNECTIONS):
                held.enter_context(begin())
            with pytest.raises(StoreUnavailable, match="became free"), begin():
                pass
        with begin() as connection:
            assert connection.execute(text("select 1")).scalar_one() == 1
    database.close()


def test_a_question_to_a_server_that_is_away_is_passing_trouble() -> None:
    away = Database("postgresql://larder_app:x@127.0.0.1:1/larder")
    with pytest.raises(StoreUnavailable):
        away.fetch(uuid4(), "select 1", {})


def test_whoever_has_no_time_gives_up_on_a_server_that_says_nothing(addresses: Addresses) -> None:
    with TcpProxy.to(addresses.app) as proxy:
        database = Database(proxy.url(addresses.app), answer_timeout=0.5)
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
        database = Database(proxy.url(addresses.app), answer_timeout=0.5)
        with pytest.raises(StoreUnavailable), database.tenant(uuid4()) as connection:  # noqa: PT012 (both can raise)
            connection.execute(text("select 1"))
            proxy.freeze()
            connection.execute(text("select 2"))
        proxy.thaw()
        with database.tenant(uuid4()) as connection:
            assert connection.execute(text("select 3")).scalar() == 3
        database.close()


def test_a_question_gives_up_on_a_server_that_says_nothing(addresses: Addresses) -> None:
    with TcpProxy.to(addresses.app) as proxy:
        database = Database(proxy.url(addresses.app), answer_timeout=0.5)
        assert database.fetch(uuid4(), "select 1", {}) == [(1,)]
        proxy.freeze()
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            database.fetch(uuid4(), "select 2", {})
        assert 0.4 < time.monotonic() - begun < 20
        proxy.thaw()
        assert database.fetch(uuid4(), "select 3", {}) == [(3,)]
        database.close()


@pytest.mark.parametrize(
    "texts", [["x" * (MAX_STATEMENT_SIZE // 3)] * 7, [""] * (MAX_STATEMENT_SIZE // ROW_SIZE + 7)]
)
def test_rows_go_in_parts_that_the_server_takes(database: Database, texts: list[str]) -> None:
    how = Transfer(
        columns="n int4, body text", insert="insert into sent select n, length(body) from {incoming}"
    )
    arrived = []
    with database.tenant(uuid4()) as connection:
        connection.execute(text("create temporary table sent (n integer, length integer)"))

        def rows() -> Iterator[tuple[int, str]]:
            yield from enumerate(texts)
            arrived.append(connection.execute(text("select count(*) from sent")).scalar_one())
            yield len(texts), "x" * 2 * MAX_STATEMENT_SIZE

        transfer(connection, how, rows())
        found = connection.execute(text("select length from sent order by n")).scalars().all()
    assert found == [*map(len, texts), 2 * MAX_STATEMENT_SIZE], (
        "all, and one that is too long by itself alone"
    )
    assert 0 < arrived[0] < len(texts), "what is ready is sent before the next is asked for"
