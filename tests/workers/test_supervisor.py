"""The supervisor's decisions, on real processes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from pipeline.errors import ConfigurationError, LarderError
from workers.local import supervisor
from workers.local.embedded import Credentials
from workers.local.supervisor import Child, Supervisor
from workers.monitoring import liveness
from workers.monitoring.liveness import process_start
from workers.runtime import Addresses
from workers.settings import load

NAP = [sys.executable, "-c", "import time; time.sleep(60)"]
END = [sys.executable, "-c", "raise SystemExit(1)"]
SLOW = """
import signal, time
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(print("told to end", flush=True)))
print("up", flush=True)
while not told:
    time.sleep(0.02)
time.sleep(2)
"""


METADATA_KEY = "a2V5LW9mLW1ldGFkYXRhLWtleS1vZi1tZXRhZGF0YSE="


@pytest.fixture
def boss(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of processes of ours, on servers that are not embedded."""
    (tmp_path / "larder.yaml").write_text(
        "rag:\n  storage:\n    database: {url: 'postgresql://a:b@127.0.0.1:1/x'}\n"
        "    broker: {url: 'redis://127.0.0.1:1/0'}\n"
    )
    where = Addresses(
        database="postgresql://app:pw-of-app@h/d",
        encryption_keys=METADATA_KEY,
        control="postgresql://control:pw-of-control@h/d",
        admin="postgresql://owner:pw-of-owner@h/d",
        broker="redis://:pw-of-broker@h/0",
    )
    made = Supervisor(settings=load(tmp_path / "larder.yaml", {}), addresses=where, lends=True)
    yield made
    made.stop_children()


def start(boss: Supervisor, name: str, command: list[str]) -> Child:
    child = Child(name, command)
    boss.children.append(child)
    boss._start(child)
    return child


def test_a_process_that_died_is_started_again(boss: Supervisor) -> None:
    child = start(boss, "worker-x", NAP)
    assert child.process is not None
    before = child.process.pid
    child.process.kill()
    child.process.wait()
    boss.look()
    boss.look()
    assert child.process is not None
    assert child.process.pid != before
    assert supervisor.ended(child.process) is None


def test_one_that_keeps_dying_waits_longer_each_time(boss: Supervisor) -> None:
    child = start(boss, "worker-x", END)
    waits = []
    for _ in range(5):
        while child.process is not None and supervisor.ended(child.process) is None:
            time.sleep(0.02)
        boss.look()
        waits.append(max(0.0, child.next_start - time.monotonic()))
        child.next_start = 0.0
        boss.look()
    assert waits[:2] == [pytest.approx(0, abs=0.1)] * 2
    assert waits[-1] > waits[-2] > 1


def test_one_that_lives_and_is_deaf_is_killed(boss: Supervisor, capfd: pytest.CaptureFixture[str]) -> None:
    child = start(boss, "worker-x", NAP)
    assert child.process is not None
    child.started = time.monotonic() - 120
    liveness.touch(boss.data / "heartbeat", "worker-x")
    beat = boss.data / "heartbeat" / "worker-x.heartbeat"
    os.utime(beat, (0, time.time() - 20))
    boss.look()
    assert supervisor.ended(child.process) is None, "twenty seconds of silence are no reason"
    os.utime(beat, (0, time.time() - 40))
    process = child.process
    boss.look()
    assert process.wait(60) == -9
    assert "gave no sign of life for 40 s and is ended" in capfd.readouterr().err


