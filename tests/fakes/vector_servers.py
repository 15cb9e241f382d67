"""Servers of vector stores on 127.0.0.1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.fakes.pinecone_server import PineconeServer
from tests.fakes.weaviate_server import WeaviateServer


@contextmanager
def server_of(name: str) -> Iterator[Mapping[str, Any]]:
    """The options of a store whose server runs now; none for stores that need none."""
    if name == "pinecone":
        with PineconeServer() as pinecone:
            yield {"url": pinecone.address, "api_key": "key", "environment": "us-west1-gcp"}
    elif name == "weaviate":
        with WeaviateServer() as server:
            yield {"url": server.address, "grpc_url": server.grpc_address, "api_key": "key"}
    else:
        yield {}
