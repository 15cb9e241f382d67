"""Log lines and how files of them stay small."""

from __future__ import annotations

import json
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from pipeline.search import SearchRequest
from tests import forked
from tests.ledger import Ledger
from tests.workers.indexed import Build, index, write_pages
from workers import runtime as runtimes
from workers import tasks
from workers.app.search import retriever
from workers.monitoring import logs
from workers.processes import run
from workers.queue import broker
from workers.queue.app import app

PROGRAM = """
import logging, structlog
from workers.monitoring import logs
logs.configure("info")
logging.getLogger("celery.app").info("task %s", "done")
logging.getLogger("x").debug("too low")
structlog.get_logger("ours").warning("indexing_complete", documents=3)
"""
ALL = """
import logging
from workers.monitoring import logs
logs.configure("debug")
logging.getLogger("workers.app.search").debug("ours")
logging.getLogger("openai._base_client").debug("Request options: the text of a document")
logging.getLogger("httpcore").info("theirs")
"""
EVIL = """
import logging, structlog
from workers.monitoring import logs
logs.configure("info")
logging.getLogger("x").error("\\x1b]52;c;aGk=\\x07 %s", "\\u202e\\x9b\\r\\n{}")
structlog.get_logger("ours").warning("\\u2066", item="\\x1b[2J")
"""