def test_another_configuration_is_taken_over_at_once_but_by_those_that_answer_people(
    boss: Supervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    """These come last, one after the other: somebody answers at any time."""
    names = ("worker-x", "worker-enrich", "api", "worker-y")
    by_name = {name: start(boss, name, NAP) for name in names}
    before = {name: child.process for name, child in by_name.items()}
    file = boss.settings.folder / "larder.yaml"
    file.write_text(file.read_text() + "  retrieval: {topK: 9}\n")
    boss.reloading.set()

    def renewed() -> set[str]:
        return {name for name, child in by_name.items() if child.process not in (before[name], None)}

    waves = ({"worker-x", "worker-y"}, {"worker-enrich"}, {"api"})
    for number, wave in enumerate(waves):
        while not wave <= renewed():
            boss.look()
            time.sleep(0.02)
        boss.look()
        assert renewed() == set().union(*waves[: number + 1]), "until these beat"
        for name in wave:
            liveness.touch(boss.data / "heartbeat", name)
    assert boss.settings.rag.retrieval.top_k == 9
    while boss.outdated:
        boss.look()
    assert [child.failures for child in by_name.values()] == [0] * 4, "they were asked to end"
    capfd.readouterr()
    for wrong in ("rag: {topK: 9}\n", ""):  # or it would look after servers of its own
        file.write_text(wrong)
        boss.reloading.set()
        boss.look()
        assert not boss.outdated
        assert boss.settings.database_url
        assert "the configuration stays as it was" in capfd.readouterr().err


def test_another_reload_meanwhile_tells_nobody_twice_to_end(boss: Supervisor) -> None:
    child = start(boss, "worker-x", [sys.executable, "-c", SLOW])
    first, log = child.process, boss.data / "logs" / "worker-x.log"
    for said in ("up", "told to end"):
        while said not in log.read_text():
            time.sleep(0.02)
        boss.reloading.set()
        boss.look()
    while child.process in (first, None):
        boss.look()
        time.sleep(0.02)
    assert log.read_text().count("told to end") == 1


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Those of signals, which `run` replaces."""
    kept = {sign: signal.getsignal(sign) for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for sign, handler in kept.items():
        signal.signal(sign, handler)


@pytest.mark.usefixtures("_handlers")
def test_trouble_of_the_machine_ends_no_supervisor(
    boss: Supervisor, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a full disk, on which nothing can be started: once there is room again, all goes on."""
    boss.lends, boss.queues = False, ()
    log = boss.data / "logs"

    def beat() -> psutil.Process | None:
        return next(child.process for child in boss.children if child.name == "beat")

    def trouble() -> None:
        first = beat()
        assert first is not None
        log.rename(boss.data / "kept")
        log.touch()
        first.kill()
        time.sleep(2)
        log.unlink()
        (boss.data / "kept").rename(log)
        end = time.monotonic() + 20
        while beat() in (None, first) and time.monotonic() < end:
            time.sleep(0.05)
        restarted.append(beat() not in (None, first))
        boss.stopping.set()

    restarted: list[bool] = []
    helper = threading.Thread(target=trouble)
    boss.run(ready=helper.start)
    helper.join()
    assert restarted == [True]
    assert capfd.readouterr().err.count("is tried again") == 1


def test_secrets_travel_by_environment_not_by_command_line(boss: Supervisor) -> None:
    boss.flower_port = 5555
    boss.plan()
    assert {c.name for c in boss.children} == {
        "worker-control",
        "worker-ingest",
        "worker-embed",
        "worker-enrich",
        "beat",
        "flower",
    }
    assert not [c for c in boss.children if "postgresql" in " ".join(c.command)]
    assert boss.environment("worker-embed")["LARDER_DATABASE_URL"] == "postgresql://app:pw-of-app@h/d"
    assert boss.environment("worker-embed")["REMAP_SIGTERM"] == "SIGQUIT"
    boss.children = []


def test_each_child_is_told_only_the_passwords_it_needs(
    boss: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARDER_ADMIN_DATABASE_URL", "postgresql://owner:pw-of-owner@h/d")
    monkeypatch.setenv("LARDER_ADMIN_DATABASE_URL_FILE", "/run/secrets/pw-of-owner")
    monkeypatch.setenv("LARDER_ENCRYPTION_KEYS_FILE", f"/run/secrets/{METADATA_KEY}")
    boss.flower_port = 5555
    boss.plan()
    known = {
        child.name: {
            word
            for word in ("pw-of-app", "pw-of-control", "pw-of-owner", "pw-of-broker", METADATA_KEY)
            if word in str(boss.environment(child.name))
        }
        for child in boss.children
    }
    boss.children = []
    monkeypatch.delenv("LARDER_ENCRYPTION_KEYS_FILE")
    workers = ("worker-control", "worker-ingest", "worker-embed", "worker-enrich")
    assert {name: known.pop(name) for name in workers} == {
        name: {"pw-of-app", "pw-of-control", "pw-of-broker", METADATA_KEY} for name in workers
    }
    assert known == {"beat": {"pw-of-broker"}, "flower": {"pw-of-broker"}}
    given = ("WIKI_TOKEN", "LARDER_EMBEDDING_API_KEY")
    for variable in given:
        monkeypatch.setenv(variable, f"secret of {variable}")
    text = """
rag:
  embedding: {provider: openai}
  sources:
    - {name: a, type: confluence, baseUrl: 'https://wiki.example', token: '${WIKI_TOKEN}'}
"""
    (boss.settings.folder / "keys.yaml").write_text(text)
    boss.settings = load(boss.settings.folder / "keys.yaml", os.environ)
    for name in (*workers, *known):
        env = boss.environment(name)
        assert [env.get(variable, "").startswith("secret") for variable in given] == [name in workers] * 2, (
            name
        )
        assert len(load(boss.settings.folder / "keys.yaml", env).rag.sources) == 1, "it can still be read"
    text = "rag:\n  storage:\n    database: {adminUrl: '${LARDER_ADMIN_DATABASE_URL}'}\n"
    text += "  security: {encryptionKeys: '${LARDER_ENCRYPTION_KEYS}'}\n"
    (boss.settings.folder / "named.yaml").write_text(text)
    for name in (*workers, *known):
        told = load(boss.settings.folder / "named.yaml", boss.environment(name))
        assert told.database_url, "or the child would look for servers of its own"
        assert told.rag.storage.database.admin_url is not None, "a file that names the variable can be read"


def test_a_command_borrows_only_the_workers_it_needs(boss: Supervisor) -> None:
    boss.queues = ("control", "enrich")
    boss.plan()
    assert {c.name for c in boss.children} == {"worker-control", "worker-enrich", "beat"}
    boss.children = []


def test_a_reused_process_id_is_not_taken_for_ours(tmp_path: Path) -> None:
    process = subprocess.Popen(NAP)
    try:
        started = process_start(process.pid)
        entries = [
            {"name": "ours", "pid": process.pid, "started": started},
            {"name": "another", "pid": process.pid, "started": started - 100},
        ]
        (tmp_path / "state.json").write_text(json.dumps({"processes": entries}))
        assert supervisor.running(tmp_path) == {"ours": process.pid}
    finally:
        process.kill()
        process.wait()
    assert supervisor.running(tmp_path) == {}
    assert supervisor.read_state(tmp_path / "nowhere") is None


def test_kill_tree_takes_the_children_along() -> None:
    script = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']);"
    process = subprocess.Popen([sys.executable, "-c", script + "time.sleep(60)"])
    end = time.monotonic() + 10
    while not psutil.Process(process.pid).children() and time.monotonic() < end:
        time.sleep(0.05)
    family = psutil.Process(process.pid).children()
    assert family
    supervisor.kill_tree(process.pid)
    process.wait(60)
    _, alive = psutil.wait_procs(family, timeout=30)  # they would sleep for sixty
    assert not alive


HOLD = "import sys, time; from pathlib import Path; from workers.local import supervisor\n"
HOLD += (
    "with supervisor.single_supervisor(Path(sys.argv[1])):\n    print('holds', flush=True); time.sleep(60)"
)


def test_of_many_that_begin_at_once_one_is_the_supervisor(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == b"holds\n"
        # There is no state yet, and `down` and a second `up` know of it.
        assert supervisor.running(tmp_path) == {"supervisor": first.pid}
        with pytest.raises(LarderError, match="already running"), supervisor.single_supervisor(tmp_path):
            pass
        assert supervisor.running(tmp_path) == {"supervisor": first.pid}, "the second left its name"
        assert supervisor.shut_down(tmp_path) == ["supervisor"]
        first.wait(5)
    finally:
        first.kill()
        first.communicate()
    with supervisor.single_supervisor(tmp_path):
        assert supervisor.running(tmp_path) == {"supervisor": os.getpid()}


def test_who_begins_ends_what_a_killed_supervisor_left_behind(tmp_path: Path) -> None:
    left, server = subprocess.Popen(NAP), subprocess.Popen(NAP)
    try:
        entries = [
            {"name": name, "pid": p.pid, "started": process_start(p.pid)}
            for name, p in (("worker-embed", left), ("postgres", server))
        ]
        (tmp_path / "state.json").write_text(json.dumps({"processes": entries}))
        with supervisor.single_supervisor(tmp_path):
            assert left.wait(5) == -9
            assert server.poll() is None, "servers are taken over as they are"
    finally:
        for process in (left, server):
            process.kill()
            process.wait()


def test_a_copy_of_a_folder_has_not_its_processes(tmp_path: Path) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    first.mkdir(mode=0o700)
    with supervisor.single_supervisor(first):
        shutil.copytree(first, copy)
        assert list(supervisor.running(first)) == ["supervisor"]
        assert supervisor.running(copy) == {}
        assert supervisor.shut_down(copy) == [], "it would end this very test"


@pytest.mark.parametrize("content", ["{", "[1]", '{"processes": [1, {"name": "x"}]}', '{"processes": 1}'])
def test_a_damaged_state_stops_nobody(tmp_path: Path, content: str) -> None:
    (tmp_path / "state.json").write_text(content)
    (tmp_path / "supervisor.lock").write_text(content)
    assert supervisor.running(tmp_path) == {}
    assert supervisor.shut_down(tmp_path) == []


@pytest.mark.parametrize("content", ["{", "{}", "[1]", '{"postgres": "x"}'])
def test_damaged_passwords_are_named_and_kept(tmp_path: Path, content: str) -> None:
    (tmp_path / "credentials.json").write_text(content)
    with pytest.raises(ConfigurationError, match="is damaged"):
        Credentials.of_folder(tmp_path)
    assert (tmp_path / "credentials.json").read_text() == content


FORKS = """
import json, os, signal, sys, threading, time
from pathlib import Path
from workers.local import supervisor
from workers.runtime import Addresses
from workers.settings import load


def run(words, environment, folder):
    os.chdir(folder)
    told = {"words": words, "database": environment["LARDER_DATABASE_URL"], "owner": str(environment)}
    told |= {"folder": os.getcwd(), "session": os.getsid(0) == os.getpid(), "stdin": sys.stdin.read()}
    told |= {"signals": [int(signal.getsignal(n)) for n in (signal.SIGTERM, signal.SIGHUP)]}
    print(json.dumps(told), flush=True)
    time.sleep(60)


data = Path(sys.argv[1])
with supervisor.single_supervisor(data):
    where = Addresses(database="pw-of-app", admin="postgresql://o:pw-of-owner@h/d")
    settings = load(None, {"LARDER_DATA": str(data)})
    boss = supervisor.Supervisor(settings=settings, addresses=where, fork=run)
    signal.signal(signal.SIGTERM, boss._end)
    print("not yet flushed", end="")
    child = supervisor.Child("worker-x", [*supervisor.LARDER, "worker", "x"])
    boss._start(child)
    print(child.process.pid, flush=True)
    time.sleep(60)
"""


FAILING = """
import sys
from pathlib import Path
from workers.local import supervisor
from workers.runtime import Addresses
from workers.settings import load

settings = load(None, {"LARDER_DATA": sys.argv[1]})
boss = supervisor.Supervisor(settings=settings, addresses=Addresses(), fork=lambda *_: 1 // 0)
child = supervisor.Child("worker-x", [*supervisor.LARDER, "worker", "x"])
try:
    boss._start(child)
    child.process.wait()
finally:
    with Path(sys.argv[1], "went-on").open("a") as file:
        file.write("one")
"""


def test_a_fork_that_fails_ends_where_its_log_is_full_too(tmp_path: Path) -> None:
    """Else it goes on as a second supervisor, and ends all that the first one looks after."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker-x.log").symlink_to("/dev/full")
    subprocess.run([sys.executable, "-c", FAILING, str(tmp_path)], check=True, capture_output=True)
    assert (tmp_path / "went-on").read_text() == "one"


def test_a_fork_begins_as_a_process_of_its_own_would_and_holds_no_lock(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with subprocess.Popen(
        [sys.executable, "-c", FORKS, str(data)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": ""},
    ) as boss:
        assert boss.stdout is not None
        pid = int(boss.stdout.readline().removeprefix("not yet flushed"))
        boss.kill()
    fork, log = psutil.Process(pid), data / "logs" / "worker-x.log"
    while not log.read_text().endswith("\n"):
        time.sleep(0.02)
    told = json.loads(log.read_text())
    assert told["words"] == ["worker", "x"]
    assert told["database"] == "pw-of-app"
    assert "pw-of-owner" not in told["owner"]
    assert Path(told["folder"]) == Path.cwd()
    assert (told["session"], told["stdin"]) == (True, "")
    assert told["signals"] == [signal.SIG_DFL] * 2
    with (data / "supervisor.lock").open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert fork.is_running()
    if sys.platform == "linux":
        assert fork.name() == "worker-x"
    fork.kill()


@pytest.mark.parametrize(
    ("run", "code"),
    [(lambda *_: 3, 3), (lambda *_: os.kill(os.getpid(), 9), -9), (lambda *_: 1 // 0, 1)],
    ids=["a code", "a signal", "an error"],
)
def test_the_end_of_a_fork_is_told(boss: Supervisor, run: Callable[..., int], code: int) -> None:
    boss.fork = run
    child = start(boss, "worker-x", [])
    assert child.process is not None
    assert child.process.wait(30) == code
    assert supervisor.ended(child.process) == code, "also when asked again"


@pytest.mark.parametrize("given", ["secret", ":secret", "user:"])
def test_a_login_of_flower_that_lets_nobody_in_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(ConfigurationError, match="LARDER_FLOWER_AUTH") as refused:
        supervisor.flower_login({"LARDER_FLOWER_AUTH": given}, tmp_path)
    assert "secret" not in str(refused.value)
    assert supervisor.flower_login({"LARDER_FLOWER_AUTH": "user:secret"}, tmp_path) == "user:secret"
