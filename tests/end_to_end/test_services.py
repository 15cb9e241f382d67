"""Confluence and Azure DevOps through the real queue, with everything that goes wrong on the way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest

from tests.conftest import Site
from tests.end_to_end.fleet import Fleet, indexing
from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.confluence import FakeConfluence
from tests.fakes.server import FakeServer, Fault, Seen
from tests.ledger import Ledger

PAGES, ITEMS = 120, 250
CONFIG = """
rag:
  embedding: {{provider: hashing}}
  queue: {{tickSeconds: 1, retryBaseSeconds: 1}}
  sources:
    - name: wiki
      type: confluence
      baseUrl: {wiki}
      spaceKeys: [ENG]
      auth: {{username: {user}, apiToken: {token}}}
      syncOptions: {{maxPages: null, includeRestricted: false}}
      autoIndex: false
      readTimeout: 2
    - name: boards
      type: azure_devops
      organization: {boards}
      project: Shop
      auth: {{pat: {pat}}}
      workItemTypes: [Task, Bug]
      maxItems: null
      autoIndex: false
      readTimeout: 2
"""


@dataclass
class Town:
    """An installation beside both services, and what is where."""

    site: Site
    fleet: Fleet
    wiki: FakeConfluence
    boards: FakeAzureDevOps
    pages: list[str]
    items: list[int]

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    def index(self, *args: str) -> dict[str, Any]:
        answer = self.site.larder("index", *args, "--json", timeout=240)
        assert answer.code in (0, 3), answer.err
        runs: dict[str, Any] = {run["source"]: run for run in answer.data["runs"]}
        return runs

    def stored(self, source: str) -> dict[str, str]:
        """What a search can find: external id -> version and all text."""
        of = {"source_id": self.ledger.sources.one(name=source)["id"], "state": "done"}
        found = {}
        for one in self.ledger.documents(**of, hidden=False, deleted=False):
            if texts := self.ledger.chunks.values("content", document_id=one["id"]):
                version = one["metadata"].get("version", one["metadata"].get("rev"))
                found[one["external_id"]] = f"{version}: {' '.join(texts)}"
        return found

    def expect_both(self) -> None:
        """The store equals the services, item by item."""
        stored = self.stored("wiki")
        pages = {page.id: page for page in self.wiki.living("page") if not page.restrictions}
        assert set(stored) == set(pages)
        for page in pages.values():
            assert stored[page.id].startswith(f"{page.version}: "), page.id
            assert word_of(page.body) in stored[page.id], page.id
        stored = self.stored("boards")
        items = {str(i): item for i, item in self.boards.items.items() if item.living}
        assert set(stored) == set(items)
        for key, item in items.items():
            assert stored[key].startswith(f"{item.now.rev}: "), key

    def nothing_is_gone(self) -> None:
        """Nothing was hidden or deleted that the service did not delete."""
        assert set(self.ledger.sources.values("held")) == {0}
        assert self.ledger.documents.values("external_id", hidden=True, deleted=False) == []


def word_of(body: str) -> str:
    """The one word that a page is known by."""
    return next(
        word for word in body.replace("<", " ").replace(">", " ").split() if word.startswith("marker")
    )


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    site = Site(tmp_path_factory.mktemp("town"))
    with FakeConfluence("cloud") as wiki, FakeAzureDevOps() as boards:
        wiki.add_space("ENG")
        pages = []
        for n in range(PAGES):
            wiki.advance(seconds=20)
            pages.append(wiki.add_page("ENG", f"Page {n}", f"<p>Text of marker{n}first here.</p>"))
        boards.add_project("Shop")
        items = list(boards.bulk("Shop", ITEMS))
        config = CONFIG.format(
            wiki=wiki.base, user=wiki.email, token=wiki.token, boards=boards.url, pat=boards.pat
        )
        site.write("larder.yaml", config)
        with indexing(site.root) as fleet:
            yield Town(site, fleet, wiki, boards, pages, items)


def is_data(seen: Seen) -> bool:
    """Not the discovery of an SDK, which it repeats only when it must."""
    return "search" in seen.path or "workitems" in seen.path.lower() or "wiql" in seen.path


class InThreeSeconds(Mapping[str, str]):
    """Retry-After as an HTTP date that is made when it is sent: whole seconds, so two to three from then."""

    def __getitem__(self, name: str) -> str:
        due = datetime.now(UTC) + timedelta(seconds=3)
        return {"Retry-After": format_datetime(due, usegmt=True)}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(["Retry-After"])

    def __len__(self) -> int:
        return 1


FAULTS: dict[str, tuple[float, Callable[[], tuple[Fault, ...]]]] = {
    "429 with seconds": (2.0, lambda: (Fault.status(429, headers={"Retry-After": "2"}),)),
    "429 with a date": (1.5, lambda: (Fault.status(429, headers=InThreeSeconds()),)),
    "429 without, but a reset": (1.0, lambda: (Fault.status(429, headers={"X-RateLimit-Reset": "1"}),)),
    "500, 502, 503 in HTML": (0.0, lambda: (Fault.status(500), Fault.status(502), Fault.status(503))),
    "resets": (0.0, lambda: (Fault.reset(), Fault.reset_in_body(), Fault.cut_body())),
    "truncated JSON": (0.0, lambda: (Fault.truncated(),)),
    "slow": (0.0, lambda: (Fault.slow(3.0),)),
}
"""Name -> the seconds that a refusal names, and what goes wrong, made when it is needed."""
RARE = ("429 with a date", "429 without, but a reset", "truncated JSON", "slow")
"""What the connectors' tests do at every request; the way through the queue is that of the others."""


