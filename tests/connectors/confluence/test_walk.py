"""A first sync takes all there is, survives being broken off anywhere, and loses nothing to edits meanwhile."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from connectors import ProtectedSource
from pipeline.documents import Listing, Page
from tests.connectors.confluence.world import Store, confluence_world, source_for, truth
from tests.connectors.worlds import in_pieces
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Seen


def _fill(fake: FakeConfluence, number: int, *, minutes: float = 1) -> list[str]:
    made = []
    for n in range(number):
        made.append(fake.add_page("ENG", f"Page {n}", f"<p>Text {n}</p>"))
        fake.advance(minutes=minutes)
    return made


def _fill_small(fake: FakeConfluence, number: int, *, minutes: float = 10) -> list[str]:
    """A tenth of everything: 62 pages take as many answers and reads, and as long to make, as 620 of the real one."""
    fake.most_rows = 20
    return _fill(fake, number, minutes=minutes)


def _small(fake: FakeConfluence) -> ProtectedSource:
    return source_for(fake, page_size=5)


@pytest.mark.req("001-051", "001-052", "001-053")
@pytest.mark.parametrize("kind", ["cloud", "server", "server-context"])
def test_a_first_sync_brings_every_page_of_the_configured_space_once(kind: str) -> None:
    with confluence_world(kind, items=230, most_rows=1000) as world:
        store = Store()

        read = store.sync(world.source())

        assert store.seen() == truth(world.fake)
        assert len(read) == len(set(read)) == 230
        assert (store.failed, store.skipped, store.deleted) == ([], [], [])
        assert len(world.fake.requests()) <= 20


@pytest.mark.parametrize("kind", ["cloud", "server"])
def test_an_unchanged_sync_takes_three_requests_and_reads_nothing(kind: str) -> None:
    with confluence_world(kind) as world:
        store = Store()
        store.sync(world.source())
        before, cursor = len(world.fake.requests()), store.cursor

        assert list(world.source().pages(cursor)) == []
        assert len(world.fake.requests()) - before <= 3


def test_a_sync_costs_no_day_of_changes_each_time(
    server: FakeConfluence,
) -> None:
    made = _fill_small(server, 62)
    store = Store()
    store.sync(_small(server))
    before = len(server.requests())

    assert store.sync(_small(server)) == []
    assert len(server.requests()) - before <= 3
    server.edit(made[0], "<p>Edited</p>")
    assert store.sync(_small(server)) == [made[0]]


def test_a_sync_broken_off_after_any_page_goes_on_without_reading_again(fake: FakeConfluence) -> None:
    _fill_small(fake, 22)
    whole = list(_small(fake).pages(None))

    for kept in range(1, len(whole)):
        pages = list(itertools.islice(_small(fake).pages(None), kept))
        store = Store()
        store.take(pages)
        store.sync(_small(fake))

        assert store.seen() == truth(fake)
        assert len(store.read) == 22, f"read again after {kept} pages"


def test_many_pages_of_one_minute_make_progress_though_every_sync_dies_after_one_page(
    fake: FakeConfluence,
) -> None:
    _fill_small(fake, 45, minutes=0)
    store = Store()

    for _ in range(9):
        store.take(itertools.islice(_small(fake).pages(store.cursor), 1))

    assert store.seen() == truth(fake)
    assert len(store.read) == 45


def test_changes_of_one_minute_make_progress_though_every_sync_dies_after_one_page(
    fake: FakeConfluence,
) -> None:
    made = _fill_small(fake, 26)
    store = Store()
    store.sync(_small(fake))
    fake.advance(hours=1)
    for page in made:
        fake.edit(page, "<p>Imported</p>")

    for _ in range(6):
        store.take(itertools.islice(_small(fake).pages(store.cursor), 1))

    assert store.seen() == truth(fake)
    assert store.read.count(made[0]) == 2
    assert len(store.read) == 52


def _on_nth_search(fake: FakeConfluence, number: int, act: Any) -> None:
    """Acts once, after the answer to the n-th walk request was made."""
    count = itertools.count(1)

    def callback(seen: Seen) -> None:
        if "order by" in seen.first("cql") and next(count) == number:
            act()

    fake.on_request(callback)


@pytest.mark.parametrize("number", [2, 3])
def test_edits_and_removals_between_two_pages_of_a_walk_lose_nothing(
    fake: FakeConfluence, number: int
) -> None:
    made = _fill_small(fake, 62)
    fake.advance(hours=1)

    def disturb() -> None:
        fake.edit(made[0], "<p>Edited meanwhile</p>")
        fake.trash(made[1])
        fake.edit(made[60], "<p>Edited meanwhile</p>")
        fake.purge(made[3])

    _on_nth_search(fake, number, disturb)
    store = Store()
    store.sync(_small(fake))
    fake.on_request(None)

    missing = set(truth(fake)) - set(store.documents)
    assert missing == set()
    store.sync(_small(fake))
    assert {k: v for k, v in store.seen().items() if k not in (made[1], made[3])} == truth(fake)


def test_removals_between_two_pages_of_a_list_of_changes_lose_no_change(fake: FakeConfluence) -> None:
    made = _fill_small(fake, 62)
    store = Store()
    store.sync(_small(fake))
    fake.advance(days=3)
    for page in made:
        fake.edit(page, "<p>New</p>")
        fake.advance(seconds=50)
    fake.advance(hours=1)

    def disturb() -> None:
        for page in made[:9]:
            fake.trash(page)
        fake.edit(made[10], "<p>Newer</p>")

    _on_nth_search(fake, 1, disturb)
    store.sync(_small(fake))
    fake.on_request(None)
    store.sync(_small(fake))

    living = truth(fake)
    assert {i for i, seen in living.items() if store.seen().get(i) != seen} == set()


def test_a_cursor_that_grew_old_in_mid_walk_begins_the_list_again(cloud: FakeConfluence) -> None:
    _fill_small(cloud, 62)
    _on_nth_search(cloud, 3, cloud.expire_cursors)

    store = Store()
    store.sync(_small(cloud))

    assert store.seen() == truth(cloud)
    assert len(store.read) == 62


def test_an_empty_page_that_promises_more_ends_the_walk_which_goes_on_next_time(fake: FakeConfluence) -> None:
    _fill_small(fake, 45)
    fake.empty_page_at = 20
    store = Store()

    store.sync(_small(fake))
    assert 0 < len(store.documents) < 45
    fake.empty_page_at = None
    store.sync(_small(fake))

    assert store.seen() == truth(fake)


def test_a_list_of_changes_that_breaks_off_passes_no_older_change_over(fake: FakeConfluence) -> None:
    made = _fill_small(fake, 30)
    store = Store()
    store.sync(_small(fake))
    fake.advance(hours=1)
    for page in made:
        fake.edit(page, "<p>New</p>")
        fake.advance(seconds=50)
    fake.empty_page_at = 20

    store.sync(_small(fake))
    fake.empty_page_at = None
    store.sync(_small(fake))

    assert store.seen() == truth(fake)


def test_a_server_that_counts_too_little_in_its_links_is_read_once(server: FakeConfluence) -> None:
    server.undercount = True
    _fill_small(server, 62)
    store = Store()

    store.sync(_small(server))

    assert store.seen() == truth(server)
    walked = [s for s in server.requests("content/search") if "type in (page)" in s.first("cql")]
    assert len(walked) == 4


def test_the_walk_of_ids_is_whole_though_pages_are_removed_between_two_answers(fake: FakeConfluence) -> None:
    made = _fill(fake, 620)

    def disturb() -> None:
        for page in made[:40]:
            fake.trash(page)

    _on_nth_search(fake, 1, disturb)

    listing = Listing.merged(in_pieces(lambda: source_for(fake)))

    assert listing.complete
    assert set(truth(fake)) <= listing.ids


def test_a_comment_made_during_the_first_walk_is_not_lost(fake: FakeConfluence) -> None:
    made = _fill(fake, 60)
    fake.advance(hours=2)

    def disturb() -> None:
        fake.comment(made[0], "<p>Meanwhile</p>")
        fake.advance(hours=1)
        fake.edit(made[59], "<p>Later</p>")

    # After the first page was read with its comments, and before the last one is.
    store = Store()
    for number, page in enumerate(source_for(fake, page_size=20).pages(None)):
        if number == 0:
            disturb()
        store.take([page])
    fake.advance(hours=1)
    store.sync(source_for(fake, page_size=20))

    assert "Meanwhile" in store.documents[made[0]].text


@pytest.mark.req("001-053")
def test_the_cap_takes_the_oldest_pages_says_so_once_and_stays(fake: FakeConfluence) -> None:
    made = _fill(fake, 130)
    store = Store()

    store.sync(source_for(fake, max_pages=70, page_size=30))

    assert sorted(store.documents) == sorted(made[:70])
    assert [problem.external_id for problem in store.skipped] == ["maxPages"]
    assert "70" in store.skipped[0].reason
    fake.advance(hours=1)
    fake.edit(made[5], "<p>x</p>")
    fake.edit(made[100], "<p>x</p>")
    fake.comment(made[101], "<p>x</p>")
    assert store.sync(source_for(fake, max_pages=70, page_size=30)) == [made[5]]
    listing = source_for(fake, max_pages=70).ids()
    assert listing.ids == set(made[:70])
    assert not listing.complete


def test_a_cap_that_is_just_enough_is_none(fake: FakeConfluence) -> None:
    _fill(fake, 70)
    store = Store()

    store.sync(source_for(fake, max_pages=70, page_size=30))

    assert store.skipped == []
    assert source_for(fake, max_pages=70).ids().complete


def test_blog_posts_come_when_asked_for(fake: FakeConfluence) -> None:
    _fill(fake, 3)
    post = fake.add_page("ENG", "News", "<p>Released</p>", kind="blogpost")
    store, with_posts = Store(), Store()

    store.sync(source_for(fake))
    with_posts.sync(source_for(fake, include_blog_posts=True))

    assert set(with_posts.documents) - set(store.documents) == {post}
    assert source_for(fake, include_blog_posts=True).ids().ids == set(with_posts.documents)


def test_no_space_keys_mean_every_visible_space_but_the_archived_ones(fake: FakeConfluence) -> None:
    fake.add_space("OLD", archived=True)
    fake.add_space("HID", visible=False)
    pages = {key: fake.add_page(key, f"In {key}", "<p>x</p>") for key in ("ENG", "OPS", "OLD", "HID")}
    store, archive = Store(), Store()

    store.sync(source_for(fake, space_keys=()))
    archive.sync(source_for(fake, space_keys=(), include_archived=True))

    assert set(store.documents) == {pages["ENG"], pages["OPS"]}
    assert set(archive.documents) == {pages["ENG"], pages["OPS"], pages["OLD"]}


def test_labels_and_trees_choose_pages(fake: FakeConfluence) -> None:
    root = fake.add_page("ENG", "Root", "<p>x</p>", labels=["keep"])
    below = fake.add_page("ENG", "Below", "<p>x</p>", parent=root, labels=["keep", "draft"])
    deep = fake.add_page("ENG", "Deep", "<p>x</p>", parent=below, labels=["other"])
    beside = fake.add_page("ENG", "Beside", "<p>x</p>", labels=["keep"])

    def ids(**chosen: Any) -> set[str]:
        store = Store()
        store.sync(source_for(fake, **chosen))
        assert source_for(fake, **chosen).ids().ids == set(store.documents)
        return set(store.documents)

    assert ids(labels={"include": ("Keep",)}) == {root, below, beside}
    assert ids(labels={"exclude": ("draft",)}) == {root, deep, beside}
    assert ids(ancestors=(root,)) == {root, below, deep}
    assert ids(ancestors=(below,), labels={"exclude": ("draft",)}) == {deep}


def test_drafts_and_archived_and_trashed_pages_never_come(fake: FakeConfluence) -> None:
    kept = fake.add_page("ENG", "Kept", "<p>x</p>")
    for status in ("draft", "archived"):
        fake.add_page("ENG", status, "<p>x</p>", status=status)
    fake.trash(fake.add_page("ENG", "Trashed", "<p>x</p>"))
    store = Store()

    store.sync(source_for(fake))

    assert set(store.documents) == {kept}


def test_another_selection_begins_anew(fake: FakeConfluence) -> None:
    _fill(fake, 3)
    store = Store()
    store.sync(source_for(fake))

    again = store.sync(source_for(fake, include_comments=False))

    assert len(again) == 3


def test_an_empty_confluence_is_no_error_and_its_first_page_is_found(fake: FakeConfluence) -> None:
    store = Store()
    store.sync(source_for(fake))
    assert store.documents == {}

    page = fake.add_page("ENG", "First", "<p>x</p>")
    store.sync(source_for(fake))

    assert set(store.documents) == {page}


def test_cursors_are_plain_json(fake: FakeConfluence) -> None:
    _fill(fake, 60)

    for page in source_for(fake, page_size=20).pages(None):
        assert isinstance(page, Page)
        assert json.loads(json.dumps(page.cursor, allow_nan=False)) == page.cursor
