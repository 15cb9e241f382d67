"""What searches remember, in Valkey for all processes; a broker that is away means nothing is remembered."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from pipeline.search.cache import Cache, Value, made
from workers.limits.valkey import AWAY, Scripts

PREFIX = "larder:cache:"
SECONDS = 0.25
"""A cache that takes longer costs more than it saves."""
MOST_PENDING = 100
"""Puts that wait to be done."""
REST = 5.0
"""Seconds after a failure in which it is not asked again."""

# KEYS: order, entry. ARGV: key, value, seconds, most, prefix of entries. The order is by last use, on Valkey's clock.
PUT = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local over = redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[4])
if over > 0 then
  for _, old in ipairs(redis.call('ZRANGE', KEYS[1], 0, over - 1)) do
    redis.call('DEL', ARGV[5] .. old)
  end
  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, over - 1)
end
return 0
"""

# Once an entry was found: most are not, and asking for the value alone is quicker.
USED = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
return redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now), ARGV[1])
"""


class ValkeyCache:
    """A pipeline.search.cache.Cache for all processes with the same broker; connects at the first use.

    Keys are hashes and entries hold ids and numbers: nothing of a document or a question is readable in Valkey.
    """

    def __init__(
        self,
        broker_url: str,
        *,
        entries: int = 100,
        seconds: float = 900,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`entries` of each space are kept for at most `seconds`."""
        self._scripts = Scripts(broker_url, seconds=SECONDS)
        self._entries = entries
        self._seconds = seconds
        self._clock = clock
        self._rests_until = float("-inf")

    def get(self, space: str, key: str) -> bytes | None:
        """What was put there, unless it is too old, has been pushed out, or Valkey is away."""
        found = self._tried(lambda: self._scripts.value(_entry(space, key)))
        if not isinstance(found, bytes):
            return None
        self._run(USED, space, key)
        return found

    def put(self, space: str, key: str, value: Value) -> None:
        """Remember `value`, if Valkey is there."""
        milliseconds = max(1, round(self._seconds * 1000))
        self._run(PUT, space, key, made(value), milliseconds, self._entries, _entry(space, ""))

    def disconnect(self) -> None:
        """Give the connections back; a later use connects anew."""
        self._scripts.disconnect()

    def _run(self, script: str, space: str, key: str, *arguments: object) -> Any:
        keys = [f"{PREFIX}{{{space}}}", _entry(space, key)]
        return self._tried(lambda: self._scripts.run(script, keys, [key, *arguments]))

    def _tried(self, what: Callable[[], Any]) -> Any:
        if self._clock() < self._rests_until:
            return None
        try:
            return what()
        except AWAY:
            # Not even a log line: the broker's own absence is told by those who need it.
            self._rests_until = self._clock() + REST
            return None


class Behind:
    """A cache whose puts are done by a thread of its own, so that nobody waits for them; a cache itself.

    At the end of the process those that are left are done first.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._pending: dict[tuple[str, str], Future[None]] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def get(self, space: str, key: str) -> bytes | None:
        """As the cache's; waits if this very key is being put."""
        pending = self._pending.get((space, key))
        if pending is not None:
            wait((pending,))
        return self._cache.get(space, key)

    def put(self, space: str, key: str, value: Value) -> None:
        """Have it put; not at all if too many others wait for that."""
        with self._lock:
            if len(self._pending) >= MOST_PENDING:
                return
            self._thread = self._thread or ThreadPoolExecutor(1, "larder-cache")
            self._pending[space, key] = self._thread.submit(self._done, space, key, value)

    def _done(self, space: str, key: str, value: Value) -> None:
        try:
            self._cache.put(space, key, value)
        finally:
            with self._lock:
                self._pending.pop((space, key), None)


def _entry(space: str, key: str) -> str:
    """The braces keep a space's keys on one node of a cluster."""
    return f"{PREFIX}{{{space}}}:{key}"
