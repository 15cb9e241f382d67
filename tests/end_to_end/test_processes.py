"""Single processes as containers start them: no supervisor, no `up`."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
import redis
from celery import Celery

from workers import embedded

CONFIG = """
rag:
  embedding: {provider: hashing}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}
"""


def query(site: Any, statement: str) -> list[tuple[Any, ...]]:
    password = embedded.Credentials.of(site.data).postgres
    port = urlsplit(embedded.ensure(site.data).database_url).port
    with psycopg.connect(
        host="127.0.0.1", port=port, user="postgres", password=password, dbname="larder", autocommit=True
    ) as connection:
        return connection.execute(statement).fetchall()


def test_a_control_worker_alone_registers_the_sources_and_takes_its_leave(site: Any) -> None:
    site.write("larder.yaml", CONFIG)
    site.write("docs/a.md", "# A\n\nOne.\n")
    assert site.larder("migrate").code == 0
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    with (site.root / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "worker", "control"],
            cwd=site.root,
            env={**env, "PYTHONPATH": str(Path(__file__).parents[2]), "REMAP_SIGTERM": "SIGQUIT"},
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 40
        while not query(site, "select 1 from worker") and time.monotonic() < end:
            time.sleep(0.2)
        assert query(site, "select name, kind from source") == [("docs", "markdown")]
        assert query(site, "select queues from worker") == [("control",)]
        assert site.larder("health").code == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
        assert query(site, "select 1 from worker") == []
    finally:
        worker.kill()
        worker.wait()


STRANGE_HEADERS: list[dict[str, Any]] = [
    {"timelimit": "x"},
    {"timelimit": [1, 2, 3]},
    {"id": None},
    {"task": "larder.of.a.newer.release"},
    {"task": ["larder.pump"]},
    {"eta": "tomorrow"},
    {"expires": {"a": 1}},
    {"retries": "many"},
]


def strange_messages(envelope: dict[str, Any]) -> list[bytes]:
    """Made of one that a worker understands, each with one fault."""
    headers = [{**envelope, "headers": {**envelope["headers"], **more}} for more in STRANGE_HEADERS]
    bodies = [base64.b64encode(body).decode() for body in (b"{", b"[]", b"7", b"\xff", b'[["x"], 3, null]')]
    kinds: list[dict[str, Any]] = [
        {"content-type": "application/x-python-serialize"},
        {"content-encoding": "klingon"},
        {"headers": None},
    ]
    made = [
        *headers,
        *({**envelope, "body": body} for body in bodies),
        *({**envelope, **kind} for kind in kinds),
    ]
    return [b"garbage", b"[1]", b"{}", *(json.dumps(one).encode() for one in made)]


def test_messages_that_are_none_are_set_aside_once_and_the_worker_lives(site: Any) -> None:
    site.write("larder.yaml", CONFIG)
    assert site.larder("migrate").code == 0
    client = redis.Redis.from_url(embedded.ensure(site.data).broker_url)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    with (site.root / "worker.log").open("wb") as log:
        worker = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "worker", "control", "--concurrency", "1"],
            cwd=site.root,
            env={**env, "PYTHONPATH": str(Path(__file__).parents[2])},
            stdout=log,
            stderr=log,
        )
    try:
        sender = Celery(broker=str(embedded.ensure(site.data).broker_url))
        sender.send_task("larder.upkeep.canary", args=["before"], queue="prepared")
        envelope = json.loads(bytes(client.rpop("prepared")))  # type: ignore[arg-type]
        strange = strange_messages(envelope)
        for message in strange:
            client.lpush("control", message)
        sender.send_task("larder.upkeep.canary", args=["after"], queue="control")
        end = time.monotonic() + 25
        while not query(site, "select 1 from canary where queue = 'after'") and time.monotonic() < end:
            assert worker.poll() is None, (site.root / "worker.log").read_text()[-3000:]
            time.sleep(0.2)
        said = (site.root / "worker.log").read_text()[-3000:]
        assert query(site, "select 1 from canary where queue = 'after'"), said
        backlog = json.loads(site.larder("status", "--json").out)["backlog"]
        assert backlog["set_aside"] >= len(strange) - 4  # tasks that began and failed are none of these
        assert client.hlen("unacked") == 0
        assert f"{backlog['set_aside']} messages set aside" in site.larder("status").out
    finally:
        worker.terminate()
        assert worker.wait(40) == 0


def test_an_unknown_queue_is_refused_before_anything_starts(site: Any) -> None:
    site.write("larder.yaml", CONFIG)
    answer = site.larder("worker", "nope")
    assert answer.code == 2
    assert "control, ingest, embed, enrich" in answer.err
    assert not site.data.exists()


def test_servers_that_are_away_are_a_sentence(site: Any) -> None:
    site.write("larder.yaml", CONFIG)
    away = {
        "LARDER_DATABASE_URL": "postgresql://larder_app:x@127.0.0.1:1/larder",
        "LARDER_BROKER_URL": "redis://127.0.0.1:1/0",
    }
    for command in (["index"], ["search", "tide"], ["status"]):
        answer = site.larder(*command, env=away)
        assert answer.code == 1, command
        assert "E001" in answer.err, command
        assert "Traceback" not in answer.err + answer.out, command


def on_a_terminal(site: Any, *args: str) -> tuple[int, str]:
    """Run a command as a person does: its output goes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    env |= {
        "TERM": "xterm-256color",
        "COLUMNS": "80",
        "LINES": "24",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", *args],
        cwd=site.root,
        env=env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):  # the terminal ends with its last process
        while part := os.read(ours, 4096):
            seen += part
    os.close(ours)
    return process.wait(60), seen.decode(errors="replace")


@pytest.mark.req("001-091")
def test_a_person_without_workers_sees_progress_a_summary_and_a_status(site: Any) -> None:
    site.write("larder.yaml", CONFIG)
    site.write("docs/a.md", "# A\n\nOne.\n")
    site.write("docs/blob.md", b"\x00\x01\x02" * 50)
    code, screen = on_a_terminal(site, "index")
    assert code == 3, screen
    assert "Traceback" not in screen
    assert "1 documents indexed" in screen
    assert "docs/blob.md" in screen
    assert query(site, "select 1 from worker") == [], "a command takes the workers that it brought away again"

    code, screen = on_a_terminal(site, "status")
    assert "Traceback" not in screen
    assert "docs" in screen
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)
    assert max(len(line.rstrip("\r")) for line in plain.split("\n")) <= 80

    answered = site.larder("status", "--json")
    assert answered.code == 0, answered.err
    docs = answered.data["sources"][0]
    assert [docs[key] for key in ("name", "documents", "chunks", "pending", "dead")] == ["docs", 1, 1, 0, 0]
    assert docs["freshness_seconds"] < 120
    assert [p["item"] for p in docs["problems"]] == ["docs/blob.md"]
    assert docs["last_run"]["indexed"] == 1
    assert answered.data["index"]["status"] == "active"

    examined = site.larder("doctor", "--json")
    assert examined.code == 0
    assert examined.data["ok"] is True, examined.out
    assert [f["check"] for f in examined.data["findings"] if f["status"] == "error"] == []
