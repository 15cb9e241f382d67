"""Pinecone beside what all stores promise: indexes, namespaces, and a service that has its bad days."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from uuid import UUID

import numpy as np
import pytest

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreRejected, StoreUnavailable
from pipeline.search.stores import Point, Scope, VectorStore, open_store
from tests.fakes.pinecone_server import PineconeServer
from tests.fakes.server import Fault, Seen

ACME, ZENITH = UUID(int=1), UUID(int=2)
SCOPE = Scope(collection="one", tenant=ACME)


@pytest.fixture
def service() -> Iterator[PineconeServer]:
    with PineconeServer() as server:
        yield server


def opened(service: PineconeServer, **changed: object) -> VectorStore:
    options = StoreOptions(
        "pinecone",
        url=service.address,
        api_key="key",
        collection="chef",
        environment="us-west1-gcp",
        timeout=5,
    )
    return open_store(replace(options, **changed))  # type: ignore[arg-type]


def point(id_: str, *values: float, tenant: UUID = ACME) -> Point:
    return Point(id=id_, vector=np.array(values, dtype="f4"), tenant=tenant)


def ids(store: VectorStore, *near: float, scope: Scope = SCOPE) -> list[str]:
    return [one.id for one in store.near(np.array(near or (1.0, 0.0), dtype="f4"), 10, scope)]


def is_data(seen: Seen) -> bool:
    return seen.path.startswith("/data/")


@pytest.mark.req("001-008", "001-044")
def test_an_index_is_made_in_its_region_with_a_namespace_for_each_tenant(service: PineconeServer) -> None:
    store = opened(service, namespace="app")
    store.put("one", [point("a", 1, 0), point("b", 1, 0, tenant=ZENITH)])
    (index,) = service.indexes.values()
    assert (index.name, index.dimension) == ("chef", 2)
    assert index.deployment == {"deployment_type": "managed", "cloud": "gcp", "region": "us-west1"}
    assert set(index.now()) == {f"app:one:{ACME}", f"app:one:{ZENITH}"}
    assert ids(opened(service)) == [], "another namespace is another store"


def test_vectors_of_each_length_have_an_index(service: PineconeServer) -> None:
    store = opened(service)
    store.put("one", [point("a", 1, 0)])
    store.put("two", [point("a", 1, 0, 0)])
    assert {one.name: one.dimension for one in service.indexes.values()} == {"chef": 2, "chef-3": 3}
    with pytest.raises(StoreRejected, match="3 dimensions, the collection 2"):
        opened(service).near(np.ones(3, dtype="f4"), 5, SCOPE)
    store.delete(Scope(collection="one"))
    store.put("one", [point("b", 1, 0, 0)])
    assert ids(opened(service), 1, 0, 0) == ["b"]


def test_large_vectors_go_in_requests_that_the_service_takes(service: PineconeServer) -> None:
    rng = np.random.default_rng(1)
    points = [
        Point(id=str(n), vector=rng.standard_normal(1536).astype("f4"), tenant=ACME) for n in range(150)
    ]
    opened(service).put("one", points)
    assert len(service.requests("/vectors/upsert")) > 1
    assert opened(service).stats(SCOPE, ["0", "149", "150"]).present == {"0", "149"}


def test_an_index_that_must_not_be_made_is_asked_for(service: PineconeServer) -> None:
    with pytest.raises(StoreUnavailable, match=r"no index chef .* 2 dimensions.*createIfNotExists: true"):
        opened(service, create=False).put("one", [point("a", 1, 0)])
    assert service.indexes == {}


def test_a_new_index_is_waited_for(service: PineconeServer) -> None:
    service.preparing = 0.5
    store = opened(service)
    with pytest.raises(StoreUnavailable, match="the index chef of Pinecone is not ready") as refusal:
        store.put("one", [point("a", 1, 0)])
    assert refusal.value.retry_after == 5
    time.sleep(0.6)
    store.put("one", [point("a", 1, 0)])
    assert ids(store) == ["a"]
    assert len(service.indexes) == 1


@pytest.mark.parametrize(("header", "pause"), [({"Retry-After": "1"}, 1.0), ({}, None)])
def test_too_many_requests_pause_as_the_service_asks(
    service: PineconeServer, header: dict[str, str], pause: float | None
) -> None:
    store = opened(service)
    store.put("one", [point("a", 1, 0)])
    service.faults.next(Fault.status(429, headers=header, body="{}"), when=is_data, times=None)
    with pytest.raises(StoreUnavailable, match="pinecone answered 429") as refusal:
        store.put("one", [point("b", 1, 0)])
    assert refusal.value.retry_after == pause
    service.faults.clear()
    store.put("one", [point("b", 1, 0)])
    assert set(ids(store)) == {"a", "b"}


@pytest.mark.parametrize("fault", [Fault.slow(3), Fault.status(503), Fault.reset()])
def test_a_search_of_a_service_that_fails_ends_in_time(service: PineconeServer, fault: Fault) -> None:
    store = opened(service, timeout=0.5)
    store.put("one", [point("a", 1, 0)])
    service.faults.next(fault, when=is_data, times=None)
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable):
        ids(store)
    assert time.monotonic() - begun < 2.5
    service.faults.clear()
    assert ids(store) == ["a"]


@pytest.mark.parametrize("fault", [Fault.truncated(), Fault.html()])
def test_half_an_answer_is_none(service: PineconeServer, fault: Fault) -> None:
    store = opened(service)
    store.put("one", [point("a", 1, 0)])
    service.faults.next(fault, when=is_data)
    with pytest.raises(StoreUnavailable):
        ids(store)
    service.faults.next(fault, when=is_data)
    with pytest.raises(StoreUnavailable):
        store.stats(SCOPE)
    service.faults.next(fault, when=is_data)
    with pytest.raises(StoreUnavailable):
        store.put("one", [point("b", 1, 0)])


def test_writes_that_are_seen_later_end_in_the_same_state(service: PineconeServer) -> None:
    store = opened(service)
    store.put("one", [point("a", 1, 0)])
    service.delay = 2.0
    store.put("one", [point("b", 1, 0), point("c", 1, 1)])
    store.delete(SCOPE, ["c"])
    store.put("other", [point("d", 1, 0)])
    store.delete(Scope(collection="other", tenant=ACME))
    assert ids(store) == ["a"]
    time.sleep(2.1)
    assert ids(store) == ["a", "b"]
    assert ids(store, scope=Scope(collection="other", tenant=ACME)) == []


def test_a_wrong_key_is_told_and_not_quoted(service: PineconeServer) -> None:
    store = opened(service, api_key="pcsk_wrong")
    with pytest.raises(
        StoreUnavailable, match=r"answered 401: it refuses the key \(correct its key\)"
    ) as refusal:
        store.put("one", [point("a", 1, 0)])
    assert "pcsk" not in str(refusal.value)
