"""Commands that run processes: up, down, worker, beat, api, flower, migrate, health."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from typer import Argument, Option

from pipeline.documents.plain_text import plural
from pipeline.errors import ConfigurationError, StoreUnavailable
from workers.cli import run_in_fork
from workers.cli.context import FAILED, CommandContext, RightsOptions, command, resumable
from workers.cli.tables import warn
from workers.processes.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from workers.runtime import Runtime

READY_SECONDS = 120.0


@command(makes=True)
def up(
    context: CommandContext,
    detach: Annotated[bool, Option("--detach", help="Return when everything runs.")] = False,
    no_api: Annotated[bool, Option("--no-api", help="Without the HTTP API.")] = False,
    no_flower: Annotated[bool, Option("--no-flower", help="Without Flower.")] = False,
    show_secrets: Annotated[
        bool, Option("--show-secrets", help="With --json: passwords and keys, too, as in state.json.")
    ] = False,
) -> None:
    """Start servers, workers, beat and Flower on this machine, and look after them."""
    from workers.local import embedded

    settings = context.settings
    if not detach:
        # Before anything is loaded that counts: processes count together, and forks of this one too.
        counted = embedded.private_folder(settings.data) / "metrics"
        counted.mkdir(exist_ok=True)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(counted)
    from workers.local.embedded.locating import addresses, ensure_schema, uses_embedded

    if not uses_embedded(settings):
        addresses(settings)  # half of them are refused before anything is started
    from workers.app.ingestion import sync
    from workers.local import supervisor

    if "supervisor" in supervisor.running(settings.data):
        raise supervisor.refuse_second(settings.data)
    r = settings.rag
    ports = {"flower.port": 0 if no_flower else r.flower.port, "api.port": 0 if no_api else r.api.port}
    for key, chosen in ports.items():
        _refuse_taken(key, chosen)
    if detach:
        try:
            _tell(context, _detach(context, no_api=no_api, no_flower=no_flower), secrets=show_secrets)
        except KeyboardInterrupt:
            print("stopping what has been started", file=sys.stderr)
            supervisor.shut_down(settings.data)
            raise typer.Exit(INTERRUPTED) from None
        return
    with supervisor.single_supervisor(settings.data):  # the supervisor itself, until a signal comes
        from workers.processes.run import refuse_shared_broker
        from workers.queue import broker

        server_addresses = addresses(settings, start=True)
        ensure_schema(settings, server_addresses)
        if uses_embedded(settings):
            broker.disown(server_addresses.broker)  # the data folder is restored as a whole
        else:
            refuse_shared_broker(context.runtime)
        sync.register(context.runtime)
        context.runtime.database.close()
        port = None if no_flower else r.flower.port or embedded.usual_port(settings.data / "flower")
        api = None if no_api else r.api.port or embedded.usual_port(settings.data / "api")
        _load(context.runtime, ("worker", "api")[: 1 + (api is not None)], LOADED_MODULES)
        boss = supervisor.Supervisor(
            settings=settings, addresses=server_addresses, flower_port=port, api_port=api, fork=run_in_fork
        )
        boss.run(
            lambda: _tell(context, supervisor.read_state(settings.data) or {}, secrets=show_secrets),
            lambda: print("stopping: the processes finish their work, within half a minute", file=sys.stderr),
        )
        if boss.ended_by == signal.SIGINT:
            raise typer.Exit(INTERRUPTED)


def _refuse_taken(key: str, port: int) -> None:
    from workers.local import embedded

    if port and embedded.is_taken(port):
        fix = f"stop it, or set {key} to another port, or to 0 for any"
        raise ConfigurationError(f"{key} is {port}, and another program listens there", fix=fix)


def _detach(context: CommandContext, *, no_api: bool, no_flower: bool) -> dict[str, Any]:
    """Start the supervisor as a process of its own; its state once workers listen."""
    from workers.local import embedded, supervisor

    folder = embedded.private_folder(context.settings.data)
    log = folder / "logs" / "supervisor.log"
    command = [*supervisor.LARDER, "up", "--data", str(folder)]
    command += ["--config", str(context.settings.path)] if context.settings.path else []
    command += ["--no-api"] * no_api + ["--no-flower"] * no_flower
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")  # of this start alone, and appended to: it may be emptied when it has grown
    process = embedded.start_detached(command, log, cwd=context.settings.folder)
    state: dict[str, Any] = {}
    end, missing = time.monotonic() + READY_SECONDS, [""]
    while missing and time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
        state = supervisor.read_state(folder) or {}
        alive = supervisor.living_processes(state)
        if "database_url" in state and alive.get("supervisor") == process.pid:
            missing = _missing(folder, state, alive, api=not no_api)
            # A process that ends again and again is not waited for.
            entries: Any = state["processes"]
            if any(p["name"] in missing and p["failures"] > supervisor.FREE_RESTARTS for p in entries):
                break
    if process.poll() is None and missing != [""]:
        if missing:
            names = ", ".join(missing)
            message = f"everything runs but {names}, which did not come up"
            raise StoreUnavailable(
                message, fix=f"see {log.with_name(missing[0])}.log; `larder down` stops the rest"
            )
        return state
    if supervisor.running(folder).get("supervisor", process.pid) != process.pid:
        raise supervisor.refuse_second(folder)
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise StoreUnavailable("it did not start: " + " / ".join(tail), fix=f"see {log.parent}")


def _missing(folder: Path, state: dict[str, Any], alive: dict[str, int], *, api: bool) -> list[str]:
    """Processes that do not live, or do not listen yet."""
    from workers.local.embedded import is_taken
    from workers.monitoring import liveness
    from workers.queue.celeryconfig import QUEUES

    ages = liveness.ages(folder / "heartbeat")
    awaited = [f"worker-{q}" for q in QUEUES] + ["api"] * api
    missing = [name for name in awaited if ages.get(name, 99) >= liveness.DEAF_SECONDS or name not in alive]
    missing += [name for name in ("beat",) if name not in alive]
    flower = urlsplit(state["flower_url"] or "").port
    return missing + ["flower"] * (flower is not None and not is_taken(flower))


def _tell(context: CommandContext, state: dict[str, Any], *, secrets: bool) -> None:
    from workers.app import reindex
    from workers.local.supervisor import without_secrets_of

    lines = [
        f"running:  {', '.join(p['name'] for p in state.get('processes', []))}",
        f"database  {state['database_url'].rsplit('@', 1)[-1]}",
    ]
    if state.get("api_url"):
        lines.append(f"api       {state['api_url']}  (larder token makes a token)")
    if state.get("flower_url"):
        lines.append(
            f"flower    {state['flower_url']}  (user {state['flower_user'] or 'of its OAuth provider'})"
        )
    lines.append(f"state     {context.settings.data / 'state.json'}  (addresses and passwords)")
    if notice := reindex.mismatch_notice(context.runtime):
        lines.append(f"model     {notice}")
    context.answer(state if secrets else without_secrets_of(state), *lines)


@command()
def down(context: CommandContext) -> None:
    """Stop everything that `up` started, and the embedded servers; what they hold stays.

    With --data no configuration is read: one that is wrong must not keep servers running.
    """
    from workers.local import supervisor

    try:
        data = context.data.resolve() if context.data else context.settings.data
    except ConfigurationError as error:
        fix = "or stop what runs without it: larder down --data FOLDER (.larder, if you named none)"
        raise ConfigurationError(error.message, fix="\n  ".join(filter(None, (error.fix, fix)))) from None
    stopped = supervisor.shut_down(data)
    count = plural(len(stopped), "process", "processes")
    message = f"stopped {count}" if stopped else f"nothing runs with {data}"
    context.answer({"success": True, "stopped": stopped}, message)


RELOAD_SECONDS = 90.0
"""Seconds in which one process ends what it is at and begins anew, several times over."""


@command()
def reload(context: CommandContext) -> None:
    """Have a running installation take over what was changed in the configuration; its processes begin anew.

    Nothing is lost: each ends what it is at. Those that answer people come last, one after the other.
    """
    from workers.app.health.supervised import FIXED, differing
    from workers.monitoring import liveness
    from workers.settings.rendering import in_force

    file = in_force(context.settings)
    data, changed = context.settings.data, differing(context.settings, file)
    boss = liveness.running(data).get("supervisor")
    if boss is None:
        from workers.local.embedded.locating import uses_embedded

        fix = "larder up --detach"
        if not uses_embedded(context.settings):
            # Another set of processes would begin beside those that somebody else looks after.
            fix = "start each process again that was started by hand or in a container, and it reads the file"
        raise ConfigurationError(f"`larder up` runs nothing with {data}", fix=fix)
    if fixed := [line for line in changed if line.startswith(FIXED)]:
        message = f"this cannot be taken over while it runs: {'; '.join(fixed)}"
        raise ConfigurationError(message, fix="larder down, then larder up --detach")
    if not changed:
        context.answer(
            {"success": True, "changed": []}, "nothing to do: the running processes have this configuration"
        )
        return
    os.kill(boss, signal.SIGHUP)
    begun, last, outdated = time.monotonic(), time.monotonic(), None
    with resumable(goes_on=True):
        while outdated != []:
            time.sleep(0.2)
            state = liveness.read_state(data) or {}
            now: Any = None if differing(context.settings, file) else state.get("outdated")
            if now != outdated:
                outdated, last = now, time.monotonic()
                warn(*([f"restarting {', '.join(outdated)}"] if outdated else []))
            if (
                "supervisor" not in liveness.living_processes(state)
                or time.monotonic() - last > RELOAD_SECONDS
            ):
                log = data / "logs" / f"{outdated[0] if outdated else 'supervisor'}.log"
                message = (
                    f"{outdated[0] if outdated else 'the supervisor'} has not taken over the configuration"
                )
                raise StoreUnavailable(message, fix=f"see {log}; correct the file, then larder reload")
    before = (line.replace("(running with ", "(before: ") for line in changed)
    lines = [f"taken over in {time.monotonic() - begun:.0f} s:", *before]
    context.answer({"success": True, "changed": changed}, *lines)


def _log_as_configured(context: CommandContext) -> None:
    from workers.monitoring import logs

    logs.configure_from(context.settings)


@command(answer_timeout=None, without={"as_json"})
def worker(
    context: CommandContext,
    queue: Annotated[str, Argument(help="control, ingest, embed, enrich or mirror.")],
    concurrency: Annotated[int | None, Option(min=1, help="Processes. [default: queue.concurrency]")] = None,
) -> None:
    """Run one worker in the foreground, for containers and the supervisor."""
    from workers.app import reindex
    from workers.processes import run as processes
    from workers.queue.celeryconfig import MIRROR, QUEUES

    if queue not in (*QUEUES, MIRROR):
        names = ", ".join((*QUEUES, MIRROR))
        raise ConfigurationError(f"there is no queue {queue!r}", fix=f"use one of {names}")
    _log_as_configured(context)
    if notice := reindex.mismatch_notice(context.runtime):
        import structlog

        structlog.get_logger("larder").warning(notice)
    processes.run_worker(context.runtime, queue, concurrency)


LOADED_MODULES = ("workers.processes.run", "workers.tasks")
"""Modules that each fork of the supervisor would load by itself."""


def _load(runtime: Runtime, commands: Iterable[str], modules: Iterable[str]) -> None:
    """Load what these commands need, and the model, for all forks of this process."""
    from workers.cli.commands import loaded
    from workers.runtime import preload

    for name in commands:
        loaded(name)
    for module in modules:
        import_module(module)
    preload(runtime)


@command(answer_timeout=None, without={"as_json"})
def lend(context: CommandContext, queues: Annotated[list[str], Argument()]) -> None:
    """Run workers and beat for another command, which holds the other end of our input."""
    from workers.local import supervisor
    from workers.local.embedded.locating import addresses

    _load(context.runtime, ("worker", "beat"), LOADED_MODULES)
    settings = context.settings
    boss = supervisor.Supervisor(
        settings=settings, addresses=addresses(settings), queues=queues, lends=True, fork=run_in_fork
    )

    def end_with_input() -> None:
        os.read(0, 1)  # not by `sys.stdin`, whose lock a fork would find held
        boss.stopping.set()

    threading.Thread(target=end_with_input, daemon=True).start()
    context.runtime.database.close()
    boss.run()


@command(answer_timeout=None, without={"as_json"})
def beat(context: CommandContext) -> None:
    """Run the clock in the foreground; one per installation is enough, two do no harm."""
    from workers.processes import run as processes

    _log_as_configured(context)
    processes.run_beat(context.runtime)


@command(answer_timeout=None, without={"as_json"})
def api(
    context: CommandContext,
    port: Annotated[
        int | None, Option(min=1, max=65535, help="TCP port. [default: api.port, else 8000]")
    ] = None,
    host: Annotated[str | None, Option(help="Address to listen on. [default: api.host]")] = None,
) -> None:
    """Run the HTTP API in the foreground."""
    from workers.processes import run as processes

    _log_as_configured(context)
    s = context.settings.rag.api
    port = port or s.port or 8000
    _refuse_taken("api.port", port)
    processes.run_api(context.runtime, host or s.host, port)


@command(looks=True)
def token(
    context: CommandContext,
    rights: RightsOptions,
    user: Annotated[str, Option(help="Whom it names.")] = "developer",
    permission: Annotated[
        list[str] | None, Option(help="read, write, operate, admin; may be repeated. [default: read]")
    ] = None,
    tenant: Annotated[str | None, Option(help="[default: that of the configuration]")] = None,
    hours: Annotated[float, Option(min=0.01, max=8760, help="How long it holds.")] = 12,
) -> None:
    """Make a token for the HTTP API, for development: whoever has it is let in as this user."""
    document = context.ask(
        "token",
        {
            "user": user,
            "rights": vars(rights),
            "permissions": permission or ["read"],
            "tenant": tenant,
            "hours": hours,
        },
    )
    context.answer(document, document["token"])


@command(answer_timeout=None, without={"as_json"})
def mcp(
    context: CommandContext,
    rights: RightsOptions,
    user: Annotated[str, Option(help="Whom the agent asks for.")] = "agent",
) -> None:
    """Serve an agent on standard input and output, by the Model Context Protocol; it only reads."""
    from workers.app import tokens
    from workers.processes import run as processes

    _log_as_configured(context)
    caller = tokens.caller_of(vars(rights), user, context.settings.tenant)
    processes.run_agents(context.runtime, caller)


@command(answer_timeout=None, without={"as_json"})
def flower(
    context: CommandContext,
    port: Annotated[
        int | None, Option(min=1, max=65535, help="TCP port. [default: flower.port, else 5555]")
    ] = None,
    address: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    open_: Annotated[
        bool, Option("--open", help="Only print address, user and password of the Flower that runs.")
    ] = False,
) -> None:
    """Run Flower in the foreground: read-only, with basic auth.

    User and password come from LARDER_FLOWER_AUTH (user:password), else from the data folder.
    """
    from workers.monitoring import liveness

    if open_:
        context.looks = True
        from workers.local import supervisor

        liveness.refuse_foreign_state(context.settings.data)
        state = supervisor.read_state(context.settings.data) or {}
        if "flower" not in supervisor.living_processes(state):
            message = f"no Flower of yours runs with {context.settings.data}"
            raise ConfigurationError(message, fix="larder up --detach, without --no-flower")
        names = {"address": "url", "user": "user", "password": "password"}
        values = {label: state[f"flower_{name}"] for label, name in names.items()}
        context.answer(None, *(f"{label:<9} {value}" for label, value in values.items() if value))
        return
    from workers.processes import run as processes

    _log_as_configured(context)
    port = port or context.settings.rag.flower.port or 5555
    _refuse_taken("flower.port", port)
    processes.run_flower(context.runtime, port, address, os.environ)


@command()
def migrate(
    context: CommandContext,
    to: Annotated[
        str | None, Option("--to", help="Back to this older revision, before an older version runs.")
    ] = None,
) -> None:
    """Bring the database to the schema of this version; needs the owner's address."""
    from workers.local.embedded.locating import addresses
    from workers.local.embedded.locating import migrate as run

    owner = context.settings.rag.storage.database.admin_url
    server_addresses = addresses(context.settings, needed=() if owner else ("LARDER_DATABASE_URL",))
    revision = run(context.settings, server_addresses, to=to)
    context.answer({"success": True, "revision": revision}, f"schema is at revision {revision}")


@command()
def health(
    context: CommandContext, folder: Annotated[Path | None, Option(help="Where heartbeat files lie.")] = None
) -> None:
    """Exit 0 if the processes of this container or machine gave a sign of life within 30 seconds."""
    from workers.monitoring import liveness

    ages = liveness.ages(folder or liveness.heartbeat_folder(context.settings.data, os.environ))
    ok = bool(ages) and all(age <= liveness.DEAF_SECONDS for age in ages.values())
    lines = "\n".join(f"{name}: {age:.0f} s" for name, age in ages.items()) or "no heartbeat files"
    context.answer({"ok": ok, "ages": ages}, lines, code=0 if ok else FAILED)
