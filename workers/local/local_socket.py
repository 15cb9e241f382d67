"""Questions to the API of a running `larder up`, by a socket in the data folder that only its user can open.

To load what answers a question takes longer than the answer: here only what Python itself brings is loaded.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

from pipeline.errors import LarderError

SOCKET = "api.sock"
GREET_SECONDS = 5.0
"""An API that says nothing for that long is taken for frozen."""
STARTED_AS = "LARDER_UP"
"""Tells the API, a fork of `larder up`, which program and variables that was started with, as JSON."""
_ELSEWHERE = ("LARDER_DATA", "LARDER_CONFIG")
"""Variables that say where an installation is, and are compared as what they name."""


def program_version() -> list[object]:
    """Identifies the installed files: a process does not know those that came after its start."""
    root, changed = Path(__file__).parents[2], 0
    for top in ("connectors", "pipeline", "workers"):
        for folder, _, names in os.walk(root / top):
            for name in names:
                if name.endswith(".py"):
                    with suppress(OSError):  # it is being replaced
                        changed += os.stat(f"{folder}/{name}").st_mtime_ns  # noqa: PTH116 (quicker)
    return [str(root), changed]


def variables_digest(names: Iterable[str], environ: Mapping[str, str]) -> str:
    """A hash of what the variables of these names, or the files that they name, are set to."""
    every = {name for one in names for name in (one, f"{one}_FILE")} - {*_ELSEWHERE}
    set_variables = sorted((name, environ[name]) for name in every if name in environ)
    return hashlib.sha256(json.dumps(set_variables).encode()).hexdigest()


def file_version(path: Path | None) -> list[object]:
    """Identifies a configuration file and what it holds; there may be none."""
    with suppress(OSError):
        if path:
            return [str(path.resolve()), path.stat().st_mtime_ns]
    return ["", 0]


class ApiEnded(LarderError):
    """The API ended, or began anew with another configuration, while it answered."""


def ask(
    folder: Path,
    file: Path | None,
    environ: Mapping[str, str],
    request: Mapping[str, Any],
    tell: Callable[[str, Any], None],
) -> Any:
    """The answer of the API of this data folder; None if none runs that is configured as this command would be.

    `request` has the `question`, its `arguments` and the `answer_timeout` of the command.

    Raises:
        ApiEnded: there was no whole answer.
        LarderError: it cannot be answered.
    """
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(GREET_SECONDS)
        try:
            with chdir(folder):  # the path of a socket must be short
                door.connect(SOCKET)
            lines = door.makefile("rb")
            greeting = json.loads(lines.readline())
        except (OSError, ValueError):
            return None
        fingerprint = [program_version(), variables_digest(greeting["names"], environ), file_version(file)]
        if greeting["runs"] != fingerprint:
            return None
        door.settimeout(None)
        door.sendall(json.dumps({**request, "user": _user()}).encode() + b"\n")
        for line in lines:
            kind, value = json.loads(line)
            if kind == "answer":
                return value
            if kind == "error":
                raise _answered_error(value)
            tell(kind, value)
    raise ApiEnded("the API ended in the middle of the answer", fix="ask again; see `larder status`")


def _answered_error(error_json: dict[str, Any]) -> LarderError:
    """The error that the API met, with all that is known of it."""
    message, fix = error_json.pop("message"), error_json.pop("fix")
    kind: type[LarderError] = type("AnsweredError", (LarderError,), error_json)
    return kind(message, fix=fix)


def _user() -> str:
    with suppress(OSError, KeyError):
        return f"cli:{getpass.getuser()}"
    return "cli"
