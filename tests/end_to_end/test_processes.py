"""Single processes as containers start them: no supervisor, no `up`."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.asynchronous import Hub, set_event_loop

from tests import forked
from tests.conftest import Site
from tests.end_to_end.conftest import connect
from tests.forked import Forked
from tests.ledger import Ledger, of_all
from workers.local import embedded
from workers.processes.run import Pool
from workers.queue.app import app

CONFIG = """
rag:
  embedding: {provider: hashing}
  sources:
    - {name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}
"""


@pytest.fixture(scope="module")
def harbour(make_site: Callable[[Path], Site], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An installation without a process, with one page and a file that is none."""
    site = make_site(tmp_path_factory.mktemp("processes"))
    site.prepare()
    site.write("larder.yaml", CONFIG)
    site.write("docs/a.md", "# A\n\nOne.\n")
    site.write("docs/blob.md", b"\x00\x01\x02" * 50)
    assert site.larder("migrate").code == 0
    yield site
    embedded.stop(site.data)
    shutil.rmtree(site.data, ignore_errors=True)


def ledger_of(site: Site) -> Ledger:
    return Ledger(of_all(partial(connect, site)))


def working(site: Site) -> list[str]:
    """The queues of each worker that has not taken its leave."""
    return [one["queues"] for one in ledger_of(site).workers() if one["pid"] > 0]


def begin(site: Site, queue: str) -> subprocess.Popen[bytes]:
    """A worker as a container starts it, which writes to worker.log."""
    with (site.root / "worker.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "worker", queue],
            cwd=site.root,
            env=forked.environment(REMAP_SIGTERM="SIGQUIT"),
            stdout=log,
            stderr=log,
        )


def told(site: Site) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (site.root / "worker.log").read_text().splitlines()]


def test_a_worker_told_to_end_while_it_starts_ends_without_an_error(harbour: Site) -> None:
    embedded.ensure(harbour.data)
    worker = begin(harbour, "embed")
    try:
        end = time.monotonic() + 40
        # Its pool is there, its consumer not yet.
        while b"Connected" not in (harbour.root / "worker.log").read_bytes() and time.monotonic() < end:
            time.sleep(0.001)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
        assert "worker: Cold shutdown (MainProcess)" in [line["event"] for line in told(harbour)]
        assert not [line for line in told(harbour) if line["level"] in {"error", "critical"}]
    finally:
        worker.kill()
        worker.wait()


def test_a_process_in_the_midst_of_a_message_is_told_to_end_without_an_error() -> None:
    set_event_loop(Hub())  # type: ignore[no-untyped-call]
    pool = Pool(limit=1, app=app, threads=False, initargs=(app, "here"))
    pool.start()
    (process,) = pool._pool._pool
    os.kill(process.pid, signal.SIGSTOP)
    # What is left of a message when its length has been read.
    os.write(process.inq._writer.fileno(), b"\x80\x04N.")
    status = Path(f"/proc/{process.pid}/status")

    def wake_up() -> None:
        """As soon as it has been told to end."""
        end = time.monotonic() + 10
        with suppress(ProcessLookupError, FileNotFoundError):
            while time.monotonic() < end and not any(
                int(pending, 16) & 1 << signal.SIGTERM - 1
                for pending in re.findall(r"(?:Sig|Shd)Pnd:\s+(\w+)", status.read_text())
            ):
                time.sleep(0.01)
            os.kill(process.pid, signal.SIGCONT)

    waking = threading.Thread(target=wake_up)
    waking.start()
    try:
        pool.terminate()
        assert process.exitcode == -signal.SIGTERM
    finally:
        waking.join()
        process.terminate()
        set_event_loop(None)


def test_a_control_worker_alone_registers_the_sources_and_takes_its_leave(harbour: Site) -> None:
    site = harbour
    worker = begin(site, "control")
    try:
        end = time.monotonic() + 40
        while not working(site) and time.monotonic() < end:
            time.sleep(0.2)
        assert ledger_of(site).sources.values("name", "kind") == [("docs", "markdown")]
        assert working(site) == ["control"]
        assert site.larder("health").code == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
        assert "worker: Cold shutdown (MainProcess)" in [line["event"] for line in told(site)]
        assert working(site) == []
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


def test_messages_that_are_none_are_set_aside_once_and_the_worker_lives(harbour: Site) -> None:
    site = harbour
    client = redis.Redis.from_url(embedded.ensure(site.data).broker_url)
    command = ["worker", "control", "--concurrency", "1"]
    worker = Forked(command, cwd=site.root, env=forked.environment(), out=site.root / "strange.log")
    try:
        sender = Celery(broker=str(embedded.ensure(site.data).broker_url))
        sender.send_task("larder.upkeep.canary", args=["before"], queue="prepared")
        envelope = json.loads(bytes(client.rpop("prepared")))  # type: ignore[arg-type]
        strange = strange_messages(envelope)
        for message in strange:
            client.lpush("control", message)
        sender.send_task("larder.upkeep.canary", args=["after"], queue="control")
        end = time.monotonic() + 25
        while not ledger_of(site).canaries(queue="after") and time.monotonic() < end:
            assert worker.poll() is None, (site.root / "strange.log").read_text()[-3000:]
            time.sleep(0.2)
        said = (site.root / "strange.log").read_text()[-3000:]
        assert ledger_of(site).canaries(queue="after"), said
        backlog = json.loads(site.larder("status", "--json").out)["backlog"]
        assert backlog["set_aside"] >= len(strange) - 4  # tasks that began and failed are none of these
        assert client.hlen("unacked") == 0
        assert f"{backlog['set_aside']} messages quarantined" in site.larder("status").out
    finally:
        worker.terminate()
        assert worker.wait(40) == 0
        told = [json.loads(line)["event"] for line in (site.root / "strange.log").read_text().splitlines()]
        assert "worker: Warm shutdown (MainProcess)" in told


def test_an_unknown_queue_is_refused_before_anything_starts(site: Site) -> None:
    site.write("larder.yaml", CONFIG)
    answer = site.larder("worker", "nope")
    assert answer.code == 2
    assert "control, ingest, embed, enrich" in answer.err
    assert not site.data.exists()


def test_servers_that_are_away_are_a_sentence(site: Site) -> None:
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


def on_a_terminal(site: Site, *args: str) -> tuple[int, str]:
    """Run a command as a person does: its output goes to a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    env = forked.environment(TERM="xterm-256color", COLUMNS="80", LINES="24")
    del env["NO_COLOR"]
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
def test_a_person_without_workers_sees_progress_a_summary_and_a_status(harbour: Site) -> None:
    site = harbour
    code, screen = on_a_terminal(site, "index")
    assert code == 3, screen
    assert "Traceback" not in screen
    assert "1 document indexed" in screen
    assert "docs/blob.md" in screen
    assert working(site) == [], "a command takes the workers that it brought away again"

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
