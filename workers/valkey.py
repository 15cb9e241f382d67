"""A connection to Valkey for small scripts that run inside of it."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

AWAY = (redis.RedisError, OSError)
"""What is raised while Valkey cannot be reached."""


class Scripts:
    """Runs scripts; connects at the first use, and again after `disconnect`."""

    def __init__(self, broker_url: str, *, seconds: float) -> None:
        """A server that takes longer than `seconds` counts as away."""
        # Kombu writes the address of a socket differently from the client.
        self._address = broker_url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
        self._seconds = seconds
        self._client: Any = None

    def run(self, script: str, keys: list[str], arguments: list[object]) -> Any:
        """What the script returns; raises one of `AWAY`, whose text may repeat the address and its password."""
        return self._open().register_script(script)(keys=keys, args=arguments)

    def disconnect(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _open(self) -> Any:
        if self._client is None:
            self._client = redis.Redis.from_url(
                self._address,
                socket_timeout=self._seconds,
                socket_connect_timeout=self._seconds,
                retry=Retry(NoBackoff(), 1),  # an idle connection may have been closed by the server
                decode_responses=False,
            )
        return self._client
