"""Servers of vector stores that stop answering."""

from __future__ import annotations

import time
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreUnavailable
from pipeline.search.stores import Point, Scope, open_store
from tests.fakes.qdrant_server import QdrantServer
from tests.fakes.tcp_proxy import TcpProxy
from tests.fakes.vector_servers import server_of

SCOPE = Scope(collection="one", tenant=UUID(int=1))
QUERY = np.array([1, 0], dtype="f4")


@pytest.mark.parametrize("kind", ["chroma", "qdrant"])
def test_a_search_of_a_server_that_does_not_answer_ends_in_time(kind: str, tmp_path: Path) -> None:
    with server_of(f"{kind}-server") as served, TcpProxy.to(served["url"]) as proxy:
        options = {"collection": "test", **served, "url": proxy.url(served["url"])}
        store = open_store(StoreOptions(kind, path=tmp_path, timeout=20, **options))
        store.put("one", [Point(id="a", vector=QUERY, tenant=UUID(int=1))])
        assert [one.id for one in store.near(QUERY, 5, SCOPE)] == ["a"]
        proxy.freeze()
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f"{kind} did not answer in 2 s"):
            store.near(QUERY, 5, SCOPE)
        assert time.monotonic() - begun < 10
        proxy.thaw()
        assert [one.id for one in store.near(QUERY, 5, SCOPE)] == ["a"]


def test_a_server_of_qdrant_indexes_what_is_filtered_by() -> None:
    with QdrantServer() as server:
        store = open_store(StoreOptions("qdrant", url=server.address, api_key="key"))
        store.put("one", [Point(id="a", vector=QUERY, tenant=UUID(int=1))])
        assert set(server.indexed) == {
            "tenant", "project", "kind", "source_type", "security_level", "changed",
        }  # fmt: skip
        wrong = open_store(StoreOptions("qdrant", url=server.address, api_key="wrong"))
        with pytest.raises(StoreUnavailable, match="it refuses the key") as refusal:
            wrong.put("one", [Point(id="b", vector=QUERY, tenant=UUID(int=1))])
        assert "wrong" not in str(refusal.value)
