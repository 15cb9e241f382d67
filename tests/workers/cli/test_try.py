"""larder sources try: documents that would come, the requests, and the empty fields, without a server of ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.connectors.rest.recorded import FOLDER, Recorded
from tests.connectors.rest.world import PAGING
from tests.connectors.rest.world import TICKETS as TICKETS_SECTION
from tests.fakes.rest_service import STYLES, TOKEN, FakeTickets, Style
from tests.fakes.server import Fault
from workers.cli.commands import app
from workers.cli.tables import fact_line

Run = Callable[..., Result]

TICKETS = """\
rag:
  sources:
    - name: notes
      type: text
      paths: ["*.txt"]
    - name: desk
      type: rest
      baseUrl: "{address}/api"
      auth: {query: {name: who, value: "${KEY}"}}
      list:
        path: /tickets
        params: {updated_since: "{cursor}", page_size: 50}
        records: data.items
        next: {url: meta.next_url}
      changed: {field: updated_at}
      item: {path: "/tickets/{id}", record: ticket}
      document:
        title: subject
        text: [description]
        format: html
        kind: work
        metadata: {severity: impact.level}
"""


@pytest.fixture
def desk() -> Iterator[FakeTickets]:
    with FakeTickets("url") as fake:
        for n in range(9):
            fake.add(f"<p>The gate of berth {n} jams.</p>")
        yield fake


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, desk: FakeTickets) -> Run:
    monkeypatch.chdir(tmp_path)
    for name in ("LARDER_CONFIG", "LARDER_DATA", "LARDER_DATABASE_URL", "LARDER_BROKER_URL"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "notes.txt").write_text("A note\n\nOf the quay.\n", encoding="utf-8")

    def command(*args: str, text: str = TICKETS) -> Result:
        Path("larder.yaml").write_text(text.replace("{address}", desk.address), encoding="utf-8")
        return CliRunner().invoke(app, list(args), env={"KEY": TOKEN})

    return command


def answer(result: Result) -> Any:
    return json.loads(result.stdout)


def test_documents_requests_and_empty_fields_are_shown_and_nothing_is_stored(
    run: Run, desk: FakeTickets
) -> None:
    result = run("sources", "try", "desk", "--limit", "2", "--json")

    assert result.exit_code == 0, result.output
    tried = answer(result)
    assert [(d["external_id"], d["title"], d["kind"]) for d in tried["documents"]] == [
        ("1", "Ticket 1", "work"), ("2", "Ticket 2", "work"),
    ]  # fmt: skip
    assert tried["documents"][0]["text"] == "The gate of berth 0 jams."
    assert [request.split("?")[0] for request in tried["requests"]] == [
        f"GET {desk.address}/api/tickets", f"GET {desk.address}/api/tickets/1", f"GET {desk.address}/api/tickets/2",
    ]  # fmt: skip
    assert tried["empty"] == {"document.metadata.severity": 2}
    assert len(desk.log) == 3, "no more is asked than is shown"
    assert not Path("data").exists()
    assert not list(Path().glob("**/*.db"))


def test_the_key_is_shown_nowhere(run: Run, desk: FakeTickets) -> None:
    for args in ((), ("--json",)):
        output = run("sources", "try", "desk", *args).output
        assert TOKEN not in output
        assert "who=***" in output
    assert any(TOKEN in seen.target for seen in desk.log), "it was sent"


def test_people_read_a_screen(run: Run) -> None:
    output = run("sources", "try", "desk", "--limit", "1").output

    assert "Ticket 1\n" in output
    assert "The gate of berth 0 jams." in output
    assert "1 document, 2 requests:" in output
    assert "empty in 1 record: document.metadata.severity" in output


def test_lists_and_layers_of_readers_are_read_as_words(run: Run) -> None:
    keys = "title: subject\n        tags: labels\n        acl: {field: groups}"
    text = TICKETS.replace("title: subject", keys)
    output = run("sources", "try", "desk", "--limit", "1", text=text).output
    assert "  tags             a, b\n" in output
    assert "  acl              group:agents\n" in output
    assert fact_line([["group:a", "user:b"], ["group:c"]]) == "group:a, user:b and group:c"


def test_what_came_before_an_error_is_shown_with_it(run: Run, desk: FakeTickets) -> None:
    desk.faults.next(
        Fault.status(401, body="{}", content_type="application/json"), when=lambda s: s.path.endswith("/2")
    )

    result = run("sources", "try", "desk", "--json")

    assert result.exit_code == 1
    assert [d["external_id"] for d in answer(result)["documents"]] == ["1"]
    assert "401" in answer(result)["error"]


def test_any_other_source_can_be_tried(run: Run) -> None:
    tried = answer(run("sources", "try", "notes", "--json"))

    assert [d["title"] for d in tried["documents"]] == ["A note"]
    assert tried["requests"] == []


def test_an_unknown_name_lists_the_known_ones(run: Run) -> None:
    result = run("sources", "try", "dsek")

    assert result.exit_code == 2
    assert "configured are desk, notes" in result.output


@pytest.mark.parametrize(
    ("found", "wrong", "line", "words"),
    [
        ("records: data.items", "records: data.items[", 13, "sources[1].list.records: found 'data.items['"),
        ("title: subject", "title: uper(subject)", 18, "there is no function uper"),
        ("severity: impact.level", "severity: join(impact)", 22, "the function join takes 2 arguments"),
        ("/tickets/{id}", "/tickets/{number}", 16, "give values.number"),
        (
            "{url: meta.next_url}",
            "{url: meta.next_url, link: true}",
            14,
            "one of cursor, url, link, number and offset",
        ),
        ("changed: {field", "changed: {feild", 15, "did you mean field?"),
        ("kind: work", "kind: wrok", 21, "one of work, decision, reference"),
    ],
)
def test_a_wrong_key_is_told_with_its_line(run: Run, found: str, wrong: str, line: int, words: str) -> None:
    result = run("sources", "try", "desk", text=TICKETS.replace(found, wrong))

    assert result.exit_code == 2
    told = " ".join(result.output.split())
    assert f"larder.yaml:{line}:" in told, told
    assert words in told
    assert "Traceback" not in told


@pytest.mark.parametrize("style", STYLES)
def test_each_way_to_the_next_page(style: Style, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with FakeTickets(style, most=10) as fake:
        for n in range(23):
            fake.add(f"Text {n}.")
        section = {
            **TICKETS_SECTION, "name": "desk", "type": "rest", "baseUrl": f"{fake.address}/api", "children": [],
            "auth": {"header": {"name": "X-Key", "value": TOKEN}}, "list": {**TICKETS_SECTION["list"], "next": PAGING[style]},
        }  # fmt: skip
        Path("larder.yaml").write_text(yaml.safe_dump({"rag": {"sources": [section]}}), encoding="utf-8")
        tried = answer(CliRunner().invoke(app, ["sources", "try", "desk", "--limit", "50", "--json"]))
    assert (len(tried["documents"]), tried["error"]) == (23, "")
    assert len([request for request in tried["requests"] if "/tickets?" in request]) == 3
    assert TOKEN not in json.dumps(tried)


def test_a_service_that_is_asked_by_a_body(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    case = json.loads((FOLDER / "github_discussions.json").read_text("utf-8"))
    with Recorded(case["answers"]) as fake:
        section = {
            "name": "talk",
            "type": "rest",
            "baseUrl": fake.address,
            "bearer": TOKEN,
            **case["options"],
        }
        Path("larder.yaml").write_text(yaml.safe_dump({"rag": {"sources": [section]}}), encoding="utf-8")
        tried = answer(CliRunner().invoke(app, ["sources", "try", "talk", "--json"]))
        assert fake.unknown == []
    assert [document["metadata"]["number"] for document in tried["documents"]] == [21, 22]
    assert tried["requests"] == [f"POST {fake.address}/graphql"] * 2


def test_a_value_that_a_preset_needs_is_asked_for_in_its_words(run: Run) -> None:
    text = "rag:\n  sources:\n    - {name: issues, type: rest, preset: github}\n"
    output = " ".join(run("config", "check", text=text).output.split())
    assert (
        "larder.yaml:3: sources[0].values: found nothing, expected a value for repo; Owner and name of"
        in output
    )
