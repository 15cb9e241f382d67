"""Everything that goes wrong: sorted where it enters, and made good by the next sync; nothing is deleted by it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from connectors.web.session import Access
from pipeline.database.engine import Database
from pipeline.errors import LarderError, RateLimited, SourceDenied, SourceUnavailable
from tests.connectors.rest.world import TICKETS, at, options_for, source_for
from tests.connectors.worlds import Clock, SourceStore
from tests.fakes.rest_service import TOKEN, FakeJira, FakeTickets
from tests.fakes.server import Fault
from tests.pipeline.source_ledger import SourceLedger
from tests.pipeline.walked import sync

JSON = "application/json"
ROUNDS: dict[str, tuple[Fault, type[LarderError]]] = {
    "429 in seconds": (Fault.status(429, headers={"Retry-After": "7"}), RateLimited),
    "429 with a date": (
        Fault.status(429, headers={"Retry-After": "Fri, 01 Jan 2100 00:00:00 GMT"}),
        RateLimited,
    ),
    "429 without a word": (Fault.status(429), RateLimited),
    "403 at a limit": (
        Fault.status(403, headers={"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "9"}),
        RateLimited,
    ),
    "503 with a time": (Fault.status(503, headers={"Retry-After": "5"}), RateLimited),
    "500": (Fault.status(500, body='{"message": "x"}', content_type=JSON), SourceUnavailable),
    "502": (Fault.status(502), SourceUnavailable),
    "reset": (Fault.reset(), SourceUnavailable),
    "reset in the body": (Fault.reset_in_body(), SourceUnavailable),
    "cut body": (Fault.cut_body(), SourceUnavailable),
    "truncated JSON": (Fault.truncated(), SourceUnavailable),
    "empty": (Fault.status(200, body=b"", content_type=JSON), SourceUnavailable),
    "a list for an object": (Fault.status(200, body="[]", content_type=JSON), SourceUnavailable),
    "an empty object": (Fault.status(200, body="{}", content_type=JSON), SourceUnavailable),
    "null": (Fault.status(200, body="null", content_type=JSON), SourceUnavailable),
    "a text": (Fault.status(200, body='"x"', content_type=JSON), SourceUnavailable),
    "a web page": (Fault.html(200, body="<html><title>Welcome</title></html>"), SourceDenied),
    "a web page with 404": (Fault.status(404), SourceUnavailable),
    "sign-in page": (Fault.html(200), SourceDenied),
    "401": (Fault.status(401, body=b""), SourceDenied),
    "redirect to elsewhere": (Fault.redirect("http://127.0.0.1:9/x"), SourceDenied),
}
PLACES = ("/api/tickets", "/api/tickets/3", "/api/tickets/3/comments")


@pytest.fixture
def desk() -> Iterator[FakeTickets]:
    with FakeTickets("cursor", most=4) as fake:
        for n in range(10):
            fake.add(f"<p>Text {n}.</p>")
        fake.comment("3", "A word.")
        yield fake


@pytest.fixture
def notes(shared_database: Database) -> SourceLedger:
    """A source of a new tenant in a real ledger."""
    return SourceLedger(shared_database, uuid4(), uuid4())


def texts(store: SourceStore) -> dict[str, str]:
    return {n: document.text for n, document in store.documents.items()}


@pytest.mark.parametrize("kind", ROUNDS)
def test_after_a_fault_anywhere_the_store_equals_the_service_and_nothing_was_deleted(
    desk: FakeTickets, kind: str
) -> None:
    fault, expected = ROUNDS[kind]
    clock, whole = Clock(), SourceStore()
    for place in PLACES:
        store = SourceStore()
        for _ in ("walk", "follow"):
            desk.edit("3", description=f"<p>{kind} at {place} {store.pages}</p>")
            desk.faults.next(fault, when=at(place))
            errors = store.sync_until_done(lambda: source_for(desk, clock=clock), clock)
            assert desk.faults.waiting == 0
            assert isinstance(errors[0], expected), errors
            assert errors[0].fix
            assert TOKEN not in str(errors)
            assert store.deleted == []
            whole = SourceStore()
            whole.sync(source_for(desk))
            assert texts(store) == texts(whole)


@pytest.mark.parametrize("kind", ROUNDS)
def test_a_list_of_ids_with_a_fault_in_it_is_an_error_and_never_a_short_list(
    desk: FakeTickets, kind: str
) -> None:
    fault, expected = ROUNDS[kind]
    desk.faults.next(fault, when=lambda seen: "cursor" in seen.query)

    with pytest.raises(expected):
        source_for(desk).ids()
    assert desk.faults.waiting == 0


def test_no_request_comes_before_the_time_the_service_asked_for(desk: FakeTickets) -> None:
    clock = Clock()
    access = options_for(desk, clock=clock).access
    desk.faults.next(Fault.status(429, headers={"Retry-After": "20"}), when=at("/api/tickets/3"))
    store = SourceStore()
    with pytest.raises(RateLimited):
        store.sync(source_for(desk, access=access))
    count = len(desk.log)

    clock.now += 19
    with pytest.raises(RateLimited):
        store.sync(source_for(desk, access=access))
    assert len(desk.log) == count
    clock.now += 2
    store.sync(source_for(desk, access=access))

    assert set(store.documents) == set(desk.records)
    assert len(store.read) == 10, "what came before the pause was stored, and is not read again"


def test_a_slow_service_is_not_waited_for(desk: FakeTickets) -> None:
    access = Access(base_url=options_for(desk).base_url, read_timeout=0.3)
    desk.faults.next(Fault.slow(60), when=at("/api/tickets"))

    with pytest.raises(SourceUnavailable, match="in time"):
        list(source_for(desk, access=access).pages(None))


@pytest.mark.parametrize("status", [400, 403, 409, 422])
def test_a_record_that_may_not_be_read_harms_only_itself(desk: FakeTickets, status: int) -> None:
    desk.faults.next(
        Fault.status(status, body="{}", content_type=JSON), when=at("/api/tickets/3"), times=None
    )
    store = SourceStore()

    store.sync(source_for(desk))

    assert set(store.documents) == set(desk.records) - {"3"}
    assert [problem.external_id for problem in store.failed] == ["3"]
    assert str(status) in store.failed[0].reason
    assert store.deleted == []


def test_a_record_that_is_gone_between_list_and_item_is_deleted(desk: FakeTickets) -> None:
    desk.faults.next(Fault.status(404, body="{}", content_type=JSON), when=at("/api/tickets/3"))
    store = SourceStore()

    store.sync(source_for(desk))

    assert store.deleted == ["3"]
    assert set(store.documents) == set(desk.records) - {"3"}


def test_a_record_that_always_failed_is_read_once_it_does_not(
    desk: FakeTickets, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.faults.next(Fault.status(500), when=at("/api/tickets/3"), times=None)
    store = SourceStore()
    store.sync_until_done(lambda: source_for(desk), Clock())
    assert "3" not in store.documents
    assert "each time it is requested" in store.failed[0].reason
    desk.faults.clear()
    store.sync(source_for(desk))
    assert "3" not in store.documents, "it is not due yet"

    monkeypatch.setattr("connectors.web.division.time.time", lambda: 4e9)
    store.sync(source_for(desk))

    assert set(store.documents) == set(desk.records)


def test_many_failing_records_are_an_outage_of_which_few_are_named(
    desk: FakeTickets, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.faults.next(Fault.status(500), when=lambda seen: seen.path.startswith("/api/tickets/"), times=None)
    store = SourceStore()
    for _ in range(3):
        with pytest.raises(SourceUnavailable):
            store.sync(source_for(desk))
    assert store.documents == {}
    assert len(store.failed) <= 4

    desk.faults.clear()
    store.sync(source_for(desk))
    assert len(store.documents) >= 6
    monkeypatch.setattr("connectors.web.division.time.time", lambda: 4e9)
    store.sync(source_for(desk))
    assert set(store.documents) == set(desk.records)


def test_a_list_that_does_not_advance_is_an_error(desk: FakeTickets) -> None:
    answer = json.dumps({"data": {"items": []}, "meta": {"next": "c4"}})
    desk.faults.next(
        Fault.status(200, body=answer, content_type=JSON), when=lambda s: "cursor" in s.query, times=9
    )

    with pytest.raises(SourceUnavailable, match="does not advance"):
        source_for(desk).ids()


def test_a_list_with_more_but_without_a_position_is_an_error(desk: FakeTickets) -> None:
    section = {**TICKETS["list"], "next": {"cursor": "meta.next", "param": "cursor", "more": "meta.total"}}

    with pytest.raises(SourceUnavailable, match="without its position"):
        source_for(desk, list=section).ids()


@pytest.mark.parametrize("position", [{"a": 1}, [1], 1.5])
def test_a_position_that_is_none_is_an_error(desk: FakeTickets, position: Any) -> None:
    answer = json.dumps({"data": {"items": []}, "meta": {"next": position}})
    desk.faults.next(Fault.status(200, body=answer, content_type=JSON))

    with pytest.raises(SourceUnavailable, match="neither text nor number"):
        source_for(desk).ids()


def test_a_list_that_suddenly_shows_a_tenth_waits_for_a_person(
    shared_database: Database, notes: SourceLedger
) -> None:
    with FakeTickets("cursor") as fake:
        for n in range(100):
            fake.add(f"<p>Text {n}.</p>")
        sync(notes, source_for(fake))  # type: ignore[arg-type] # any source will do
        everything = dict(fake.records)
        for number in list(fake.records)[10:]:
            del fake.records[number]

        for _ in range(3):
            row = sync(notes, source_for(fake), walk=True)  # type: ignore[arg-type]
            assert (row.hidden, row.deleted) == (0, 0)
        assert notes.sources.one()["held"] == 90
        assert len(notes.documents(hidden=False, deleted=False)) == 100

        fake.records = everything
        sync(notes, source_for(fake), walk=True)  # type: ignore[arg-type]
        assert notes.sources.one()["held"] == 0


def test_an_issue_that_moved_to_another_project_goes_under_its_old_key(notes: SourceLedger) -> None:
    with FakeJira() as fake:
        for _ in range(5):
            fake.add()
        sync(notes, source_for(fake, preset="jira"))  # type: ignore[arg-type]
        fake.records["OPS-9"] = {**fake.records.pop("SHOP-2"), "key": "OPS-9"}
        fake.edit("OPS-9", "Moved.")
        for _ in range(2):
            sync(notes, source_for(fake, preset="jira"), walk=True)  # type: ignore[arg-type]

        names = notes.documents.values("external_id", hidden=False, deleted=False)
        assert names == ["OPS-9", "SHOP-1", "SHOP-3", "SHOP-4", "SHOP-5"]
