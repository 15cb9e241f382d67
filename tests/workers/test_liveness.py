"""Heartbeat files, and the command that container health checks run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from workers.monitoring import liveness


def test_a_touched_file_is_fresh_and_grows_old(tmp_path: Path) -> None:
    assert liveness.ages(tmp_path / "beats") == {}
    liveness.touch(tmp_path / "beats", "worker-embed")
    assert liveness.ages(tmp_path / "beats")["worker-embed"] < 1
    os.utime(tmp_path / "beats" / "worker-embed.heartbeat", (0, time.time() - 90))
    assert liveness.ages(tmp_path / "beats")["worker-embed"] > 89
    liveness.touch(tmp_path / "beats", "worker-embed")
    assert liveness.ages(tmp_path / "beats")["worker-embed"] < 1


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
    liveness.touch(tmp_path, "worker")
    os.utime(tmp_path / "worker.heartbeat", (0, time.time() - 31))
    assert health(tmp_path) == 1, "one of them is deaf"
