"""Collections in a file of SQLite, which needs the standard library only; processes of one machine share it."""

from __future__ import annotations

import json
import sqlite3
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from pipeline.actions.collections import (
    Collection,
    CollectionEntry,
    CollectionHit,
    VectorShape,
    from_json,
    ranked,
    shape_with,
    to_json,
)
from pipeline.actions.filters import Condition, matches
from pipeline.documents import Json
from pipeline.errors import StoreUnavailable

_SCHEMA = """
    create table if not exists collection (name text primary key, dimensions int not null, model text not null);
    create table if not exists document (
        number integer primary key autoincrement, collection text not null, id text not null, content text not null,
        metadata text not null, embedding blob not null, unique (collection, id));"""
_PUT = """
    insert into document (collection, id, content, metadata, embedding) values (?, ?, ?, ?, ?)
    on conflict (collection, id) do update
        set content = excluded.content, metadata = excluded.metadata, embedding = excluded.embedding"""
_SELECT = "select id, content, metadata, embedding from document where collection = ? {among} order by number"
_LOCKED_SECONDS = 30.0
"""Most seconds to wait for another writer."""


class FileCollections:
    """Collections of one file; search is exact and compares every document that the filter allows."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def _opened(self, *, writes: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection in a transaction.

        Raises:
            StoreUnavailable: the file cannot be read or written.
        """
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with closing(sqlite3.connect(self._path, _LOCKED_SECONDS, isolation_level=None)) as connection:
                connection.executescript(_SCHEMA)
                connection.execute("begin immediate" if writes else "begin")
                with connection:
                    yield connection
        except (OSError, sqlite3.Error) as error:
            message = f"the file {self._path.name} of collections fails ({type(error).__name__})"
            raise StoreUnavailable(message, fix="look at its folder", cause=error) from None

    def add(self, collection: str, entries: Sequence[CollectionEntry], *, model: str = "") -> None:
        """See CollectionStore; raises StoreUnavailable too."""
        with self._opened(writes=True) as connection:
            _put(connection, collection, entries, model)

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
        with self._opened() as connection:
            contents = _read(connection, collection, None)
        if contents is None:
            return []
        shape_with(contents.shape, [vector], model, collection)
        return ranked(
            [one for one in contents.entries.values() if matches(one.metadata, conditions)], vector, k
        )

    def read(self, collection: str, ids: Sequence[str]) -> Collection | None:
        """See KeptCollections."""
        with self._opened() as connection:
            return _read(connection, collection, ids)

    def get_state(self) -> Json:
        """See CollectionStore; raises StoreUnavailable too."""
        with self._opened() as connection:
            names = [name for (name,) in connection.execute("select name from collection order by name")]
            contents = {name: _read(connection, name, None) for name in names}
        return to_json({name: one for name, one in contents.items() if one})

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """See CollectionStore; raises StoreUnavailable too."""
        collections = from_json(state)
        with self._opened(writes=True) as connection:
            connection.execute("delete from document")
            connection.execute("delete from collection")
            for name, (shape, entries) in collections.items():
                _put(connection, name, list(entries.values()), shape.model)


def _shape(connection: sqlite3.Connection, collection: str) -> VectorShape | None:
    statement = "select dimensions, model from collection where name = ?"
    row = connection.execute(statement, (collection,)).fetchone()
    return VectorShape(*row) if row else None


def _read(connection: sqlite3.Connection, collection: str, ids: Sequence[str] | None) -> Collection | None:
    """A collection with these documents or, without ids, all."""
    if (shape := _shape(connection, collection)) is None:
        return None
    # One parameter, since SQLite limits their number.
    among = "" if ids is None else "and id in (select value from json_each(?))"
    values = (collection,) if ids is None else (collection, json.dumps(list(ids)))
    rows = connection.execute(_SELECT.format(among=among), values)
    entries = {
        id_: CollectionEntry(id=id_, text=text, metadata=json.loads(metadata), embedding=_vector(embedding))
        for id_, text, metadata, embedding in rows
    }
    return Collection(shape, entries)


def _vector(embedding: bytes) -> array[float]:
    vector = array("f")
    vector.frombytes(embedding)
    return vector


def _put(
    connection: sqlite3.Connection, collection: str, entries: Sequence[CollectionEntry], model: str
) -> None:
    shape = shape_with(_shape(connection, collection), [one.embedding for one in entries], model, collection)
    connection.execute("insert or replace into collection values (?, ?, ?)", (collection, *shape))
    rows = [
        (collection, one.id, one.text, json.dumps(one.metadata), array("f", one.embedding).tobytes())
        for one in entries
    ]
    connection.executemany(_PUT, rows)
