"""Commands that a process of `larder up` runs: the same words and codes as by themselves, from a quicker start."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests import forked
from tests.conftest import Site
from workers import embedded
from workers.cli import served
from workers.processes.metrics import exposition

SEARCHES = "larder_query_count_total"
ALONE = "from workers.cli import run; run()"
ROOT = str(Path(__file__).parents[3])


@pytest.fixture(scope="module")
def harbour(make_site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three pages, and the process that serves commands, without all the others."""
    site: Site = make_site(tmp_path_factory.mktemp("served"))
    site.write("larder.yaml", "rag: {sources: [{name: docs, type: markdown, paths: ['docs/*.md']}]}")
    for n, word in enumerate(("bollards hold vessels", "tides rise twice", "pilots board at dawn")):
        site.write(f"docs/{n}.md", f"# Page {n}\n\nThe {word}.\n")
    site.prepare()
    site.index()
    with (site.root / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "serve"],
            cwd=site.root,
            env=clean(PROMETHEUS_MULTIPROC_DIR=str(site.root)),
            stdout=log,
            stderr=log,
        )
    end = time.monotonic() + 60
    while not (site.data / "commands.sock").exists():
        assert time.monotonic() < end, (site.root / "serve.log").read_text()
        time.sleep(0.05)
    yield site
    server.kill()
    server.wait()
    site.larder("down")


