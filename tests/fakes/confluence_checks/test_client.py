"""What the real client makes of the service: its traps, its errors, and where each product answers."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from atlassian.errors import ApiError, ApiValueError

from tests.fakes.confluence import FakeConfluence
from tests.fakes.confluence_checks.asking import (
    SDK,
    ask,
    client,
    fill,
    ids,
    make,
    search,
    v2,
)
from tests.fakes.server import Fault

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
