"""FAISS: files in a folder, loaded by each process that searches, written by one at a time.

A collection is a folder with one folder per tenant. Of each, `current` names the generation in use: `points.npz` and
`index.faiss`, as they were last written whole, and `log`, to which later changes are appended. A reader loads both and
then reads only what is added to the log. A writer begins a new generation when the log has grown large.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import faiss
import numpy as np
from numpy.typing import NDArray

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreUnavailable
from pipeline.search.stores import (
    ATTRIBUTES,
    FloatVector,
    Neighbour,
    Point,
    Scope,
    StoreStats,
    last_of_each,
    matrix_of,
    normalised,
    translated,
)
from pipeline.search.stores.memory import check_dimensions
from pipeline.search.stores.shared_folder import SharedFolder

NEIGHBOURS = 32
"""Links of each point in the graph (M)."""
EF_CONSTRUCTION = 128
EXACT_BELOW = 5_000
"""Points that pass the filter up to which all of them are compared."""
LOG_POINTS = 2_000
"""Points of a log below which no new generation is begun."""
LOG_SHARE = 0.25
"""Share of the points in a generation from which a log is folded into a new one."""
_HEADER = struct.Struct("<IIII")
"""Of a log entry: lengths of the JSON and of the vectors, dimensions, and the checksum of both parts."""


class _Shard:
    """One tenant's points of one collection in memory, as they are in its files."""

    def __init__(self, folder: Path, algorithm: str) -> None:
        self.folder = folder
        self.algorithm = algorithm
        self.generation = -1
        self.read_to = 0
        """Bytes of the log that are applied."""
        self.logged = 0
        """Points of the log."""
        self._empty()

    def _empty(self) -> None:
        self.ids: list[str] = []
        self.rows: dict[str, int] = {}
        self.attributes: dict[str, list[Any]] = {name: [] for name in (*ATTRIBUTES, "changed")}
        self.index: Any = None
        self.dead = 0
        self._columns: dict[str, tuple[NDArray[Any], NDArray[np.int64]]] = {}
        """Attribute -> its different values, and the place among them of each point's."""

    @property
    def dimensions(self) -> int | None:
        return None if self.index is None else int(self.index.d)

    @property
    def _log(self) -> Path:
        return self.folder / f"{self.generation}.log"

    def refresh(self) -> None:
        """Apply what was written since the last call."""
        try:
            generation = int((self.folder / "current").read_text(encoding="ascii"))
        except FileNotFoundError:
            generation = 0
        if generation != self.generation or (self.read_to and not self._log.exists()):
            self._load(generation)
        self._replay()

    def _load(self, generation: int) -> None:
        self.generation, self.read_to, self.logged = generation, 0, 0
        self._empty()
        saved = self.folder / f"{generation}.points.npz"
        if saved.exists():
            self.index = faiss.read_index(str(self.folder / f"{generation}.index.faiss"))
            with np.load(saved, allow_pickle=False) as arrays:
                self.ids = [str(one) for one in arrays["ids"]]
                self.attributes = {name: arrays[name].tolist() for name in self.attributes}
                alive = arrays["alive"].tolist()
            self.rows = {self.ids[row]: row for row in alive}
            self.dead = len(self.ids) - len(alive)

    def _replay(self) -> None:
        """Apply the log from `read_to` on, up to an entry that is not whole: its writer ended in the midst of it."""
        with suppress(FileNotFoundError), self._log.open("rb") as log:
            log.seek(self.read_to)
            while len(header := log.read(_HEADER.size)) == _HEADER.size:
                length, size, dimensions, checksum = _HEADER.unpack(header)
                body = log.read(length + size)
                if len(body) < length + size or zlib.crc32(body) != checksum:
                    break
                entry = json.loads(body[:length])
                if vectors := body[length:]:
                    matrix = np.frombuffer(vectors, dtype=np.float32).reshape(-1, dimensions)
                    self._put(entry["ids"], entry["attributes"], matrix)
                else:
                    self._delete(entry["ids"])
                self.logged += len(entry["ids"])
                self.read_to = log.tell()

    def append(self, entry: dict[str, Any], matrix: FloatVector | None = None) -> None:
        """Write an entry to the log, after the last whole one, and apply it; the caller has the lock and is fresh."""
        words = json.dumps(entry).encode()
        vectors = b"" if matrix is None else np.ascontiguousarray(matrix, dtype=np.float32).tobytes()
        body = words + vectors
        width = 0 if matrix is None else matrix.shape[1]
        header = _HEADER.pack(len(words), len(vectors), width, zlib.crc32(body))
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._log.open("r+b" if self._log.exists() else "w+b") as log:
            log.truncate(self.read_to)
            log.seek(self.read_to)
            log.write(header + body)
            log.flush()
            os.fsync(log.fileno())
        self._replay()
        if self.logged > max(LOG_POINTS, LOG_SHARE * len(self.ids)):
            self._begin_generation()

    def _put(self, ids: Sequence[str], attributes: Mapping[str, Sequence[Any]], matrix: FloatVector) -> None:
        if self.index is None:
            self.index = self._new_index(matrix.shape[1])
        self._delete(ids)
        for row, one in enumerate(ids, start=len(self.ids)):
            self.rows[one] = row
        self.ids += ids
        for name, values in attributes.items():
            self.attributes[name] += values
        self._columns.clear()
        self.index.add(normalised(matrix))

    def _delete(self, ids: Sequence[str]) -> None:
        for one in ids:
            self.dead += self.rows.pop(one, None) is not None

    def _new_index(self, dimensions: int) -> Any:
        if self.algorithm == "flat":
            return faiss.IndexFlatIP(dimensions)
        index = faiss.IndexHNSWFlat(dimensions, NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = EF_CONSTRUCTION
        return index

    def _begin_generation(self) -> None:
        """Write all points as a new generation, and delete the one before."""
        if self.dead > LOG_SHARE * len(self.ids):
            alive = np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))
            matrix = self._vectors(alive) if len(alive) else None
            dimensions, ids = self.dimensions, [self.ids[row] for row in alive]
            attributes = {name: [values[row] for row in alive] for name, values in self.attributes.items()}
            self._empty()
            if matrix is not None and dimensions:
                self._put(ids, attributes, matrix)
        before, new = self.generation, self.generation + 1
        if self.index is not None:
            faiss.write_index(self.index, str(self.folder / f"{new}.index.faiss"))
            arrays = {name: np.asarray(values) for name, values in self.attributes.items()}
            alive = np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))
            saved = self.folder / f"{new}.points.npz"
            np.savez(saved, allow_pickle=False, ids=np.asarray(self.ids), alive=alive, **arrays)
        draft = self.folder / "current.new"
        draft.write_text(str(new), encoding="ascii")
        draft.replace(self.folder / "current")
        for path in self.folder.glob(f"{before}.*"):
            path.unlink(missing_ok=True)
        self.generation, self.read_to, self.logged = new, 0, 0

    def _vectors(self, rows: NDArray[np.int64]) -> FloatVector:
        vectors: FloatVector = self.index.reconstruct_batch(rows)
        return vectors

    def matching(self, scope: Scope) -> NDArray[np.int64]:
        """Rows of the scope."""
        rows = np.fromiter(self.rows.values(), dtype=np.int64, count=len(self.rows))
        for name, texts in scope.values.items():
            values, places = self._column(name)
            rows = rows[np.isin(values, texts)[places[rows]]]
        if scope.since is not None or scope.until is not None:
            values, places = self._column("changed")
            changed = values[places[rows]]
            least, most = scope.since or -np.inf, np.inf if scope.until is None else scope.until
            rows = rows[(changed >= least) & (changed < most)]
        return rows

    def _column(self, name: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
        if name not in self._columns:
            values, places = np.unique(np.asarray(self.attributes[name]), return_inverse=True)
            self._columns[name] = values, places
        return self._columns[name]

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """The nearest points: by comparing all that pass the filter if they are few, else by the graph."""
        if self.index is None:
            return []
        check_dimensions(np.zeros(self.index.d, dtype=np.float32), vector)
        rows, query = self.matching(scope), normalised(np.asarray(vector, dtype=np.float32))
        if not len(rows):
            return []
        if len(rows) <= EXACT_BELOW:
            similarities = self._vectors(rows) @ query
            best = np.argsort(-similarities, kind="stable")[:n]
            return [Neighbour(self.ids[rows[place]], float(similarities[place])) for place in best]
        selector = None
        if len(rows) < len(self.ids):
            mask = np.zeros(len(self.ids), dtype=bool)
            mask[rows] = True
            bits = np.packbits(mask, bitorder="little")  # must live as long as the selector
            selector = faiss.IDSelectorBitmap(bits)
        if self.algorithm == "flat":
            parameters: Any = faiss.SearchParameters(sel=selector)
        else:
            parameters = faiss.SearchParametersHNSW(sel=selector, efSearch=max(128, 2 * n))
        similarities, places = self.index.search(query[None, :], min(n, len(rows)), params=parameters)
        pairs = zip(places[0], similarities[0], strict=True)
        return [Neighbour(self.ids[row], float(similarity)) for row, similarity in pairs if row >= 0]


class FaissStore:
    """Collections in a folder, one of FAISS's indexes for each tenant."""

    def __init__(self, options: StoreOptions) -> None:
        self._options = options
        self._folder = SharedFolder(options.path, options.timeout)
        self._shards: dict[Path, _Shard] = {}

    def _place(self, collection: str) -> Path:
        return self._folder.path / quote(self._options.name_of(collection), safe=" ").replace(".", "%2E")

    def _shard(self, folder: Path) -> _Shard:
        """The shard in a folder, as it is now; the caller has the lock."""
        shard = self._shards.setdefault(folder, _Shard(folder, self._options.algorithm))
        try:
            shard.refresh()
        except Exception:
            self._shards.pop(folder, None)
            raise
        return shard

    @contextmanager
    def _locked(self, *, writes: bool = False) -> Iterator[None]:
        with translated("faiss"), self._folder.locked(writes=writes):
            yield

    def _tenants(self, scope: Scope) -> list[Path]:
        place = self._place(scope.collection)
        if scope.tenant is not None:
            return [place / str(scope.tenant)]
        return sorted(path for path in place.glob("*") if path.is_dir())

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """See VectorStore."""
        if not points:
            return
        points = last_of_each(points)
        matrix = matrix_of(points)
        with self._locked(writes=True):
            for tenant in {point.tenant for point in points}:
                rows = [row for row, point in enumerate(points) if point.tenant == tenant]
                shard = self._shard(self._place(collection) / str(tenant))
                if shard.dimensions is not None:
                    check_dimensions(np.zeros(shard.dimensions, dtype=np.float32), matrix[0])
                attributes = [points[row].attributes for row in rows]
                columns = {name: [one[name] for one in attributes] for name in (*ATTRIBUTES, "changed")}
                shard.append({"ids": [points[row].id for row in rows], "attributes": columns}, matrix[rows])

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """See VectorStore."""
        with self._locked(writes=True):
            for folder in self._tenants(scope):
                if not folder.exists():
                    continue
                if ids is None:
                    shutil.rmtree(folder)
                    self._shards.pop(folder, None)
                    continue
                shard = self._shard(folder)
                if present := [one for one in ids if one in shard.rows]:
                    shard.append({"ids": present})

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """See VectorStore."""
        if n <= 0 or scope.is_empty:
            return []
        with self._locked():
            shards = [self._shard(folder) for folder in self._tenants(scope)]
            neighbours = [one for shard in shards for one in shard.near(vector, n, scope)]
        return sorted(neighbours, key=lambda one: -one.similarity)[:n]

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """See VectorStore."""
        with self._locked():
            shards = [self._shard(folder) for folder in self._tenants(scope)]
            points = sum(len(shard.matching(Scope(collection=scope.collection))) for shard in shards)
            present = frozenset(one for one in ids for shard in shards if one in shard.rows)
        return StoreStats(points=points, present=present)


def open_store(options: StoreOptions) -> FaissStore:
    """Open a folder.

    Raises:
        StoreUnavailable: the folder cannot be used.
    """
    faiss.omp_set_num_threads(1)  # its processes share the cores with each other
    try:
        return FaissStore(options)
    except OSError as error:
        raise StoreUnavailable(f"the folder of faiss cannot be used: {error.strerror}") from error
