"""Connections to a real Valkey that is restarted in mind, forgets scripts, refuses and is forked away from."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

from workers.local import embedded
from workers.queue.broker import AWAY, PRIORITIES, Scripts, waiting

ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])"
GET = "return redis.call('GET', KEYS[1])"
WRONG = "return redis.call('INCRBY', KEYS[1], 'many')"


@pytest.fixture
def scripts(servers: embedded.Servers) -> Iterator[Scripts]:
    made = Scripts(servers.broker_url, "test:")
    yield made
    made.disconnect()


@pytest.fixture
def control(servers: embedded.Servers) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(servers.broker_url)
    yield client
    client.close()


@pytest.fixture
def key() -> str:
    return str(uuid4())


def idle(scripts: Scripts) -> list[Any]:
    """The connections that nobody uses now."""
    return list(scripts._client.connection_pool._available_connections)


def connections(control: redis.Redis, scripts: Scripts) -> list[int]:
    """The numbers by which the server knows them."""
    ports = {connection._sock.getsockname()[1] for connection in idle(scripts)}
    return [int(c["id"]) for c in control.client_list() if int(c["addr"].rsplit(":", 1)[1]) in ports]


def test_one_connection_serves_one_after_the_other(scripts: Scripts, key: str) -> None:
    assert [scripts.run(ADD, key, "n", 2) for _ in range(3)] == [2, 4, 6]
    assert scripts.run(GET, key, "n") == b"6"
    assert scripts.run(GET, f"{key}:none", "n") is None
    assert len(idle(scripts)) == 1


def test_a_script_that_the_server_forgot_is_sent_again(
    scripts: Scripts, control: redis.Redis, key: str
) -> None:
    scripts.run(ADD, key, "n", 1)
    control.script_flush()
    assert scripts.run(ADD, key, "n", 1) == 2
    assert scripts.run(ADD, key, "n", 1) == 3


def test_connections_that_the_server_closed_are_replaced(
    scripts: Scripts, control: redis.Redis, key: str
) -> None:
    ready = threading.Barrier(2)

    def use() -> None:
        ready.wait(60)
        for _ in range(50):
            scripts.run(ADD, key, "n", 0)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in connections(control, scripts):
        control.client_kill_filter(_id=str(number))
    assert scripts.run(ADD, key, "n", 5) == 5
    assert scripts.run(GET, key, "n") == b"5"


def test_what_each_step_asks_goes_over_one_connection_that_comes_back_if_it_is_cut(
    servers: embedded.Servers, control: redis.Redis
) -> None:
    none = dict.fromkeys(PRIORITIES, 0)
    assert waiting(servers.broker_url, "test-none") == none
    before = control.info("stats")["total_connections_received"]
    assert [waiting(servers.broker_url, "test-none") for _ in range(20)] == [none] * 20
    assert control.info("stats")["total_connections_received"] == before
    control.client_kill_filter(_type="normal", skipme=True)
    assert waiting(servers.broker_url, "test-none") == none
    if not (child := os.fork()):
        os._exit(waiting(servers.broker_url, "test-none") != none)
    assert [waiting(servers.broker_url, "test-none") for _ in range(20)] == [none] * 20
    assert os.waitpid(child, 0)[1] == 0


def test_a_refusal_is_told_and_costs_no_connection(scripts: Scripts, key: str) -> None:
    scripts.run(ADD, key, "n", 1)
    before = idle(scripts)
    with pytest.raises(redis.ResponseError):
        scripts.run(WRONG, key, "n")
    assert scripts.run(ADD, key, "n", 1) == 2
    assert idle(scripts) == before


def test_who_is_interrupted_in_an_answer_leaves_none_of_it_to_the_next(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """As a time limit of the worker would."""
    scripts.run(ADD, key, "n", 1)

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(idle(scripts)[0]._parser, "read_response", interrupted)
        with pytest.raises(KeyboardInterrupt):
            scripts.run(ADD, key, "n", 10)
    assert scripts.run(GET, f"{key}:none", "n") is None, "not the answer to the question before"


def test_a_script_whose_answer_was_lost_does_not_run_twice(
    scripts: Scripts, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    scripts.run(ADD, key, "n", 1)

    with monkeypatch.context() as patch:

        def lost(*_: object, **__: object) -> None:
            patch.undo()
            raise redis.ConnectionError

        patch.setattr(idle(scripts)[0]._parser, "read_response", lost)
        with pytest.raises(AWAY):
            scripts.run(ADD, key, "n", 10)
    assert scripts.run(ADD, key, "n", 0) in {1, 11}


def test_nobody_there_is_one_of_those_that_mean_away() -> None:
    with pytest.raises(AWAY):
        Scripts("redis://127.0.0.1:1/0", "test:").run(ADD, "k", "n", 1)


def test_after_a_fork_each_process_has_its_own(servers: embedded.Servers, scripts: Scripts, key: str) -> None:
    code = f"""
import os, sys
from workers.queue.broker import Scripts
scripts = Scripts(sys.argv[1], "test:")
add = lambda: scripts.run({ADD!r}, sys.argv[2], "n", 1)
add()
idle = lambda: scripts._client.connection_pool._available_connections[0]
before = idle()
child = os.fork()
for _ in range(100):
    add()
if child == 0:
    os._exit(0 if idle() is not before else 3)
assert os.waitpid(child, 0)[1] == 0
add()
assert idle() is before, "the child closed it"
"""
    subprocess.run([sys.executable, "-c", code, servers.broker_url, key], check=True, timeout=60)
    assert scripts.run(GET, key, "n") == b"202"
