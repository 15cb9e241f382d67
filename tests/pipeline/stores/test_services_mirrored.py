"""Services that show a write two seconds later, filled from PostgreSQL as workers do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import pytest

from pipeline.database.vector_stores import StoreOptions
from pipeline.errors import StoreUnavailable
from pipeline.search.stores import StoreStats, VectorStore, open_store
from tests.fakes.pinecone_server import PineconeServer
from tests.fakes.server import Fault
from tests.ledger import ago, of_connection
from tests.pipeline.source_ledger import SourceLedger, document, paragraphs
from tests.pipeline.stores.mirrored import Mirrored


class Service(NamedTuple):
    """A service of ours: its store, and what can happen to it."""

    store: VectorStore
    refuse: Callable[[], None]
    accept: Callable[[], None]
    wipe: Callable[[], None]


@contextmanager
def pinecone() -> Iterator[Service]:
    with PineconeServer(delay=2.0) as server:
        options = StoreOptions(
            "pinecone", url=server.address, api_key="key", collection="chef", environment="us-west1-gcp"
        )
        fault = Fault.status(429, headers={"Retry-After": "0"}, body="{}")
        yield Service(
            open_store(options),
            lambda: server.faults.next(fault, when=lambda seen: "/vectors/" in seen.path, times=None),
            server.faults.clear,
            server.indexes.clear,
        )


@contextmanager
def weaviate() -> Iterator[Service]:
    from tests.fakes.weaviate_server import WeaviateServer  # which loads its client

    with WeaviateServer(delay=2.0) as server:
        options = StoreOptions(
            "weaviate", url=server.address, grpc_url=server.grpc_address, api_key="key", collection="Chef"
        )

        def answer(trouble: grpc.StatusCode | None) -> None:
            server.trouble = lambda _call: trouble

        yield Service(
            open_store(options),
            lambda: answer(grpc.StatusCode.RESOURCE_EXHAUSTED),
            lambda: answer(None),
            server.collections.clear,
        )


def contents(beside: Mirrored) -> StoreStats:
    """What is there once all writes are seen."""
    time.sleep(2.1)
    return beside.store.stats(beside.scope(), sorted(beside.expected()))  # type: ignore[no-any-return]


def change_store(beside: Mirrored, **values: Any) -> None:
    """Change the store's row, as time would."""
    with beside.notes.database.control() as connection:
        of_connection(connection).stores.set(**values)


@pytest.mark.req("001-008")
@pytest.mark.parametrize("serve", [pinecone, weaviate])
def test_both_sides_are_equal_after_changes_refusals_and_a_loss(
    alone: SourceLedger, serve: Callable[[], Iterator[Service]]
) -> None:
    alone.admit(document("a", paragraphs(3)), document("b", paragraphs(2, "other")))
    alone.index()
    with serve() as service:  # type: ignore[attr-defined]
        beside = Mirrored(alone, service.store)
        assert beside.carry() == 5
        assert beside.mirror.problem(beside.row) == "", "marks that are not seen yet are no loss"
        assert contents(beside) == StoreStats(points=5, present=frozenset(beside.expected()))

        alone.admit(document("a", paragraphs(1)), document("c", paragraphs(2, "new")))
        alone.index()
        service.refuse()
        with pytest.raises(StoreUnavailable):
            beside.mirror.carry(alone.tenant)
        assert beside.outbox() != []
        service.accept()
        change_store(beside, due_at=ago())
        beside.notes.outbox.set(due_at=ago())
        beside.carry()
        assert beside.outbox() == []
        assert contents(beside) == StoreStats(points=5, present=frozenset(beside.expected()))

        service.wipe()
        for _ in range(2):
            change_store(beside, marked_at=ago(minutes=1))
            beside.mirror.look_after()
        beside.carry()
        assert contents(beside) == StoreStats(points=5, present=frozenset(beside.expected()))
