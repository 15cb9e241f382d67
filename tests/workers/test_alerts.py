"""Each alert is raised by real trouble, told once to each channel that wants it, and cleared once."""

from __future__ import annotations

import json
import logging
import re
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from email import message_from_bytes
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import redis
from fastapi.testclient import TestClient

from pipeline.documents import Json
from pipeline.ledger import audit, upkeep
from pipeline.search import SearchRequest
from tests.conftest import Addresses
from tests.fakes.faults import Fault
from tests.fakes.messages import Answer, Seen
from tests.fakes.server import FakeServer
from tests.fakes.tcp_proxy import TcpProxy
from tests.ledger import Ledger, ago
from tests.workers.indexed import index, write_pages
from tests.workers.installed import installed
from workers.api.app import create_app
from workers.app import status
from workers.app.ingestion import sync
from workers.app.search import retriever
from workers.local import embedded
from workers.monitoring import metrics
from workers.processes import alerts
from workers.processes.alerts import CHANNELS, RULES, Watcher, alert_record
from workers.processes.background import Loops
from workers.runtime import Runtime
from workers.settings import load
from workers.settings.monitoring import ALERTS, AlertChannel

ROOT = Path(__file__).parents[2]
INTERVAL = 60.0
"""Seconds: no test takes so long that an alert is over by itself."""
CONFIG = """
rag:
  tenant: acme
  embedding: {{provider: hashing, dimensions: 64, dailyTokens: 1000}}
  sources: [{{name: docs, type: markdown, paths: ['./docs/*.md'], autoIndex: false}}]
  monitoring:
    healthCheck: {{interval: {interval}}}
    alerts:
      channels:
        - {{type: file, path: ./logs/alerts.log, minSeverity: info}}
        - {{type: file, path: ./logs/grave.log, minSeverity: error}}
        {channels}
      conditions: {conditions}
"""


class Place:
    """An installation with one who watches it."""

    def __init__(self, runtime: Runtime, folder: Path, ledger: Ledger) -> None:
        self.parts, self.folder, self.ledger = runtime, folder, ledger
        self.seen = status.watcher(runtime)
        self.patient = Runtime(runtime.settings, runtime.addresses)
        self.now = 0.0
        self.watcher = Watcher(self.seen, self.patient, retry=0.01, clock=lambda: self.now)

    def told(self, file: str = "alerts.log") -> list[Json]:
        path = self.folder / "logs" / file
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def names(self, file: str = "alerts.log") -> Counter[tuple[str, str]]:
        return Counter((one["state"], one["alert"]) for one in self.told(file))

    def look(self, times: int = 1) -> None:
        for _ in range(times):
            self.watcher.look()

    def calm(self) -> None:
        """Two looks with the time in between after which an alert is over."""
        self.look()
        self.ledger.alerts.set(seen_at=ago(seconds=2.5 * INTERVAL))
        self.look()


Install = Callable[..., Place]


@pytest.fixture
def install(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers, ledger: Ledger
) -> Iterator[Install]:
    with ExitStack() as opened:

        def make(
            conditions: str = "[]", channels: str = "", interval: float = INTERVAL, **places: str
        ) -> Place:
            config = CONFIG.format(interval=interval, conditions=conditions, channels=channels)
            runtime = opened.enter_context(installed(tmp_path, addresses, servers, config))
            sync.register(runtime)
            write_pages(tmp_path, 6)
            index(runtime)
            runtime.addresses = replace(runtime.addresses, **places)
            place = Place(runtime, tmp_path, ledger)
            for one in (place.seen, place.patient):
                opened.callback(one.close)
            return place

        yield make


Change = Callable[[Ledger], object]


def make_due(ledger: Ledger, document: str | None = None, **values: Any) -> None:
    """Have the document of this name, or the first, wait for an hour already."""
    which = document or ledger.documents()[0]["external_id"]
    ledger.documents.set(which, **{"state": "pending", "stage": "chunked", "due_at": ago(hours=1), **values})


def starve(ledger: Ledger) -> None:
    """Have nobody work at a queue whose canary is late."""
    ledger.add_worker("c", "control,embed,enrich", started_at=ago(hours=1))
    ledger.canaries.add(queue="ingest", sung_at=ago(minutes=2))


