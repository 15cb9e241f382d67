"""Connections to Valkey for small scripts that run inside of it."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import redis

AWAY = (redis.RedisError, OSError)
"""What is raised while Valkey cannot be reached."""


class Scripts:
    """Runs scripts; connects at the first use, and again after `disconnect`. May be used by several threads.

    It keeps its connections itself: taking one from the library's pool and going through its client takes as long again
    as the way to the server and back.
    """

    def __init__(self, broker_url: str, *, seconds: float) -> None:
        """A server that takes longer than `seconds` counts as away."""
        # Kombu writes the address of a socket differently from the client.
        address = broker_url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
        self._pool = redis.ConnectionPool.from_url(
            address, socket_timeout=seconds, socket_connect_timeout=seconds, decode_responses=False
        )
        self._idle: deque[_Line] = deque()
        self._process = os.getpid()

    def run(self, script: str, keys: list[str], arguments: list[object]) -> Any:
        """What the script returns; raises one of `AWAY`, whose text may repeat the address and its password."""
        return self._through(lambda line: line.run(script, keys, arguments))

    def value(self, key: str) -> Any:
        """The bytes under a key, None if there are none; raises as `run` does, but takes three quarters of its time."""
        return self._through(lambda line: line.asked("GET", key))

    def disconnect(self) -> None:
        """Close what is not in use."""
        while (line := self._taken()) is not None:
            line.connection.disconnect()

    def _through(self, do: Callable[[_Line], Any]) -> Any:
        line = self._taken()
        if line is not None:
            try:
                return self._done(line, do)
            except redis.ConnectionError:
                # The server may close a connection that nobody used, and then the others are no better.
                self.disconnect()
        return self._done(_Line(self._pool.connection_class(**self._pool.connection_kwargs)), do)

    def _done(self, line: _Line, do: Callable[[_Line], Any]) -> Any:
        try:
            found = do(line)
        except redis.ResponseError:
            self._idle.append(line)  # it answered, if with a refusal
            raise
        except BaseException:
            line.connection.disconnect()  # in the middle of an answer, perhaps
            raise
        self._idle.append(line)
        return found

    def _taken(self) -> _Line | None:
        if self._process != os.getpid():  # after a fork they are the parent's
            self._idle, self._process = deque(), os.getpid()
        try:
            return self._idle.pop()
        except IndexError:
            return None


class _Line:
    """A connection, and the scripts that its server knows."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._known: set[str] = set()

    def run(self, script: str, keys: list[str], arguments: list[object]) -> Any:
        name = _name(script)
        if name in self._known:
            try:
                return self.asked("EVALSHA", name, len(keys), *keys, *arguments)
            except redis.exceptions.NoScriptError:  # the server has forgotten it, and has not run it
                self._known.clear()
        found = self.asked("EVAL", script, len(keys), *keys, *arguments)
        self._known.add(name)
        return found

    def asked(self, *command: object) -> Any:
        self.connection.send_command(*command)
        return self.connection.read_response()


@lru_cache(256)
def _name(script: str) -> str:
    """By which the server knows a script that it was once given."""
    return hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
