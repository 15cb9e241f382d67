"""Settings of vector stores beside PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from connectors.sections import (
    ConfigSection,
    Flag,
    Folder,
    Mismatch,
    Number,
    OneOf,
    Secret,
    Text,
    WebUrl,
    refusal,
    refuse,
    secret_value,
)
from pipeline.database.vector_stores import FOREIGN_TYPES, IMPLEMENTATIONS, StoreOptions

LOCAL_TYPES = ("chroma", "faiss", "qdrant")
"""Stores that are a folder on this machine."""
SERVED_TYPES = ("pinecone", "weaviate", "qdrant", "chroma")
"""Stores that are a service or a server."""
PROVIDERS = ("pgvector", *FOREIGN_TYPES)


def _persistent(value: bool) -> bool:
    if not value:
        raise refusal("true", "a store in memory would be another one in each process")
    return value


class _StoreSection(ConfigSection):
    """A vector store."""

    name_key: ClassVar[str] = "collection"
    """Key with the name whose form the store decides."""

    @model_validator(mode="after")
    def _has_a_possible_name(self) -> Self:
        kind, name = getattr(self, "type", None), str(getattr(self, self.name_key))
        store = IMPLEMENTATIONS.get(kind or "")
        if store and not re.fullmatch(store.name_pattern, name):
            expected = f"a name that {kind} takes: {store.name_words}"
            refuse(self, [Mismatch(key=self.name_key, expected=expected)])
        return self


class LocalStoreSettings(_StoreSection):
    """A vector store in a folder, written by the mirror worker and read by every process that searches."""

    type: Annotated[str, OneOf(LOCAL_TYPES)] | None = None
    """chroma, faiss, qdrant. Empty: the one that `provider` names, else chroma."""
    path: Folder = Path("vector-db")
    """Folder of its files."""
    persist: Annotated[Flag, AfterValidator(_persistent)] = True
    """Keep the files; another value is refused."""
    collection: Text = "backlog_chef"
    """Beginning of the names of its collections."""
    algorithm: Annotated[str, OneOf(("hnsw", "flat"))] = "hnsw"
    """Of faiss: hnsw is a graph, flat compares every vector."""


class CloudStoreSettings(_StoreSection):
    """A vector store that is a service or a server."""

    name_key: ClassVar[str] = "index"
    type: Annotated[str, OneOf(SERVED_TYPES)] = "pinecone"
    """pinecone, weaviate, qdrant, chroma."""
    url: WebUrl | None = Field(default=None, examples=["http://qdrant:6333"])
    """Address of the server; of Pinecone left out."""
    api_key: Secret | None = Field(default=None, examples=["${PINECONE_API_KEY}"])
    """Key of the service."""
    environment: Text = "us-west1-gcp"
    """Region of an index that is created, with its cloud at the end."""
    index: Text = "backlog-chef"
    """Name of the index of Pinecone; of others the beginning of the names of collections."""
    namespace: Text | None = Field(default=None, examples=["${PROJECT_ID}"])
    """Beginning of Pinecone's namespaces. Empty: none."""
    create_if_not_exists: Flag = True
    """Create an index that is missing."""
    timeout: Number = Field(default=30, ge=1, le=600)
    """Seconds for each call that writes; one of a search has two."""

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.type == "pinecone" and not self.api_key:
            refuse(
                self, [Mismatch(key="api_key", expected="the key of Pinecone", fix="set PINECONE_API_KEY")]
            )
        if self.type != "pinecone" and not self.url:
            refuse(self, [Mismatch(key="url", expected=f"the address of the server of {self.type}")])
        return self


def configured(
    provider: str,
    local: LocalStoreSettings | None,
    cloud: CloudStoreSettings | None,
    resolve: Callable[[Path], Path],
) -> Iterator[StoreOptions]:
    """Options of each configured store; the name of a store is its type."""
    if local is None and provider in LOCAL_TYPES and not (cloud and cloud.type == provider):
        local = LocalStoreSettings()
    if local is not None:
        kind = local.type or (provider if provider in LOCAL_TYPES else LOCAL_TYPES[0])
        yield StoreOptions(
            kind,
            path=resolve(local.path) / kind,
            collection=local.collection,
            algorithm=local.algorithm,
            timeout=30.0,
        )
    if cloud is not None:
        yield StoreOptions(
            cloud.type,
            url=cloud.url or "",
            api_key=secret_value(cloud.api_key),
            collection=cloud.index,
            namespace=cloud.namespace or "",
            environment=cloud.environment,
            create=cloud.create_if_not_exists,
            timeout=float(cloud.timeout),
        )
