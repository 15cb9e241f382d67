"""Small scripts that run inside of Valkey."""

from __future__ import annotations

from typing import Any

from workers.queue import broker

FIX = "look whether Valkey runs and is reachable at the broker's address; it is tried again by itself"
"""What to do while it is away."""

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
    """Runs the scripts of one limiter; connects at the first use, and again after `disconnect`.

    May be used by several threads.
    """

    def __init__(self, broker_url: str, prefix: str) -> None:
        """`prefix` is what all its keys begin with."""
        self._client = broker.opened(broker_url)
        self._prefix = prefix

    def run(self, script: str, name: str, parts: str, *arguments: object) -> Any:
        """What the script returns.

        `name` tells what is limited, `parts` which of its keys the script gets, with blanks; names are readable in
        Valkey and so must hold nothing secret. Raises one of `broker.AWAY`.
        """
        # The braces keep the keys on one node of a cluster.
        keys = [f"{self._prefix}{{{name}}}:{part}" for part in parts.split()]
        return self._client.register_script(script)(keys, arguments)

    def disconnect(self) -> None:
        """Give the connections back."""
        self._client.connection_pool.disconnect()
