"""The feed of revisions of the pretended Azure DevOps, and its recycle bin."""

from __future__ import annotations

from typing import Any

import requests

from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.azure_devops_checks.asking import PAT, Client, batch, model, refused

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
