"""Weaviate beside what all stores promise: names, ports, and a server that has its bad days."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from uuid import UUID

import grpc
import numpy as np
import pytest

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected, StoreUnavailable
from pipeline.search.stores import Point, Scope, VectorStore, open_store, weaviate_server
from tests.fakes.server import Fault

if TYPE_CHECKING:
    from tests.fakes.weaviate_server import WeaviateServer

ACME = UUID(int=1)
SCOPE = Scope(collection="one", tenant=ACME)


@pytest.fixture
def server() -> Iterator[WeaviateServer]:
    from tests.fakes.weaviate_server import WeaviateServer  # which loads its client

    with WeaviateServer() as server:
        yield server


def opened(server: WeaviateServer, **changed: object) -> VectorStore:
    options = StoreOptions(
        "weaviate",
        url=server.address,
        grpc_url=server.grpc_address,
        api_key="key",
        collection="backlog-chef",
        timeout=5,
    )
    return open_store(replace(options, **changed))  # type: ignore[arg-type]


def point(id_: str, *values: float) -> Point:
    return Point(id=id_, vector=np.array(values, dtype="f4"), tenant=ACME)


def ids(store: VectorStore, *near: float) -> list[str]:
    return [one.id for one in store.near(np.array(near or (1.0, 0.0), dtype="f4"), 10, SCOPE)]


@pytest.mark.req("001-027")
def test_a_collection_compares_by_cosine_and_filters_whole_texts(server: WeaviateServer) -> None:
    opened(server).put("one", [point("a", 1, 0)])
    (stored,) = server.collections.values()
    (vector,) = stored.schema["vectorConfig"].values()
    assert stored.schema["class"] == "Backlog_chef_one"
    assert vector["vectorIndexConfig"]["distance"] == "cosine"
    assert vector["vectorizer"] == {"none": {}}, "the server computes no vector itself"
    texts = {one["name"]: one.get("tokenization") for one in stored.schema["properties"]}
    assert texts["tenant"] == texts["security_level"] == "field"


def test_addresses_of_the_second_port() -> None:
    def address(url: str, grpc_url: str = "") -> str:
        options = StoreOptions("weaviate", url=url, grpc_url=grpc_url)
        return weaviate_server._grpc_address(options, urlsplit(url)).geturl()

    assert address("http://weaviate:8080") == "http://weaviate:50051"
    assert address("https://x.weaviate.cloud") == "https://grpc-x.weaviate.cloud:443"
    assert address("https://w", "http://w:9") == "http://w:9"


def test_no_other_machine_is_asked_when_a_store_is_opened(server: WeaviateServer) -> None:
    opened(server)
    assert [seen.path for seen in server.log] == ["/v1/meta"]


def test_too_many_requests_are_told(server: WeaviateServer) -> None:
    store = opened(server)
    store.put("one", [point("a", 1, 0)])
    server.trouble = lambda _call: grpc.StatusCode.RESOURCE_EXHAUSTED
    for call in (
        lambda: store.put("one", [point("b", 1, 0)]),
        lambda: store.delete(SCOPE, ["a"]),
        lambda: store.stats(SCOPE),
        lambda: ids(store),
    ):
        with pytest.raises(StoreUnavailable):
            call()
    server.trouble = lambda _call: None
    server.faults.next(
        Fault.status(429, headers={"Retry-After": "7"}), when=lambda seen: seen.method == "POST"
    )
    with pytest.raises(StoreUnavailable, match="weaviate answered 429"):
        store.put("two", [point("b", 1, 0)])
    store.put("two", [point("b", 1, 0)])
    assert ids(store) == ["a"]


def test_a_search_of_a_server_that_fails_ends_in_time(server: WeaviateServer) -> None:
    store = opened(server, timeout=0.5)
    store.put("one", [point("a", 1, 0)])
    for trouble in (3.0, grpc.StatusCode.UNAVAILABLE):
        server.trouble = lambda _call, trouble=trouble: trouble  # type: ignore[misc]
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable):
            ids(store)
        assert time.monotonic() - begun < 2.5
    server.trouble = lambda _call: None
    assert ids(store) == ["a"]


def test_half_a_batch_is_no_success(server: WeaviateServer) -> None:
    store, points = opened(server), [point(str(n), 1, n) for n in range(4)]
    server.refuses_half = True
    with pytest.raises(StoreUnavailable, match="did not take 2 of 4 points"):
        store.put("one", points)
    server.refuses_half = False
    store.put("one", points)
    assert store.stats(SCOPE).points == 4


def test_another_length_is_refused_for_good_among_others(server: WeaviateServer) -> None:
    store = opened(server)
    store.put("one", [point("a", 1, 0)])
    with pytest.raises(StoreRejected, match=r"another length \(use the model"):
        store.put("one", [point("b", 1, 0, 0), point("c", 1, 0, 0)])
    assert ids(store) == ["a"]


def test_a_tenant_is_deleted_whole_although_a_call_deletes_a_part(
    server: WeaviateServer,
) -> None:
    store = opened(server)
    rng = np.random.default_rng(1)
    for part in range(2):
        points = [
            Point(id=f"{part}-{n}", vector=rng.standard_normal(2).astype("f4"), tenant=ACME)
            for n in range(5_500)
        ]
        store.put("one", points)
    store.delete(SCOPE)
    assert store.stats(SCOPE).points == 0
    assert server.calls.count("BatchDelete") == 3


def test_writes_that_are_seen_later_end_in_the_same_state(server: WeaviateServer) -> None:
    store = opened(server)
    store.put("one", [point("a", 1, 0)])
    server.delay = 2.0
    store.put("one", [point("b", 1, 1), point("c", 1, 2)])
    store.delete(SCOPE, ["c"])
    assert ids(store) == ["a"]
    time.sleep(2.1)
    assert ids(store) == ["a", "b"]


def test_a_server_that_is_away_or_refuses_the_key_is_told(server: WeaviateServer) -> None:
    with pytest.raises(StoreUnavailable) as refusal:
        opened(server, api_key="wk_wrong")
    assert "wk_wrong" not in str(refusal.value)
    with pytest.raises(StoreUnavailable):
        opened(server, url="http://127.0.0.1:9")
