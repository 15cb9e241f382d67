"""Logs: one JSON object per line on stderr, with ids and never a text."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import redis
import structlog
from kombu.exceptions import OperationalError
from structlog.typing import EventDict, Processor

from pipeline.errors import LarderError

OUTAGES = (redis.ConnectionError, redis.TimeoutError, OperationalError, ConnectionError)
"""How the broker's absence shows."""


def configure(level: str) -> None:
    """Send the logs of this process, ours and the libraries', to stderr as JSON."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                outage_in_a_line,
                structlog.processors.format_exc_info,
                structlog.processors.JSONRenderer(),
            ],
        ),
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())


def outage_in_a_line(_logger: object, _method: str, event: EventDict) -> EventDict:
    """What is away is told with its error; where in which library that was noticed would only hide it."""
    given = event.get("exc_info")
    error = given[1] if isinstance(given, tuple) else sys.exc_info()[1] if given is True else given
    if error is not None and type(error).__name__ == "SchedulingError":
        # Beat's, around the error itself, with a stack in its message.
        error = error.__context__
        event["event"] = str(event["event"]).partition("\n")[0]
    if isinstance(error, OUTAGES) or (isinstance(error, LarderError) and error.transient):
        del event["exc_info"]
        event["error"] = f"{type(error).__name__}: {error}"
    return event


def rotate(path: Path, *, most_bytes: int, files: int) -> None:
    """Copy a log that has grown too large aside and empty it; its writers append and do not notice."""
    if not path.exists() or path.stat().st_size <= most_bytes:
        return
    for n in range(files - 1, 0, -1):
        older = path.with_name(f"{path.name}.{n}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{n + 1}"))
    path.with_name(f"{path.name}.1").write_bytes(path.read_bytes())
    with path.open("r+b") as handle:
        handle.truncate(0)
