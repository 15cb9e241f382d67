"""Commands of this machine's terminals, run in forks of one process: to start Python costs more than to search.

That process, of `larder up` or left by the first command where that does not run, has all modules and the model
loaded. A fork gets the terminal itself (its three streams), the arguments, folder and environment of the command, and
runs it as the command would have run by itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from workers.cli import run_in_fork
from workers.processes.interrupts import INTERRUPTED

SOCKET = "commands.sock"
"""In the data folder, which is closed to all others."""
GREET_SECONDS = 5.0
"""Who does not answer a greeting in that time does not live."""
LOOK_SECONDS, IDLE_SECONDS = 2.0, 600.0
"""How often a process looks whether it is still needed, and for how long one waits that no `larder up` looks after."""
COUNTED = "PROMETHEUS_MULTIPROC_DIR"
"""Names the folder of those that count together, as commands do with the rest of an installation."""
_MOST = 65_536


def program_version() -> list[object]:
    """Identifies the installed version; a serving process refuses commands of another one.

    Of all files, since in a checkout they change one by one.
    """
    root, changed = Path(__file__).parents[2], 0
    for top in ("connectors", "pipeline", "workers"):
        for folder, _, names in os.walk(root / top):
            for name in names:
                if name.endswith(".py"):
                    with suppress(OSError):  # it is being replaced
                        changed += os.stat(f"{folder}/{name}").st_mtime_ns  # noqa: PTH116 (quicker, for each command)
    return [str(root), changed]


def run_in_server(args: Sequence[str], folder: Path) -> int | None:
    """Run a command in the process that serves this folder; its exit code, or None if no process serves it."""
    here = Path.cwd()
    streams = [sys.stdin, sys.stdout, sys.stderr]
    if None in streams:  # closed by whoever started us: there is nothing to hand over
        return None
    wanted = {
        "program": program_version(),
        "args": args,
        "folder": str(here),
        "environment": dict(os.environ),
        "encodings": [stream.encoding for stream in streams],
    }
    with socket.socket(socket.AF_UNIX) as door:
        door.settimeout(GREET_SECONDS)
        try:
            os.chdir(folder)  # the path of a socket must be short
            try:
                door.connect(SOCKET)
            finally:
                os.chdir(here)
            # One that is frozen would be given streams and keep them: whoever reads our output would wait for its end.
            if not door.recv(1):
                return None
            said = json.dumps(wanted).encode() + b"\n"
            sent = socket.send_fds(door, [said], [s.fileno() for s in streams])
            door.sendall(said[sent:])  # a large environment goes in parts
            pid = int(door.recv(_MOST))
            door.settimeout(None)
            door.sendall(b"!")
        except TimeoutError:
            with suppress(OSError):
                (folder / SOCKET).unlink()  # nobody else need wait for it, and it ends where it finds that
            return None
        except (OSError, ValueError):
            return None
        while True:
            try:
                code = door.recv(1)
            except KeyboardInterrupt:
                os.kill(pid, signal.SIGINT)
                continue
            except OSError:
                return 1
            if not code:
                print("the process that ran this command was ended from outside", file=sys.stderr)
            return code[0] if code else 1


def serve(*, for_now: bool = False) -> None:
    """Run what is asked for at the door of this folder, until a signal comes or the door is gone, or another's.

    `for_now`: it ends by itself as well, where nobody has asked for long, with the database server, and when another
    version is installed.
    """
    from workers import embedded  # not for the side that asks, which is to be quick

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a fork but the one who asked
    ours = program_version()
    with socket.socket(socket.AF_UNIX) as door:
        Path(SOCKET).unlink(missing_ok=True)
        door.bind(SOCKET)
        door.listen()
        door.settimeout(LOOK_SECONDS)
        asked, made = time.monotonic(), _file_number()
        while made == _file_number():
            if for_now and (
                time.monotonic() - asked > IDLE_SECONDS or not embedded.running(Path("postgres"))
            ):
                return
            try:
                asker, _ = door.accept()
            except TimeoutError:
                continue
            asked = time.monotonic()
            with asker:
                if for_now and program_version() != ours:
                    return
                if os.fork() == 0:
                    door.close()
                    code = 1
                    try:
                        code = _answer(asker, ours)
                    except ConnectionError:  # whoever asked is gone
                        pass
                    except BaseException:  # noqa: BLE001 (a fork must not go on as the process that it was)
                        traceback.print_exc()
                    finally:  # nor where it cannot print that
                        os._exit(code)


def _file_number() -> int | None:
    """Of the door, None if it is gone; a number is not given again while the first file of it is open."""
    with suppress(OSError):
        return Path(SOCKET).stat().st_ino
    return None


def _answer(asker: socket.socket, ours: list[object]) -> int:
    """In a fork: take over the terminal of whoever asks, and run the command; its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, user, _ = struct.unpack("3i", asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    asker.settimeout(GREET_SECONDS)
    asker.sendall(b"?")
    said, streams, _, _ = socket.recv_fds(asker, _MOST, 3)
    while not said.endswith(b"\n"):
        more = asker.recv(_MOST)
        if not more:
            return 1  # whoever asked is gone in the middle of the question
        said += more
    wanted = json.loads(said)
    if wanted["program"] != ours or user != os.getuid():
        return 1
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, encoding=encoding, buffering=1)  # noqa: SIM115, PTH123 (as long as the process lives)
        for number, mode, encoding in zip(range(3), "rww", wanted["encodings"], strict=True)
    )
    counted, ended = os.environ.get(COUNTED), threading.Event()
    try:
        asker.sendall(str(os.getpid()).encode())
        if not asker.recv(1):
            return 1
        asker.settimeout(None)
        # Whoever asked may be killed: then nobody is there to read.
        threading.Thread(target=lambda: asker.recv(1) or ended.is_set() or os._exit(1), daemon=True).start()
        environment = wanted["environment"] | ({COUNTED: counted} if counted else {})
        code = run_in_fork(wanted["args"], environment, Path(wanted["folder"]))
    except KeyboardInterrupt:  # before the command itself, which says so by itself
        print("stopped", file=sys.stderr)
        code = INTERRUPTED
    ended.set()
    asker.sendall(bytes([code & 255]))
    if counted:
        from workers.processes import metrics

        metrics.compact(Path(counted))  # of those before: what this one counted is there while it lives
    return code
