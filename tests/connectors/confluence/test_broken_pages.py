"""A page that Confluence cannot show does not take others with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from connectors.web.answers import ServerFault
from pipeline.errors import SourceUnavailable
from tests.connectors.confluence.world import Store, asks, source_for, truth
from tests.connectors.worlds import Clock
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Answer, Fault, Seen


def test_a_broken_page_in_a_batch_is_a_failed_item_with_its_address_and_the_rest_comes(
    fake: FakeConfluence,
) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(60)]
    fake.break_page(made[7])
    fake.break_page(made[55])
    store = Store()

    store.sync(source_for(fake))

    assert set(store.documents) == set(made) - {made[7], made[55]}
    assert [p.external_id for p in store.failed] == [made[7], made[55]]
    assert store.failed[0].url.startswith(fake.base)
    assert "Page 7" in store.failed[0].reason
    assert len(fake.requests()) < 60


def test_a_mended_page_comes_with_the_daily_walk(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    fake.break_page(page)
    store = Store()
    store.sync(source_for(fake))
    fake.mend_page(page)

    assert store.reconcile(source_for(fake)) == [page]
    assert store.seen() == truth(fake)


def test_a_broken_comment_fails_its_page_only(fake: FakeConfluence) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(10)]
    fake.break_page(fake.comment(made[3], "<p>y</p>"))
    store = Store()

    store.sync(source_for(fake))

    assert set(store.documents) == set(made) - {made[3]}
    assert [p.external_id for p in store.failed] == [made[3]]


def test_a_restricted_broken_page_is_not_named(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Secret plan", "<p>x</p>", restricted_to=[("user", "bot")])
    fake.break_page(page)
    store = Store()

    store.sync(source_for(fake, include_restricted=False))

    assert store.failed == []


def test_a_service_that_is_ill_as_a_whole_stops_the_sync_instead_of_failing_every_page(
    fake: FakeConfluence,
) -> None:
    for n in range(10):
        fake.add_page("ENG", f"Page {n}", "<p>x</p>")
    fake.faults.next(Fault.status(500), when=lambda seen: "id in" in seen.first("cql"), times=None)
    store = Store()

    with pytest.raises(ServerFault):
        store.sync(source_for(fake))
    assert store.failed == []
    assert len(fake.requests()) < 10


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_fails_is_no_broken_page(fake: FakeConfluence, status: int) -> None:
    fake.add_page("ENG", "Page", "<p>x</p>")
    fake.faults.next(Fault.status(status), when=lambda seen: "id in" in seen.first("cql"), times=2)
    store = Store()

    with pytest.raises(SourceUnavailable):
        store.sync(source_for(fake))
    assert store.failed == []
    store.sync(source_for(fake))

    assert store.seen() == truth(fake)


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_fault_that_does_not_come_again_names_no_page(fake: FakeConfluence, status: int) -> None:
    fake.add_page("ENG", "Page", "<p>x</p>")
    fake.faults.next(Fault.status(status), when=lambda seen: "id in" in seen.first("cql"))
    store = Store()

    store.sync(source_for(fake))

    assert store.failed == []
    assert store.seen() == truth(fake)


CULPRITS: dict[str, Callable[[str, str], Callable[[Seen], bool]]] = {
    "its text": lambda page, _file: asks("id in", page, "body"),
    "all of it": lambda page, _file: asks("id in", page),
    "its comments": lambda page, _file: asks("type = comment and container in", page),
    "its files": lambda page, _file: asks("type = attachment and container in", page),
}
"""Requests that fail because of one page."""
FAULTS: dict[str, Callable[[], Fault]] = {
    "500": lambda: Fault.status(500),
    "504": lambda: Fault.status(504),
    "cut body": Fault.cut_body,
    "truncated JSON": Fault.truncated,
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("part", CULPRITS)
def test_whatever_of_a_page_fails_it_is_named_and_the_others_come(
    fake: FakeConfluence, part: str, kind: str
) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(60)]
    file = fake.attach(made[7], "notes.txt", b"words")
    fake.faults.next(FAULTS[kind](), when=CULPRITS[part](made[7], file), times=None)
    store = Store()

    store.sync(source_for(fake, include_attachments=True))

    assert made[7] in {p.external_id for p in store.failed}
    assert {p.external_id for p in store.failed} <= {made[7], file}
    assert set(store.documents) - {file} == set(made) - {made[7]}
    assert store.deleted == []
    assert len(fake.requests()) < 80


def test_a_file_whose_download_fails_is_named_and_its_page_comes(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    good, bad = fake.attach(page, "good.txt", b"words"), fake.attach(page, "bad.txt", b"words")
    fake.faults.next(Fault.status(500), when=lambda seen: "bad.txt" in seen.path, times=None)
    store = Store()

    store.sync(source_for(fake, include_attachments=True))

    assert set(store.documents) == {page, good}
    assert [p.external_id for p in store.failed] == [bad]


def test_a_page_whose_restrictions_fail_stays_as_it_is_and_lets_nobody_in(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    other = fake.add_page("ENG", "Other", "<p>x</p>")
    store = Store()
    store.sync(source_for(fake))
    new = fake.add_page("ENG", "New", "<p>x</p>", parent=page)
    fake.edit(page, "<p>secret</p>")
    empty = '{"results": [], "start": 0, "limit": 200, "size": 0, "_links": {}}'
    fake.faults.next(
        Fault.status(200, body=empty, content_type="application/json"),
        when=lambda seen: seen.first("cql") == f"id in ({page})" and "body" not in seen.first("expand"),
        times=None,
    )
    plain = fake.answer

    def without_restrictions(seen: Seen) -> Answer:
        answer = plain(seen)
        for row in answer.json.get("results", []) if isinstance(answer.json, dict) else []:
            if row.get("id") == page:
                row.pop("restrictions", None)
        return answer

    fake.answer = without_restrictions  # type: ignore[method-assign]
    fake.faults.next(Fault.status(500), when=lambda seen: f"{page}/restriction" in seen.path, times=None)

    store.sync(source_for(fake))

    assert {p.external_id for p in store.failed} == {page, new}
    assert set(store.documents) == {page, other}
    assert "secret" not in store.documents[page].text
    assert store.deleted == []
    listing = source_for(fake).ids()
    assert {page, other, new} == listing.ids
    assert set(listing.versions) == {other}


@pytest.mark.parametrize("what", ["restrictions", "comments"])
def test_the_id_walk_keeps_a_page_that_breaks_its_lists(fake: FakeConfluence, what: str) -> None:
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(30)]
    whole = source_for(fake).ids()
    bad = asks("id in", made[7]) if what == "restrictions" else asks("type = comment and container", made[7])
    whole_list = "restrictions" if what == "restrictions" else "extensions.resolution"
    fake.faults.next(
        Fault.status(500),
        when=lambda seen: (
            bad(seen)
            or (
                " in (" not in seen.first("cql").replace("type in (", "").replace("space in (", "")
                and whole_list in seen.first("expand")
            )
        ),
        times=None,
    )

    listing = source_for(fake).ids()

    assert listing.complete
    assert listing.ids == whole.ids
    assert dict(listing.versions) == {k: v for k, v in whole.versions.items() if k != made[7]}


def test_it_is_read_again_with_growing_pauses_and_comes_when_it_heals(
    fake: FakeConfluence, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("connectors.web.division.time.time", clock)
    made = [fake.add_page("ENG", f"Page {n}", "<p>x</p>") for n in range(5)]
    fake.advance(hours=1)
    fake.break_page(made[2])
    store = Store()
    store.sync(source_for(fake))
    tried = []
    for minute in range(0, 240, 10):
        before = len(store.failed)
        store.sync(source_for(fake))
        tried += [minute] * (len(store.failed) - before)
        clock.now += 600

    assert tried == [10, 30, 70, 150]
    fake.mend_page(made[2])
    clock.now += 86_400
    assert store.sync(source_for(fake)) == [made[2]]
    assert store.seen() == truth(fake)
    assert store.cursor is not None
    assert "retries" not in store.cursor
