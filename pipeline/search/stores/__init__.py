"""Vector stores beside PostgreSQL: the port. A store is an index that can be thrown away, never a second truth.

It answers one question: which chunks are near this vector? PostgreSQL then decides which of them exist, are current and
may be seen, and computes their similarity.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from pipeline.database.vector_stores import IMPLEMENTATIONS, StoreOptions
from pipeline.errors import ConfigurationError, LarderError, StoreDamaged, StoreRejected, StoreUnavailable
from pipeline.errors.http_rules import clamped

FloatVector = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Point:
    """A vector and what a store may filter by. It has no text."""

    id: str
    """Of a chunk `document_id:ord`; any text is allowed."""
    vector: FloatVector
    tenant: UUID
    project: UUID | None = None
    kind: str = ""
    source_type: str = ""
    security_level: str = ""
    changed: float = 0.0
    """Seconds since 1970 at which the document was last changed or created; 0: unknown."""

    @property
    def attributes(self) -> dict[str, str | float]:
        """Tenant, project, kind, source type, security level and time as plain values."""
        return {
            "tenant": str(self.tenant),
            "project": str(self.project or ""),
            "kind": self.kind,
            "source_type": self.source_type,
            "security_level": self.security_level,
            "changed": float(self.changed),
        }


ATTRIBUTES = ("tenant", "project", "kind", "source_type", "security_level")
"""Attributes that are texts."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Points of a collection. None is no condition; an empty tuple lets nothing through."""

    collection: str
    tenant: UUID | None = None
    """None: all tenants; never in a search of chunks."""
    projects: tuple[str, ...] | None = None
    kinds: tuple[str, ...] | None = None
    source_types: tuple[str, ...] | None = None
    security_levels: tuple[str, ...] | None = None
    since: float | None = None
    until: float | None = None

    @property
    def values(self) -> dict[str, tuple[str, ...]]:
        """Attribute -> texts of which it must have one."""
        conditions = {
            "tenant": None if self.tenant is None else (str(self.tenant),),
            "project": self.projects,
            "kind": self.kinds,
            "source_type": self.source_types,
            "security_level": self.security_levels,
        }
        return {name: texts for name, texts in conditions.items() if texts is not None}

    @property
    def is_empty(self) -> bool:
        """Whether a condition lets nothing through."""
        return not all(self.values.values())


class Neighbour(NamedTuple):
    """A point near a vector."""

    id: str
    similarity: float
    """Cosine similarity as the store computes it, perhaps approximately."""


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """Contents of a collection."""

    points: int
    present: frozenset[str] = frozenset()
    """Those of the requested ids that are there."""


class VectorStore(Protocol):
    """An index of vectors. Every implementation passes tests/contracts/test_vector_store.py.

    All methods raise StoreUnavailable (transient, perhaps with `retry_after`) or StoreRejected (permanent).
    """

    def put(self, collection: str, points: Sequence[Point]) -> None:
        """Store points; an existing id of the same tenant is replaced, the last of a batch wins."""
        ...

    def delete(self, scope: Scope, ids: Sequence[str] | None = None) -> None:
        """Delete these ids of the scope's tenant, or without ids all of the scope's tenant or collection."""
        ...

    def near(self, vector: FloatVector, n: int, scope: Scope) -> list[Neighbour]:
        """The `n` nearest points of a scope, best first; none of an unknown collection."""
        ...

    def stats(self, scope: Scope, ids: Sequence[str] = ()) -> StoreStats:
        """Number of points of the scope's tenant or collection, and which of `ids` are there."""
        ...


def open_store(options: StoreOptions) -> VectorStore:
    """Open a store; its client is imported here.

    Raises:
        ConfigurationError: there is no such store, or its client is not installed.
        StoreUnavailable: it does not answer.
    """
    implementation = IMPLEMENTATIONS.get(options.type)
    if implementation is None:
        types = ", ".join(IMPLEMENTATIONS)
        raise ConfigurationError(f"there is no vector store {options.type!r}", fix=f"use one of {types}")
    try:
        module = importlib.import_module(f"{__name__}.{implementation.module}")
        opened: VectorStore = module.open_store(options)
    except ImportError as error:
        if not implementation.package:
            raise
        message = f"the vector store {options.type} needs {implementation.package}, which is not installed"
        raise ConfigurationError(message, fix=f"install larder[{options.type}]") from error
    return opened


def normalised(vectors: FloatVector) -> FloatVector:
    """Vectors of length 1; one of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    result: FloatVector = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return result


def matrix_of(points: Sequence[Point]) -> FloatVector:
    """The vectors of points as rows.

    Raises:
        StoreRejected: they differ in length, or one is not finite.
    """
    if len({len(point.vector) for point in points}) > 1:
        raise StoreRejected("vectors of different lengths", fix="embed all texts with one model")
    matrix = np.asarray([point.vector for point in points], dtype=np.float32)
    if not np.isfinite(matrix).all():
        raise StoreRejected("a vector is not finite", fix="embed the text again")
    return matrix


def last_of_each(points: Sequence[Point]) -> list[Point]:
    """Points without those that a later one of the same batch replaces."""
    return list({(point.tenant, point.id): point for point in points}.values())


def batches(points: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """Slices of at most `size`."""
    for start in range(0, len(points), size):
        yield points[start : start + size]


REJECTED_STATUS = frozenset({400, 413, 422})
TOO_MANY_REQUESTS = 429
REBUILD = "larder stores check; if it stays: larder stores rebuild"


@contextmanager
def translated(
    store: str,
    *,
    permanent: tuple[type[BaseException], ...] = (),
    damaged: tuple[type[BaseException], ...] = (),
) -> Iterator[None]:
    """Errors of a client as ours. Their texts stay out, since they may quote requests and keys.

    Raises:
        StoreRejected: the store refuses a value: one of `permanent`, or a status such as 400.
        StoreDamaged: the store has an internal error: one of `damaged`.
        StoreUnavailable: everything else.
    """
    try:
        yield
    except (LarderError, ImportError):
        raise
    except Exception as error:  # noqa: BLE001 (each client has errors of its own)
        status = status_of(error)
        name = f"{store} answered {status}" if status else f"{store} failed ({type(error).__name__})"
        if isinstance(error, permanent) or status in REJECTED_STATUS:
            fix = "compare the dimensions of its collection and the model"
            raise StoreRejected(f"{name}: it refuses a value", fix=fix, cause=error) from None
        if status in (401, 403):
            raise StoreUnavailable(
                f"{name}: it refuses the key", fix="correct its key", cause=error
            ) from None
        if isinstance(error, damaged):
            raise StoreDamaged(f"{name}: it has an internal error", fix=REBUILD, cause=error) from None
        pause = retry_after_of(error) if status == TOO_MANY_REQUESTS else None
        raise StoreUnavailable(name, fix="larder stores check", retry_after=pause, cause=error) from None


def status_of(error: BaseException) -> int | None:
    """HTTP status of a client's error."""
    for name in ("status_code", "status", "code"):
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    return None


def retry_after_of(error: BaseException) -> float | None:
    """Seconds that the store asks to wait; None if it names none."""
    value = getattr(error, "retry_after", None)
    if value is None:
        value = dict(getattr(error, "headers", None) or {}).get("retry-after")
    try:
        return None if value is None else clamped(float(value))
    except (TypeError, ValueError):
        return None
