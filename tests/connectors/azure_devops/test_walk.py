"""The first walk: everything that belongs to the source, in any number, from any place on."""

from __future__ import annotations

import itertools
import json
from datetime import timedelta

import pytest

from connectors.documents.values import parse_time
from connectors.web.session import Access
from pipeline.documents import Listing
from pipeline.errors import RateLimited
from tests.connectors.azure_devops.world import Store, source_for, truth
from tests.connectors.worlds import Clock, in_pieces
from tests.fakes.azure_devops import FakeAzureDevOps, too_many_requests
from tests.fakes.server import Seen


def _wiql(seen: Seen) -> bool:
    return seen.path.endswith("/wiql")


def _batch(seen: Seen) -> bool:
    return seen.path.lower().endswith("/workitemsbatch")


@pytest.mark.req("001-054")
def test_everything_comes_once_in_the_order_of_ids_and_nothing_of_other_projects(
    fake: FakeAzureDevOps,
) -> None:
    fake.bulk("Web", 230)
    fake.bulk("Other", 20)
    fake.bulk("Web", 3)

    pages = list(source_for(fake).pages(None))

    ids = [d.external_id for page in pages for d in page.documents]
    assert ids == [str(n) for n in (*range(1, 231), *range(251, 254))]
    assert max(len(page.documents) for page in pages) <= 100
    store = Store()
    store.take(pages)
    assert store.seen() == truth(fake)


@pytest.mark.req("001-055")
def test_only_the_chosen_types_areas_and_states_come(services: FakeAzureDevOps) -> None:
    services.add_area("Web", "Team A\\Deep")
    wanted = services.add_item("Web", "Bug", "yes", area="Web\\Team A\\Deep", state="Active")
    services.add_item("Web", "Bug", "other state", area="Web\\Team A", state="New")
    other = services.add_item("Web", "Bug", "other area", area="Web\\Team AB", state="Active")
    services.add_item("Web", "Epic", "other type", area="Web\\Team A", state="Active")
    source = source_for(services, area_paths=("\\Web\\Team A\\",), states=("active",))

    store = Store()
    store.sync(source)

    assert set(store.documents) == {str(wanted)} == source.ids().ids
    store.take(source.read([str(n) for n in range(wanted, other + 3)]), cursors=False)
    assert set(store.documents) == {str(wanted)}


def test_names_with_quotes_and_spaces_are_spelled_as_queries_want_them(services: FakeAzureDevOps) -> None:
    services.add_project("Bob's Shop & Co")
    wanted = services.add_item("Bob's Shop & Co", "Bob's Bug", "yes", state="Don't")

    store = Store()
    store.sync(
        source_for(services, projects=("Bob's Shop & Co",), work_item_types=("Bob's Bug",), states=("Don't",))
    )

    assert set(store.documents) == {str(wanted)}


def test_a_project_may_be_given_in_any_case(services: FakeAzureDevOps) -> None:
    services.add_project("Third")
    item = services.add_item("Third", "Task", "x")

    for name in ("Third", "THIRD"):
        source = source_for(services, projects=(name,))
        store = Store()
        store.sync(source)
        assert set(store.documents) == {str(item)} == source.ids().ids
        services.edit(item, title=f"for {name}")
        store.sync(source_for(services, projects=(name,)))
        assert store.documents[str(item)].title == f"for {name}"


def test_more_hits_than_the_service_lists_are_asked_for_in_ranges_of_ids(services: FakeAzureDevOps) -> None:
    services.limits.hits = 10
    services.bulk("Web", 26)
    services.bulk("Other", 60)
    services.bulk("Web", 15)

    store = Store()
    source = source_for(services)
    store.sync(source)

    assert store.seen() == truth(services)
    listing = source.ids()
    assert listing.complete
    assert listing.ids == set(truth(services))


@pytest.mark.req("001-056")
def test_max_items_takes_the_newest_says_so_once_and_leaves_the_listing_incomplete(
    services: FakeAzureDevOps,
) -> None:
    services.bulk("Web", 150)
    source = source_for(services, max_items=120)

    store = Store()
    store.sync(source)

    assert set(store.documents) == {str(n) for n in range(31, 151)}
    assert [(p.external_id, "120" in p.reason, "30" in p.reason) for p in store.skipped] == [
        ("maxItems", True, True)
    ]
    listing = source.ids()
    assert not listing.complete
    assert listing.ids == set(store.documents)


def test_max_items_that_is_just_enough_leaves_the_listing_complete(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 20)
    source = source_for(services, max_items=20)

    store = Store()
    store.sync(source)

    assert len(store.documents) == 20
    assert store.skipped == []
    assert source.ids().complete


