"""Work items of the pretended Azure DevOps, as the real client reads them."""

from __future__ import annotations

import pytest
import requests

from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.azure_devops_checks.asking import Client, batch, raw, refused

# --- 2.5 items


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
