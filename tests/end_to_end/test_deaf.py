"""Workers without a supervisor that reads heartbeats: they listen again, or end so that anybody starts them anew.

The clocks are the real ones, hence a drill; tests/workers/test_heartbeat.py shows the same of one object in seconds.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from celery import Celery

from tests.end_to_end.fleet import Fleet
from tests.fakes.tcp_proxy import TcpProxy
from workers.monitoring import liveness
from workers.processes import heartbeat

pytestmark = pytest.mark.drill
CONFIG = "rag: {embedding: {provider: hashing}}"
NAME = "worker-control"


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    """A worker of the control queue, behind a proxy before the broker."""
    root = Path(tempfile.mkdtemp(prefix="larder-deaf-"))
    (root / "larder.yaml").write_text(CONFIG)
    made = Fleet.started(root, Path(__file__).parent / "deaf_process.py")
    try:
        s = made.servers
        made.env |= {
            "LARDER_DATABASE_URL": s.database_url,
            "LARDER_CONTROL_DATABASE_URL": s.control_url,
            "LARDER_ADMIN_DATABASE_URL": s.admin_url,
        }
        made.commands = {"control": ["worker", "control", "--concurrency", "1"]}
        yield made
    finally:
        made.stop()
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def broker(fleet: Fleet) -> Iterator[TcpProxy]:
    """The proxy, and the worker behind it, which sings."""
    with TcpProxy.to(fleet.servers.broker_url) as proxy:
        fleet.env |= {**fleet.database, "LARDER_BROKER_URL": proxy.url(fleet.servers.broker_url)}
        fleet.revive()
        sings(fleet)
        yield proxy
        fleet.kill("control")


def until(condition: Callable[[], Any], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.1)


def sung(fleet: Fleet) -> list[Any]:
    return fleet.ledger.canaries.values("sung_at", queue="control")


def age(fleet: Fleet) -> float:
    """Seconds since the worker's last sign of life."""
    return liveness.ages(fleet.root / ".larder" / "heartbeat")[NAME]


def ask_for_song(fleet: Fleet) -> None:
    # With an app of its own: that of the product keeps its connections for the tests that come after.
    with Celery(broker=fleet.servers.broker_url) as app:
        app.send_task("larder.upkeep.canary", args=["control"], queue="control")


def sings(fleet: Fleet) -> None:
    """A message that is sent now is worked on."""
    before = sung(fleet)
    ask_for_song(fleet)
    until(lambda: sung(fleet) != before)


def test_it_is_heard_of_after_its_connection_was_lost(fleet: Fleet, broker: TcpProxy) -> None:
    broker.cut()
    until(lambda: b"Connection to broker lost" in (fleet.root / "control.log").read_bytes())
    broker.heal()
    sings(fleet)
    until(lambda: age(fleet) < 1)
    begun = time.monotonic()
    while time.monotonic() - begun < 2 * heartbeat.LOOK_SECONDS:
        # More would mean that only the thread speaks for it, which it does for a while after the broker is back.
        assert age(fleet) < heartbeat.LOOK_SECONDS - 1
        time.sleep(0.2)


def test_one_that_takes_no_message_ends_itself_and_its_next_life_takes_what_waited(
    fleet: Fleet, broker: TcpProxy
) -> None:
    del broker
    process = fleet.processes["control"]
    children = psutil.Process(process.pid).children(recursive=True)
    (fleet.root / "deaf").touch()
    time.sleep(2)  # until then what it had asked for may still be given to it
    before = sung(fleet)
    ask_for_song(fleet)
    assert process.wait(60) != 0
    psutil.wait_procs(children, timeout=10)
    assert not any(child.is_running() for child in children)
    assert (
        b"this worker does not respond and ends itself: messages wait"
        in (fleet.root / "control.log").read_bytes()
    )
    (fleet.root / "deaf").unlink()
    assert sung(fleet) == before
    fleet.revive()
    until(lambda: sung(fleet) != before)
