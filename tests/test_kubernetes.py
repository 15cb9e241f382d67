"""The files for Kubernetes, read as data; `make manifests` has the real tools read them as well."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import yaml

from pipeline.database.engine import Database
from pipeline.ledger import project_id
from tests.conftest import Addresses
from tests.ledger import Ledger
from tests.test_deploy import COMPOSE, OURS, SOFT_SHUTDOWN, seconds
from workers.queue.celeryconfig import QUEUES
from workers.settings.environment import OVERRIDES
from workers.settings.loading import load

FOLDER = Path(__file__).resolve().parents[1] / "deploy/kubernetes"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
Manifest = dict[str, Any]


def read(name: str) -> list[Manifest]:
    return list(yaml.load_all((FOLDER / name).read_text(encoding="utf-8"), yaml.CSafeLoader))


BASE, SCALING = read("base/kustomization.yaml")[0], read("scaling/kustomization.yaml")[0]
PLAIN = [one for name in BASE["resources"] for one in read(f"base/{name}")]
SCALED = {one["metadata"]["name"]: one for one in read("scaling/scaledobjects.yaml")}


def laid_over(under: Any, over: Any) -> Any:
    """As kustomize merges a patch: objects by key, lists of named things by name, all else replaced."""
    if isinstance(under, dict) and isinstance(over, dict):
        return {**under, **{k: laid_over(under[k], v) if k in under else v for k, v in over.items()}}
    named = "mountPath" if isinstance(over, list) and over and "mountPath" in over[0] else "name"
    if isinstance(under, list) and isinstance(over, list) and all(named in one for one in over):
        there = {one[named]: one for one in under}
        there |= {one[named]: laid_over(there.get(one[named], {}), one) for one in over}
        return list(there.values())
    return over


def processes() -> dict[str, Manifest]:
    """Each Deployment and Job, with what is laid over it."""
    found = {}
    for one in PLAIN:
        if one["kind"] in {"Deployment", "Job"}:
            patched = laid_over(one, {"spec": read("base/process.yaml")[0]["spec"]})
            if "larder/worker" in one["metadata"]["labels"]:
                patched = laid_over(patched, {"spec": read("base/worker.yaml")[0]["spec"]})
            found[one["metadata"]["name"]] = patched["spec"]
    return found


PROCESSES = processes()
LASTING = [name for name in PROCESSES if name != "migrate"]
each = pytest.mark.parametrize("name", PROCESSES)


def pod(name: str) -> Manifest:
    spec: Manifest = PROCESSES[name]["template"]["spec"]
    return spec


def container(name: str) -> Manifest:
    [found] = pod(name)["containers"]
    return dict(found)


def environment(name: str) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container(name)["env"]}


def of_kind(kind: str) -> list[Manifest]:
    return [one for one in PLAIN if one["kind"] == kind]


def test_every_file_is_used() -> None:
    named = [
        *BASE["resources"],
        *(one["path"] for one in BASE["patches"]),
        "larder.yaml",
        "kustomization.yaml",
    ]
    assert sorted(named) == sorted(path.name for path in (FOLDER / "base").iterdir())
    assert BASE["images"] == [{"name": "larder", "newTag": "0.1.0"}]


@pytest.mark.req("001-142")
def test_it_runs_the_processes_of_compose_which_another_test_starts() -> None:
    assert {name: container(name)["command"] for name in PROCESSES} == {
        n: s["command"] for n, s in OURS.items()
    }


def effective(told: dict[str, str]) -> dict[str, str]:
    """What a process makes of its environment: a value goes before a file, an empty one is none; files by name."""
    files = {key[:-5]: f"secret {Path(value).name}" for key, value in told.items() if key.endswith("_FILE")}
    given = {key: value for key, value in told.items() if not key.endswith("_FILE")}
    return {key: value for key, value in (files | given).items() if value}


@each
def test_a_process_is_told_what_it_is_told_in_compose(name: str) -> None:
    there, here = effective(OURS[name]["environment"]), effective(environment(name))
    del there["LOG_LEVEL"]
    anyway = {"PROMETHEUS_MULTIPROC_DIR", "LARDER_HEARTBEAT_DIR", "REMAP_SIGTERM"}
    assert there.items() <= here.items()
    assert set(here) - set(there) <= anyway


@each
def test_every_variable_is_read_by_somebody(name: str) -> None:
    read = {one.name for one in OVERRIDES} | {"LARDER_FLOWER_AUTH", "LARDER_CONFIG"}
    read |= {*re.findall(r"\$\{(\w+)", (FOLDER / "base/larder.yaml").read_text(encoding="utf-8"))}
    ours = {key.removesuffix("_FILE") for key in environment(name) if key.startswith("LARDER_")}
    assert ours - {"LARDER_HEARTBEAT_DIR"} <= read


@each
def test_it_is_nobody_special_and_can_write_to_scratch_only(name: str) -> None:
    inside, one = pod(name), container(name)
    assert inside["securityContext"]["runAsNonRoot"] is True
    assert inside["securityContext"]["runAsUser"] == int(COMPOSE["x-larder"]["user"].split(":")[0])
    assert inside["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inside["automountServiceAccountToken"] is False
    assert one["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["name"] for mount in one["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"scratch"}
    assert "memory" in one["resources"]["limits"]
    assert one["image"] == "larder"  # named once, in kustomization.yaml


@each
def test_secrets_are_files_of_its_own_secrets(name: str) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in container(name)["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod(name)["volumes"]}
    assert set(mounts.values()) == set(volumes)
    told = environment(name)
    assert "@" not in str(told)
    for key in (key for key in told if key.endswith("_FILE") and key[:-5] not in told):
        folder, file = told[key].rsplit("/", 1)
        secret = volumes[mounts[folder]]["secret"]
        assert file in COMPOSE["secrets"]
        assert f"create secret generic {secret['secretName']} " in README
        assert f"--from-file={file}=" in README
        assert file in {item["key"] for item in secret.get("items", [{"key": file}])}
    assert ("larder-owner" in str(pod(name))) == (name == "migrate")
    # Who reads no table gets no password of the database.
    assert ("items" in volumes["secrets"]["secret"]) == (name in {"beat", "flower"})


@pytest.mark.parametrize("name", LASTING)
def test_probes_cost_next_to_nothing(name: str) -> None:
    for probe in ("startupProbe", "livenessProbe"):
        check = container(name)[probe]
        if name == "api":
            assert check["httpGet"] == {"path": "/health/live", "port": "http"}
        elif name == "flower":
            assert check["tcpSocket"] == {"port": "http"}
        else:
            healthy = OURS[name]["healthcheck"]["test"][1].replace("$$", "$")
            assert check["exec"]["command"] == ["sh", "-c", healthy]
        assert check["failureThreshold"] * check["periodSeconds"] >= 60


@pytest.mark.parametrize("name", ["api", "beat", *(f"worker-{q}" for q in QUEUES)])
def test_there_is_time_to_stop(name: str) -> None:
    assert pod(name)["terminationGracePeriodSeconds"] > SOFT_SHUTDOWN
    assert pod(name)["terminationGracePeriodSeconds"] == seconds(OURS[name]["stop_grace_period"])
    if name == "api":
        waits = int(container(name)["lifecycle"]["preStop"]["exec"]["command"][1])
        assert waits + 20 + 10 <= pod(name)["terminationGracePeriodSeconds"]
    else:
        assert environment(name)["REMAP_SIGTERM"] == "SIGQUIT"


def test_what_serves_somebody_is_not_drained_at_once() -> None:
    budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind("PodDisruptionBudget")}
    assert set(budgets) == {"api", *(f"worker-{q}" for q in QUEUES)}
    for name, budget in budgets.items():
        wanted = PROCESSES[name]["template"]["metadata"]["labels"].items()
        assert budget["selector"]["matchLabels"].items() <= wanted
        # One of a single replica may go: a budget that lets none go keeps a node from being drained.
        assert budget.get("maxUnavailable") == 1 or PROCESSES[name]["replicas"] > budget["minAvailable"]


def chosen(selector: Manifest, labels: dict[str, str]) -> bool:
    """Does a selector choose something with these labels?"""
    rules: dict[str, Callable[[str, Any], bool]] = {
        "In": lambda key, values: labels.get(key) in values,
        "NotIn": lambda key, values: labels.get(key) not in values,
        "Exists": lambda key, _values: key in labels,
    }
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        rules[one["operator"]](one["key"], one.get("values")) for one in selector.get("matchExpressions", [])
    )


@each
def test_the_network_lets_through_what_it_needs_and_nothing_else(name: str) -> None:
    labels = PROCESSES[name]["template"]["metadata"]["labels"]
    policies = [one["spec"] for one in of_kind("NetworkPolicy") if chosen(one["spec"]["podSelector"], labels)]
    assert {"Ingress", "Egress"} <= set(policies[0]["policyTypes"])  # for all pods: deny
    out = {port["port"] for one in policies for rule in one.get("egress", []) for port in rule["ports"]}
    into = {port["port"] for one in policies for rule in one.get("ingress", []) for port in rule["ports"]}
    servers = {"migrate": {5432}, "beat": {6379}, "flower": {6379}}.get(name, {5432, 6379, 443, 587})
    assert out == {53} | servers
    listens = {port["containerPort"] for port in container(name).get("ports", [])}
    assert into == ({8000} if name == "api" else {9464} if name in {f"worker-{q}" for q in QUEUES} else set())
    assert into <= listens
    assert all(rule["from"] for one in policies for rule in one.get("ingress", []))


def test_the_configuration_listens_where_the_ports_are() -> None:
    rag = load(FOLDER / "base/larder.yaml", {}).rag
    ports = {name: container(name)["ports"][0]["containerPort"] for name in ("api", "flower", "worker-embed")}
    assert ports == {
        "api": rag.api.port,
        "flower": rag.flower.port,
        "worker-embed": rag.monitoring.metrics.port,
    }
    for service in of_kind("Service"):
        [name] = service["spec"]["selector"].values()
        assert service["spec"]["ports"][0]["targetPort"] in {p["name"] for p in container(name)["ports"]}


def test_workers_are_scaled_by_what_the_ledger_says(
    addresses: Addresses, database: Database, ledger: Ledger, tenant: Any
) -> None:
    """Each query runs as the role whose address KEDA gets, and counts what its queue has to do."""
    scaled = {name: one["spec"] for name, one in SCALED.items() if one["kind"] == "ScaledObject"}
    assert set(scaled) == {"worker-ingest", "worker-embed", "worker-enrich"} <= set(PROCESSES)
    [login] = SCALED["ledger"]["spec"]["secretTargetRef"]
    assert (login["name"], login["key"]) == ("larder", "control_database_url")

    def asked(name: str) -> float:
        [trigger] = scaled[name]["triggers"]
        assert trigger["authenticationRef"] == {"name": "ledger"}
        assert float(trigger["metadata"]["targetQueryValue"]) > 0
        assert scaled[name]["minReplicaCount"] >= 1
        with psycopg.connect(addresses.control) as connection:
            [(value,)] = connection.execute(trigger["metadata"]["query"]).fetchall()
        return float(value)

    assert [asked(name) for name in sorted(scaled)] == [0, 0, 0]
    source = uuid4()
    ledger.sources.add(
        id=source, tenant_id=tenant, project_id=project_id(tenant, "app"), name="docs", kind="markdown"
    )
    for index, stage, items in ((0, "fetched", 3), (0, "chunked", 50), (0, "embedded", 4), (7, "fetched", 9)):
        ledger.work_counts.add(tenant_id=tenant, index_id=index, stage=stage, items=items)
    ledger.add_run("docs", state="discovering")
    for state in ("queued", "running", "done"):
        ledger.add_job("docs", state=state)
    assert [asked(name) for name in sorted(scaled)] == [59, 2, 1007]


def test_the_readme_names_what_there_is() -> None:
    assert set(re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)) == set(PROCESSES)
