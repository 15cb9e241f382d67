"""What is counted, in one process and in several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
COUNT = """
import sys, time
from pipeline.enrichment.degradation import DegradationLevel
from pipeline.errors import StoreUnavailable
from workers.processes import metrics
level = DegradationLevel(int(sys.argv[1]))
metrics.moved(DegradationLevel.FULL_RAG, level)
metrics.ended("done", int(level))
metrics.ended("failed", None)
metrics.fell_back(StoreUnavailable("a secret"))
metrics.QUEUE_WAIT.observe(0.02)
print(metrics.exposition().decode() if len(sys.argv) > 2 else "", flush=True)
sys.stdin.read()
"""
SHOW = "import sys, pathlib; from workers.processes import metrics; print(metrics.exposition(pathlib.Path(sys.argv[1])).decode())"


def counting(folder: Path | None, *arguments: str) -> subprocess.Popen[str]:
    env = {**os.environ, **({"PROMETHEUS_MULTIPROC_DIR": str(folder)} if folder else {})}
    return subprocess.Popen(
        [sys.executable, "-c", COUNT, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def shown(folder: Path) -> list[str]:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)}
    command = [sys.executable, "-c", SHOW, str(folder)]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, check=True
    ).stdout.splitlines()


def test_one_process_tells_its_own() -> None:
    told, _ = counting(None, "3", "show").communicate(timeout=60)
    lines = told.splitlines()
    assert "larder_degradation_level 3.0" in lines
    assert 'larder_enrichments_total{level="3",state="done"} 1.0' in lines
    assert 'larder_enrichments_total{level="",state="failed"} 1.0' in lines
    assert 'larder_fallbacks_total{reason="StoreUnavailable"} 1.0' in lines
    assert 'larder_enrichment_wait_seconds_bucket{le="0.03"} 1.0' in lines
    assert "secret" not in told


def test_processes_are_counted_together_and_the_dead_have_no_level(tmp_path: Path) -> None:
    one, other = counting(tmp_path, "2"), counting(tmp_path, "4")
    for process in (one, other):
        assert process.stdout is not None
        process.stdout.readline()
    assert "larder_degradation_level 4.0" in shown(tmp_path)
    other.kill()
    other.communicate()
    lines = shown(tmp_path)
    assert "larder_degradation_level 2.0" in lines
    assert 'larder_fallbacks_total{reason="StoreUnavailable"} 2.0' in lines
    one.communicate()
