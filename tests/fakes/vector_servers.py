"""Servers of vector stores on 127.0.0.1."""

from __future__ import annotations

import atexit
import subprocess
import sys
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

from tests.fakes.pinecone_server import PineconeServer
from tests.fakes.qdrant_server import QdrantServer
from tests.fakes.weaviate_server import WeaviateServer
from workers.local.embedded.folder import free_port


@contextmanager
def server_of(name: str) -> Iterator[Mapping[str, Any]]:
    """The options of a store whose server runs now; none for stores that need none."""
    if name == "pinecone":
        with PineconeServer() as pinecone:
            yield {"url": pinecone.address, "api_key": "key", "environment": "us-west1-gcp"}
    elif name == "weaviate":
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
    folder = ending.enter_context(tempfile.TemporaryDirectory())
    port = str(free_port())
    command = [str(Path(sys.executable).with_name("chroma")), "run", "--path", folder, "--port", port]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ending.callback(process.wait, 20)
    ending.callback(process.terminate)
    address, end = f"http://127.0.0.1:{port}", time.monotonic() + 60
    while not _answers(f"{address}/api/v2/heartbeat"):
        assert process.poll() is None, "the server of Chroma ended"
        assert time.monotonic() < end, "the server of Chroma does not answer"
        time.sleep(0.05)
    return address


def _answers(address: str) -> bool:
    try:
        with urlopen(address, timeout=5) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except OSError:
        return False
