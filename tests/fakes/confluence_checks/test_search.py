"""Lists of the fake Confluence: their pages, their queries and their order."""

from __future__ import annotations

import pytest
import requests

from tests.fakes.confluence import FakeConfluence
from tests.fakes.confluence_checks.asking import (
    ask,
    fill,
    ids,
    make,
    search,
    walk,
)

# -- paging --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expand", "cap"), [("body.storage", 50), ("body.export_view", 25), ("version", 200), ("", 1000)]
)
def test_the_limit_is_lowered_without_a_word(expand: str, cap: int) -> None:
    with make("server") as fake:
        fake.add_space("ENG")
        for n in range(cap + 5):
            fake.add_page("ENG", f"Page {n}")
        listing = search(fake, "type=page", limit=2000, expand=expand)
        assert (listing["limit"], listing["size"]) == (cap, cap)
        assert "next" in listing["_links"]


def test_next_leaves_out_the_context_in_v1_and_holds_it_in_v2(cloud: FakeConfluence) -> None:
    fill(cloud, 30)
    old = search(cloud, "type=page")["_links"]["next"]
    answer = ask(cloud, "api/v2/pages")
    new = answer.json()["_links"]["next"]
    assert old.startswith("/rest/api/content/search?")
    assert new.startswith("/wiki/api/v2/pages?")
    assert answer.links["next"]["url"] == new


def test_a_walk_by_next_finds_every_page_once(fake: FakeConfluence) -> None:
    pages = fill(fake, 130)
    assert walk(fake, "type=page order by lastmodified asc", limit=50, expand="body.storage") == pages


def test_cursors_have_letters_that_careless_encoding_spoils(cloud: FakeConfluence) -> None:
    fill(cloud, 30)
    following = search(cloud, "type=page")["_links"]["next"]
    cursor = following.split("cursor=")[1].split("&")[0]
    assert "%2B" in cursor and "%2F" in cursor and "%3D" in cursor  # noqa: PT018 (one idea: all three)
    for spoilt in (cursor.replace("%2B", "+"), cursor.replace("%", "%25")):
        link = cloud.base + following.replace(cursor, spoilt)
        assert requests.get(link, auth=cloud.basic, timeout=5).status_code == 400


def test_a_cursor_is_refused_for_another_query_and_when_it_is_old(cloud: FakeConfluence) -> None:
    fill(cloud, 30)
    following = cloud.base + search(cloud, "type=page")["_links"]["next"]
    other = following.replace("type%3Dpage", "type%3Dcomment")
    assert requests.get(following, auth=cloud.basic, timeout=5).status_code == 200
    assert requests.get(other, auth=cloud.basic, timeout=5).status_code == 400
    cloud.expire_cursors()
    assert requests.get(following, auth=cloud.basic, timeout=5).status_code == 400
    assert len(walk(cloud, "type=page")) == 30


def test_a_server_can_count_too_little_in_next(server: FakeConfluence) -> None:
    pages = fill(server, 120)
    server.undercount = True
    found = walk(server, "type=page order by created", limit=100, expand="body.storage")
    assert len(found) > len(pages)
    assert set(found) == set(pages)


def test_an_empty_page_with_a_link_to_more_can_be_had(fake: FakeConfluence) -> None:
    fill(fake, 30)
    fake.empty_page_at = 20
    first = search(fake, "type=page", limit=20)
    second = requests.get(fake.base + first["_links"]["next"], auth=fake.basic, timeout=5).json()
    assert (first["size"], second["size"]) == (20, 0)
    assert "next" in second["_links"]


def test_an_edit_between_two_pages_makes_offsets_skip_and_cursors_not(fake: FakeConfluence) -> None:
    pages = fill(fake, 40)
    fake.advance(minutes=1)

    def edit_the_first(_seen: object) -> None:
        fake.on_request(None)
        fake.edit(pages[0], "<p>changed</p>")

    fake.on_request(edit_the_first)
    found = walk(fake, "type=page order by lastmodified asc", limit=20)
    assert (set(pages) - set(found) == set()) == fake.cloud
    assert found.count(pages[0]) == 2


def test_without_an_order_there_is_none_to_rely_on(fake: FakeConfluence) -> None:
    pages = fill(fake, 20)
    found = ids(search(fake, "type=page"))
    assert sorted(found) == sorted(pages)
    assert found not in (pages, pages[::-1])


def test_a_service_can_suddenly_list_a_tenth(fake: FakeConfluence) -> None:
    pages = fill(fake, 200)
    fake.lists_only(0.1)
    some = walk(fake, "type=page order by created", limit=50)
    assert 5 <= len(some) <= 40
    fake.lists_only(1)
    assert walk(fake, "type=page order by created", limit=50) == pages


