"""The pretended Azure DevOps does to the real client what the real service does."""

from __future__ import annotations

import base64
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests

from tests.fakes.azure_devops import FakeAzureDevOps, too_many_requests
from tests.fakes.server import Fault, Seen

PAT = "secret-pat"
Client = Any
Open = Callable[..., Client]


def _loaded() -> dict[str, ModuleType]:
    """Modules of the library; its errors stay, so that `except` means the same classes before and after."""
    kept = {"azure.devops", "azure.devops.exceptions"}
    return {n: m for n, m in sys.modules.items() if n.startswith("azure.devops") and n not in kept}


def _become(modules: dict[str, ModuleType]) -> None:
    """Let these be what the library consists of."""
    for name in _loaded():
        del sys.modules[name]
        parent, _, last = name.rpartition(".")
        vars(sys.modules.get(parent, ModuleType(""))).pop(last, None)
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent in sys.modules and last != "_file_cache":
            setattr(sys.modules[parent], last, module)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The library as it comes, with its cache on disk, which our connector takes away for the whole process."""
    os.environ.setdefault("AZURE_DEVOPS_CACHE_DIR", str(tmp_path_factory.mktemp("azure-devops")))
    before = _loaded()
    _become({})
    import azure.devops.connection  # noqa: F401 (it makes its cache folder while it is imported)

    yield
    _become(before)


@pytest.fixture
def connect(sdk: None, tmp_path: Path) -> Iterator[Open]:
    """Opens the client of the boards (or another), which remembers nothing of earlier servers."""
    from azure.devops import _file_cache
    from azure.devops.client import Client as SdkClient
    from azure.devops.connection import Connection
    from msrest.authentication import BasicAuthentication

    def forget() -> None:
        SdkClient._locations_cache.clear()
        for cache in (_file_cache.OPTIONS_CACHE, _file_cache.RESOURCE_CACHE):
            cache.data = {}
            cache.file_name = str(tmp_path / Path(cache.file_name).name)

    forget()
    opened = []

    def connect(fake: FakeAzureDevOps, pat: str = PAT, client: str = "work_item_tracking") -> Client:
        connection = Connection(base_url=fake.url, creds=BasicAuthentication("", pat))
        made = getattr(connection.clients_v7_1, f"get_{client}_client")()
        made.config.retry_policy.retries = 0
        opened.append(made)
        return made

    yield connect
    forget()


@pytest.fixture
def fake() -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(organization="Acme", pat=PAT) as made:
        made.add_project("Web Shop")
        yield made


@pytest.fixture
def boards(connect: Open, fake: FakeAzureDevOps) -> Client:
    return connect(fake)


def model(name: str, **values: object) -> Any:
    from azure.devops.v7_1.work_item_tracking import models

    return getattr(models, name)(**values)


def refused(call: Callable[[], object]) -> Any:
    """The error of the service itself, as the client raises it."""
    from azure.devops.exceptions import AzureDevOpsServiceError

    with pytest.raises(AzureDevOpsServiceError) as caught:
        call()
    return caught.value


def raw(fake: FakeAzureDevOps, path: str, *, method: str = "GET", **more: Any) -> requests.Response:
    return requests.request(method, fake.url + path, auth=("", PAT), allow_redirects=False, timeout=5, **more)


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


# --- 2.5 items


def batch(client: Client, ids: list[int], **more: object) -> Any:
    return client.get_work_items_batch(model("WorkItemBatchGetRequest", ids=ids, **more))


def test_200_items_and_no_more(boards: Client, fake: FakeAzureDevOps) -> None:
    ids = list(fake.bulk("Web Shop", 201))

    assert [i.id for i in batch(boards, ids[:200])] == ids[:200]
    assert refused(lambda: batch(boards, ids)).type_key == "WorkItemPageSizeExceededException"
    assert "VS403474" in refused(lambda: boards.get_work_items(ids)).message


def test_one_unreadable_item_fails_the_batch_or_is_none(boards: Client, fake: FakeAzureDevOps) -> None:
    ids = list(fake.bulk("Web Shop", 3))
    fake.forbid(ids[1])

    found = batch(boards, ids, error_policy="omit")

    assert refused(lambda: batch(boards, ids)).type_key == "WorkItemUnauthorizedAccessException"
    assert [i and i.id for i in found] == [ids[0], None, ids[2]]


def test_fields_and_expand_exclude_each_other(boards: Client, fake: FakeAzureDevOps) -> None:
    ids = list(fake.bulk("Web Shop", 1))

    error = refused(lambda: batch(boards, ids, fields=["System.Id"], expand="relations"))

    assert error.type_key == "ConflictingParametersException"
    (item,) = batch(boards, ids, fields=["System.Id", "system.rev"])
    assert item.fields == {"System.Id": ids[0], "System.Rev": 1}


def test_a_long_address_is_refused_where_a_post_is_not(fake: FakeAzureDevOps) -> None:
    ids = ",".join(str(n) for n in fake.bulk("Web Shop", 200))

    assert raw(fake, f"/_apis/wit/workitems?ids={ids}").status_code == 200
    long = raw(fake, f"/_apis/wit/workitems?ids={ids}&fields={','.join(['System.Title'] * 300)}")
    assert (long.status_code, long.headers["Content-Type"]) == (414, "text/html; charset=utf-8")


def test_an_item_shows_what_it_has_and_leaves_out_what_is_empty(
    boards: Client, fake: FakeAzureDevOps
) -> None:
    epic = fake.add_item("Web Shop", "Epic", "All")
    item_id = fake.add_item("Web Shop", "Bug", "x", assigned_to="Ann Lee <ann@acme.example>", description="")
    fake.link(item_id, epic, "parent")
    fake.attach(item_id, "Hyperlink", "https://example.org/a")

    plain = boards.get_work_item(item_id)
    full = boards.get_work_item(item_id, expand="all")

    assert "System.Description" not in plain.fields
    assert "System.Id" not in plain.fields
    assert plain.fields["System.AssignedTo"]["uniqueName"] == "ann@acme.example"
    assert plain.fields["System.CreatedDate"] == "2025-03-04T09:30:00.147Z"
    assert plain.relations is None
    assert plain._links is None
    assert "/_apis/wit/workItems/" in plain.url
    assert [(r.rel, r.url.rpartition("/")[2]) for r in full.relations] == [
        ("System.LinkTypes.Hierarchy-Reverse", str(epic)),
        ("Hyperlink", "a"),
    ]
    assert full.fields["System.Parent"] == epic
    assert full._links.additional_properties["html"]["href"].endswith(f"/_workitems/edit/{item_id}")
    (child,) = boards.get_work_item(epic, expand="relations").relations
    assert (child.rel, child.attributes["name"]) == ("System.LinkTypes.Hierarchy-Forward", "Child")


def test_the_format_of_a_field_is_known_to_the_service_and_not_to_the_client(
    boards: Client, fake: FakeAzureDevOps
) -> None:
    markdown = fake.add_item("Web Shop", "Task", "x", description="**a**", markdown=True)
    html = fake.add_item("Web Shop", "Task", "x", description="<b>a</b>")

    first, second = batch(boards, [markdown, html], expand="all")

    assert not hasattr(first, "multiline_fields_format")
    assert first.additional_properties["multilineFieldsFormat"] == {"System.Description": "markdown"}
    assert "multilineFieldsFormat" not in second.additional_properties


def test_a_field_stays_markdown_until_an_edit_says_otherwise(boards: Client, fake: FakeAzureDevOps) -> None:
    def formats() -> object:
        return boards.get_work_item(item_id).additional_properties.get("multilineFieldsFormat")

    item_id = fake.add_item(
        "Web Shop", "Bug", "x", description="a", repro_steps="b", markdown=["System.Description"]
    )
    assert formats() == {"System.Description": "markdown"}
    fake.edit(item_id, title="y", description="c")
    assert formats() == {"System.Description": "markdown"}
    fake.edit(item_id, description="<i>c</i>", markdown=False)
    assert formats() is None


def test_deleted_items_are_hidden_from_the_links_of_others(boards: Client, fake: FakeAzureDevOps) -> None:
    parent, child = fake.bulk("Web Shop", 2)
    fake.link(child, parent, "parent")

    def seen() -> tuple[object, object]:
        item = boards.get_work_item(child, expand="relations")
        return item.fields.get("System.Parent"), item.relations and len(item.relations)

    assert seen() == (parent, 1)
    fake.delete(parent)
    assert seen() == (None, None)
    fake.restore(parent)
    assert seen() == (parent, 1)
    fake.unlink(child, parent)
    assert seen() == (None, None)


def test_types_states_fields_and_areas_are_told(boards: Client, fake: FakeAzureDevOps) -> None:
    fake.add_item("Web Shop", "Decision", "x", area="Cart\\Pay")
    fake.add_field("Custom.Notes", "html")

    assert "Decision" in [t.name for t in boards.get_work_item_types("Web Shop")]
    assert boards.get_work_item_type("Web Shop", "user story").name == "User Story"
    assert (
        refused(lambda: boards.get_work_item_type("Web Shop", "None")).type_key
        == "WorkItemTypeNotFoundException"
    )
    states = boards.get_work_item_type_states("Web Shop", "Bug")
    assert [s.name for s in states if s.category == "Completed"] == ["Closed"]
    assert boards.get_work_item_field("Custom.Notes").type == "html"
    area = boards.get_classification_node("Web Shop", "areas", path="Cart", depth=1)
    assert area.path == "\\Web Shop\\Area\\Cart"
    assert [node.name for node in area.children] == ["Pay"]


def test_dates_drop_their_trailing_zeros(boards: Client, fake: FakeAzureDevOps) -> None:
    shown = []
    for millis in (0, 100, 137):
        fake.now = fake.now.replace(microsecond=millis * 1000)
        item = boards.get_work_item(fake.add_item("Web Shop", "Task", "x"))
        shown.append(item.fields["System.ChangedDate"].partition("09:30:")[2])

    assert shown == ["00Z", "00.1Z", "00.137Z"]


def test_comments_come_newest_first_in_pages(boards: Client, fake: FakeAzureDevOps) -> None:
    item_id = fake.add_item("Web Shop", "Bug", "x")
    ids = [fake.comment(item_id, f"note {n}") for n in range(4)]
    last = fake.comment(item_id, "**bold**", format="markdown")
    fake.delete_comment(item_id, ids[0])
    fake.edit_comment(item_id, ids[1], "better")

    first = boards.get_comments("Web Shop", item_id, top=3, expand="renderedText")
    rest = boards.get_comments("Web Shop", item_id, top=3, continuation_token=first.continuation_token)
    everything = boards.get_comments("Web Shop", item_id, include_deleted=True)

    assert [c.id for c in first.comments] == [last, ids[3], ids[2]]
    assert [c.text for c in rest.comments] == ["better"]
    assert rest.continuation_token is None
    assert (first.total_count, first.count, everything.count) == (4, 3, 5)
    newest = first.comments[0]
    assert (newest.format, newest.rendered_text) == ("markdown", "<p><strong>bold</strong></p>")
    item = boards.get_work_item(item_id)
    assert (item.fields["System.CommentCount"], item.rev) == (4, 8)
    with pytest.raises(requests.HTTPError):
        raw(
            fake, f"/Web Shop/_apis/wit/workItems/{item_id}/comments?$top=201&api-version=7.1-preview"
        ).raise_for_status()


def test_history_tells_when_and_how_an_item_was_closed(boards: Client, fake: FakeAzureDevOps) -> None:
    item_id = fake.add_item("Web Shop", "Bug", "x")
    fake.set_state(item_id, "Closed", "Fixed")
    fake.comment(item_id, "done")
    fake.set_state(item_id, "Active", "Not fixed")

    updates = boards.get_updates(item_id)
    second = boards.get_updates(item_id, top=1, skip=1)

    assert [u.fields["System.State"].new_value for u in updates if "System.State" in u.fields] == [
        "New",
        "Closed",
        "Active",
    ]
    (closed,) = second
    assert closed.fields["System.Reason"].new_value == "Fixed"
    assert closed.fields["Microsoft.VSTS.Common.ClosedDate"].new_value.startswith("2025-03-04T09:30")
    assert updates[-1].revised_date.year == 9999
    assert "Microsoft.VSTS.Common.ClosedDate" not in boards.get_work_item(item_id).fields
    assert [r.fields["System.State"] for r in boards.get_revisions(item_id)] == [
        "New",
        "Closed",
        "Closed",
        "Active",
    ]


# --- 2.6 feed and recycle bin


def feed(client: Client, token: str | None = None, **more: Any) -> dict[str, Any]:
    """One batch; the client's own attributes of it are empty."""
    found = client.read_reporting_revisions_get(continuation_token=token, **more)
    return dict(found.additional_properties)


