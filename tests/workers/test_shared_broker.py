"""Two installations on one number of a Valkey: it is told before their messages are mixed up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from pipeline.database.engine import database_id
from pipeline.errors import ConfigurationError
from tests.forked import environment, run
from workers.app import status
from workers.app.doctor.doctor import examine
from workers.processes.run import refuse_shared_broker
from workers.queue.broker import OWNER, OWNER_SECONDS, disown
from workers.runtime import Runtime

OTHER = "7300000000000000000/second"


@pytest.fixture
def valkey(broker: redis.Redis) -> Iterator[redis.Redis]:
    broker.delete(OWNER)
    yield broker
    broker.delete(OWNER)


def test_the_second_is_refused_and_told_what_to_do(runtime: Runtime, valkey: redis.Redis) -> None:
    valkey.set(OWNER, OTHER)
    with pytest.raises(ConfigurationError, match="workers of another database \\('second'\\)") as refused:
        refuse_shared_broker(runtime)
    assert "redis://HOST:6379/1" in refused.value.fix
    assert "restored" in refused.value.fix
    assert valkey.get(OWNER) == OTHER.encode(), "the first one keeps it"


def test_status_and_doctor_name_it_first(runtime: Runtime, valkey: redis.Redis) -> None:
    valkey.set(OWNER, OTHER)
    told = [one["detail"] for one in status.status(runtime)["next"]]
    assert "'second'" in told[0]
    finding = next(one for one in examine(runtime) if one.check == "broker")
    assert finding.status == "error"
    assert "LARDER_BROKER_URL" in finding.fix


def test_the_same_database_may_have_any_number_of_workers(runtime: Runtime, valkey: redis.Redis) -> None:
    refuse_shared_broker(runtime)
    valkey.expire(OWNER, 5)
    refuse_shared_broker(runtime)
    assert OWNER_SECONDS - 5 < valkey.ttl(OWNER) <= OWNER_SECONDS, "each sign of life keeps it"
    with runtime.database.control() as connection:
        assert valkey.get(OWNER) == database_id(connection).encode()
    assert not status.status(runtime)["broker_shared_with"]
    disown(runtime.addresses.broker)
    assert valkey.get(OWNER) is None


def test_a_worker_does_not_start(runtime: Runtime, valkey: redis.Redis, tmp_path: Path) -> None:
    valkey.set(OWNER, OTHER)
    where = runtime.addresses
    addresses = {
        "LARDER_DATABASE_URL": where.database,
        "LARDER_CONTROL_DATABASE_URL": where.control,
        "LARDER_BROKER_URL": where.broker,
    }
    for command in (("worker", "embed"), ("up", "--no-api", "--no-flower")):
        ran = run(command, cwd=tmp_path, env=environment(**addresses), seconds=60)
        assert ran.returncode == 2, ran.stderr
        assert "workers of another database" in ran.stderr
