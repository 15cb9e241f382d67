"""Connections that give up on a server which keeps them open and says nothing."""

from __future__ import annotations

import time
from collections.abc import Generator
from functools import cache
from typing import Any, Self

import psycopg


class Silence(psycopg.OperationalError):
    """The server keeps the connection and says nothing."""


HANDSHAKE = 4
"""Waits that a connection takes at most: to be accepted, and for three answers until the password is believed."""


class PatientConnection(psycopg.Connection[Any]):
    """A connection on which no single wait for the server takes longer than `patience` seconds.

    A frozen server, or a network that swallows packets, ends no connection: without this its client waits for ever.
    A server that is slow and answers is waited for, however many answers it takes: it is not gone.
    """

    patience: float | None = None

    @classmethod
    def opened(cls, patience: float, *args: Any, **parameters: Any) -> Self:
        """As `connect`; the server may take `patience` seconds for each of its answers, there too."""
        timeout = max(2, round(HANDSHAKE * patience))  # for all; the driver knows nothing shorter than 2
        kind: Any = cls
        made: Self = _patient(kind, patience).connect(*args, **{**parameters, "connect_timeout": timeout})
        return made

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Generator[Any, Any, Self]:
        steps = super()._connect_gen(conninfo)
        return steps if cls.patience is None else _impatient(steps, cls.patience)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """What the driver calls to wait for the server: for one answer or several, or for `timeout` seconds at most."""
        if self.patience is None or timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(_impatient(gen, self.patience), interval)
        except Silence:
            # Half an answer may still come: nothing can be asked on this connection any more, not even to roll back.
            self.pgconn.finish()
            raise


@cache
def _patient(kind: type[Any], patience: float) -> type[Any]:
    """The driver tells a connection nothing of ours before it is one, but it asks its class."""
    return type(kind.__name__, (kind,), {"patience": patience})


def _impatient(steps: Generator[Any, Any, Any], patience: float) -> Generator[Any, Any, Any]:
    """The driver's steps, as long as none of them lets us wait longer than `patience` seconds."""
    ready, since = None, time.monotonic()
    while True:
        if ready:
            since = time.monotonic()
        elif time.monotonic() - since > patience:
            steps.close()
            raise Silence(f"no answer within {patience:g} seconds")
        try:
            wanted = steps.send(ready)
        except StopIteration as done:
            return done.value
        ready = yield wanted