def seen_in(batch: dict[str, Any]) -> list[tuple[int, int]]:
    return [(v["id"], v["rev"]) for v in batch["values"]]


def test_the_batch_object_of_the_client_is_empty(boards: Client, fake: FakeAzureDevOps) -> None:
    fake.bulk("Web Shop", 2)
    filters = model("ReportingWorkItemRevisionsFilter", include_deleted=True)

    for found in (boards.read_reporting_revisions_get(), boards.read_reporting_revisions_post(filters)):
        assert not any(
            getattr(found, n, None) for n in ("values", "continuation_token", "is_last_batch", "next_link")
        )
        assert seen_in(found.additional_properties) == [(1, 1), (2, 1)]
        assert found.additional_properties["isLastBatch"] is True
        assert found.additional_properties["continuationToken"] == "2;2;1"


def test_the_feed_goes_on_where_a_token_says(boards: Client, fake: FakeAzureDevOps) -> None:
    a, b, c = fake.bulk("Web Shop", 3)

    first = feed(boards, max_page_size=2)
    fake.edit(a, title="between two pages")
    second = feed(boards, first["continuationToken"], max_page_size=2)
    empty = feed(boards, second["continuationToken"])
    fake.edit(c, title="later")
    later = feed(boards, second["continuationToken"])

    assert (seen_in(first), first["isLastBatch"]) == ([(a, 1), (b, 1)], False)
    assert (seen_in(second), second["isLastBatch"]) == ([(c, 1), (a, 2)], True)
    assert (seen_in(empty), empty["isLastBatch"]) == ([], True)
    assert empty["continuationToken"] == second["continuationToken"]
    assert seen_in(later) == [(c, 2)]
    linked = requests.get(first["nextLink"], auth=("", PAT), timeout=5).json()
    assert seen_in(linked) == [(c, 1), (a, 2)], "the link keeps the page size"


