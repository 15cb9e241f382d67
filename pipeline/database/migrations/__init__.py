"""Migrations: the numbered files of `sql/`, each run once and in order; some can be undone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.engine import make_url

from pipeline.database.engine import APP_ROLE, CONTROL_ROLE, KEEPALIVES, ServerTimeouts, driver_of
from pipeline.errors import ConfigurationError

STEPS = {path.name[:3]: path for path in sorted((Path(__file__).parent / "sql").glob("*.sql"))}
"""Revision -> SQL file that leads to it from the one before."""
UNDOING = {path.name[:3]: path for path in (Path(__file__).parent / "down").glob("*.sql")}
"""Revision -> SQL file that leads back to the one before."""
NEWEST = max(STEPS)
"""The revision this code needs."""
ROLES = (APP_ROLE, CONTROL_ROLE)


def owner_engine(url: str) -> Engine:
    """An engine for the role that owns the tables; used by migrations only."""
    # A step has no time limit, but a frozen process must not hold its locks.
    idle = ServerTimeouts().idle
    arguments = {**KEEPALIVES, "options": f"-c idle_in_transaction_session_timeout={round(idle * 1000)}ms"}
    return create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=1,
        connect_args=arguments,
        hide_parameters=True,
    )


def current(engine: Engine) -> str | None:
    """The revision of the database; None without a schema."""
    with engine.connect() as connection:
        table_exists = connection.execute(text("select to_regclass('alembic_version')")).scalar()
        return revision_of(connection) if table_exists else None


def revision_of(connection: Connection) -> str | None:
    """The revision of a database with a schema."""
    revision: str | None = connection.execute(text("select version_num from alembic_version")).scalar()
    return revision


def upgrade(url: str, *, to: str = NEWEST) -> str:
    """Run the missing steps in one transaction; returns the newest revision. Tests stop at an older one.

    Raises:
        ConfigurationError: the extension pgvector is missing, or the schema is that of a newer Larder.
    """
    with _migrating(url) as connection:
        current_revision = revision_of(connection) or ""
        if current_revision > NEWEST:
            raise ConfigurationError(
                f"the database is that of a newer Larder: revision {current_revision}, not {NEWEST}"
            )
        for revision in (r for r in STEPS if current_revision < r <= to):
            _run(connection, STEPS[revision], revision)
    return NEWEST


def downgrade(url: str, *, to: str) -> str:
    """Undo the steps after revision `to`, newest first, in one transaction; returns the revision reached.

    Raises:
        ConfigurationError: no such revision, or a step that cannot be undone.
    """
    with _migrating(url) as connection:
        current_revision = revision_of(connection) or ""
        back = sorted((r for r in STEPS if to < r <= current_revision), reverse=True)
        final = [r for r in back if r not in UNDOING]
        if to not in STEPS or final:
            why = f"revision {final[0]} cannot be undone" if to in STEPS else f"there is no revision {to}"
            raise ConfigurationError(why, fix=f"what can be undone: {', '.join(sorted(UNDOING))}")
        for revision in back:
            _run(connection, UNDOING[revision], max(r for r in STEPS if r < revision))
    return min(to, current_revision)


@contextmanager
def _migrating(url: str) -> Iterator[Connection]:
    """The owner's transaction in a database with pgvector, one at a time."""
    engine = owner_engine(url)
    try:
        with engine.begin() as connection:
            # Two `migrate` at once (two containers starting) must not run the same step twice.
            connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.migrate'))"))
            available = text("select 1 from pg_available_extensions where name = 'vector'")
            if not connection.execute(available).scalar():
                raise ConfigurationError(
                    "the database server has no extension 'vector'",
                    fix="install pgvector 0.8 or newer on the server, for example the package postgresql-17-pgvector",
                )
            # The table name is that of Alembic, which ran the first steps.
            table = "create table if not exists alembic_version (version_num varchar(32) primary key)"
            connection.execute(text(table))
            yield connection
    finally:
        engine.dispose()


def _run(connection: Connection, step: Path, revision: str) -> None:
    """Run a step and record its revision."""
    # Run by the driver, since SQLAlchemy would read colons and percent signs as parameters.
    with driver_of(connection) as driver:
        driver.execute(step.read_text(encoding="utf-8"))
    connection.execute(text("delete from alembic_version"))
    connection.execute(text("insert into alembic_version values (:r)"), {"r": revision})


def give_logins(url: str, passwords: dict[str, str]) -> None:
    """Let the two roles log in with these passwords (role -> password), as the owner."""
    engine = owner_engine(url)
    statement = text("select format('alter role %I login password %L', cast(:r as text), cast(:p as text))")
    try:
        with engine.begin() as connection:
            for role in ROLES:
                if role in passwords:
                    alter_role = connection.execute(statement, {"r": role, "p": passwords[role]}).scalar_one()
                    with driver_of(connection) as driver:
                        driver.execute(alter_role)
    finally:
        engine.dispose()