def use_up(ledger: Ledger, tokens: int = 950) -> None:
    """Have most tokens of the day used."""
    day, tenant = datetime.now(UTC).date(), ledger.tenants()[0]["id"]
    ledger.usage.add(tenant_id=tenant, day=day, provider="p", model="m", kind="document", tokens=tokens)


def leave_behind(ledger: Ledger) -> None:
    """Have a store lack a chunk for an hour."""
    ledger.stores.add(name="s")
    index = ledger.indexes.add(
        provider="p", model="m", dimensions=8, chunker="c", pipeline_version="v", status="building"
    )
    ledger.outbox.add(
        tenant_id=ledger.tenants()[0]["id"],
        store="s",
        index_id=index["id"],
        document_id=uuid4(),
        ord=0,
        lane=1,
        noted_at=ago(hours=1),
    )


def resolve(ledger: Ledger) -> None:
    """Have all that failed for good be well."""
    ledger.dead.set(resolved_at=ago())
    ledger.documents.set({"state": "dead"}, state="done")


TROUBLES: dict[str, tuple[Change, Change]] = {
    "indexing_failure": (lambda of: of.sources.set(failures=5), lambda of: of.sources.set(failures=0)),
    "oldest_due": (
        lambda of: make_due(of, enqueued_at=None),
        lambda of: of.documents.set({"state": "pending"}, state="done", stage="done"),
    ),
    "freshness_broken": (
        lambda of: of.sources.set(schedule="0 * * * *", last_sync_at=ago(hours=5)),
        lambda of: of.sources.set(last_sync_at=ago()),
    ),
    "held_deletions": (lambda of: of.sources.set(held=3), lambda of: of.sources.set(held=0)),
    "left_out": (
        lambda of: of.sources.set(left_out={"empty": 2}),
        lambda of: of.sources.set(left_out={}),
    ),
    "deaf_worker": (
        lambda of: of.add_worker("w", "embed", seen_at=ago(seconds=50)),
        lambda of: of.workers.clear("w"),
    ),
    "silent_queue": (
        lambda of: of.canaries.add(queue="embed", sung_at=ago(hours=1)),
        lambda of: of.canaries.set(sung_at=ago()),
    ),
    "unserved_queue": (starve, lambda of: (of.workers.clear(), of.canaries.clear())),
    "enrichment_waiting": (
        lambda of: of.add_job(created_at=ago(minutes=1)),
        lambda of: of.jobs.clear(),
    ),
    "embedding_held": (
        lambda of: of.holds.add(fingerprint="f", code="E002", error="refused", probe_at=ago()),
        lambda of: of.holds.clear(),
    ),
    "budget_low": (use_up, lambda of: of.usage.clear("p")),
    "store_behind": (leave_behind, lambda of: (of.stores.clear(), of.indexes.clear({"provider": "p"}))),
    "audit_broken": (lambda of: of.audit.set(actor="somebody else"), lambda of: of.audit.set(actor="ann")),
    "dead_letters": (lambda of: of.bury("docs/page-5.md"), resolve),
}
ELSEWHERE = {
    *(
        "slow_query",
        "store_unreachable",
        "broker_unreachable",
        "broker_memory",
        "backlog_growing",
        "disk_full",
    ),
}


@pytest.mark.req("001-061", "001-063")
def test_each_alert_is_told_once_and_its_end_once(install: Install, ledger: Ledger) -> None:
    here = install()
    own = here.parts.settings.tenant_id
    with here.parts.database.tenant(own) as connection:
        audit.append(connection, own, "pause", "docs", by="ann")
    here.look()
    assert here.told() == []
    for broken, _ in TROUBLES.values():
        broken(ledger)
    here.now += 2 * alerts.VERIFY_SECONDS
    here.look()
    here.now += alerts.SIGN_SECONDS
    here.look(2)
    assert here.names() == {("firing", name): 1 for name in TROUBLES}
    raised = status.status(here.parts)["alerts"]
    assert {one["name"] for one in raised} == set(TROUBLES)
    for one in here.told():
        assert one["severity"] == ALERTS[one["alert"]][1]
        assert "larder " in one["message"]
    grave = {n for n in TROUBLES if ALERTS[n][1] in ("error", "critical")}
    assert here.names("grave.log") == {("firing", name): 1 for name in grave}
    for _, mended in TROUBLES.values():
        mended(ledger)
    here.now += 2 * alerts.VERIFY_SECONDS
    here.calm()
    here.look(2)
    assert here.names() == {(state, name): 1 for name in TROUBLES for state in ("firing", "cleared")}
    assert status.status(here.parts)["alerts"] == []


