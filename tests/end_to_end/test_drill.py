"""Break everything for a while, with work pending to the last fault; then every chunk and every answer is accounted for.

A test takes a small share of the table of faults; `make drill` (LARDER_DRILL=10) all of it over 2,000 documents. Beside
PostgreSQL a test has Chroma as the active vector store; with LARDER_DRILL, also 1 for the small share, each of SERVERS.
`make soak` goes on for LARDER_SOAK minutes and looks at what grows.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter

import numpy as np
import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.search.stores.mirror import NOBODY
from tests.connectors.rest.world import source_for
from tests.connectors.worlds import SourceStore
from tests.end_to_end.attacked import TENANTS, Drill, asking, installed, report
from tests.end_to_end.faults import FAULTS, STORE_FAULTS
from tests.end_to_end.store_servers import SERVERS, Unreadable
from tests.fakes.rest_service import TOKEN, FakeJira
from tests.fakes.server import Fault

DRILL = os.environ.get("LARDER_DRILL", "")
FULL = DRILL == "10"
QUICK = (
    "worker killed", "child killed", "child paused past its lease", "connections cut without FIN", "broker wiped",
    "PostgreSQL backend killed",
)  # fmt: skip
"""The share of a test: what is neither slow nor shown by a test of its own."""


MOST_MISSED = 20
"""Faults of one kind that may find nothing to strike."""
HALF = 1e-3
"""Difference between numbers of a vector in PostgreSQL, of half precision, and the same in a vector store."""
MINUTES = float(os.environ.get("LARDER_SOAK", "0"))
SPARING = (
    "child paused past its lease", "child paused in a transaction", "connections cut without FIN", "broker wiped",
    "PostgreSQL backend killed", "failover to read-only and back",
)  # fmt: skip
"""Faults of the soak: they leave the processes whose memory is looked at."""


def planned(drill: Drill) -> list[str]:
    """Names of faults in the order in which they come."""
    every = [name for name, (times, _) in FAULTS.items() for _ in range(times)] if FULL else list(QUICK)
    if drill.vectors:
        every += [name for name, (times, _) in STORE_FAULTS.items() for _ in range(times if FULL else 1)]
    drill.chance.shuffle(every)
    return every


@pytest.mark.timeout(3600)
@pytest.mark.req("ORD-02", "ORD-03")
@pytest.mark.parametrize(
    "vectors",
    [
        pytest.param("", id="pgvector"),
        *(
            pytest.param(name, marks=() if name == "chroma" or DRILL else pytest.mark.drill)
            for name in SERVERS
        ),
    ],
)
def test_nothing_is_lost_doubled_or_stale_whatever_fails(vectors: str) -> None:
    pages, lease, poison = (1000, 10.0, 3) if FULL else (20, 1.0, 1)
    begun = time.monotonic()
    with installed(lease=lease, pages=pages, poison=poison, clocks_move=FULL, vectors=vectors) as drill:
        hit: Counter[str] = Counter()
        missed: Counter[str] = Counter()
        plan = planned(drill)
        with asking(drill):
            drill.publish()
            for step, name in enumerate(plan):
                struck = False
                while not struck:
                    if drill.pending < pages // 10:
                        drill.feed(pages // 10 if step > 0.9 * len(plan) or not FULL else None)
                    waits = drill.pending > 0 or (name in STORE_FAULTS and drill.unsent > 0)
                    struck = strike(drill, name)
                    missed[name] += not struck
                    assert missed[name] < MOST_MISSED, f"{name} strikes nothing"
                hit[name] += waits
                if FULL:
                    told = f"{time.monotonic() - begun:6.0f} s {step:4} {name}, {drill.pending} pending"
                    print(told, flush=True)
            drill.heal()
        seconds = 300 if FULL else 60
        done, carried = drill.settled(seconds, store=False), drill.settled(seconds)
        assert done is not None, drill.standing()
        assert carried is not None, drill.standing()
        lost = drill.damage()
        refused = repaired_reads(drill)
        beside = damage_beside(drill)
        versions = max(drill.versions.values())
        values = {
            "documents": len(TENANTS) * pages,
            "versions": versions,
            "faults": dict(Counter(plan)),
            "faults with work pending": sum(hit.values()),
            "struck nothing and came again": dict(missed),
            "enrichments accepted": sum(len(asker.accepted) for asker in drill.askers),
            "enrichments refused at once": sum(asker.refused for asker in drill.askers),
            "ended by force after being told to": sum(drill.forced.values()),
            "met the full disk": drill.seen_full,
            "batches whose mirror worker was killed": len(drill.batches),
            "damage": dict(lost),
            "reads refused until the doctor's repair": refused or "none",
            "damage of the vector store": dict(beside),
            "seconds from the last fault to done": round(done, 1),
            "two leases": 2 * lease,
            "seconds from then to all in the vector store": round(carried, 1),
            "seconds": round(time.monotonic() - begun),
        }
        report(f"drill with {vectors}" if vectors else "drill", values)
        assert not +lost
        assert not +beside
        assert drill.dead() == {f"{TENANTS[0]}/poison-{n}.md" for n in range(poison)}
        assert set(drill.ledger.dead.values("crash_count", resolved_at=None)) == {3}
        assert sum(hit.values()) >= 0.9 * len(plan), "the faults must hit work"
        assert not FULL or (done <= 2 * lease and versions >= 3)


def repaired_reads(drill: Drill) -> str:
    """Have the product repair a store that refuses to read its points; returns the error, empty if there is none."""
    try:
        if drill.vectors:
            drill.vectors.points()
    except Unreadable as error:
        repair = drill.fleet.larder("doctor", "--repair")
        assert drill.settled(300 if FULL else 60) is not None, (repair.stdout, drill.standing())
        return str(error)
    return ""


def damage_beside(drill: Drill) -> Counter[str]:
    """Chunks that the vector store has lost, has besides, or has with another vector than PostgreSQL."""
    if drill.vectors is None:
        return Counter()
    held = drill.vectors.points()
    rows = drill.sql("""
        select format('drill-chunks-%s %s %s:%s', c.index_id, c.tenant_id, c.document_id, c.ord), c.embedding::text
        from chunk c join document d on d.id = c.document_id
        where c.embedding is not null and not d.hidden and not d.deleted""")
    wanted = {key: np.asarray(json.loads(vector)) for key, vector in rows}
    return Counter(
        lost=len(wanted.keys() - held.keys()),
        besides=sum(str(NOBODY) not in key for key in held.keys() - wanted.keys()),
        stale=sum(not np.allclose(wanted[key], held[key], atol=HALF) for key in wanted.keys() & held.keys()),
    )


BOARD = """
    - name: board
      type: rest
      preset: jira
      baseUrl: {address}
      auth: {{bearer: {token}}}
      values: {{jql: project = SHOP}}
      tenant: red
      autoIndex: false
