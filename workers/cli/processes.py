"""Commands that run processes: up, down, worker, beat, flower, migrate, health."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import structlog
import typer
from rich.markup import escape

from pipeline.errors import StoreUnavailable
from workers.cli import INTERRUPTED
from workers.cli.door import FAILED, ConfigOption, DataOption, Door, JsonOption, opened
from workers.processes import liveness

READY_SECONDS = 120.0


def up(
    detach: Annotated[bool, typer.Option("--detach", help="Return when everything runs.")] = False,
    no_api: Annotated[bool, typer.Option("--no-api", help="Without the HTTP API.")] = False,
    no_flower: Annotated[bool, typer.Option("--no-flower", help="Without Flower.")] = False,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start servers, workers, beat and Flower on this machine, and look after them."""
    with opened(config, as_json, data) as door:
        from workers.processes import supervisor

        folder = door.settings.data
        if "supervisor" in supervisor.running(folder):
            raise supervisor.already(folder)
        if detach:
            try:
                _tell(door, _detach(door, no_flower=no_flower))
            except KeyboardInterrupt:
                print("stopping what has been started", file=sys.stderr)
                supervisor.shut_down(folder)
                raise typer.Exit(INTERRUPTED) from None
            return
        with supervisor.alone(folder):
            _stay(door, no_flower=no_flower, no_api=no_api)


def _stay(door: Door, *, no_flower: bool, no_api: bool) -> None:
    """Be the supervisor until a signal comes."""
    del no_api  # there is no API to leave out yet; the option is part of the contract
    from workers import embedded
    from workers.control import sync
    from workers.embedded.locating import addresses, migrate
    from workers.processes import supervisor

    where = addresses(door.settings)
    migrate(door.settings, where)
    sync.register(door.parts)
    door.parts.database.close()
    port = None if no_flower else door.settings.rag.flower.port or embedded.free_port()
    boss = supervisor.Supervisor(settings=door.settings, where=where, flower_port=port)
    boss.run(
        lambda: _tell(door, supervisor.read_state(door.settings.data) or {}),
        lambda: print("stopping: within half a minute all have ended what they are at", file=sys.stderr),
    )
    if boss.ended_by == signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


def _detach(door: Door, *, no_flower: bool) -> dict[str, Any]:
    """Start the supervisor as a process of its own; its state once workers listen."""
    from workers import embedded
    from workers.processes import supervisor
    from workers.queue.celeryconfig import QUEUES

    folder = embedded.made(door.settings.data)
    log = folder / "logs" / "supervisor.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "workers.cli", "up", "--data", str(folder)]
    command += ["--config", str(door.settings.path)] if door.settings.path else []
    command += ["--no-flower"] if no_flower else []
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - our own command
            command,
            cwd=door.settings.folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    end = time.monotonic() + READY_SECONDS
    while time.monotonic() < end:
        state = supervisor.read_state(folder)
        ages = liveness.ages(folder / "heartbeat")
        mine = supervisor.running(folder).get("supervisor") == process.pid
        if mine and state and all(ages.get(f"worker-{q}", 99) < liveness.DEAF_SECONDS for q in QUEUES):
            return dict(state)
        if process.poll() is not None:
            break
        time.sleep(0.1)
    if supervisor.running(folder).get("supervisor", process.pid) != process.pid:
        raise supervisor.already(folder)
    tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
    raise StoreUnavailable("it did not start: " + " / ".join(tail), fix=f"see {log.parent}")


def _tell(door: Door, state: dict[str, Any]) -> None:
    from workers.admin import reindex_status

    if door.as_json:
        door.answer(state)
        return
    names = ", ".join(p["name"] for p in state.get("processes", []))
    door.console.print(f"[green]running[/]: {names}")
    door.console.print(f"database  {state['database_url'].rsplit('@', 1)[-1]}")
    if state.get("flower_url"):
        door.console.print(f"flower    {state['flower_url']}  (user {state['flower_user']})")
    door.console.print(f"state     {door.settings.data / 'state.json'}  (addresses and passwords)")
    said = reindex_status.noticed(door.parts)
    if said:
        door.console.print(f"[yellow]model[/]     {escape(said)}", soft_wrap=True)


def down(config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Stop everything that `up` started, and the embedded servers; what they hold stays.

    With --data no configuration is read: one that is wrong must not keep servers running.
    """
    with opened(config, as_json, data) as door:
        from workers.processes import supervisor

        stopped = supervisor.shut_down(data.resolve() if data else door.settings.data)
        door.answer({"success": True, "stopped": stopped}, text=f"stopped {len(stopped)} processes")


def worker(
    queue: Annotated[str, typer.Argument(help="control, ingest, embed or enrich.")],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Processes. [default: queue.concurrency]")
    ] = None,
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Run one worker in the foreground, for containers and the supervisor."""
    with opened(config, as_json=False, data=data, patience=None) as door:
        from workers.admin import reindex_status
        from workers.processes import logs
        from workers.processes import run as processes

        known = processes.known_queue(queue)
        logs.configure(door.settings.rag.monitoring.logging.level)
        said = reindex_status.noticed(door.parts)
        if said:
            structlog.get_logger("larder").warning(said)
        processes.run_worker(door.parts, known, concurrency)


def beat(config: ConfigOption = None, data: DataOption = None) -> None:
    """Run the clock in the foreground; one per installation is enough, two do no harm."""
    with opened(config, as_json=False, data=data, patience=None) as door:
        from workers.processes import logs
        from workers.processes import run as processes

        logs.configure(door.settings.rag.monitoring.logging.level)
        processes.run_beat(door.parts)


def flower(
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="TCP port. [default: flower.port, else 5555]")
    ] = None,
    address: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    config: ConfigOption = None,
    data: DataOption = None,
) -> None:
    """Run Flower in the foreground: read-only, with basic auth.

    User and password come from LARDER_FLOWER_AUTH (user:password), else from the data folder.
    """
    with opened(config, as_json=False, data=data, patience=None) as door:
        from workers.processes import logs
        from workers.processes import run as processes

        logs.configure(door.settings.rag.monitoring.logging.level)
        processes.run_flower(door.parts, port or door.settings.rag.flower.port or 5555, address, os.environ)


def migrate(config: ConfigOption = None, data: DataOption = None, as_json: JsonOption = False) -> None:
    """Bring the database to the schema of this version; needs the owner's address."""
    with opened(config, as_json, data) as door:
        from workers.embedded.locating import addresses
        from workers.embedded.locating import migrate as run

        revision = run(door.settings, addresses(door.settings))
        door.answer({"success": True, "revision": revision}, text=f"schema is at revision {revision}")


def health(
    folder: Annotated[Path | None, typer.Option(help="Where heartbeat files lie.")] = None,
    config: ConfigOption = None,
    data: DataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Exit 0 if the processes of this container or machine gave a sign of life within 30 seconds."""
    with opened(config, as_json, data) as door:
        ages = liveness.ages(folder or liveness.heartbeat_folder(door.settings.data, os.environ))
        bad = {name: age for name, age in ages.items() if age > liveness.DEAF_SECONDS}
        lines = "\n".join(f"{name}: {age:.0f} s" for name, age in ages.items()) or "no heartbeat files"
        door.answer({"ok": bool(ages) and not bad, "ages": ages}, text=lines)
        if bad or not ages:
            raise typer.Exit(FAILED)