def test_no_condition_is_left_without_a_rule_or_a_test() -> None:
    assert {*RULES, "slow_query"} == set(ALERTS) == {*TROUBLES, *ELSEWHERE}


def test_every_alert_has_a_line_for_whoever_is_called_at_night() -> None:
    lines = (ROOT / "docs/operations.md").read_text(encoding="utf-8").splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `") and line.count("|") == 5}
    for name, (threshold, severity) in ALERTS.items():
        assert f"| {threshold:g}" in rows[name], name
        assert severity in rows[name], name


def test_trouble_that_comes_and_goes_is_told_once(install: Install, ledger: Ledger) -> None:
    here = install()
    for held in (3, 0, 3, 0, 3):
        ledger.sources.set(held=held)
        here.look()
    assert here.names() == {("firing", "held_deletions"): 1}


def test_of_several_who_watch_one_tells(install: Install, ledger: Ledger) -> None:
    here = install()
    other = Watcher(here.seen, here.patient)
    ledger.sources.set(held=3)
    for _ in range(2):
        here.look()
        other.look()
    assert here.names() == {("firing", "held_deletions"): 1}


def test_conditions_change_thresholds_and_switch_alerts_off(install: Install, ledger: Ledger) -> None:
    here = install(
        "[{name: held_deletions, threshold: 10, severity: critical}, {name: left_out, threshold: 1, enabled: false}]"
    )
    ledger.sources.set(held=9, left_out={"empty": 2})
    here.look()
    assert here.told() == []
    ledger.sources.set(held=10)
    here.look()
    ((told),) = here.told()
    assert (told["severity"], told["message"]) == (
        "critical",
        "10 deletions of acme/docs wait for approval: larder sources list",
    )


@pytest.mark.req("001-062")
def test_a_slow_search_is_told_by_whoever_searched(install: Install) -> None:
    here = install("[{name: slow_query, threshold: 0.001, severity: warning}]")
    for _ in range(2):
        retriever(here.parts, here.parts.settings.tenant_id).search(SearchRequest(text="page 1"))
        here.look()
    assert here.names() == {("firing", "slow_query"): 1}
    here.calm()
    assert here.names()["cleared", "slow_query"] == 1


@pytest.mark.req("001-064")
@pytest.mark.parametrize("broker_too", [False, True])
def test_a_database_that_is_away(
    install: Install, addresses: Addresses, servers: embedded.Servers, broker_too: bool
) -> None:
    with TcpProxy.to(addresses.app) as store, TcpProxy.to(servers.broker_url) as broker:
        with redis.Redis.from_url(servers.broker_url) as client:
            client.delete(alerts.AWAY_KEY)
        here = install(
            database=store.url(addresses.app),
            control=store.url(addresses.control),
            broker=broker.url(servers.broker_url),
        )
        other = Watcher(here.seen, here.patient, retry=0.01)
        store.cut()
        if broker_too:
            broker.cut()
        here.look(2)
        if not broker_too:
            other.look()
        store.open()
        broker.open() if broker_too else None
        here.look(2)
        other.look()
        ways = ("firing", "cleared")
        assert [(one["state"], one["alert"]) for one in here.told()] == [
            (way, "store_unreachable") for way in ways
        ]


def test_one_short_absence_of_the_database_is_no_alert(
    install: Install, addresses: Addresses, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TcpProxy.to(addresses.app) as store:
        here = install(database=store.url(addresses.app), control=store.url(addresses.control))
        store.cut()
        monkeypatch.setattr(
            "workers.processes.alerts.time.sleep", lambda _: store.open() if not store._listener else None
        )
        here.look()
        assert here.told() == []


def test_after_a_silence_of_the_database_workers_have_time_to_give_a_sign(
    install: Install, addresses: Addresses, ledger: Ledger
) -> None:
    with TcpProxy.to(addresses.app) as store:
        here = install(database=store.url(addresses.app), control=store.url(addresses.control))
        here.look()
        store.cut()
        here.look()
        here.now += 60
        store.open()
        ledger.canaries.add(queue="embed", sung_at=ago(hours=1))
        here.look()
        assert ("firing", "silent_queue") not in here.names(), "nobody could give one"
        here.now += 700
        here.look()
        assert ("firing", "silent_queue") in here.names()


def signs_of_life(ledger: Ledger, **ages: int) -> None:
    """Have the workers of these names seen so many seconds ago."""
    for name, age in ages.items():
        if not ledger.workers(name=name):
            ledger.add_worker(name, "control,ingest,embed,enrich")
        ledger.workers.set(name, seen_at=ago(seconds=age))


def test_an_absence_of_the_database_between_two_looks_makes_no_worker_silent(
    install: Install, ledger: Ledger
) -> None:
    here = install()
    signs_of_life(ledger, a=3, b=8)
    here.look()
    for a, b in (5, 45), (8, 3):  # the first that is back gives its sign before the other
        here.now += 40
        signs_of_life(ledger, a=a, b=b)
        here.look()
    for age in 40, 55:  # and here none is back yet
        here.now += 15
        signs_of_life(ledger, a=age, b=age)
        here.look()
    assert here.told() == []


def test_a_worker_is_silent_if_others_are_not(install: Install, ledger: Ledger) -> None:
    here = install()
    for age in 25, 65:
        signs_of_life(ledger, a=3, b=age)
        assert here.told() == []
        here.look()
        here.now += 40
    ((told),) = here.told()
    assert (told["alert"], told["subject"]) == ("deaf_worker", "b")
    assert "b gave no sign of life for 65 s" in told["message"]


def test_a_disk_with_hardly_any_room(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    here = install()
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=999_000_000))
    here.look()
    assert here.names() == {("firing", "disk_full"): 1}
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: SimpleNamespace(free=1_000_000_000))
    here.calm()
    assert here.names() == {("firing", "disk_full"): 1, ("cleared", "disk_full"): 1}


def test_a_broker_that_is_away_and_one_that_is_full(install: Install, servers: embedded.Servers) -> None:
    with TcpProxy.to(servers.broker_url) as broker, redis.Redis.from_url(servers.broker_url) as client:
        here = install(broker=broker.url(servers.broker_url))
        broker.cut()
        here.look(2)
        assert here.told() == []
        here.look(2)
        assert here.names() == {("firing", "broker_unreachable"): 1}
        broker.open()
        client.config_set("maxmemory", int(client.info("memory")["used_memory"] * 1.2))
        here.calm()
        client.config_set("maxmemory", 0)
        assert here.names() == {
            ("firing", "broker_unreachable"): 1,
            ("cleared", "broker_unreachable"): 1,
            ("firing", "broker_memory"): 1,
        }


def test_a_backlog_that_grows(install: Install, ledger: Ledger) -> None:
    here = install("[{name: backlog_growing, threshold: 600, severity: warning}]")
    for change in (10, -10) * 5:  # more and less of it is no growth
        ledger.count_waiting(change)
        here.look()
        here.now += 100
    assert here.names()["firing", "backlog_growing"] == 0
    for _ in range(10):
        ledger.count_waiting(10)
        here.look()
        here.now += 100
    assert here.names()["firing", "backlog_growing"] == 1


class Hook(FakeServer):
    """A chat that takes messages."""

    def answer(self, _seen: Seen) -> Answer:
        """Anything is taken."""
        return Answer(json={"ok": True})


class Post(socketserver.StreamRequestHandler):
    """As much of SMTP as a mail needs."""

    def handle(self) -> None:
        """One mail."""
        self.wfile.write(b"220 here\r\n")
        mails: list[bytes] = self.server.mails  # type: ignore[attr-defined]
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    mail += part
                mails.append(mail)
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 fine\r\n")


@contextmanager
def post() -> Iterator[Any]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Post) as server:
        server.mails = []  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.req("001-061")
def test_alerts_go_to_the_log_a_chat_and_by_mail_and_wait_for_what_is_away(
    install: Install, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    with Hook() as hook, post() as server:
        here = install(
            channels=f"""
        - {{type: console, minSeverity: warning}}
        - {{type: webhook, url: '{hook.address}/hooks', token: a-secret}}
        - {{type: mail, host: 127.0.0.1, port: {server.server_address[1]}, tls: false, sender: l@x.org, recipients: [o@x.org]}}"""
        )
        hook.faults.next(Fault.status(503), times=2)
        ledger.sources.set(held=3)
        here.look()
        assert "webhook did not take an alert (status 503)" in caplog.text
        here.look(3)
        (asked,) = hook.requests("/hooks")[2:]
        assert asked.headers["Authorization"] == "Bearer a-secret"
        said = "3 deletions of acme/docs wait for approval: larder sources list"
        assert asked.json["text"] == f"firing: {said}"
        assert (asked.json["alert"], asked.json["subject"]) == ("held_deletions", "acme/docs")
        (mail,) = server.mails
        assert b"Subject: [larder] warning firing: held_deletions acme/docs" in mail
        told = message_from_bytes(mail)
        assert told["Message-ID"].endswith("@larder>")
        assert parsedate_to_datetime(told["Date"]), "a mail without a date is refused as a forged one by some"
        (line,) = [record for record in caplog.records if record.message == said]
        assert (line.levelno, vars(line)["alert"]) == (logging.WARNING, "held_deletions")
        ledger.sources.set(held=0)
        with caplog.at_level(logging.INFO):
            here.calm()
        assert [r.levelno for r in caplog.records if r.message == f"over: {said}"] == [logging.INFO]
        assert "a-secret" not in caplog.text


def test_no_end_of_a_process_takes_an_alert_away(install: Install, ledger: Ledger) -> None:
    """It is fired once for all who look, so whoever comes next must tell what the first one could not."""
    with Hook() as hook:
        here = install(channels=f"- {{type: webhook, url: '{hook.address}/hooks'}}")
        hook.faults.next(Fault.status(503), times=1)
        ledger.sources.set(held=3)
        here.look()
        assert (len(hook.requests("/hooks")), here.names()) == (1, {("firing", "held_deletions"): 1})
        here.watcher = Watcher(here.seen, here.patient)
        here.look()
        assert [one.json["alert"] for one in hook.requests("/hooks")] == ["held_deletions"] * 2
        assert here.names() == {("firing", "held_deletions"): 1}, "who has been told is not told again"

        ledger.sources.set(left_out={"empty": 2})
        hook.faults.next(Fault.status(503), times=1)
        here.look()
        with here.parts.database.control() as connection:
            killed = upkeep.lease_alert_message(connection, besides=(), lease=60)
        assert killed is not None
        here.look()
        assert len(hook.requests("/hooks")) == 3, "somebody is at it"
        ledger.alert_messages.set(lease_until=ago(seconds=1))
        here.look()
        assert [one.json["alert"] for one in hook.requests("/hooks")[3:]] == ["left_out"]
        assert ledger.alert_messages() == []


def test_what_a_channel_does_not_take_keeps_its_own_end_back_and_no_other_alert(
    install: Install, ledger: Ledger
) -> None:
    with Hook() as hook:
        here = install(channels=f"- {{type: webhook, url: '{hook.address}/hooks'}}")

        def posted() -> list[tuple[str, str]]:
            return [(one.json["alert"], one.json["state"]) for one in hook.requests("/hooks")]

        hook.faults.next(Fault.status(400), times=1)
        ledger.sources.set(held=3, left_out={"empty": 2})
        here.look()
        assert len(posted()) == 1, "one that takes nothing is asked once in a look"
        first = posted()[0][0]
        (other,) = {"held_deletions", "left_out"} - {first}
        here.look()
        assert posted()[1:] == [(other, "firing"), (first, "firing")]

        hook.faults.next(Fault.status(503), times=2)
        ledger.sources.set(held=4)
        ledger.alerts.clear("held_deletions")
        here.look()
        ledger.sources.set(held=0)
        here.calm()
        here.look()
        states = [state for alert, state in posted()[3:] if alert == "held_deletions"]
        assert states == ["firing", "firing", "firing", "cleared"], "its end is not told before its beginning"


def test_what_waits_for_a_channel_goes_with_it(install: Install, ledger: Ledger) -> None:
    with Hook() as hook:
        here = install(channels=f"- {{type: webhook, url: '{hook.address}/hooks'}}")
        hook.faults.next(Fault.status(503), times=1)
        ledger.sources.set(held=3)
        here.look()
        ledger.alert_messages.set(address="of a channel that is configured no more")
        here.look()
        assert len(hook.requests("/hooks")) == 1
        assert ledger.alert_messages() == []


@pytest.mark.req("001-123", "001-139")
def test_each_rule_and_panel_has_figures_with_the_compose_files_as_shipped(
    install: Install, ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metrics_token.txt").write_text("a-token-of-the-tests\n", encoding="utf-8")
    variables = {"LARDER_METRICS_TOKEN_FILE": str(tmp_path / "metrics_token.txt")}
    shipped = load(ROOT / "deploy/compose/larder.yaml", variables)
    here = install()
    for raised, _ in TROUBLES.values():
        raised(ledger)
    ((tenant, source),) = ledger.sources.values("tenant_id", "id")
    assert sync.start_run(here.parts, tenant, source, trigger="manual")
    here.look()
    shown = here.parts.rag.model_copy(update={"monitoring": shipped.rag.monitoring})
    monkeypatch.setattr(here.parts, "rag", shown)
    here.parts.settings.data.mkdir(exist_ok=True)  # the API's secret lies there
    with TestClient(create_app(here.parts)) as api:
        page = api.get("/metrics", headers={"Authorization": "Bearer a-token-of-the-tests"}).text
    sampled = set(re.findall(r"^(larder_\w+)[ {]", page, re.MULTILINE))
    rules = (ROOT / "deploy/prometheus/alerts.yml").read_text(encoding="utf-8")
    board = (ROOT / "deploy/grafana/larder.json").read_text(encoding="utf-8")
    figures = {f"larder_{name}" for name, *_ in metrics.FIGURES} - {
        "larder_broker_memory_ratio"
    }  # has no limit here
    asked = figures & set(re.findall(r"larder_\w+", rules + board))
    assert asked - sampled == set()
    assert 'source="docs"' in page


def test_two_channels_to_one_place_are_two(install: Install, ledger: Ledger) -> None:
    path = "./logs/both.log"
    here = install(
        channels=f"""
        - {{type: file, path: {path}, minSeverity: warning}}
        - {{type: file, path: {path}, minSeverity: critical}}"""
    )
    ledger.sources.set(held=3)
    here.look()
    assert here.names("both.log") == {("firing", "held_deletions"): 1}


def test_no_alert_goes_to_where_clouds_hand_out_keys(install: Install) -> None:
    channel = AlertChannel.model_construct(type="webhook", url="http://2852039166/x", token=None)
    told = alert_record("firing", name="left_out", message="x")
    with pytest.raises(OSError, match="EmbedderRefused"):
        CHANNELS["webhook"](channel, install().parts.settings, told)


def test_a_name_of_several_lines_keeps_no_alert_back(install: Install, ledger: Ledger) -> None:
    """Uploads are a source by the name of their project, which somebody sent."""
    with Hook() as hook, post() as server:
        port = server.server_address[1]
        here = install(
            channels=f"""
        - {{type: mail, host: 127.0.0.1, port: {port}, tls: false, sender: l@x.org, recipients: [o@x.org]}}
        - {{type: webhook, url: '{hook.address}/hooks'}}"""
        )
        ledger.sources.set(held=3, name="upload:a\r\nBcc: evil@x.org\n\n\u2028b")
        here.look()
        (mail,) = server.mails
        assert b"held_deletions acme/upload:a Bcc: evil@x.org b" in b" ".join(mail.split())
        assert b"\nBcc:" not in mail.partition(b"\r\n\r\n")[0]
        assert len(hook.requests("/hooks")) == 1


def test_a_running_control_worker_looks_by_itself(install: Install, ledger: Ledger) -> None:
    here = install(interval=0.15)
    ledger.sources.set(held=3)
    running = Loops(here.parts)
    running.start()
    end = time.monotonic() + 30
    while not here.told() and time.monotonic() < end:
        time.sleep(0.05)
    running.stop()
    assert here.names() == {("firing", "held_deletions"): 1}
