"""Vector stores beside PostgreSQL: types, limits and options. Imports nothing large, since every command reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class StoreOptions:
    """Settings of one store."""

    type: str
    _: KW_ONLY
    path: Path = Path("vector-db")
    """Folder of a store on this machine."""
    url: str = ""
    """Address of a store's server."""
    grpc_url: str = ""
    """Address of Weaviate's second port; empty: 50051 of the same machine, of Weaviate Cloud the host with grpc-."""
    api_key: str = field(default="", repr=False)
    collection: str = "backlog_chef"
    """Prefix of the names of collections; of Pinecone the name of the index."""
    namespace: str = ""
    """Prefix of Pinecone's namespaces."""
    environment: str = ""
    """Region of a Pinecone index that is created, such as us-west1-gcp."""
    create: bool = True
    """Create what is missing."""
    algorithm: str = "hnsw"
    """Of FAISS: hnsw or flat."""
    timeout: float = 10.0
    """Seconds in which each call must be answered."""

    def name_of(self, collection: str) -> str:
        """Name of a collection in the store."""
        return f"{self.collection}-{collection}"


class Implementation(NamedTuple):
    """Module, client and names of a type of store; each takes all dimensions that a search index may have."""

    module: str
    package: str
    """Package of the client, in the extra of the store's name; empty: none is needed."""
    name_pattern: str
    """Names that collections may begin with."""
    name_words: str


_PLAIN = "1 to 100 letters, digits, _ and -"
IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "memory": Implementation("memory", "", ".*", ""),
    "faiss": Implementation("faiss_files", "faiss-cpu", r"[\w-]{1,100}", _PLAIN),
    "chroma": Implementation(
        "chroma",
        "chromadb",
        r"[A-Za-z0-9][A-Za-z0-9_.-]{0,400}",
        "letters, digits and . _ -, with a letter or digit first",
    ),
    "qdrant": Implementation("qdrant", "qdrant-client", r"[\w-]{1,100}", _PLAIN),
    "pinecone": Implementation(
        "pinecone_service",
        "pinecone",
        r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?",
        "up to 40 lower-case letters, digits and -",
    ),
    "weaviate": Implementation(
        "weaviate_server",
        "weaviate-client",
        r"[A-Za-z][A-Za-z0-9_-]{0,100}",
        "letters, digits, _ and -, with a letter first",
    ),
}
"""Type of a store -> its module and what it needs."""
FOREIGN_TYPES = tuple(name for name in IMPLEMENTATIONS if name != "memory")
