"""Later syncs: what the feed of revisions names, nothing else, and never a gap."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pipeline.errors import RateLimited
from tests.connectors.azure_devops.world import Store, source_for, truth
from tests.connectors.worlds import Clock
from tests.fakes.azure_devops import FakeAzureDevOps, too_many_requests


def synced(fake: FakeAzureDevOps, count: int = 6, **changes: Any) -> Store:
    """A store in step with some items; what was deleted so far is forgotten."""
    fake.bulk("Web", count)
    store = Store()
    store.sync(source_for(fake, **changes))
    return store


@pytest.mark.parametrize("count", [0, 6])
def test_a_sync_without_changes_costs_one_request_per_project_and_brings_no_page(
    fake: FakeAzureDevOps, count: int
) -> None:
    store = synced(fake, count)
    fake.bulk("Other", 3)
    before, pages = len(fake.log), store.pages
    cursor = store.cursor

    store.sync(source_for(fake))

    assert len(fake.log) - before == 1
    assert store.pages - pages <= 1, "the token may have moved on with other projects"
    again = list(source_for(fake).pages(store.cursor))
    assert again == [] or store.cursor != cursor


def test_only_what_changed_is_read_each_item_once(fake: FakeAzureDevOps) -> None:
    store = synced(fake, 30)
    for title in ("a", "b", "c"):
        fake.edit(3, title=title)
    fake.edit(29, title="d")
    added = fake.add_item("Web", "Bug", "new")
    fake.edit(fake.add_item("Other", "Bug", "elsewhere"), title="still elsewhere")
    before = len(fake.log)

    pages = list(source_for(fake).pages(store.cursor))

    brought = [d.external_id for page in pages for d in page.documents]
    assert sorted(brought, key=int) == ["3", "29", str(added)]
    assert len(fake.log) - before == 2
    store.take(pages)
    assert store.seen() == truth(fake)


CHANGES: dict[str, Callable[[FakeAzureDevOps], object]] = {
    "recycle bin": lambda fake: fake.delete(2),
    "type": lambda fake: fake.change_type(2, "Epic"),
    "project": lambda fake: fake.move(2, "Other"),
    "state and title": lambda fake: fake.set_state(2, "Closed", "Done"),
    "comment": lambda fake: fake.comment(2, "word"),
    "link": lambda fake: fake.link(2, 3, "parent"),
    "tags": lambda fake: fake.edit(2, tags=["x"]),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_kind_of_change_arrives_and_its_return_too(fake: FakeAzureDevOps, change: str) -> None:
    store = synced(fake)
    CHANGES[change](fake)

    store.sync(source_for(fake))
    if change == "project":  # the old project's feed is silent about it; the listing is not
        store.take(
            source_for(fake).read(sorted(set(store.documents) - source_for(fake).ids().ids)), cursors=False
        )

    assert store.seen() == truth(fake)
    back = {
        "recycle bin": lambda: fake.restore(2),
        "type": lambda: fake.change_type(2, "Bug"),
        "project": lambda: fake.move(2, "Web"),
    }
    back.get(change, lambda: fake.edit(2, title="again"))()
    store.sync(source_for(fake))
    assert "2" in store.documents
    assert store.seen() == truth(fake)


def test_an_item_that_moves_between_two_projects_of_the_source_stays(fake: FakeAzureDevOps) -> None:
    store = synced(fake, projects=("Web", "Other"))
    fake.move(2, "Other")

    store.sync(source_for(fake, projects=("Web", "Other")))

    assert store.documents["2"].metadata["project"] == "Other"
    assert store.deleted == []


def test_deleted_and_restored_between_two_syncs_is_no_deletion(fake: FakeAzureDevOps) -> None:
    store = synced(fake)
    fake.delete(2)
    fake.restore(2)

    store.sync(source_for(fake))

    assert store.deleted == []
    assert store.seen() == truth(fake)


def test_a_changed_item_that_cannot_be_read_is_a_failure_and_stays(fake: FakeAzureDevOps) -> None:
    store = synced(fake)
    fake.edit(2, title="secret now")
    fake.forbid(2)

    store.sync(source_for(fake))

    assert [p.external_id for p in store.failed] == ["2"]
    assert "2" in store.documents
    assert store.deleted == []


def test_a_feed_of_many_short_and_empty_batches_is_read_to_its_end(services: FakeAzureDevOps) -> None:
    services.limits.feed_most, services.limits.feed_scans = 3, True
    store = synced(services, 20)
    services.bulk("Other", 10)
    services.bulk("Web", 10)
    services.bulk("Other", 10)
    services.edit(1, title="last of all")

    store.sync(source_for(services))

    assert store.seen() == truth(services)


def test_the_configured_condition_is_asked_again_for_what_changed(services: FakeAzureDevOps) -> None:
    wiql = "[System.Tags] CONTAINS 'keep'"
    kept = services.add_item("Web", "Bug", "kept", tags=["keep"])
    lost = services.add_item("Web", "Bug", "lost", tags=["keep", "b"])
    never = services.add_item("Web", "Bug", "never")
    store = Store()
    store.sync(source_for(services, wiql=wiql))
    assert set(store.documents) == {str(kept), str(lost)} == source_for(services, wiql=wiql).ids().ids

    services.edit(lost, tags=["b"])
    services.edit(kept, title="still kept")
    services.edit(never, title="never still")
    store.sync(source_for(services, wiql=wiql))

    assert {i: d.title for i, d in store.documents.items()} == {str(kept): "still kept"}


def test_a_service_that_has_lost_its_index_makes_no_deletions(services: FakeAzureDevOps) -> None:
    wiql = "[System.Title] <> 'x'"
    services.bulk("Web", 20)
    store = Store()
    store.sync(source_for(services, wiql=wiql))
    services.lists_only(0.1)

    store.take(source_for(services, wiql=wiql).read(sorted(store.documents)), cursors=False)

    assert store.deleted == []
    assert len(store.documents) == 20
    assert len(store.failed) == 18


def test_a_condition_with_a_time_of_day_is_understood(services: FakeAzureDevOps) -> None:
    old = services.add_item("Web", "Bug", "old")
    services.advance(minutes=10)
    moment = services.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    services.advance(minutes=10)
    new = services.add_item("Web", "Bug", "new")

    found = source_for(services, wiql=f"[System.CreatedDate] >= '{moment}'").ids()

    assert found.ids == {str(new)} != {str(old)}
    assert all(s.first("timePrecision") == "true" for s in services.requests("/wiql"))


@pytest.mark.usefixtures("tenths")
def test_a_sync_broken_off_after_any_page_loses_nothing(services: FakeAzureDevOps) -> None:
    services.limits.feed_most = 6
    first = synced(services, 30)
    for n in range(1, 26):
        services.edit(n, title=f"edited {n}")
    for n in range(1, 25, 6):
        services.delete(n)
    total = len(list(source_for(services).pages(first.cursor)))
    assert total > 5

    for kept in range(1, total):
        store = Store(documents=dict(first.documents), cursor=first.cursor)
        store.take(itertools.islice(source_for(services).pages(store.cursor), kept))
        services.edit(5, title=f"edited again {kept}")
        store.sync(source_for(services))
        assert store.seen() == truth(services)


def test_progress_is_made_however_early_each_sync_is_broken_off(services: FakeAzureDevOps) -> None:
    clock = Clock()
    services.bulk("Web", 30)
    store = Store()
    store.sync(source_for(services))
    for n in range(1, 31):
        services.comment(n, "word")
    broken = 0
    while broken < 40:
        services.faults.clear()
        services.faults.next(too_many_requests("1"), after=4, times=None)
        try:
            store.sync(source_for(services, clock=clock))
        except RateLimited:
            broken += 1
            clock.now += 1
        else:
            break

    assert 3 < broken < 40
    assert store.seen() == truth(services)
    assert all("word" in d.text for d in store.documents.values())


def test_a_project_that_is_added_is_walked_and_the_others_are_not(services: FakeAzureDevOps) -> None:
    store = synced(services)
    services.bulk("Other", 4)

    pages = list(source_for(services, projects=("Other", "Web")).pages(store.cursor))

    assert sum(len(page.documents) for page in pages) == 4
    store.take(pages)
    assert store.seen() == {**truth(services), **truth(services, "Other")}
    services.edit(8, title="later")
    store.sync(source_for(services, projects=("Other", "Web")))
    assert store.documents["8"].title == "later"


@pytest.mark.parametrize(
    "change",
    [
        {"work_item_types": ("Bug",)},
        {"fields": ("System.Title",)},
        {"include_comments": False},
        {"max_items": 3},
    ],
)
def test_other_settings_start_the_walk_anew(services: FakeAzureDevOps, change: dict[str, Any]) -> None:
    store = synced(services)
    services.add_item("Web", "Bug", "one")

    fresh = list(source_for(services, **change).pages(None))
    pages = list(source_for(services, **change).pages(store.cursor))

    assert [p.documents for p in pages] == [p.documents for p in fresh]


@pytest.mark.parametrize(
    "cursor", [{}, {"tokens": 5}, {"selection": "x"}, {"walk": [], "todo": {}}, {"tokens": {"Web": "9;9;9"}}]
)
def test_a_cursor_that_means_nothing_starts_the_walk_anew(
    services: FakeAzureDevOps, cursor: dict[str, object]
) -> None:
    services.bulk("Web", 4)

    assert sum(len(p.documents) for p in source_for(services).pages(cursor)) == 4


def test_a_token_the_service_does_not_take_any_more_leads_to_a_new_walk(services: FakeAzureDevOps) -> None:
    store = synced(services)
    services.edit(1, title="lost between")
    assert store.cursor is not None
    store.cursor = {**store.cursor, "tokens": {"Web": "gone"}}

    store.sync(source_for(services))
    store.sync(source_for(services))

    assert store.seen() == truth(services)


@pytest.mark.parametrize("first", [False, True], ids=["later", "before the first walk"])
def test_a_change_stamped_in_the_future_hides_none_that_follow(fake: FakeAzureDevOps, first: bool) -> None:
    fake.bulk("Web", 6)
    store = Store()
    if not first:
        store.sync(source_for(fake))
    now = fake.now
    fake.now = now + timedelta(hours=6)
    fake.edit(2, title="from the future")
    fake.now = now
    store.sync(source_for(fake))
    fake.edit(3, title="edited")
    assert store.sync(source_for(fake)) == ["3"]
    assert store.seen() == truth(fake)
