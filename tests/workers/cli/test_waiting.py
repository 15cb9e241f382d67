"""What commands do while a server is being started, or no worker serves what they need."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from tests.fakes.tcp_proxy import TcpProxy
from tests.ledger import Ledger, ago
from tests.workers.cli.asking import Run


@pytest.mark.parametrize("command", [("runs",), ("sources", "list"), ("dead", "list"), ("clear", "--yes")])
def test_a_database_that_is_being_started_is_waited_for(
    run: Run, environment: dict[str, str], command: tuple[str, ...]
) -> None:
    with TcpProxy.to(environment["LARDER_DATABASE_URL"]) as proxy:
        proxy.starting = True
        names = ("LARDER_DATABASE_URL", "LARDER_CONTROL_DATABASE_URL")
        behind = {name: proxy.url(environment[name]) for name in names}
        screen = run("status", **behind)
        assert screen.exit_code == 1
        assert "starting up" in screen.output
        threading.Timer(0.7, setattr, (proxy, "starting", False)).start()
        done = run(*command, **behind)
        assert done.exit_code == 0, done.output


def test_a_database_that_does_not_listen_yet_is_waited_for_but_not_long(
    run: Run, environment: dict[str, str]
) -> None:
    with TcpProxy.to(environment["LARDER_DATABASE_URL"]) as proxy:
        names = ("LARDER_DATABASE_URL", "LARDER_CONTROL_DATABASE_URL")
        behind = {name: proxy.url(environment[name]) for name in names}
        proxy.cut()
        threading.Timer(2, proxy.open).start()
        done = run("runs", **behind)
        assert done.exit_code == 0, done.output
        proxy.cut()
        begun = time.monotonic()
        gone = run("runs", **behind)
        assert gone.exit_code == 1
        assert "nothing listens at its address" in gone.stderr
        assert time.monotonic() - begun < 15


def test_a_proxy_whose_database_is_started_again_is_waited_for_but_not_long(
    run: Run, environment: dict[str, str]
) -> None:
    with TcpProxy.to(environment["LARDER_DATABASE_URL"]) as proxy:
        names = ("LARDER_DATABASE_URL", "LARDER_CONTROL_DATABASE_URL")
        behind = {name: proxy.url(environment[name]) for name in names}
        target, proxy.target = proxy.target, ("127.0.0.1", 1)
        threading.Timer(2, setattr, (proxy, "target", target)).start()
        done = run("runs", **behind)
        assert done.exit_code == 0, done.output
        proxy.target = ("127.0.0.1", 1)
        proxy.cut()
        proxy.open()
        gone = run("runs", **behind)
        assert gone.exit_code == 1
        assert "what listens at its address closes the connection" in gone.stderr


@pytest.mark.parametrize("seconds", [1, 58.5, 90])
def test_a_worker_that_ended_a_moment_ago_may_come_back(
    run: Run, tmp_path: Path, ledger: Ledger, seconds: float
) -> None:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.txt").write_text("A text.")
    assert run("sources", "list").exit_code == 0
    ledger.add_worker("w", "control,ingest,embed", pid=0, seen_at=ago(seconds=seconds))
    if seconds == 1:
        back = ago(seconds=-1.5)
        threading.Timer(1.5, lambda: ledger.workers.set(pid=1, seen_at=back, started_at=back)).start()
        # There is nobody behind that row: the command waits for its work, and not for a worker.
        threading.Timer(3.0, lambda: ledger.runs.set(state="finished", finished_at=ago())).start()
    begun = time.monotonic()
    done = run("ingest", "inbox")
    waits = "no worker serves control, embed, ingest at this moment: waiting for one to come back"
    assert (waits in done.stderr) == (seconds < 60)
    assert done.exit_code == (0 if seconds == 1 else 1), done.output
    assert ("no worker serves control, embed, ingest\n" in done.stderr) == (seconds != 1)
    assert time.monotonic() - begun < 20


def test_step_4_without_its_workers_is_answered_at_the_level_that_is_left_at_the_deadline(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "step-3.json").write_text('[{"id": "PBI-1", "title": "Warn of shallow water"}]')
    done = run("enrich", "step-3.json", "-o", "step-4.json", "--timeout", "1")
    assert done.exit_code == 1, "all of it is missing"
    assert "no worker serves control, enrich" in done.stderr
    assert "`larder worker enrich`" in done.stderr
    assert "--no-wait" not in done.stderr
    (item,) = json.loads((tmp_path / "step-4.json").read_text())["enriched_pbis"]
    assert item["context"]["degradation_level"] == 4