def test_the_newest_only_come_where_they_are_in_commit_order(boards: Client, fake: FakeAzureDevOps) -> None:
    a, b = fake.bulk("Web Shop", 2)
    fake.edit(a, title="again")

    assert seen_in(feed(boards, include_latest_only=True)) == [(b, 1), (a, 2)]


def test_tombstones_come_if_asked_for_and_destroyed_items_never(
    boards: Client, fake: FakeAzureDevOps
) -> None:
    a, b, c = fake.bulk("Web Shop", 3)
    token = feed(boards)["continuationToken"]
    for item in (a, b, c):
        fake.delete(item)
    fake.destroy(b)
    fake.restore(c)

    plain = feed(boards, token)
    full = feed(boards, token, include_deleted=True)

    assert seen_in(plain) == [(c, 2), (c, 3)]
    assert [(v["id"], v["fields"]["System.IsDeleted"]) for v in full["values"]] == [
        (a, True),
        (c, True),
        (c, False),
    ]
    assert [r.id for r in boards.get_deleted_work_item_shallow_references("Web Shop")] == [a]
    (binned,) = boards.get_deleted_work_items([a], project="Web Shop")
    assert binned.deleted_date == "3/4/2025 9:30:00 AM"
    assert refused(lambda: boards.get_work_item(a)).type_key == "WorkItemUnauthorizedAccessException"