# -- CQL -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "literal",
    ["2025-03-03 12:00:00", "2025-03-03T12:00", "2025-03-03 12:00Z", "2025-3-3", "yesterday", "2025-02-30"],
)
def test_dates_with_seconds_t_or_zone_are_refused(cloud: FakeConfluence, literal: str) -> None:
    answer = ask(cloud, "rest/api/content/search", cql=f'type=page and lastmodified >= "{literal}"')
    assert answer.status_code == 400
    assert "BadRequestException: Could not parse cql" in answer.json()["message"]


@pytest.mark.parametrize("literal", ["2025-03-03 07:00", "2025/03/03 07:00", "2025-03-03", "2025/03/03"])
def test_dates_are_read_in_the_zone_of_the_account(fake: FakeConfluence, literal: str) -> None:
    page = fake.add_page("ENG", "Start")  # 12:00:30 UTC, 07:00:30 in New York
    assert ids(search(fake, f'lastmodified >= "{literal}"')) == [page]
    assert ids(search(fake, 'lastmodified >= "2025-03-03 07:01"')) == []


def test_greater_loses_the_rest_of_its_minute(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start")
    assert ids(search(fake, 'lastmodified > "2025-03-03 07:00"')) == []
    assert ids(search(fake, 'lastmodified > "2025-03-03 06:59"')) == [page]


@pytest.mark.parametrize(
    "text",
    [
        "colour = blue",
        "type = page order by colour",
        "type ~ page",
        "type = page and",
        "(type = page",
        "type = page type = page",
        "space = ORDER",
        "space = ~ann",
        "type = paeg",
        "title >= a",
        "lastmodified ~ x",
        'title = "open',
        "",
    ],
)
def test_a_query_that_is_none_is_refused(cloud: FakeConfluence, text: str) -> None:
    assert ask(cloud, "rest/api/content/search", cql=text).status_code == 400


def test_status_is_no_field_on_a_server(fake: FakeConfluence) -> None:
    answer = ask(fake, "rest/api/content/search", cql="status = current")
    assert answer.status_code == (200 if fake.cloud else 400)


def test_queries_find_what_they_name(cloud: FakeConfluence) -> None:
    cloud.add_space("OPS")
    a = cloud.add_page("ENG", "Alpha notes", labels=["x"], creator="ann")
    b = cloud.add_page("ENG", "Beta", parent=a, labels=["y"], creator="ben")
    c = cloud.add_page("OPS", "Gamma", kind="blogpost", creator="ben")
    d = cloud.add_page("ENG", "Delta", parent=b)
    note = cloud.comment(a, "<p>So</p>")
    file = cloud.attach(a, "a.txt", b"x")
    expected = {
        "type = page": {a, b, d},
        "TYPE in (page, blogpost) AND space in ('ENG', \"OPS\")": {a, b, c, d},
        "type in (comment, attachment)": {note, file},
        'space = "OPS"': {c},
        "space not in (ENG)": {c},
        f"id in ({a}, {file})": {a, file},
        f"ancestor = {a}": {b, d},
        f"ancestor in ({b})": {d},
        f"parent = {a}": {b},
        f"container = {a}": {note, file},
        "label in (x, y)": {a, b},
        "type = page and label != x": {b, d},
        'title = "Beta"': {b},
        'title ~ "alph*"': {a, note},
        f'creator = "{cloud.user_id("ben")}" and type = page': {b},
        "not (type = page or type = comment)": {c, file},
        'created >= "2025-03-03" and type = blogpost': {c},
        'created >= "2025-03-04"': set(),
        "space = NOWHERE": set(),
    }
    assert {text: set(ids(search(cloud, text))) for text in expected} == expected


def test_orders_are_kept_both_ways(cloud: FakeConfluence) -> None:
    b, a, c = (cloud.add_page("ENG", title) for title in ("b", "ab", "abc"))
    assert ids(search(cloud, "type=page order by title")) == [a, c, b]
    assert ids(search(cloud, "type=page order by title desc")) == [b, c, a]
    assert ids(search(cloud, "type=page order by id desc")) == [c, a, b]
    cloud.advance(minutes=1)
    cloud.edit(b, "<p>x</p>")
    assert ids(search(cloud, "type=page order by lastmodified desc, id asc")) == [b, a, c]


def test_archived_spaces_need_to_be_asked_for(fake: FakeConfluence) -> None:
    fake.add_space("OLD", archived=True)
    page = fake.add_page("OLD", "Old")
    assert ids(search(fake, "type=page")) == []
    assert ids(search(fake, "type=page", includeArchivedSpaces="true")) == [page]
