"""Records as documents: fields, formats, comments, rights, and what is said of an expression that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from connectors.rest.adf import html_of
from connectors.rest.expressions import value_at
from connectors.rest.options import RestOptions
from pipeline.documents import Document, Kind, SourceType
from tests.connectors.rest.world import TICKETS, source_for
from tests.connectors.worlds import SourceStore
from tests.fakes.rest_service import FakeJira, FakeTickets


@pytest.fixture
def desk() -> Iterator[FakeTickets]:
    with FakeTickets("cursor") as fake:
        yield fake


def read(fake: Any, number: str, **changes: Any) -> Document:
    store = SourceStore()
    store.take(source_for(fake, **changes).read([number]))
    assert store.failed == []
    return store.documents[number]


def fields(**changes: Any) -> dict[str, Any]:
    return {"document": {**TICKETS["document"], **changes}}


def test_fields_comments_and_times(desk: FakeTickets) -> None:
    number = desk.add("<h1>Why</h1><p>The <b>gate</b> jams, see <a href='/desk/2'>that</a>.</p>")
    desk.comment(number, "<p>Oiled.</p><h2>After</h2>")
    desk.comment(number, "", author="")

    document = read(desk, number)

    assert document.title == "Ticket 1"
    assert document.text == (
        f"# Why\n\nThe **gate** jams, see [that]({desk.address}/desk/2).\n\n"
        f"## Comments\n\n### Ann Lee, {desk.comments[number][0]['at'][:10]}\n\nOiled.\n\n##### After"
    )
    assert (document.kind, document.source_type, document.tags) == (Kind.WORK, SourceType.REST, ("a", "b"))
    assert document.url == f"{desk.address}/desk/1"
    assert document.metadata["status"] == "open"
    assert document.metadata["source_path"] == document.url
    assert document.created_at is not None
    assert document.created_at.strftime("%Y-%m-%dT%H:%M:%SZ") == desk.records[number]["created_at"]
    assert document.updated_at is not None
    assert document.fingerprint == document.updated_at.isoformat()


def test_several_parts_have_their_headings_and_formats(desk: FakeTickets) -> None:
    number = desk.add("<p>One</p>", resolution="# Two\n\n- three", steps=["a", "b"], empty="  ")
    parts = [
        "description",
        {"field": "empty", "heading": "Empty"},
        {"field": "resolution", "heading": "Resolution", "format": "markdown"},
        {"field": "steps", "heading": "Steps", "format": "plain"},
    ]

    document = read(desk, number, **fields(text=parts))

    assert document.text == "One\n\n## Resolution\n\n### Two\n\n- three\n\n## Steps\n\na\nb"


def test_a_record_without_text_has_that_of_its_title_and_one_without_a_title_its_id(
    desk: FakeTickets,
) -> None:
    number = desk.add("", subject=None)

    document = read(desk, number)

    assert (document.title, document.text) == ("1", "1")


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (["agents", "leads"], [["group:agents", "group:leads"]]),
        ("agents", [["group:agents"]]),
        ([], [["permission:admin"]]),
        (None, [["permission:admin"]]),
        ([""], [["permission:admin"]]),
        (["agents", None], [["permission:admin"]]),
        ({"name": "agents"}, [["permission:admin"]]),
        (7, [["permission:admin"]]),
    ],
)
def test_rights_fail_closed(desk: FakeTickets, groups: Any, expected: Any) -> None:
    number = desk.add(groups=groups)
    assert read(desk, number, **fields(acl={"field": "groups"})).metadata["acl"] == expected


def test_rights_of_a_field_that_is_not_there_fail_closed(desk: FakeTickets) -> None:
    number = desk.add()
    for expression in ("readers", "join(',', readers)"):
        document = read(desk, number, **fields(acl=expression))
        assert document.metadata["acl"] == [["permission:admin"]]
    assert "acl" not in read(desk, number).metadata


def test_rights_of_the_source_hold_beside_those_of_a_record(desk: FakeTickets) -> None:
    number = desk.add(groups=["agents"])
    document = read(desk, number, metadata={"acl": ["user:ann"]}, **fields(acl={"field": "groups"}))
    assert document.metadata["acl"] == [["user:ann"], ["group:agents"]]


def test_secrets_in_texts_are_redacted(desk: FakeTickets) -> None:
    number = desk.add("<p>Use ann@quay.example, token=ghp_0123456789abcdefghijABCDEFGHIJ012345</p>")
    assert read(desk, number).text == "Use ann@quay.example, token=[secret]"


def test_metadata_have_the_units_that_step_4_reads(desk: FakeTickets) -> None:
    number = desk.add(
        effort={"points": 5, "seconds": 7200, "spent": "3h"},
        closed="2025-01-02T03:04:05+02:00",
        parent=17,
        none=None,
    )
    metadata = {
        "story_points": "effort.points", "estimated_seconds": "effort.seconds", "actual_work": "effort.spent",
        "closed_at": "closed", "parent_id": "parent", "duplicate_of": "none", "labels": "labels",
    }  # fmt: skip

    document = read(desk, number, **fields(metadata=metadata))

    facts = {k: v for k, v in document.metadata.items() if k not in ("source_path", "status")}
    assert facts == {
        "story_points": 5, "estimated_hours": 2, "actual_hours": 3, "closed_at": "2025-01-02T01:04:05+00:00",
        "parent_id": "17", "labels": ["a", "b"],
    }  # fmt: skip


def test_a_decision_is_known_by_its_tag(desk: FakeTickets) -> None:
    number = desk.add(labels=["ADR"], state="accepted")
    document = read(desk, number)
    assert document.kind is Kind.DECISION
    assert document.metadata["decision_status"] == "accepted"


def test_the_address_for_people_may_be_a_path_with_the_id(desk: FakeTickets) -> None:
    number = desk.add()
    assert read(desk, number, **fields(url="/desk/{id}")).url == f"{desk.address}/api/desk/1"
    elsewhere = read(desk, number, values={"desk": "a b"}, **fields(url="https://desk.example/{desk}/{id}"))
    assert elsewhere.url == "https://desk.example/a%20b/1"


def test_an_id_cannot_leave_its_place_in_the_path(desk: FakeTickets) -> None:
    list(source_for(desk).read(["../../admin?x=1"]))
    assert [seen.target for seen in desk.log] == ["/api/tickets/..%2F..%2Fadmin%3Fx%3D1"]


def test_comments_for_some_alone_stay_out_of_an_issue() -> None:
    with FakeJira() as fake:
        key = fake.add("The gate jams.", issuelinks=[
            {"type": {"name": "Duplicate", "outward": "duplicates"}, "outwardIssue": {"key": "SHOP-9", "fields": {"summary": "Gate"}}},
        ], customfield_10016=3.0, customfield_10020=[{"name": "Sprint 7"}, {"name": "Sprint 8"}])  # fmt: skip
        fake.comment(key, "For all.")
        fake.comment(key, "For leads.", visibility={"type": "role", "value": "Leads"})
        fake.comment(key, "For agents.", jsdPublic=False)

        document = read(fake, key, preset="jira")

        assert "For all." in document.text
        assert "For leads" not in document.text
        assert "For agents" not in document.text
        assert "## Links\n\n- duplicates SHOP-9 Gate" in document.text
        assert document.metadata["duplicate_of"] == "SHOP-9"
        assert document.metadata["story_points"] == 3
        assert document.metadata["sprint"] == "Sprint 8"
        assert document.url == f"{fake.address}/browse/{key}"


def test_an_issue_with_a_security_level_is_left_out() -> None:
    with FakeJira() as fake:
        fake.add()
        fake.add(security={"name": "Staff"})
        store = SourceStore()
        store.sync(source_for(fake, preset="jira"))
        assert set(store.documents) == {"SHOP-1"} == source_for(fake, preset="jira").ids().ids
        assert source_for(fake, preset="jira").ids().left_out == {"with a security level": 1}


NODES: dict[str, tuple[dict[str, Any], str]] = {
    "marks": (
        {"type": "paragraph", "content": [
            {"type": "text", "text": "a < b ", "marks": [{"type": "strong"}]},
            {"type": "text", "text": "c", "marks": [{"type": "link", "attrs": {"href": "https://x.example"}}, {"type": "underline"}]},
            {"type": "hardBreak"}, {"type": "mention", "attrs": {"id": "1", "text": "@Ann"}}, {"type": "emoji", "attrs": {"shortName": ":tada:"}},
        ]},
        '<p><strong>a &lt; b </strong><a href="https://x.example">c</a><br>@Ann:tada:</p>',
    ),
    "code": (
        {"type": "codeBlock", "attrs": {"language": "sh"}, "content": [{"type": "text", "text": "a\nb"}]},
        '<pre><code class="language-sh">a\nb</code></pre>',
    ),
    "task": (
        {"type": "taskList", "content": [{"type": "taskItem", "attrs": {"state": "DONE"}, "content": [{"type": "text", "text": "x"}]}]},
        '<ul><li><input type="checkbox" checked>x</li></ul>',
    ),
    "date": ({"type": "date", "attrs": {"timestamp": "1735689600000"}}, "2025-01-01"),
    "card": ({"type": "inlineCard", "attrs": {"url": "https://x.example"}}, '<a href="https://x.example">https://x.example</a>'),
    "unknown": ({"type": "novelty", "content": [{"type": "text", "text": "kept"}]}, "kept"),
    "heading": ({"type": "heading", "attrs": {"level": 9}, "content": [{"type": "text", "text": "H"}]}, "<h6>H</h6>"),
}  # fmt: skip


@pytest.mark.parametrize("name", NODES)
def test_nodes_of_the_editor(name: str) -> None:
    node, html = NODES[name]
    assert html_of({"type": "doc", "content": [node]}) == html


@pytest.mark.parametrize(
    "broken",
    [None, 7, [], {}, {"type": "doc", "content": 7}, {"type": "doc", "content": [None, 7, "x"]},
     {"type": "text"}, {"type": "text", "text": None, "marks": [None, 7, {"type": "link", "attrs": None}]},
     {"type": "date", "attrs": {"timestamp": "soon"}}, {"type": "heading", "attrs": {"level": True}}],
)  # fmt: skip
def test_broken_documents_of_the_editor_are_no_error(broken: Any) -> None:
    html_of({"type": "doc", "content": [broken]})
    html_of(broken)


def test_a_document_that_is_nested_without_end_is_cut() -> None:
    node: dict[str, Any] = {"type": "text", "text": "deep"}
    for _ in range(5000):
        node = {"type": "blockquote", "content": [node]}
    assert "deep" not in html_of(node)


def test_a_function_that_does_not_fit_a_record_gives_nothing() -> None:
    assert value_at("join(' ', names)", {"names": None}) is None
    assert value_at("join(' ', names)", {"names": ["a", "b"]}) == "a b"


def test_no_configuration_is_a_program() -> None:
    for text in ("__import__('os')", "a; b", "${X}", "{{ a }}", "eval(@)", "@.__class__()"):
        with pytest.raises(ValueError, match="JMESPath"):
            RestOptions.model_validate(
                {"name": "x", "base_url": "https://x.example", "list": {"path": "/x", "records": text}}
            )
    assert value_at("__class__", {}) is None


def test_what_is_configured_and_empty_is_reported(desk: FakeTickets) -> None:
    desk.add(labels=[])
    seen: list[str] = []
    source = source_for(desk, observe=lambda kind, text: seen.append(f"{kind} {text.partition('?')[0]}"))
    list(source.pages(None))
    assert json.dumps(seen).count("empty document.tags") == 1
    assert seen[0] == f"request GET {desk.address}/api/tickets"
