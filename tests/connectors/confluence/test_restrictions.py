"""Who may read a page travels with it; one whose readers cannot be found out stays out."""

from __future__ import annotations

from collections import Counter
from typing import Any

from connectors.confluence.client import ConfluenceClient
from connectors.confluence.document import Content
from connectors.confluence.options import LabelFilter
from connectors.confluence.reader import PageReader
from pipeline.documents import Json
from tests.connectors.confluence.world import Store, options_for, source_for
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault


def _subjects(fake: FakeConfluence, *names: str) -> list[str]:
    users = [f"user:{fake.user_id(n) if fake.cloud else n}" for n in names]
    return sorted(["group:confluence-users", *users])


def _synced(fake: FakeConfluence, **changes: Any) -> Store:
    store = Store()
    store.sync(source_for(fake, **changes))
    listing = source_for(fake, **changes).ids()
    assert listing.ids == set(store.documents)
    assert dict(listing.versions) == {i: d.fingerprint for i, d in store.documents.items()}
    return store


def _tree(fake: FakeConfluence) -> tuple[str, str, str, str]:
    """Open, below it restricted, below it open, below it restricted to others as well."""
    top = fake.add_page("ENG", "Top", "<p>x</p>")
    team = fake.add_page("ENG", "Team", "<p>x</p>", parent=top)
    plan = fake.add_page("ENG", "Plan", "<p>x</p>", parent=team)
    pay = fake.add_page("ENG", "Pay", "<p>x</p>", parent=plan)
    fake.restrict(team, [("group", "confluence-users"), ("user", "ann")])
    fake.restrict(pay, [("user", "bot"), ("group", "confluence-users")])
    return top, team, plan, pay


def test_restricted_pages_and_all_below_them_stay_out_if_that_is_asked_for(fake: FakeConfluence) -> None:
    top, *_ = _tree(fake)

    assert set(_synced(fake, include_restricted=False).documents) == {top}


def test_layers_go_from_each_restricted_page_above_to_the_page(fake: FakeConfluence) -> None:
    top, team, plan, pay = _tree(fake)

    documents = _synced(fake).documents

    outer, inner = _subjects(fake, "ann"), _subjects(fake, "bot")
    assert "acl" not in documents[top].metadata
    assert documents[team].metadata["acl"] == [outer]
    assert documents[plan].metadata["acl"] == [outer]
    assert documents[pay].metadata["acl"] == [outer, inner]


def test_readers_of_a_source_pass_its_own_layers_too(fake: FakeConfluence) -> None:
    top, team, *_ = _tree(fake)

    documents = _synced(fake, metadata={"acl": [["group:hr"]]}).documents

    assert documents[top].metadata["acl"] == [["group:hr"]]
    assert documents[team].metadata["acl"] == [["group:hr"], _subjects(fake, "ann")]


