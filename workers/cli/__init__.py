"""The command line: a shell over the functions of the other rooms."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path

from workers.processes.interrupts import handle_signals

ASKING = {
    "search": "search:search",
    "explain": "search:explain",
    "why-visible": "search:why_visible",
    "feedback": "search:feedback",
    "status": "status:status",
    "runs": "operate:runs",
    "dead list": "operate:list_dead",
    "dead show": "operate:show_dead",
    "dead messages": "operate:set_aside",
    "audit list": "operate:list_audit",
    "audit verify": "operate:verify_audit",
    "keys status": "operate:count_keys",
    "index": "index:index",
    "sources list": "index:list_sources",
    "reindex status": "operate:index_status",
    "stories search": "stories:find",
    "stories stats": "stories:stats",
    "token": "processes:token",
}
"""Commands that a running API answers, and that shall be quick -> module and function."""
NAME = "larder"
FILE, DATA = "larder.yaml", ".larder"


def main() -> None:
    """Run the command named on the command line."""
    handle_signals()
    if sys.argv[1:] == ["--version"]:
        from workers import version_line

        print(version_line())
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # many processes of ours share the cores
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that has no such letter is no reason to end in the middle of an answer.
            stream.reconfigure(errors="backslashreplace")
    for words in (1, 2):
        if (name := " ".join(sys.argv[1 : 1 + words])) in ASKING:
            from workers.cli.plain import run_plain

            if (code := run_plain(ASKING[name], sys.argv[1 + words :])) is not None:
                sys.exit(code)
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
        main()
    except SystemExit as ended:
        code = ended.code
    from multiprocessing.util import _run_finalizers  # type: ignore[attr-defined]

    from workers.monitoring import tracing

    # A fork ends without its exit handlers.
    tracing.flush()
    _run_finalizers()  # a pool of processes has a folder for its memory
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def folder_above() -> Path:
    """The nearest folder from here upwards with a configuration or data of Larder; this one if there is none."""
    current = Path.cwd()
    with_either = (
        one for one in (current, *current.parents) if (one / FILE).exists() or (one / DATA).exists()
    )
    return next(with_either, current)
