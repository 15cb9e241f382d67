"""The judgement of an installation by its status document: what is wrong, and in which order it is told."""

from __future__ import annotations

from typing import Any

import pytest

from workers.app.health.judgement import judge
from workers.queue.celeryconfig import INDEXING, QUEUES


def calm(**changes: Any) -> dict[str, Any]:
    """A status with nothing to do, apart from `changes` to its source."""
    source: dict[str, Any] = {
        "name": "docs",
        "type": "markdown",
        "next_sync": None,
        "dead": 0,
        "held": 0,
        "left_out": {},
        "noted": 0,
        "problems": [],
        "documents": 3,
        "pending": 0,
        "last_error": None,
        "removed": False,
        "paused": False,
        "freshness_seconds": 5.0,
    }
    worker = {"name": "w@h", "queues": list(QUEUES), "age_seconds": 1.0}
    return {
        "sources": [{**source, **changes}],
        "backlog": {"pending": 0, "oldest_due_seconds": None},
        "workers": [worker],
        "canaries": {},
        "broker": "ok",
        "broker_error": "",
        "broker_shared_with": "",
        "configuration_changes": [],
        "unwatched": [],
        "missing_folders": {},
        "unconfigured": [],
        "database": "ok",
        "unserved": {},
        "database_seconds": 0.001,
        "embedding": {"state": "ok"},
        "enrichment": {"waiting": 0, "failed": 0},
        "disk_free": 2_000_000_000,
        "other_indexes": [],
        "index_mismatch": "",
        "vector_stores": {"provider": "pgvector", "answers": "pgvector", "stores": []},
    }


def stores(provider: str = "chroma", **changes: Any) -> dict[str, Any]:
    """The state of an installation with Chroma beside PostgreSQL, `changes` to its store made."""
    from pipeline.search.stores.backlog import NOT_ADDED

    store = {**NOT_ADDED, "name": "chroma", "status": "ready", "active": True, "configured": True, **changes}
    document = {"provider": provider, "answers": "chroma", "stores": [store]}
    return {
        **calm(),
        "workers": [{"name": "w", "queues": [*QUEUES, "mirror"], "age_seconds": 1.0}],
        "vector_stores": document,
    }


ADVICE: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": (calm(), ""),
    "a store that is well": (stores(outbox=3, oldest_unsent_seconds=1.0), ""),
    "a store that nobody fills": (
        {**stores(outbox=3), "workers": calm()["workers"]},
        "3 changes wait for chroma and no worker serves mirror: larder up",
    ),
    "a store that fails": (
        stores(failures=2, last_error="chroma answered 503"),
        "the vector store chroma fails: chroma answered 503: larder stores check chroma",
    ),
    "a store that refused": (
        stores(refused=1, last_error="it refuses a value"),
        "the vector store chroma refused 1 chunk: it refuses a value: larder stores rebuild chroma",
    ),
    "a store that is gone from the file": (
        stores("pgvector", configured=False),
        "its changes are still noted: larder stores switch pgvector, larder stores drop chroma",
    ),
    "another provider in the file": (
        stores(active=False),
        "searches ask pgvector, and the configuration names chroma: larder stores switch chroma",
    ),
    "a store that is filled": (stores(active=False, status="filling"), ""),
    "no store added yet": (stores(active=False, status="not added"), ""),
    "failed files": (
        calm(problems=[{"item": "a.md", "reason": "it is not UTF-8", "outcome": "failed"}]),
        "1 of docs could not be taken in: correct what `larder runs docs` names",
    ),
    "nothing stored of what is shown": (
        calm(documents=0, left_out={"not open to everybody": 2, "restrictions unreadable": 300}),
        "docs has no documents though it shows items, 302 excluded: restrictions unreadable: 300; not open to everybody: 2",
    ),
    "some left out": (calm(left_out={"not open to everybody": 2}), ""),
    "dead": (calm(dead=2), "2 dead letters: larder dead list"),
    "one dead": (calm(dead=1), "1 dead letter: larder dead list"),
    "held": (calm(held=40, dead=1), "larder sources release docs"),
    "failing": (calm(last_error="no", held=1), "larder sources check docs"),
    "failing but removed": (calm(last_error="no", removed=True), ""),
    "late": (
        {**calm(last_error="no"), "backlog": {"pending": 1, "oldest_due_seconds": 900.0}},
        "15 minutes: larder doctor",
    ),
    "no worker": (
        {**calm(), "workers": [], "backlog": {"pending": 3, "oldest_due_seconds": 900.0}},
        "3 documents wait and no worker serves control, embed, ingest: larder up --detach",
    ),
    "step 4 without a worker": (
        {
            **calm(dead=1),
            "workers": [{"name": "w", "queues": [*INDEXING], "age_seconds": 1.0}],
            "enrichment": {"waiting": 1, "failed": 0},
        },
        "Step 4 waits and no worker serves enrich: larder up --detach",
    ),
    "nobody keeps the schedule": (
        {**calm(next_sync="2026-01-01T00:00:00+00:00"), "workers": []},
        "no worker is running, so no schedule is kept: larder up --detach",
    ),
    "no schedule to keep": ({**calm(), "workers": []}, ""),
    "a schedule is kept": (calm(next_sync="2026-01-01T00:00:00+00:00"), ""),
    "refused uploads": (
        calm(type="upload", problems=[{"item": "a.md", "reason": "it is not UTF-8", "outcome": "failed"}]),
        "",
    ),
    "full disk": (
        {**calm(dead=1), "disk_free": 12_000_000, "broker": "error", "broker_error": "does not answer"},
        "12 MB are free on the disk of the data, and PostgreSQL stops when it is full: make room",
    ),
    "silent worker": (
        {
            **calm(),
            "workers": [{"name": "w", "queues": list(QUEUES), "age_seconds": 31.0}],
            "backlog": {"pending": 3, "oldest_due_seconds": None},
        },
        "larder up --detach",
    ),
    "no broker": (
        {**calm(dead=1), "broker": "error", "broker_error": "does not answer"},
        "the broker does not answer",
    ),
    "a failed job": (
        {**calm(), "enrichment": {"waiting": 0, "failed": 1}},
        "1 job of user stories failed: larder dead list",
    ),
    "slow": ({**calm(dead=1), "database_seconds": 2.1}, "the database takes 2.1 s for each answer"),
    "nothing is embedded": (
        {**calm(last_error="no"), "embedding": {"state": "held", "error": "no key"}},
        "nothing is embedded: no key",
    ),
    "a full index": (
        {**calm(), "other_indexes": [{"status": "building", "missing": 0}], "index_mismatch": "another"},
        "larder reindex switch",
    ),
    "being filled": (
        {**calm(), "other_indexes": [{"status": "building", "missing": 1}], "index_mismatch": "another"},
        "",
    ),
    "another model": ({**calm(), "index_mismatch": "another"}, "another: run larder reindex"),
    "no source": ({**calm(), "sources": []}, "larder config init"),
    "never synced, workers will do it": (calm(freshness_seconds=None), ""),
    "never synced": ({**calm(freshness_seconds=None), "workers": []}, "docs was never synced: larder index"),
}


