"""Finding the servers: configured ones, or the embedded ones of the data folder, started on demand."""

from __future__ import annotations

from sqlalchemy.engine import make_url

from connectors.sections import secret_value
from pipeline.database import migrations
from pipeline.database.engine import TimedConnection, translated
from workers import embedded
from workers.runtime import Addresses, Runtime
from workers.settings import Settings

PING_SECONDS = 10.0
START_SECONDS = 60.0
"""In which commands wait for a database that is being started, as after a crash."""


def addresses(settings: Settings) -> Addresses:
    """Where the servers are; embedded ones are started if they do not run."""
    database, broker = settings.database_url, settings.broker_url
    control = admin = database or ""
    keys = [secret_value(settings.rag.security.encryption_keys)]
    if not (database and broker):
        servers = embedded.ensure(settings.data)
        broker = broker or servers.broker_url
        if not database:
            database, control, admin = servers.database_url, servers.control_url, servers.admin_url
            keys.append(embedded.Credentials.of(settings.data).encryption)
    return Addresses(
        database=database,
        control=secret_value(settings.rag.storage.database.control_url) or control,
        admin=secret_value(settings.rag.storage.database.admin_url) or admin,
        broker=broker,
        valkey_url=settings.valkey_url or "",
        encryption_keys=",".join(keys),
    )


def uses_embedded(settings: Settings) -> bool:
    """True if a server of the data folder is used."""
    return not (settings.database_url and settings.broker_url)


def migrate(settings: Settings, where: Addresses, *, to: str | None = None) -> str:
    """Bring the schema up to date, or back to the revision `to`; the revision reached.

    On servers of your own the two roles also get the passwords that their addresses name; the embedded server
    did that when it started.
    """
    ping(where.admin, start_timeout=START_SECONDS)
    with translated():
        if to is not None:
            return migrations.downgrade(where.admin, to=to)
        revision = migrations.upgrade(where.admin)
        if settings.rag.storage.database.admin_url:
            roles = [make_url(url) for url in (where.database, where.control) if url != where.admin]
            passwords = {r.username: r.password for r in roles if r.username and r.password}
            migrations.give_logins(where.admin, passwords)
    return revision


def ping(url: str, *, start_timeout: float = 0.0) -> None:
    """Find out whether a database answers, before it is given work for which it may take any time.

    One that is being started is waited for `start_timeout` seconds.

    Raises:
        StoreSilent: it does not within `PING_SECONDS` for each answer.
        StoreUnavailable: it cannot be reached.
        StoreRefused: it refuses the login.
    """
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with translated(), TimedConnection.opened(PING_SECONDS, plain, start_timeout=start_timeout) as connection:
        connection.execute("select 1")


def open_runtime(settings: Settings) -> Runtime:
    """A runtime on servers that are there; the embedded ones are started and migrated first."""
    where = addresses(settings)
    # The revision that this data folder has, which costs no connection to read.
    seen = settings.data / "schema"
    if uses_embedded(settings) and not (
        seen.exists() and seen.read_text(encoding="utf-8") == migrations.NEWEST
    ):
        seen.write_text(migrate(settings, where), encoding="utf-8")
    return Runtime(settings, where)
