"""Connections to PostgreSQL: an engine per role and way to use it, the tenant set in each transaction, bulk copy."""

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

from pipeline.database.driver_errors import KEPT, message_of, translate
from pipeline.database.timed_connection import TimedConnection
from pipeline.errors import StoreUnavailable

APP_ROLE = "larder_app"
CONTROL_ROLE = "larder_control"

EF_SEARCH = 100
"""Nearest neighbours that one step of the vector index looks for, unless a question sets more."""
MORE = 4
"""Connections of a pool beyond those that were asked for; kept as well, for a new one costs as much as a search."""


@dataclass(frozen=True, kw_only=True)
class ServerTimeouts:
    """How many seconds the server bears with one of our connections, so that a stalled one keeps no lock for ever.

    The defaults fit those of the queue, whose leases are 120 and 15 seconds.
    """

    idle: float = 10.0
    """For a client that says nothing in the middle of a transaction: frozen, or its machine gone. Below each lease."""
    lock: float = 30.0
    """For a lock that somebody else has."""
    statement: float = 120.0
    """For one statement, in which a client may stall, too; `lift_statement_timeout` lifts it."""

    @classmethod
    def within(cls, *leases: float) -> Self:
        """What lets others go on within the shortest lease, or within the longest if a statement was under way."""
        idle = min(leases) * 2 / 3
        lock = max(2 * idle, max(leases) / 4)
        return cls(idle=idle, lock=lock, statement=4 * lock)

    @property
    def options(self) -> str:
        """As the server takes them with a connection; it also ends what a client that is gone has asked for."""
        wanted = {
            "idle_in_transaction_session_timeout": self.idle,
            "lock_timeout": self.lock,
            "statement_timeout": self.statement,
            "tcp_user_timeout": self.lock,
            "client_connection_check_interval": self.idle,
        }
        return "".join(f" -c {name}={round(seconds * 1000)}ms" for name, seconds in wanted.items())


