"""The doctor's look at the servers: database, schema, roles, security, search index, broker, clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import Connection, text

from pipeline.database import migrations
from pipeline.database.engine import APP_ROLE, CONTROL_ROLE, translated
from pipeline.enrichment.degradation import HealthOptions
from pipeline.errors import StoreRefused, StoreRejected, StoreSilent, StoreUnavailable
from pipeline.ledger.overview import way
from pipeline.search import term_statistics
from pipeline.search.chunk_store import SearchIndex, indexes
from workers.admin.doctor.diagnosis import Diagnosis, error, fine, warning
from workers.admin.reindex_status import mismatch
from workers.control.maintenance import build_indexes
from workers.embedded.folder import running
from workers.embedded.locating import knock, uses_embedded
from workers.queue import broker
from workers.runtime import Runtime

LEAST_PGVECTOR = (0, 8)
CLOCK_SECONDS = 5.0
SLOW_SECONDS = HealthOptions.slow_seconds
FULL_SHARE = 0.7


def database(parts: Runtime) -> Diagnosis:
    """Both roles can connect, and are answered in time."""
    try:
        for url in (parts.addresses.database, parts.addresses.control):
            knock(url)
        with parts.database.tenant(parts.settings.tenant_id) as connection:
            connection.execute(text("select 1"))
        with parts.database.control() as connection:
            seconds = way(connection)
            version = connection.execute(text("select current_setting('server_version')")).scalar_one()
    except StoreUnavailable as failed:
        return error(failed.message, _remedy(parts, failed))
    if seconds > SLOW_SECONDS:
        return warning(
            f"PostgreSQL {version} takes {seconds:.1f} s for each answer, so it is asked nothing more;"
            " Step 4 gets prepared answers meanwhile",
            "look at its load, its disk and the network in between; then larder doctor again",
        )
    return fine(f"PostgreSQL {version} answers both roles")


def _remedy(parts: Runtime, failed: StoreUnavailable) -> str:
    """What to do about a database that does not answer."""
    where = urlsplit(parts.addresses.database)
    address = f"{where.hostname}:{where.port or 5432}"
    if isinstance(failed, StoreRefused):
        return failed.fix
    if not isinstance(failed, StoreSilent):
        return f"look whether PostgreSQL runs and listens at {address}, or correct LARDER_DATABASE_URL"
    found = running(parts.settings.data / "postgres") if uses_embedded(parts.settings) else None
    if found:
        return f"if `ps -o stat {found[0]}` says T, it is stopped: kill -CONT {found[0]}; else larder down, larder up"
    return f"look at PostgreSQL at {address}: is it stopped (T in `ps`), out of memory, or cut off by the network?"


def schema(parts: Runtime) -> Diagnosis:
    """The tables are those of this version."""
    engine = migrations.owner_engine(parts.addresses.admin)
    try:
        with translated():
            found = migrations.current(engine)
    except StoreRejected as refused:
        return warning(
            f"the revision of the schema cannot be read: {refused.message}",
            "give the owner's address in LARDER_ADMIN_DATABASE_URL",
        )
    finally:
        engine.dispose()
    wanted = migrations.newest()
    if found == wanted:
        return fine(f"revision {found}")
    return error(f"revision {found or 'none'}, this version needs {wanted}", "larder migrate")


def pgvector(parts: Runtime) -> Diagnosis:
    """The extension can do filtered searches over its index."""
    with parts.database.control() as connection:
        version = connection.execute(
            text("select extversion from pg_extension where extname = 'vector'")
        ).scalar()
    if version is None:
        return error("the extension vector is not in this database", "larder migrate")
    return judge_pgvector(str(version))


def judge_pgvector(version: str) -> Diagnosis:
    """Is this version new enough?"""
    if tuple(int(part) for part in version.split(".")[:2]) >= LEAST_PGVECTOR:
        return fine(f"pgvector {version}")
    least = ".".join(map(str, LEAST_PGVECTOR))
    fix = "install a newer package, then run `alter extension vector update` as the owner"
    return error(f"pgvector {version}; {least} or newer is needed", fix)


_ROLE = text("""
    select current_user as acts, session_user as login, r.rolsuper as super, r.rolbypassrls as bypass,
           l.rolsuper or l.rolbypassrls as strong_login
    from pg_roles r, pg_roles l where r.rolname = current_user and l.rolname = session_user""")


def roles(parts: Runtime) -> Diagnosis:
    """Nobody who works for a tenant may see another's rows."""
    with parts.database.tenant(parts.settings.tenant_id) as connection:
        found = [(APP_ROLE, connection.execute(_ROLE).one())]
    with parts.database.control() as connection:
        found.append((CONTROL_ROLE, connection.execute(_ROLE).one()))
    for wanted, row in found:
        if row.acts != wanted:
            return error(f"{row.login} acts as {row.acts}", f"connect with a login that may act as {wanted}")
        if row.super or row.bypass:
            fix = f"as a superuser: alter role {wanted} nosuperuser nobypassrls"
            return error(f"{wanted} is not bound by row-level security", fix)
    strong = [row.login for _, row in found if row.strong_login]
    if strong:
        fix = f"let processes log in as {APP_ROLE} and {CONTROL_ROLE}"
        return warning(f"the login {strong[0]} could put row-level security aside", fix)
    return fine(f"{APP_ROLE} and {CONTROL_ROLE} are bound by row-level security")


