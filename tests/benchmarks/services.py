"""Large services through the real queue: requests, time and memory; the services are fakes on this machine."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.confluence import FakeConfluence

if TYPE_CHECKING:
    from tests.benchmarks.bench import Site

CONFIG = """
rag:
  embedding: {{provider: hashing}}
  retrieval: {{exactBelow: 0}}
  sources:
    - name: wiki
      type: confluence
      baseUrl: {wiki}
      spaceKeys: [ENG]
      auth: {{username: {user}, apiToken: {token}}}
      syncOptions: {{maxPages: null}}
      autoIndex: false
    - name: boards
      type: azure_devops
      organization: {boards}
      project: Shop
      auth: {{pat: {pat}}}
      workItemTypes: [Task]
      maxItems: null
      autoIndex: false
"""


class Memory:
    """The largest growth of any worker child while it runs, in MB."""

    def __init__(self, site: Site) -> None:
        state = json.loads((site.root / ".larder" / "state.json").read_text())
        self._mains = {p["pid"]: p["name"] for p in state["processes"] if p["name"].startswith("worker-")}
        self._names: dict[int, str] = {}
        self._first: dict[int, float] = {}
        self._most: dict[int, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _look(self) -> None:
        for main in self._mains:
            for child in psutil.Process(main).children():
                size = child.memory_info().rss / 1e6
                self._names[child.pid] = self._mains[main]
                self._first.setdefault(child.pid, size)
                self._most[child.pid] = max(size, self._most.get(child.pid, 0.0))

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self._look()

    def __enter__(self) -> Self:
        self._look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def growth(self) -> dict[str, float]:
        """MB by worker, of its child that grew most."""
        found: dict[str, float] = {}
        for pid, name in self._names.items():
            found[name] = max(found.get(name, 0.0), self._most[pid] - self._first[pid])
        return found


def measure(site: Site, *, pages: int, items: int) -> Iterator[dict[str, Any]]:
    """Rows for the table: first sync, unchanged sync, walk; `site` is empty and not yet started."""
    with FakeConfluence("cloud") as wiki, FakeAzureDevOps() as boards:
        wiki.add_space("ENG")
        for n in range(pages):
            if n % 40 == 0:
                wiki.advance(minutes=1)
            wiki.add_page("ENG", f"Page {n}", f"<h2>Part {n % 9}</h2><p>Text {n} about harbours.</p>" * 6)
        boards.add_project("Shop")
        boards.bulk("Shop", items)
        (site.root / "larder.yaml").write_text(
            CONFIG.format(
                wiki=wiki.base, user=wiki.email, token=wiki.token, boards=boards.url, pat=boards.pat
            )
        )
        site.larder("up", "--detach", "--no-flower")
        warm = len(wiki.log), len(boards.log)
        site.larder("sources", "check")
        with Memory(site) as memory:
            begun = time.perf_counter()
            first = {run["source"]: run for run in site.larder("index")["runs"]}
            seconds = time.perf_counter() - begun
        assert (first["wiki"]["indexed"], first["boards"]["indexed"]) == (pages, items), first
        requests = len(wiki.log) - warm[0], len(boards.log) - warm[1]
        yield {
            "what": "services: growth of a worker child at the first sync",
            "value": max(memory.growth.values()),
            "unit": "MB",
            "must": 50,
            "at_most": True,
            "detail": f"{pages} pages with {requests[0]} requests, {items} work items with {requests[1]}, {seconds:.0f} s; "
            + ", ".join(f"{name} {grown:.0f}" for name, grown in memory.growth.items()),
        }
        wiki.log.clear()
        boards.log.clear()
        again = {run["source"]: run for run in site.larder("index")["runs"]}
        assert (again["wiki"]["queued"], again["boards"]["queued"]) == (0, 0), again
        asked = len([s for s in wiki.log if "user/current" not in s.path])
        data = len([s for s in boards.log if "workitem" in s.path.lower() or "wiql" in s.path])
        yield {
            "what": "services: requests of an unchanged sync",
            "value": float(max(asked, data)),
            "unit": "",
            "must": 3,
            "at_most": True,
            "detail": f"wiki {asked} of {len(wiki.log)}, boards {data} of {len(boards.log)} (the rest is discovery)",
        }
