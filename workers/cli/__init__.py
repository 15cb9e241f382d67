"""The command line: a shell over the functions of the other rooms."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

from workers.processes.interrupts import end_at_once, handle_signals, interruptible

SERVED = (
    "search", "status", "explain", "why-visible", "enrich", "feedback", "index", "runs", "sources", "dead", "audit",
    "keys", "token",
)  # fmt: skip
"""Commands that a process of `larder up` runs for terminals of this machine; see `workers.cli.served`."""
NAME = "larder"
FILE, DATA = "larder.yaml", ".larder"


def main() -> None:
    """Run the command named on the command line."""
    handle_signals()
    args = sys.argv[1:]
    if args == ["--version"]:
        from workers import version_line

        print(version_line())
        return
    if args and args[0] in SERVED:
        from workers.cli.served import run_in_server

        try:
            with interruptible():
                code = run_in_server(args, data_folder(args))
        except KeyboardInterrupt:
            end_at_once()
        if code is not None:
            sys.exit(code)
    run()


def run() -> None:
    """The same in this process."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # many processes of ours share the cores
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that has no such letter is no reason to end in the middle of an answer.
            stream.reconfigure(errors="backslashreplace")
    from workers.cli.commands import app

    app(prog_name=NAME)


def run_in_fork(args: Sequence[str], environment: Mapping[str, str], folder: Path) -> int:
    """Run a command in a fork of a process that has its modules loaded, as it would run by itself; its exit code.

    The three streams are in place.
    """
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = args
    code: object = 0
    try:
        run()
    except SystemExit as ended:
        code = ended.code
    from multiprocessing.util import _run_finalizers  # type: ignore[attr-defined]

    from workers.processes import tracing

    # A fork ends without its exit handlers.
    tracing.flush()
    _run_finalizers()  # a pool of processes has a folder for its memory
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def folder_above() -> Path:
    """The nearest folder from here upwards with a configuration or data of Larder; this one if there is none."""
    here = Path.cwd()
    with_either = (one for one in (here, *here.parents) if (one / FILE).exists() or (one / DATA).exists())
    return next(with_either, here)


def data_folder(args: Sequence[str]) -> Path:
    """Where the processes lie that a command means, as far as that can be told without reading the configuration."""
    given = {
        name: word.partition("=")[2] or "".join(args[n + 1 : n + 2])
        for n, word in enumerate(args)
        if (name := word.partition("=")[0]) in ("--data", "--config")
    }
    if data := given.get("--data") or os.environ.get("LARDER_DATA"):
        return Path(data)
    file = given.get("--config") or os.environ.get("LARDER_CONFIG")
    return (Path(file).parent if file else folder_above()) / DATA
