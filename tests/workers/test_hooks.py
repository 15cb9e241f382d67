"""Webhooks: an event names items, which are read soon, seldom and as always."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.conftest import Addresses
from tests.fakes.confluence import FakeConfluence
from tests.ledger import Ledger, ago
from tests.workers.installed import installed
from tests.workers.told import SECRET
from tests.workers.told import Told as Installation
from workers.api.app import create_app
from workers.app.ingestion import pump, sync
from workers.local import embedded
from workers.runtime import Runtime

CONFIG = """
rag:
  tenant: acme
  embedding: {{provider: hashing, dimensions: 32}}
  api: {{wrongTokensPerMinute: 5}}
  auth: {{secret: a-secret-of-the-tests-of-32-bytes-and-more}}
  sources:
    - name: wiki
      type: confluence
      baseUrl: {base}
      spaceKeys: [ENG]
      auth: {{username: {user}, apiToken: {token}}}
      hook: {{secret: {secret}}}
      autoIndex: false
    - {{name: quiet, type: confluence, baseUrl: {base}, username: {user}, apiToken: {token}, autoIndex: false}}
"""


class Told(Installation):
    """An installation that a wiki tells of its changes."""

    def __init__(self, wiki: FakeConfluence, runtime: Runtime, api: TestClient, ledger: Ledger) -> None:
        super().__init__(runtime, api, ledger)
        self.wiki = wiki

    def read_pages(self) -> int:
        """Requests that read bodies since the log was cleared."""
        return sum("search" in seen.path or "/content/" in seen.path for seen in self.wiki.log)


@pytest.fixture
def told(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, ledger: Ledger, broker: object
) -> Iterator[Told]:
    with FakeConfluence("cloud") as wiki:
        wiki.add_space("ENG")
        for n in range(4):
            wiki.add_page("ENG", f"Page {n}", f"<p>Text {n}.</p>")
        config = CONFIG.format(base=wiki.base, user=wiki.email, token=wiki.token, secret=SECRET)
        with installed(tmp_path, addresses, servers, config) as runtime:
            sync.register(runtime)
            with TestClient(create_app(runtime), raise_server_exceptions=False) as api:
                town = Told(wiki, runtime, api, ledger)
                town.walk()
                wiki.log.clear()
                yield town


def first_page(told: Told) -> str:
    return min(told.stored())


def test_an_edit_is_read_without_a_look_at_the_rest(told: Told) -> None:
    page = first_page(told)
    told.wiki.edit(page, "<p>Now otherwise.</p>")
    answer = told.tell(page)
    assert (answer.status_code, answer.json()) == (202, {"hints": 1})
    assert told.work() == ["hook"]
    assert told.stored()[page] == "2"
    assert not any("lastmodified" in seen.target for seen in told.wiki.log), "no look at the change feed"
    assert told.work() == [], "and that is all"


def test_a_page_that_is_new_or_deleted_is_read_too(told: Told) -> None:
    gone, new = first_page(told), told.wiki.add_page("ENG", "New", "<p>New.</p>")
    told.wiki.trash(gone)
    told.tell(gone, new)
    told.work()
    assert gone not in told.stored()
    assert new in told.stored()


def test_a_lie_about_a_deletion_deletes_nothing(told: Told) -> None:
    before = told.stored()
    told.api.post(
        "/api/v1/hooks/wiki",
        json={"event": "page_trashed", "page": {"id": int(first_page(told))}},
        headers={"X-Larder-Token": SECRET},
    )
    assert told.work() == ["hook"]
    assert told.stored() == before


def test_what_the_service_does_not_show_yet_is_asked_for_again(told: Told) -> None:
    told.tell("4711")
    assert told.work() == ["hook"]
    told.later(1)
    assert told.work() == [], "not at once"
    told.later(5)
    assert told.work() == ["hook"]
    late = told.wiki.add_page("ENG", "Late", "<p>Late.</p>")
    told.ledger.hints.set(external_id=late)  # the service shows it now
    told.later(61)
    assert told.work() == ["hook"]
    assert late in told.stored()
    told.later(100)
    assert told.work() == []


def test_what_never_appears_is_left_to_the_walk(told: Told) -> None:
    told.tell("4711")
    for _ in range(10):
        told.work()
        told.later(61)
    told.wiki.log.clear()
    told.later(61)
    assert told.work() == []


def test_a_storm_costs_three_reads_of_an_item_a_minute(told: Told) -> None:
    page, read_at = first_page(told), list[float]()
    for second in range(40):
        told.wiki.edit(page, f"<p>Edit {second}.</p>")
        told.tell(page)
        told.later(2)
        read_at += [2 * second + time.monotonic()] * len(told.work())
    assert len(read_at) >= 3
    assert all(after - before > 59 for before, after in zip(read_at, read_at[3:], strict=False)), read_at
    told.later(61)
    told.work()
    assert told.stored()[page] == "41", "the last state is not missed"


def test_a_storm_about_what_does_not_change_costs_three_reads(told: Told) -> None:
    page, count = first_page(told), 0
    for _ in range(12):
        told.tell(page)
        told.later(3)
        count += len(told.work())
    for _ in range(4):
        told.later(61)
        count += len(told.work())
    assert count == 3


def test_an_event_that_is_sent_twice_counts_once(told: Told) -> None:
    assert told.tell("1", event="msg_1").json() == {"hints": 1}
    assert told.tell("1", event="msg_1").json() == {"hints": 0}
    assert told.tell("1", event="msg_2").json() == {"hints": 1}


@pytest.mark.parametrize(("source", "secret"), [("wiki", "wrong" * 5), ("quiet", SECRET), ("none", SECRET)])
def test_what_is_not_proved_is_refused_alike(told: Told, source: str, secret: str) -> None:
    answer = told.tell("1", source=source, secret=secret)
    assert answer.status_code == 401
    assert answer.json()["detail"].startswith(f"no event of a source '{source}' is proved")
    assert told.ledger.events() == []


def test_many_wrong_ones_of_an_address_are_told_to_wait(told: Told) -> None:
    codes = [told.tell("1", secret="wrong" * 5).status_code for _ in range(7)]
    assert codes == [401] * 5 + [429] * 2
    assert told.tell("1").status_code == 202, "the right ones go on"


def test_large_and_broken_bodies_are_refused(told: Told) -> None:
    def post(body: bytes) -> int:
        return told.api.post(
            "/api/v1/hooks/wiki", content=body, headers={"X-Larder-Token": SECRET}
        ).status_code

    assert post(b"x" * 5_000_000) == 413
    assert post(b"[]") == 422
    assert post(b'{"ids": [') == 422
    assert post(b"[" * 100_000) == 422
    assert post(json.dumps({"ids": ["1"], "more": "y" * 200_000}).encode()) == 202


def test_edits_are_read_while_the_first_load_goes_on(told: Told) -> None:
    page = first_page(told)
    told.wiki.edit(page, "<p>Edited during the load.</p>")
    told.wiki.lists_only(1.0)
    run = sync.start_run(told.runtime, told.source.tenant_id, told.source.id, trigger="manual", force=True)
    assert told.tell(page).json() == {"hints": 1}
    assert told.work() == ["manual"], "the run that reads the source reads it"
    assert run is not None
    assert told.stored()[page] == "2"
    assert set(told.ledger.hints.values("due_at")) <= {None}


def test_the_walk_brings_what_hooks_lost(told: Told) -> None:
    pages = [*told.stored()]
    told.wiki.advance(minutes=10)
    for n, page in enumerate(pages):
        told.wiki.edit(page, f"<p>Edit of {page}.</p>")
        if n % 3:  # every third event is lost
            told.tell(page)
    told.work()
    assert sorted(told.stored().values()) == ["1", "1", "2", "2"]
    told.walk()
    assert set(told.stored().values()) == {"2"}


def test_a_paused_source_is_not_read(told: Told) -> None:
    page = first_page(told)
    told.wiki.edit(page, "<p>While paused.</p>")
    told.ledger.sources.set(paused_at=ago())
    assert told.tell(page).status_code == 202
    assert told.work() == []
    told.ledger.sources.set(paused_at=None)
    pump.pump_once(told.runtime)
    assert told.work() == ["hook"]
    assert told.stored()[page] == "2"


def test_a_source_that_polls_is_due_again_soon(told: Told) -> None:
    section = told.source.settings.model_copy(update={"poll": 60.0, "index_schedule": "0 2 * * *"})
    due = sync.schedule_of(told.runtime.settings, section).next_sync_at
    assert due is not None
    assert (due - datetime.now(UTC)).total_seconds() == pytest.approx(60, abs=5)
