"""What a database server says of itself: versions, roles, row-level security, indexes, time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Row, text


def server_version(connection: Connection) -> str:
    """Of PostgreSQL."""
    return str(connection.execute(text("select current_setting('server_version')")).scalar_one())


def vector_version(connection: Connection) -> str | None:
    """Of the extension pgvector; None if it is not in this database."""
    found = connection.execute(text("select extversion from pg_extension where extname = 'vector'")).scalar()
    return None if found is None else str(found)


def role(connection: Connection) -> Row[Any]:
    """Who acts and who logged in: acts, login, super, bypass (of the role), strong_login (either of the login)."""
    return connection.execute(
        text("""
            select current_user as acts, session_user as login, r.rolsuper as super, r.rolbypassrls as bypass,
                   l.rolsuper or l.rolbypassrls as strong_login
            from pg_roles r, pg_roles l where r.rolname = current_user and l.rolname = session_user""")
    ).one()


def tables_of_tenants(connection: Connection) -> dict[str, bool]:
    """Table with rows of tenants -> whether row-level security is forced on it."""
    rows = connection.execute(
        text("""
            select c.relname, c.relrowsecurity and c.relforcerowsecurity as forced from pg_class c
            where c.relkind in ('r', 'p') and c.relnamespace = current_schema()::regnamespace
              and (c.relname = 'tenant' or exists (
                  select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant_id'
                  and not a.attisdropped))
            order by c.relname""")
    )
    return {row.relname: row.forced for row in rows}


def invalid_indexes(connection: Connection) -> list[str]:
    """Indexes that were left half built."""
    rows = connection.execute(
        text("""
            select c.relname from pg_index i join pg_class c on c.oid = i.indexrelid
            where not i.indisvalid and c.relnamespace = current_schema()::regnamespace order by 1""")
    )
    return [row.relname for row in rows]


def server_time(connection: Connection) -> datetime:
    """The moment at which the server answers."""
    found: datetime = connection.execute(text("select clock_timestamp()")).scalar_one()
    return found
