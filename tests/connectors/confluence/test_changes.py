"""What changes in Confluence reaches the store: at once what search shows, with the daily walk the rest."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.connectors.confluence.world import Store, confluence, source_for, truth
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault

Act = Callable[[FakeConfluence, list[str]], object]


def _start(fake: FakeConfluence, number: int = 8) -> tuple[list[str], Store]:
    """Pages in a tree, an hour old, synced."""
    made: list[str] = []
    for n in range(number):
        made.append(
            fake.add_page("ENG", f"Page {n}", f"<p>Text {n}</p>", parent=made[n // 2] if n > 3 else None)
        )
        fake.advance(minutes=1)
    fake.comment(made[1], "<p>First comment</p>")
    fake.advance(hours=1)
    store = Store()
    store.sync(source_for(fake))
    fake.advance(hours=1)
    return made, store


def test_an_edit_is_read_by_the_next_sync_and_only_it(fake: FakeConfluence) -> None:
    made, store = _start(fake)
    fake.edit(made[2], "<p>Edited</p>", title="Renamed")
    fake.advance(hours=1)

    assert store.sync(source_for(fake)) == [made[2]]
    assert store.documents[made[2]].title == "Renamed"
    assert store.documents[made[2]].text == "Edited"
    assert store.sync(source_for(fake)) == []


@pytest.mark.req("001-053")
def test_comments_bring_their_page_when_they_are_wanted(fake: FakeConfluence) -> None:
    made, store = _start(fake)
    first = fake.comment(made[3], "<p>A new comment</p>")
    fake.advance(hours=1)

    assert store.sync(source_for(fake)) == [made[3]]
    fake.edit_comment(first, "<p>Said better</p>")
    fake.advance(hours=1)
    assert store.sync(source_for(fake)) == [made[3]]
    assert "Said better" in store.documents[made[3]].text
    without = Store()
    without.sync(source_for(fake, include_comments=False))
    assert "Said better" not in without.documents[made[3]].text


def test_an_edit_in_the_minute_of_the_cursor_is_found(fake: FakeConfluence) -> None:
    made, store = _start(fake)
    fake.edit(made[0], "<p>One</p>")
    store.sync(source_for(fake))
    fake.advance(seconds=5)
    fake.edit(made[4], "<p>Same minute</p>")

    assert store.sync(source_for(fake)) == [made[4]]


def test_a_change_that_search_shows_late_is_found(fake: FakeConfluence) -> None:
    made, store = _start(fake)
    fake.hide_from_index(minutes=6)
    fake.edit(made[0], "<p>Late</p>")
    fake.hide_from_index(minutes=0)
    fake.advance(minutes=2)
    fake.edit(made[1], "<p>Early</p>")
    assert made[1] in store.sync(source_for(fake))
    fake.advance(minutes=10)
    store.sync(source_for(fake))

    assert store.seen() == truth(fake)
    assert store.documents[made[0]].text == "Late"


@pytest.mark.parametrize("zone", ["Etc/GMT+12", "America/Los_Angeles", "Pacific/Kiritimati", "UTC"])
@pytest.mark.parametrize("hidden", [False, True], ids=["shown", "hidden"])
@pytest.mark.parametrize("kind", ["cloud", "server"])
def test_the_zone_of_the_account_hides_no_change(kind: str, zone: str, hidden: bool) -> None:
    with confluence(kind, account_time_zone=zone, hide_zone=hidden) as fake:
        fake.add_space("ENG")
        made, store = _start(fake)
        fake.edit(made[0], "<p>Edited</p>")
        fake.advance(minutes=1)

        assert store.sync(source_for(fake)) == [made[0]]


def test_the_hour_that_comes_twice_hides_no_change() -> None:
    with confluence("cloud", account_time_zone="America/New_York") as fake:
        fake.add_space("ENG")
        # Clocks go back at 06:00 UTC on the 2nd of November 2025.
        fake.advance(
            minutes=(fake.now.replace(month=11, day=2, hour=4, minute=0) - fake.now) / timedelta(minutes=1)
        )
        made, store = _start(fake, 4)
        for _ in range(12):
            fake.edit(made[0], "<p>Edited</p>")
            fake.advance(minutes=20)
            store.sync(source_for(fake))
            assert store.seen() == truth(fake)


def test_a_page_edited_out_of_scope_goes_and_comes_back(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.advance(hours=1)
    store = Store()
    store.sync(source_for(fake, labels={"exclude": ("wip",)}))
    fake.label(page, "wip")
    fake.edit(page, "<p>Unfinished</p>")
    fake.advance(hours=1)
    store.sync(source_for(fake, labels={"exclude": ("wip",)}))
    assert store.documents == {}
    assert store.deleted == [page]

    fake.unlabel(page, "wip")
    fake.edit(page, "<p>Finished</p>")
    store.sync(source_for(fake, labels={"exclude": ("wip",)}))
    assert store.documents[page].text == "Finished"


def test_a_restored_page_comes_back_with_the_next_sync(fake: FakeConfluence) -> None:
    made, store = _start(fake)
    fake.trash(made[2])
    store.reconcile(source_for(fake))
    assert made[2] not in store.documents
    fake.restore(made[2])
    fake.advance(hours=1)

    assert store.sync(source_for(fake)) == [made[2]]


UNSEEN: dict[str, Act] = {
    "label": lambda fake, made: fake.label(made[2], "adr"),
    "move": lambda fake, made: fake.move(made[7], parent=made[1]),
    "move of a tree": lambda fake, made: fake.move(made[2], parent=made[1]),
    "move to another space": lambda fake, made: fake.move(made[6], space="OPS"),
    "trash of a parent": lambda fake, made: fake.trash(made[2]),
    "purge": lambda fake, made: fake.purge(made[2]),
    "archive": lambda fake, made: fake.archive(made[2]),
    "a deleted comment": lambda fake, made: fake.delete_comment(fake.hanging_on(made[1])[0].id),
}
"""Changes that move no date of a page."""


@pytest.mark.parametrize("name", sorted(UNSEEN))
def test_the_daily_walk_notices_what_moves_no_date(fake: FakeConfluence, name: str) -> None:
    made, store = _start(fake)

    UNSEEN[name](fake, made)
    store.reconcile(source_for(fake))

    fresh = Store()
    fresh.sync(source_for(fake))
    assert store.documents == fresh.documents
    assert store.seen() == truth(fake)


def test_the_daily_walk_notices_a_resolved_inline_comment(fake: FakeConfluence) -> None:
    made, _ = _start(fake)
    comment = fake.comment(made[5], "<p>Why?</p>", "inline")
    store = Store()
    store.sync(source_for(fake))
    assert "inline)" in store.documents[made[5]].text or "inline**" in store.documents[made[5]].text

    fake.edit_comment(comment, location="resolved")

    assert store.reconcile(source_for(fake)) == [made[5]]
    assert "inline, resolved" in store.documents[made[5]].text


def test_the_daily_walk_reads_nothing_when_nothing_changed(fake: FakeConfluence) -> None:
    _, store = _start(fake)

    assert store.reconcile(source_for(fake)) == []


def test_an_unarchived_page_comes_back_with_the_daily_walk(fake: FakeConfluence) -> None:
    made, store = _start(fake)
    fake.archive(made[2])
    store.reconcile(source_for(fake))
    fake.unarchive(made[2])

    assert made[2] in store.reconcile(source_for(fake))
    assert store.seen() == truth(fake)


# -- reading chosen pages --------------------------------------------------------------------------------


def _read(fake: FakeConfluence, ids: list[str]) -> Store:
    store = Store()
    store.take(source_for(fake).read(ids), cursors=False)
    return store


def test_what_is_gone_in_any_way_is_said_to_be_deleted(fake: FakeConfluence) -> None:
    made, _ = _start(fake)
    fake.trash(made[0])
    fake.purge(made[1])
    fake.archive(made[2])

    store = _read(fake, [made[0], made[1], made[2], made[3], "99999999"])

    assert set(store.deleted) == {made[0], made[1], made[2], "99999999"}
    assert set(store.documents) == {made[3]}
    assert store.failed == []


def test_a_page_that_search_forgets_for_a_moment_is_not_deleted(fake: FakeConfluence) -> None:
    made, _ = _start(fake)
    fake.lists_only(0.1)

    store = _read(fake, made)

    assert store.deleted == []
    assert set(store.documents) | {problem.external_id for problem in store.failed} == set(made)


def test_a_page_that_is_missing_everywhere_for_a_moment_is_not_deleted(fake: FakeConfluence) -> None:
    made, _ = _start(fake)
    empty = '{"results": [], "start": 0, "limit": 50, "size": 0, "_links": {}}'
    fake.faults.next(
        Fault.status(200, body=empty, content_type="application/json"),
        when=lambda seen: "id in" in seen.first("cql"),
    )
    missing = Fault.status(404, body='{"message": "no"}', content_type="application/json")
    fake.faults.next(missing, when=lambda seen: seen.path.endswith(made[2]))

    store = _read(fake, [made[2]])

    assert store.deleted == []
    assert set(store.documents) == {made[2]}
    assert fake.faults.waiting == 0


def test_a_page_that_is_refused_is_left_as_it_is(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page")
    fake.archive(page)
    fake.faults.next(
        Fault.status(403, body='{"message": "no"}', content_type="application/json"),
        when=lambda seen: seen.path.endswith(page),
    )

    store = _read(fake, [page])

    assert store.deleted == []
    assert [problem.external_id for problem in store.failed] == [page]


def test_a_service_that_lists_a_tenth_loses_nothing_of_an_incremental_sync(fake: FakeConfluence) -> None:
    _, store = _start(fake)
    before = dict(store.documents)
    fake.lists_only(0.1)

    store.sync(source_for(fake))

    assert store.documents == before


def test_reading_more_than_fit_into_one_answer_brings_all(fake: FakeConfluence) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(120)]

    assert set(_read(fake, made).documents) == set(made)


def test_a_text_that_is_no_id_never_reaches_a_query(fake: FakeConfluence) -> None:
    assert _read(fake, ['1) or type = page or (id = 1"']).deleted == ['1) or type = page or (id = 1"']
    assert all("or type" not in seen.first("cql") for seen in fake.requests())


@pytest.mark.parametrize("first", [False, True], ids=["later", "before the first walk"])
def test_a_change_stamped_in_the_future_hides_none_that_follow(fake: FakeConfluence, first: bool) -> None:
    now = datetime.now(UTC)  # as the Date of the answers
    fake.now = now - timedelta(days=1)
    early, late, edited = (fake.add_page("ENG", name) for name in ("Early", "Late", "Edited"))
    store = Store()
    if not first:
        store.sync(source_for(fake))
    fake.now = now + timedelta(hours=6)
    fake.edit(early, "<p>From the future</p>")
    fake.now = now
    assert early in store.sync(source_for(fake))
    fake.edit(edited, "<p>Edited</p>")
    assert store.sync(source_for(fake)) == [edited]
    assert store.sync(source_for(fake)) == []
    assert store.seen() == truth(fake)
    assert late in store.documents
