"""Collections in PostgreSQL, one tenant's: they outlive the process and are shared by all that connect."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any
from uuid import UUID

from pgvector import Vector
from sqlalchemy import Connection, RowMapping, text

from pipeline.actions.collections import (
    CollectionEntry,
    CollectionHit,
    Saved,
    VectorShape,
    from_json,
    shape_with,
    to_json,
    vector_of,
)
from pipeline.actions.filters import Condition
from pipeline.database.engine import Database
from pipeline.database.tenancy import project_id, tenant_id
from pipeline.documents import Json
from pipeline.ledger import sources

# The row is locked until the end of the transaction: two who write to one collection wait for each other.
_JOIN = text("""
    insert into action_collection as held (tenant_id, name, dimensions, model)
    values (:tenant, :name, :dimensions, :model)
    on conflict (tenant_id, name) do update set model = held.model
    returning dimensions, model""")

_PUT = text("""
    insert into action_document (tenant_id, collection, id, content, metadata, embedding)
    values (:tenant, :collection, :id, :content, cast(:metadata as jsonb), :embedding)
    on conflict (tenant_id, collection, id) do update
        set content = excluded.content, metadata = excluded.metadata, embedding = excluded.embedding""")

# The distance from or to a vector without length is NaN.
_QUERY = """
    select id, content, cast(metadata as text) as metadata, embedding,
           coalesce(nullif(1 - (embedding <=> :vector), 'NaN'), 0) as score
    from action_document where collection = :collection {conditions}
    order by score desc, number limit :k"""

_ALL = text("""
    select d.collection, c.dimensions, c.model, d.id, d.content, cast(d.metadata as text) as metadata, d.embedding
    from action_document d join action_collection c on c.name = d.collection and c.tenant_id = d.tenant_id
    order by d.collection, d.number""")


def open_collections(database: Database, tenant: str) -> PgCollections:
    """The collections of a tenant, by name or id; the tenant is made if there is none.

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

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> int:
        """See CollectionStore; raises StoreUnavailable too."""
        if not entries:
            return 0
        with self._database.tenant(self._tenant) as connection:
            self._put(connection, collection, entries, model)
        return len({entry.id for entry in entries})

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
        parts = [_sql(number, condition) for number, condition in enumerate(conditions)]
        values = {name: value for _, bound in parts for name, value in bound.items()}
        statement = text(_QUERY.format(conditions="".join(f" and {condition}" for condition, _ in parts)))
        with self._database.tenant(self._tenant) as connection:
            row = connection.execute(
                text("select dimensions, model from action_collection where name = :name"),
                {"name": collection},
            ).one_or_none()
            if row is None:
                return []
            held = VectorShape(dimensions=row.dimensions, model=row.model)
            held.joined(VectorShape(dimensions=len(vector), model=model), collection)
            asked = {"vector": Vector(list(vector)), "collection": collection, "k": k, **values}
            return [_hit(found) for found in connection.execute(statement, asked).mappings()]

    def get_state(self) -> Json:
        """Everything in all of the tenant's collections as JSON."""
        with self._database.tenant(self._tenant) as connection:
            rows = connection.execute(_ALL).mappings().all()
        return to_json(
            Saved(name, VectorShape(dimensions=dimensions, model=model), [_hit(row) for row in group])
            for (name, dimensions, model), group in groupby(
                rows, key=lambda row: (row["collection"], row["dimensions"], row["model"])
            )
        )

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Become what `get_state` of any store gave; the tenant's other collections are gone.

        Raises:
            StoreRejected: this is no such state; the store is as it was.
            StoreUnavailable: the database does not answer.
        """
        collections = from_json(state)
        with self._database.tenant(self._tenant) as connection:
            connection.execute(text("delete from action_collection"))
            for saved in collections:
                self._put(connection, saved.name, saved.entries, saved.shape.model)

    def _put(
        self, connection: Connection, collection: str, entries: Sequence[CollectionEntry], model: str
    ) -> None:
        vectors = [vector_of(entry.embedding, f"vector no. {n}") for n, entry in enumerate(entries)]
        given = {"tenant": self._tenant, "name": collection, "dimensions": len(vectors[0]), "model": model}
        row = connection.execute(_JOIN, given).one()
        held = VectorShape(dimensions=row.dimensions, model=row.model)
        shape = shape_with(held, vectors, model, collection)
        if shape != held:
            connection.execute(
                text("update action_collection set model = :model where name = :name"),
                {"model": shape.model, "name": collection},
            )
        rows = [
            {
                "tenant": self._tenant,
                "collection": collection,
                "id": entry.id,
                "content": entry.text,
                "metadata": json.dumps(dict(entry.metadata)),
                "embedding": Vector(vector.tolist()),
            }
            for entry, vector in zip(entries, vectors, strict=True)
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


_VALUE = "metadata -> cast(:key_{n} as text)"
_WORDS = "metadata ->> cast(:key_{n} as text)"
_JSON = "cast(:value_{n} as jsonb)"
_CONDITIONS: Mapping[str, str] = {
    "eq": f"{_VALUE} = {_JSON}",
    "ne": f"{_VALUE} is distinct from {_JSON}",
    "in": f"{_VALUE} in (select jsonb_array_elements({_JSON}))",
    "contains": f"""case jsonb_typeof({_VALUE})
        when 'string' then jsonb_typeof({_JSON}) = 'string' and strpos({_WORDS}, {_JSON} #>> '{{{{}}}}') > 0
        when 'array' then {_VALUE} @> jsonb_build_array({_JSON}) else false end""",
}
"""Operator -> its condition in SQL, to be numbered."""

_COMPARED = """case when jsonb_typeof({value}) <> jsonb_typeof({json}) then false
    when jsonb_typeof({json}) = 'number' then cast({words} as numeric) {sign} cast({json} as numeric)
    when jsonb_typeof({json}) = 'string' then {words} collate "C" {sign} {json} #>> '{{}}' else false end"""
_SIGNS: Mapping[str, str] = {"gte": ">=", "gt": ">", "lte": "<=", "lt": "<"}


def _sql(number: int, condition: Condition) -> tuple[str, dict[str, str]]:
    """A condition as SQL, its key and its value as parameters."""
    bound = {f"key_{number}": condition.key, f"value_{number}": json.dumps(condition.value)}
    sign = _SIGNS.get(condition.operator)
    if sign is None:
        return f"({_CONDITIONS[condition.operator].format(n=number)})", bound
    value, words, value_json = (part.format(n=number) for part in (_VALUE, _WORDS, _JSON))
    return f"({_COMPARED.format(value=value, words=words, json=value_json, sign=sign)})", bound