def test_the_feed_of_a_project_does_not_tell_that_an_item_left(boards: Client, fake: FakeAzureDevOps) -> None:
    fake.add_project("New Home")
    (item,) = fake.bulk("Web Shop", 1)
    token = feed(boards, project="Web Shop")["continuationToken"]
    fake.move(item, "New Home")

    assert seen_in(feed(boards, token, project="Web Shop", include_deleted=True)) == []
    assert seen_in(feed(boards, token, project="New Home")) == [(item, 2)]
    assert seen_in(feed(boards, token)) == [(item, 2)]
    fake.change_type(item, "Bug")
    assert seen_in(feed(boards, types=["Task"], include_latest_only=True)) == []


def test_the_feed_has_no_long_text_unless_asked_and_people_as_text(
    boards: Client, fake: FakeAzureDevOps
) -> None:
    fake.add_item("Web Shop", "Bug", "x", description="<b>a</b>", assigned_to="Ann Lee <ann@acme.example>")

    (short,) = feed(boards)["values"]
    (full,) = feed(boards, expand="fields")["values"]
    (people,) = feed(boards, include_identity_ref=True, fields=["System.AssignedTo"])["values"]

    assert "System.Description" not in short["fields"]
    assert short["fields"]["System.AssignedTo"] == "Ann Lee <ann@acme.example>"
    assert short["fields"]["System.RevisedDate"] == "9999-01-01T00:00:00Z"
    assert full["fields"]["System.Description"] == "<b>a</b>"
    assert list(people["fields"]) == ["System.AssignedTo"]
    assert people["fields"]["System.AssignedTo"]["displayName"] == "Ann Lee"


