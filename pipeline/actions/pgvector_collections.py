"""Collections of one tenant in PostgreSQL, shared by all processes that connect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pgvector import Vector
from sqlalchemy import Connection, RowMapping, text

from pipeline.actions.collections import (
    Collection,
    CollectionEntry,
    CollectionHit,
    VectorShape,
    from_json,
    shape_with,
    to_json,
)
from pipeline.actions.filters import Condition
from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.ledger import project_id, sources, tenant_id

# The row is locked until the end of the transaction, which serialises writers of one collection. The first known
# model stays.
_JOIN = text("""
    insert into action_collection as existing (tenant_id, name, dimensions, model)
    values (:tenant, :name, :dimensions, :model)
    on conflict (tenant_id, name) do update set model = coalesce(nullif(existing.model, ''), excluded.model)
    returning dimensions, model""")

_PUT = text("""
    insert into action_document (tenant_id, collection, id, content, metadata, embedding)
    values (:tenant, :collection, :id, :content, cast(:metadata as jsonb), :embedding)
    on conflict (tenant_id, collection, id) do update
        set content = excluded.content, metadata = excluded.metadata, embedding = excluded.embedding""")

# The distance from or to a vector of length zero is NaN.
_QUERY = """
    select id, content, cast(metadata as text) as metadata, embedding,
           coalesce(nullif(1 - (embedding <=> :vector), 'NaN'), 0) as score
    from action_document where collection = :collection {conditions}
    order by score desc, number limit :k"""

_SHAPE = text("select dimensions, model from action_collection where name = :name")

_READ = text("""
    select id, content, cast(metadata as text) as metadata, embedding
    from action_document where collection = :name and id = any(:ids) order by number""")

_ALL = text("""
    select d.collection, c.dimensions, c.model, d.id, d.content, cast(d.metadata as text) as metadata, d.embedding
    from action_document d join action_collection c on c.name = d.collection and c.tenant_id = d.tenant_id
    order by d.collection, d.number""")


def open_collections(database: Database, tenant: str) -> PgCollections:
    """Open the collections of a tenant, given by name or id; the tenant is created if missing.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    ident = tenant_id(tenant)
    with database.tenant(ident) as connection:
        sources.ensure_tenant(connection, ident, tenant, project_id(ident, "default"), "default")
    return PgCollections(database, ident)


class PgCollections:
    """One tenant's collections; each call is a transaction of its own. Search is exact and done by the server."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self._database = database
        self._tenant = tenant

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> None:
        """See CollectionStore; raises StoreUnavailable too."""
        with self._database.tenant(self._tenant) as connection:
            self._put(connection, collection, entries, model)

    def query(
        self,
        collection: str,
        vector: Sequence[float],
        *,
        k: int,
        conditions: Sequence[Condition] = (),
        model: str = "",
    ) -> list[CollectionHit]:
        """See CollectionStore; raises StoreUnavailable too."""
        clauses = [_sql(number, condition) for number, condition in enumerate(conditions)]
        values = {name: value for _, bound in clauses for name, value in bound.items()}
        statement = text(_QUERY.format(conditions="".join(f" and {condition}" for condition, _ in clauses)))
        with self._database.tenant(self._tenant) as connection:
            row = connection.execute(_SHAPE, {"name": collection}).one_or_none()
            if row is None:
                return []
            shape_with(VectorShape(*row), [vector], model, collection)
            parameters = {"vector": Vector(list(vector)), "collection": collection, "k": k, **values}
            return [_hit(row) for row in connection.execute(statement, parameters).mappings()]

    def read(self, collection: str, ids: Sequence[str]) -> Collection | None:
        """See KeptCollections."""
        with self._database.tenant(self._tenant) as connection:
            row = connection.execute(_SHAPE, {"name": collection}).one_or_none()
            if row is None:
                return None
            rows = connection.execute(_READ, {"name": collection, "ids": list(ids)}).mappings()
            hits = [_hit(one) for one in rows]
        return Collection(VectorShape(*row), {one.id: one for one in hits})

    def get_state(self) -> Json:
        """Everything in all of the tenant's collections as JSON."""
        with self._database.tenant(self._tenant) as connection:
            rows = connection.execute(_ALL).mappings().all()
        collections: dict[str, Collection] = {}
        for row in rows:
            shape, hit = VectorShape(row["dimensions"], row["model"]), _hit(row)
            collections.setdefault(row["collection"], Collection(shape, {})).entries[hit.id] = hit
        return to_json(collections)

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Replace the tenant's collections by those of a state that `get_state` of any store returned.

        Raises:
            StoreRejected: not such a state; the store is unchanged.
            StoreUnavailable: the database does not answer.
        """
        collections = from_json(state)
        with self._database.tenant(self._tenant) as connection:
            connection.execute(text("delete from action_collection"))
            for name, (shape, entries) in collections.items():
                self._put(connection, name, list(entries.values()), shape.model)

    def _put(
        self, connection: Connection, collection: str, entries: Sequence[CollectionEntry], model: str
    ) -> None:
        vectors = [one.embedding for one in entries]
        collection_row = {
            "tenant": self._tenant,
            "name": collection,
            "dimensions": len(vectors[0]),
            "model": model,
        }
        row = connection.execute(_JOIN, collection_row).one()
        shape_with(VectorShape(*row), vectors, model, collection)
        rows = [
            {
                "tenant": self._tenant,
                "collection": collection,
                "id": entry.id,
                "content": entry.text,
                "metadata": json.dumps(entry.metadata),
                "embedding": Vector(list(entry.embedding)),
            }
            for entry in entries
        ]
        connection.execute(_PUT, rows)


def _hit(row: RowMapping) -> CollectionHit:
    return CollectionHit(
        id=row["id"],
        text=row["content"],
        score=min(1.0, max(-1.0, float(row.get("score", 0.0)))),
        metadata=json.loads(row["metadata"]),
        embedding=row["embedding"].to_list(),
    )


_PATHS: Mapping[str, str] = {
    "eq": "{key} == $value",
    "ne": "{key} == $value",
    "gte": "{key} >= $value",
    "gt": "{key} > $value",
    "lte": "{key} <= $value",
    "lt": "{key} < $value",
    "in": "exists($value[*] ? (@ == {key}))",
    "contains": "exists({key}[*] ? (@ == $value))",
}
"""Operator -> condition as JSON path; `ne` is negated. Strict mode, so that a list does not match as a value."""


def _sql(number: int, condition: Condition) -> tuple[str, dict[str, str]]:
    """A condition as SQL, and its parameters; a value of another type or none is no match."""
    value, key = json.dumps(condition.value), f"$.{json.dumps(condition.key)}"
    path = f"strict {_PATHS[condition.operator].format(key=key)}"
    if condition.operator == "contains" and isinstance(condition.value, str):
        path += f' || {key} like_regex {value} flag "q"'
    match = f"""coalesce(jsonb_path_match(metadata, cast(:path_{number} as jsonpath),
        jsonb_build_object('value', cast(:value_{number} as jsonb)), true), false)"""
    bound = {f"path_{number}": path, f"value_{number}": value}
    return f"{'not ' if condition.operator == 'ne' else ''}{match}", bound
