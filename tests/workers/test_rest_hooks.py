"""Webhooks of services that presets read: signed as the service signs, and read as soon as they came."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from pipeline.documents import Json
from tests.conftest import Addresses
from tests.fakes.rest_service import TOKEN, FakeGitHub, FakeGitLab, FakeJira
from tests.ledger import Ledger, ahead
from tests.workers.installed import installed
from tests.workers.told import SECRET, Told
from workers.api.app import create_app
from workers.app.ingestion import sync
from workers.local import embedded

CONFIG = """
rag:
  tenant: acme
  embedding: {{provider: hashing, dimensions: 32}}
  auth: {{secret: a-secret-of-the-tests-of-32-bytes-and-more}}
  sources:
    - name: work
      type: rest
      preset: {preset}
      baseUrl: {base}
      values: {values}
      auth: {{bearer: {token}}}
      hook: {{secret: {secret}}}
      poll: 60s
      autoIndex: false
"""


def signed(body: bytes) -> str:
    return "sha256=" + hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def jira_event(key: str, kind: str) -> Json:
    issue = {"id": "10001", "key": key, "fields": {"summary": "not what is stored"}}
    return {"timestamp": 1735689600000, "webhookEvent": f"jira:issue_{kind}", "issue": issue}


def github_event(number: str, kind: str) -> Json:
    issue = {"number": int(number), "title": "not what is stored", "id": 1007}
    return {"action": kind, "issue": issue, "repository": {"full_name": "example/shop"}}


def gitlab_event(number: str, kind: str) -> Json:
    return {"object_kind": "issue", "object_attributes": {"id": 104, "iid": int(number), "action": kind}}


@dataclass(frozen=True)
class Service:
    """How one service tells of its changes."""

    fake: Callable[[], Any]
    values: Mapping[str, str]
    event: Callable[[str, str], Json]
    headers: Callable[[bytes], dict[str, str]]
    delivery: str


SERVICES = {
    "jira": Service(
        FakeJira, {"jql": "project = SHOP"}, jira_event, lambda body: {"X-Hub-Signature": signed(body)},
        "X-Atlassian-Webhook-Identifier",
    ),
    "github": Service(
        FakeGitHub, {"repo": "example/shop"}, github_event, lambda body: {"X-Hub-Signature-256": signed(body)},
        "X-GitHub-Delivery",
    ),
    "gitlab": Service(
        FakeGitLab, {"project": "example/shop"}, gitlab_event, lambda _: {"X-Gitlab-Token": SECRET}, "X-Gitlab-Event-UUID"
    ),
}  # fmt: skip


class Board(Told):
    """An installation that a board tells of its changes in its own words."""

    def __init__(self, fake: Any, service: Service, *parts: Any) -> None:
        super().__init__(*parts)
        self.fake, self.service = fake, service

    def send(self, item: str, kind: str, **headers: str) -> Any:
        body = json.dumps(self.service.event(item, kind)).encode()
        proof = {**self.service.headers(body), "Content-Type": "application/json", **headers}
        return self.api.post("/api/v1/hooks/work", content=body, headers=proof)

    def texts(self) -> dict[str, str]:
        bodies = {(one["document_id"], one["version"]): one["body"] for one in self.ledger.bodies()}
        shown = self.ledger.documents(deleted=False)
        return {one["external_id"]: bodies[one["id"], one["desired_version"]] for one in shown}


@pytest.fixture(params=SERVICES)
def board(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    addresses: Addresses,
    servers: embedded.Servers,
    ledger: Ledger,
    broker: object,
) -> Iterator[Board]:
    service = SERVICES[request.param]
    with service.fake() as fake:
        for n in range(3):
            fake.add(f"Text {n}.")
        config = CONFIG.format(
            preset=request.param,
            base=fake.address,
            values=json.dumps(service.values),
            token=TOKEN,
            secret=SECRET,
        )
        with installed(tmp_path, addresses, servers, config) as runtime:
            sync.register(runtime)
            with TestClient(create_app(runtime), raise_server_exceptions=False) as api:
                board = Board(fake, service, runtime, api, ledger)
                board.walk()
                fake.log.clear()
                yield board


def change(board: Board, item: str, text: str) -> None:
    if isinstance(board.fake, FakeGitHub):
        board.fake.edit(item, body=text)
    else:
        board.fake.edit(item, text)


def test_an_edit_is_read_by_a_request_for_the_item_alone(board: Board) -> None:
    item = min(board.texts())
    change(board, item, "Now otherwise.")

    answer = board.send(item, "updated")

    assert (answer.status_code, answer.json()) == (202, {"hints": 1})
    assert board.work() == ["hook"]
    assert board.texts()[item] == "Now otherwise."
    paths = [seen.path.rpartition("/")[2] for seen in board.fake.log]
    assert paths == ([item, "jql"] if isinstance(board.fake, FakeJira) else [item])


def test_a_new_item_is_read_and_a_deletion_is_confirmed(board: Board) -> None:
    first, second = sorted(board.texts())[:2]
    new = board.fake.add("New.")
    del board.fake.records[first]
    for item, kind in ((new, "created"), (first, "deleted"), (second, "deleted")):
        board.send(item, kind)
    board.work()
    assert new in board.texts()
    assert first not in board.texts()
    assert second in board.texts(), "it is still there, whatever the event says"


def test_a_forged_signature_is_refused_and_asks_nothing(board: Board) -> None:
    item = min(board.texts())
    forged = {name: value[:-1] + "~" for name, value in board.service.headers(b"").items()}
    assert board.send(item, "updated", **forged).status_code == 401
    assert board.work() == []
    assert board.fake.log == []


def test_a_delivery_that_comes_twice_counts_once(board: Board) -> None:
    item = min(board.texts())
    delivery = {board.service.delivery: "72d3162e-cc78-11e3-81ab-4c9367dc0958"}
    assert board.send(item, "updated", **delivery).json() == {"hints": 1}
    assert board.send(item, "updated", **delivery).json() == {"hints": 0}


def test_polling_looks_at_the_changes_each_minute(board: Board) -> None:
    item = min(board.texts())
    change(board, item, "Changed, and nobody told.")
    assert ahead(seconds=49) <= board.ledger.sources.one()["next_sync_at"] <= ahead(seconds=60)
    sync.start_run(board.runtime, board.source.tenant_id, board.source.id, trigger="schedule")
    board.work()
    assert board.texts()[item] == "Changed, and nobody told."
    assert len(board.fake.log) == 1, "one look at the list of changes"


def test_steps_are_in_the_words_of_the_service(board: Board) -> None:
    from workers.app.ingestion import hooks

    steps = " ".join(hooks.setup(board.runtime.settings, "work")["steps"])
    words = {FakeJira: "WebHooks", FakeGitHub: "application/json", FakeGitLab: "Secret token"}
    assert words[type(board.fake)] in steps


@pytest.mark.parametrize("board", ["jira"], indirect=True)
@pytest.mark.parametrize("moved_to", ["SHOP-99", "OPS-9"])
def test_an_issue_that_moved_is_read_under_its_new_key_and_goes_under_the_old_one(
    board: Board, moved_to: str
) -> None:
    board.fake.records[moved_to] = {**board.fake.records.pop("SHOP-2"), "key": moved_to}
    items = [{"field": "Key", "fromString": "SHOP-2", "toString": moved_to}]
    body = json.dumps({**jira_event(moved_to, "updated"), "changelog": {"items": items}}).encode()
    headers = {"X-Hub-Signature": signed(body)}
    answer = board.api.post("/api/v1/hooks/work", content=body, headers=headers)
    assert answer.json() == {"hints": 2}
    board.work()
    # An event does not bring in what the condition of the source leaves out, though the account may read it.
    assert sorted(board.texts()) == ["SHOP-1", "SHOP-3", *[moved_to] * moved_to.startswith("SHOP")]
