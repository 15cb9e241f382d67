"""Questions to the store: one statement each, as one tenant, in a single way to the server."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, cast
from uuid import UUID

import psycopg
from psycopg.pq import TransactionStatus
from sqlalchemy import Engine

Cursor: TypeAlias = "psycopg.RawCursor[tuple[Any, ...]]"

EF_SEARCH = 100
"""Nearest neighbours that one step of the vector index looks for, unless a question sets more."""

MOST_SHAPES = 512
"""Statements whose texts are kept."""

MORE = 4
"""Connections beyond those that are kept; closed after their use."""
WAIT_SECONDS = 30.0
"""How long a question waits for one of so many others to end."""

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
    """Asks through connections of its own, on which nothing else happens.

    They are kept here and not by the engine: there, taking one and giving it back is a tenth of the shortest search.
    """

    def __init__(self, engine: Engine, keep: int) -> None:
        """`engine` connects in autocommit, with plan_cache_mode auto; `keep` connections stay open, MORE may come."""
        self.engine = engine
        self._keep = keep
        self._idle: deque[Cursor] = deque()
        self._parents: deque[Cursor] = deque()
        self._allowed = _allowed(keep)

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
        # As a kept connection to a server that was restarted is found to be; the others are no better.
        self.close()
        return self._sent(query, ordered, one_plan)

    def close(self) -> None:
        """Close what is not in use."""
        with suppress(IndexError):
            while True:
                self._idle.pop().connection.close()

    def forget(self) -> None:
        """In a forked child: leave the parent's connections to the parent."""
        self._parents = self._idle  # held, since a connection that nobody holds is closed
        self._idle = deque()
        self._allowed = _allowed(self._keep)

    def idle(self) -> list[psycopg.Connection[tuple[Any, ...]]]:
        """The connections that are not in use."""
        return [cursor.connection for cursor in list(self._idle)]

    def busy(self) -> int:
        """How many are in use."""
        return self._keep + MORE - self._allowed.qsize()

    def _sent(self, query: str, values: list[Any], one_plan: bool) -> list[tuple[Any, ...]]:
        try:
            self._allowed.get(timeout=WAIT_SECONDS)
        except Empty:
            raise psycopg.OperationalError(
                f"no connection became free within {WAIT_SECONDS:g} seconds"
            ) from None
        try:
            return self._answer(query, values, one_plan)
        finally:
            self._allowed.put(None)

    def _answer(self, query: str, values: list[Any], one_plan: bool) -> list[tuple[Any, ...]]:
        try:
            cursor = self._idle.pop()
        except IndexError:
            cursor = self._opened()
        try:
            # What is not prepared is planned anew for its values; what is prepared, once for all after five times.
            return cursor.execute(query, values, prepare=one_plan, binary=True).fetchall()
        finally:
            # Closed, or left in the middle of an answer by whoever could wait no longer: nobody else may have it.
            driver = cursor.connection
            if driver.pgconn.transaction_status == TransactionStatus.IDLE and len(self._idle) < self._keep:
                self._idle.append(cursor)
            else:
                driver.close()

    def _opened(self) -> Cursor:
        pooled = self.engine.raw_connection()
        driver = cast("psycopg.Connection[tuple[Any, ...]]", pooled.driver_connection)
        pooled.detach()
        return psycopg.RawCursor(driver)


def _allowed(keep: int) -> SimpleQueue[None]:
    """A permission for each connection that may be in use at once."""
    permissions: SimpleQueue[None] = SimpleQueue()
    for _ in range(keep + MORE):
        permissions.put(None)
    return permissions
