"""The types of pgvector, as the driver sends and reads them."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import psycopg
from pgvector import HalfVector, Vector
from pgvector.psycopg.halfvec import register_halfvec_info
from pgvector.psycopg.vector import register_vector_info
from psycopg.adapt import AdaptersMap, PyFormat
from psycopg.pq import Format
from psycopg.types import TypeInfo

_TYPES = (
    "select typname, oid, typarray from pg_type where oid in (to_regtype('vector'), to_regtype('halfvec'))"
)


def register_vectors(connection: psycopg.Connection[Any]) -> None:
    """Let a new connection speak of vectors; nothing happens in a database without the extension.

    In one round trip: the library takes three for each type, and each connection pays for them.
    """
    before, connection.autocommit = connection.autocommit, True
    try:
        found = connection.execute(_TYPES).fetchall()
    finally:
        connection.autocommit = before
    for name, oid, array_oid in found:
        kind, info = Vector if name == "vector" else HalfVector, TypeInfo(name, oid, array_oid)
        known, mine = _adapters(name, oid, array_oid), connection.adapters
        info.register(connection)
        for sent, got in ((PyFormat.TEXT, Format.TEXT), (PyFormat.BINARY, Format.BINARY)):
            dumper, loader = known.get_dumper(kind, sent), known.get_loader(oid, got)
            for one in (kind, "numpy.ndarray") if kind is Vector else (kind,):
                mine.register_dumper(one, dumper)
            if loader is not None:
                mine.register_loader(oid, loader)


@lru_cache(16)
def _adapters(name: str, oid: int, array_oid: int) -> AdaptersMap:
    """What the library registers for a type.

    It makes classes anew for each connection, and the driver keeps every class it has seen: 5 KB each time.
    """
    register: Any = register_vector_info if name == "vector" else register_halfvec_info
    context = SimpleNamespace(adapters=AdaptersMap(psycopg.adapters))
    register(context, TypeInfo(name, oid, array_oid))
    found: AdaptersMap = context.adapters
    return found
