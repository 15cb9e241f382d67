"""Finding the servers: configured ones, or the embedded ones of the data folder, started by commands that may."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from sqlalchemy.engine import make_url

from connectors.sections import secret_value
from pipeline.database import migrations
from pipeline.database.engine import Database, translated
from pipeline.database.timed_connection import TimedConnection
from pipeline.errors import ConfigurationError, StoreHindered, StoreRefused, StoreUnavailable
from workers import embedded
from workers.runtime import Addresses, Runtime
from workers.settings import Settings

PING_SECONDS = 10.0
START_SECONDS = 60.0
"""In which commands wait for a database that is being started, as after a crash."""
START = "larder up --detach"
"""Starts the embedded servers."""


NEEDED = {"LARDER_DATABASE_URL": "storage.database.url", "LARDER_BROKER_URL": "storage.broker.url"}
"""Variable -> key of the addresses without which own servers are half configured."""


def addresses(
    settings: Settings, *, start: bool = False, needed: Collection[str] = tuple(NEEDED)
) -> Addresses:
    """Where the servers are: the configured ones, or those of the data folder if none has an address.

    `start` starts embedded servers that do not run; `needed` names variables of `NEEDED` that must be set if any
    address is.

    Raises:
        ConfigurationError: some addresses are configured and others that are needed are not, or there are no servers.
        StoreUnavailable: the embedded servers do not run, or could not be started.
    """
    storage = settings.rag.storage
    keys = [secret_value(settings.rag.security.encryption_keys)]
    if uses_embedded(settings):
        servers = embedded.ensure(settings.data) if start else embedded.find(settings.data)
        if servers is None and not (settings.data / "credentials.json").exists():
            raise ConfigurationError(f"there is no installation in {settings.data}", fix=START)
        if servers is None:
            raise StoreUnavailable(f"the servers of {settings.data} do not run", fix=START)
        keys.append(embedded.Credentials.of(settings.data).encryption)
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
        fix = "set it; servers on this machine are started by `larder up` where no address is set at all"
        raise ConfigurationError(f"the servers are half configured: {named} is missing", fix=fix)
    return Addresses(
        database=database,
        control=secret_value(storage.database.control_url) or database,
        admin=secret_value(storage.database.admin_url) or database,
        broker=broker,
        valkey_url=settings.valkey_url or "",
        encryption_keys=",".join(keys),
    )


def uses_embedded(settings: Settings) -> bool:
    """True if no server has an address, so that those of the data folder are used."""
    database, broker = settings.rag.storage.database, settings.rag.storage.broker
    urls = (database.url, database.control_url, database.admin_url, broker.url, broker.valkey_url)
    return not any(map(secret_value, urls))


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
        logins = [url for url in (where.database, where.control) if url and url != where.admin]
        roles = [make_url(url) for url in logins]
        passwords = {r.username: r.password for r in roles if r.username and r.password}
        try:
            with translated():
                migrations.give_logins(where.admin, passwords)
        except StoreHindered:  # the owner may not: somebody else did, if the logins are let in
            for url in logins:
                ping(url)
    return revision


def ensure_schema(settings: Settings, where: Addresses) -> None:
    """Bring the schema up to date if that is allowed here, else see that it is.

    Only who has the owner's address, or uses embedded servers, need be allowed to.

    Raises:
        ConfigurationError: it is another, and the login may not change it.
        StoreUnavailable: as `ping` does.
    """
    revision = None
    if not (uses_embedded(settings) or settings.rag.storage.database.admin_url):
        ping(where.database)
        database = Database(where.database)
        with suppress(StoreRefused, StoreHindered), database.tenant(settings.tenant_id) as connection:
            revision = migrations.revision_of(connection)
        database.close()
        if revision == migrations.NEWEST:
            return
    try:
        migrate(settings, where)
    except StoreHindered as refused:
        what = f"the database has revision {revision or 'none'} of the schema, and this version needs"
        what += f" {migrations.NEWEST}; it cannot be changed here: {refused.message}"
        fix = "larder migrate, with the owner's address as LARDER_ADMIN_DATABASE_URL"
        raise ConfigurationError(what, fix=fix) from None


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


def open_runtime(settings: Settings, *, start: bool = False) -> Runtime:
    """A runtime on servers that are there; embedded ones are migrated first, and started if `start` says so.

    Raises:
        ConfigurationError, StoreUnavailable: as `addresses` does.
    """
    where = addresses(settings, start=start)
    # The revision that this data folder has, which costs no connection to read.
    seen = settings.data / "schema"
    if uses_embedded(settings) and not (
        seen.exists() and seen.read_text(encoding="utf-8") == migrations.NEWEST
    ):
        seen.write_text(migrate(settings, where), encoding="utf-8")
    return Runtime(settings, where)