def clean(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    return {**kept, "PYTHONPATH": ROOT, "COLUMNS": "90", "LC_ALL": "C.UTF-8", "LARDER_ALONE": "1", **more}


def asking(site: Site, *args: str) -> dict[str, Any]:
    """What a command sends to the process that shall run it."""
    return {
        "program": served.program_version(),
        "args": args,
        "folder": str(site.root),
        "environment": clean(),
        "encodings": ["utf-8"] * 3,
    }


def asked(site: Site, *args: str, alone: bool = False, **env: str) -> tuple[int, str, str, bool]:
    """(exit code, stdout, stderr, whether the process itself had to load the command)."""
    folder, environment = site.root / "docs", clean(**env)
    if alone:
        script = site.root / "alone.py"
        script.write_text(ALONE)
        ran = forked.run(args, cwd=folder, env=environment, script=script)
    else:
        command = [sys.executable, "-X", "importtime", "-m", "workers.cli", *args]
        ran = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    lines = ran.stderr.splitlines()
    loaded = any("| typer" in line.replace("  ", "") for line in lines if line.startswith("import time:"))
    said = "\n".join(line for line in lines if not line.startswith("import time:"))
    return ran.returncode, ran.stdout, said, loaded or alone


@pytest.mark.parametrize(
    "args",
    [
        ("search", "when do tides rise"),
        ("search", "bollards", "--json", "--explain", "-k", "2"),
        ("search", "  "),
        ("search", "x", "--mode", "magic"),
        ("search", "-h"),
        ("explain", "docs/1.md", "--query", "tides"),
        ("explain", "nothing.md"),
        ("index", "--dry-run"),
        ("index", "nowhere"),
        ("runs", "--json"),
        ("why-visible", "ann", "docs/1.md"),
    ],
)
def test_the_answer_is_the_same(harbour: Site, args: tuple[str, ...]) -> None:
    served, alone = asked(harbour, *args), asked(harbour, *args, alone=True)
    assert served[:3] == alone[:3]
    assert (served[3], alone[3]) == (False, True)


def test_it_runs_as_whoever_asks(harbour: Site) -> None:
    """With their variables, and not with those of the process."""
    code, out, _, loaded = asked(harbour, "search", "tides", LARDER_TENANT="nobody")
    assert (code, loaded) == (0, False)
    assert "no document of tenant nobody" in out
    assert asked(harbour, "search", "tides", PYTHONIOENCODING="ascii")[1].isascii()


@pytest.mark.req("001-116")
def test_a_search_is_in_the_audit_whose_reader_leaves_in_the_middle(harbour: Site) -> None:
    """As with `larder search WORDS | head -1`."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "workers.cli", "search", "bollards of nobody"]
    try:
        subprocess.run(words, cwd=harbour.root, env=clean(), stdout=write, check=False)
    finally:
        os.close(write)
    assert "bollards of nobody" in asked(harbour, "audit", "list", "-n", "1")[1]


def test_an_older_process_runs_no_newer_command(harbour: Site) -> None:
    ran = harbour.root / "ran"
    program, changed = served.program_version()
    for version, answer in (([program, changed], True), ([program, 1], False)):
        wanted = asking(harbour, "search", "tides", "--data", str(harbour.data)) | {"program": version}
        with ran.open("w+") as said, socket.socket(socket.AF_UNIX) as door:
            with chdir(harbour.data):
                door.connect(served.SOCKET)
            assert door.recv(1) == b"?"
            socket.send_fds(door, [json.dumps(wanted).encode() + b"\n"], [said.fileno()] * 3)
            assert bool(door.recv(100)) is answer


def test_a_file_that_changes_makes_another_version(tmp_path: Path) -> None:
    for top in ("connectors", "pipeline", "workers"):
        shutil.copytree(Path(ROOT, top), tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    asks = "from workers.cli.served import program_version as version; print(version())"

    def version() -> str:
        command = [sys.executable, "-c", asks]
        return subprocess.check_output(command, env=clean(PYTHONPATH=str(tmp_path)), cwd=tmp_path, text=True)

    before = version()
    assert version() == before
    (tmp_path / "pipeline" / "search" / "retriever.py").touch()
    assert version() != before


def test_ctrl_c_before_the_command_begins_is_told_as_one_in_it(harbour: Site, tmp_path: Path) -> None:
    wanted = asking(harbour, "status")
    with (tmp_path / "said").open("w+") as said, socket.socket(socket.AF_UNIX) as door:
        with chdir(harbour.data):
            door.connect(served.SOCKET)
        assert door.recv(1) == b"?"
        socket.send_fds(door, [json.dumps(wanted).encode() + b"\n"], [said.fileno()] * 3)
        os.kill(int(door.recv(100)), signal.SIGINT)
        assert door.recv(1) == bytes([130])
        said.seek(0)
        assert said.read() == "stopped\n"


def test_what_commands_count_is_counted_with_the_rest_and_takes_no_room_of_its_own(harbour: Site) -> None:
    def counted() -> float:
        [line] = [one for one in exposition(harbour.root).decode().splitlines() if one.startswith(SEARCHES)]
        return float(line.split()[-1])

    server = psutil.Process(served_by(harbour))
    asked(harbour, "search", "tides")
    psutil.wait_procs(server.children(), timeout=30)
    before = counted()
    for _ in range(3):
        assert asked(harbour, "search", "tides")[0] == 0
        psutil.wait_procs(server.children(), timeout=30)
    numbers = {file.stem.rpartition("_")[2] for file in harbour.root.glob("*.db")}
    assert len(numbers - {"0", str(server.pid)}) <= 1, "each leaves what the next one brings together"
    assert counted() == before + 3


def test_ctrl_c_reaches_it(harbour: Site) -> None:
    server = psutil.Process(served_by(harbour))
    psutil.wait_procs(server.children(), timeout=30)  # of the test before
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", "status", "--watch"],
        cwd=harbour.root,
        env=clean(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Whoever runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        end = time.monotonic() + 30
        while not any(fork.num_threads() > 1 for fork in server.children()):  # it watches who asked
            assert time.monotonic() < end
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=30)
        assert (process.returncode, said.splitlines()[-1]) == (130, "stopped")
    finally:
        process.kill()
        process.communicate()


def test_a_question_that_breaks_off_leaves_no_process_at_work(harbour: Site) -> None:
    server, end = psutil.Process(served_by(harbour)), time.monotonic() + 30
    for part in (b"", b'{"program": '):
        with socket.socket(socket.AF_UNIX) as door, chdir(harbour.data):
            door.connect("commands.sock")
            if part:
                socket.send_fds(door, [part], [0, 1, 2])
    while server.children():
        assert time.monotonic() < end, "it waits for the rest, for ever and at full speed"
        time.sleep(0.02)


def test_a_fork_ends_that_cannot_tell_its_trouble(harbour: Site) -> None:
    """It would go on as the process that it was, and hang at its end on threads that a fork does not have."""
    server, end = psutil.Process(served_by(harbour)), time.monotonic() + 30
    read, write = os.pipe()
    os.close(read)
    wanted = asking(harbour, "status") | {"encodings": ["none such"] * 3}
    with socket.socket(socket.AF_UNIX) as door:
        with chdir(harbour.data):
            door.connect(served.SOCKET)
        assert door.recv(1) == b"?"
        socket.send_fds(door, [json.dumps(wanted).encode() + b"\n"], [write] * 3)
        os.close(write)
        assert door.recv(1) == b""
    while server.children():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_large_variables_and_a_closed_input_are_no_trouble(harbour: Site) -> None:
    more = {f"LARGE_{n}": "x" * 100_000 for n in range(8)}
    code, _, _, loaded = asked(harbour, "search", "tides", alone=False, **more)
    assert (code, loaded) == (0, False)
    closed = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m workers.cli search tides <&-"],
        cwd=harbour.root, env=clean(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (closed.returncode, "Traceback" in closed.stderr) == (0, False)


def test_who_is_killed_leaves_nothing_behind(harbour: Site) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", "status", "--watch"],
        cwd=harbour.root,
        env=clean(),
        stdout=subprocess.DEVNULL,
    )
    server, end = psutil.Process(served_by(harbour)), time.monotonic() + 30
    while not any(fork.num_threads() > 1 for fork in server.children()):
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    process.wait()
    while server.children():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_without_an_installation_that_runs_the_first_command_leaves_a_process_for_the_next(
    site: Site,
) -> None:
    """As it leaves the servers that it had to start; `larder down` ends all of them."""
    site.prepare()
    (site.root / "docs").mkdir()
    assert asked(site, "status")[0] == 0
    assert not left_by(site), "one may do without"
    assert asked(site, "status", LARDER_ALONE="")[3] is True
    first = left_by(site)
    assert first
    until_served(site)
    assert left_by(site) == first
    # Its server is gone, and nobody has said so: it is not left for ever.
    embedded.stop_server(site.data / "postgres", signal.SIGINT, 30)
    psutil.wait_procs([psutil.Process(first)], timeout=30)
    assert not left_by(site)
    embedded.ensure(site.data)
    until_served(site)
    assert left_by(site) not in {0, first}
    assert "commands" in site.larder("down", "--json").data["stopped"]
    assert not left_by(site)


def test_where_no_process_can_be_left_the_answer_is_the_whole_of_it(site: Site) -> None:
    """As on a full disk: neither an error behind the answer, nor a process that nobody finds."""
    site.prepare()
    (site.root / "docs").mkdir()
    in_the_way = site.data / "commands"
    in_the_way.touch()
    try:
        code, out, _, _ = asked(site, "status", "--json", LARDER_ALONE="")
        assert code == 0
        assert json.loads(out)
        assert not serving(site)
    finally:
        in_the_way.unlink()


def test_none_is_left_where_no_command_would_look_for_it(site: Site) -> None:
    """Before the configuration is read, the data folder that it names is not known."""
    site.prepare()
    (site.root / "docs").mkdir()
    site.write("other/larder.yaml", "rag: {storage: {data: ../.larder}}")
    assert asked(site, "status", "--config", "../other/larder.yaml", LARDER_ALONE="")[0] == 0
    assert not left_by(site)


def test_one_that_is_frozen_holds_no_stream_and_delays_one_command_alone(site: Site) -> None:
    site.prepare()
    (site.root / "docs").mkdir()
    until_served(site)
    frozen = psutil.Process(left_by(site))
    frozen.suspend()
    try:
        # Its output ends where the command does: else this waits until the process is gone.
        command = [sys.executable, "-m", "workers.cli", "status"]
        for _ in range(2):
            subprocess.run(command, cwd=site.root, env=clean(), capture_output=True, timeout=60, check=True)
    finally:
        frozen.resume()
    psutil.wait_procs([frozen], timeout=30)
    assert not frozen.is_running(), "it has found that it is no longer asked"
    until_served(site)
    site.larder("down")


def left_by(site: Site) -> int:
    """The process that a command has left, 0 if there is none."""
    found = embedded.running(site.data / "commands")
    return found[0] if found else 0


def until_served(site: Site) -> None:
    end = time.monotonic() + 60
    while asked(site, "status", LARDER_ALONE="")[3]:
        assert time.monotonic() < end


def serving(site: Site) -> list[int]:
    """All processes that serve commands of this folder, or begin to."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if "serve" in process.cmdline() and process.environ().get("LARDER_DATA") == str(site.data):
                found.append(process.pid)
    return found


def served_by(site: Site) -> int:
    """The process that has the door open."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(site.data) and process.cmdline()[-1:] == ["serve"]:
                return process.pid
    raise AssertionError("it does not run")
