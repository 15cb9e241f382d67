"""Commands that the API of a running `larder up` answers: the same words and codes as by themselves, and quicker."""

from __future__ import annotations

import base64
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
from workers.local import embedded, local_socket
from workers.local.local_socket import SOCKET
from workers.settings import load

ROOT = str(Path(__file__).parents[3])
QUESTIONS = [
    ("search", "when do tides rise"),
    ("search", "bollards", "--json", "--explain", "-k", "2"),
    ("search", "bollards", "--explain"),
    ("search", "bollards", "-k2", "--mode=keyword"),
    ("search", "bollards", "--tag", "nothing", "--tag", "has", "--since", "7d"),
    ("search", "bollards", "--project", "nowhere"),
    ("search", "  "),
    ("search", "x", "--mode", "magic"),
    ("search", "-h"),
    ("search", "x", "-k", "0"),
    ("search", "x", "--wrong"),
    ("search", "x", "--data"),
    ("search",),
    ("explain", "docs/1.md", "--query", "tides"),
    ("explain", "docs/1.md", "--json"),
    ("explain", "nothing.md"),
    ("explain", "page"),
    ("status", "--watch", "--json"),
    ("search", "x", "--k", "0"),
    ("dead", "list", "--wrong"),
]
LISTS = [
    ("runs",),
    ("runs", "docs", "-n", "1", "--json"),
    ("runs", "nothing"),
    ("sources", "list"),
    ("dead", "list"),
    ("dead", "list", "--all", "--json"),
    ("dead", "show", "7"),
    ("dead", "messages"),
    ("audit", "list", "--action", "clear"),
    ("audit", "verify", "--tenant", "nobody"),
    ("keys", "status"),
    ("reindex", "status"),
    ("feedback", "--list"),
    ("stories", "search", "tides"),
    ("stories", "stats", "--json"),
    ("why-visible", "ann", "docs/1.md", "--group", "pilots"),
    ("why-visible", "ann", "page"),
    ("why-visible", "ann", "docs/1.md", "--level", "bogus"),
    ("token", "--permission", "bogus"),
]
QUICK = [*QUESTIONS[:2], QUESTIONS[4], QUESTIONS[5], QUESTIONS[7], *QUESTIONS[13:17], *LISTS]
"""Those whose answer must not load what answers them."""


