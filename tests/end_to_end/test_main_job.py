"""From Beat to a row and back: real processes, the real command line."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
import redis
import yaml
from prometheus_client import REGISTRY
from psycopg.types.json import Jsonb

from tests import forked
from tests.ledger import Ledger, ago, ahead
from tests.workers.test_alerts import TROUBLES, Change, make_due, use_up
from workers.client import Client
from workers.monitoring import metrics
from workers.queue.celeryconfig import QUEUES
from workers.remote_actions import register_remote_actions
from workers.settings.monitoring import ALERTS

ROOT = Path(__file__).parents[2]

Sql = Callable[..., list[tuple[Any, ...]]]
Until = Callable[[Callable[[], bool], float], bool]


def state(site: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((site.data / "state.json").read_text())
    return found


def holding(ledger: Ledger, words: str) -> int:
    """How many chunks hold these words."""
    return sum(words in content for content in ledger.chunks.values("content"))


@pytest.mark.req("ORD-01", "ORD-02")
def test_beat_alone_brings_a_new_source_in(harbour: Any, ledger: Ledger, until: Until) -> None:
    def arrived() -> bool:
        return len(ledger.documents(state="done", source_type="documentation")) == 3

    assert until(arrived, 40)
    kinds: dict[str, str] = dict(ledger.documents.values("external_id", "kind", source_type="documentation"))
    assert kinds["docs/adr/0001-clock.md"] == "decision"
    assert holding(ledger, "bollards") == 1


def test_indexes_that_were_put_off_are_built_beside_the_tasks(
    harbour: Any, ledger: Ledger, until: Until
) -> None:
    assert until(lambda: bool(ledger.indexes(keyword_built=True)), 40)
    assert until(lambda: not any(ledger.indexes.values("lease_token")), 10)


def test_state_json_is_private_and_names_living_processes(harbour: Any) -> None:
    path = harbour.data / "state.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = state(harbour)
    assert {p["name"] for p in found["processes"]} == {
        "supervisor", "postgres", "valkey", "worker-control", "worker-ingest", "worker-embed", "worker-enrich", "beat", "api",
        "flower",
    }  # fmt: skip
    assert all(psutil.pid_exists(pid) for pid in found["pids"])
    assert found["database_url"].startswith("postgresql://larder_app:")
    assert found["admin_database_url"].startswith("postgresql://larder_owner:")
    assert found["broker_url"].startswith("redis://")
    assert found["api_url"].startswith("http://127.0.0.1:")


@pytest.mark.req("001-034", "001-035", "001-025", "001-003", "002-001")
@pytest.mark.parametrize("args", [("search", "bollards"), ("status",), ("explain", "docs/tides.md")])
def test_the_api_answers_commands_which_load_nothing_that_answers(
    harbour: Any, args: tuple[str, ...]
) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "workers.cli", *args],
        cwd=harbour.root, env=forked.environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert not {"sqlalchemy", "pydantic", "workers.settings"} & set(re.findall(r"\| +([\w.]+)\n", ran.stderr))


def test_index_waits_and_reports_counts_that_add_up(harbour: Any, ledger: Ledger) -> None:
    answer = harbour.larder("index", "backlog", "--json")
    assert answer.code == 0, answer.err
    run = answer.data["runs"][0]
    assert run["listed"] == run["unchanged"] + run["queued"] + run["skipped"] + run["failed"] == 2
    assert run["indexed"] == 2
    assert answer.data["stats"]["documents_processed"] == 2
    assert answer.data["stats"]["vectors_indexed"] == answer.data["stats"]["chunks_created"] == 2
    again = harbour.larder("index", "backlog", "--json").data["runs"][0]
    assert (again["unchanged"], again["queued"], again["texts_embedded"]) == (2, 0, 0)
    assert len(ledger.runs(finished_at=None)) == 0


def test_a_changed_file_is_noticed_without_a_command(harbour: Any, until: Until, ledger: Ledger) -> None:
    harbour.write("docs/moorings.md", "# Moorings\n\nNow a vessel needs three quartzite bollards.\n")

    def arrived() -> bool:
        return holding(ledger, "quartzite") == 1

    assert until(arrived, 30)
    assert holding(ledger, "two bollards") == 0


@pytest.mark.req("002-010", "002-011", "002-003")
def test_ingest_takes_any_folder_and_updates_it(harbour: Any, ledger: Ledger) -> None:
    harbour.write("elsewhere/a.md", "# Alpha\n\nAbout anchors.\n")
    harbour.write("elsewhere/b.txt", "Beta\n\nAbout buoys.\n")
    harbour.write("elsewhere/c.json", '{"title": "Gamma", "note": "About gangways."}')
    first = harbour.larder("ingest", "elsewhere", "--json")
    assert first.code == 0, first.err + first.out
    assert first.data["stats"]["documents_processed"] == 3
    harbour.write("elsewhere/a.md", "# Alpha\n\nAbout kedge anchors.\n")
    second = harbour.larder("ingest", "elsewhere", "--json")
    assert second.data["stats"]["documents_processed"] == 1
    assert holding(ledger, "nchors") == 1


@pytest.mark.req("003-001", "003-002", "003-003")
def test_an_engine_elsewhere_calls_the_actions_through_the_queue(harbour: Any, ledger: Ledger) -> None:
    found = state(harbour)
    registry: dict[str, Callable[..., Any]] = {}
    with Client(found["database_url"], broker_url=found["broker_url"], deadline=60) as client:
        register_remote_actions(registry, client)
        stored = registry["vector.store"]({}, ["Buoys are lit at dusk.", "Kedge anchors hold in sand."])
        assert stored["stored"] == 2, stored
        answer = registry["vector.query"]({}, "Which anchors hold?", k=1)
        assert [one["id"] for one in answer["results"]] == stored["ids"][1:]
        assert registry["embedding.create"]({}, "x")["dimensions"] == 384
    (first, _) = ledger.action_documents.values("collection", "content")
    assert first == ("default", "Buoys are lit at dusk.")


@pytest.mark.req("001-127", "ORD-06")
def test_logs_are_lines_of_json_with_the_ids_of_their_tasks(harbour: Any) -> None:
    names = ("worker-control", "worker-ingest", "worker-embed", "worker-enrich", "beat", "api", "flower")
    lines = [
        json.loads(line)
        for name in names
        for line in (harbour.data / "logs" / f"{name}.log").read_text().splitlines()
    ]
    tasks = [line for line in lines if line["event"].startswith("Task ")]
    assert {line["event"].split()[2] for line in tasks} >= {"received", "succeeded"}
    assert [line for line in tasks if f"{line['task']}[{line['task_id']}]" not in line["event"]] == []


@pytest.mark.req("ORD-06")
def test_what_flower_counts_is_on_its_own_page_alone(harbour: Any, until: Until) -> None:
    """Without a token anybody may ask the API, and Flower tells the names of tasks and workers."""
    found = state(harbour)
    own = f"{found['flower_user']}:{found['flower_password']}"
    page = found["flower_url"] + "/metrics"
    assert until(lambda: "flower_events_total{" in fetch(page, own)[1], 30)
    shown = fetch(found["api_url"] + "/metrics")[1]
    assert "larder_documents_processed_total" in shown
    assert "flower_" not in shown


def test_a_killed_worker_is_started_again(harbour: Any, until: Until) -> None:
    before = {p["name"]: p["pid"] for p in state(harbour)["processes"]}
    for process in [
        *psutil.Process(before["worker-embed"]).children(),
        psutil.Process(before["worker-embed"]),
    ]:
        process.kill()

    def back() -> bool:
        now = {p["name"]: p["pid"] for p in state(harbour)["processes"]}
        return now.get("worker-embed") not in (None, before["worker-embed"])

    assert until(back, 20)
    harbour.write("output/run-2026-10-01/final-output.json", '{"pbis": [{"id": "PBI-9", "title": "Dredge"}]}')
    answer = harbour.larder("index", "backlog", "--json")
    assert answer.data["runs"][0]["indexed"] == 1


def valkey(found: dict[str, Any]) -> int:
    return int(next(p["pid"] for p in found["processes"] if p["name"] == "valkey"))


def test_a_killed_broker_comes_back_with_its_port(harbour: Any, until: Until) -> None:
    before = state(harbour)
    os.kill(valkey(before), signal.SIGKILL)

    def back() -> bool:
        return valkey(state(harbour)) != valkey(before)

    assert until(back, 20)
    harbour.write(
        "output/run-2026-10-02/final-output.json", '{"pbis": [{"id": "PBI-10", "title": "Sound the bar"}]}'
    )
    answer = harbour.larder("index", "backlog", "--json", timeout=90)
    assert answer.data["runs"][0]["indexed"] == 1
    assert state(harbour)["broker_url"] == before["broker_url"]
    log = (harbour.data / "logs" / "supervisor.log").read_text()
    assert "valkey had ended and was started again" in log
    assert "postgres had ended" not in log


def fetch(url: str, auth: str | None = None, method: str = "GET", host: str = "") -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
    if host:
        request.add_header("Host", host)
    if auth:
        request.add_header("Authorization", "Basic " + base64.b64encode(auth.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


@pytest.mark.req("ORD-06")
def test_flower_asks_for_a_password_and_shows_ids_only(harbour: Any, until: Until) -> None:
    found = state(harbour)
    auth = f"{found['flower_user']}:{found['flower_password']}"
    assert until(lambda: fetch(found["flower_url"] + "/tasks", auth)[0] == 200, 30)
    assert fetch(found["flower_url"] + "/tasks")[0] == 401
    for page in ("/api/tasks", "/metrics", "/healthcheck"):
        assert fetch(found["flower_url"] + page)[0] == 401, page
        assert fetch(found["flower_url"] + page, auth)[0] == 200, page
        assert fetch(found["flower_url"] + page, auth, host="evil.example")[0] == 421, page
    page = fetch(found["flower_url"] + "/broker", auth)[1]
    assert [name for name in QUEUES if f">{name}<" not in re.sub(r"\s", "", page)] == []
    harbour.write("docs/secret.md", "# Secret\n\nThe halyard word is MARMALADE.\n")
    assert harbour.larder("index", "docs", "--json").code == 0
    status, tasks = fetch(found["flower_url"] + "/api/tasks", auth)
    assert status == 200
    assert "larder.chunk" in tasks
    assert "MARMALADE" not in tasks
    worker = next(
        iter(json.loads(fetch(found["flower_url"] + "/api/workers", auth)[1] or "{}")), "worker-embed@x"
    )
    assert fetch(f"{found['flower_url']}/api/worker/shutdown/{worker}", auth, "POST")[0] == 403


def shown_by(site: Any) -> str:
    with urllib.request.urlopen(state(site)["api_url"] + "/metrics", timeout=30) as answer:
        return str(answer.read().decode())


def queries() -> dict[str, list[str]]:
    """What the dashboard and the rules ask Prometheus, by panel and rule."""
    board = json.loads((ROOT / "deploy/grafana/larder.json").read_text(encoding="utf-8"))
    found = {panel["title"]: [target["expr"] for target in panel["targets"]] for panel in board["panels"]}
    for group in yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8"))[
        "groups"
    ]:
        for rule in group["rules"]:
            assert rule["labels"]["runbook"] in ALERTS, rule["alert"]
            assert rule["alert"] not in found
            found[rule["alert"]] = [rule["expr"]]
    return found


@pytest.mark.req("001-122", "001-123", "001-124", "001-139")
def test_all_that_dashboard_and_rules_ask_for_is_shown(harbour: Any, until: Until) -> None:
    assert until(lambda: 'larder_task_duration_seconds_count{task="larder.upsert"}' in shown_by(harbour), 40)
    shown = shown_by(harbour)
    for counted in ("larder_documents_processed_total", "larder_chunking_duration_seconds_count"):
        assert re.search(rf"^{counted} [1-9]", shown, re.MULTILINE), "workers count where the API shows it"
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", shown, re.MULTILINE))
    names = {*kinds}
    for name, kind in kinds.items():
        if kind == "histogram":
            names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    labels = {f"larder_{name}": {*own} for name, _, own, _ in metrics.FIGURES}
    for one in REGISTRY._collector_to_names:
        labels[str(getattr(one, "_name", ""))] = {*getattr(one, "_labelnames", ())}
    for title, expressions in queries().items():
        for expression in expressions:
            asked = set(re.findall(r"larder_\w+", expression))
            assert asked, title
            assert asked <= names, title
            assert expression.count("(") == expression.count(")"), title
            own = {"le"}.union(
                *(
                    labels.get(re.sub("_(total|bucket|sum|count)$", "", n), labels.get(n, set()))
                    for n in asked
                )
            )
            told = re.findall(r"by \(([^)]*)\)", expression) + re.findall(r"\{(\w+)=", expression)
            assert {label.strip() for part in told for label in part.split(",")} <= own, title
    section = (
        (ROOT / "docs/operations.md").read_text("utf-8").partition("\n## Metrics\n")[2].partition("\n## ")[0]
    )
    table = re.findall(r"^\| `larder_.*", section, re.MULTILINE)
    assert set(re.findall(r"`(larder_\w+)", "".join(table))) <= names


def take(ledger: Ledger) -> None:
    """Have a document wait for an hour at which nobody of the living works."""
    lease = {"lease_token": uuid4(), "lease_until": ahead(hours=1), "enqueued_at": ago()}
    make_due(ledger, "docs/moorings.md", stage="embedded", **lease)


OVER = {"state": "done", "stage": "done", "lease_token": None, "lease_until": None}


def forge(ledger: Ledger, change: Callable[[str], str]) -> None:
    for one in ledger.audit():
        key = {"tenant_id": one["tenant_id"], "seq": one["seq"]}
        ledger.audit.set(key, actor=change(one["actor"]))


RUNNING: dict[str, tuple[Change, Change]] = {
    # A living worker gives a sign of life soon, and its queue is served again.
    **{name: trouble for name, trouble in TROUBLES.items() if name != "unserved_queue"},
    "held_deletions": (lambda of: of.sources.set("backlog", held=3), TROUBLES["held_deletions"][1]),
    "left_out": (lambda of: of.sources.set("backlog", left_out={"empty": 2}), TROUBLES["left_out"][1]),
    "indexing_failure": (
        lambda of: of.sources.set("backlog", failures=5),
        TROUBLES["indexing_failure"][1],
    ),
    "oldest_due": (take, lambda of: of.documents.set("docs/moorings.md", **OVER)),
    "freshness_broken": (
        lambda of: of.sources.set("backlog", schedule="0 * * * *", last_sync_at=ago(hours=5)),
        lambda of: of.sources.set("backlog", schedule="", last_sync_at=ago()),
    ),
    "silent_queue": (
        lambda of: of.canaries.add(queue="w", sung_at=ago(hours=1)),
        lambda of: of.canaries.clear("w"),
    ),
    "enrichment_waiting": (
        lambda of: of.add_job("backlog", created_at=ago(minutes=1), due_at=ahead(hours=1)),
        lambda of: of.jobs.clear({"request": Jsonb({})}),
    ),
    "budget_low": (lambda of: use_up(of, 950_000), TROUBLES["budget_low"][1]),
    "audit_broken": (lambda of: forge(of, "{}!".format), lambda of: forge(of, lambda by: by.rstrip("!"))),
    "dead_letters": (lambda of: of.bury("docs/tides.md"), TROUBLES["dead_letters"][1]),
}
"""The same on an installation that lives, and would mend some of it at once."""


def break_off(site: Any, sql: Sql, ledger: Ledger, until: Until, raised: Callable[[str], bool]) -> None:
    """Fill and stop what the other alerts are about, each until it is raised."""
    found = state(site)
    assert until(lambda: raised("slow_query"), 60)
    added = 0
    while not raised("backlog_growing") and added < 400:
        ledger.count_waiting(1, "backlog")
        added += 1
        time.sleep(0.2)
    ledger.count_waiting(-added, "backlog")
    with redis.Redis.from_url(found["broker_url"]) as client:
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.3))
        assert until(lambda: raised("broker_memory"), 30)
        client.config_set("maxmemory", 0)
    [broker] = [psutil.Process(one["pid"]) for one in found["processes"] if one["name"] == "valkey"]
    broker.suspend()
    assert until(lambda: raised("broker_unreachable"), 60)
    broker.resume()
    open_or_not = "alter database larder allow_connections %s"
    ended = "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'larder'"
    sql(open_or_not % "false", database="postgres")
    sql(ended, database="postgres")
    assert until(lambda: raised("store_unreachable"), 60)
    sql(open_or_not % "true", database="postgres")


@pytest.mark.req("001-061", "001-062", "001-063", "001-064")
def test_each_alert_of_a_running_installation_is_told_once_and_its_end_too(
    harbour: Any, sql: Sql, ledger: Ledger, until: Until
) -> None:
    log = harbour.root / "alerts.log"
    before = len(log.read_text().splitlines()) if log.exists() else 0

    def told() -> dict[str, list[str]]:
        """What was told of each alert."""
        lines = log.read_text().splitlines()[before:] if log.exists() else []
        mine = [json.loads(line) for line in lines]
        assert all("larder " in one["message"] and one["severity"] == ALERTS[one["alert"]][1] for one in mine)
        return {name: [one["state"] for one in mine if one["alert"] == name] for name in ALERTS}

    def otherwise(names: Iterable[str], states: list[str]) -> dict[str, list[str]]:
        """Of which something else was told."""
        return {name: told()[name] for name in names if told()[name] != states}

    def looked_anew() -> bool:
        """The chain is looked at when a control worker begins, and each hour."""
        [control] = [one["pid"] for one in state(harbour)["processes"] if one["name"] == "worker-control"]
        psutil.Process(control).kill()
        return until(lambda: control not in state(harbour)["pids"] and len(state(harbour)["pids"]) > 9, 60)

    assert until(lambda: len(ledger.documents(state="done")) > 2, 60)
    assert harbour.larder("search", "bollards").code == 0
    assert until(lambda: ledger.audit() != [], 30)
    RUNNING["audit_broken"][0](ledger)
    assert looked_anew()
    assert until(lambda: told()["audit_broken"] == ["firing"], 60)
    for name in set(RUNNING) - {"audit_broken"}:
        RUNNING[name][0](ledger)
    assert until(lambda: not otherwise(RUNNING, ["firing"]), 60), otherwise(RUNNING, ["firing"])
    lines = [f'larder_alerts{{alert="{name}",severity="{ALERTS[name][1]}"}} 1' for name in RUNNING]

    def all_shown() -> bool:
        page = shown_by(harbour)
        return all(line in page for line in lines)

    assert until(all_shown, 30), shown_by(harbour)  # a page shows what was read a few seconds ago
    assert {one["name"] for one in harbour.larder("status", "--json").data["alerts"]} >= set(RUNNING)
    for _, mended in RUNNING.values():
        mended(ledger)
    assert looked_anew()
    break_off(harbour, sql, ledger, until, lambda name: "firing" in told()[name])
    over = ["firing", "cleared"]
    # A full one needs a disk of its own, which not everybody may mount; a queue is unserved after a minute without worker.
    others = set(ALERTS) - {"disk_full", "unserved_queue"}
    assert until(lambda: not otherwise(others, over), 60), otherwise(others, over)


def test_no_text_reaches_a_log(harbour: Any) -> None:
    harbour.write("docs/secret.md", "# Secret\n\nThe halyard word is now TANGERINE.\n")
    assert harbour.larder("index", "docs", "--json").code == 0
    for log in (harbour.data / "logs").glob("*.log"):
        content = log.read_text(errors="replace")
        assert "TANGERINE" not in content, log.name
        for secret in ("flower_password", "jwt_secret", "postgres_password"):
            assert state(harbour)[secret] not in content, (log.name, secret)


@pytest.mark.parametrize("left", ["by Ctrl-C", "by the API"])
def test_a_sync_is_asked_of_the_api_and_needs_neither_it_nor_whoever_asked(
    harbour: Any, until: Until, left: str, ledger: Ledger
) -> None:
    processes = {one["name"]: psutil.Process(one["pid"]) for one in state(harbour)["processes"]}
    runs = len(ledger.runs())
    log = harbour.root / "asked.log"
    reader = processes["worker-ingest"]
    stopped = [reader, *reader.children()]
    for one in stopped:
        one.suspend()
    try:
        item = {"id": f"PBI-{len(left)}", "title": "Buy a kedge", "description": f"An anchor, left {left}."}
        harbour.write(f"output/run-{len(left)}/final-output.json", json.dumps({"pbis": [item]}))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-X", "importtime", "-m", "workers.cli", "index", "backlog"],
                cwd=harbour.root, env=forked.environment(), stdout=output, stderr=output, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
            )  # fmt: skip
        assert until(lambda: len(ledger.runs()) > runs, 30), log.read_text()
        assert "sqlalchemy" not in log.read_text()
        if left == "by Ctrl-C":
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert "the work goes on in the background" in log.read_text()
        else:
            processes["api"].kill()
    finally:
        for one in stopped:
            one.resume()
    assert process.wait(60) in (0, 130), log.read_text()
    assert until(lambda: holding(ledger, f"anchor, left {left}") > 0, 30)
    assert until(lambda: harbour.larder("status", "--json").code == 0, 30)


def test_a_second_up_is_refused(harbour: Any) -> None:
    answer = harbour.larder("up", "--detach")
    assert answer.code == 1
    assert "already running" in answer.err
    assert "Traceback" not in answer.err


def test_down_leaves_no_process_and_up_finds_everything_again(harbour: Any, ledger: Ledger) -> None:
    pids = state(harbour)["pids"]
    documents = len(ledger.documents(state="done"))
    assert harbour.larder("down").code == 0
    assert not [pid for pid in pids if psutil.pid_exists(pid)]
    assert not (harbour.data / "state.json").exists()
    assert harbour.larder("up", "--detach", "--no-flower").code == 0
    assert harbour.larder("index", "--json").data["stats"]["documents_processed"] == 0
    assert len(ledger.documents(state="done")) == documents