KEEPALIVES = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""After half a minute of silence from its kernel the other machine is gone; for the driver, in seconds and ms."""
_SERVER_KEEPALIVES = " -c tcp_keepalives_idle=15 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"


def commit_soon(connection: Connection) -> None:
    """Let the commit of this transaction not wait for the disk, as `durable` False does from the beginning."""
    connection.exec_driver_sql("set local synchronous_commit = off")


def lift_statement_timeout(connection: Connection) -> None:
    """Let the statements of this transaction take as long as they need: those that touch every row of a table."""
    connection.exec_driver_sql("set local statement_timeout = 0")


# jit costs more than it saves on statements of milliseconds. The vector index goes on until a filter has let enough
# through; set here, since setting it in each transaction is one more round trip.
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
    asking: bool = False,
) -> Engine:
    """An engine whose connections act as `role`, whoever logs in; nothing is connected yet.

    With `answer_timeout` a server that says nothing for so many seconds counts as gone, and one that is being started
    is waited for `start_timeout` seconds. `ping` asks each connection before its use whether it is alive. `asking` is
    for `Database.fetch`: each statement is a transaction, and says itself whether its plan may be kept; elsewhere
    none is kept, since the driver prepares what comes often, and a plan for all values forgets how much a filter lets
    through: after five runs recall fell to 8 %.
    """
    plans = "auto" if asking else "force_custom_plan"
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_pre_ping=ping,
        hide_parameters=True,  # of errors: they are texts, vectors and passwords
        use_native_hstore=False,  # nobody asks for its type then, which takes round trips
        connect_args={
            **KEEPALIVES,
            "options": f"{_OPTIONS.format(plans=plans)}{timeouts.options} -c role={role}",
            "connect_timeout": 20,  # four answers of a server that is slow and not gone
            "application_name": role.replace("_", "-"),
        },
        pool_size=pool_size + MORE,
        max_overflow=0,
        **({"isolation_level": "AUTOCOMMIT"} if asking else {}),
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
    """The application's two ways in: as one tenant, or as the control role that sees no text."""

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
        """The timeouts are those of `open_engine`: for work on many rows nobody gives up."""
        opened = partial(open_engine, pool_size=pool_size, timeouts=timeouts)
        opened = partial(opened, answer_timeout=answer_timeout, start_timeout=start_timeout)
        self._timeouts = timeouts
        self.app = opened(app_url, role=APP_ROLE, ping=False)
        self.asker = opened(app_url, role=APP_ROLE, ping=False, asking=True)
        self.controller = opened(control_url or app_url, role=CONTROL_ROLE)

    @contextmanager
    def tenant(self, tenant_id: UUID, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that sees and writes this tenant's rows only; committed at the end.

        `durable` False does not wait for the disk. If the server dies, the last half second of such commits may
        be gone, always the newest ones and never one without those after it: right for steps of the ledger, which
        are then simply done again (50 ms a commit saved while a disk is busy), wrong for anything that a person
        or a provider was told or paid for, and for who goes on afterwards with what it remembers, as a walk does.

        Raises:
            StoreUnavailable: the server cannot be reached or broke off; worth a retry.
            StoreRejected: the server refuses what we sent.
        """
        first = (_TENANT if durable else _TENANT_SOON).format(UUID(str(tenant_id)))
        with translated(), self._begun(first) as connection:
            yield connection
            connection.commit()

    def _begun(self, first: str) -> Connection:
        """A connection in a transaction that begins with these statements.

        They hold a BEGIN, since that of the driver would be one more round trip, and tell whether a pooled connection
        is still alive, so that none has to be asked before: if it is not, the next one is.
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
        """The rows of one statement as this tenant, in a transaction of its own and a single round trip.

        For searches, where each round trip costs as much as the work. The statement only reads, has the driver's own
        placeholders, and names none of its values `as_...`.

        `one_plan` True plans a repeated statement once for all values: right only where no value decides which
        plan is good, and then it saves more than such a statement takes.

        Raises:
            StoreUnavailable: the server cannot be reached or broke off twice.
            StoreRejected: the server refuses what we sent.
        """
        query, names = _as_tenant(statement, ef_search == EF_SEARCH)
        given = {**values, "as_tenant": str(tenant_id), "as_ef_search": str(ef_search)}
        ordered = [given[name] for name in names]
        with translated():
            try:
                return self._answer(query, ordered, one_plan)
            except psycopg.OperationalError as error:
                if error.sqlstate not in _LOST:
                    raise
            # As a kept connection to a server that was restarted is found to be; the others are no better.
            self.asker.dispose()
            return self._answer(query, ordered, one_plan)

    def _answer(self, query: str, values: list[Any], one_plan: bool) -> list[tuple[Any, ...]]:
        pool = self.asker.pool
        pooled = self.asker.raw_connection()
        driver: Any = pooled.driver_connection
        try:
            # What is not prepared is planned anew for its values; what is prepared, once for all after five times.
            rows = psycopg.RawCursor(driver).execute(query, values, prepare=one_plan, binary=True).fetchall()
        finally:
            # Closed, or left in the middle of an answer by whoever could wait no longer: nobody else may have it. Nor
            # is there anybody if the pool was disposed of meanwhile.
            if driver.pgconn.transaction_status == TransactionStatus.IDLE and pool is self.asker.pool:
                pooled.close()
            else:
                pooled.invalidate()
        return rows

    @contextmanager
    def control(self, audited: UUID | None = None) -> Iterator[Connection]:
        """A transaction over the ledger of every tenant, without texts; raises as `tenant` does.

        What is noted in it goes into the audit of the tenant `audited`.
        """
        with translated(), self.controller.begin() as connection:
            if audited:
                connection.execute(text("select set_config('app.tenant', :t, true)"), {"t": str(audited)})
            yield connection

    def end_stalled(self) -> None:
        """End connections of our login whose client stalls in the midst of a statement: it sends rows, or reads them.

        The server looks at no clock of its own as long as it waits for that.
        """
        stalled = text("""
            select pg_terminate_backend(pid) from pg_stat_activity
            where usename = session_user and datname = current_database() and application_name like 'larder-%'
              and state = 'active' and wait_event in ('ClientRead', 'ClientWrite')
              and query_start < clock_timestamp() - make_interval(secs => :seconds)""")
        with translated(), self.app.begin() as connection:
            connection.execute(stalled, {"seconds": self._timeouts.statement})

    def forget_connections(self) -> None:
        """In a forked child: leave the parent's connections to the parent."""
        for engine in (self.app, self.asker, self.controller):
            engine.dispose(close=False)

    def close(self) -> None:
        """Close all idle connections."""
        for engine in (self.app, self.asker, self.controller):
            engine.dispose()


_LOST = (None, "57P01", "57P02")
"""What a connection says that the server has ended."""

# The tenant is set by the statement that it binds. A lateral that needs a column of the left side comes after it, so
# row-level security reads the setting in time; read too early it would be empty and no row would be seen. The setting
# ends with the statement, which is a transaction of its own.
_AS_TENANT = """
    select asked.* from (select set_config('app.tenant', %(as_tenant)s, true) as tenant{more}) as here
    cross join lateral (
        select answer.* from ({statement}) as answer where here.tenant is not null{needs} offset 0) as asked"""
_MORE = ", set_config('hnsw.ef_search', %(as_ef_search)s, true) as ef_search"


class _Numbered(dict[str, str]):
    """Names of values in the order in which a statement uses them first; each is replaced by its number.

    The driver does the same, a hundred times slower, and does not remember it for statements of 4,096 characters.
    """

    def __missing__(self, name: str) -> str:
        return self.setdefault(name, f"${len(self) + 1}")


@lru_cache(512)
def _as_tenant(statement: str, usual: bool) -> tuple[str, tuple[str, ...]]:
    """The statement as a tenant asks it, with numbers for names, and the names."""
    numbered = _Numbered()
    more, needs = ("", "") if usual else (_MORE, " and here.ef_search is not null")
    query = _AS_TENANT.format(more=more, needs=needs, statement=statement) % numbered
    return query, tuple(numbered)


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours; values of the statement and of rows stay out of messages and tracebacks."""
    try:
        yield
    except NoneFree:
        raise StoreUnavailable("no connection to the database became free in time", fix=KEPT) from None
    except (DBAPIError, psycopg.Error) as error:
        lost = isinstance(error, DBAPIError) and error.connection_invalidated
        original = error.orig if isinstance(error, DBAPIError) else error
        ours = translate(original, lost=lost)
        for one in (error, original):
            if one is not None and getattr(original, "sqlstate", None):
                one.args = (message_of(original), *one.args[1:])
        raise ours from error


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """Columns, and the statement that takes their rows."""

    columns: str
    """Names and types, as PostgreSQL declares them."""
    insert: str
    """`insert into ... select ... from {incoming}`."""


@contextmanager
def driver_of(connection: Connection) -> Iterator[Any]:
    """The driver's own connection; its errors come out as SQLAlchemy's, which is what `Database` translates."""
    try:
        yield connection.connection.driver_connection
    except psycopg.Error as error:
        raise DBAPIError.instance(None, None, error, psycopg.Error) from error


MOST_SENT = 8_000_000
"""Characters and bytes of one statement; with some hundred millions the connection is lost."""
ROW_SENT = 1000
"""What a row counts for beside its texts: numbers and a vector."""


def transfer(connection: Connection, how: Transfer, rows: Iterable[Sequence[Any]]) -> None:
    """Send `rows` (tuples in column order) through `how`, inside the caller's transaction; mostly in one round trip.

    As arrays, since COPY does not write to tables with row-level security, and a temporary table on the way to them
    costs as much as they do.
    """
    names, types = zip(*(column.split() for column in how.columns.split(",")), strict=True)
    arrays = ", ".join(f"%b::{kind}[]" for kind in types)
    statement = how.insert.format(incoming=f"unnest({arrays}) as incoming({', '.join(names)})")
    long = [place for place, kind in enumerate(types) if kind in ("text", "bytea")]
    for part in _parts(rows, long):
        with driver_of(connection) as driver:
            driver.execute(statement, [list(column) for column in zip(*part, strict=True)])


def _parts(rows: Iterable[Sequence[Any]], long: Sequence[int]) -> Iterator[list[Sequence[Any]]]:
    """Rows until those of their columns that are `long` have MOST_SENT together; one that has more is sent alone."""
    part: list[Sequence[Any]] = []
    size = 0
    for row in rows:
        added = ROW_SENT + sum(len(row[place]) for place in long)
        if part and size + added > MOST_SENT:
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
    """Let a new connection speak of vectors; nothing happens in a database without the extension.

    In one round trip: the library takes three for each type, and each connection pays for them.
    """
    before, connection.autocommit = connection.autocommit, True
    try:
        found = connection.execute(_TYPES).fetchall()
    finally:
        connection.autocommit = before
    for name, oid, array_oid in found:
        kind, info = Vector if name == "vector" else HalfVector, TypeInfo(name, oid, array_oid)
        known, mine = _adapters(name, oid, array_oid), connection.adapters
        info.register(connection)
        for sent, got in ((PyFormat.TEXT, Format.TEXT), (PyFormat.BINARY, Format.BINARY)):
            dumper, loader = known.get_dumper(kind, sent), known.get_loader(oid, got)
            for one in (kind, "numpy.ndarray") if kind is Vector else (kind,):
                mine.register_dumper(one, dumper)
            if loader is not None:
                mine.register_loader(oid, loader)


@lru_cache(16)
def _adapters(name: str, oid: int, array_oid: int) -> AdaptersMap:
    """What the library registers for a type.

    It makes classes anew for each connection, and the driver keeps every class it has seen: 5 KB each time.
    """
    register: Any = register_vector_info if name == "vector" else register_halfvec_info
    context = SimpleNamespace(adapters=AdaptersMap(psycopg.adapters))
    register(context, TypeInfo(name, oid, array_oid))
    found: AdaptersMap = context.adapters
    return found
