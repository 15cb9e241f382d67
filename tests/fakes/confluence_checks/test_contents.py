"""What the fake Confluence shows of pages, and what becomes of them."""

from __future__ import annotations

from typing import Any

from tests.fakes.confluence import FakeConfluence
from tests.fakes.confluence_checks.asking import (
    ask,
    fill,
    ids,
    search,
    walk,
)

# -- shapes --------------------------------------------------------------------------------------------


def test_only_what_is_expanded_is_there(fake: FakeConfluence) -> None:
    top = fake.add_page("ENG", "Top")
    page = fake.add_page("ENG", "Start", "<p>Hello</p>", parent=top, labels=["one"])
    plain = search(fake, f"id = {page}")["results"][0]
    assert set(plain) == {"id", "type", "status", "title", "_expandable", "_links"}
    assert "base" not in plain["_links"]
    expand = "body.storage,version,ancestors,metadata.labels,space,history.lastUpdated"
    full = search(fake, f"id = {page}", expand=expand)["results"][0]
    assert full["body"]["storage"]["value"] == "<p>Hello</p>"
    assert [a["title"] for a in full["ancestors"]] == ["Top"]
    assert [label["name"] for label in full["metadata"]["labels"]["results"]] == ["one"]
    assert full["space"]["name"] == "Engineering"
    assert full["history"]["lastUpdated"]["number"] == full["version"]["number"] == 1
    assert "restrictions" in full["_expandable"]