def row_security(parts: Runtime) -> Diagnosis:
    """Every table of a tenant's rows shows them to that tenant only."""
    with parts.database.control() as connection:
        rows = connection.execute(
            text("""
                select c.relname, c.relrowsecurity and c.relforcerowsecurity as forced from pg_class c
                where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
                  and (c.relname = 'tenant' or exists (
                      select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id'
                      and not a.attisdropped))
                order by c.relname"""),
        ).all()
    open_ = [row.relname for row in rows if not row.forced]
    if open_:
        fix = "as the owner: " + "; ".join(
            f"alter table {t} enable row level security, force row level security" for t in open_
        )
        return error(f"row-level security is not forced on {', '.join(open_)}", fix)
    return fine(f"forced on {len(rows)} tables")


def search_index(parts: Runtime) -> Diagnosis:
    """Searches have one index to read."""
    with parts.database.control() as connection:
        found = indexes(connection)
        indexed = connection.execute(
            text("select exists (select from document where chunk_count > 0)")
        ).scalar()
    active = [i for i in found if i.status == "active"]
    if len(active) == 1:
        other = mismatch(parts, active[0])
        if other:
            return warning(other, "larder reindex, or change the configuration back")
        return fine(f"{active[0].model}, {active[0].dimensions} dimensions")
    if not found and not indexed:
        return fine("none yet, it is made with the first document")
    if not found:
        return error("there are documents and no search index", "larder index --force")
    return error(f"{len(active)} of {len(found)} search indexes are active", "larder doctor --repair")


def activate_index(parts: Runtime) -> None:
    """Let searches read the newest index, if they have none."""
    with parts.database.control() as connection:
        found = indexes(connection)
        if not found or any(i.status == "active" for i in found):
            return
        newest = max(found, key=lambda i: (i.status == "building", i.id))
        connection.execute(text("select activate_search_index(:i)"), {"i": newest.id})


def deferred(parts: Runtime) -> Diagnosis:
    """The indexes that were put off during the first load are there."""
    with parts.database.control() as connection:
        missing = [
            f"{what} index of {index.model}"
            for index in indexes(connection)
            for what, lacks in zip(("keyword", "vector"), _lacking(parts, connection, index), strict=True)
            if lacks
        ]
    if missing:
        return warning(f"not built: {', '.join(missing)}; searches answer, slowly", "larder doctor --repair")
    return fine("nothing is due to be built")


def _lacking(parts: Runtime, connection: Connection, index: SearchIndex) -> tuple[bool, bool]:
    """(keyword, vector): due and not built, or said to be built and not there."""
    r = parts.rag.retrieval
    keyword, vector = term_statistics.build_due(
        connection, index, exact_below=r.exact_below, build_at=r.build_at
    )
    keyword = keyword or (index.keyword_built and not _exists(connection, index, "lexemes"))
    return keyword, vector or (index.indexed_rows is not None and not _exists(connection, index, "vector"))


def _exists(connection: Connection, index: SearchIndex, what: str) -> bool:
    name = f"chunk_{index.id}_{what}"
    found = connection.execute(text("select to_regclass(:name) is not null"), {"name": name})
    return bool(found.scalar_one())


def build_deferred(parts: Runtime) -> None:
    """Build what is missing; writes wait meanwhile."""
    build_indexes(parts)
    with parts.database.control() as connection:
        for index in indexes(connection):
            keyword, vector = _lacking(parts, connection, index)
            term_statistics.build(connection, index, keyword=keyword, vector=vector)


def invalid_indexes(parts: Runtime) -> Diagnosis:
    """No index was left half built."""
    with parts.database.control() as connection:
        rows = connection.execute(
            text("""
                select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
                where not i.indisvalid and c.relnamespace = current_schema()::regnamespace order by 1"""),
        )
        names = [row.relname for row in rows]
    if names:
        fix = "as the owner: " + "; ".join(f"reindex index {name}" for name in names)
        return error(f"invalid: {', '.join(names)}", fix)
    return fine("all are valid")


def message_broker(parts: Runtime) -> Diagnosis:
    """The broker answers and drops nothing."""
    found = broker.facts(parts.addresses.broker)
    if found is None:
        return error(*_broker_trouble(parts))
    if found.policy != "noeviction":
        fix = "set maxmemory-policy noeviction on it"
        return error(f"{found.server} drops entries when it is full ({found.policy})", fix)
    if found.limit and found.used > FULL_SHARE * found.limit:
        fix = "raise maxmemory, or add workers so that queues get shorter"
        return warning(f"{found.server} uses {found.used / found.limit:.0%} of its memory", fix)
    return fine(f"{found.server}, {found.used / 1e6:.0f} MB used, noeviction")


def _broker_trouble(parts: Runtime) -> tuple[str, str]:
    """(what, what to do); why it does not answer is asked again, since nobody else needs to know."""
    meanwhile = "work waits in the database meanwhile"
    why = broker.trouble(parts.addresses.broker)
    if why != broker.SILENT:
        return f"the broker {why or 'gives no facts of itself'}", f"{broker.remedy(why)}; {meanwhile}"
    found = running(parts.settings.data / "valkey") if uses_embedded(parts.settings) else None
    if found:
        fix = f"if `ps -o stat {found[0]}` says T, it is stopped: kill -CONT {found[0]}; else larder down, larder up"
    else:
        fix = broker.remedy(why)
    return f"the broker {why}", f"{fix}; {meanwhile}"


def clock(parts: Runtime, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Diagnosis:
    """This machine and the database agree on the time: leases and schedules are the database's."""
    with parts.database.control() as connection:
        before = now()
        there: Any = connection.execute(text("select clock_timestamp()")).scalar_one()
        after = now()
    apart = abs((there - (before + (after - before) / 2)).total_seconds())
    if apart > CLOCK_SECONDS:
        return warning(f"this machine and the database are {apart:.0f} s apart", "synchronise both with NTP")
    return fine(f"{apart:.1f} s apart")