def test_max_items_holds_over_all_projects(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 10)
    services.bulk("Other", 10)
    source = source_for(services, projects=("Web", "Other"), max_items=15)

    store = Store()
    store.sync(source)

    assert set(store.documents) == {str(n) for n in range(6, 21)} == source.ids().ids


@pytest.mark.usefixtures("tenths")
@pytest.mark.parametrize("most", [None, 25])
def test_a_walk_broken_off_after_any_page_loses_nothing_and_reads_little_twice(
    services: FakeAzureDevOps, most: int | None
) -> None:
    services.bulk("Web", 23)
    services.bulk("Other", 11)
    wanted = ("Web", "Other")
    names = {**truth(services), **truth(services, "Other")}
    wanted_ids = set(sorted(names, key=int)[-most:]) if most else set(names)
    total = len(list(source_for(services, projects=wanted, max_items=most).pages(None)))

    for kept in range(1, total + 1):
        store = Store()
        store.take(itertools.islice(source_for(services, projects=wanted, max_items=most).pages(None), kept))
        had = len(store.documents)
        store.take(pages := list(source_for(services, projects=wanted, max_items=most).pages(store.cursor)))
        assert set(store.documents) == wanted_ids
        assert sum(len(p.documents) for p in pages) == len(wanted_ids) - had


@pytest.mark.usefixtures("tenths")
def test_a_project_put_before_the_one_being_walked_is_walked_from_its_beginning(
    services: FakeAzureDevOps,
) -> None:
    services.bulk("Other", 2)
    services.bulk("Web", 23)
    store = Store()
    store.take(itertools.islice(source_for(services).pages(None), 2))
    assert 0 < len(store.documents) < 23

    store.sync(source_for(services, projects=("Other", "Web")))

    assert store.seen() == {**truth(services), **truth(services, "Other")}


def test_what_is_created_while_the_list_is_made_is_found_by_the_next_sync(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 5)
    added: list[int] = []

    def create(seen: Seen) -> None:
        fake.advance(minutes=30)
        added.append(fake.add_item("Web", "Bug", f"during {seen.path}"))

    fake.on_request(create)
    store = Store()
    store.sync(source_for(fake))
    fake.on_request(None)
    store.sync(source_for(fake))

    assert added
    assert store.seen() == truth(fake)


def test_the_feed_is_entered_minutes_before_the_time_of_the_service(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 1)

    list(source_for(services).pages(None))

    first = next(seen for seen in services.log if seen.path.lower().endswith("/workitemrevisions"))
    entered = parse_time(first.first("startDateTime"))
    assert entered is not None
    assert services.now - entered >= timedelta(minutes=5)


@pytest.mark.usefixtures("tenths")
def test_an_edit_between_two_pages_is_found_by_the_next_sync(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 23)
    store = Store()
    for page in source_for(fake).pages(None):
        store.take([page])
        fake.edit(3, title=f"edited after page {store.pages}")
        fake.edit(22, title=f"also edited after page {store.pages}")

    store.sync(source_for(fake))

    assert store.seen() == truth(fake)


def test_progress_is_made_however_early_each_sync_is_broken_off(services: FakeAzureDevOps) -> None:
    """A small allowance of requests must lead to the end as well."""
    clock = Clock()
    ids = [services.add_item("Web", "Bug", f"Item {n}") for n in range(30)]
    for item in ids:
        services.comment(item, "word")
    broken = 0

    store = Store()
    while broken < 60:
        services.faults.clear()
        services.faults.next(too_many_requests("1"), after=7, times=None)
        try:
            store.sync(source_for(services, clock=clock))
        except RateLimited:
            broken += 1
            clock.now += 1
        else:
            break

    assert store.seen() == truth(services)
    assert broken > 3
    assert all("word" in d.text for d in store.documents.values())


def test_what_was_read_before_an_error_is_handed_over_first(services: FakeAzureDevOps) -> None:
    for n in range(10):
        services.comment(services.add_item("Web", "Bug", f"Item {n}"), "word")
    services.faults.next(too_many_requests(), when=lambda s: "/workItems/5/comments" in s.path)

    store = Store()
    with pytest.raises(RateLimited):
        store.sync(source_for(services))

    assert list(store.documents) == ["1", "2", "3", "4"]


def test_nulls_in_a_batch_are_told_apart(fake: FakeAzureDevOps) -> None:
    """Deleted after it was listed: gone; listed and unreadable: a failure; the others keep their own texts."""
    fake.bulk("Web", 6)
    fake.forbid(4)
    once = [True]

    def vanish(seen: Seen) -> None:
        if _batch(seen) and once.pop() if once else False:
            fake.delete(2)

    fake.on_request(vanish)
    store = Store()
    store.sync(source_for(fake))

    assert store.seen() == truth(fake)
    assert [d.text.split(".")[0].split()[-1] for d in store.documents.values()] == list(store.documents)
    assert [p.external_id for p in store.failed] == ["4"]
    assert "/4" in store.failed[0].url
    assert store.deleted == ["2"]


