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
_ENVIRONMENT = re.compile(r"[a-z][a-z0-9-]*-(aws|gcp|azure)")
_NAMESPACE = re.compile(r"[!-~]{0,200}")
"""What Pinecone takes; name and id of collection and tenant come behind it."""


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
    grpc_url: WebUrl | None = Field(default=None, examples=["http://weaviate:50051"])
    """Address of Weaviate's gRPC port. Empty: port 50051 of its machine, of Weaviate Cloud the host with `grpc-`."""
    api_key: Secret | None = Field(default=None, examples=["${PINECONE_API_KEY}"])
    """Key of the service."""
    environment: Text = "us-west1-gcp"
    """Region of an index of Pinecone that is created, with its cloud at the end: -aws, -gcp or -azure."""
    index: Text = "backlog-chef"
    """Name of the index of Pinecone; of others the beginning of the names of collections."""
    namespace: Text | None = Field(default=None, examples=["${PROJECT_ID}"])
    """Beginning of Pinecone's namespaces. Empty: none."""
    create_if_not_exists: Flag = True
    """Create an index that is missing."""
    timeout: Number = Field(default=30, ge=1, le=600)
    """Seconds for each call that writes; one of a search has two."""

    @property
    def addresses(self) -> list[str]:
        """Addresses that get the key."""
        url = self.url or ("https://api.pinecone.io" if self.type == "pinecone" else None)
        return [one for one in (url, self.grpc_url) if one]

    @model_validator(mode="after")
    def _can_be_reached(self) -> Self:
        if self.type == "pinecone" and not self.api_key:
            refuse(
                self, [Mismatch(key="api_key", expected="the key of Pinecone", fix="set PINECONE_API_KEY")]
            )
        if self.type != "pinecone" and not self.url:
            refuse(self, [Mismatch(key="url", expected=f"the address of the server of {self.type}")])
        return self

    @model_validator(mode="after")
    def _is_possible_in_pinecone(self) -> Self:
        if self.type != "pinecone":
            return self
        if not _ENVIRONMENT.fullmatch(self.environment):
            fix = "look the region of the project up in Pinecone's console"
            expected = "a region with its cloud at the end, such as us-east-1-aws or us-west1-gcp"
            refuse(self, [Mismatch(key="environment", expected=expected, fix=fix)])
        if not _NAMESPACE.fullmatch(self.namespace or ""):
            expected = "up to 200 letters, digits and other characters of ASCII without blanks"
            refuse(self, [Mismatch(key="namespace", expected=expected)])
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
            grpc_url=cloud.grpc_url or "",
            api_key=secret_value(cloud.api_key),
            collection=cloud.index,
            namespace=cloud.namespace or "",
            environment=cloud.environment,
            create=cloud.create_if_not_exists,
            timeout=float(cloud.timeout),
        )
