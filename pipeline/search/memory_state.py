"""How the in-memory store is written down: JSON and plain arrays, never pickle."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from pipeline.documents import Chunk, Json, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.errors import StoreRejected
from pipeline.search.chunks import Replacement, StoredDocument

FORMAT = 1
Held = tuple[StoredDocument, Sequence[Chunk]]
"""A document with its chunks; vectors stand beside, one row per chunk of all documents in order."""

_DAMAGE = (
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    EOFError,
    OSError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
)
"""What reading damaged JSON, base64, numbers or archives raises."""


def to_json(held: Sequence[Held], vectors: Vectors) -> Json:
    """The state as one JSON object, vectors as base64 of little-endian float32."""
    return {
        **_head(held, vectors),
        "vectors": base64.b64encode(vectors.astype("<f4").tobytes()).decode("ascii"),
    }


def from_json(state: Mapping[str, Any]) -> tuple[int, list[Replacement]]:
    """The dimensions and the documents that `to_json` wrote.

    Raises:
        StoreRejected: this is no such state.
    """
    try:
        raw = np.frombuffer(base64.b64decode(state["vectors"], validate=True), dtype="<f4")
        return _parse(state, raw.astype(np.float32).reshape(-1, state["dimensions"]))
    except _DAMAGE as error:
        raise _rejected("the state", error) from error


def write_file(path: Path, held: Sequence[Held], vectors: Vectors) -> None:
    """Write the state as `.npz`; whoever reads meanwhile sees the old file or the new one, whole."""
    buffer = io.BytesIO()
    head = np.frombuffer(json.dumps(_head(held, vectors)).encode("ascii"), dtype=np.uint8)
    np.savez(buffer, head=head, vectors=vectors.astype("<f4"))
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    draft.write_bytes(buffer.getvalue())
    draft.replace(path)


def read_file(path: Path) -> tuple[int, list[Replacement]]:
    """The dimensions and the documents that `write_file` wrote.

    Raises:
        StoreRejected: there is no such file, or it is damaged.
    """
    try:
        # Opened here: numpy leaves the file open when it finds damage.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            head = json.loads(arrays["head"].tobytes())
            vectors = arrays["vectors"].astype(np.float32)
        return _parse(head, vectors)
    except _DAMAGE as error:
        raise _rejected(str(path), error) from error


def _rejected(what: str, error: Exception) -> StoreRejected:
    return StoreRejected(
        f"{what} is no saved in-memory store ({type(error).__name__})",
        fix="take another copy, or start empty and index again",
        cause=error,
    )


def _head(held: Sequence[Held], vectors: Vectors) -> Json:
    documents = [_document_to_json(document, chunks) for document, chunks in held]
    return {"format": FORMAT, "dimensions": vectors.shape[1], "documents": documents}


def _parse(head: Mapping[str, Any], vectors: NDArray[np.float32]) -> tuple[int, list[Replacement]]:
    dimensions = int(head["dimensions"])
    if head["format"] != FORMAT or vectors.shape[1:] != (dimensions,):
        raise ValueError(head["format"])
    batch: list[Replacement] = []
    start = 0
    for entry in head["documents"]:
        chunks = [
            Chunk(ord=int(c["ord"]), content=str(c["content"]), context=str(c["context"]))
            for c in entry["chunks"]
        ]
        rows = vectors[start : start + len(chunks)]
        batch.append(Replacement(document=_document_from_json(entry), chunks=chunks, vectors=rows))
        start += len(chunks)
    if start != len(vectors):
        raise ValueError(start)
    return dimensions, batch


def _document_to_json(document: StoredDocument, chunks: Sequence[Chunk]) -> Json:
    return {
        "id": str(document.id),
        "version": document.version,
        "title": document.title,
        "source_type": document.source_type.value,
        "kind": document.kind.value,
        "source": document.source,
        "url": document.url,
        "tags": list(document.tags),
        "metadata": dict(document.metadata),
        "project_id": str(document.project_id) if document.project_id else None,
        "created_at": document.created_at.isoformat() if document.created_at else None,
        "updated_at": document.updated_at.isoformat() if document.updated_at else None,
        "chunks": [{"ord": c.ord, "content": c.content, "context": c.context} for c in chunks],
    }


def _document_from_json(entry: Mapping[str, Any]) -> StoredDocument:
    return StoredDocument(
        id=UUID(entry["id"]),
        version=int(entry["version"]),
        title=str(entry["title"]),
        source_type=SourceType(entry["source_type"]),
        kind=Kind(entry["kind"]),
        source=str(entry["source"]),
        url=str(entry["url"]),
        tags=tuple(entry["tags"]),
        metadata=dict(entry["metadata"]),
        project_id=UUID(entry["project_id"]) if entry["project_id"] else None,
        created_at=datetime.fromisoformat(entry["created_at"]) if entry["created_at"] else None,
        updated_at=datetime.fromisoformat(entry["updated_at"]) if entry["updated_at"] else None,
    )
