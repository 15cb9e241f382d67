"""Log lines and how files of them stay small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from workers.processes import logs

PROGRAM = """
import logging, structlog
from workers.processes import logs
logs.configure("info")
logging.getLogger("celery.app").info("task %s", "done")
logging.getLogger("x").debug("too low")
structlog.get_logger("ours").warning("indexing_complete", documents=3)
"""
EVIL = """
import logging, structlog
from workers.processes import logs
logs.configure("info")
logging.getLogger("x").error("\\x1b]52;c;aGk=\\x07 %s", "\\u202e\\x9b\\r\\n{}")
structlog.get_logger("ours").warning("\\u2066", item="\\x1b[2J")
"""


def test_no_text_drives_the_screen_that_shows_a_log() -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVIL], cwd=Path(__file__).parents[2], capture_output=True, check=True
    )
    assert len([json.loads(line) for line in done.stderr.splitlines()]) == 2
    assert set(done.stderr) <= {10, *range(32, 127)}, "letters of ASCII alone"


@pytest.mark.req("001-127")
def test_every_line_is_one_json_object_on_stderr() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["task done", "indexing_complete"]
    assert lines[1]["documents"] == 3
    assert {line["level"] for line in lines} == {"info", "warning"}
    assert all("timestamp" in line for line in lines)
    assert done.stdout == ""


@pytest.mark.req("001-059")
def test_a_large_log_is_set_aside_while_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with log.open("ab", buffering=0) as writer:
        for generation in range(4):
            writer.write(f"generation {generation} ".encode() * 20)
            logs.rotate(log, most_bytes=100, files=2)
            assert log.stat().st_size == 0
        writer.write(b"last words")
    assert log.read_bytes() == b"last words"
    assert (tmp_path / "worker.log.1").read_bytes().startswith(b"generation 3")
    assert (tmp_path / "worker.log.2").read_bytes().startswith(b"generation 2")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["worker.log", "worker.log.1", "worker.log.2"]


def test_a_small_log_stays(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_bytes(b"short")
    logs.rotate(log, most_bytes=100, files=2)
    assert log.read_bytes() == b"short"
    logs.rotate(tmp_path / "none.log", most_bytes=1, files=2)


AWAY = """
import logging, redis
from celery.beat import SchedulingError
from pipeline.errors import StoreRejected, StoreUnavailable
from workers.processes import logs
logs.configure("info")
def failing(error, around=None):
    try:
        try:
            raise error
        except type(error):
            if around is None:
                raise
            raise around
    except Exception as caught:
        logging.getLogger("x").error("it failed\\n['a stack']", exc_info=caught if around is None else True)
failing(redis.ConnectionError("refused"))
failing(StoreUnavailable("the database does not answer", fix="start it"))
failing(redis.ConnectionError("refused"), SchedulingError("tick"))
failing(StoreRejected("a value"))
failing(redis.ConnectionError("refused"), KeyError("ours"))
"""


def test_what_is_away_is_told_in_a_line_and_a_mistake_with_its_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", AWAY],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert ["exception" in line for line in lines] == [False, False, False, True, True]
    assert [line.get("error") for line in lines[:3]] == [
        "ConnectionError: refused",
        "StoreUnavailable: the database does not answer (start it)",
        "ConnectionError: refused",
    ]
    assert lines[2]["event"] == "it failed"
