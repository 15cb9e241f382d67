"""Logs: for people on a terminal, else one JSON object per line, with the ids of what is done and never a text."""

from __future__ import annotations

import fcntl
import inspect
import json
import logging
import logging.handlers
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis
import structlog
from kombu.exceptions import OperationalError
from structlog.typing import EventDict, Processor

from pipeline.errors import LarderError
from workers.monitoring import REQUEST_HEADER
from workers.settings import Settings

OUTAGES = (redis.ConnectionError, redis.TimeoutError, OperationalError, ConnectionError)
"""Errors by which the broker's absence shows."""
EVENT_FIELDS = [
    *("alert", "subject", "severity", "state", "since"),
    *("document", "documents", "code", "error", "attempt", "dead"),
    *("run", "source", "tenant", "chunks", "errors", "duration"),
    *("query", "resultCount", "topScore", "degradation_level"),
    *("old", "new", "store", "embedder", "reranker", "way", "where"),
]
"""Fields of our events beside their name; Celery adds the arguments of tasks, which stay out."""
OUR_PACKAGES = {"connectors", "pipeline", "workers"}
"""Names that the loggers begin with whose debug lines are shown."""
MOST_ID = 64
"""Most characters of an id; whoever writes to the broker may send any."""


def configure(level: str, path: Path | None = None, *, most_bytes: int = 10_485_760, files: int = 10) -> None:
    """Send the logs of this process, ours and the libraries', to stderr: as JSON, unless a person looks on.

    With `path` also to that file, as JSON, which other processes may share; see `rotate` for its size.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.ExtraAdder(EVENT_FIELDS),
        task_of_celery,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    machine = structlog.processors.JSONRenderer()
    person = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)

    def written(render: Processor, *before: Processor) -> logging.Formatter:
        processors: list[Processor] = [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            outage_in_a_line,
            structlog.processors.format_exc_info,
        ]
        return structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[*processors, *before, render]
        )

    screen = logging.StreamHandler(sys.stderr)
    screen.setFormatter(written(person, printable) if sys.stderr.isatty() else written(machine))
    handlers: list[logging.Handler] = [screen]
    if path is not None:
        handlers.append(SharedFile(path, most_bytes, files))
        handlers[-1].setFormatter(written(machine))
    for handler in handlers:
        handler.addFilter(ours_at_debug)
    root = logging.getLogger()
    root.handlers = handlers
    root.setLevel(level.upper())
    logging.captureWarnings(True)


def write_line(text: str) -> None:
    """Write a line to stderr without a logger: for the supervisor, and for signal handlers, which wait for no lock.

    A full disk takes none, and ends nobody.
    """
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    entry = {"event": text.strip(), "level": "info", "timestamp": now}
    line = f"{now} {entry['event']}\n" if os.isatty(2) else f"{json.dumps(entry)}\n"
    with suppress(OSError):
        os.write(2, line.encode())


def ours_at_debug(record: logging.LogRecord) -> bool:
    """Filter out debug lines of libraries, which hold whole requests with texts and keys."""
    return record.levelno >= logging.INFO or record.name.partition(".")[0] in OUR_PACKAGES


def configure_from(settings: Settings) -> None:
    """Call `configure` with the level and file of the settings."""
    options = settings.rag.monitoring.logging
    path = settings.resolve(options.path) if options.path else None
    configure(options.level, path, most_bytes=int(options.max_size), files=options.max_files)


class SharedFile(logging.handlers.WatchedFileHandler):
    """Lines in a file that several processes write; whoever makes it too large sets it aside for all."""

    def __init__(self, path: Path, most_bytes: int, files: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        super().__init__(path, encoding="utf-8")
        self._limits = {"most_bytes": most_bytes, "files": files}

    def emit(self, record: logging.LogRecord) -> None:
        """Append a line, to the new file if another process has set the old one aside."""
        super().emit(record)
        path = Path(self.baseFilename)
        if self.stream and os.fstat(self.stream.fileno()).st_size > self._limits["most_bytes"]:
            with path.with_name(f"{path.name}.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                rotate(path, **self._limits, moved=True)


def printable(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Replace letters that drive a terminal: what is logged may come from a stranger."""
    return {
        key: "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in value)
        if isinstance(value, str)
        else value
        for key, value in event.items()
    }


def ids_of(task: Any, task_id: str, args: Sequence[Any]) -> dict[str, object]:
    """Ids of a task's subject, by the names of its function's arguments; of several documents their number."""
    ids: dict[str, object] = {"task": task.name, "task_id": task_id}
    parameters = inspect.signature(task.run).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    for name, value in zip(names, args, strict=False):
        if name == "items" and isinstance(value, list):
            ids |= {"documents": len(value)} if len(value) != 1 else {"document": str(value[0][0])}
        elif isinstance(value, int | str) and not name.startswith("_"):
            ids[name] = str(value)[:MOST_ID] if isinstance(value, str) else value
    if request := getattr(task.request, REQUEST_HEADER, None):
        ids["request"] = str(request)[:MOST_ID]
    return ids


def task_of_celery(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Add the task that Celery tells about in another process than its own, where it has its ids from `ids_of`."""
    data = getattr(event.get("_record"), "data", None)
    if isinstance(data, dict) and "id" in data:
        event.setdefault("task", str(data.get("name")))
        event.setdefault("task_id", str(data["id"])[:MOST_ID])
    return event


def outage_in_a_line(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Show an outage by its error alone: where in which library it was noticed would only hide it."""
    exc_info = event.get("exc_info")
    error = (
        exc_info[1] if isinstance(exc_info, tuple) else sys.exc_info()[1] if exc_info is True else exc_info
    )
    if error is not None and type(error).__name__ == "SchedulingError":
        # Beat's, around the error itself, with a stack in its message.
        error = error.__context__
        event["event"] = str(event["event"]).partition("\n")[0]
    if isinstance(error, OUTAGES) or (isinstance(error, LarderError) and error.transient):
        del event["exc_info"]
        event["error"] = f"{type(error).__name__}: {error}"
    return event


def rotate(path: Path, *, most_bytes: int, files: int, moved: bool = False) -> None:
    """Copy a log that has grown too large aside and empty it; its writers append and do not notice.

    With `moved` it is the file itself that goes aside, and no line is lost: for writers that look which file is there.
    """
    if not path.exists() or path.stat().st_size <= most_bytes:
        return
    for n in range(files - 1, 0, -1):
        older = path.with_name(f"{path.name}.{n}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{n + 1}"))
    if moved:
        path.replace(path.with_name(f"{path.name}.1"))
        return
    path.with_name(f"{path.name}.1").write_bytes(path.read_bytes())
    with path.open("r+b") as handle:
        handle.truncate(0)