def test_sources_of_several_tenants_are_named_as_commands_take_them() -> None:
    found = calm(held=3)
    [mine] = found["sources"]
    found["sources"] = [mine | {"tenant": "acme"}, mine | {"tenant": "other", "held": 0}]
    assert "larder sources release acme/docs" in {one.fix.partition(": ")[2] for one in judge(found)}


@pytest.mark.parametrize("case", ADVICE)
def test_the_most_urgent_thing_comes_first(case: str) -> None:
    found, said = ADVICE[case]
    first = next((f"{one.detail}: {one.fix}" for one in judge(found)), "")
    assert said in first
    assert bool(first) == bool(said)


WRONG = {
    **calm(last_error="no", dead=3, held=40, problems=[{"item": "a", "reason": "r", "outcome": "failed"}]),
    "workers": [{"name": "w", "queues": ["control", "ingest"], "age_seconds": 1.0}],
    "unserved": {"embed": 1320.0, "enrich": 1320.0},
    "broker": "error",
    "broker_error": "does not answer",
    "disk_free": 12_000_000,
    "embedding": {"state": "held", "error": "no key"},
    "database_seconds": 2.1,
    "index_mismatch": "another",
}


def test_a_queue_without_a_worker_is_first_whatever_else_is_wrong_and_errors_come_before_warnings() -> None:
    found = judge(WRONG)
    assert found[0].detail == "no worker has served embed, enrich for 22 minutes"
    assert [one.status for one in found] == sorted(one.status for one in found), "error, then warning"
    checks = [one.check for one in found]
    assert checks[:4] == ["workers", "disk", "broker", "embedding"]
    assert {"database", "sources", "deletions to approve", "dead letters", "search index"} <= set(checks)


@pytest.mark.parametrize(
    ("served", "seconds", "pending", "judged"),
    [
        (["control", "ingest", "embed"], 59.0, 0, None),
        (["control", "ingest", "embed"], 61.0, 0, "error"),
        (["control", "ingest", "embed"], None, 0, None),
        ([], 61.0, 0, "warning"),
        ([], 61.0, 1, "error"),
        ([], None, 0, None),
    ],
)
def test_a_queue_has_a_minute_of_grace(
    served: list[str], seconds: float | None, pending: int, judged: str | None
) -> None:
    lacking = [queue for queue in QUEUES if queue not in served]
    found = calm() | {
        "workers": [{"name": "w", "queues": served, "age_seconds": 1.0}] if served else [],
        "unserved": dict.fromkeys(lacking, seconds),
        "backlog": {"pending": pending, "oldest_due_seconds": None},
    }
    assert next((one.status for one in judge(found) if one.check == "workers"), None) == judged
