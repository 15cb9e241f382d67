"""What `larder sources check` says of a service, and mistakes that are refused when the configuration is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from connectors.rest.options import RestOptions
from pipeline.documents import Finding
from tests.connectors.rest.world import TICKETS, at, source_for
from tests.fakes.rest_service import FakeTickets
from tests.fakes.server import Fault


@pytest.fixture
def desk() -> Iterator[FakeTickets]:
    with FakeTickets("offset") as fake:
        for _ in range(3):
            fake.add()
        yield fake


def bad(findings: list[Finding]) -> list[str]:
    return [f"{f.subject}: {f.detail}" for f in findings if not f.ok]


def test_a_good_source_says_what_it_has_seen(desk: FakeTickets) -> None:
    findings = source_for(desk).check()

    assert bad(findings) == []
    assert [f.detail for f in findings] == [
        "3 records in the first answer, 3 in all", "id is in 3 of 3 records", "updated_at is in 3 of 3 records",
        "a record can be read by its id",
    ]  # fmt: skip


def _empty(desk: FakeTickets) -> None:
    desk.records.clear()


def _nothing(_desk: FakeTickets) -> None:
    pass


def _no_item(desk: FakeTickets) -> None:
    desk.faults.next(Fault.status(403, body="{}", content_type="application/json"), when=at("/api/tickets/1"))


WRONG: dict[str, tuple[Callable[[FakeTickets], None], dict[str, Any], str]] = {
    "token": (_nothing, {"bearer": "other"}, "401"),
    "path": (_nothing, {"list": {**TICKETS["list"], "path": "/tikcets"}}, "404 to /api/tikcets"),
    "nothing to see": (_empty, {}, "0 records in the first answer"),
    "id": (_nothing, {"document": {"id": "key"}}, "key is in 0 of 3 records"),
    "time of change": (_nothing, {"changed": {"field": "subject"}}, "subject is in 0 of 3 records"),
    "item": (_no_item, {}, "403 to /api/tickets/1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_what_to_do(desk: FakeTickets, name: str) -> None:
    spoil, changes, words = WRONG[name]
    spoil(desk)

    findings = source_for(desk, **changes).check()

    assert any(words in text for text in bad(findings)), findings
    assert all(f.fix for f in findings if not f.ok)


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "two ways to sign in": (
        {"bearer": "a", "header": {"name": "X", "value": "b"}},
        "one of bearer, basic, header, query",
    ),
    "no paging": (
        {"list": {"path": "/x", "next": {"param": "page"}}},
        "one of cursor, url, link, number and offset",
    ),
    "a key of walk": ({"walk": {"parms": {}}}, "parms is none of them"),
    "a preset": ({"preset": "gitbuh"}, "one of "),
    "an overlap": ({"changed": {"field": "x", "overlap": "soon"}}, "overlap"),
    "a kind": ({"document": {"kind": "story"}}, "one of work, decision, reference"),
    "a value": ({"list": {"path": "/{project}/x"}}, "give values.project"),
    "an expression in a list": ({"children": [{"name": "c", "text": "a.["}]}, "JMESPath"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused_at_once(name: str) -> None:
    changes, words = MISTAKES[name]
    section = {"name": "desk", "base_url": "https://desk.example", "list": {"path": "/x"}, **changes}
    with pytest.raises(ValidationError) as caught:
        RestOptions.model_validate(section)
    assert words in str(caught.value)


def test_a_section_has_its_own_keys_in_place_of_those_of_its_preset() -> None:
    section = {"name": "code", "preset": "github", "values": {"repo": "a/b"}}
    given = RestOptions.model_validate(section)
    changed = RestOptions.model_validate(
        {**section, "baseUrl": "https://code.example/api/v3", "list": {"params": {"state": "open"}}, "children": [],
         "document": {"metadata": {"milestone": None}}}
    )  # fmt: skip

    assert changed.base_url == "https://code.example/api/v3"
    assert changed.list_.params == {**given.list_.params, "state": "open"}
    assert changed.children == ()
    assert changed.document.metadata.keys() == given.document.metadata.keys() - {"milestone"}
    assert RestOptions.model_validate(given.model_dump(by_alias=True)) == given


def test_a_wrong_path_within_an_answer_is_told_with_what_the_answer_has(desk: FakeTickets) -> None:
    told = bad(source_for(desk, list={**TICKETS["list"], "records": "data.rows"}).check())
    assert told == [
        f"list at {desk.address}/api: the service gave an answer without a list of records at data.rows (it has data, meta)"
    ]
    for record, found in (("item", "no record at item"), ("{id: `9`}", "a record with another id")):
        told = bad(source_for(desk, item={"path": "/tickets/{id}", "record": record}).check())
        assert told == [f"item: its answer has {found}"]


def test_names_that_may_be_texts_are_told_to_nobody(desk: FakeTickets) -> None:
    body = json.dumps({"ann@quay.example": [], "my secret": [], "rows": []})
    desk.faults.next(Fault.status(200, body=body, content_type="application/json"))
    assert bad(source_for(desk).check())[0].endswith("at data.items (it has rows)")


@pytest.mark.parametrize(
    ("paging", "words"),
    [
        ({"cursor": "next", "link": True}, "there are cursor and link; null takes out that of a preset"),
        ({"url": "next", "offset": True}, "there are url and offset"),
        ({"param": "page"}, "one of cursor, url, link, number and offset"),
    ],
)
def test_a_list_has_one_way_to_its_next_page(paging: dict[str, Any], words: str) -> None:
    section = {"name": "x", "base_url": "https://x.example", "list": {"path": "/x", "next": paging}}
    with pytest.raises(ValidationError, match=words):
        RestOptions.model_validate(section)
