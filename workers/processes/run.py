"""Running one process of the fleet: a worker, the beat, the API, Flower."""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import urlsplit

import psutil
import structlog
from celery.apps import worker as celery_worker
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.signals import (
    setup_logging,
    task_failure,
    task_postrun,
    task_prerun,
    worker_process_init,
    worker_process_shutdown,
)
from celery.utils.log import mlevel
from celery.utils.nodenames import default_nodename, host_format
from celery.worker import state

import connectors
from connectors.sections import secret_value
from pipeline.access import Caller
from pipeline.database.engine import database_id
from pipeline.errors import ConfigurationError, LarderError, StoreError
from workers import runtime
from workers.app.enrichment import job
from workers.app.ingestion import sync
from workers.local import embedded
from workers.local.local_socket import STARTED_AS
from workers.local.supervisor import flower_login
from workers.monitoring import logs, metrics, tracing
from workers.monitoring.liveness import heartbeat_folder, prepare_folder
from workers.processes.broker_outage import LedgerPoller
from workers.processes.heartbeat import Heartbeat, Listening
from workers.queue import broker
from workers.queue.app import app, configure, install_transport
from workers.queue.celeryconfig import QUEUES, ROUTES
from workers.runtime import Runtime
from workers.settings.models import OAuthSettings

PATIENT = {"ingest": 5, "embed": 10, "mirror": 5}
"""Queues that nobody waits for, and how nice their workers are: where cores are short, they leave them to Step 4 first,
and what is embedded to what is cut, since that is found by its words at once."""
BYTES_OF = {"hashing": 150e6, "minilm": 300e6, "transformers": 1200e6}
"""Provider on this machine -> bytes of a process that embeds with it."""

logger = logging.getLogger(__name__)


class _UnsharedPool(AsynPool):  # type: ignore[misc]  # untyped
    # Celery would empty the pipe of each process that may be in the midst of a message: two readers of one pipe tear
    # it, which is an error here or a wait for bytes that the other has taken.
    _help_stuff_finish = staticmethod(lambda _processes: None)


class Pool(TaskPool):  # type: ignore[misc]  # untyped
    """Celery's processes, which it tells to end without taking away what they are reading."""

    Pool = _UnsharedPool


def _after_fork(**_: Any) -> None:
    current = runtime.current()
    current.forget_connections()
    if current.metrics_folder:
        metrics.compact(current.metrics_folder)  # it may come in the place of another
    configure(current.rag.queue, current.addresses.broker, send_only=True)  # its parent consumes


def _prepare(runtime: Runtime) -> None:
    """Prepare what worker and beat share: the heartbeat folder, and logs that Celery leaves alone."""
    runtime.heartbeat_folder = heartbeat_folder(runtime.settings.data, os.environ)
    prepare_folder(runtime.heartbeat_folder)
    if shared := os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        runtime.metrics_folder = Path(shared)
    setup_logging.connect(lambda **_: logs.configure_from(runtime.settings), weak=False)


def _warm(**_: Any) -> None:
    job.warm(runtime.current())
    LedgerPoller(runtime.current()).start()


_begun: dict[str, float] = {}
"""Id of a task that this process is at -> when it began."""


def _task_begins(task_id: str, task: Any, args: Any, **_: Any) -> None:
    _begun[task_id] = time.monotonic()
    structlog.contextvars.bind_contextvars(**logs.ids_of(task, task_id, args))


def _task_ended(task_id: str, task: Any, **_: Any) -> None:
    structlog.contextvars.clear_contextvars()
    metrics.TASKS.labels(task.name).observe(time.monotonic() - _begun.pop(task_id, time.monotonic()))
    if (queue := ROUTES.get(task.name)) in PATIENT:
        broker.promote_lower_priority(runtime.current().addresses.broker, queue)


def _task_failed(sender: Any, exception: BaseException, **_: Any) -> None:
    # A lost child is reported by the first process of the worker.
    metrics.TASK_FAILURES.labels(sender.name, type(exception).__name__).inc()


def _observe(runtime: Runtime) -> None:
    """Count and name tasks, and offer the counts of this worker if it is to do so itself."""
    task_prerun.connect(_task_begins, weak=False)
    task_postrun.connect(_task_ended, weak=False)
    task_failure.connect(_task_failed, weak=False)
    worker_process_shutdown.connect(tracing.flush, weak=False)
    options = runtime.rag.monitoring.metrics
    if options.enabled and options.port:
        try:
            metrics.serve(options.host, options.port, secret_value(options.token), runtime.metrics_folder)
        except OSError as error:
            # Several workers on one machine: the first has the port, and they count together.
            logger.warning("port %d for metrics cannot be had: %s", options.port, error.strerror)


