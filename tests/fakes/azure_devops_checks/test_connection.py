"""The pretended Azure DevOps and the real client: connection, login, errors, throttling."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path

import pytest
import requests

from tests.fakes.azure_devops import FakeAzureDevOps, too_many_requests
from tests.fakes.azure_devops_checks.asking import PAT, Client, Open, batch, raw, refused
from tests.fakes.server import Fault, Seen

# --- 2.1 connection


@pytest.mark.parametrize("collection", [None, "DefaultCollection"])
def test_the_client_discovers_and_reads(connect: Open, collection: str | None) -> None:
    with FakeAzureDevOps(organization="Acme", pat=PAT, server_collection=collection) as fake:
        guid = fake.add_project("Web Shop")
        item_id = fake.add_item("Web Shop", "Bug", "It crashes", tags=["ui", "urgent"])
        client = connect(fake)

        item = client.get_work_item(item_id, project="web shop")
        (project,) = connect(fake, client="core").get_projects()

    assert item.fields["System.Title"] == "It crashes"
    assert item.fields["System.Tags"] == "ui; urgent"
    assert (project.id, project.name) == (guid, "Web Shop")
    discovery = [s.path for s in fake.log if s.method == "OPTIONS"]
    assert discovery == [fake.base.lower() + "/_apis"], "discovered once, with the base in lower case"
    assert all(s.path.startswith(fake.base) for s in fake.requests("ResourceAreas"))
    version = fake.requests("workItems")[0].headers["Accept"].partition("api-version=")[2]
    assert version == ("7.0" if collection else "7.1-preview.3"), "negotiated down to what the server has"


def test_what_was_discovered_is_kept_on_disk_so_a_wrong_token_shows_late(
    connect: Open, fake: FakeAzureDevOps, tmp_path: Path
) -> None:
    from azure.devops.exceptions import AzureDevOpsAuthenticationError

    connect(fake).get_work_item_types("Web Shop")
    assert "7c8d7a76" in (tmp_path / "options.json").read_text()

    wrong = connect(fake, pat="wrong")

    assert len([s for s in fake.log if s.method == "OPTIONS"]) == 1
    with pytest.raises(AzureDevOpsAuthenticationError):
        wrong.get_work_item_types("Web Shop")


def test_another_organisation_is_a_page_and_not_json(fake: FakeAzureDevOps) -> None:
    answer = requests.get(f"{fake.address}/other/_apis/projects", auth=("", PAT), timeout=5)

    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/html; charset=utf-8")


def test_every_answer_has_ids_for_support(fake: FakeAzureDevOps) -> None:
    for answer in (raw(fake, "/_apis/projects"), raw(fake, "/_apis/nothing")):
        assert all(answer.headers[name] for name in ("X-TFS-Session", "ActivityId", "X-VSS-E2EID"))


def test_projects_come_in_pages(connect: Open, fake: FakeAzureDevOps) -> None:
    fake.add_project("Two")
    fake.add_project("Hidden")
    fake.hide_project("Hidden")

    first = raw(fake, "/_apis/projects?$top=1")
    rest = raw(fake, f"/_apis/projects?continuationToken={first.headers['X-MS-ContinuationToken']}")

    assert [p["name"] for r in (first, rest) for p in r.json()["value"]] == ["Web Shop", "Two"]
    assert "X-MS-ContinuationToken" not in rest.headers


# --- 2.2 login


def test_a_wrong_token_is_401_without_a_body_to_the_client_and_203_to_others(
    connect: Open, fake: FakeAzureDevOps
) -> None:
    from azure.devops.exceptions import AzureDevOpsAuthenticationError

    with pytest.raises(AzureDevOpsAuthenticationError):
        connect(fake, pat="wrong")

    quiet = requests.get(
        fake.url + "/_apis/projects",
        auth=("", "wrong"),
        headers={"X-TFS-FedAuthRedirect": "Suppress"},
        timeout=5,
    )
    plain = requests.get(fake.url + "/_apis/projects", auth=("", "wrong"), timeout=5)
    named = requests.get(fake.url + "/_apis/projects", auth=("me", PAT), timeout=5)
    assert (quiet.status_code, quiet.content) == (401, b"")
    assert "WWW-Authenticate" in quiet.headers
    assert plain.status_code == named.status_code == 203
    assert "Sign In" in plain.text


def test_no_credentials_lead_to_the_sign_in_page(fake: FakeAzureDevOps) -> None:
    bare = requests.get(fake.url + "/_apis/projects", allow_redirects=False, timeout=5)
    page = requests.get(bare.headers["Location"], timeout=5)

    assert bare.status_code == 302
    assert (page.status_code, page.headers["Content-Type"]) == (200, "text/html; charset=utf-8")


def test_a_sign_in_page_is_a_value_error_in_the_client(boards: Client, fake: FakeAzureDevOps) -> None:
    from azure.devops.client import DeserializationError

    fake.sign_in_html = True

    with pytest.raises(DeserializationError) as caught:
        boards.get_work_item_types("Web Shop")
    assert isinstance(caught.value, ValueError)


def test_an_expired_token_is_a_sentence(boards: Client, fake: FakeAzureDevOps) -> None:
    from azure.devops.exceptions import AzureDevOpsAuthenticationError

    fake.token = "expired"

    with pytest.raises(AzureDevOpsAuthenticationError, match="has expired"):
        boards.get_work_item_types("Web Shop")


def test_a_missing_scope_is_a_service_error_and_no_authentication_error(
    boards: Client, fake: FakeAzureDevOps
) -> None:
    fake.token = "unscoped"

    assert "TF400813" in refused(lambda: boards.get_work_item_types("Web Shop")).message
    assert raw(fake, "/_apis/projects").status_code == 200


# --- 2.3 errors


def test_errors_name_their_type_and_no_status_and_cannot_be_unpickled(
    boards: Client, fake: FakeAzureDevOps
) -> None:
    error = refused(lambda: boards.get_work_item(99))

    assert error.type_key == "WorkItemUnauthorizedAccessException"
    assert "TF401232" in error.message
    assert not hasattr(error, "status_code")
    with pytest.raises(AttributeError):
        pickle.loads(pickle.dumps(error))  # noqa: S301 (made by this test)


@pytest.mark.parametrize("bom", [False, True])
def test_errors_are_json_that_may_begin_with_a_byte_order_mark(
    boards: Client, fake: FakeAzureDevOps, bom: bool
) -> None:
    fake.bom = bom

    assert (
        refused(lambda: boards.get_work_item_types("Nowhere")).type_key
        == "ProjectDoesNotExistWithNameException"
    )
    body = raw(fake, "/Nowhere/_apis/wit/workItemTypes").content
    assert body.startswith(b"\xef\xbb\xbf") is bom


def test_an_unknown_route_is_plain_text(fake: FakeAzureDevOps) -> None:
    answer = raw(fake, "/_apis/wit/nothing")

    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")


def test_a_preview_resource_asks_for_the_word(fake: FakeAzureDevOps) -> None:
    item = fake.add_item("Web Shop", "Bug", "x")
    path = f"/Web Shop/_apis/wit/workItems/{item}/comments?api-version="

    assert raw(fake, path + "7.1").json()["typeKey"] == "VssInvalidPreviewVersionException"
    assert raw(fake, path + "7.1-preview.4").status_code == 200
    assert raw(fake, path + "9.0-preview").json()["typeKey"] == "VssVersionOutOfRangeException"
    assert (
        raw(fake, "/_apis/wit/wiql", method="POST", json={}).json()["typeKey"]
        == "VssVersionNotSpecifiedException"
    )


# --- 2.7 throttling


def test_too_many_requests_say_when_to_come_back(boards: Client, fake: FakeAzureDevOps) -> None:
    from msrest.exceptions import ClientRequestError

    fake.bulk("Web Shop", 1)
    fake.faults.next(too_many_requests("0"), times=None)

    error = refused(lambda: batch(boards, [1]))
    with pytest.raises(ClientRequestError):
        boards.get_work_item(1)
    answer = raw(fake, "/_apis/projects")

    assert (error.type_key, "TF400733" in error.message) == ("RequestBlockedException", True)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "0")
    assert len(fake.requests("workItemsBatch")) == 1, "POST is not retried"


def test_load_is_told_on_good_answers(fake: FakeAzureDevOps) -> None:
    fake.load_headers = {"Retry-After": "5", "X-RateLimit-Remaining": "0"}

    answer = raw(fake, "/_apis/projects")

    assert (answer.status_code, answer.headers["Retry-After"]) == (200, "5")
    assert "Retry-After" not in raw(fake, "/_apis/nothing").headers


def test_the_client_repeats_get_by_itself_and_post_not(connect: Open, fake: FakeAzureDevOps) -> None:
    fake.bulk("Web Shop", 1)
    client = connect(fake)
    client.config.retry_policy.retries = 3
    client.config.retry_policy.backoff_factor = 0
    fake.faults.next(Fault.status(503), when=lambda s: "workitems" in s.path.lower(), times=2)

    assert client.get_work_item(1).id == 1
    assert [s.status for s in fake.requests("workItems/1")] == [503, 503, 200]


def test_edits_can_come_between_two_requests(boards: Client, fake: FakeAzureDevOps) -> None:
    a, b = fake.bulk("Web Shop", 2)

    def edit(seen: Seen) -> None:
        if f"/{b}" in seen.path:
            fake.edit(b, title="meanwhile")

    fake.on_request(edit)
    assert [boards.get_work_item(n).rev for n in (a, b)] == [1, 2]
    fake.on_request(None)
    assert boards.get_work_item(b).rev == 2


def test_tokens_of_comments_need_encoding(fake: FakeAzureDevOps) -> None:
    item = fake.add_item("Web Shop", "Bug", "x")
    for n in range(2):
        fake.comment(item, str(n))

    path = f"/Web Shop/_apis/wit/workItems/{item}/comments"
    query = {"$top": "1", "api-version": "7.1-preview.4"}
    token = raw(fake, path, params=query).json()["continuationToken"]

    assert "+" in token
    assert base64.b64decode(token)
    assert raw(fake, path, params={**query, "continuationToken": token}).json()["count"] == 1
    assert raw(fake, f"{path}?api-version=7.1-preview.4&continuationToken={token}").status_code == 400
