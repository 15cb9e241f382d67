"""The fake Confluence: each trap of the service is there, shown with the real client where it has a part in it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import atlassian
import pytest
import requests
from atlassian.errors import ApiError, ApiValueError

from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import Fault

Json = dict[str, Any]
SDK: Any = atlassian
"""The client publishes types for a part of itself only."""
KINDS = ("cloud", "server", "server at the root")


def make(kind: str) -> FakeConfluence:
    if kind == "cloud":
        return FakeConfluence("cloud")
    return FakeConfluence("server", context="" if kind.endswith("root") else "/confluence")


@pytest.fixture(params=KINDS)
def fake(request: pytest.FixtureRequest) -> Iterator[FakeConfluence]:
    with make(request.param) as made:
        made.add_space("ENG", "Engineering")
        yield made


@pytest.fixture
def cloud() -> Iterator[FakeConfluence]:
    with FakeConfluence("cloud") as made:
        made.add_space("ENG", "Engineering")
        yield made


@pytest.fixture(params=KINDS[1:])
def server(request: pytest.FixtureRequest) -> Iterator[FakeConfluence]:
    with make(request.param) as made:
        made.add_space("ENG", "Engineering")
        yield made


def fill(fake: FakeConfluence, count: int) -> list[str]:
    """Pages, one a second."""
    made = []
    for n in range(count):
        made.append(fake.add_page("ENG", f"Page {n:03d}", f"<p>Text {n}</p>"))
        fake.advance(seconds=1)
    return made


def client(fake: FakeConfluence, **options: Any) -> Any:
    """The class that works for v1 search on both products."""
    user, secret = fake.basic
    return SDK.ConfluenceServer(fake.base, username=user, password=secret, cloud=fake.cloud, **options)


def v2(fake: FakeConfluence) -> Any:
    with pytest.warns(DeprecationWarning, match="V1 methods"):  # the client warns of itself
        return SDK.ConfluenceV2(fake.base, username=fake.email, password=fake.token, cloud=True)


def ask(fake: FakeConfluence, path: str, **params: Any) -> requests.Response:
    """A request as it is, without the client."""
    return requests.get(f"{fake.base}/{path}", params=params, auth=fake.basic, timeout=5)


def search(fake: FakeConfluence, cql: str, **params: Any) -> Json:
    answer = ask(fake, "rest/api/content/search", cql=cql, **params)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def ids(listing: Json) -> list[str]:
    return [result["id"] for result in listing["results"]]


def walk(fake: FakeConfluence, cql: str, **params: Any) -> list[str]:
    """All ids, read rightly: `next` as it was sent, below the base."""
    listing = search(fake, cql, **params)
    found = ids(listing)
    while following := listing["_links"].get("next"):
        listing = requests.get(f"{listing['_links']['base']}{following}", auth=fake.basic, timeout=5).json()
        found += ids(listing)
    return found


# -- the client's traps --------------------------------------------------------------------------------


def test_the_clients_cloud_class_asks_at_a_place_that_is_not_there(cloud: FakeConfluence) -> None:
    wrong = SDK.Confluence(cloud.base, username=cloud.email, password=cloud.token, cloud=True)
    with pytest.raises((requests.HTTPError, ApiError)):
        wrong.cql("type=page")
    assert [(seen.path, seen.status) for seen in cloud.log] == [("/wiki/content/search", 404)]
    assert not hasattr(wrong, "get_page_by_id")


def test_the_clients_server_class_reads_search_and_the_next_link_of_both(fake: FakeConfluence) -> None:
    pages = fill(fake, 30)
    right = client(fake)
    first = right.get("rest/api/content/search", params={"cql": "type=page order by created", "limit": 20})
    second = right.get(first["_links"]["next"])
    assert ids(first) + ids(second) == pages


def test_the_clients_iterators_lose_the_context_on_the_second_page(fake: FakeConfluence) -> None:
    fill(fake, 30)
    rows = client(fake).iter_cql("type=page", limit=20)
    if fake.context:
        with pytest.raises((requests.HTTPError, ApiError)):
            list(rows)
        assert [(seen.path, seen.status) for seen in fake.log][1:] == [("/rest/api/search", 404)]
    else:
        assert len(list(rows)) == 30


def test_start_is_ignored_on_cloud_and_obeyed_on_a_server(fake: FakeConfluence) -> None:
    fill(fake, 30)
    reader = client(fake)
    first = reader.cql("type=page order by created", limit=10)
    second = reader.cql("type=page order by created", start=10, limit=10)
    same = [r["content"]["id"] for r in first["results"]] == [r["content"]["id"] for r in second["results"]]
    assert same == fake.cloud


def test_the_clients_generator_stops_at_the_cap(server: FakeConfluence) -> None:
    fill(server, 70)
    rows = client(server).get_all_pages_from_space_as_generator("ENG", limit=100, expand="body.storage")
    assert len(list(rows)) == 50


def test_v2_pages_without_a_body_are_refused_with_an_empty_message(cloud: FakeConfluence) -> None:
    page = cloud.add_page("ENG", "Start")
    with pytest.raises(requests.HTTPError) as caught:
        v2(cloud).get_pages()
    answer: Any = caught.value.response
    assert (str(caught.value), answer.status_code) == ("", 400)
    assert answer.json()["errors"][0]["title"] == "body-format 'none' is not valid"
    assert [found["id"] for found in v2(cloud).get_pages(body_format="storage")] == [page]


def test_v2_has_no_search(cloud: FakeConfluence) -> None:
    with pytest.raises((requests.HTTPError, ApiError)):
        v2(cloud).search("x", cql="type=page")
    assert cloud.log[0].status == 404


def test_a_server_has_no_v2(server: FakeConfluence) -> None:
    assert ask(server, "api/v2/pages").status_code == 404


def test_the_client_returns_text_for_html_and_for_truncated_json(fake: FakeConfluence) -> None:
    fill(fake, 30)
    for fault in (Fault.html(), Fault.truncated()):
        fake.faults.next(fault)
        assert isinstance(client(fake).get("rest/api/search", params={"cql": "type=page"}), str)


def test_the_clients_iterators_end_silently_on_a_sign_in_page_and_break_on_truncated_json(
    cloud: FakeConfluence,
) -> None:
    fill(cloud, 30)
    cloud.faults.next(Fault.html())
    cloud.faults.next(Fault.truncated())
    assert list(client(cloud).iter_cql("type=page")) == []
    with pytest.raises(AttributeError):
        list(client(cloud).iter_cql("type=page"))
    with make("server at the root") as late:
        late.add_space("ENG")
        fill(late, 30)
        late.faults.next(Fault.html(), after=1)
        assert len(list(client(late).iter_cql("type=page"))) == 25


def test_the_client_returns_none_for_an_empty_body(fake: FakeConfluence) -> None:
    fake.faults.next(Fault.status(200, body="", content_type="application/json"))
    assert client(fake).get("rest/api/user/current") is None


def test_the_client_sleeps_and_asks_again_on_a_429_unless_told(fake: FakeConfluence) -> None:
    fake.faults.next(Fault.status(429, headers={"Retry-After": "0.1"}), times=4)
    with pytest.raises(requests.HTTPError):
        client(fake).get("rest/api/user/current")
    first, second = fake.log
    assert second.at - first.at >= 0.1
    with pytest.raises(requests.HTTPError):
        client(fake, retry_with_header=False).get("rest/api/user/current")
    assert len(fake.log) == 3


def test_the_clients_backoff_ends_in_an_error_without_an_answer(fake: FakeConfluence) -> None:
    fake.faults.next(Fault.status(503), times=None)
    patient = client(
        fake, backoff_and_retry=True, max_backoff_retries=2, backoff_factor=0.0, backoff_jitter=0.0
    )
    with pytest.raises(requests.exceptions.RetryError) as caught:
        patient.get("rest/api/user/current")
    assert caught.value.response is None
    assert len(fake.log) == 3


@pytest.mark.parametrize("status", [500, 502, 504])
def test_the_client_does_not_try_again_on_server_errors(cloud: FakeConfluence, status: int) -> None:
    cloud.faults.next(Fault.status(status))
    with pytest.raises(requests.HTTPError):
        client(cloud, backoff_and_retry=True).get("rest/api/user/current")
    assert len(cloud.log) == 1


def test_the_client_hides_a_missing_page_behind_an_error_of_its_own(server: FakeConfluence) -> None:
    reader = client(server, api_root="rest/api")
    with pytest.raises((ApiError, requests.HTTPError)):
        reader.get_page_by_id("1")
    with pytest.raises(ApiValueError):
        reader.cql("colour = blue")
    raw = reader.get("rest/api/content/1", advanced_mode=True)
    assert (raw.status_code, raw.json()["reason"]) == (404, "Not Found")


# -- products, login, addresses ------------------------------------------------------------------------


def test_a_wrong_context_is_a_404_in_html(fake: FakeConfluence) -> None:
    answer = requests.get(f"{fake.address}/other/rest/api/user/current", auth=fake.basic, timeout=5)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html;charset=UTF-8")


def test_login_differs_by_product(fake: FakeConfluence) -> None:
    address = f"{fake.base}/rest/api/user/current"
    bearer = {"Authorization": f"Bearer {fake.token}"}
    got = [
        requests.get(address, timeout=5).status_code,
        requests.get(address, auth=("x", "y"), timeout=5).status_code,
        requests.get(address, headers=bearer, timeout=5).status_code,
        requests.get(address, auth=fake.basic, timeout=5).status_code,
    ]
    assert got == ([403, 401, 403, 200] if fake.cloud else [401, 401, 200, 200])


def test_another_token_ends_the_login_at_once(cloud: FakeConfluence) -> None:
    before = cloud.basic
    cloud.token = "another"
    assert requests.get(f"{cloud.base}/rest/api/user/current", auth=before, timeout=5).status_code == 401


@pytest.mark.parametrize(
    "path",
    ["content", "content/{}", "content/{}/child/comment", "content/{}/label", "space", "space/ENG"],
)
def test_what_has_a_successor_is_gone_on_cloud(path: str) -> None:
    for fake, status in ((FakeConfluence(), 410), (FakeConfluence(gone=False), 200), (make("server"), 200)):
        with fake:
            fake.add_space("ENG")
            answer = ask(fake, f"rest/api/{path.format(fake.add_page('ENG', 'Start'))}")
            assert answer.status_code == status
            assert ("GoneException" in answer.text) == (status == 410)


def test_search_user_and_restrictions_stay_on_cloud(cloud: FakeConfluence) -> None:
    page = cloud.add_page("ENG", "Start")
    assert search(cloud, "type=page")["size"] == 1
    for path in ("search?cql=type=page", "user/current", f"content/{page}/restriction/byOperation/read"):
        assert ask(cloud, f"rest/api/{path}").status_code == 200


def test_the_zone_is_shown_by_cloud_unless_hidden(fake: FakeConfluence) -> None:
    def zone() -> Any:
        return ask(fake, "rest/api/user/current").json().get("timeZone", "absent")

    assert zone() == ("America/New_York" if fake.cloud else "absent")
    fake.hide_zone = True
    assert zone() == (None if fake.cloud else "absent")


def test_an_address_that_is_too_long_is_refused(fake: FakeConfluence) -> None:
    many = ", ".join(str(n) for n in range(100_000, 102_000))
    answer = ask(fake, "rest/api/content/search", cql=f"id in ({many})")
    assert answer.status_code == (414 if fake.cloud else 400)


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


# -- comments and attachments --------------------------------------------------------------------------


def test_comments_of_a_server_come_by_place_and_depth(server: FakeConfluence) -> None:
    page = server.add_page("ENG", "Start")
    foot = server.comment(page, "<p>1</p>")
    reply = server.comment(page, "<p>2</p>", parent=foot)
    inline = server.comment(page, "<p>3</p>", "inline")
    resolved = server.comment(page, "<p>4</p>", "resolved")

    def found(**params: Any) -> list[str]:
        return ids(ask(server, f"rest/api/content/{page}/child/comment", **params).json())

    assert found() == [foot, inline]
    assert found(depth="all") == [foot, reply, inline]
    assert found(depth="all", location=["footer", "inline", "resolved"]) == [foot, reply, inline, resolved]
    one = ask(
        server,
        f"rest/api/content/{page}/child/comment",
        location="resolved",
        expand="extensions.resolution,container",
    ).json()["results"][0]
    assert one["extensions"]["resolution"]["status"] == "resolved"
    assert one["container"]["id"] == page
    assert ids(ask(server, f"rest/api/content/{foot}/child/comment").json()) == [reply]


def test_comments_of_cloud_come_by_kind_and_replies_by_comment(cloud: FakeConfluence) -> None:
    page = cloud.add_page("ENG", "Start")
    foot = cloud.comment(page, "<p>1</p>")
    reply = cloud.comment(page, "<p>2</p>", parent=foot)
    cloud.comment(page, "<p>3</p>", "inline")
    resolved = cloud.comment(page, "<p>4</p>", "inline")
    cloud.edit_comment(resolved, location="resolved")
    form = {"body-format": "storage"}
    footers = ask(cloud, f"api/v2/pages/{page}/footer-comments", **form).json()["results"]
    inlines = ask(cloud, f"api/v2/pages/{page}/inline-comments").json()["results"]
    replies = ask(cloud, f"api/v2/footer-comments/{foot}/children").json()["results"]
    assert [(c["id"], c["body"]["storage"]["value"]) for c in footers] == [(foot, "<p>1</p>")]
    assert [(c["resolutionStatus"], c["body"]) for c in inlines] == [("open", {}), ("resolved", {})]
    assert [(c["id"], c["parentCommentId"]) for c in replies] == [(reply, foot)]
    cloud.delete_comment(foot)
    assert ask(cloud, f"api/v2/pages/{page}/footer-comments").json()["results"] == []
    assert reply not in cloud.contents


def test_comments_and_attachments_change_under_their_own_type(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start")
    note, file = fake.comment(page, "<p>1</p>"), fake.attach(page, "a.txt", b"one")
    fake.advance(minutes=3)
    fake.edit_comment(note, "<p>2</p>")
    fake.replace_attachment(file, b"two")
    recent = 'type in (page, comment, attachment) and lastmodified >= "2025-03-03 07:03"'
    hits = search(fake, recent, expand="container,version")["results"]
    assert {hit["id"]: hit["version"]["number"] for hit in hits} == {note: 2, file: 2}
    assert {hit["container"]["id"] for hit in hits} == {page}
    fake.detach(file)
    assert ids(search(fake, "type = attachment")) == []


def test_attachments_are_downloaded_below_the_base(fake: FakeConfluence) -> None:
    page = fake.add_page("ENG", "Start")
    fake.attach(page, "a b+c.txt", b"\xff\x00 bytes", "text/csv")
    hit = search(fake, "type = attachment", expand="extensions")["results"][0]
    assert hit["extensions"]["mediaType"] == "text/csv"
    answer = requests.get(fake.base + hit["_links"]["download"], auth=fake.basic, timeout=5)
    assert (answer.content, answer.headers["content-type"]) == (b"\xff\x00 bytes", "text/csv")
    assert len(answer.history) == (1 if fake.cloud else 0)
    assert requests.get(fake.base + hit["_links"]["download"], timeout=5).status_code in (401, 403)


def test_a_download_can_lead_to_another_host(cloud: FakeConfluence) -> None:
    page = cloud.add_page("ENG", "Start")
    cloud.attach(page, "a.txt", b"x")
    cloud.media_at = "http://127.0.0.1:9"
    link = cloud.base + search(cloud, "type = attachment")["results"][0]["_links"]["download"]
    answer = requests.get(link, auth=cloud.basic, timeout=5, allow_redirects=False)
    assert urlsplit(answer.headers["location"]).netloc == "127.0.0.1:9"


# -- v2 ------------------------------------------------------------------------------------------------


def test_v2_shows_a_page_as_cloud_does(cloud: FakeConfluence) -> None:
    top = cloud.add_page("ENG", "Top")
    page = cloud.add_page("ENG", "Start", "<p>Hello</p>", parent=top, labels=["one"])
    cloud.attach(page, "a.txt", b"abc")
    plain = ask(cloud, f"api/v2/pages/{page}").json()
    full = ask(cloud, f"api/v2/pages/{page}", **{"body-format": "storage", "include-labels": "true"}).json()
    assert (plain["body"], plain["parentId"], plain["parentType"]) == ({}, top, "page")
    assert plain["spaceId"] == cloud.spaces["ENG"].id
    assert full["body"]["storage"] == {"value": "<p>Hello</p>", "representation": "storage"}
    assert full["labels"]["results"][0]["name"] == "one"
    assert ids(ask(cloud, f"api/v2/pages/{page}/ancestors").json()) == [top]
    assert ask(cloud, f"api/v2/pages/{page}/labels").json()["results"][0]["name"] == "one"
    file = ask(cloud, f"api/v2/pages/{page}/attachments").json()["results"][0]
    assert (file["title"], file["fileSize"], file["id"][:3]) == ("a.txt", 3, "att")


def test_v2_shows_binned_pages_with_their_status_and_lists_them_only_when_asked(
    cloud: FakeConfluence,
) -> None:
    page = cloud.add_page("ENG", "Start")
    cloud.trash(page)
    assert ask(cloud, f"api/v2/pages/{page}").json()["status"] == "trashed"
    assert ask(cloud, "api/v2/pages").json()["results"] == []
    assert ids(ask(cloud, "api/v2/pages", status="trashed").json()) == [page]
    cloud.purge(page)
    missing = ask(cloud, f"api/v2/pages/{page}")
    assert (missing.status_code, missing.json()["errors"][0]["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize(
    "params",
    [{"body-format": "none"}, {"body-format": "view"}, {"limit": 251}, {"limit": 0}, {"status": "any"}],
)
def test_v2_lists_refuse_what_they_do_not_know(cloud: FakeConfluence, params: dict[str, Any]) -> None:
    answer = ask(cloud, "api/v2/pages", **params)
    assert (answer.status_code, answer.json()["errors"][0]["status"]) == (400, 400)


def test_v2_keeps_pages_and_blog_posts_apart_and_finds_spaces_by_key(cloud: FakeConfluence) -> None:
    page, post = cloud.add_page("ENG", "P"), cloud.add_page("ENG", "B", kind="blogpost")
    assert ids(ask(cloud, "api/v2/pages").json()) == [page]
    assert ids(ask(cloud, "api/v2/blogposts").json()) == [post]
    assert ask(cloud, f"api/v2/pages/{post}").status_code == 404
    cloud.add_space("OPS")
    found = ask(cloud, "api/v2/spaces", keys="ENG,NOWHERE").json()["results"]
    assert [(s["key"], s["name"]) for s in found] == [("ENG", "Engineering")]


@pytest.mark.parametrize("sort", ["id", "-id", "-modified-date", "title"])
def test_v2_lists_are_walked_by_cursor_in_any_order(cloud: FakeConfluence, sort: str) -> None:
    pages = fill(cloud, 70)
    listing = ask(cloud, "api/v2/pages", sort=sort, limit=30).json()
    found = ids(listing)
    while following := listing["_links"].get("next"):
        listing = requests.get(cloud.address + following, auth=cloud.basic, timeout=5).json()
        found += ids(listing)
    assert found == (pages[::-1] if sort.startswith("-") else pages)


def test_many_pages_of_one_minute_are_listed_in_reasonable_time() -> None:
    with FakeConfluence("cloud") as fake:
        fake.add_space("ENG")
        pages = {fake.add_page("ENG", f"Page {n}") for n in range(5000)}
        found = walk(fake, "type=page order by lastmodified asc", limit=50, expand="body.storage")
        assert (len(found), set(found)) == (5000, pages)
        spent = timedelta(seconds=fake.log[-1].until - fake.log[0].at)
        assert spent < timedelta(seconds=20)
