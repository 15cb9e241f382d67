"""Connections: one engine per role, the tenant set in each transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg
from pgvector.psycopg import register_vector
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, OperationalError

from pipeline.errors import StoreError, StoreRejected, StoreUnavailable
from pipeline.patience import PatientConnection

APP_ROLE = "larder_app"
CONTROL_ROLE = "larder_control"

# A generic plan forgets the filter's selectivity: after five runs of a prepared statement recall fell to 8 %.
# jit costs more than it saves on statements of milliseconds.
_OPTIONS = "-c plan_cache_mode=force_custom_plan -c jit=off -c timezone=UTC"


def open_engine(url: str, *, role: str, pool_size: int = 2, patience: float | None = None) -> Engine:
    """An engine whose connections act as `role`, whoever logs in; nothing is connected yet.

    With `patience` a server that says nothing for so many seconds counts as gone.
    """
    engine = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=pool_size,
        max_overflow=4,
        pool_pre_ping=True,
        connect_args={
            "options": f"{_OPTIONS} -c role={role}",
            "connect_timeout": 10,
            "application_name": role.replace("_", "-"),
        },
    )

    @event.listens_for(engine, "connect")
    def _register(connection: Any, _record: Any) -> None:
        try:
            register_vector(connection)
        except psycopg.ProgrammingError:
            # No extension yet: only `migrate` may use this connection, and it uses no vectors.
            connection.rollback()

    if patience is not None:

        @event.listens_for(engine, "do_connect")
        def _connect(_dialect: Any, _record: Any, args: Any, parameters: Any) -> PatientConnection:
            return PatientConnection.opened(patience, *args, **parameters)

    return engine


_TENANT = text("select set_config('app.tenant', :t, true)")
_TENANT_SOON = text(
    "select set_config('app.tenant', :t, true), set_config('synchronous_commit', 'off', true)"
)


class Database:
    """The application's two ways in: as one tenant, or as the control role that sees no text."""

    def __init__(
        self,
        app_url: str,
        control_url: str | None = None,
        *,
        pool_size: int = 2,
        patience: float | None = None,
    ) -> None:
        """`patience` is for those who must answer in time: seconds of silence after which the server is gone.

        Work on many rows needs longer than a person waits, so by default nobody gives up.
        """
        self.app = open_engine(app_url, role=APP_ROLE, pool_size=pool_size, patience=patience)
        self.controller = open_engine(
            control_url or app_url, role=CONTROL_ROLE, pool_size=pool_size, patience=patience
        )

    @contextmanager
    def tenant(self, tenant_id: UUID, *, durable: bool = True) -> Iterator[Connection]:
        """A transaction that sees and writes this tenant's rows only; committed at the end.

        `durable` False does not wait for the disk. If the server dies, the last half second of such commits may
        be gone, always the newest ones and never one without those after it: right for steps of the ledger, which
        are then simply done again (50 ms a commit saved while a disk is busy), wrong for anything that a person
        or a provider was told or paid for.

        Raises:
            StoreUnavailable: the server cannot be reached or broke off; worth a retry.
            StoreRejected: the server refuses what we sent.
        """
        with translated(), self.app.begin() as connection:
            connection.execute(_TENANT if durable else _TENANT_SOON, {"t": str(tenant_id)})
            yield connection

    @contextmanager
    def control(self) -> Iterator[Connection]:
        """A transaction over the ledger of every tenant, without texts; raises as `tenant` does."""
        with translated(), self.controller.begin() as connection:
            yield connection

    def forget(self) -> None:
        """In a forked child: leave the parent's connections to the parent."""
        self.app.dispose(close=False)
        self.controller.dispose(close=False)

    def close(self) -> None:
        """Close all idle connections."""
        self.app.dispose()
        self.controller.dispose()


@contextmanager
def translated() -> Iterator[None]:
    """Turn the driver's errors into ours; the statement and its values stay out of the message."""
    try:
        yield
    except DBAPIError as error:
        raise translate(error) from error


# Deadlock, serialization failure, lock or statement timeout, too many connections, shutdown in progress:
# the same work may succeed a moment later.
_PASSING = ("40P01", "40001", "55P03", "57014", "53300", "57P01", "57P02", "57P03", "08006", "08001", "08003")


def translate(error: DBAPIError) -> StoreError:
    """The error of ours for one of SQLAlchemy's: passing trouble or refusal."""
    original = error.orig
    state = getattr(original, "sqlstate", None)
    if (
        state in _PASSING
        or error.connection_invalidated
        or (isinstance(error, OperationalError) and not state)
    ):
        return StoreUnavailable(
            f"the database does not answer ({type(original).__name__} {state or ''})".replace(" )", ")"),
            fix="see `larder doctor`; the work is kept and tried again",
        )
    diagnostic = getattr(original, "diag", None)
    what = getattr(diagnostic, "message_primary", None) or type(original).__name__
    return StoreRejected(f"the database refuses: {what}")
