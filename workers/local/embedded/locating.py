"""Finds the servers: configured ones, or the embedded ones of the data folder, which some commands start."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from sqlalchemy.engine import make_url

from connectors.sections import secret_value
from pipeline.database import migrations
from pipeline.database.driver_errors import RESTART_SECONDS, START_POLL_SECONDS
from pipeline.database.engine import Database, translated
from pipeline.database.timed_connection import TimedConnection
from pipeline.errors import ConfigurationError, StoreHindered, StoreRefused, StoreUnavailable
from workers.local import embedded
from workers.monitoring import liveness
from workers.runtime import Addresses, Runtime
from workers.settings import Settings

PING_SECONDS = 10.0
START_SECONDS = 60.0
"""Seconds that commands wait for a starting database, as after a crash."""
START = "larder up --detach"
"""The command that starts the embedded servers."""


NEEDED = {"LARDER_DATABASE_URL": "storage.database.url", "LARDER_BROKER_URL": "storage.broker.url"}
"""Variable -> key of each address that must be set if any is."""


def addresses(
    settings: Settings, *, start: bool = False, needed: Collection[str] = tuple(NEEDED)
) -> Addresses:
    """Addresses of the configured servers, or of the data folder's embedded ones if no address is set.

    `start` starts embedded servers that are not running; `needed` are the variables of `NEEDED` that must be set if
    any address is.

    Raises:
        ConfigurationError: a needed address is missing while others are set, or there is no installation.
        StoreUnavailable: the embedded servers are not running, or could not be started.
    """
    storage = settings.rag.storage
    keys = [secret_value(settings.rag.security.encryption_keys)]
    if uses_embedded(settings):
        servers = embedded.ensure(settings.data) if start else _running_servers(settings.data)
        if servers is None and not (settings.data / "credentials.json").exists():
            raise ConfigurationError(f"there is no installation in {settings.data}", fix=START)
        if servers is None:
            raise StoreUnavailable(f"the servers of {settings.data} are not running", fix=START)
        keys.append(embedded.Credentials.of_folder(settings.data).encryption)
        return Addresses(
            database=servers.database_url,
            control=servers.control_url,
            admin=servers.admin_url,
            broker=servers.broker_url,
            encryption_keys=",".join(keys),
        )
    database, broker = settings.database_url or "", settings.broker_url or ""
    missing = [
        name for name, url in zip(NEEDED, (database, broker), strict=True) if name in needed and not url
    ]
    if missing:
        named = " and ".join(f"{name} ({NEEDED[name]})" for name in missing)
        fix = "set it; `larder up` starts servers on this machine only if no address is set"
        raise ConfigurationError(f"the servers are half configured: {named} is missing", fix=fix)
    return Addresses(
        database=database,
        control=secret_value(storage.database.control_url) or database,
        admin=secret_value(storage.database.admin_url) or database,
        broker=broker,
        valkey_url=settings.valkey_url or "",
        encryption_keys=",".join(keys),
    )


def _running_servers(data: Path) -> embedded.Servers | None:
    """The embedded servers; those that ended and that a living `larder up` is to start again are waited for.

    Raises:
        StoreUnavailable: it does not within `RESTART_SECONDS`.
    """
    end = time.monotonic() + RESTART_SECONDS
    while (servers := embedded.find(data)) is None and "supervisor" in liveness.running(data):
        if time.monotonic() > end:
            message = f"the servers of {data} have ended, and `larder up` has not started them again yet"
            raise StoreUnavailable(message, fix="`larder logs supervisor` says what keeps it from that")
        time.sleep(START_POLL_SECONDS)
    return servers


def uses_embedded(settings: Settings) -> bool:
    """True if no address is set, so that the data folder's servers are used."""
    database, broker = settings.rag.storage.database, settings.rag.storage.broker
    urls = (database.url, database.control_url, database.admin_url, broker.url, broker.valkey_url)
    return not any(map(secret_value, urls))


def migrate(settings: Settings, servers: Addresses, *, to: str | None = None) -> str:
    """Migrate the schema to the newest revision, or back to `to`; returns the revision reached.

    On configured servers the two roles also get the passwords of their addresses; embedded servers set them at
    start.
    """
    ping(servers.admin, start_timeout=START_SECONDS)
    with translated():
        if to is not None:
            return migrations.downgrade(servers.admin, to=to)
        revision = migrations.upgrade(servers.admin)
    if settings.rag.storage.database.admin_url:
        logins = [url for url in (servers.database, servers.control) if url and url != servers.admin]
        roles = [make_url(url) for url in logins]
        passwords = {r.username: r.password for r in roles if r.username and r.password}
        try:
            with translated():
                migrations.give_logins(servers.admin, passwords)
        except StoreHindered:  # the owner may not set passwords: check that the logins work
            for url in logins:
                ping(url)
    return revision


def ensure_schema(settings: Settings, servers: Addresses) -> None:
    """Migrate the schema if this login may, else check its revision.

    Migrating needs the owner's address or embedded servers.

    Raises:
        ConfigurationError: the schema has another revision, and the login may not change it.
        StoreUnavailable: as `ping` does.
    """
    revision = None
    if not (uses_embedded(settings) or settings.rag.storage.database.admin_url):
        ping(servers.database)
        database = Database(servers.database)
        with suppress(StoreRefused, StoreHindered), database.tenant(settings.tenant_id) as connection:
            revision = migrations.revision_of(connection)
        database.close()
        if revision == migrations.NEWEST:
            return
    try:
        migrate(settings, servers)
    except StoreHindered as refused:
        message = f"the database has revision {revision or 'none'} of the schema, and this version needs"
        message += f" {migrations.NEWEST}; it cannot be changed here: {refused.message}"
        fix = "larder migrate, with the owner's address as LARDER_ADMIN_DATABASE_URL"
        raise ConfigurationError(message, fix=fix) from None


def ping(url: str, *, start_timeout: float = 0.0) -> None:
    """Check that a database answers, before work without a time limit; a starting one is waited for `start_timeout` s.

    Raises:
        StoreSilent: no answer within `PING_SECONDS`.
        StoreUnavailable: the database cannot be reached.
        StoreRefused: it refuses the login.
    """
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with translated(), TimedConnection.opened(PING_SECONDS, plain, start_timeout=start_timeout) as connection:
        connection.execute("select 1")


def open_runtime(settings: Settings, *, start: bool = False) -> Runtime:
    """A runtime on running servers; embedded ones are migrated first, and started with `start`.

    Raises:
        ConfigurationError, StoreUnavailable: as `addresses` does.
    """
    servers = addresses(settings, start=start)
    # File with the revision of the embedded schema, which can be read without a connection.
    revision_file = settings.data / "schema"
    if uses_embedded(settings) and not (
        revision_file.exists() and revision_file.read_text(encoding="utf-8") == migrations.NEWEST
    ):
        revision_file.write_text(migrate(settings, servers), encoding="utf-8")
    return Runtime(settings, servers)