@pytest.fixture(scope="module")
def harbour(make_site: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Three pages, and the API as `larder up` starts it, without all the others."""
    site: Site = make_site(tmp_path_factory.mktemp("asked"))
    file = site.write("larder.yaml", "rag: {sources: [{name: docs, type: markdown, paths: ['docs/*.md']}]}")
    for n, word in enumerate(("bollards hold vessels", "tides rise twice", "pilots board at dawn")):
        site.write(f"docs/{n}.md", f"# Page {n}\n\nThe {word}.\n")
    site.prepare()
    site.index()
    names = load(file, clean()).variables
    started_as = [local_socket.program_version(), local_socket.variables_digest(names, clean())]
    log = site.root / "api.log"
    with log.open("wb") as output:
        api = subprocess.Popen(
            [sys.executable, "-m", "workers.cli", "api", "--port", str(embedded.free_port())],
            cwd=site.root,
            env=clean(**{local_socket.STARTED_AS: json.dumps(started_as)}),
            stdout=output,
            stderr=output,
        )
    end = time.monotonic() + 60
    while not (site.data / SOCKET).exists():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)
    yield site
    api.terminate()
    api.wait(60)
    assert asked(site, "search", "tides")[0] == 0, "the socket of one that has ended is in nobody's way"
    site.larder("down")


def clean(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
    return {**kept, "PYTHONPATH": ROOT, "COLUMNS": "90", "LC_ALL": "C.UTF-8", "TZ": "UTC", **more}


def asked(site: Site, *args: str, folder: str = "docs", **env: str) -> tuple[int, str, str, set[str]]:
    """(exit code, stdout, stderr, the modules that the command had to load)."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "workers.cli", *args],
        cwd=site.root / folder, env=clean(**env), capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    lines = ran.stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
    told = "\n".join(line for line in lines if not line.startswith("import time:"))
    return ran.returncode, ran.stdout, told, loaded


def alone(site: Site, *args: str) -> tuple[int, str, str]:
    """The same by a command that no API answers, and with the parser of all arguments."""
    script = site.root / "alone.py"
    script.write_text(
        "from workers import cli\nfrom workers.local import local_socket\n"
        "cli.ASKING = {}\nlocal_socket.ask = lambda *_: None\ncli.main()"
    )
    ran = forked.run(args, cwd=site.root / "docs", env=clean(), script=script)
    return ran.returncode, ran.stdout, "\n".join(ran.stderr.splitlines())


@pytest.mark.parametrize("args", [*QUESTIONS, *LISTS])
def test_the_answer_is_the_same(harbour: Site, args: tuple[str, ...]) -> None:
    code, out, err, loaded = asked(harbour, *args)
    assert (code, out, err) == alone(harbour, *args)
    if args in QUICK:
        ours = {name for name in loaded if name.startswith("pipeline")}
        assert ours <= {"pipeline", "pipeline.documents", "pipeline.documents.plain_text", "pipeline.errors"}
        assert not {"sqlalchemy", "psycopg", "pydantic", "celery", "yaml", "psutil"} & loaded


def test_status_is_told_without_what_looks(harbour: Site) -> None:
    code, out, err, loaded = asked(harbour, "status", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["sources"][0]["documents"], found["database"]) == (3, "ok")
    assert "docs" in asked(harbour, "status")[1]
    assert not {"sqlalchemy", "pydantic"} & loaded


def test_a_token_is_made_by_the_api_and_names_who_asked_for_it(harbour: Site) -> None:
    code, out, _, loaded = asked(harbour, "token", "--user", "bob", USER="ann", LOGNAME="ann")
    assert (code, {"sqlalchemy", "joserfc"} & loaded) == (0, set())
    claims = json.loads(base64.urlsafe_b64decode(out.split(".")[1] + "=="))
    assert claims["sub"] == "bob"
    (entry,) = json.loads(asked(harbour, "audit", "list", "-n1", "--action=token", "--json")[1])["entries"]
    assert (entry["actor"], entry["subject"]) == ("cli:ann", "bob")


def test_a_source_that_nobody_configured_is_refused_by_the_api(harbour: Site) -> None:
    code, _, err, loaded = asked(harbour, "index", "nothing", folder=".")
    assert (code, "sqlalchemy" in loaded) == (2, False)
    assert "configured are docs" in err


def test_workers_that_are_missing_are_started_by_the_command(harbour: Site) -> None:
    """Not by the API, whose own they are not."""
    code, out, err, _ = asked(harbour, "index", folder=".")
    assert (code, "0 documents indexed" in out) == (0, True)
    assert "started some for this command" in err


def test_a_command_that_indexes_asks_no_installation_of_a_folder_above(harbour: Site) -> None:
    """It makes one where it is, as without an API."""
    code, _, err, _ = asked(harbour, "index")
    assert (code, "no sources are configured" in err) == (2, True)


@pytest.mark.req("001-116")
def test_a_search_is_in_the_audit_whose_reader_leaves_in_the_middle(harbour: Site) -> None:
    """As with `larder search WORDS | head -1`."""
    read, write = os.pipe()
    os.close(read)
    words = [sys.executable, "-m", "workers.cli", "search", "bollards of nobody"]
    try:
        ran = subprocess.run(
            words, cwd=harbour.root, env=clean(USER="ann", LOGNAME="ann"), stdout=write,
            stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    finally:
        os.close(write)
    assert (ran.returncode, ran.stderr) == (1, "")
    listed = asked(harbour, "audit", "list", "-n", "1", "--json")[1]
    assert "bollards of nobody" in listed
    assert "cli:ann" in listed


def test_a_command_that_is_configured_otherwise_answers_itself(harbour: Site) -> None:
    """With its variables and its file, and not with those of the API."""
    code, out, _, loaded = asked(harbour, "search", "tides", LARDER_TENANT="nobody")
    assert "no document of tenant nobody" in out
    assert (code, "sqlalchemy" in loaded) == (0, True)
    file = harbour.root / "larder.yaml"
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        assert "sqlalchemy" in asked(harbour, "search", "tides")[3]
    finally:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "sqlalchemy" not in asked(harbour, "search", "tides")[3]


def test_the_socket_is_of_its_user_alone(harbour: Site) -> None:
    assert (harbour.data / SOCKET).stat().st_mode & 0o777 == 0o600
    assert harbour.data.stat().st_mode & 0o777 == 0o700


def test_an_api_that_is_frozen_delays_a_command_and_does_not_stop_it(harbour: Site) -> None:
    api = psutil.Process(api_of(harbour))
    api.suspend()
    try:
        code, out, _, loaded = asked(harbour, "search", "tides")
    finally:
        api.resume()
    assert (code, "sqlalchemy" in loaded, "Page 1" in out) == (0, True, True)


def test_a_question_that_breaks_off_or_means_nothing_harms_no_other(harbour: Site) -> None:
    for line in (b"", b'{"question": ', b'{"question": "none", "arguments": {}, "user": "x"}\n'):
        with socket.socket(socket.AF_UNIX) as door, chdir(harbour.data):
            door.connect(SOCKET)
            door.sendall(line)
    assert asked(harbour, "search", "tides")[0] == 0


def test_a_file_that_changes_makes_another_version(tmp_path: Path) -> None:
    for top in ("connectors", "pipeline", "workers"):
        shutil.copytree(Path(ROOT, top), tmp_path / top, ignore=shutil.ignore_patterns("__pycache__"))
    asks = "from workers.local.local_socket import program_version as version; print(version())"

    def version() -> str:
        command = [sys.executable, "-c", asks]
        return subprocess.check_output(command, env=clean(PYTHONPATH=str(tmp_path)), cwd=tmp_path, text=True)

    before = version()
    assert version() == before
    (tmp_path / "pipeline" / "search" / "retriever.py").touch()
    assert version() != before


def test_ctrl_c_ends_a_command_that_watches(harbour: Site) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.cli", "status", "--watch"],
        cwd=harbour.root,
        env=clean(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
        # Whoever runs the tests in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    )
    try:
        time.sleep(3)
        process.send_signal(signal.SIGINT)
        told, _ = process.communicate(timeout=30)
        assert (process.returncode, told.endswith("stopped\n")) == (130, True)
    finally:
        process.kill()
        process.communicate()


def test_without_an_installation_that_runs_a_command_leaves_no_process(site: Site) -> None:
    site.prepare()
    (site.root / "docs").mkdir()
    before = processes_of(site)
    for args in (("status",), ("search", "tides")):
        assert asked(site, *args)[0] == 0
        assert processes_of(site) == before


def processes_of(site: Site) -> set[int]:
    """All processes with something of this folder in their command, folder or environment."""
    found = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = (*process.cmdline(), process.cwd(), process.environ().get("LARDER_DATA", ""))
            if process.pid != os.getpid() and any(word.startswith(str(site.root)) for word in words):
                found.add(process.pid)
    return found


def api_of(site: Site) -> int:
    """The process that has the door open."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(site.root) and "api" in process.cmdline():
                return process.pid
    raise AssertionError("it does not run")