def ran(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A program of ours, to its end."""
    script = folder / "program.py"
    script.write_text(program, encoding="utf-8")
    done = forked.run([], cwd=folder, env=forked.environment(), script=script)
    assert done.returncode == 0, done.stderr
    return done


def test_no_text_drives_the_screen_that_shows_a_log(tmp_path: Path) -> None:
    done = ran(EVIL, tmp_path)
    assert len([json.loads(line) for line in done.stderr.splitlines()]) == 2
    assert {*map(ord, done.stderr)} <= {10, *range(32, 127)}, "letters of ASCII alone"


@pytest.mark.req("001-127")
def test_every_line_is_one_json_object_on_stderr(tmp_path: Path) -> None:
    done = ran(PROGRAM, tmp_path)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["task done", "indexing_complete"]
    assert lines[1]["documents"] == 3
    assert {line["level"] for line in lines} == {"info", "warning"}
    assert all("timestamp" in line for line in lines)
    assert done.stdout == ""


def test_the_lowest_level_is_ours_alone(tmp_path: Path) -> None:
    """Clients of services tell whole requests there."""
    done = ran(ALL, tmp_path)
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["ours", "theirs"]


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
from workers.monitoring import logs
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


def test_what_is_away_is_told_in_a_line_and_a_mistake_with_its_traceback(tmp_path: Path) -> None:
    done = ran(AWAY, tmp_path)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert ["exception" in line for line in lines] == [False, False, False, True, True]
    assert [line.get("error") for line in lines[:3]] == [
        "ConnectionError: refused",
        "StoreUnavailable: the database does not answer (start it)",
        "ConnectionError: refused",
    ]
    assert lines[2]["event"] == "it failed"


def test_a_person_at_a_terminal_reads_lines_that_drive_nothing() -> None:
    ours, theirs = pty.openpty()
    program = [sys.executable, "-c", PROGRAM + EVIL.replace('logs.configure("info")', "")]
    with subprocess.Popen(program, cwd=Path(__file__).parents[2], stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        process.wait()
    os.close(ours)
    text = said.decode()
    assert "task done" in text
    assert not text.startswith("{")
    assert "\\x1b]52;c;aGk=\\x07" in text
    assert not {"\x07", "\x9b", "\u202e", "\u2066"} & set(text)
    assert "\x1b[2J" not in text


WRITER = """
import sys, pathlib, logging
from workers.monitoring import logs
logs.configure("info", pathlib.Path(sys.argv[1]), most_bytes=5_000, files=200)
for n in range(300):
    logging.getLogger("x").info("%s-%d", sys.argv[2], n)
"""


@pytest.mark.req("001-059", "001-127")
def test_a_file_shared_by_processes_is_set_aside_and_no_line_is_lost(tmp_path: Path) -> None:
    log = tmp_path / "logs/rag.log"
    command = [sys.executable, "-c", WRITER, str(log)]
    writers = [
        subprocess.Popen([*command, name], cwd=Path(__file__).parents[2], stderr=subprocess.DEVNULL)
        for name in "ab"
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    files = [path for path in log.parent.iterdir() if path.suffix != ".lock"]
    assert len(files) > 10
    assert all(path.stat().st_size < 5_500 for path in files)
    lines = [json.loads(line)["event"] for path in files for line in path.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{name}-{n}" for name in "ab" for n in range(300))


def task(found: Any, **request: Any) -> Any:
    return SimpleNamespace(name=found.name, run=found.run, request=SimpleNamespace(**request))


class TestIds:
    @pytest.mark.parametrize(
        ("of", "args", "told"),
        [
            (tasks.sync, ["t", "s", 3], {"tenant": "t", "source": "s", "run": 3}),
            (tasks.chunk, ["t", [["d", 1]]], {"tenant": "t", "document": "d"}),
            (tasks.embed, ["t", [["d", 1], ["e", 1]]], {"tenant": "t", "documents": 2}),
            (app.tasks["larder.enrich"], ["t", "j"], {"tenant": "t", "job": "j"}),
            (app.tasks["larder.enrich"], [{"a": 1}, ["j"], 3], {}),
            (tasks.ask, ["vector.query", "a text"], {"what": "vector.query"}),
        ],
    )
    def test_a_task_tells_what_it_is_about(self, of: Any, args: Any, told: Any) -> None:
        assert logs.ids_of(task(of), "1", args) == {"task": of.name, "task_id": "1", **told}

    def test_a_request_to_the_api_is_known_where_its_message_is_worked_on(self) -> None:
        with structlog.contextvars.bound_contextvars(request="r-1"):
            header = broker.request_header()
        assert broker.request_header() == {}
        found = logs.ids_of(task(app.tasks["larder.enrich"], **header), "1", ["t", "j"])
        assert found["request"] == "r-1"

    def test_they_stand_in_all_lines_of_a_task_and_in_none_after_it(
        self, build: Build, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runtimes.use(build(64))  # whose broker the end of a task is told
        root = logging.getLogger()
        monkeypatch.setattr(root, "handlers", list(root.handlers))
        monkeypatch.setattr(root, "level", root.level)
        logs.configure("info")
        one = task(app.tasks["larder.enrich"])
        run._task_begins("1", one, ["t", "j"])
        logging.getLogger("a.library").warning("within")
        run._task_ended("1", one)
        logging.getLogger("a.library").warning("after")
        within, after = map(json.loads, capsys.readouterr().err.splitlines())
        assert (within["task_id"], within["job"], within["tenant"]) == ("1", "j", "t")
        assert not {"task_id", "job"} & after.keys()


@pytest.mark.req("001-128", "001-129")
def test_events_of_indexing_and_searching(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_pages(tmp_path, 3)
    runtime = build(64)
    with caplog.at_level(logging.DEBUG):
        index(runtime)
        found = retriever(runtime, runtime.settings.tenant_id).search(
            SearchRequest(text="page 1 " + "x" * 200)
        )
    told = {record.message: vars(record) for record in caplog.records}
    done, asked = told["indexing_complete"], told["search_performed"]
    assert (done["levelno"], done["documents"], done["errors"]) == (logging.INFO, 3, 0)
    assert done["chunks"] >= 3
    assert done["duration"] > 0
    assert (asked["levelno"], asked["resultCount"]) == (logging.DEBUG, len(found.hits))
    assert asked["query"] == ("page 1 " + "x" * 200)[:100]
    assert asked["topScore"] == found.hits[0].score
    assert set(logs.EVENT_FIELDS) >= {
        "documents",
        "chunks",
        "duration",
        "errors",
        "query",
        "resultCount",
        "topScore",
    }


def test_a_document_that_fails_is_named_with_its_error(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture, omniscient: Any, ledger: Ledger
) -> None:
    write_pages(tmp_path, 1)
    runtime = build(64)
    omniscient.execute("create rule no_body as on insert to document_body do instead nothing")
    index(runtime)
    document = ledger.documents.one()["id"]
    (failed,) = [vars(record) for record in caplog.records if record.message == "indexing_failed"]
    assert (failed["documents"], failed["dead"], failed["attempt"]) == ([str(document)], True, 1)
    assert "its text is not in the ledger" in failed["error"]


def test_a_line_that_a_full_disk_does_not_take_ends_nobody() -> None:
    program = "from workers.monitoring.logs import write_line; write_line('it is tried again'); print('on')"
    with open("/dev/full", "wb") as full:  # noqa: PTH123 (a device)
        done = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=full, text=True, check=False
        )
    assert (done.returncode, done.stdout) == (0, "on\n")
