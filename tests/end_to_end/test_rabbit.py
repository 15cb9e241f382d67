"""An installation whose broker is a real RabbitMQ: `make rabbitmq`."""

from __future__ import annotations

import base64
import json
import shutil
import ssl
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery

from tests.end_to_end.fleet import Fleet, Processes
from tests.end_to_end.rabbit import RabbitServer
from tests.fakes.tls_server import Authority, TlsServer
from tests.forked import Forked
from workers.app.enrichment.messaging import JobPublisher
from workers.client import Client
from workers.local.embedded import free_port
from workers.queue import broker
from workers.queue.celeryconfig import QUEUES, celery_settings
from workers.settings.queue import QueueSettings

pytestmark = pytest.mark.drill

CONFIG = """
rag:
  embedding: {{provider: hashing}}
  queue: {{tickSeconds: 1, answerApps: true, batchDocuments: 1, leaseSeconds: 2, resendSeconds: {resend}}}
  enrichment: {{leaseSeconds: 3, resendSeconds: {resend}}}
  sources:
    - {{name: load, type: markdown, paths: ['./load/*.md'], autoIndex: false}}
    - {{name: desk, type: markdown, paths: ['./desk/*.md'], autoIndex: false}}
"""
NEVER, SOON, LEASE = 800, 5, 2
"""Seconds after which what was sent is sent again: longer than these tests, where the broker is to lose nothing."""
COMMANDS = {
    "control": ["worker", "control", "--concurrency", "1"],
    "ingest": ["worker", "ingest", "--concurrency", "2"],
    "embed": ["worker", "embed", "--concurrency", "2"],
    "enrich": ["worker", "enrich", "--concurrency", "2"],
    "beat": ["beat"],
}
LOAD = 300
_pages = iter(range(1_000_000))


