"""Processes are known again by when they began, whatever happens to the clock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workers.local import embedded, supervisor
from workers.monitoring.liveness import is_same_process, process_start

NAP = [sys.executable, "-c", "import time; time.sleep(60)"]


@pytest.fixture
def process() -> Iterator[int]:
    made = subprocess.Popen(NAP)
    yield made.pid
    made.kill()
    made.wait()


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """As after a correction of the time: the kernel tells another start of the machine."""
    real = psutil.boot_time()
    monkeypatch.setattr("psutil._psplatform.boot_time", lambda: real + seconds)
    assert psutil.boot_time() == real + seconds


@pytest.mark.parametrize("seconds", [1.0, -1.0, 3600.0, -86400.0])
def test_a_clock_that_is_set_makes_nobody_a_stranger(
    process: int, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    noted, day = process_start(process), psutil.Process(process).create_time()
    set_clock(monkeypatch, seconds)
    assert abs(psutil.Process(process).create_time() - day) >= 1
    assert is_same_process(process, noted)


def test_another_process_of_the_same_number_is_a_stranger(process: int) -> None:
    assert is_same_process(process, process_start(process))
    assert not is_same_process(process, process_start(process) - 100)
    assert not is_same_process(os.getpid(), 0.0)


def test_one_that_is_gone_is_nobody() -> None:
    made = subprocess.Popen(NAP)
    noted = process_start(made.pid)
    made.kill()
    made.wait()
    assert process_start(made.pid) == 0.0
    assert not is_same_process(made.pid, noted)
    assert not is_same_process(made.pid, 0.0)


def test_down_finds_what_was_started_before_the_clock_was_set(
    tmp_path: Path, process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [{"name": "worker-embed", "pid": process, "started": process_start(process)}]
    (tmp_path / "state.json").write_text(json.dumps({"processes": entries}))
    (tmp_path / "valkey").mkdir()
    (tmp_path / "valkey" / "larder.pid").write_text(json.dumps([process, 1, process_start(process)]))
    set_clock(monkeypatch, 30.0)
    assert supervisor.running(tmp_path) == {"worker-embed": process}
    assert embedded.stop(tmp_path) == ["valkey"]
    assert not psutil.pid_exists(process) or psutil.Process(process).status() == psutil.STATUS_ZOMBIE
