"""The queue is configured as the measured rules say, and every task has its queue."""

from __future__ import annotations

import pytest

from workers.queue import broker
from workers.queue.app import app, configure
from workers.queue.celeryconfig import MIRROR, QUEUES, ROUTES, celery_settings
from workers.runtime import Addresses
from workers.settings.queue import QueueSettings


@pytest.mark.req("ORD-01")
def test_every_task_of_ours_has_a_queue_and_every_route_a_task() -> None:
    app.loader.import_default_modules()
    names = {name for name in app.tasks if name.startswith("larder.")}
    assert names == set(ROUTES)
    assert set(ROUTES.values()) == {*QUEUES, MIRROR}


def test_rules_that_keep_messages_safe() -> None:
    settings = celery_settings(QueueSettings(), "redis://127.0.0.1:1/0")
    assert settings["task_acks_late"] is True
    assert settings["task_reject_on_worker_lost"] is False
    assert settings["worker_prefetch_multiplier"] == 1
    assert settings["accept_content"] == ["json"]
    assert settings["task_ignore_result"] is True
    transport = settings["broker_transport_options"]
    assert settings["task_soft_time_limit"] < settings["task_time_limit"] < transport["visibility_timeout"]
    assert "worker_cancel_long_running_tasks_on_connection_loss" not in settings


def test_no_task_is_delivered_again_while_it_runs() -> None:
    app.loader.import_default_modules()
    queue = QueueSettings()
    for name in ROUTES:
        task = app.tasks[name]
        assert (task.time_limit or queue.time_limit) < queue.visibility_timeout, name


def test_beat_only_ticks_and_no_tick_depends_on_two_clocks() -> None:
    schedule = celery_settings(QueueSettings(tick_seconds=2), "redis://x")["beat_schedule"]
    assert schedule["tick"]["task"] == "larder.pump"
    assert schedule["tick"]["schedule"] == 2
    assert not any("expires" in entry.get("options", {}) for entry in schedule.values())
    assert {schedule[f"canary-{q}"]["options"]["queue"] for q in QUEUES} == set(QUEUES)


def test_with_rabbitmq_each_priority_of_a_queue_is_a_quorum_queue_and_sending_is_confirmed() -> None:
    url = "amqp://u:p@127.0.0.1:1//"
    settings = celery_settings(QueueSettings(), f"{url}?ssl_ca_certs=ca.pem", send_only=True)
    assert settings["broker_url"] == url
    assert settings["broker_transport_options"] == {
        "confirm_publish": True,
        "read_timeout": broker.SECONDS,
        "write_timeout": broker.SECONDS,
    }
    named = {queue.name: queue for queue in settings["task_queues"]}
    assert sorted(named) == sorted(q + step for q in (*QUEUES, MIRROR) for step in ("", ".3", ".6", ".9"))
    for name, queue in named.items():
        assert (queue.durable, queue.routing_key) == (True, name)
        assert queue.queue_arguments == {"x-queue-type": "quorum"}
    assert broker.consumed_queues("ingest", url) == ["ingest", "ingest.3", "ingest.6", "ingest.9"]
    sent = [broker.queue_for("ingest", url, priority) for priority in (None, 0, 2, 3, 6, 9)]
    assert sent == ["ingest", "ingest", "ingest", "ingest.3", "ingest.6", "ingest.9"]


def test_with_valkey_kombu_keeps_the_priorities_of_one_queue() -> None:
    url = "redis://127.0.0.1:1/0"
    assert "task_queues" not in celery_settings(QueueSettings(), url)
    assert broker.consumed_queues("ingest", url) == ["ingest"]
    assert {broker.queue_for("ingest", url, priority) for priority in (None, 0, 3, 9)} == {"ingest"}


def test_where_limits_are_kept() -> None:
    """In the broker, unless that is RabbitMQ."""
    valkey, rabbit = "redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"
    assert Addresses(broker=valkey).valkey == valkey
    assert Addresses(broker=rabbit, valkey_url=valkey).valkey == valkey
    assert Addresses(broker=rabbit).valkey == "", "a client without a configuration has no limits to keep"


def test_configure_points_the_app_at_a_broker() -> None:
    assert configure(QueueSettings(), "redis://127.0.0.1:1/3").conf.broker_url == "redis://127.0.0.1:1/3"


def test_the_pump_the_canary_and_upkeep_share_no_process_with_what_reads_or_cuts() -> None:
    beside = {name for name, queue in ROUTES.items() if queue == ROUTES["larder.pump"]}
    assert beside == {"larder.pump", *(name for name in ROUTES if name.startswith("larder.upkeep."))}