@dataclass(kw_only=True)
class Harbour:
    """The installation."""

    fleet: Fleet
    rabbit: RabbitServer

    def configure(self, resend: float) -> None:
        """Write the configuration, and have all processes begin anew with it."""
        (self.fleet.root / "larder.yaml").write_text(CONFIG.format(resend=resend))
        Processes.stop(self.fleet)
        self.fleet.revive()
        self.until(lambda: self.serving() == set(COMMANDS) - {"beat"}, "workers")

    def serving(self) -> set[str]:
        """The queues that somebody reads, all priorities of each."""
        url = self.rabbit.url
        return {q for q in QUEUES if all(self.rabbit.consumers(one) for one in broker.lists_of(q, url))}

    def write(self, folder: str, count: int = 1) -> None:
        """New pages."""
        (self.fleet.root / folder).mkdir(exist_ok=True)
        for _ in range(count):
            number = next(_pages)
            page = self.fleet.root / folder / f"{number}.md"
            page.write_text(f"# Berth {number}\n\nShip number{number} lies at berth {number}.\n")

    def edit(self, folder: str) -> str:
        """Change a page; the word that is new in it."""
        word = f"edited{next(_pages)}"
        page = min((self.fleet.root / folder).glob("*.md"))
        page.write_text(f"{page.read_text()}\nThe tug {word} waits.\n")
        return word

    def found(self, word: str) -> bool:
        return any(word in content for content in self.fleet.ledger.chunks.values("content"))

    def sync(self, source: str) -> None:
        """Have a source read again, without waiting for it."""
        done = self.fleet.larder("index", source, "--no-wait")
        assert done.returncode == 0, done.stderr

    def load(self) -> None:
        """Have many documents under way."""
        before = self.indexed("load")
        self.write("load", LOAD)
        self.sync("load")
        self.until(
            lambda: self.pending("load") > LOAD / 2 and self.indexed("load") > before, "work is under way"
        )

    def count(self, source: str, state: str) -> int:
        of = self.fleet.ledger.sources.one(name=source)
        return len(self.fleet.ledger.documents(source_id=of["id"], state=state))

    def pending(self, source: str) -> int:
        """Documents that are not searchable in their newest version; those that no walk has met do not count."""
        return self.count(source, "pending")

    def indexed(self, source: str) -> int:
        return self.count(source, "done")

    def files(self, source: str) -> int:
        return len([*(self.fleet.root / source).glob("*.md")])

    def whole(self, source: str) -> bool:
        """Whether each of its files is one searchable document."""
        return self.indexed(source) == self.files(source) and self.pending(source) == 0

    def until(self, condition: Callable[[], bool], what: str, seconds: float = 120) -> float:
        """Wait; the seconds it took."""
        begun = time.monotonic()
        while not condition():
            assert time.monotonic() - begun < seconds, f"{what}: {self.told()}"
            time.sleep(0.2)
        print(f"{what}: {time.monotonic() - begun:.1f} s")
        return time.monotonic() - begun

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Three tasks are under way, none of which can end."""
        waiting = "select count(*) from pg_locks where not granted and relation = 'document'::regclass"
        with self.fleet.superuser() as connection, connection.transaction():
            connection.execute("lock table document in exclusive mode")  # it may be read
            self.until(lambda: self.fleet.sql(waiting)[0][0] >= 3, "tasks wait")
            yield

    def advances(self, source: str, documents: int) -> None:
        """Wait for so many more that are searchable."""
        before = self.indexed(source)
        self.until(lambda: self.indexed(source) >= before + documents, f"{documents} more of {source}")

    def resting(self) -> dict[str, int]:
        """What waits, once the pump has sent all it has."""
        seen: list[dict[str, int] | None] = [None]
        while (now := broker.lengths(self.rabbit.url, QUEUES)) != seen[-1] or now is None:
            seen.append(now)
            time.sleep(3)  # three ticks
        return now

    def told(self) -> str:
        """How everything stands, for who looks for the reason."""
        rows = Counter(self.fleet.ledger.documents.values("source_id", "stage", "state"))
        return f"{rows} {broker.lengths(self.rabbit.url, QUEUES)}"

    def status(self) -> dict[str, Any]:
        return dict(json.loads(self.fleet.larder("status", "--json").stdout))

    def client(self) -> Client:
        return Client(self.fleet.servers.database_url, broker_url=self.rabbit.url, deadline=60)


@pytest.fixture(scope="module")
def running() -> Iterator[Harbour]:
    root = Path(tempfile.mkdtemp(prefix="larder-rabbit-site-"))
    with RabbitServer() as rabbit:
        (root / "larder.yaml").write_text(CONFIG.format(resend=NEVER))
        fleet = Fleet.started(root, commands=COMMANDS)
        broker = {"LARDER_BROKER_URL": rabbit.url, "LARDER_VALKEY_URL": fleet.servers.broker_url}
        fleet.env |= {**fleet.database, **broker}
        harbour = Harbour(fleet=fleet, rabbit=rabbit)
        try:
            harbour.configure(NEVER)
            yield harbour
        finally:
            fleet.stop()
            shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def harbour(running: Harbour) -> Harbour:
    """The installation with everything alive."""
    running.fleet.revive()
    running.until(lambda: running.serving() == set(QUEUES), "all serve")
    return running


def test_files_become_searchable_by_quorum_queues_alone(harbour: Harbour) -> None:
    harbour.write("desk", 5)
    done = harbour.fleet.larder("index", "desk")
    assert done.returncode == 0, done.stderr + harbour.told()
    page = next((harbour.fleet.root / "desk").glob("*.md")).stem
    found = json.loads(harbour.fleet.larder("search", f"number{page}", "--json").stdout)
    assert found["results"][0]["metadata"]["title"] == f"Berth {page}"
    names = {name for queue in QUEUES for name in broker.lists_of(queue, harbour.rabbit.url)}
    kinds = harbour.rabbit.list("queues", "name", "type")
    assert {name for name, kind in kinds if kind == "quorum"} == names
    # Those of Celery for remote control and events end with who reads them; none is for messages that come later.
    assert [name for name, kind in kinds if kind != "quorum" and "celery" not in name] == []
    exchanges = {name for (name,) in harbour.rabbit.list("exchanges", "name")}
    assert {name for name in exchanges if not name.startswith("amq.")} <= {
        "",
        "larder", "celeryev", "celery.pidbox", "reply.celery.pidbox",
    }  # fmt: skip


def test_a_question_of_step_4_reaches_a_worker_without_the_pump(harbour: Harbour) -> None:
    harbour.fleet.kill("beat")
    harbour.fleet.kill("control")
    with harbour.client() as client:
        for number in range(3):
            found = client.enrich({"id": "NEW", "title": f"Warn of ships at berth {number}"})
            assert found["degradation_level"] == 0


def test_a_message_for_workers_that_never_ran_waits_for_them(harbour: Harbour) -> None:
    """Who sends declares the queue."""
    for name in ("enrich", "control", "beat"):
        harbour.fleet.kill(name)
    for queue in broker.lists_of("enrich", harbour.rabbit.url):
        harbour.rabbit.control("delete_queue", queue)
    with harbour.client() as client:
        asked = client.submit({"id": "NEW", "title": "Warn of new ships at berths"})
        assert broker.lengths(harbour.rabbit.url, ["enrich"]) == {"enrich": 1}
        harbour.fleet.revive()
        assert client.result(asked, wait=60)["degradation_level"] == 0


def test_a_frozen_broker_is_told_and_step_4_goes_on(harbour: Harbour) -> None:
    url = harbour.rabbit.url
    with harbour.client() as client:
        # Also where connections were open before.
        assert client.enrich({"id": "NEW", "title": "Warn while the broker speaks"})["degradation_level"] == 0
        assert broker.lengths(url, QUEUES) is not None
        with harbour.rabbit.frozen():
            assert broker.lengths(url, QUEUES) is None
            found = client.enrich({"id": "NEW", "title": "Warn while the broker says nothing"})
            assert found["degradation_level"] == 0
            assert harbour.status()["broker_error"] == broker.SILENT
    harbour.until(lambda: harbour.status()["broker"] == "ok", "it is heard again")


def test_what_is_wrong_with_an_address_is_told(harbour: Harbour) -> None:
    rabbit = harbour.rabbit
    there = f"127.0.0.1:{rabbit.port}"
    rabbit.control("add_user", "guest2", "secret")
    rabbit.control("set_permissions", "guest2", "", ".*", ".*")
    rabbit.control("add_vhost", "taken")
    rabbit.control("set_permissions", "-p", "taken", "larder", ".*", ".*", ".*")
    rabbit.control("add_vhost", "closed")
    rabbit.declare_classic("taken", "control")
    mine = f"amqp://larder:{rabbit.password}@{there}"
    for url, says in {
        f"amqp://larder:wrong@{there}//": "refuses the password",
        f"{mine}/nowhere": "has no virtual host of that name for its user",
        f"{mine}/closed": "has no virtual host of that name for its user",
        f"{mine}/taken": "has a queue of that name that is no quorum queue",
        f"amqp://guest2:secret@{there}//": "refuses its user what workers do",
        f"{mine}//": "",
    }.items():
        assert broker.connect_problem(url) == says
        assert not says or says in broker.REFUSALS


def test_a_celery_app_without_this_package_is_answered(harbour: Harbour) -> None:
    app = Celery(broker=harbour.rabbit.url, backend=harbour.fleet.servers.broker_url)
    app.conf.task_create_missing_queue_type = "quorum"
    pbi = {"id": "NEW-1", "title": "Warn of ships that lie at berths"}
    asked = app.send_task("larder.ask", args=["enrich"], kwargs={"pbi": pbi}, queue="enrich")
    found = asked.get(timeout=60)
    assert found["degradation_level"] == 0, found
    app.close()


def test_messages_that_are_none_harm_nobody(harbour: Harbour) -> None:
    processes = {name: process.pid for name, process in harbour.fleet.processes.items()}
    for queue in QUEUES:
        for body in (b"garbage", b"[]", b"{}", b"\xff"):
            for kind in ("application/json", "application/x-python-serialize"):
                harbour.rabbit.publish(queue, body, content_type=kind, content_encoding="utf-8")
            headers = {"task": ["larder.pump"], "id": None, "lang": "py"}
            harbour.rabbit.publish(
                queue,
                body,
                content_type="application/json",
                content_encoding="utf-8",
                application_headers=headers,
            )
    nothing = dict.fromkeys(QUEUES, 0)
    harbour.until(lambda: broker.lengths(harbour.rabbit.url, QUEUES) == nothing, "they are gone", 30)
    with harbour.client() as client:
        assert client.enrich({"id": "NEW", "title": "Warn after garbage"})["degradation_level"] == 0
    harbour.write("desk")
    harbour.sync("desk")
    harbour.until(lambda: harbour.whole("desk"), "work goes on")
    assert {name: process.pid for name, process in harbour.fleet.processes.items()} == processes
    assert all(process.poll() is None for process in harbour.fleet.processes.values())


def test_an_edit_overtakes_a_load(harbour: Harbour) -> None:
    harbour.write("desk")
    harbour.sync("desk")
    harbour.until(lambda: harbour.whole("desk"), "the desk")
    harbour.write("load", LOAD)
    harbour.sync("load")
    harbour.until(lambda: harbour.pending("load") >= 0.9 * LOAD, "the load is known")
    waited = harbour.pending("load")
    edited = harbour.edit("desk")
    harbour.sync("desk")
    took = harbour.until(lambda: harbour.found(edited) and harbour.pending("desk") == 0, "the edit")
    left = harbour.pending("load")
    rest = harbour.until(lambda: harbour.whole("load"), "the load")
    print(f"edit {took:.1f} s, with {left} of {waited} of the load left, which took {rest:.1f} s more")
    assert left > waited / 2


def test_killed_workers_lose_nothing(harbour: Harbour) -> None:
    harbour.write("load", LOAD)
    harbour.sync("load")
    for _ in range(3):
        harbour.advances("load", 20)
        with harbour.locked():
            for name in ("ingest", "embed"):
                harbour.fleet.kill(name)
        time.sleep(LEASE)  # in which nobody may take what they were at; RabbitMQ gives it again at once
        harbour.fleet.revive()
    harbour.until(lambda: harbour.whole("load"), "all after three kills", NEVER / 4)


def test_a_killed_broker_loses_nothing(harbour: Harbour) -> None:
    harbour.load()
    # Who is killed while it sends is no matter of the broker: these wait for a lock, and the pump rests.
    with harbour.locked():
        harbour.fleet.kill("ingest")
    before = harbour.resting()
    assert before["ingest"] > 10
    for name in ("control", "beat"):
        harbour.fleet.kill(name)
    harbour.rabbit.kill()
    assert harbour.status()["broker_error"] == "cannot be reached: nothing listens at its address"
    assert harbour.fleet.larder("doctor").returncode == 1
    harbour.rabbit.start()
    waiting = {"ingest": before["ingest"]}
    # Each queue reads its log for a moment.
    harbour.until(lambda: broker.lengths(harbour.rabbit.url, ["ingest"]) == waiting, "nothing is lost", 30)
    harbour.fleet.revive()
    harbour.until(lambda: harbour.whole("load"), "all after a broker's death", NEVER / 4)


def test_a_broker_that_dies_under_work_is_gone_back_to(harbour: Harbour) -> None:
    """By the workers that live: those of Step 4 answer meanwhile."""
    harbour.load()
    processes = {name: process.pid for name, process in harbour.fleet.processes.items()}
    harbour.rabbit.kill()
    with harbour.client() as client:
        assert (
            client.enrich({"id": "NEW", "title": "Warn while no broker is there"})["degradation_level"] == 0
        )
    harbour.rabbit.start()
    harbour.until(lambda: harbour.whole("load"), "all after a broker's death under work", NEVER / 4)
    assert {name: process.pid for name, process in harbour.fleet.processes.items()} == processes
    assert all(process.poll() is None for process in harbour.fleet.processes.values())


@pytest.mark.parametrize("options", ["", "?ssl_ca_certs={file}"])
def test_a_broker_over_tls_must_prove_who_it_is(
    harbour: Harbour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    """By the file that the address names, or by those that this machine trusts."""
    ours, strange = Authority(tmp_path, "ours"), Authority(tmp_path, "strange")
    there = f"amqps:{harbour.rabbit.url.partition(':')[2].rpartition(':')[0]}"
    for signer, host, says in (
        (ours, "127.0.0.1", ""),
        (ours, "elsewhere.example", "has a certificate for another host name"),
        (strange, "127.0.0.1", "has a certificate that nobody we trust has signed"),
    ):
        with TlsServer(harbour.rabbit.port, signer.context(host)) as server:
            if not options:
                monkeypatch.setenv("SSL_CERT_FILE", str(ours.file))
            url = f"{there}:{server.port}//{options.format(file=ours.file)}"
            assert broker.connect_problem(url) == says
            publisher = JobPublisher(url)
            assert publisher.publish(uuid4(), uuid4(), priority=0) is (not says)
            publisher.close()
            assert (broker.lengths(url, ["embed"]) is None) is bool(says)
            app = Celery()
            app.conf.update(celery_settings(QueueSettings(), url, send_only=True))
            with app.connection_for_write() as connection:
                try:
                    connection.connect()
                except ssl.SSLCertVerificationError:
                    assert says
                else:
                    assert not says


def test_what_waits_is_told(harbour: Harbour) -> None:
    harbour.fleet.kill("beat")  # which sends a canary to each queue now and then
    harbour.fleet.kill("ingest")
    harbour.write("desk", 3)
    harbour.sync("desk")
    harbour.until(lambda: (broker.lengths(harbour.rabbit.url, ["ingest"]) or {})["ingest"] > 0, "it waits")
    found = harbour.status()
    assert (found["broker"], found["backlog"]["queues"]["ingest"]) == ("ok", 1)
    assert found["backlog"]["set_aside"] is None
    checks = {
        one["check"]: one for one in json.loads(harbour.fleet.larder("doctor", "--json").stdout)["findings"]
    }
    assert checks["broker"]["detail"].startswith("RabbitMQ 3.")
    assert "Valkey" in checks["broker"]["detail"]
    port = free_port()
    harbour.fleet.env["LARDER_FLOWER_AUTH"] = "quay:master"
    flower = Forked(
        ["flower", "--port", str(port)],
        cwd=harbour.fleet.root, env=harbour.fleet.env, out=harbour.fleet.root / "flower.log",
    )  # fmt: skip
    try:
        harbour.until(lambda: shown(port, "queues/length") != {}, "Flower")
        told = shown(port, "queues/length")["active_queues"]
        assert {one["name"]: one["messages"] for one in told} == found["backlog"]["queues"]
        harbour.until(lambda: len(shown(port, "workers?refresh=1")) == 3, "Flower has heard of all workers")
    finally:
        flower.terminate()
        flower.wait(30)


def shown(port: int, page: str) -> dict[str, Any]:
    """What Flower's API says; nothing while it does not."""
    login = base64.b64encode(b"quay:master").decode()
    asked = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/{page}", headers={"Authorization": f"Basic {login}"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return dict(json.loads(answer.read()))
    except OSError:
        return {}


def test_a_wiped_broker_is_healed_by_sending_again(harbour: Harbour) -> None:
    harbour.configure(SOON)
    harbour.load()
    harbour.rabbit.wipe()
    assert harbour.pending("load") > 0
    harbour.until(lambda: harbour.whole("load"), "all after a wipe", 180)
    harbour.until(lambda: harbour.serving() == set(QUEUES), "all serve")
