"""Connections to PostgreSQL: an engine per role and use, the tenant set in each transaction, bulk inserts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any, Self
from uuid import UUID

import psycopg
from pgvector import HalfVector, Vector
from pgvector.psycopg.halfvec import register_halfvec_info
from pgvector.psycopg.vector import register_vector_info
from psycopg.adapt import AdaptersMap, PyFormat
from psycopg.pq import Format, TransactionStatus
from psycopg.types import TypeInfo
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as NoneFree

from pipeline.database.driver_errors import RETRY_ADVICE, message_of, translate
from pipeline.database.timed_connection import TimedConnection
from pipeline.errors import StoreUnavailable

APP_ROLE = "larder_app"
CONTROL_ROLE = "larder_control"

EF_SEARCH = 100
"""`hnsw.ef_search`, unless a search sets more."""
SPARE_CONNECTIONS = 4
"""Connections of a pool beyond `pool_size`; kept open, since a new one costs as much as a search."""


@dataclass(frozen=True, kw_only=True)
class ServerTimeouts:
    """Server-side timeouts of our connections, in seconds, so that a stalled client does not hold locks.

    The defaults match the default leases of the queue, 120 and 15 seconds.
    """

    idle: float = 10.0
    """Silence of a client inside a transaction, as of a frozen process; shorter than each lease."""
    lock: float = 30.0
    """Wait for a lock."""
    statement: float = 120.0
    """Duration of one statement, which a client may stall as well; `lift_statement_timeout` lifts it."""

    @classmethod
    def within(cls, *leases: float) -> Self:
        """Timeouts that release locks within the shortest lease, or within the longest during a statement."""
        idle = min(leases) * 2 / 3
        lock = max(2 * idle, max(leases) / 4)
        return cls(idle=idle, lock=lock, statement=4 * lock)

    @property
    def options(self) -> str:
        """The connection options; they also end the statements of a client that is gone."""
        server_settings = {
            "idle_in_transaction_session_timeout": self.idle,
            "lock_timeout": self.lock,
            "statement_timeout": self.statement,
            "tcp_user_timeout": self.lock,
            "client_connection_check_interval": self.idle,
        }
        return "".join(f" -c {name}={round(seconds * 1000)}ms" for name, seconds in server_settings.items())


KEEPALIVES = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Driver options that detect a lost machine within half a minute; keepalives in seconds, `tcp_user_timeout` in ms."""
_SERVER_KEEPALIVES = " -c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"


def commit_soon(connection: Connection) -> None:
    """Do not wait for the disk at the commit of this transaction, as with `durable=False`."""
    connection.exec_driver_sql("set local synchronous_commit = off")


def lift_statement_timeout(connection: Connection) -> None:
    """Remove the statement timeout of this transaction, for statements that touch every row of a table."""
    connection.exec_driver_sql("set local statement_timeout = 0")


# jit costs more than it saves on statements of milliseconds. The vector index continues until enough rows pass the
# filter. Set for the connection, since setting it in each transaction would cost a round trip.
_OPTIONS = (
    "-c plan_cache_mode={plans} -c jit=off -c timezone=UTC"
    f" -c hnsw.iterative_scan=relaxed_order -c hnsw.ef_search={EF_SEARCH}{_SERVER_KEEPALIVES}"
)


def open_engine(
    url: str,
    *,
    role: str,
    pool_size: int = 2,
    answer_timeout: float | None = None,
    start_timeout: float = 0.0,
    timeouts: ServerTimeouts = ServerTimeouts(),
    ping: bool = True,
    autocommit: bool = False,
) -> Engine:
    """An engine whose connections act as `role`, whatever the login; it connects on first use.

    With `answer_timeout` a server that is silent for so many seconds counts as gone, and a starting server is waited
    for `start_timeout` seconds. `ping` checks each connection before use. `autocommit` is for `Database.fetch`: each
    statement is a transaction and decides whether its plan may be cached. Elsewhere no plan is cached: the driver
    prepares frequent statements, and a generic plan ignores the selectivity of a filter (after five runs recall fell
    to 8 %).
    """
    plans = "auto" if autocommit else "force_custom_plan"
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_pre_ping=ping,
        hide_parameters=True,  # texts, vectors and passwords stay out of errors
        use_native_hstore=False,  # saves the round trips that look up its type
        connect_args={
            **KEEPALIVES,
            "options": f"{_OPTIONS.format(plans=plans)}{timeouts.options} -c role={role}",
            "connect_timeout": 20,  # four answers of a slow server
            "application_name": role.replace("_", "-"),
        },
        pool_size=pool_size + SPARE_CONNECTIONS,
        max_overflow=0,
        **({"isolation_level": "AUTOCOMMIT"} if autocommit else {}),
    )

    @event.listens_for(engine, "connect")
    def _register(connection: Any, _record: Any) -> None:
        register_vectors(connection)

    if answer_timeout is not None:

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: Any, _record: Any, args: Any, parameters: Any) -> TimedConnection:
            return TimedConnection.opened(answer_timeout, *args, start_timeout=start_timeout, **parameters)

    return engine


