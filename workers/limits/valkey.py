"""Small scripts that run inside of Valkey."""

from __future__ import annotations

from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

AWAY = (redis.RedisError, OSError)
"""What is raised while Valkey cannot be reached."""

CLOSING = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function closed(key) return math.max(0, redis.call('PTTL', key)) / 1000 end
local function close(key, seconds)
  if seconds > closed(key) then redis.call('SET', key, '1', 'PX', math.ceil(seconds * 1000)) end
end
local function answer(why, seconds) return {why, string.format('%.3f', seconds)} end
"""
"""What the scripts of all limiters begin with: the server's clock, and a key that shuts a service for some seconds.

A limiter takes one step inside of Valkey and by its clock, so that workers cannot overtake each other nor disagree on
time. A shorter closing never shortens a longer one.
"""


class Scripts:
    """Runs scripts; connects at the first use, and again after `disconnect`. May be used by several threads."""

    def __init__(self, broker_url: str, *, seconds: float) -> None:
        """A server that takes longer than `seconds` counts as away."""
        # Kombu writes the address of a socket differently from the client.
        address = broker_url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
        # Without retries: a script that ran, and whose answer was lost, must not run twice.
        self._client = redis.Redis.from_url(
            address, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0)
        )

    def run(self, script: str, keys: list[str], arguments: list[Any]) -> Any:
        """What the script returns; raises one of `AWAY`, whose text may repeat the address and its password."""
        return self._client.register_script(script)(keys, arguments)

    def disconnect(self) -> None:
        """Give the connections back."""
        self._client.connection_pool.disconnect()
