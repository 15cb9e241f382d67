"""Comments, attachments, and the lists of version 2 of the fake Confluence."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.fakes.confluence import FakeConfluence
from tests.fakes.confluence_checks.asking import (
    ask,
    fill,
    ids,
    search,
    walk,
)

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