@pytest.mark.req("001-004", "ORD-01")
def test_the_first_sync_brings_everything(town: Town) -> None:
    runs = town.index()
    assert (runs["wiki"]["indexed"], runs["boards"]["indexed"]) == (PAGES, ITEMS)
    town.expect_both()


def test_an_unchanged_sync_costs_few_requests(town: Town) -> None:
    town.wiki.log.clear()
    town.boards.log.clear()
    runs = town.index()
    assert (runs["wiki"]["queued"], runs["boards"]["queued"]) == (0, 0)
    assert len([seen for seen in town.wiki.log if "user/current" not in seen.path]) <= 3
    assert len([seen for seen in town.boards.log if is_data(seen)]) <= 3


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.drill) if name in RARE else name for name in FAULTS]
)
def test_after_a_round_of_faults_the_store_equals_the_services(town: Town, name: str) -> None:
    number = list(FAULTS).index(name)
    town.wiki.advance(minutes=30)
    town.boards.advance(minutes=30)
    for n in range(3):
        town.wiki.edit(town.pages[number * 3 + n], f"<p>Now marker{number}x{n} it is.</p>")
        town.boards.edit(town.items[number * 3 + n], description=f"<div>now {number} {n}</div>")
    added = town.wiki.add_page("ENG", f"New {name}", f"<p>A marker{number}new one.</p>")
    town.pages.append(added)
    gone = town.items.pop()
    town.boards.delete(gone)
    town.wiki.log.clear()
    town.boards.log.clear()
    wait, made = FAULTS[name]
    for server in (town.wiki, town.boards):
        for fault in made():
            server.faults.next(fault, when=is_data)
    town.index()
    assert (town.wiki.faults.waiting, town.boards.faults.waiting) == (0, 0)
    town.expect_both()
    town.nothing_is_gone()
    for server in (town.wiki, town.boards):
        obeyed(server, wait)


def obeyed(server: FakeServer, seconds: float) -> None:
    """No request came before the time that a 429 named."""
    asked = [seen.until for seen in server.log if seen.status == 429]
    assert bool(asked) is (seconds > 0)
    for when in asked:
        early = [s.target for s in server.log if when < s.at < when + seconds - 0.05]
        assert not early, early


def test_a_sign_in_page_stops_the_source_with_the_reason_and_deletes_nothing(town: Town) -> None:
    before = town.stored("wiki")
    town.wiki.faults.next(Fault.html(200), when=is_data)
    answer = town.site.larder("index", "wiki", "--json", timeout=120)
    assert answer.code == 1
    assert "sign-in" in answer.out
    assert town.stored("wiki") == before
    town.index("wiki")
    town.expect_both()


def test_a_token_revoked_midway_deletes_nothing_and_is_told(town: Town) -> None:
    token, before = town.boards.pat, town.stored("boards")
    town.boards.pat = "another"
    answer = town.site.larder("index", "boards", "--json", timeout=120)
    assert answer.code == 1
    assert town.stored("boards") == before
    status = town.site.larder("status", "--json").data
    told = next(s["last_error"] for s in status["sources"] if s["name"] == "boards")
    assert "token" in told
    assert token not in json.dumps(status)
    town.boards.pat = token
    town.index("boards")
    town.expect_both()


def test_a_service_that_lists_a_tenth_is_held_for_a_person(town: Town) -> None:
    before = town.stored("wiki")
    town.wiki.lists_only(0.1)
    try:
        town.site.larder("sources", "reconcile", "wiki", "--json", timeout=120)
        settle(town)
        assert town.stored("wiki") == before
        assert town.ledger.sources.one(name="wiki")["held"] > 25
    finally:
        town.wiki.lists_only(1.0)
    town.site.larder("sources", "reconcile", "wiki", "--json", timeout=120)
    settle(town)
    assert town.ledger.sources.values("held", name="wiki") == [0]
    town.expect_both()


@pytest.mark.req("001-141")
def test_what_only_the_walk_can_see_is_seen_by_it(town: Town) -> None:
    wiki, boards = town.wiki, town.boards
    wiki.label(town.pages[40], "harvest")
    wiki.restrict(town.pages[41], [("user", "carol")])
    wiki.purge(town.pages.pop(42))
    wiki.trash(town.pages.pop(42))
    boards.destroy(town.items.pop())
    for _ in range(2):  # absent once is hidden, absent twice is deleted
        for name in ("wiki", "boards"):
            town.site.larder("sources", "reconcile", name, "--json", timeout=120)
        settle(town)
    town.expect_both()
    assert town.ledger.documents.values("tags", external_id=town.pages[40]) == [["harvest"]]
    wiki.unrestrict(town.pages[41])
    town.site.larder("sources", "reconcile", "wiki", "--json", timeout=120)
    settle(town)
    town.expect_both()


def test_check_says_who_reads_what(town: Town) -> None:
    answer = town.site.larder("sources", "check", "wiki", "boards", "--json")
    assert answer.code == 0, answer.out
    assert town.wiki.token not in answer.out
    assert town.boards.pat not in answer.out


def test_no_secret_lies_in_the_broker_the_logs_or_the_database(town: Town) -> None:
    logs = list(town.fleet.root.glob("*.log"))
    assert len(logs) == len(town.fleet.processes)
    for path in logs:
        text = path.read_text(errors="replace")
        assert town.wiki.token not in text, path
        assert town.boards.pat not in text, path
    assert town.boards.pat not in json.dumps(town.ledger.sources.values("config"))


def settle(town: Town) -> None:
    """Wait until no run is open."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if len(town.ledger.runs(finished_at=None)) == 0:
            return
        time.sleep(0.1)
    raise AssertionError(town.ledger.runs(finished_at=None))
