"""A real HTTP server on loopback that a fake of a foreign service is built on.

A fake holds a small model of the service and says what one request gets:

    class FakeShop(FakeServer):
        def __init__(self) -> None:
            super().__init__()
            self.goods = {"1": "apple"}

        def answer(self, seen: Seen) -> Answer:
            with self.lock:  # requests come in several threads at once
                if seen.path == "/goods":
                    return Answer(json={"results": list(self.goods.values())})
            return Answer(status=404, json={"message": "no such place"})

    with FakeShop() as shop:
        shop.faults.next(Fault.status(429, headers={"Retry-After": "2"}), when=lambda s: s.path == "/goods")
        requests.get(f"{shop.address}/goods?limit=2")
        assert shop.requests("/goods")[0].query == {"limit": ["2"]}

An exception inside `answer` is a 500 for the client and an AssertionError at the end of the `with` block.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from tests.fakes.faults import Fault, FaultPlan
from tests.fakes.messages import Answer, Seen

__all__ = ["Answer", "FakeServer", "Fault", "FaultPlan", "ScriptedServer", "Seen"]


class FakeServer:
    """Serves on 127.0.0.1 from `start` (or `with`) to `stop`; a second `start` takes the same port again."""

    keeps_log = True
    """False for a server that gets more than memory would hold."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.log: list[Seen] = []
        self.faults = FaultPlan()
        self.errors: list[str] = []
        """Tracebacks of what went wrong inside `answer`."""
        self.stopping = threading.Event()
        self._port = 0
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def answer(self, seen: Seen) -> Answer:
        """What this request gets; called in the request's thread, without the lock."""
        return Answer(status=404, json={"message": f"nothing at {seen.path}"})

    @property
    def address(self) -> str:
        """`http://127.0.0.1:PORT`; known once it was started."""
        assert self._port, "start the server first"
        return f"http://127.0.0.1:{self._port}"

    def requests(self, part: str = "") -> list[Seen]:
        """Those whose path contains `part`, in the order they came."""
        with self.lock:
            return [seen for seen in self.log if part in seen.path]

    def start(self) -> None:
        """Listen; returns when a request would be answered."""
        self.stopping.clear()
        self._server = _Server(self, self._port)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Refuse connections from now on, and break off those that are open."""
        self.stopping.set()
        server, self._server = self._server, None
        if server and self._thread:
            server.shutdown()
            server.server_close()
            server.drop_connections()
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        self.stop()
        if kind is None and self.errors:
            raise AssertionError("the fake itself failed:\n" + "\n".join(self.errors))


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, fake: FakeServer, port: int) -> None:
        self.fake = fake
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self.fake.lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self.fake.lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def drop_connections(self) -> None:
        with self.fake.lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is no news; what `answer` raises is caught where it is called."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # header and body leave together

    server: _Server

    def _serve(self) -> None:
        fake = self.server.fake
        seen = self._seen()
        if len(seen.body) < int(self.headers.get("Content-Length") or 0):
            return  # whoever asked was killed in the middle of it
        with fake.lock:
            if fake.keeps_log:
                fake.log.append(seen)
            fault = fake.faults.take(seen)
        if fault is None:
            self._send(seen, self._answer(seen))
        else:
            self._misbehave(seen, fault)
        seen.until = time.monotonic()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _serve  # noqa: N815 (named by the library)

    def log_message(self, *_: object) -> None:
        """Quiet: the log is `FakeServer.log`."""

    def _seen(self) -> Seen:
        at = time.monotonic()
        parts = urlsplit(self.path if self.path.startswith("http") else f"//host{self.path}")
        return Seen(
            method=self.command,
            path=unquote(parts.path),
            query=parse_qs(parts.query, keep_blank_values=True),
            target=self.path,
            headers=self.headers,
            body=self.rfile.read(int(self.headers.get("Content-Length") or 0)),
            at=at,
        )

    def _answer(self, seen: Seen) -> Answer:
        try:
            return self.server.fake.answer(seen)
        except Exception:  # noqa: BLE001 (whatever it is, the test must learn of it)
            self.server.fake.errors.append(f"{seen.method} {seen.target}\n{traceback.format_exc()}")
            return Answer(status=500, json={"message": "the fake itself failed"})

    def _misbehave(self, seen: Seen, fault: Fault) -> None:
        if fault.kind == "reset":
            self._reset()
        elif fault.kind == "status":
            headers = dict(fault.headers)
            self._send(
                seen,
                Answer(status=fault.code, headers=headers, body=fault.body, content_type=fault.content_type),
            )
        elif fault.kind == "slow":
            self.server.fake.stopping.wait(fault.seconds)
            self._send(seen, self._answer(seen))
        else:
            self._spoil(seen, fault, self._answer(seen))

    def _spoil(self, seen: Seen, fault: Fault, good: Answer) -> None:
        """The good answer, and something wrong with it."""
        body = good.content()
        if fault.kind == "headers":
            self._send(seen, good, extra=fault.headers)
        elif fault.kind == "truncated":
            cut = Answer(
                status=good.status,
                headers=good.headers,
                body=body[: len(body) // 2],
                content_type=good.kind(),
            )
            self._send(seen, cut)
        elif fault.kind == "dripping":
            self._head(seen, good, len(body))
            for n in range(20):
                self.wfile.write(body[n * len(body) // 20 : (n + 1) * len(body) // 20])
                self.wfile.flush()
                self.server.fake.stopping.wait(fault.seconds / 20)
        else:  # reset_in_body, cut_body
            self._head(seen, good, max(len(body), 2))
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.close_connection = True
            if fault.kind == "reset_in_body":
                self._reset()

    def _send(self, seen: Seen, answer: Answer, extra: Mapping[str, str] | None = None) -> None:
        body = answer.content()
        self._head(seen, answer, len(body), extra)
        if self.command != "HEAD":
            self.wfile.write(body)
        self.wfile.flush()

    def _head(self, seen: Seen, answer: Answer, length: int, extra: Mapping[str, str] | None = None) -> None:
        seen.status = answer.status
        self.send_response(answer.status)
        headers = {"Content-Type": answer.kind(), **answer.headers, **(extra or {})}
        lengthless = answer.status in {204, 304}
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        if not lengthless and not any(name.lower() == "content-length" for name in headers):
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def _reset(self) -> None:
        # With linger 0 the kernel sends RST instead of FIN; only the raw descriptor closes at once.
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with self.server.fake.lock:
            self.server._open.discard(self.connection)
        os.close(self.connection.detach())


Answerer = Callable[[Seen], Answer]


class ScriptedServer(FakeServer):
    """A fake of one function, for tests that need no model."""

    def __init__(self, answerer: Answerer | None = None) -> None:
        super().__init__()
        self._answerer = answerer or (lambda _seen: Answer(json={"results": [1, 2, 3]}))

    def answer(self, seen: Seen) -> Answer:
        return self._answerer(seen)
