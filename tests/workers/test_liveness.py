"""Heartbeat files, and the command that container health checks run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from workers.processes import liveness


def test_a_touched_file_is_fresh_and_names_its_process(tmp_path: Path) -> None:
    liveness.touch(tmp_path / "beats", "worker-embed")
    ages = liveness.ages(tmp_path / "beats")
    assert list(ages) == ["worker-embed"]
    assert ages["worker-embed"] < 1
    written = json.loads((tmp_path / "beats" / "heartbeat-worker-embed.json").read_text())
    assert written["pid"] == os.getpid()


def test_an_old_file_is_old_and_a_broken_one_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "heartbeat-old.json").write_text(json.dumps({"pid": 1, "at": time.time() - 90}))
    (tmp_path / "heartbeat-broken.json").write_text("{")
    ages = liveness.ages(tmp_path)
    assert list(ages) == ["old"]
    assert ages["old"] > 89


def test_containers_name_their_own_folder(tmp_path: Path) -> None:
    assert liveness.heartbeat_folder(tmp_path, {}) == tmp_path / "heartbeat"
    assert liveness.heartbeat_folder(tmp_path, {"LARDER_HEARTBEAT_DIR": "/run/larder"}) == Path("/run/larder")


def health(folder: Path) -> int:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    return subprocess.run(
        [sys.executable, "-m", "workers.cli", "health"],
        cwd=folder,
        env={**env, "LARDER_HEARTBEAT_DIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        check=False,
    ).returncode


def test_health_says_yes_only_while_all_beat(tmp_path: Path) -> None:
    assert health(tmp_path) == 1, "no heartbeat at all"
    liveness.touch(tmp_path, "beat")
    assert health(tmp_path) == 0
    (tmp_path / "heartbeat-worker.json").write_text(json.dumps({"pid": 1, "at": time.time() - 31}))
    assert health(tmp_path) == 1, "one of them is deaf"