def test_batches_hold_two_hundred_ids_and_never_name_fields_beside_expand(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 410)

    list(source_for(services).pages(None))

    bodies = [seen.json for seen in services.requests("") if _batch(seen)]
    assert [len(body["ids"]) for body in bodies] == [200, 200, 10]
    assert all(body["errorPolicy"] == "omit" and ("fields" in body) != ("$expand" in body) for body in bodies)


def test_an_answer_that_is_too_large_is_asked_for_in_halves(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 16)
    services.edit(7, description="<p>" + "x" * 400_000 + "</p>")
    store = Store()
    store.sync(source_for(services, access=Access(base_url=services.url, most_bytes=200_000)))

    assert set(store.documents) == {str(n) for n in range(1, 17)} - {"7"}
    assert [p.external_id for p in store.failed] == ["7"]


def test_the_listing_carries_revisions(services: FakeAzureDevOps) -> None:
    services.bulk("Web", 450)
    services.edit(5, title="twice")

    listing = source_for(services).ids()

    assert listing.complete
    assert listing.versions == {i: str(rev) for i, (_, rev) in truth(services).items()}
    assert listing.versions["5"] == "2"
    assert len([s for s in services.log if _batch(s)]) == 3


def test_fingerprints_of_documents_are_those_of_the_listing(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 4)
    fake.comment(2, "word")
    fake.link(1, 3, "parent")
    source = source_for(fake)

    store = Store()
    store.sync(source)

    assert {i: d.fingerprint for i, d in store.documents.items()} == source.ids().versions


def test_destroyed_items_vanish_from_the_listing(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 4)
    store = Store()
    store.sync(source_for(fake))

    fake.destroy(2)
    store.sync(source_for(fake))
    listing = source_for(fake).ids()

    assert "2" in store.documents, "the feed says nothing of destroyed items"
    assert listing.ids == {"1", "3", "4"}
    assert listing.complete


@pytest.mark.parametrize("most", [None, 15])
def test_a_long_listing_comes_in_pieces_that_make_the_whole(
    fake: FakeAzureDevOps, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    fake.bulk("Web", 23)
    whole = source_for(fake, max_items=most).ids()
    monkeypatch.setattr("connectors.azure_devops.source.PIECE", 6)

    found = in_pieces(lambda: source_for(fake, max_items=most))

    assert len(found) == (3 if most else 4)
    assert Listing.merged(found) == whole
    assert whole.left_out == ({"beyond maxItems": 8} if most else {})


def test_a_listing_that_breaks_off_is_none(services: FakeAzureDevOps) -> None:
    services.limits.hits = 10
    services.bulk("Web", 45)
    services.faults.next(too_many_requests(), when=_wiql, after=3)

    with pytest.raises(RateLimited):
        source_for(services).ids()


def test_reading_by_id_gives_them_as_they_are_now(fake: FakeAzureDevOps) -> None:
    fake.bulk("Web", 120)
    fake.edit(7, title="New title")
    fake.delete(8)
    fake.destroy(9)
    fake.move(10, "Other")
    fake.change_type(11, "Epic")
    fake.forbid(12)

    pages = list(source_for(fake).read([*(str(n) for n in range(1, 121)), "9999", "no-number"]))

    store = Store()
    store.take(pages)
    assert all(page.cursor == {} and len(page.documents) <= 50 for page in pages)
    assert store.seen() == truth(fake)
    assert set(store.deleted) == {"8", "9", "10", "11", "9999", "no-number"}
    assert [p.external_id for p in store.failed] == ["12"]


def test_reading_nothing_asks_nothing(services: FakeAzureDevOps) -> None:
    assert list(source_for(services).read([])) == []
    assert services.log == []


def test_a_text_is_the_same_whether_its_neighbours_are_on_the_same_page_or_not(
    services: FakeAzureDevOps,
) -> None:
    services.bulk("Web", 3)
    services.link(1, 2, "parent")
    services.link(1, 3, "related")
    store, alone = Store(), Store()

    store.sync(source_for(services))
    for item in "123":
        alone.take(source_for(services).read([item]))

    assert alone.documents == store.documents


def test_an_empty_project_ends_at_once_and_goes_on_with_its_feed(fake: FakeAzureDevOps) -> None:
    store = Store()
    store.sync(source_for(fake))
    item = fake.add_item("Web", "Bug", "First of all")

    store.sync(source_for(fake))

    assert set(store.documents) == {str(item)}
    assert json.loads(json.dumps(store.cursor)) == store.cursor
