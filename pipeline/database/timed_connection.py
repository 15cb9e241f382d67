"""Connections with a limit on waiting for a silent server."""

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
"""Maximum waits of a login: to be accepted, and three answers until the password is verified."""


class TimedConnection(psycopg.Connection[Any]):
    """A connection that waits at most `answer_timeout` seconds for each answer of the server.

    A frozen server or a network that drops packets does not end a connection, and its client would wait for ever.
    A slow server that answers is waited for, however many answers it needs.
    """

    answer_timeout: float | None = None

    @classmethod
    def opened(cls, answer_timeout: float, *args: Any, start_timeout: float = 0.0, **parameters: Any) -> Self:
        """Connect with `answer_timeout` seconds per answer, and `start_timeout` seconds for a starting server."""
        timeout = max(2, round(HANDSHAKE * answer_timeout))  # in whole seconds, 2 at least, for the driver
        kind: Any = cls
        connect = _with_timeout(kind, answer_timeout).connect
        parameters["connect_timeout"] = timeout
        silent = _silent_hosts.set(set())
        try:
            connection: Self = while_starting(start_timeout)(connect, *args, **parameters)
        finally:
            _silent_hosts.reset(silent)
        return connection

    @classmethod
    def _connect_gen(cls, conninfo: str = "") -> Generator[Any, Any, Self]:
        steps = super()._connect_gen(conninfo)
        return steps if cls.answer_timeout is None else _once_per_host(conninfo, steps, cls.answer_timeout)

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        """Wait for one or several answers, or for at most `timeout` seconds; called by the driver."""
        if self.answer_timeout is None or timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(_timed(gen, self.answer_timeout), interval)
        except AnswerTimeout:
            # The rest of the answer may still arrive: the connection is unusable, even for a rollback.
            self.pgconn.finish()
            raise


_silent_hosts: ContextVar[set[object]] = ContextVar("silent_hosts")


def _once_per_host(conninfo: str, steps: Generator[Any, Any, Any], answer_timeout: float) -> Any:
    """The driver's steps at one address of a host; after a silent one the host's other addresses are skipped.

    A name such as localhost may have an IPv4 and an IPv6 address, and the wait would be twice as long.
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
    """The error for a server that was silent for `answer_timeout` seconds."""
    return AnswerTimeout(f"no answer within {answer_timeout:g} seconds")


@cache
def _with_timeout(kind: type[Any], answer_timeout: float) -> type[Any]:
    """A subclass with this timeout, since the driver reads it from the class before there is a connection."""
    return type(kind.__name__, (kind,), {"answer_timeout": answer_timeout})


def _timed(steps: Generator[Any, Any, Any], answer_timeout: float) -> Generator[Any, Any, Any]:
    """The driver's steps; raises AnswerTimeout if one waits longer than `answer_timeout` seconds."""
    ready, since = None, time.monotonic()
    while True:
        if ready:
            since = time.monotonic()
        elif time.monotonic() - since > answer_timeout:
            steps.close()
            raise silence(answer_timeout)
        try:
            request = steps.send(ready)
        except StopIteration as done:
            return done.value
        ready = yield request
