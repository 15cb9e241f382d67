"""Bringing a database to the current schema with Alembic."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url

from pipeline.errors import ConfigurationError

HERE = Path(__file__).parent
ROLES = ("larder_app", "larder_control")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE).replace("%", "%%"))
    return config


def owner_engine(url: str) -> Engine:
    """An engine for the role that owns the tables; used by migrations only."""
    return create_engine(make_url(url).set(drivername="postgresql+psycopg"), pool_size=1)


def newest() -> str:
    """The revision this code needs."""
    head = ScriptDirectory.from_config(_config()).get_current_head()
    return str(head)


def current(engine: Engine) -> str | None:
    """The revision the database has; None if it has none."""
    with engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def upgrade(url: str, *, to: str = "head") -> str:
    """Run what is missing, in one transaction each, and return the newest revision; tests stop at an older one.

    Raises:
        ConfigurationError: the extension pgvector is not there and this role may not create it.
    """
    engine = owner_engine(url)
    try:
        with engine.begin() as connection:
            # Two `migrate` at once (two containers starting) must not run the same step twice.
            connection.execute(text("select pg_advisory_xact_lock(hashtext('larder.migrate'))"))
            statement = text("select 1 from pg_available_extensions where name = 'vector'")
            available = connection.execute(statement).scalar()
            if not available:
                raise ConfigurationError(
                    "the database server has no extension 'vector'",
                    fix="install pgvector 0.8 or newer on the server, for example the package postgresql-17-pgvector",
                )
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, to)
        return newest()
    finally:
        engine.dispose()


def give_logins(url: str, passwords: dict[str, str]) -> None:
    """Let the two roles log in with these passwords (role -> password), as the owner."""
    engine = owner_engine(url)
    try:
        with engine.begin() as connection:
            for role, password in passwords.items():
                if role not in ROLES:
                    continue
                statement = text(
                    "select format('alter role %I login password %L', cast(:r as text), cast(:p as text))"
                )
                statement = connection.execute(statement, {"r": role, "p": password}).scalar_one()
                connection.connection.driver_connection.execute(statement)  # type: ignore[union-attr]
    finally:
        engine.dispose()
