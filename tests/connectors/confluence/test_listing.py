"""The walk of ids is complete only if it is proven to be."""

from __future__ import annotations

import pytest

from pipeline.documents import Listing
from pipeline.errors import LarderError, SourceDenied
from tests.connectors.confluence.world import Store, confluence_world, source_for, truth
from tests.connectors.worlds import in_pieces
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault


@pytest.mark.parametrize("kind", ["cloud", "server", "server-context"])
def test_ids_and_fingerprints_are_those_of_the_documents(kind: str) -> None:
    with confluence_world(kind) as world:
        store = Store()
        store.sync(world.source())
        before = len(world.fake.requests())

        listing = world.source().ids()

        assert listing.complete
        assert listing.ids == set(truth(world.fake))
        assert dict(listing.versions) == {i: d.fingerprint for i, d in store.documents.items()}
        assert len(world.fake.requests()) - before <= 6
        assert world.source().ids() == listing


@pytest.mark.parametrize("kind", ["cloud", "server"])
def test_a_long_one_comes_in_pieces_that_make_the_whole(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with confluence_world(kind) as world:
        world.fake.restrict(next(iter(truth(world.fake))), [("user", "bot")])
        whole = world.source().ids()
        monkeypatch.setattr("connectors.confluence.source.PAGES_AT_ONCE", 25)

        found = in_pieces(world.source)

        assert len(found) == 5
        assert Listing.merged(found) == whole
        capped = in_pieces(lambda: source_for(world.fake, max_pages=70))
        assert (sum(len(piece.ids) for piece in capped), capped[-1].complete) == (70, False)


def test_no_body_is_asked_for(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.break_page(page)

    assert source_for(fake).ids().ids == {page}
    assert not any("body" in seen.first("expand") for seen in fake.requests())


def test_an_empty_page_that_promises_more_is_no_proven_end(fake: FakeConfluence) -> None:
    fake.most_rows = 20
    for n in range(25):
        fake.add_page("ENG", f"Page {n}", "<p>x</p>")
    fake.empty_page_at = 20

    assert not source_for(fake).ids().complete


def test_a_list_of_comments_that_breaks_off_is_no_proven_end(fake: FakeConfluence) -> None:
    fake.most_rows = 20
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    for n in range(21):
        fake.comment(page, f"<p>{n}</p>")
    fake.empty_page_at = 20

    listing = source_for(fake).ids()

    assert listing.ids == {page}
    assert not listing.complete


def test_a_space_that_is_not_visible_makes_it_incomplete(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.add_space("HID", visible=False)

    listing = source_for(fake, space_keys=("ENG", "HID")).ids()

    assert listing.ids == {page}
    assert not listing.complete


def test_no_visible_space_at_all_is_an_error_and_no_empty_source(fake: FakeConfluence) -> None:
    fake.add_page("ENG", "Page", "<p>x</p>")
    fake.spaces["ENG"].visible = False

    for attempt in (lambda s: s.ids(), lambda s: list(s.pages(None))):
        with pytest.raises(SourceDenied) as caught:
            attempt(source_for(fake))
        assert "ENG" in caught.value.message
        assert caught.value.fix


@pytest.mark.parametrize(
    "fault",
    [Fault.status(500), Fault.status(429), Fault.truncated(), Fault.reset_in_body(), Fault.html(200)],
    ids=["500", "429", "truncated", "reset", "sign-in"],
)
def test_an_error_on_any_answer_ends_it_with_an_error_or_the_whole_list(
    fake: FakeConfluence, fault: Fault
) -> None:
    fake.most_rows = 20
    for n in range(25):
        fake.add_page("ENG", f"Page {n}", "<p>x</p>")
    fake.comment(fake.add_page("ENG", "Last", "<p>x</p>"), "<p>y</p>")
    whole = source_for(fake).ids()
    requests = len(fake.requests())
    # The two for the list of pages and the one for comments are made once more: an item may be to blame.
    once_more = 0 if fault.code in (429, 200) else 3

    ended = 0
    for number in range(requests):
        fake.faults.next(fault, after=number)
        try:
            assert source_for(fake).ids() == whole
        except LarderError:
            ended += 1
        fake.faults.clear()
    assert ended == requests - once_more


def test_fingerprints_are_short_and_differ_for_each_thing_that_may_change(fake: FakeConfluence) -> None:
    top = fake.add_page("ENG", "Top", "<p>x</p>")
    page = fake.add_page("ENG", "Page", "<p>x</p>", parent=top, labels=["a"])
    comment = fake.comment(page, "<p>y</p>")

    def mark() -> str:
        return source_for(fake, include_attachments=True).ids().versions[page]

    marks = [mark()]
    for change in (
        lambda: fake.edit(page, "<p>z</p>"),
        lambda: fake.edit(top, title="Above"),
        lambda: fake.label(page, "b"),
        lambda: fake.unlabel(page, "a"),
        lambda: fake.restrict(page, [("user", "bot")]),
        lambda: fake.restrict(top, [("user", "bot")]),
        lambda: fake.edit_comment(comment, "<p>better</p>"),
        lambda: fake.comment(page, "<p>z</p>", parent=comment),
        lambda: fake.attach(page, "plan.pdf", b"%PDF"),
        lambda: fake.move(page),
    ):
        change()
        marks.append(mark())

    assert len(set(marks)) == len(marks)
    assert all(len(m) <= 32 for m in marks)