def test_pages_the_account_may_not_see_do_not_exist(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Secret", "<p>x</p>", restricted_to=[("user", "ann")])

    assert page not in _synced(fake).documents


def test_a_page_that_becomes_restricted_goes_when_it_is_seen(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Page", "<p>x</p>")
    below = fake.add_page("ENG", "Below", "<p>x</p>", parent=page)
    fake.advance(hours=1)
    store = Store()
    store.sync(source_for(fake, include_restricted=False))
    fake.restrict(page, [("user", "bot")])
    fake.edit(below, "<p>y</p>")

    store.sync(source_for(fake, include_restricted=False))
    assert set(store.documents) == {page}
    store.take(source_for(fake, include_restricted=False).read([page]), cursors=False)
    assert store.documents == {}
    assert page in store.deleted


def test_a_change_of_restrictions_changes_the_fingerprints_of_all_below(fake: FakeConfluence) -> None:
    top, team, plan, pay = _tree(fake)
    store = _synced(fake)
    fake.restrict(team, [("user", "bot")])

    changed = store.reconcile(source_for(fake))

    assert sorted(changed) == sorted([team, plan, pay])
    assert store.documents[plan].metadata["acl"][0] == [
        f"user:{fake.user_id('bot') if fake.cloud else 'bot'}"
    ]
    fake.unrestrict(team)
    store.reconcile(source_for(fake))
    assert "acl" not in store.documents[plan].metadata
    assert top in store.documents


def test_unclear_restrictions_let_nobody_in(fake: FakeConfluence) -> None:
    top = fake.add_page("ENG", "Top", "<p>x</p>")
    page = fake.add_page("ENG", "Page", "<p>x</p>", parent=top)
    # Search does not know the page above, and its restrictions are not shown.
    empty = '{"results": [], "start": 0, "limit": 200, "size": 0, "_links": {}}'
    about_top = f"id in ({top})"
    for answer in (empty, empty):
        fake.faults.next(
            Fault.status(200, body=answer, content_type="application/json"),
            when=lambda seen: seen.first("cql") == about_top,
        )
    for status in (404, 403):
        fake.faults.next(
            Fault.status(status, body='{"message": "no"}', content_type="application/json"),
            when=lambda seen: "/restriction/" in seen.path,
        )

    for include in (True, False):
        source = source_for(fake, include_restricted=include)
        (told,) = source.read([page])
        assert (told.documents, told.deleted) == ((), (page,))
    assert fake.faults.waiting == 0


def test_restrictions_that_search_does_not_show_are_asked_for_one_by_one(fake: FakeConfluence) -> None:
    top = fake.add_page("ENG", "Top", "<p>x</p>", restricted_to=[("group", "confluence-users")])
    page = fake.add_page("ENG", "Page", "<p>x</p>", parent=top)
    empty = '{"results": [], "start": 0, "limit": 200, "size": 0, "_links": {}}'
    about_top = f"id in ({top})"
    fake.faults.next(
        Fault.status(200, body=empty, content_type="application/json"),
        when=lambda seen: seen.first("cql") == about_top,
    )

    documents = [d for p in source_for(fake).read([page]) for d in p.documents]

    assert documents[0].metadata["acl"] == [["group:confluence-users"]]


def test_each_walk_asks_anew_about_pages_above_that_are_not_its_own(fake: FakeConfluence) -> None:
    top = fake.add_page("ENG", "Top", "<p>x</p>")
    page = fake.add_page("ENG", "Page", "<p>x</p>", parent=top)
    source = source_for(fake, ancestors=(page,), include_restricted=False)
    assert source.ids().ids == {page}

    fake.restrict(top, [("user", "bot")])

    assert source.ids().ids == set()


def test_a_page_above_without_an_id_lets_nobody_in(fake: FakeConfluence) -> None:
    restrictions = PageReader(ConfluenceClient(options_for(fake)), options_for(fake)).restrictions
    open_to_all: Json = {"read": {"restrictions": {"user": {"results": []}, "group": {"results": []}}}}
    row = {"id": "1", "space": {"key": "ENG"}, "ancestors": [{"title": "?"}], "restrictions": open_to_all}
    page = Content.model_validate(row)
    restrictions.load([page])

    assert restrictions.layers(page) == [["nobody"]]
    assert restrictions.layers(Content.model_validate({**row, "id": "2"}))[-1] == ["nobody"]


def test_a_subject_without_a_name_lets_nobody_in(fake: FakeConfluence) -> None:
    restrictions = PageReader(ConfluenceClient(options_for(fake)), options_for(fake)).restrictions
    hidden = {
        "read": {"restrictions": {"user": {"results": [{"type": "unknown"}]}, "group": {"results": []}}}
    }
    page = Content.model_validate({"id": "1", "space": {"key": "ENG"}, "restrictions": hidden})
    restrictions.load([page])

    assert restrictions.layers(page) == [["nobody"]]


def test_what_is_left_out_is_counted_by_reason(fake: FakeConfluence) -> None:
    _tree(fake)
    fake.add_page("ENG", "Draft", "<p>x</p>", labels=["draft"])
    fake.add_page("ENG", "Empty", "")
    source = source_for(fake, labels=LabelFilter(exclude=("draft",)), include_restricted=False)

    pages = list(source.pages(None))

    seen = {"not open to everybody": 3, "with a label of labels.exclude": 1}
    assert sum((page.all_left_out for page in pages), Counter()) == {**seen, "holds no text": 1}
    assert source.ids().left_out == seen


def test_unreadable_restrictions_let_nothing_in_and_say_so(fake: FakeConfluence) -> None:
    for n in range(7):
        fake.add_page("ENG", f"Page {n}", "<p>x</p>")
    fake.hide_restrictions = True
    source = source_for(fake)

    pages = list(source.pages(None))

    assert not any(page.documents for page in pages)
    (reason,) = {reason for page in pages for reason in page.left_out}
    assert reason.startswith("restrictions unreadable, because Confluence answered 403")
    assert sum(page.left_out.get(reason, 0) for page in pages) == 7
    assert source.ids().left_out == {reason: 7}
    (finding,) = [f for f in source.check() if not f.ok]
    assert f"of the newest 7 0 are read; excluded are: {reason}: 7" in finding.detail
    assert "restrictions" in finding.fix
