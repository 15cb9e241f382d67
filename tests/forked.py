"""Commands of ours as processes that begin with the libraries loaded.

To start Python and load them costs a second of a core; the suite starts hundreds of processes. What runs is the
product's own code in a process of its own, with its arguments, folder, environment and streams, and ends by the same
signals. `larder up` starts its processes anew, and tests of how a process begins do, too.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import process
from pathlib import Path

FORKS = multiprocessing.get_context("forkserver")
LOADED = [
    *("celery.apps.worker", "celery.concurrency.prefork", "kombu.transport.redis", "opentelemetry.sdk.trace"),
    *("rich.live", "rich.markdown", "rich.progress", "rich.table", "sqlalchemy.dialects.postgresql"),
    *("pipeline.actions", "pipeline.enrichment.text", "pipeline.ingest.sync"),
    *("pipeline.stories.store", "workers.cli.processes", "workers.cli.search", "workers.app.search"),
    *("workers.app.explain", "workers.app.status", "workers.limits.allowance"),
]
"""What takes nine tenths of the time in which a command is loaded, and most of a worker's. Nothing that has the queue."""
FORKS.set_forkserver_preload(LOADED)


ROOT = Path(__file__).parents[1]


def environment(**more: str) -> dict[str, str]:
    """The variables of this process without those that Larder reads, and `more`."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    return {**clean, "NO_COLOR": "1", "PYTHONPATH": str(ROOT), **more}


class Forked:
    """A running command; the part of `subprocess.Popen` that tests need."""

    def __init__(
        self,
        args: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        out: Path,
        err: Path | None = None,
        script: Path | None = None,
    ) -> None:
        """Start `larder *args`, or `script` in its place; its streams are appended to files, both to `out` if `err` is not given."""
        streams = str(out), str(err or out)
        given = [str(script or "larder"), *args]
        self._process = FORKS.Process(
            target=_become, args=(given, str(cwd), dict(env), streams, script is not None), daemon=True
        )
        self._process.start()
        self.pid = int(self._process.pid or 0)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        """Its exit code, once it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not within so many seconds.
        """
        self._process.join(seconds)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("larder", seconds or 0)
        return code

    def send_signal(self, sign: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, sign)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    args: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    seconds: float = 120,
    script: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """A command, to its end.

    Raises:
        subprocess.TimeoutExpired: it has not ended within so many seconds, and was killed.
    """
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        command = Forked(args, cwd=cwd, env=env, out=out, err=err, script=script)
        try:
            code = command.wait(seconds)
        finally:
            command.kill()
        return subprocess.CompletedProcess(list(args), code, out.read_text(), err.read_text())


def _become(
    argv: list[str], folder: str, env: dict[str, str], streams: tuple[str, str], script: bool
) -> None:
    os.setsid()
    vars(process.current_process())["_config"]["daemon"] = False  # it may have children, as any command
    os.environ.clear()
    os.environ.update(env)
    for number, (name, flags) in enumerate(
        zip((os.devnull, *streams), (os.O_RDONLY, *[os.O_WRONLY | os.O_APPEND | os.O_CREAT] * 2), strict=True)
    ):
        opened = os.open(name, flags, 0o644)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding="utf-8", buffering=1)  # noqa: SIM115, PTH123 (as long as the process lives)
        for number, mode in enumerate("rww")
    )
    os.chdir(folder)
    sys.argv = argv
    if script or "PROMETHEUS_MULTIPROC_DIR" in env:
        _forget()
    try:
        if script:
            runpy.run_path(argv[0], run_name="__main__")
        else:
            from workers.cli import main

            main()
    finally:
        atexit._run_exitfuncs()


def _forget() -> None:
    """Have our modules loaded anew: one that changes them does so first, and by their environment they decide how to count."""
    for name in [one for one in sys.modules if one.startswith(("workers.", "prometheus_client"))]:
        if not name.startswith("workers.settings"):
            del sys.modules[name]
            above, _, last = name.rpartition(".")
            if hasattr(sys.modules.get(above), last):  # by which `from above import last` would find it
                delattr(sys.modules[above], last)