def _processes(runtime: Runtime, queue: str) -> int:
    """Number of processes: as configured, `auto` by the cores and the memory of this machine, or of the container."""
    configured: int | str = getattr(runtime.rag.queue.concurrency, queue)
    if isinstance(configured, int):
        return configured
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    free = float(psutil.virtual_memory().available)
    if quota := _limit("cpu.max"):
        cores = min(cores, max(1, round(quota[0] / quota[1])))
    if limit := _limit("memory.max"):
        free = min(free, limit[0] - psutil.Process().memory_info().rss)
    return embedders(runtime.rag.embedding.provider, cores, free)


def embedders(provider: str, cores: int, free: float) -> int:
    """Number of embedding processes: one per core that `free` bytes allow, and one for a service, which has limits."""
    return max(1, min(cores, int(free // BYTES_OF[provider]))) if provider in BYTES_OF else 1


def _limit(name: str) -> list[float] | None:
    """The numbers of a limit of the container, if there is one."""
    try:
        words = Path("/sys/fs/cgroup", name).read_text(encoding="utf-8").split()
    except OSError:
        return None
    return None if words[0] == "max" else [float(number) for number in words]


def run_worker(runtime: Runtime, queue: str, concurrency: int | None) -> None:
    """Serve one queue until a signal ends it."""
    refuse_shared_broker(runtime)
    _prepare(runtime)
    _observe(runtime)
    os.nice(PATIENT.get(queue, 0))
    if queue == "control":
        # Without `larder up`, as in containers, nobody else tells the ledger what is configured.
        sync.register(runtime)
    runtime.database.close()
    if queue == "ingest":
        for source in runtime.rag.sources:
            # Before the fork: clients of services are large, and children share them.
            connectors.source_class(source.type)
    worker_process_init.connect(_after_fork, weak=False)
    if queue == "enrich":
        worker_process_init.connect(_warm, weak=False)  # somebody waits for its first answer already
    install_transport()
    # Celery writes its last line past all loggers.
    celery_worker.safe_say = lambda text, *_: logs.write_line(text)
    if queue == "control":
        # The background threads look at everything, and no other worker does.
        from workers.processes.background import Background

        app.steps["worker"].add(Background)
    app.steps["worker"].add(Heartbeat)
    app.steps["consumer"].add(Listening)
    # Started here and not by Celery's command line, which imports every plugin, Flower among them, into each worker.
    serving = app.Worker(
        queues=broker.consumed_queues(queue, runtime.addresses.broker),
        concurrency=concurrency or _processes(runtime, queue),
        pool=Pool,
        hostname=host_format(default_nodename(f"worker-{queue}@%h")),
        loglevel=mlevel(runtime.rag.monitoring.logging.level),
        without_mingle=True,
        without_gossip=True,
        quiet=True,  # its banner is no line of JSON
    )
    # A worker that is told to end while it starts is stopped by an error of Celery's, which would count as a failure.
    logging.getLogger("celery.worker").addFilter(
        lambda record: record.levelno < logging.CRITICAL or not state.should_terminate
    )
    _freeze()
    serving.start()
    sys.exit(0 if state.should_terminate else serving.exitcode)


def refuse_shared_broker(runtime: Runtime) -> None:
    """Refuse a broker whose messages workers of another database take; a server that is away is no reason to refuse.

    Raises:
        ConfigurationError: some do.
    """
    with suppress(StoreError), runtime.database.control() as connection:
        if other := broker.claim(runtime.addresses.broker, database_id(connection)):
            message, fix = broker.shared_with(other)
            raise ConfigurationError(message, fix=fix)


def _freeze() -> None:
    """Exclude what is loaded from garbage collection: its pages stay shared, and later objects are short-lived."""
    gc.collect()
    gc.freeze()


def run_beat(runtime: Runtime) -> None:
    """Run the clock until a signal ends it."""
    _prepare(runtime)
    configure(runtime.rag.queue, runtime.addresses.broker, send_only=True)
    ticking = app.Beat(loglevel=runtime.rag.monitoring.logging.level, quiet=True)
    _freeze()
    ticking.run()


def run_api(runtime: Runtime, host: str, port: int) -> None:
    """Serve HTTP until a signal ends it; requests under way are finished then."""
    import uvicorn  # by this process alone

    from workers.api import local
    from workers.api.app import Protocol, create_app

    _prepare(runtime)
    if started_as := os.environ.get(STARTED_AS):
        local.start(runtime, started_as)
    uvicorn.run(
        create_app(runtime),
        host=host,
        port=port,
        log_config=None,
        access_log=False,  # it would tell what is asked for in addresses
        server_header=False,
        timeout_graceful_shutdown=20,
        http=Protocol,
        h11_max_incomplete_event_size=64_000,
    )


def run_agents(runtime: Runtime, caller: Caller) -> None:
    """Serve agents on standard input and output, as this caller."""
    from workers.api import agents  # by this process alone

    job.warm(runtime)
    agents.server(runtime, lambda _context: caller).run("stdio")


def run_flower(runtime: Runtime, port: int, address: str, environ: Mapping[str, str]) -> None:
    """Run Flower until a signal ends it: read-only, behind a password or a provider of OAuth."""
    # By the environment: an argument would show secrets in the process list.
    if runtime.rag.flower.oauth.provider:
        os.environ.update(_oauth(runtime.rag.flower.oauth))
    else:
        os.environ["FLOWER_BASIC_AUTH"] = flower_login(environ, runtime.settings.data)
    prefix = runtime.rag.flower.url_prefix
    hosts = {"localhost", "127.0.0.1", "::1", address, *runtime.rag.flower.hosts}
    _guard_flower(hosts, prefix.strip("/"), runtime.rag.flower.unprotected)
    folder = runtime.settings.data
    with suppress(LarderError, OSError):  # a container's disk may be read-only
        embedded.private_folder(folder)
    keeps = "true" if os.access(folder, os.W_OK) else "false"
    options = ["--read_only=true", "--inspect_timeout=5000", f"--persistent={keeps}"]
    # Ids of documents instead of tasks.
    options += ["--tasks_columns=name,state,received,runtime,worker,args"]
    options += [f"--db={folder / 'flower.db'}", "--state_save_interval=60000"]
    # Each container that is replaced was a worker of another name.
    options += ["--max_tasks=10000", "--purge_offline_workers=3600"]
    if prefix:
        options.append(f"--url_prefix={prefix}")
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        app.start(["flower", f"--address={address}", f"--port={port}", *options])
    except (SystemExit, KeyboardInterrupt) as ended:
        if ended.args not in ((), (0,), (None,)):
            raise
    # Python would wait for its threads first, and those look for a broker that may be away for long.
    atexit._run_exitfuncs()  # noqa: SLF001 (Flower keeps its tasks by one)
    os._exit(0)


def _interrupt_once(_signal: int, _frame: object) -> NoReturn:
    """Interrupt once: another signal, as `timeout` sends, would break off the end of Flower with a traceback."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


_PROVIDERS = {
    "google": ("GoogleAuth2", ""),
    "github": ("Github", "FLOWER_GITHUB_OAUTH_DOMAIN"),
    "gitlab": ("GitLab", "FLOWER_GITLAB_OAUTH_DOMAIN"),
    "okta": ("Okta", "FLOWER_OAUTH2_OKTA_BASE_URL"),
}
"""Provider -> what Flower's class for it begins with, and the variable of its address."""


def _oauth(options: OAuthSettings) -> dict[str, str]:
    """Variables that Flower reads from its environment."""
    kind, variable = _PROVIDERS[options.provider or ""]
    server = str(options.server or "").rstrip("/")
    return {
        "FLOWER_AUTH": "|".join(options.emails).replace("*", ".*"),
        "FLOWER_AUTH_PROVIDER": f"flower.views.auth.{kind}LoginHandler",
        "FLOWER_OAUTH2_KEY": str(options.key),
        "FLOWER_OAUTH2_SECRET": secret_value(options.secret),
        "FLOWER_OAUTH2_REDIRECT_URI": str(options.redirect_url),
        **({variable: server if options.provider == "okta" else urlsplit(server).netloc} if server else {}),
    }


def _guard_flower(hosts: Collection[str], prefix: str, unprotected: Collection[str]) -> None:
    """Guard the pages of Flower by the password or the provider's login, and answer by these host names only.

    Flower itself gives its metrics and its health to anybody. A page of another site that has its own name resolved
    to this machine would read them in a visitor's browser.
    """
    from flower.api import BaseApiHandler  # by the process of Flower alone
    from flower.utils.broker import RabbitMQ
    from flower.views import BaseHandler
    from flower.views.auth import OAuth2StateMixin

    def guarded(prepare: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def checked(handler: Any) -> Any:
            if handler.request.host_name.strip("[]") not in hosts:
                return handler.send_error(421)  # Misdirected Request
            if prefix and handler.request.path == f"/{prefix}":
                return handler.redirect(f"/{prefix}/")  # where logins lead back to
            if handler.request.path.removeprefix(f"/{prefix}").strip("/") in unprotected:
                return prepare(handler)
            # Raises for whoever has not the password.
            if handler.get_current_user() or isinstance(handler, OAuth2StateMixin):
                return prepare(handler)
            return (
                handler.send_error(401)
                if "/api/" in handler.request.path
                else handler.redirect(handler.get_login_url())
            )

        return checked

    for kind in (BaseApiHandler, BaseHandler):
        kind.prepare = guarded(kind.prepare)
    # Flower itself knows the queues of the workers that answered it in time.
    BaseHandler.get_active_queue_names = lambda _handler: sorted(QUEUES)
    # Flower asks a plugin of RabbitMQ for this, which need not be there.
    RabbitMQ.queues = _queue_lengths


def _queue_lengths(_broker: Any, names: Collection[str]) -> Awaitable[list[dict[str, object]]]:
    """Queues as Flower shows them; none while the broker is away."""

    def read_lengths() -> list[dict[str, object]]:
        lengths = broker.lengths(runtime.current().addresses.broker, sorted(names)) or {}
        return [{"name": name, "messages": count} for name, count in lengths.items()]

    return asyncio.to_thread(read_lengths)
