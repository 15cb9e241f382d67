"""A server of Qdrant: what the client sends is done by the engine that it brings, in memory."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from tests.fakes.server import Answer, FakeServer, Seen

if TYPE_CHECKING:
    from qdrant_client import QdrantClient


def new_engine() -> QdrantClient:
    """One without a point; its client takes a second to load, which whoever collects the tests need not wait for."""
    from qdrant_client import QdrantClient

    return QdrantClient(location=":memory:", force_disable_check_same_thread=True)


class QdrantServer(FakeServer):
    """The addresses of collections and points that the store uses."""

    def __init__(self, key: str = "key") -> None:
        super().__init__()
        self.key = key
        self.engine = new_engine()
        self.indexed: list[str] = []
        """Attributes with an index."""

    def answer(self, seen: Seen) -> Answer:
        """What the client gets."""
        if seen.headers.get("api-key") != self.key:
            return Answer(status=401, body="Must provide an API key")
        _, name, *rest = seen.path.strip("/").split("/")
        with self.lock, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                result = self._result(seen, name, "/".join(rest))
            except ValueError as error:  # as for a vector of another length, and a collection that there is
                told = str(error)
                status = 409 if "already exists" in told else 404 if "not found" in told else 400
                return Answer(status=status, json={"status": {"error": told}, "time": 0})
        return Answer(json={"result": result, "status": "ok", "time": 0})

    def _result(self, seen: Seen, name: str, rest: str) -> Any:
        if rest.startswith("points"):
            return self._points(seen, name, rest)
        done = {"operation_id": 0, "status": "completed"}
        if rest == "exists":
            return {"exists": self.engine.collection_exists(name)}
        if rest == "index":
            self.indexed.append(seen.json["field_name"])
            return done
        if seen.method == "DELETE":
            return self.engine.delete_collection(name)
        from qdrant_client import models

        wanted = models.CreateCollection.model_validate(seen.json)
        return self.engine.create_collection(name, vectors_config=wanted.vectors)

    def _points(self, seen: Seen, name: str, rest: str) -> Any:
        from qdrant_client import models

        if seen.method == "PUT":
            upserted = models.PointsList.model_validate(seen.json)
            return _plain(self.engine.upsert(name, upserted.points))
        if rest == "points/delete":
            kind = models.PointIdsList if "points" in seen.json else models.FilterSelector
            return _plain(self.engine.delete(name, kind.model_validate(seen.json)))
        if rest == "points/count":
            counted = models.CountRequest.model_validate(seen.json)
            return _plain(self.engine.count(name, counted.filter, exact=True))
        if rest == "points/query":
            asked = models.QueryRequest.model_validate(seen.json)
            return _plain(
                self.engine.query_points(
                    name,
                    query=asked.query,
                    query_filter=asked.filter,
                    limit=asked.limit or 10,
                    with_payload=asked.with_payload,
                )
            )
        wanted = models.PointRequest.model_validate(seen.json)
        return [_plain(one) for one in self.engine.retrieve(name, wanted.ids, with_payload=True)]


def _plain(answer: Any) -> Any:
    return answer.model_dump(mode="json")
