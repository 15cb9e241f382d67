"""Connections that do not wait for ever for a server that says nothing."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextvars import ContextVar
from functools import cache
from typing import Any, Self

import psycopg
from psycopg.conninfo import conninfo_to_dict

from pipeline.database.driver_errors import AnswerTimeout, while_starting

HANDSHAKE = 4
"""Waits that a connection takes at most: to be accepted, and for three answers until the password is believed."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection on which no single wait for the server takes longer than `answer_timeout` seconds.

    A frozen server, or a network that swallows packets, ends no connection: without this its client waits for ever.
    A server that is slow and answers is waited for, however many answers it takes: it is not gone.
    """

    answer_timeout: float | None = None

    @classmethod
    def opened(cls, answer_timeout: float, *args: Any, start_timeout: float = 0.0, **parameters: Any) -> Self:
        """As `connect`, with `answer_timeout` seconds for each answer; a server may be starting for `start_timeout`."""
        timeout = max(2, round(HANDSHAKE * answer_timeout))  # for all; the driver knows nothing shorter
        kind: Any = cls
        connect = _with_timeout(kind, answer_timeout).connect
        parameters["connect_timeout"] = timeout
        silent = _silent_hosts.set(set())
        try:
            made: Self = while_starting(start_timeout)(connect, *args, **parameters)
        finally:
            _silent_hosts.reset(silent)
        return made

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Generator[Any, Any, Self]:
        steps = super()._connect_gen(conninfo)
        return steps if cls.answer_timeout is None else _once_per_host(conninfo, steps, cls.answer_timeout)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """What the driver calls to wait for the server: for one answer or several, or for `timeout` seconds at most."""
        if self.answer_timeout is None or timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(_timed(gen, self.answer_timeout), interval)
        except AnswerTimeout:
            # Half an answer may still come: nothing can be asked on this connection any more, not even to roll back.
            self.pgconn.finish()
            raise


_silent_hosts: ContextVar[set[object]] = ContextVar("silent_hosts")


def _once_per_host(conninfo: str, steps: Generator[Any, Any, Any], answer_timeout: float) -> Any:
    """The driver's steps at one address of a host, whose others are not tried where this one is silent.

    A name such as localhost may have one for each version of the protocol, and the wait would be twice as long.
    """
    host = conninfo_to_dict(conninfo).get("host")
    if host in _silent_hosts.get():
        steps.close()
        raise silence(answer_timeout)
    try:
        return (yield from _timed(steps, answer_timeout))
    except AnswerTimeout:
        _silent_hosts.get().add(host)
        raise


def silence(answer_timeout: float) -> AnswerTimeout:
    """The error for a server that said nothing for so long."""
    return AnswerTimeout(f"no answer within {answer_timeout:g} seconds")


@cache
def _with_timeout(kind: type[Any], answer_timeout: float) -> type[Any]:
    """The driver tells a connection nothing of ours before it is one, but it asks its class."""
    return type(kind.__name__, (kind,), {"answer_timeout": answer_timeout})


def _timed(steps: Generator[Any, Any, Any], answer_timeout: float) -> Generator[Any, Any, Any]:
    """The driver's steps, as long as none of them lets us wait longer than `answer_timeout` seconds."""
    ready, since = None, time.monotonic()
    while True:
        if ready:
            since = time.monotonic()
        elif time.monotonic() - since > answer_timeout:
            steps.close()
            raise silence(answer_timeout)
        try:
            wanted = steps.send(ready)
        except StopIteration as done:
            return done.value
        ready = yield wanted
