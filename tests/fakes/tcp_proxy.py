"""A TCP proxy on loopback that delays, freezes or cuts what passes between a client and a real server."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self
from urllib.parse import urlsplit, urlunsplit

_SSL_REQUEST = (80877103).to_bytes(4, "big")
_FIELDS = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0"
_STARTING = b"E" + (len(_FIELDS) + 4).to_bytes(4, "big") + _FIELDS


class TcpProxy:
    """Passes bytes on from `start` (or `with`) to `stop`; `open` after `cut` listens on the same port again."""

    def __init__(self, port: int) -> None:
        self.target = ("127.0.0.1", port)
        self.delay = 0.0
        """Seconds by which every piece that the server sends comes later."""
        self.starting = False
        """True: whoever connects hears that the database is being started."""
        self.ways = 0
        """How often the server has answered what was sent to it; pieces of one answer count once."""
        self._asked = False
        self.port = 0
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._dropped: set[socket.socket] = set()
        self._listener: socket.socket | None = None

    @classmethod
    def to(cls, url: str) -> Self:
        """In front of the server that a URL names."""
        port = urlsplit(url).port
        assert port
        return cls(port)

    def url(self, behind: str) -> str:
        """The URL of the server, by way of this proxy."""
        parts = urlsplit(behind)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def open(self) -> None:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Refuse connections, and break off those that are open."""
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # `close` alone does not wake `accept`
            listener.close()
        self.forget()
        with self._lock:
            for one in self._sockets:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def drop(self) -> int:
        """Let nothing through any more on the connections that are open now, and tell neither end; new ones work.

        Returns how many ends that are.
        """
        with self._lock:
            self._dropped |= self._sockets
            return len(self._dropped)

    def forget(self) -> None:
        """End those that were dropped, as the kernels do after their keepalives."""
        with self._lock:
            for one in self._dropped:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
            self._dropped.clear()

    def freeze(self) -> None:
        """Keep every connection and accept more, but let nothing through."""
        self._flows.clear()

    def thaw(self) -> None:
        """Let everything through again, what waited first."""
        self._flows.set()

    def heal(self) -> None:
        """End every fault."""
        self.delay = 0.0
        self.thaw()
        if self._listener is None:
            self.open()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self.thaw()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self.starting:
                with contextlib.suppress(OSError), client:
                    if client.recv(8).endswith(_SSL_REQUEST):
                        client.sendall(b"N")
                        client.recv(65536)
                    client.sendall(_STARTING)
                continue
            try:
                server = socket.create_connection(self.target)
            except OSError:  # it is being restarted
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._sockets.add(one)
            threading.Thread(target=self._pass, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pass, args=(server, client, True), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                if source in self._dropped:
                    continue
                self.ways += answers and self._asked
                self._asked = not answers
                if answers and self.delay:
                    time.sleep(self.delay)
                self._flows.wait()
                sink.sendall(piece)
        while source in self._dropped:
            time.sleep(0.1)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
        source.close()
