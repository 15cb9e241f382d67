"""MiniLM to hashing and back, by real workers that are killed, while searches run and documents change."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pipeline.search import SearchRequest
from tests.end_to_end.fleet import Fleet, indexers
from workers.app import search
from workers.local.embedded.locating import open_runtime
from workers.settings import load

PAGES, THEIRS = 24, 4
CONFIG = """
rag:
  queue: {leaseSeconds: 3, resendSeconds: 6, batchDocuments: 4, tickSeconds: 0.5, visibilityTimeout: 30,
          timeLimit: 20, softTimeLimit: 15, retryBaseSeconds: 0.5}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}
    - {name: theirs, tenant: guests, type: markdown, paths: ['./theirs/*.md'], autoIndex: false}
"""
LIKE = 0.5
"""A page is at least so similar to its own first words by either model; by the vectors of two models it is not."""


@dataclass
class Installation:
    """Workers and beat of the drill, whose hashing is slow enough to be killed in the middle."""

    fleet: Fleet

    @property
    def root(self) -> Path:
        return self.fleet.root

    def page(self, name: str, words: str) -> None:
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {path.stem}\n\n{words}\n")

    def larder(self, *args: str, code: int = 0) -> Any:
        done = self.fleet.larder(*args, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    def sql(self, query: str) -> list[tuple[Any, ...]]:
        return self.fleet.sql(query)

    def until(self, reached: Callable[[], object], seconds: float = 240) -> None:
        """Wait until that is so; workers that are gone are started again."""
        end = time.monotonic() + seconds
        while not reached():
            assert time.monotonic() < end
            self.fleet.revive()
            time.sleep(0.1)

    def contents(self, model: str) -> dict[str, str]:
        """What an index holds, by the document's name."""
        rows = self.sql(f"""
            select t.name || '/' || d.external_id, c.content from chunk c join document d on d.id = c.document_id
            join tenant t on t.id = c.tenant_id join search_index i on i.id = c.index_id
            where i.model = '{model}' and not d.hidden and not d.deleted order by 1, c.ord""")
        found: dict[str, str] = {}
        for name, content in rows:
            found[name] = found.get(name, "") + content
        return found


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Installation]:
    (tmp_path / "larder.yaml").write_text(CONFIG)
    fleet = Fleet.started(tmp_path, Path(__file__).with_name("drill_process.py"), indexers())
    fleet.env["DRILL_SECONDS_PER_TEXT"] = "0.3"
    yield Installation(fleet)
    fleet.stop()


@dataclass
class Searches:
    """Asks for page 5 again and again until it is told to stop."""

    ask: Callable[[], Any]
    stopping: threading.Event = field(default_factory=threading.Event)
    models: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def run(self) -> None:
        while not self.stopping.wait(0.02):
            try:
                found = self.ask()
            except Exception as error:  # noqa: BLE001 - whatever it is, the test fails with it
                self.faults.append(repr(error))
                continue
            best = found.hits[0] if found.hits else None
            likeness = best.explanation.similarity if best else 0.0
            if found.degradation_level or best is None or best.document.title != "page-5" or likeness < LIKE:
                self.faults.append(f"{found.model} {found.degradation_level} {likeness}")
            self.models.append(found.model)


def words_of(number: int) -> str:
    return f"Herons of kind {number} nest in the reeds of pond {number} and eat {number} frogs."


BEHIND = """
    select not exists (select from search_index i cross join document d left join index_document x
        on x.index_id = i.id and x.document_id = d.id
        where not d.deleted and coalesce(x.version, 0) < d.indexed_version)"""


@pytest.mark.timeout(600)
def test_there_and_back_while_searches_run_workers_die_and_documents_change(here: Installation) -> None:
    for number in range(PAGES):
        here.page(f"docs/page-{number}.md", words_of(number))
    for number in range(THEIRS):
        here.page(f"theirs/page-{number}.md", f"Of guests: {words_of(number)}")
    here.larder("index", "--no-wait")
    here.fleet.revive()
    here.until(lambda: len(here.fleet.ledger.documents(state="done")) == PAGES + THEIRS)
    parts = open_runtime(load(here.root / "larder.yaml", {}))
    question = SearchRequest(text=words_of(5), explain=True)
    searches = Searches(lambda: search.search(parts, parts.settings.tenant_id, question, by="ann"))
    thread = threading.Thread(target=searches.run)
    thread.start()
    try:
        there_and_back(here)
    finally:
        searches.stopping.set()
        thread.join()
        parts.close()
    assert searches.faults == []
    assert set(searches.models) == {"all-MiniLM-L6-v2", "hashing-384"}
    assert searches.models[-1] == "all-MiniLM-L6-v2"


def there_and_back(here: Installation) -> None:
    held = here.root / "held-texts"
    held.write_text(f"pond {PAGES - 1} ")  # or all could be filled before anybody looks
    here.larder("reindex", "--provider", "hashing")
    here.until(lambda: here.fleet.ledger.chunks(index_id=2))
    here.fleet.kill("embed")
    held.unlink()
    refused = here.larder("reindex", "switch", code=2)
    assert "lacks" in refused["error"]["message"]
    here.page("docs/page-0.md", "Changed while the new index was filled.")
    (here.root / "docs/page-1.md").unlink()
    (here.root / "docs/page-2.md").unlink()
    here.fleet.revive()
    for _ in range(2):  # absent once: hidden; twice: deleted
        here.larder("index")
        (here.root / "docs/page-2.md").write_text(f"# page-2\n\n{words_of(2)}\n")
    here.until(lambda: here.sql(BEHIND)[0][0])
    switched = here.larder("reindex", "switch")
    assert switched["active"] == 2
    here.page("docs/page-3.md", "Changed after the switch.")
    here.page("docs/page-new.md", "New after the switch.")
    (here.root / "docs/page-4.md").unlink()
    for _ in range(2):
        here.larder("index")
    here.until(lambda: here.sql(BEHIND)[0][0])
    wanted = {
        f"{tenant}/{path.relative_to(here.root)}": path.read_text().strip()
        for tenant, folder in (("default", "docs"), ("guests", "theirs"))
        for path in (here.root / folder).iterdir()
    }
    assert here.contents("hashing-384") == wanted
    assert here.contents("all-MiniLM-L6-v2") == wanted
    assert here.larder("reindex", "rollback")["active"] == 1
    ledger = here.fleet.ledger
    assert set(ledger.chunks.values("document_id")) <= set(ledger.documents.values("id"))
    found = here.larder("reindex", "status")
    assert [(i["status"], i["missing"]) for i in found["indexes"]] == [("active", 0), ("retired", 0)]
    assert found["matches"]
    assert here.larder("reindex", "drop", code=2)["error"]["index"] == 2, "not without --yes"
    assert here.larder("reindex", "drop", "--yes")["dropped"] == 2
    assert here.sql("select to_regclass('chunk_2') is null") == [(True,)]