_TENANT = "begin; select set_config('app.tenant', '{}', true)"
_TENANT_SOON = _TENANT + ", set_config('synchronous_commit', 'off', true)"


class Database:
    """Access to the database: as one tenant, or as the control role that sees no texts."""

    def __init__(
        self,
        app_url: str,
        control_url: str | None = None,
        *,
        pool_size: int = 2,
        answer_timeout: float | None = None,
        start_timeout: float = 0.0,
        timeouts: ServerTimeouts = ServerTimeouts(),
    ) -> None:
        """Timeouts as in `open_engine`; without `answer_timeout` answers are waited for without limit."""
        opened = partial(open_engine, pool_size=pool_size, timeouts=timeouts)
        opened = partial(opened, answer_timeout=answer_timeout, start_timeout=start_timeout)
        self._timeouts = timeouts
        self.app = opened(app_url, role=APP_ROLE, ping=False)
        self.query_engine = opened(app_url, role=APP_ROLE, ping=False, autocommit=True)
        self.controller = opened(control_url or app_url, role=CONTROL_ROLE)

    @contextmanager
    def tenant(self, tenant_id: UUID, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that sees and writes only this tenant's rows; committed at the end.

        `durable=False` does not wait for the disk: if the server dies, the commits of the last half second may be
        lost, the newest first. Right for work items, which are then done again (it saves 50 ms per commit while a
        disk is busy). Wrong for results that a person has seen or a provider was paid for, and for callers that
        continue from memory, as a walk does.

        Raises:
            StoreUnavailable: the server cannot be reached, or the connection broke; worth a retry.
            StoreRejected: the server refuses a value.
        """
        first = (_TENANT if durable else _TENANT_SOON).format(UUID(str(tenant_id)))
        with translated(), self._begun(first) as connection:
            yield connection
            connection.commit()

    def _begun(self, first: str) -> Connection:
        """A connection in a transaction that begins with these statements.

        They contain BEGIN, since the driver's own would cost a round trip. They also replace the ping: if they fail
        on a dead pooled connection, the next connection is used.
        """
        for last in (False, True):
            connection = self.app.connect().execution_options(isolation_level="AUTOCOMMIT")
            try:
                connection.begin()
                connection.exec_driver_sql(first)
            except BaseException as error:
                connection.close()
                if last or not (isinstance(error, DBAPIError) and error.connection_invalidated):
                    raise
            else:
                break
        return connection

    def fetch(
        self,
        tenant_id: UUID,
        statement: str,
        values: Mapping[str, Any],
        *,
        ef_search: int = EF_SEARCH,
        one_plan: bool = False,
    ) -> list[tuple[Any, ...]]:
        """The rows of one read-only statement as this tenant, in its own transaction and a single round trip.

        For searches, where a round trip costs as much as the work. The statement has the driver's placeholders,
        none of them named `as_...`.

        `one_plan` caches the plan of a repeated statement for all values: right only if the best plan depends on no
        value; it then saves more than the statement takes.

        Raises:
            StoreUnavailable: the server cannot be reached, or the connection broke twice.
            StoreRejected: the server refuses a value.
        """
        query, names = _as_tenant(statement, ef_search == EF_SEARCH)
        parameters = {**values, "as_tenant": str(tenant_id), "as_ef_search": str(ef_search)}
        ordered = [parameters[name] for name in names]
        with translated():
            try:
                return self._answer(query, ordered, one_plan)
            except psycopg.OperationalError as error:
                if error.sqlstate not in _CONNECTION_LOST:
                    raise
            # A pooled connection to a server that was restarted; the others are broken as well.
            self.query_engine.dispose()
            return self._answer(query, ordered, one_plan)

    def _answer(self, query: str, values: list[Any], one_plan: bool) -> list[tuple[Any, ...]]:
        pool = self.query_engine.pool
        pooled = self.query_engine.raw_connection()
        driver: Any = pooled.driver_connection
        try:
            # Unprepared statements are planned for their values; prepared ones get a generic plan after five runs.
            rows = psycopg.RawCursor(driver).execute(query, values, prepare=one_plan, binary=True).fetchall()
        finally:
            # A connection that is closed or interrupted inside an answer must not be reused, nor one whose pool was
            # disposed of meanwhile.
            if driver.pgconn.transaction_status == TransactionStatus.IDLE and pool is self.query_engine.pool:
                pooled.close()
            else:
                pooled.invalidate()
        return rows

    @contextmanager
    def control(self, audited: UUID | None = None) -> Iterator[Connection]:
        """A transaction on the ledger of all tenants, without texts; raises as `tenant` does.

        Audit entries written in it belong to the tenant `audited`.
        """
        with translated(), self.controller.begin() as connection:
            if audited:
                connection.execute(text("select set_config('app.tenant', :t, true)"), {"t": str(audited)})
            yield connection

    def end_stalled(self) -> None:
        """End connections of our login whose client stalls while it sends or reads the rows of a statement.

        The server's own timeouts do not apply while it waits for that.
        """
        stalled = text("""
            select pg_terminate_backend(pid) from pg_stat_activity
            where usename = session_user and datname = current_database() and application_name like 'larder-%'
              and state = 'active' and wait_event in ('ClientRead', 'ClientWrite')
              and query_start < clock_timestamp() - make_interval(secs => :seconds)""")
        with translated(), self.app.begin() as connection:
            connection.execute(stalled, {"seconds": self._timeouts.statement})

    def forget_connections(self) -> None:
        """Drop inherited connections in a forked child without closing the parent's."""
        for engine in (self.app, self.query_engine, self.controller):
            engine.dispose(close=False)

    def close(self) -> None:
        """Close all idle connections."""
        for engine in (self.app, self.query_engine, self.controller):
            engine.dispose()


_CONNECTION_LOST = (None, "57P01", "57P02")
"""SQL states of a connection that the server has ended; None if there was no answer."""

# The statement sets the tenant that binds it. A lateral join on a column of the left side runs after it, so that
# row-level security reads the setting in time; read too early it would be empty and no row visible. The setting ends
# with the statement, which is its own transaction.
_AS_TENANT = """
    select result.* from (select set_config('app.tenant', %(as_tenant)s, true) as tenant{more}) as setting
    cross join lateral (
        select answer.* from ({statement}) as answer where setting.tenant is not null{needs} offset 0) as result"""
_MORE = ", set_config('hnsw.ef_search', %(as_ef_search)s, true) as ef_search"


class _Numbered(dict[str, str]):
    """Maps names of values to `$1`, `$2`, ... in order of first use.

    The driver does the same a hundred times slower, and does not cache it for statements over 4,096 characters.
    """

    def __missing__(self, name: str) -> str:
        return self.setdefault(name, f"${len(self) + 1}")


@lru_cache(512)
def _as_tenant(statement: str, usual: bool) -> tuple[str, tuple[str, ...]]:
    """The statement that also sets the tenant, with numbered placeholders, and their names."""
    numbered = _Numbered()
    more, needs = ("", "") if usual else (_MORE, " and setting.ef_search is not null")
    query = _AS_TENANT.format(more=more, needs=needs, statement=statement) % numbered
    return query, tuple(numbered)


@contextmanager
def translated() -> Iterator[None]:
    """Translate the driver's errors; values of statements and rows stay out of messages and tracebacks."""
    try:
        yield
    except NoneFree:
        raise StoreUnavailable(
            "no connection to the database became free in time", fix=RETRY_ADVICE
        ) from None
    except (DBAPIError, psycopg.Error) as error:
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        original = error.orig if isinstance(error, DBAPIError) else error
        translated_error = translate(original, lost=lost)
        for one in (error, original):
            if one is not None and getattr(original, "sqlstate", None):
                one.args = (message_of(original), *one.args[1:])
        raise translated_error from error


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Columns of a bulk insert and its statement."""

    columns: str
    """Names and types, as PostgreSQL declares them."""
    insert: str
    """`insert into ... select ... from {incoming}`."""


@contextmanager
def driver_of(connection: Connection) -> Iterator[Any]:
    """The driver's connection; its errors are raised as SQLAlchemy's, which `Database` translates."""
    try:
        yield connection.connection.driver_connection
    except psycopg.Error as error:
        raise DBAPIError.instance(None, None, error, psycopg.Error) from error


MAX_STATEMENT_SIZE = 8_000_000
"""Maximum characters and bytes of one statement; some hundred millions break the connection."""
ROW_SIZE = 1000
"""Size of a row without its texts: numbers and a vector."""


def transfer(connection: Connection, target: Transfer, rows: Iterable[Sequence[Any]]) -> None:
    """Insert `rows` (tuples in column order) in the caller's transaction, mostly in one round trip.

    Rows are sent as arrays: COPY cannot write to tables with row-level security, and copying to a temporary table
    first would cost as much again.
    """
    names, types = zip(*(column.split() for column in target.columns.split(",")), strict=True)
    arrays = ", ".join(f"%b::{kind}[]" for kind in types)
    statement = target.insert.format(incoming=f"unnest({arrays}) as incoming({', '.join(names)})")
    long = [place for place, kind in enumerate(types) if kind in ("text", "bytea")]
    for part in _batches(rows, long):
        with driver_of(connection) as driver:
            driver.execute(statement, [list(column) for column in zip(*part, strict=True)])


def _batches(rows: Iterable[Sequence[Any]], long: Sequence[int]) -> Iterator[list[Sequence[Any]]]:
    """Batches of rows whose columns `long` have up to MAX_STATEMENT_SIZE together; a longer row is a batch."""
    part: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        added = ROW_SIZE + sum(len(row[place]) for place in long)
        if part and size + added > MAX_STATEMENT_SIZE:
            yield part
            part, size = [], 0
        part.append(row)
        size += added
    if part:
        yield part


_TYPES = (
    "select typname, oid, typarray from pg_type where oid in (to_regtype('vector'), to_regtype('halfvec'))"
)


def register_vectors(connection: psycopg.Connection[Any]) -> None:
    """Register the vector types on a new connection; a database without the extension is left alone.

    Takes one round trip; the library would take three per type on each connection.
    """
    before, connection.autocommit = connection.autocommit, True
    try:
        type_rows = connection.execute(_TYPES).fetchall()
    finally:
        connection.autocommit = before
    for name, oid, array_oid in type_rows:
        kind, info = Vector if name == "vector" else HalfVector, TypeInfo(name, oid, array_oid)
        library_adapters, connection_adapters = _adapters(name, oid, array_oid), connection.adapters
        info.register(connection)
        for sent, got in ((PyFormat.TEXT, Format.TEXT), (PyFormat.BINARY, Format.BINARY)):
            dumper, loader = library_adapters.get_dumper(kind, sent), library_adapters.get_loader(oid, got)
            for one in (kind, "numpy.ndarray") if kind is Vector else (kind,):
                connection_adapters.register_dumper(one, dumper)
            if loader is not None:
                connection_adapters.register_loader(oid, loader)


@lru_cache(16)
def _adapters(name: str, oid: int, array_oid: int) -> AdaptersMap:
    """The library's adapters of a type, cached.

    The library creates new classes for each connection, and the driver keeps every class: 5 KB each time.
    """
    register: Any = register_vector_info if name == "vector" else register_halfvec_info
    context = SimpleNamespace(adapters=AdaptersMap(psycopg.adapters))
    register(context, TypeInfo(name, oid, array_oid))
    adapters: AdaptersMap = context.adapters
    return adapters


def database_id(connection: Connection) -> str:
    """Tells this database from every other: the number of its cluster and its name. A copy elsewhere has another."""
    query = "select system_identifier || '/' || current_database() from pg_control_system()"
    identity: str = connection.execute(text(query)).scalar_one()
    return identity
