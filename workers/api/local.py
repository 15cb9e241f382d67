"""Answers to the commands of this machine, by a socket in the data folder that only its user can open."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import chdir, closing, suppress
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingUnixStreamServer
from typing import Any

from pipeline.errors import LarderError, SearchError
from workers.app import questions
from workers.local.embedded.locating import START_SECONDS
from workers.local.local_socket import SOCKET, file_version
from workers.runtime import Runtime, acting_as

logger = logging.getLogger(__name__)


class _Server(ThreadingUnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, runtime: Runtime, started_as: str) -> None:
        self.runtime = runtime
        runs = [*json.loads(started_as), file_version(runtime.settings.path)]
        self.greeting = {"names": [*runtime.settings.variables], "runs": runs}
        super().__init__(SOCKET, _Handler)


class _Handler(StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """One question; whoever asks may leave in the middle."""
        with suppress(OSError):
            self.wfile.write(json.dumps(self.server.greeting).encode() + b"\n")
            line = self.rfile.readline()
            if line.endswith(b"\n"):
                self._answer(json.loads(line))

    def _answer(self, request: dict[str, Any]) -> None:
        def tell(kind: str, value: Any) -> None:
            self.wfile.write(json.dumps([kind, value], default=str).encode() + b"\n")

        try:
            # As patient as the command is by itself.
            patient = self.server.runtime.patient(request["answer_timeout"], START_SECONDS)
            with acting_as(request["user"]), closing(patient) as runtime:
                answer = questions.answer(runtime, tell, request["question"], request["arguments"])
        except OSError:
            raise  # whoever asked has left
        except Exception as error:  # noqa: BLE001 (whatever it is, whoever asked must be told)
            if not isinstance(error, LarderError):
                # Without its words, which may quote anything.
                logger.error("a question failed with %s", type(error).__name__)  # noqa: TRY400
                error = SearchError("it failed unexpectedly", fix="see logs/api.log in the data folder")
            candidates = [*getattr(error, "candidates", ())]
            tell("error", {**error.to_json(), "exit_code": error.exit_code, "candidates": candidates})
        else:
            tell("answer", answer)


def start(runtime: Runtime, started_as: str) -> None:
    """Answer in threads as long as this process lives; `started_as` is what `larder up` was started as."""
    with chdir(runtime.settings.data):  # the path of a socket must be short
        Path(SOCKET).unlink(missing_ok=True)
        server = _Server(runtime, started_as)
        Path(SOCKET).chmod(0o600)
    threading.Thread(target=server.serve_forever, name="larder-local", daemon=True).start()
