"""Queues, routes, limits and schedule as Celery settings. Reasons: docs/design.md."""

from __future__ import annotations

from typing import Any

from workers.queue import broker, rabbit
from workers.queue.broker import SECONDS
from workers.settings.queue import QueueSettings

QUEUES = ("control", "ingest", "embed", "enrich")
"""Queues; each has its own worker, so that no kind of work waits for another."""

MIRROR = "mirror"
"""Queue of vector stores beside PostgreSQL; it has a worker where one is configured."""

INDEXING = ("control", "ingest", "embed")
"""Queues needed for a sync."""

ENRICHING = ("control", "enrich")
"""Queues needed for answers; the pump resends lost messages."""

ROUTES = {
    "larder.pump": "control",
    "larder.upkeep.statistics": "control",
    "larder.upkeep.build": "control",
    "larder.upkeep.trim": "control",
    "larder.upkeep.canary": "control",
    "larder.sync": "ingest",  # a source or file that breaks its reader must not affect the pump
    "larder.chunk": "ingest",
    "larder.upsert": "ingest",
    "larder.embed": "embed",
    "larder.fill": "embed",
    "larder.enrich": "enrich",
    "larder.ask": "enrich",
    "larder.embedding.create": "enrich",
    "larder.vector.store": "enrich",
    "larder.vector.query": "enrich",
    "larder.stories.store": "enrich",
    "larder.stories.search": "enrich",
    "larder.mirror": MIRROR,
}


def _rabbit_settings(url: str, seconds: float, *, send_only: bool) -> dict[str, Any]:
    """Settings for RabbitMQ; empty with Valkey."""
    if not rabbit.is_rabbit(url):
        return {}
    return {
        "task_queues": [
            rabbit.queue_of(name) for queue in (*QUEUES, MIRROR) for name in broker.lists_of(queue, url)
        ],
        "broker_transport_options": rabbit.transport_options(seconds),
        # A process that only sends would miss heartbeats; it gets a confirmation for each message instead.
        "broker_heartbeat": 0 if send_only else 30,
        # The prefetch count of a quorum queue is set once per consumer.
        "worker_enable_prefetch_count_reduction": False,
    }


def celery_settings(queue: QueueSettings, broker_url: str, *, send_only: bool = False) -> dict[str, Any]:
    """Settings for `app.conf`; with `send_only`, a silent broker is given up after `broker.SECONDS`."""
    tick, seconds = queue.tick_seconds, SECONDS if send_only else 30
    return {
        "broker_url": rabbit.address_of(broker_url),
        # Without these options Kombu would use no TLS for a rediss:// address.
        "broker_use_ssl": broker.tls_of(broker_url),
        "task_serializer": "json",
        "accept_content": ["json"],
        "result_serializer": "json",
        "task_ignore_result": True,  # results live in PostgreSQL
        "task_acks_late": True,
        "task_reject_on_worker_lost": False,  # the ledger retries, with a bound
        "worker_prefetch_multiplier": 1,
        "worker_proc_alive_timeout": 60.0,  # a child of the enrich worker loads its model before it is up
        "task_soft_time_limit": queue.soft_time_limit,
        "task_time_limit": queue.time_limit,
        "broker_connection_retry_on_startup": True,
        "broker_transport_options": {
            "visibility_timeout": queue.visibility_timeout,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "socket_keepalive": True,
            "health_check_interval": 25,
        },
        # The pump repeats a failed publish; waiting here would block a worker.
        "task_publish_retry_policy": {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
        "worker_soft_shutdown_timeout": 30,
        "worker_enable_soft_shutdown_on_idle": False,  # no task here waits for a countdown in memory
        "worker_max_tasks_per_child": 1000,
        "worker_max_memory_per_child": 1_000_000,  # KiB
        "worker_send_task_events": True,
        "task_send_sent_event": True,
        "task_track_started": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "timezone": "UTC",
        "enable_utc": True,
        "task_default_queue": "control",
        "task_routes": {name: {"queue": q} for name, q in ROUTES.items()},
        # Beat only ticks; due work is in PostgreSQL, so that missed and doubled ticks do no harm. Ticks do not expire,
        # since a worker's clock may differ from beat's; `every` lets the worker skip late ones.
        "beat_schedule": {
            "tick": {"task": "larder.pump", "schedule": tick, "kwargs": {"every": tick}},
            # Runs update word statistics when they end; this covers other documents, as of replayed dead letters.
            "statistics": {
                "task": "larder.upkeep.statistics",
                "schedule": 300.0,
                "kwargs": {"every": 300.0},
            },
            "trim": {"task": "larder.upkeep.trim", "schedule": 3600.0, "kwargs": {"every": 3600.0}},
            **{
                f"canary-{name}": {
                    "task": "larder.upkeep.canary",
                    "schedule": 60.0,
                    "args": [name],
                    "options": {"queue": name},
                }
                for name in QUEUES
            },
        },
        "beat_scheduler": "workers.processes.heartbeat:TickScheduler",
        "beat_max_loop_interval": min(5.0, tick),
        **_rabbit_settings(broker_url, seconds, send_only=send_only),
    }
