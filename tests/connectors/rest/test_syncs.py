"""Later syncs: what changed is read, nothing else, and never a gap, however the service pages and whatever its clock."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pipeline.errors import RateLimited, SourceDenied
from tests.connectors.rest.world import TICKETS, at, options_for, source_for
from tests.connectors.worlds import Clock, SourceStore, in_pieces
from tests.fakes.rest_service import STYLES, TOKEN, FakeTickets
from tests.fakes.server import Answer, Fault, Seen


@pytest.fixture(params=STYLES)
def desk(request: pytest.FixtureRequest) -> Iterator[FakeTickets]:
    with FakeTickets(request.param, most=10) as fake:
        yield fake


@pytest.fixture
def plain() -> Iterator[FakeTickets]:
    with FakeTickets("cursor", most=10) as fake:
        yield fake


def truth(fake: FakeTickets) -> dict[str, str]:
    """What a store should hold: the text by id."""
    return {
        n: record["description"].removeprefix("<p>").removesuffix("</p>")
        for n, record in fake.records.items()
    }


def texts(store: SourceStore) -> dict[str, str]:
    return {n: document.text for n, document in store.documents.items()}


def synced(fake: FakeTickets, count: int = 25, **changes: Any) -> SourceStore:
    for n in range(count):
        fake.add(f"<p>Text {n}.</p>")
    store = SourceStore()
    store.sync(source_for(fake, **changes))
    assert texts(store) == truth(fake)
    return store


def test_a_sync_without_changes_costs_one_request_and_brings_no_page(desk: FakeTickets) -> None:
    store = synced(desk)
    before, pages, cursor = len(desk.log), store.pages, store.cursor

    store.sync(source_for(desk))

    assert len(desk.log) - before == 1
    assert (store.pages, store.cursor) == (pages, cursor)


def test_only_what_changed_is_read_each_record_once(desk: FakeTickets) -> None:
    store = synced(desk)
    for text in ("a", "b", "c"):
        desk.edit("3", description=f"<p>{text}</p>")
    desk.edit("20", description="<p>d</p>")
    added = desk.add("<p>new</p>")
    before = len(desk.log)

    assert sorted(store.sync(source_for(desk)), key=int) == ["3", "20", added]
    assert texts(store) == truth(desk)
    assert len(desk.log) - before == 1 + 3


def test_a_change_that_the_service_shows_late_is_found(desk: FakeTickets) -> None:
    store = synced(desk)
    late = desk.add("<p>late</p>")
    hidden = desk.records.pop(late)
    desk.add("<p>later</p>")
    store.sync(source_for(desk))
    desk.records[late] = hidden

    assert store.sync(source_for(desk)) == [late]
    assert texts(store) == truth(desk)


def test_a_list_that_moves_below_the_reader_loses_nothing(desk: FakeTickets) -> None:
    """Each edit of what was read draws all behind it one place to the front, below counted pages."""
    store = synced(desk)
    changed = [str(n) for n in range(1, 26)]
    for n in changed:
        desk.edit(n, description=f"<p>second {n}</p>")
    pages = source_for(desk, page_items=10).pages(store.cursor)
    store.take(itertools.islice(pages, 1))
    desk.edit("2", description="<p>third</p>")
    desk.edit("4", description="<p>third</p>")

    store.take(pages)

    assert texts(store) == truth(desk)
    assert set(store.read[25:]) == set(changed)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_position_that_expired_begins_the_list_anew(plain: FakeTickets, restarted: bool) -> None:
    for n in range(35):
        plain.add(f"<p>Text {n}.</p>")
    store = SourceStore()
    pages = source_for(plain, page_items=10).pages(None)
    store.take(itertools.islice(pages, 2))
    plain.expired = True
    store.take(source_for(plain).pages(store.cursor) if restarted else pages)

    assert not plain.expired, "it was asked"
    assert texts(store) == truth(plain)
    assert store.deleted == []


def test_a_position_that_expires_in_the_id_walk_costs_no_id(
    plain: FakeTickets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.rest.source.PIECE", 2)
    for n in range(35):
        plain.add(f"<p>Text {n}.</p>")
    first = source_for(plain).ids()
    assert first.cursor
    plain.expired = True

    found = [first]
    while found[-1].cursor:
        found.append(source_for(plain).ids(json.loads(json.dumps(found[-1].cursor))))

    assert {i for piece in found for i in piece.ids} == set(plain.records)
    assert all(piece.complete for piece in found)


def test_positions_that_always_expire_end_the_walk_without_deleting(
    plain: FakeTickets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("connectors.rest.source.PIECE", 1)
    for n in range(35):
        plain.add(f"<p>Text {n}.</p>")
    plain.faults.next(
        Fault.status(400, body="{}", content_type="application/json"),
        when=lambda s: "cursor" in s.query,
        times=None,
    )

    pieces = in_pieces(lambda: source_for(plain))

    assert len(pieces) < 10
    assert not all(piece.complete for piece in pieces)


def test_an_id_that_is_given_again_is_another_document(desk: FakeTickets) -> None:
    store = synced(desk)
    del desk.records["25"]
    assert desk.add("<p>Another one.</p>") == "25"

    assert store.sync(source_for(desk)) == ["25"]
    assert texts(store) == truth(desk)


def test_a_clock_ahead_hides_nothing(desk: FakeTickets) -> None:
    store = synced(desk)
    ahead = (datetime.now(UTC) + timedelta(days=700)).strftime("%Y-%m-%dT%H:%M:%SZ")
    desk.edit("5", description="<p>From the future.</p>")
    desk.records["5"]["updated_at"] = ahead
    store.sync(source_for(desk))
    desk.edit("6", description="<p>Now.</p>")

    assert store.sync(source_for(desk)) == ["6"]
    assert texts(store) == truth(desk)


def test_an_edit_during_a_first_walk_is_found_by_the_next_sync(plain: FakeTickets) -> None:
    """The list is by id here, as the order of changes is unknown to the service."""
    section = {**TICKETS["list"], "params": {**TICKETS["list"]["params"], "sort": "created"}}
    for n in range(30):
        plain.add(f"<p>Text {n}.</p>")
    store = SourceStore()
    pages = source_for(plain, list=section, page_items=10).pages(None)
    store.take(itertools.islice(pages, 1))
    plain.clock = datetime.now(UTC) + timedelta(seconds=1)
    plain.edit("1", description="<p>edited</p>")
    plain.edit("30", description="<p>edited later</p>")
    store.take(pages)

    store.sync(source_for(plain, list=section))

    assert texts(store) == truth(plain)


def test_a_list_with_the_newest_first_is_read_as_far_as_the_last_change(plain: FakeTickets) -> None:
    section = {**TICKETS["list"], "params": {"sort": "-updated", "page_size": 10}}
    changes: dict[str, Any] = {"list": section, "changed": {"field": "updated_at", "descending": True}}
    store = synced(plain, 45, **changes)
    plain.edit("3", description="<p>c</p>")
    before = len(plain.requests("/api/tickets"))

    assert store.sync(source_for(plain, **changes)) == ["3"]
    assert len(plain.requests("/api/tickets")) - before == 1 + 1


def test_without_a_time_of_change_each_sync_reads_all(plain: FakeTickets) -> None:
    store = synced(plain, 25, changed=None)
    assert source_for(plain, changed=None).walks_all
    assert store.cursor == {}
    plain.edit("3", description="<p>c</p>")

    assert len(store.sync(source_for(plain, changed=None))) == 25
    assert texts(store) == truth(plain)
    listing = source_for(plain, changed=None).ids()
    assert listing.ids == set(plain.records)
    assert listing.complete
    assert not listing.versions


def test_records_that_are_marked_as_deleted_go_and_are_no_ids(plain: FakeTickets) -> None:
    deleted = {"field": "state", "is": "deleted"}
    store = synced(plain, 5, deleted=deleted)
    plain.edit("2", state="Deleted")

    store.sync(source_for(plain, deleted=deleted))

    assert store.deleted == ["2"]
    assert source_for(plain, deleted=deleted).ids().ids == {"1", "3", "4", "5"}


def test_excluded_records_are_counted_by_their_reason(plain: FakeTickets) -> None:
    exclude = [
        {"field": "spam", "because": "spam"},
        {"field": "state", "is": ["draft", "template"], "because": "not a ticket"},
    ]
    for n in range(6):
        plain.add(spam=n == 1, state="draft" if n in (2, 3) else "open")
    pages = list(source_for(plain, exclude=exclude).pages(None))
    listing = source_for(plain, exclude=exclude).ids()

    assert {d.external_id for page in pages for d in page.documents} == {"1", "5", "6"} == listing.ids
    assert sum((page.all_left_out for page in pages), start=type(pages[0].all_left_out)()) == {
        "spam": 1,
        "not a ticket": 2,
    }
    assert listing.left_out == {"spam": 1, "not a ticket": 2}
    assert listing.complete


def test_what_only_the_item_says_excludes_it_too(plain: FakeTickets) -> None:
    """The list of the service has no descriptions."""
    plain.add("<p>Open.</p>")
    plain.add("<p>Secret.</p>")
    exclude = [{"field": "description", "is": "<p>Secret.</p>", "because": "secret"}]
    pages = list(source_for(plain, exclude=exclude).pages(None))

    assert [d.external_id for page in pages for d in page.documents] == ["1"]
    assert [dict(page.all_left_out) for page in pages if page.left_out] == [{"secret": 1}]


def test_fewer_records_than_the_service_counts_are_no_complete_list(plain: FakeTickets) -> None:
    section = {**TICKETS["list"], "next": {"cursor": "meta.next", "param": "cursor", "total": "meta.total"}}
    for _ in range(30):
        plain.add()
    assert source_for(plain, list=section).ids().complete
    short = {"data": {"items": [{"id": 1, "updated_at": plain.tick()}]}, "meta": {"total": 30}}
    plain.faults.next(Fault.status(200, body=json.dumps(short), content_type="application/json"))

    assert not source_for(plain, list=section).ids().complete


def test_a_low_limit_on_requests_reads_all_in_the_end(plain: FakeTickets) -> None:
    clock = Clock()
    for _ in range(40):
        plain.add()
    store = SourceStore()

    errors = store.sync_until_done(lambda: source_for(plain, clock=clock, requests_per_minute=2), clock)

    assert texts(store) == truth(plain)
    assert len(store.read) == 40, "none was read twice"
    assert all(isinstance(error, RateLimited) for error in errors)
    assert len(errors) > 5


def test_ten_thousand_records_are_read_with_a_request_for_each_page_and_a_small_cursor(
    plain: FakeTickets,
) -> None:
    plain.most = 500
    at_once = plain.tick()
    for n in range(1, 10_001):
        plain.records[str(n)] = {
            "id": n,
            "subject": "s",
            "description": f"<p>{n}</p>",
            "updated_at": at_once,
            "created_at": at_once,
        }
    section = {**TICKETS["list"], "params": {"updated_since": "{cursor}", "page_size": 500}}
    changes: dict[str, Any] = {
        "list": section,
        "item": None,
        "children": [],
        "page_items": 500,
        "document": {"title": "subject"},
    }
    store = SourceStore()
    largest = 0
    for page in source_for(plain, **changes).pages(None):
        store.take([page])
        largest = max(largest, len(json.dumps(page.cursor)))

    assert len(store.read) == len(store.documents) == 10_000
    assert len(plain.log) == 20
    assert largest < 250_000
    plain.log.clear()
    listing = in_pieces(lambda: source_for(plain, **changes))
    assert {i for piece in listing for i in piece.ids} == set(plain.records)
    assert len(plain.log) == 20


def test_read_without_an_item_request_looks_through_the_list(plain: FakeTickets) -> None:
    for n in range(25):
        plain.add(f"<p>Text {n}.</p>")
    store = SourceStore()
    store.take(source_for(plain, item=None, children=[]).read(["3", "24", "99"]))

    assert set(store.documents) == {"3", "24"}
    assert store.deleted == ["99"]
    assert store.failed == []


def test_the_key_in_the_query_is_not_in_the_cursor(plain: FakeTickets) -> None:
    plain.style = "url"
    changes: dict[str, Any] = {"bearer": None, "query": {"name": "who", "value": TOKEN}}
    for _ in range(25):
        plain.add()

    pages = list(source_for(plain, page_items=10, **changes).pages(None))

    assert sum(len(page.documents) for page in pages) == 25
    assert TOKEN not in json.dumps([page.cursor for page in pages])
    assert all(seen.first("who") == TOKEN and len(seen.query["who"]) == 1 for seen in plain.log)


@pytest.mark.parametrize(
    ("changes", "sent"),
    [
        ({"bearer": "s3cret"}, ("Authorization", "Bearer s3cret")),
        (
            {"bearer": None, "basic": {"username": "ann", "password": "pä"}},
            ("Authorization", "Basic YW5uOnDDpA=="),
        ),
        ({"bearer": None, "header": {"name": "X-Key", "value": "s3cret"}}, ("X-Key", "s3cret")),
    ],
)
def test_each_way_to_sign_in(plain: FakeTickets, changes: dict[str, Any], sent: tuple[str, str]) -> None:
    with pytest.raises(SourceDenied):  # none of these is the token
        list(source_for(plain, **changes).pages(None))

    assert plain.log[0].headers.get(sent[0]) == sent[1]


def test_an_address_of_another_server_is_not_followed(plain: FakeTickets) -> None:
    plain.style = "url"
    answer = {"data": {"items": []}, "meta": {"next_url": "http://127.0.0.1:9/elsewhere"}}
    plain.faults.next(Fault.status(200, body=json.dumps(answer), content_type="application/json"))

    with pytest.raises(SourceDenied, match="another server"):
        list(source_for(plain).pages(None))


def test_a_record_that_has_another_id_now_has_left(plain: FakeTickets) -> None:
    plain.add()
    moved = Answer(json={"ticket": {**plain.records["1"], "id": 77}})
    plain.faults.next(
        Fault.status(200, body=moved.content(), content_type="application/json"), when=at("/api/tickets/1")
    )
    store = SourceStore()
    store.take(source_for(plain).read(["1"]))

    assert store.deleted == ["1"]
    assert store.documents == {}


def test_another_configuration_starts_over_and_another_token_does_not(plain: FakeTickets) -> None:
    hashes = {
        options_for(plain, **changes).selection_hash
        for changes in (
            {},
            {"bearer": "other"},
            {"requests_per_minute": 3},
            {"name": "other"},
            {"headers": {"X": "y"}},
        )
    }
    assert len(hashes) == 1
    assert options_for(plain, document={"title": "subject"}).selection_hash not in hashes


def _busy(_seen: Seen) -> bool:
    return True


def test_an_answer_that_asks_to_come_later_in_its_body_is_waited_for(plain: FakeTickets) -> None:
    plain.add()
    answer = json.dumps({"errors": [{"code": "RATELIMITED"}]})
    for status in (200, 400):
        plain.faults.next(Fault.status(status, body=answer, content_type="application/json"), when=_busy)
        with pytest.raises(RateLimited) as caught:
            list(source_for(plain, busy="errors[?code=='RATELIMITED']").pages(None))
        assert caught.value.retry_after


def test_an_answer_may_say_in_its_body_that_there_is_no_such_record(plain: FakeTickets) -> None:
    number = plain.add()
    item = {**TICKETS["item"], "gone": "errors[?type=='NOT_FOUND']"}

    def store(answer: dict[str, Any]) -> SourceStore:
        fault = Fault.status(200, body=json.dumps(answer), content_type="application/json")
        plain.faults.next(fault, when=at(f"/api/tickets/{number}"), times=None)
        result = SourceStore()
        result.take(source_for(plain, item=item).read([number]))
        plain.faults.clear()
        return result

    assert store({"ticket": None, "errors": [{"type": "NOT_FOUND"}]}).deleted == [number]
    broken = store({"ticket": None, "errors": [{"type": "INTERNAL"}]})
    assert (broken.deleted, [problem.external_id for problem in broken.failed]) == ([], [number])


def test_what_the_list_leaves_out_is_not_brought_in_by_its_id(plain: FakeTickets) -> None:
    ours, theirs = plain.add(), plain.add()
    within = {"path": "/tickets", "params": {"team": "ours", "id": "{id}"}, "records": "data.items"}
    item = {**TICKETS["item"], "within": within}

    def answered(seen: Seen) -> bool:
        return seen.first("team") == "ours" and seen.first("id") == theirs

    none = Fault.status(200, body='{"data": {"items": []}}', content_type="application/json")
    plain.faults.next(none, when=answered, times=None)
    store = SourceStore()
    store.take(source_for(plain, item=item).read([ours, theirs, "99"]))
    assert set(store.documents) == {ours}
    assert set(store.deleted) == {theirs, "99"}
    assert [seen.first("id") for seen in plain.log if seen.first("team")] == [ours, theirs], (
        "of those that are there"
    )
