"""The queue is configured as the measured rules say, and every task has its queue."""

from __future__ import annotations

import pytest

from workers.queue.app import app, configure
from workers.queue.celeryconfig import QUEUES, ROUTES, celery_settings
from workers.settings.queue import QueueSettings


@pytest.mark.req("ORD-01")
def test_every_task_of_ours_has_a_queue_and_every_route_a_task() -> None:
    app.loader.import_default_modules()
    names = {name for name in app.tasks if name.startswith("larder.")}
    assert names == set(ROUTES)
    assert set(ROUTES.values()) == set(QUEUES)


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


def test_configure_points_the_app_at_a_broker() -> None:
    assert configure(QueueSettings(), "redis://127.0.0.1:1/3").conf.broker_url == "redis://127.0.0.1:1/3"


def test_the_pump_the_canary_and_upkeep_share_no_process_with_what_reads_or_cuts() -> None:
    beside = {name for name, queue in ROUTES.items() if queue == ROUTES["larder.pump"]}
    assert beside == {"larder.pump", *(name for name in ROUTES if name.startswith("larder.upkeep."))}
