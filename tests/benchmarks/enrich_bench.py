"""Step 4 beside a full ingest: how long a request waits, how soon it is answered, and what is lost when workers die.

Run by bench.py: `python tests/benchmarks/bench.py --only enrich [--waiting 10000]`.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import redis

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from pipeline.step4 import EnrichContextStep  # noqa: E402
from workers.client import Client  # noqa: E402

if TYPE_CHECKING:
    from tests.benchmarks.bench import Site

CONFIG = """
rag:
  embedding: {provider: minilm}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}
    - {name: load, type: markdown, paths: ['./load/*.md'], autoIndex: false}
"""
SEND = """
import json, sys
from workers.queue.app import configure
from workers.settings.queue import QueueSettings
asked = json.load(sys.stdin)
app = configure(QueueSettings(), asked["broker"])
with app.producer_or_acquire() as producer:
    for task, document, version in asked["documents"]:
        app.send_task(task, args=[asked["tenant"], [[document, version]]], producer=producer)
"""
ASKED, RUNS, PBIS, KILLS = 100, 20, 10, 5


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Seconds of many requests: as the worker and as the asker saw them."""

    waited: list[float]
    answered: list[float]
    cpu: float
    """Of one request, in the worker."""


def measure(site: Site, *, waiting: int) -> Iterator[dict[str, Any]]:
    """Rows for the table; `site` has its pages and is not yet started."""
    (site.root / "larder.yaml").write_text(CONFIG)
    folder = site.root / "load"
    folder.mkdir()
    for number in range(waiting * 11 // 10):  # some are worked through before all are there
        (folder / f"{number:06}.md").write_text(
            f"# Note {number}\n\n{' '.join(site.pages.page(number).split()[:60])}\n"
        )
    site.larder("up", "--detach", "--no-flower")
    site.larder("index", "docs")
    state = json.loads((site.root / ".larder" / "state.json").read_text())
    # A backlog has time: when its worker dies again and again, the supervisor starts the next one ever later.
    with Client(state["database_url"], broker_url=state["broker_url"], deadline=600) as client:
        chance = random.Random(5)
        _ask(site, client, chance, 5)
        yield from _rows("idle", _ask(site, client, chance, ASKED), must=False)
        before = _fill(site, state, waiting)
        asked = _ask(site, client, chance, ASKED)
        after = _lengths(state)
        yield from _rows(
            f"{min(before, after)} to {max(before, after)} ingest tasks waiting", asked, must=True
        )
        yield _killed(site, client, chance)


def _rows(when: str, asked: Asked, *, must: bool) -> Iterator[dict[str, Any]]:
    rows = (("waits for a worker", asked.waited, 100, 30), ("until answered", asked.answered, 500, None))
    for what, seconds, limit, aim in rows:
        times = sorted(1000 * each for each in seconds)
        yield {
            "what": f"Step 4 {what}, p95",
            "value": statistics.quantiles(times, n=20)[18],
            "unit": "ms",
            "must": limit if must else None,
            "aim": aim if must else None,
            "at_most": True,
            "detail": f"{when}; p50 {statistics.median(times):.0f}, most {times[-1]:.0f}, {len(times)} requests"
            f" of {1000 * asked.cpu:.0f} ms of the worker's CPU each",
        }


def _pbi(site: Site, chance: random.Random) -> dict[str, Any]:
    """A PBI that nobody has asked about, in words of the pages."""
    words = site.pages.page(chance.randrange(60)).split()
    at = chance.randrange(len(words) - 60)
    name = f"PBI-{chance.getrandbits(40):x}"
    return {
        "id": name,
        "title": " ".join(words[at : at + 8]),
        "description": " ".join(words[at + 8 : at + 50]),
    }


def _ask(site: Site, client: Client, chance: random.Random, count: int) -> Asked:
    """One after the other: seconds as the asker and as the worker saw them."""
    log = site.root / ".larder" / "logs" / "worker-enrich.log"
    seen = log.stat().st_size
    answered, worked = [], _cpu(site)
    for _ in range(count):
        begun = time.perf_counter()
        found = client.enrich(_pbi(site, chance), {})
        answered.append(time.perf_counter() - begun)
        assert found["degradation_level"] == 0, found["degradation_level"]
    with log.open() as lines:
        lines.seek(seen)
        waited = [float(m[1]) for line in lines if (m := re.search(r"waited ([\d.]+) s", line))]
    return Asked(waited=waited[-count:], answered=answered, cpu=(_cpu(site) - worked) / count)


def _cpu(site: Site) -> float:
    """Seconds that the processes of Step 4's worker have worked."""
    return sum(sum(process.cpu_times()[:2]) for process in _family(site))


def _fill(site: Site, state: dict[str, Any], waiting: int) -> int:
    """So many real documents due, a real message for each; how many messages wait."""
    site.larder("index", "load", "--no-wait")
    while (
        site.one("select count(*) from document d join source s on s.id = d.source_id where s.name = 'load'")
        < waiting
    ):
        time.sleep(0.5)
    with site.connect() as connection:
        rows = connection.execute(
            "select tenant_id, case stage when 'fetched' then 'larder.chunk' else 'larder.embed' end, document_id, version"
            " from index_work where not dead and stage in ('fetched', 'chunked') order by due_at desc limit %s",
            (waiting,),
        ).fetchall()
    documents = [[task, str(document), version] for _, task, document, version in rows]
    asked = {"broker": state["broker_url"], "tenant": str(rows[0][0]), "documents": documents}
    subprocess.run([sys.executable, "-c", SEND], cwd=ROOT, input=json.dumps(asked), text=True, check=True)
    return _lengths(state)


def _lengths(state: dict[str, Any]) -> int:
    with redis.Redis.from_url(state["broker_url"]) as broker:
        return sum(int(broker.llen(queue)) for queue in ("ingest", "embed"))


def _killed(site: Site, client: Client, chance: random.Random) -> dict[str, Any]:
    """Many runs at once while the worker of Step 4 is killed with all its children, again and again."""
    runs = [[_pbi(site, chance) for _ in range(PBIS)] for _ in range(RUNS)]

    def run(pbis: list[dict[str, Any]]) -> list[int]:
        context = {"scored_pbis": {"scored_pbis": [{"pbi": pbi, "scores": {}} for pbi in pbis]}}
        made = EnrichContextStep(client).execute(context)["enriched_pbis"]["enriched_pbis"]
        assert [one["pbi"] for one in made] == pbis
        return [one["context"]["degradation_level"] for one in made]

    done = "select count(*) from enrichment_job where state = 'done'"
    begun, first = time.perf_counter(), int(site.one(done))
    with ThreadPoolExecutor(RUNS) as pool:
        running = [pool.submit(run, pbis) for pbis in runs]
        for kill in range(KILLS):
            while site.one(done) < first + (kill + 1) * RUNS * PBIS // (KILLS + 2):
                time.sleep(0.02)
            _kill(site)
        levels = Counter(level for one in running for level in one.result())
    states = Counter(
        {
            str(row[0]): int(row[1])
            for row in site.connect()
            .execute("select state, count(*) from enrichment_job group by 1")
            .fetchall()
        }
    )
    return {
        "what": f"Step 4: {RUNS} runs of {PBIS} PBIs, {KILLS} kills, not answered in full",
        "value": float(RUNS * PBIS - levels[0]),
        "unit": "",
        "must": 0,
        "at_most": True,
        "detail": f"{time.perf_counter() - begun:.0f} s, levels {dict(levels)}, jobs {dict(states)}",
    }


def _kill(site: Site) -> None:
    for process in _family(site):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _family(site: Site) -> list[psutil.Process]:
    """The worker of Step 4 as it runs now, with its children."""
    processes = json.loads((site.root / ".larder" / "state.json").read_text())["processes"]
    worker = next(p["pid"] for p in processes if p["name"] == "worker-enrich")
    with suppress(psutil.NoSuchProcess):
        return [*psutil.Process(worker).children(recursive=True), psutil.Process(worker)]
    return []