def test_times_and_people_differ_by_product(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start")
    version = search(fake, f"id = {page}", expand="version")["results"][0]["version"]
    if fake.cloud:
        assert version["when"] == "2025-03-03T12:00:30.123Z"
        assert version["by"]["accountId"] == fake.user_id("ann")
    else:
        assert version["when"] == "2025-03-03T14:00:30.123+02:00"
        assert (version["by"]["username"], version["by"]["userKey"]) == ("ann", "key-of-ann")


def test_wrapped_hits_need_the_prefix_to_expand(fake: FakeConfluence) -> None:
    fake.add_page("ENG", "Start")
    bare = ask(fake, "rest/api/search", cql="type=page", expand="body.storage").json()
    full = ask(fake, "rest/api/search", cql="type=page", expand="content.body.storage").json()
    assert "body" not in bare["results"][0]["content"]
    assert "body" in full["results"][0]["content"]
    assert full["totalSize"] == 1


def test_restrictions_show_users_and_groups_when_both_are_expanded(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start", restricted_to=[("user", "bot"), ("group", "staff")])
    path = "restrictions.read.restrictions"
    half = search(fake, f"id = {page}", expand=f"{path}.user")["results"][0]["restrictions"]["read"]
    full = search(fake, f"id = {page}", expand=f"{path}.user,{path}.group")["results"][0]["restrictions"]
    assert set(half["restrictions"]) == {"user", "_expandable"}
    who = full["read"]["restrictions"]
    assert who["user"]["results"][0]["accountId" if fake.cloud else "userKey"] == fake.user_id("bot")
    assert who["group"]["results"][0]["name"] == "staff"
    place = f"rest/api/content/{page}/restriction/byOperation"
    one = ask(fake, f"{place}/read", expand="restrictions.group").json()
    both = ask(fake, place, expand="read.restrictions.group").json()
    assert one["restrictions"]["group"]["size"] == both["read"]["restrictions"]["group"]["size"] == 1
    assert "user" not in one["restrictions"]


def test_the_address_for_people_is_base_and_webui(fake: FakeConfluence) -> None:
    fake.add_page("ENG", "Start here")
    listing = search(fake, "type=page")
    webui = listing["results"][0]["_links"]["webui"]
    assert listing["_links"]["base"] == fake.base
    assert not fake.context or not webui.startswith(fake.context)


def test_a_single_page_of_a_server_has_history_space_and_version(server: FakeConfluence) -> None:
    page = server.add_page("ENG", "Start")
    shown = ask(server, f"rest/api/content/{page}").json()
    assert {"history", "space", "version"} <= set(shown)
    assert "body" not in shown
    assert shown["_links"]["base"] == server.base


def test_a_server_shows_binned_pages_only_to_those_who_name_the_status(server: FakeConfluence) -> None:
    top = server.add_page("ENG", "Top")
    page = server.add_page("ENG", "Start", parent=top)
    note = server.comment(page, "<p>So</p>")
    assert ids(ask(server, f"rest/api/content/{top}/child/page").json()) == [page]
    server.trash(page)
    assert ids(ask(server, f"rest/api/content/{top}/child/page").json()) == []
    for gone in (page, note, "1"):
        answer = ask(server, f"rest/api/content/{gone}")
        assert (answer.status_code, answer.json()["statusCode"]) == (404, 404)
    assert ask(server, f"rest/api/content/{page}", status="any").json()["status"] == "trashed"
    assert ids(ask(server, "rest/api/content", spaceKey="ENG").json()) == [top]
    assert ids(ask(server, "rest/api/content", spaceKey="ENG", status="trashed").json()) == [page]
    assert ask(server, "rest/api/content", spaceKey="NOWHERE").status_code == 404


# -- what changes, and what shows of it ----------------------------------------------------------------


def version_of(fake: FakeConfluence, page: str) -> tuple[int, str]:
    version = search(fake, f"id = {page}", expand="version")["results"][0]["version"]
    return version["number"], version["when"]


def test_moves_labels_restrictions_and_comments_leave_the_version_alone(fake: FakeConfluence) -> None:
    fake.add_space("OPS")
    top = fake.add_page("ENG", "Top")
    page = fake.add_page("ENG", "Start")
    child = fake.add_page("ENG", "Child", parent=page)
    before = version_of(fake, page)
    fake.advance(minutes=5)
    fake.move(page, parent=top)
    fake.label(page, "new")
    fake.restrict(page, [("user", "bot")])
    fake.comment(page, "<p>So</p>")
    fake.attach(page, "a.txt", b"x")
    fake.move(page, space="OPS")
    assert version_of(fake, page) == before
    assert set(ids(search(fake, "space = OPS and type = page"))) == {page, child}
    fake.edit(page, title="Other")
    assert version_of(fake, page)[0] == 2
    assert version_of(fake, page) > before


def test_trash_leaves_children_and_restore_makes_a_version(fake: FakeConfluence) -> None:
    top = fake.add_page("ENG", "Top")
    page = fake.add_page("ENG", "Start", parent=top)
    child = fake.add_page("ENG", "Child", parent=page)
    note, file = fake.comment(page, "<p>So</p>"), fake.attach(page, "a.txt", b"x")
    fake.trash(page)
    assert set(walk(fake, "type in (page, comment, attachment)")) == {top, child}
    shown = search(fake, f"id = {child}", expand="ancestors,version")["results"][0]
    assert [a["id"] for a in shown["ancestors"]] == [top]
    assert shown["version"]["number"] == 1
    fake.restore(page)
    assert set(walk(fake, "type in (page, comment, attachment)")) == {top, child, page, note, file}
    assert version_of(fake, page)[0] == 2


def test_archived_draft_and_purged_pages_are_not_in_search(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start")
    fake.add_page("ENG", "Draft", status="draft")
    gone = fake.add_page("ENG", "Gone")
    below = fake.add_page("ENG", "Below", parent=gone)
    fake.purge(gone)
    fake.archive(page)
    assert ids(search(fake, "type = page")) == [below]
    fake.unarchive(page)
    assert set(ids(search(fake, "type = page"))) == {page, below}
    assert version_of(fake, page)[0] == 1
    assert [c.id for c in fake.living()] == [page, below]


def test_a_restriction_above_hides_a_page_from_all_but_those_named(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start", restricted_to=[("user", "ann")])
    child = fake.add_page("ENG", "Child", parent=page)
    note = fake.comment(child, "<p>So</p>")
    place = "api/v2/pages" if fake.cloud else "rest/api/content"
    assert walk(fake, "type in (page, comment)") == []
    assert ask(fake, f"{place}/{child}").status_code == 404
    assert ask(fake, f"rest/api/content/{child}/restriction/byOperation").status_code == 404
    fake.restrict(page, [("group", "staff")])
    fake.groups.add("staff")
    assert set(walk(fake, "type in (page, comment)")) == {page, child, note}
    assert ask(fake, f"{place}/{child}").status_code == 200


def test_an_invisible_space_does_not_exist(fake: FakeConfluence) -> None:
    fake.add_space("HR", visible=False)
    page = fake.add_page("HR", "Secret")
    assert ids(search(fake, f"id = {page}")) == []
    if fake.cloud:
        assert ask(fake, "api/v2/spaces", keys="HR").json()["results"] == []
    else:
        assert ask(fake, "rest/api/space/HR").status_code == 404


def test_the_index_lags_and_keeps_the_old_time(fake: FakeConfluence) -> None:
    old = fake.add_page("ENG", "Old")
    fake.advance(minutes=10)
    fake.hide_from_index(minutes=5)
    new = fake.add_page("ENG", "New")
    fake.edit(old, "<p>changed</p>")
    recent = 'lastmodified >= "2025-03-03 07:10" order by id'
    assert ids(search(fake, "type = page")) == [old]
    assert ids(search(fake, recent)) == []
    fake.hide_from_index(minutes=0)
    fake.edit(old, "<p>again</p>")  # does not overtake what waits
    assert ids(search(fake, recent)) == []
    fake.advance(minutes=5)
    assert ids(search(fake, recent)) == [old, new]


def test_a_broken_page_breaks_every_answer_that_holds_its_body(fake: FakeConfluence) -> None:
    pages = fill(fake, 10)
    fake.break_page(pages[3])

    def status(**params: Any) -> int:
        return ask(fake, "rest/api/content/search", expand="body.storage", **params).status_code

    assert status(cql="type=page") == 500
    assert status(cql=f"id = {pages[3]}") == 500
    assert status(cql=f"type=page and id != {pages[3]}") == 200
    assert len(search(fake, "type=page", expand="version")["results"]) == 10
    if fake.cloud:
        place = f"api/v2/pages/{pages[3]}"
        assert ask(fake, place, **{"body-format": "storage"}).status_code == 500
        assert ask(fake, place).status_code == 200
    fake.mend_page(pages[3])
    assert status(cql="type=page") == 200
