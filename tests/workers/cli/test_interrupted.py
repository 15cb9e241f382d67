"""Ctrl-C: exit code 130, one line, no traceback, nothing left running, and the work goes on where it was."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import Site
from workers.local import embedded

CONFIG = "rag: {embedding: {provider: hashing}}"


class Terminal:
    """Runs commands as a terminal does: Ctrl-C reaches the whole group of a command."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.said = site.root / "said"
        self.temporary = site.root / "tmp"
        self.temporary.mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    def type(self, *args: str, **variables: str) -> None:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
        with self.said.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers.cli", *args],
                cwd=self.site.root,
                env={
                    **clean,
                    "NO_COLOR": "1",
                    "PYTHONPATH": str(Path(__file__).parents[3]),
                    "TMPDIR": str(self.temporary),
                    **variables,
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_for(self, happened: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < end, self.said.read_text()
            time.sleep(0.05)

    def interrupt(self) -> tuple[int, list[str]]:
        """(exit code, lines) after Ctrl-C."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(90), self.said.read_text().splitlines()


@pytest.fixture
def terminal(site: Site) -> Iterator[Terminal]:
    site.prepare()
    site.write("larder.yaml", CONFIG)
    # Whoever runs the tests in the background of a script has it ignored, and a command would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    made = Terminal(site)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
    for left in ours(site):
        left.kill()


def ours(site: Site) -> list[psutil.Process]:
    """Processes of Larder itself that work in the site; the embedded servers outlive every command."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(site.root) and "workers.cli" in process.cmdline():
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_while_it_is_still_loading(terminal: Terminal) -> None:
    terminal.type("status")
    process = psutil.Process(terminal.process.pid if terminal.process else 0)
    terminal.wait_for(lambda: any("typer" in m.path or "pydantic" in m.path for m in process.memory_maps()))
    code, lines = terminal.interrupt()
    assert lines == ["stopped"]
    assert code in {130, -signal.SIGINT}


def caught(process: psutil.Process) -> int:
    """Its signals that have a handler: bit n - 1 stands for signal n."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("SigCgt:")[2].split()[0], 16)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
def test_at_any_moment(terminal: Terminal, sign: signal.Signals) -> None:
    """From the first line of ours on; what Python does before it, it does for every program."""
    terminal.type("status")
    assert terminal.process is not None
    begun = time.monotonic()
    assert terminal.process.wait(60) == 0
    moments, length = 12, time.monotonic() - begun
    for moment in range(sign == signal.SIGTERM, moments, 2):  # each signal at every other moment
        terminal.type("status")
        process = psutil.Process(terminal.process.pid)
        terminal.wait_for(lambda: bool(caught(process) & 1 << signal.SIGTERM - 1))  # noqa: B023
        time.sleep(length * moment / moments)
        os.killpg(process.pid, sign)
        code, text = terminal.process.wait(60), terminal.said.read_text()
        # Python itself ends by the signal if it came while a module ran code made of text, or at its very end.
        codes = {130, -signal.SIGINT} if text.endswith("stopped\n") else {0, -sign}
        assert code in codes, (moment, text)
        assert text == "stopped\n" or "database ok" in text.splitlines()[0], moment
        assert "KeyboardInterrupt" not in text


def test_where_python_loses_it(tmp_path: Path) -> None:
    """In what is called from C, as the end of an object is, an exception of Python's goes nowhere."""
    script = """
import os, signal, time
from workers.processes import interrupts

class Lost:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(.01)

signal.signal(signal.SIGINT, signal.default_int_handler)
interrupts.handle_signals()
try:
    with interrupts.interruptible():
        Lost()
        time.sleep(30)
except KeyboardInterrupt:
    print("put away")
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        check=False,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        timeout=20,
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"put away\n", b"", 0)


def test_enrich_lets_go_of_those_that_wait(terminal: Terminal) -> None:
    pbis = [{"id": f"P-{n}", "title": f"Item {n}"} for n in range(40)]
    terminal.site.write("step-3.json", json.dumps(pbis))
    terminal.type("enrich", "step-3.json", "-o", "out.json")
    terminal.wait_for(lambda: "started some" in terminal.said.read_text())
    begun = time.monotonic()
    code, lines = terminal.interrupt()
    assert code == 130
    assert lines[-1].startswith(("stopping within half a minute", "stopped"))
    assert "Traceback" not in "".join(lines)
    assert "using fallback" not in "".join(lines)
    assert time.monotonic() - begun < 60, "it waited for answers that nobody wants"
    assert not ours(terminal.site)
    assert not (terminal.site.root / "out.json").exists()


def test_index_says_that_its_own_workers_stop_and_they_clear_up(terminal: Terminal) -> None:
    for n in range(600):
        terminal.site.write(
            f"docs/{n}.md", f"# Quay {n}\n\nThe depth of quay {n} is {n} metres at low water."
        )
    terminal.site.write(
        "larder.yaml", f"{CONFIG[:-1]}, sources: [{{name: docs, type: markdown, paths: ['./docs/*.md']}}]}}"
    )
    terminal.type("index")
    terminal.wait_for(lambda: any(terminal.temporary.glob("pymp-*")))
    code, lines = terminal.interrupt()
    assert code == 130
    assert lines[-1].startswith("stopping within half a minute"), lines
    assert not ours(terminal.site)
    assert not list(terminal.temporary.glob("pymp-*"))


def test_a_command_that_is_killed_leaves_no_workers_behind(terminal: Terminal) -> None:
    terminal.site.write(
        "step-3.json", json.dumps([{"id": f"P-{n}", "title": f"Item {n}"} for n in range(40)])
    )
    terminal.type("enrich", "step-3.json", "-o", "out.json")
    terminal.wait_for(lambda: len(ours(terminal.site)) > 4)
    assert terminal.process is not None
    terminal.process.kill()
    terminal.process.wait()
    terminal.wait_for(lambda: not ours(terminal.site))


def test_up_in_the_foreground(terminal: Terminal) -> None:
    terminal.type("up", "--no-flower")
    terminal.wait_for(lambda: "state " in terminal.said.read_text())
    code, lines = terminal.interrupt()
    assert code == 130
    assert lines[-1].startswith("stopping: the processes finish their work")
    assert not ours(terminal.site)
    assert not (terminal.site.data / "state.json").exists()


def test_up_detached_takes_back_what_it_has_begun(terminal: Terminal) -> None:
    terminal.type("up", "--detach", "--no-flower")
    terminal.wait_for(lambda: len(ours(terminal.site)) > 2)
    assert terminal.interrupt() == (130, ["stopping what has been started"])
    assert not ours(terminal.site)


def test_flower_whose_broker_says_nothing(terminal: Terminal) -> None:
    """Its threads wait for the broker, and its end for none of them."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = embedded.free_port()
        broker = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        database = "postgresql://larder_app:x@127.0.0.1:1/larder"
        servers = {"LARDER_DATABASE_URL": database, "LARDER_BROKER_URL": broker}
        terminal.type("flower", "--port", str(port), **servers)
        assert terminal.process is not None
        terminal.wait_for(lambda: embedded.is_taken(port))
        silent.settimeout(30)
        with silent.accept()[0]:  # a thread has begun to wait
            terminal.process.terminate()
            assert terminal.process.wait(8) == 0
    assert [*terminal.site.data.glob("flower.db*")], "what it saved at its end"
