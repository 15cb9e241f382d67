"""Questions to the store: one statement each, as one tenant, in a single way to the server."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine

EF_SEARCH = 100
"""Nearest neighbours that one step of the vector index looks for, unless a question sets more."""

MOST_SHAPES = 512
"""Statements whose texts are kept."""

LOST = (None, "57P01", "57P02")
"""What a connection says that the server has ended."""

# The tenant is set by the statement that it binds. A lateral that needs a column of the left side comes after it, so
# row-level security reads the setting in time; read too early it would be empty and no row would be seen. The setting
# ends with the statement, which is a transaction of its own.
_AS_TENANT = """
    select asked.* from (select set_config('app.tenant', %(as_tenant)s, true) as tenant{more}) as here
    cross join lateral (
        select answer.* from ({statement}) as answer where here.tenant is not null{needs} offset 0) as asked"""
_MORE = ", set_config('hnsw.ef_search', %(as_ef_search)s, true) as ef_search"


class _Numbered:
    """Names of values in the order in which a statement uses them first; each is replaced by its number.

    The driver does the same, a hundred times slower, and does not remember it for statements of 4,096 characters.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}

    def __getitem__(self, name: str) -> str:
        return f"${self.names.setdefault(name, len(self.names) + 1)}"


@lru_cache(MOST_SHAPES)
def _as_tenant(statement: str, usual: bool) -> tuple[str, tuple[str, ...]]:
    """The statement as a tenant asks it, with numbers for names, and the names."""
    numbered = _Numbered()
    more, needs = ("", "") if usual else (_MORE, " and here.ef_search is not null")
    query = _AS_TENANT.format(more=more, needs=needs, statement=statement) % numbered
    return query, tuple(numbered.names)


class Asker:
    """Asks through connections of its own, on which nothing else happens."""

    def __init__(self, engine: Engine) -> None:
        """`engine` connects in autocommit, with plan_cache_mode auto."""
        self.engine = engine

    def ask(
        self,
        tenant_id: UUID,
        statement: str,
        values: Mapping[str, Any],
        *,
        ef_search: int = EF_SEARCH,
        one_plan: bool = False,
    ) -> list[tuple[Any, ...]]:
        """The rows of one statement as `tenant_id`; see `Database.ask`.

        Raises:
            psycopg.Error: what the driver says; a connection that was lost before is replaced once.
        """
        query, names = _as_tenant(statement, ef_search == EF_SEARCH)
        given = {**values, "as_tenant": str(tenant_id), "as_ef_search": str(ef_search)}
        ordered = [given[name] for name in names]
        try:
            return self._sent(query, ordered, one_plan)
        except psycopg.OperationalError as error:
            if error.sqlstate not in LOST:
                raise
        # As a pooled connection to a server that was restarted is found to be; the others are no better.
        self.engine.dispose()
        return self._sent(query, ordered, one_plan)

    def _sent(self, query: str, values: list[Any], one_plan: bool) -> list[tuple[Any, ...]]:
        pooled = self.engine.raw_connection()
        driver = cast("psycopg.Connection[tuple[Any, ...]]", pooled.driver_connection)
        try:
            cursor = psycopg.RawCursor(driver)
            # What is not prepared is planned anew for its values; what is prepared, once for all after five times.
            cursor.execute(query, values, prepare=one_plan, binary=True)
            return cursor.fetchall()
        finally:
            # Closed, or left in the middle of an answer by whoever could wait no longer: nobody else may have it.
            if driver.pgconn.transaction_status != TransactionStatus.IDLE:
                pooled.invalidate()
            pooled.close()
