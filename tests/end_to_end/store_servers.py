"""Servers of the vector store that an installation has beside PostgreSQL, as drills attack them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

from tests.fakes.chroma_process import ChromaProcess
from tests.fakes.pinecone_server import PineconeServer
from tests.fakes.qdrant_server import QdrantServer, new_engine
from tests.fakes.server import Answer, FakeServer, Seen

UNSEEN_SECONDS = 0.5
"""Seconds after which Pinecone shows a write, and has a new index ready."""


class Unreadable(Exception):
    """A server has an internal error where it reads its points."""


class StoreServer(Protocol):
    """A server that keeps its port, and its points over a kill."""

    @property
    def storage(self) -> str:
        """What `rag.storage.cloud` says of it, but for the type."""
        ...

    def start(self) -> object:
        """Start it, unless it runs."""
        ...

    def kill(self) -> None:
        """End it in the middle of what it does."""
        ...

    def empty(self) -> None:
        """Start anew with nothing."""
        ...

    def points(self) -> dict[str, Any]:
        """Collection, tenant and id of each point, with blanks between -> its vector."""
        ...


class Chroma(ChromaProcess):
    """Chroma's own server."""

    @property
    def storage(self) -> str:
        return f"url: '{self.url}', index: drill"

    def points(self) -> dict[str, Any]:
        """See StoreServer."""
        import chromadb
        from chromadb.errors import InternalError

        vectors: dict[str, Any] = {}
        try:
            for collection in chromadb.HttpClient("127.0.0.1", self.port).list_collections():
                found: Any = collection.get(include=["embeddings"])
                vectors |= {
                    f"{collection.name} {key}": vector
                    for key, vector in zip(found["ids"], found["embeddings"], strict=True)
                }
        except InternalError as error:
            raise Unreadable(str(error)) from error
        return vectors


class Threaded(FakeServer):
    """A server in a thread: a request that it was at when it was killed is done or not, and has no answer."""

    keeps_log = False
    begun = 0.0
    """When it was last started."""

    def start(self) -> None:
        """See StoreServer."""
        if self._server is None:
            self.begun = time.monotonic()
            super().start()

    def kill(self) -> None:
        """See StoreServer."""
        self.stop()

    def empty(self) -> None:
        """See StoreServer."""
        self.kill()
        with self.lock:
            self.forget()
        self.start()

    def forget(self) -> None:
        """Drop all that it holds."""
        raise NotImplementedError

    def answer(self, seen: Seen) -> Answer:
        """What the client gets. A request that has waited since the life before is gone with it."""
        with self.lock:
            if self._server is None or seen.at < self.begun:
                return Answer(status=503)
            return super().answer(seen)

    def points(self) -> dict[str, Any]:
        """See StoreServer."""
        assert not self.errors, "\n".join(self.errors)
        with self.lock:
            return dict(self.held())

    def held(self) -> Iterator[tuple[str, Any]]:
        """Collection, tenant and id of each point, and its vector."""
        raise NotImplementedError


class Qdrant(Threaded, QdrantServer):
    """The engine of Qdrant's client behind its addresses."""

    @property
    def storage(self) -> str:
        return f"url: '{self.address}', apiKey: {self.key}, index: drill"

    def forget(self) -> None:
        """See Threaded."""
        self.engine = new_engine()

    def held(self) -> Iterator[tuple[str, Any]]:
        """See Threaded."""
        for collection in self.engine.get_collections().collections:
            found, _ = self.engine.scroll(collection.name, limit=10**9, with_payload=True, with_vectors=True)
            for one in found:
                assert one.payload
                yield f"{collection.name} {one.payload['tenant']} {one.payload['id']}", one.vector


class Pinecone(Threaded, PineconeServer):
    """The service, which shows a write after a while."""

    def __init__(self) -> None:
        super().__init__(delay=UNSEEN_SECONDS, preparing=UNSEEN_SECONDS)

    @property
    def storage(self) -> str:
        return f"url: '{self.address}', apiKey: {self.key}, environment: us-west1-gcp, index: drill"

    def forget(self) -> None:
        """See Threaded."""
        self.indexes.clear()

    def held(self) -> Iterator[tuple[str, Any]]:
        """See Threaded."""
        time.sleep(UNSEEN_SECONDS)
        for index in self.indexes.values():
            for namespace, points in index.now().items():
                place = f"{index.name}-{namespace.replace(':', ' ')}"
                yield from ((f"{place} {unquote(key)}", point["values"]) for key, point in points.items())


SERVERS: Mapping[str, Callable[[Path], StoreServer]] = {
    "chroma": Chroma,
    "qdrant": lambda _folder: Qdrant(),
    "pinecone": lambda _folder: Pinecone(),
}
"""Type of a store -> its server, with a folder for what it writes."""
