"""What is wanted and what is done: sources, runs, documents, claims, dead letters.

A message only says "look at document 7, version 3"; every function here may be called twice, late, or
beside itself, and leaves the same rows. The caller owns the transaction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

NAMESPACE = UUID("6c1f6f0e-3d1b-5a3e-9d53-2b0a6f1a4f10")


class Stage(StrEnum):
    """How far the wanted version of a document has come."""

    FETCHED = "fetched"
    CHUNKED = "chunked"
    EMBEDDED = "embedded"
    DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long the ledger waits and how often it tries; seconds and counts."""

    resend: float = 240.0
    in_flight: int = 2000
    batch: int = 32
    crashes: int = 3


@dataclass(frozen=True)
class Item:
    """What a message names: a document and the version it is about."""

    document_id: UUID
    version: int

    def to_json(self) -> list[str | int]:
        """`[id, version]`."""
        return [str(self.document_id), self.version]


def source_id(tenant_id: UUID, name: str) -> UUID:
    """The id of a configured source: the same on every machine, so that doors need no look-up."""
    return uuid5(NAMESPACE, f"source:{tenant_id}:{name}")


def document_id(source: UUID, external_id: str) -> UUID:
    """The id of a document: the same whoever admits it first."""
    return uuid5(source, external_id)


def clean(value: Any) -> Any:
    """`value` without NUL characters, lone surrogates and numbers that JSON lacks, at any depth of JSON."""
    if isinstance(value, str):
        return value.replace("\x00", "").encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {clean(str(k)): clean(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