def test_a_feed_starts_at_a_token_or_a_date_and_not_both(boards: Client, fake: FakeAzureDevOps) -> None:
    fake.bulk("Web Shop", 1)
    fake.advance(days=1)
    start = fake.now
    (item,) = fake.bulk("Web Shop", 1)

    assert seen_in(feed(boards, start_date_time=start)) == [(item, 1)]
    assert "startDateTime" in refused(lambda: feed(boards, "1;1;1", start_date_time=start)).message
    assert "token" in refused(lambda: feed(boards, "nonsense")).message


def test_a_batch_of_the_feed_may_be_empty_and_not_the_last(boards: Client, fake: FakeAzureDevOps) -> None:
    fake.bulk("Web Shop", 3)
    bug = fake.add_item("Web Shop", "Bug", "x")
    fake.limits.feed_scans, fake.limits.feed_page = True, 3

    first = feed(boards, types=["Bug"])
    second = feed(boards, first["continuationToken"], types=["Bug"])

    assert (seen_in(first), first["isLastBatch"]) == ([], False)
    assert (seen_in(second), second["isLastBatch"]) == ([(bug, 1)], True)


def test_a_service_that_forgets_lists_a_share_and_reads_all(boards: Client, fake: FakeAzureDevOps) -> None:
    ids = list(fake.bulk("Web Shop", 20))
    fake.lists_only(0.1)
    new = fake.add_item("Web Shop", "Task", "new")
    fake.edit(ids[9], title="edited")

    query = model("Wiql", query="SELECT [System.Id] FROM WorkItems ORDER BY [System.Id]")
    listed = [w.id for w in boards.query_by_wiql(query).work_items]
    in_feed = {v["id"] for v in feed(boards)["values"]}

    assert listed == [*ids[:2], ids[9], new]
    assert in_feed == set(listed)
    assert batch(boards, ids[-1:])[0].id == ids[-1]
    fake.lists_only(None)
    assert len(boards.query_by_wiql(query).work_items) == 21


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