"""


def chunks_of(board: FakeJira) -> dict[str, Counter[str]]:
    """Chunks of what the service has, by the key of the issue."""
    store, chunker = SourceStore(), open_chunker(ChunkingOptions(max_size=300, overlap=50))
    store.sync(source_for(board, preset="jira", values={"jql": "project = SHOP"}))
    return {
        key: Counter(c.content for c in chunker.chunk(document)) for key, document in store.documents.items()
    }


def searchable(drill: Drill) -> dict[str, Counter[str]]:
    """Chunks of issues that a search may find, by the key of the issue."""
    ledger = drill.ledger
    board = ledger.sources.one(name="board")["id"]
    shown = ledger.documents.values("id", "external_id", source_id=board, hidden=False, deleted=False)
    contents = {key: Counter(ledger.chunks.values("content", document_id=key)) for key, _ in shown}
    return {name: contents[key] for key, name in shown if contents[key]}


def edit(board: FakeJira, drill: Drill, count: int) -> None:
    """Edit, comment on, delete and add issues, have a sync look at them, and let the service stumble."""
    keys = drill.chance.sample(sorted(board.records), count)
    with board.lock:
        for key in keys[2:]:
            board.edit(key, f"What {key} says at {board.tick()}. " * 20)
        board.comment(keys[1], f"A comment at {board.tick()}. " * 10)
        last, new = board.add("New. " * 30), f"SHOP-{1000 + len(board.log)}"
        board.records[new] = {**board.records.pop(last), "key": new}
        del board.records[keys[0]]
    board.faults.next(Fault.status(429, headers={"Retry-After": "1"}))
    drill.sql("update source set next_sync_at = now() returning id")


@pytest.mark.timeout(3600)
def test_nothing_of_a_board_is_lost_doubled_or_stale_whatever_fails() -> None:
    lease, issues, times = (10.0, 500, 3) if FULL else (1.0, 60, 1)
    with FakeJira() as board:
        for n in range(issues):
            board.add(f"Text {n}. " * 40)
        source = BOARD.format(address=board.address, token=TOKEN)
        with installed(lease=lease, pages=20, poison=0, source=source) as drill:
            plan = [name for name in QUICK for _ in range(times)]
            drill.chance.shuffle(plan)
            edit(board, drill, issues // 5)
            board.faults.next(Fault.cut_body())
            struck = Counter[str]()
            for name in plan:
                edit(board, drill, issues // 10)
                end = time.monotonic() + 15
                while not drill.pending and time.monotonic() < end:
                    drill.tend()
                    time.sleep(0.05)
                struck[name] += drill.pending > 0
                strike(drill, name)
            drill.heal()
            for _ in range(2):  # what is absent once is hidden, and gone if it is absent twice
                assert drill.settled(300 if FULL else 90) is not None, drill.standing()
                drill.sql("update source set next_sync_at = now(), next_walk_at = now() returning id")
            assert drill.settled(300 if FULL else 90) is not None, drill.standing()
            expected, actual = chunks_of(board), searchable(drill)
            lost = {key: chunks - actual.get(key, Counter()) for key, chunks in expected.items()}
            more = {key: chunks - expected.get(key, Counter()) for key, chunks in actual.items()}
            values = {
                "issues": len(expected),
                "faults": dict(Counter(plan)),
                "faults with work pending": struck.total(),
                "lost": sum(map(Counter.total, lost.values())),
                "doubled or stale": sum(map(Counter.total, more.values())),
            }
            report("drill_jira", values)
            assert not any(lost.values())
            assert not any(more.values())
            assert drill.dead() == set()
            assert struck.total() >= len(plan) / 2, "the faults must hit work"


def strike(drill: Drill, name: str) -> bool:
    """Have a fault, and let work go on before the next one: who is killed while they start is killed at nothing.

    False if there was nothing to strike.
    """
    struck = {**FAULTS, **STORE_FAULTS}[name][1](drill)
    time.sleep(drill.chance.uniform(0.1, 0.6))
    drill.tend()
    if FULL or MINUTES:
        drill.until_indexed(5.0)
    return struck


@pytest.mark.drill
@pytest.mark.timeout(0)
@pytest.mark.skipif(not MINUTES, reason="LARDER_SOAK names its minutes")
def test_nothing_grows_while_the_same_work_is_done_again_and_again() -> None:
    begun, sizes = time.monotonic(), []
    with installed(lease=4.0, pages=150, kept={"megabytes": 4, "days": 0, "hours": 0.1}) as drill:
        while time.monotonic() - begun < MINUTES * 60:
            with asking(drill):
                drill.publish()
                for name in drill.chance.sample(SPARING, 3):
                    strike(drill, name)
                drill.heal()
            assert drill.settled(120) is not None, drill.standing()
            assert not +drill.damage()
            for asker in drill.askers:
                asker.accepted.clear()  # their answers go some time
            drill.trim()
            sizes.append(drill.sizes())
            print(f"{time.monotonic() - begun:6.0f} s {sizes[-1]}", flush=True)
        third = max(1, len(sizes) // 3)
        first, last = sizes[third : 2 * third], sizes[-third:]  # what a process takes at first is no growth
        growth = {
            what: sum(s[what] for s in last) / len(last) / (sum(s[what] for s in first) / len(first)) - 1
            for what in sizes[0]
        }
        report(
            "soak",
            {"minutes": MINUTES, "rounds": len(sizes), "last": sizes[-1]}
            | {"growth": {what: f"{share:+.1%}" for what, share in growth.items()}},
        )
        assert max(growth.values()) < 0.05, growth
