"""What status and doctor say of the `larder up` of this machine: a changed file, and a supervisor that was killed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import ConfigurationError
from tests.forked import environment, run
from workers.app import operations, status
from workers.app.doctor.doctor import examine
from workers.app.health import supervised
from workers.app.health.judgement import Diagnosis
from workers.app.ingestion import sync
from workers.monitoring import liveness
from workers.monitoring.liveness import process_start
from workers.runtime import Runtime
from workers.settings import load
from workers.settings.environment import WITHHELD
from workers.settings.rendering import in_force

SOURCES = "rag: {{embedding: {{provider: hashing}}, sources: [{{name: {}, type: text, paths: ['*.txt']}}]}}"


@pytest.fixture
def file(runtime: Runtime) -> Path:
    path = runtime.settings.path
    assert path is not None
    path.write_text(SOURCES.format("letters"), encoding="utf-8")
    return path


def write_state(runtime: Runtime, **pids: int) -> None:
    """As `larder up` does with the configuration of this moment."""
    assert runtime.settings.path is not None
    runtime.settings.data.mkdir(parents=True, exist_ok=True)
    entries = [
        {"name": name.replace("_", "-"), "pid": pid, "started": process_start(pid)}
        for name, pid in pids.items()
    ]
    settings = load(runtime.settings.path, {"LARDER_DATA": str(runtime.settings.data)})
    state = {"processes": entries, "configuration": {"file": "", **in_force(settings)}}
    (runtime.settings.data / "state.json").write_text(json.dumps(state))


@contextmanager
def looked(runtime: Runtime) -> Iterator[Runtime]:
    """The same with the file as it is now, as a command reads it."""
    assert runtime.settings.path is not None
    settings = load(runtime.settings.path, {"LARDER_DATA": str(runtime.settings.data)})
    with closing(Runtime(settings, runtime.addresses)) as command:
        yield command


def told(runtime: Runtime, check: str) -> dict[str, Any]:
    with looked(runtime) as command:
        return next((one for one in status.status(command)["next"] if one["check"] == check), {})


def diagnosed(runtime: Runtime, check: str) -> Diagnosis:
    with looked(runtime) as command:
        return next(one for one in examine(command) if one.check == check)


def test_a_source_renamed_in_the_file(runtime: Runtime, file: Path) -> None:
    write_state(runtime, supervisor=os.getpid())
    assert not told(runtime, "configuration")
    file.write_text(SOURCES.format("notes"), encoding="utf-8")
    finding = told(runtime, "configuration")
    assert "sources.notes: new" in finding["detail"]
    assert "sources.letters: taken out" in finding["detail"]
    assert finding["fix"] == "larder reload"
    assert diagnosed(runtime, "configuration").status == "warning"


def test_a_comment_is_no_change_and_another_server_is_no_reload(runtime: Runtime, file: Path) -> None:
    write_state(runtime, supervisor=os.getpid())
    text = file.read_text(encoding="utf-8")
    file.write_text(f"# reviewed\n{text}", encoding="utf-8")
    assert not told(runtime, "configuration")
    file.write_text(text[:-1] + ", storage: {broker: {url: 'redis://127.0.0.1:1/0'}}}", encoding="utf-8")
    assert told(runtime, "configuration")["fix"].startswith("larder down")


def test_what_larder_up_has_started_compares_nothing(
    runtime: Runtime, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_state(runtime, supervisor=os.getpid())
    file.write_text(SOURCES.format("notes"), encoding="utf-8")
    monkeypatch.setenv(WITHHELD, "GEMINI_API_KEY")
    with looked(runtime) as command:
        assert supervised.changed_since_start(command.settings) == []


def test_a_supervisor_that_was_killed(runtime: Runtime, file: Path) -> None:
    del file
    killed = subprocess.Popen(["sleep", "600"])
    write_state(runtime, supervisor=killed.pid, worker_embed=os.getpid(), postgres=os.getpid())
    assert not told(runtime, "workers")
    killed.kill()
    os.waitid(
        os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT
    )  # nobody takes its exit code, as in many a container
    finding = diagnosed(runtime, "workers")
    assert finding.status == "error"
    assert "`larder up` was killed, and nobody looks after worker-embed" in finding.detail
    assert "postgres" not in finding.detail
    assert "larder up --detach" in finding.fix
    killed.wait()


def test_a_folder_that_vanished_is_named_before_the_next_sync(runtime: Runtime, file: Path) -> None:
    section = SOURCES.format("letters").replace("'*.txt'", "'in/box/**/*.txt', 'a.txt'")
    file.write_text(section, encoding="utf-8")
    (file.parent / "in/box").mkdir(parents=True)
    (file.parent / "a.txt").touch()
    write_state(runtime, supervisor=os.getpid())
    with looked(runtime) as command:
        assert not status.status(command)["missing_folders"]
    (file.parent / "in/box").rmdir()
    finding = told(runtime, "sources")
    assert finding["detail"] == f"a folder of letters is not there: {file.parent / 'in/box'}"
    with looked(runtime) as command:
        (listed,) = (one for one in operations.listing(command) if one["name"] == "letters")
    assert listed["missing_folder"] == str(file.parent / "in/box")


def test_a_tenant_that_was_a_slip_is_named(runtime: Runtime, file: Path) -> None:
    """`tenant: defualt`, taken over and put right: what it made stays, and nobody would find it."""
    section = SOURCES.format("letters").replace("{embedding", "{tenant: TENANT, embedding", 1)
    for tenant in ("defualt", "default"):
        file.write_text(section.replace("TENANT", tenant), encoding="utf-8")
        write_state(runtime, supervisor=os.getpid())
        with looked(runtime) as command:
            sync.register(command)
    with looked(runtime) as command:
        assert status.status(command)["unconfigured"] == ["defualt/letters"]
        assert any("forget defualt/letters" in one["fix"] for one in status.status(command)["next"])
        forgotten = operations.forgettable(command, ["defualt/letters"])
        operations.forget(command, forgotten)
        assert not status.status(command)["unconfigured"]


@contextmanager
def as_another_user(folder: Path) -> Iterator[None]:
    """Nobody who may read this folder; root may read any."""
    folder.chmod(0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)


def test_the_folder_of_the_signs_of_life_is_another_users(runtime: Runtime, tmp_path: Path) -> None:
    folder = tmp_path / "theirs" / "heartbeat"
    folder.mkdir(parents=True)
    with looked(runtime) as command:
        command.heartbeat_folder = folder
        with as_another_user(folder.parent):
            found = {one.check: one for one in examine(command)}
            with pytest.raises(ConfigurationError, match=f"written to {folder}") as refused:
                liveness.prepare_folder(folder)
    assert f"{folder} cannot be read: Permission denied" in found["heartbeats"].detail
    assert "LARDER_HEARTBEAT_DIR" in found["heartbeats"].fix
    assert "LARDER_HEARTBEAT_DIR" in refused.value.fix
    assert found["database"].status == "ok"
    assert "disk" in found, "it goes on with the others"


def test_passwords_of_another_users_flower_are_not_called_absent(tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir()
    liveness.refuse_foreign_state(folder)
    (folder / "state.json").touch()
    with (
        as_another_user(folder),
        pytest.raises(ConfigurationError, match=r"state\.json cannot be read: Permission denied"),
    ):
        liveness.refuse_foreign_state(folder)


def test_a_worker_that_may_not_write_there_says_so(runtime: Runtime, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    where = runtime.addresses
    variables = {
        "LARDER_DATABASE_URL": where.database,
        "LARDER_BROKER_URL": where.broker,
        "LARDER_HEARTBEAT_DIR": str(tmp_path / "file" / "heartbeat"),
    }
    ran = run(("worker", "embed"), cwd=tmp_path, env=environment(**variables), seconds=60)
    assert (ran.returncode, "Traceback" in ran.stderr) == (2, False), ran.stderr
    assert "signs of life cannot be written to" in ran.stderr
    assert "LARDER_HEARTBEAT_DIR" in ran.stderr
