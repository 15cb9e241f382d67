"""Telling the driver of the types of pgvector, in one way to the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import psycopg
from pgvector.psycopg.bit import register_bit_info
from pgvector.psycopg.halfvec import register_halfvec_info
from pgvector.psycopg.sparsevec import register_sparsevec_info
from pgvector.psycopg.vector import register_vector_info
from psycopg.types import TypeInfo

_REGISTER: Mapping[str, Callable[[psycopg.Connection[Any], TypeInfo], None]] = {
    "vector": register_vector_info,
    "bit": register_bit_info,
    "halfvec": register_halfvec_info,
    "sparsevec": register_sparsevec_info,
}
# The library asks for each of them in a transaction of its own: twelve ways to the server for each connection.
_TYPES = "select typname, oid, typarray from pg_type where oid = any(array[{}])".format(
    ", ".join(f"to_regtype('{name}')" for name in _REGISTER)
)


def register_vectors(connection: psycopg.Connection[Any]) -> None:
    """Let a new connection speak of vectors; nothing happens in a database without the extension.

    Only `migrate` uses such a one, and it uses no vectors.
    """
    before, connection.autocommit = connection.autocommit, True
    try:
        found = connection.execute(_TYPES).fetchall()
    finally:
        connection.autocommit = before
    if any(name == "vector" for name, _, _ in found):  # `bit` is PostgreSQL's own and always there
        for name, oid, array_oid in found:
            _REGISTER[name](connection, TypeInfo(name, oid, array_oid))
