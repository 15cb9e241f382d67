"""Servers of vector stores on 127.0.0.1."""

from __future__ import annotations

import atexit
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

from tests.fakes.chroma_process import ChromaProcess
from tests.fakes.pinecone_server import PineconeServer
from tests.fakes.qdrant_server import QdrantServer


@contextmanager
def server_of(name: str) -> Iterator[Mapping[str, Any]]:
    """The options of a store whose server runs now; none for stores that need none."""
    if name == "pinecone":
        with PineconeServer() as pinecone:
            yield {"url": pinecone.address, "api_key": "key", "environment": "us-west1-gcp"}
    elif name == "weaviate":
        from tests.fakes.weaviate_server import WeaviateServer  # which loads its client

        with WeaviateServer() as server:
            yield {"url": server.address, "grpc_url": server.grpc_address, "api_key": "key"}
    elif name == "qdrant-server":
        with QdrantServer() as qdrant:
            yield {"url": qdrant.address, "api_key": "key"}
    elif name == "chroma-server":
        yield {"url": _chroma_server(), "collection": f"test-{uuid4().hex[:8]}"}
    else:
        yield {}


@cache
def _chroma_server() -> str:
    """The server that Chroma's package brings: one until these tests end, for it takes seconds to start."""
    ending = ExitStack()
    atexit.register(ending.close)
    server = ChromaProcess(Path(ending.enter_context(tempfile.TemporaryDirectory())))
    ending.callback(server.kill)
    server.start()
    end = time.monotonic() + 60
    while not _answers(f"{server.url}/api/v2/heartbeat"):
        assert time.monotonic() < end, "the server of Chroma does not answer"
        time.sleep(0.05)
    return server.url


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False
