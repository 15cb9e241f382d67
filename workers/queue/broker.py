"""Looking at the broker: what waits in its queues, and how it is set up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

Answer = TypeVar("Answer")

PRIORITIES = (0, 3, 6, 9)
"""The steps that kombu tells apart; 0 comes first."""

SECONDS = 3.0
"""A broker that takes longer counts as away: the one who asks is waiting for the screen."""


PROBED = ("control",)
"""A queue that is looked for: to answer a ping needs no right on any key."""


@dataclass(frozen=True, kw_only=True)
class BrokerFacts:
    """What the broker says of itself."""

    server: str
    policy: str
    """`maxmemory-policy`: what it drops when it is full."""
    used: int
    limit: int
    """Bytes; a limit of 0 is none."""


def lengths(url: str, queues: Sequence[str]) -> dict[str, int] | None:
    """Messages that wait in each queue, without those a worker has taken; None if the broker is away."""
    return _asked(
        url, lambda client: {q: sum(int(client.llen(part)) for part in lists_of(q)) for q in queues}
    )


def lists_of(queue: str) -> list[str]:
    """Each step of priority is a list of its own in the broker."""
    return [queue, *(f"{queue}\x06\x16{step}" for step in PRIORITIES if step)]


def facts(url: str) -> BrokerFacts | None:
    """Its kind, memory and policy; None if the broker is away."""
    return _asked(url, _facts)


def _facts(client: Any) -> BrokerFacts:
    # INFO, not CONFIG: a user that may run tasks need not be allowed to read the configuration.
    server, memory = client.info("server"), client.info("memory")
    version = server.get("valkey_version")
    return BrokerFacts(
        server=f"Valkey {version}" if version else f"Redis {server.get('redis_version', '')}",
        policy=str(memory.get("maxmemory_policy", "")),
        used=int(memory.get("used_memory", 0)),
        limit=int(memory.get("maxmemory", 0)),
    )


SILENT = f"takes connections and says nothing for {SECONDS:g} seconds"
REFUSALS: Mapping[str, str] = {
    "wants a password, and its address holds none": "write redis://:PASSWORD@HOST:6379/0 into LARDER_BROKER_URL",
    "refuses the password": "correct user and password in LARDER_BROKER_URL",
    "has no database of that number": "correct the number at the end of LARDER_BROKER_URL",
    "refuses its user what workers do": "let that user run all commands on all keys and channels (ACL SETUSER)",
}
"""What it says who answers and does not let us in -> what to do."""
_SAID = (
    ("Authentication required", "wants a password, and its address holds none"),
    ("already authenticated", "wants a password, and its address holds none"),
    ("DB index", "has no database of that number"),
)
_UNREACHED = (
    ("refused", "nothing listens at its address"),
    ("No such file", "there is no such socket"),
    ("Name or service", "its host name is not known"),
    ("name resolution", "its host name is not known"),
    ("nodename nor", "its host name is not known"),
    ("SSL", "TLS with it fails"),
    ("loading", "it is still reading its data"),
    ("closed by server", "it closes the connection (no Redis or Valkey?)"),
    ("reset by peer", "it closes the connection (no Redis or Valkey?)"),
    ("Broken pipe", "it closes the connection (no Redis or Valkey?)"),
)


def trouble(url: str) -> str:
    """Why it cannot be used, as the end of a sentence; empty if it can. Nothing of the address is repeated."""
    try:
        with _client(url) as client:
            client.ping()
            client.exists(*PROBED)
    except (redis.TimeoutError, TimeoutError):
        return SILENT
    except (redis.RedisError, OSError, ValueError) as error:
        return _why(error)
    return ""


def _why(error: Exception) -> str:
    words = str(error)
    said = next((why for part, why in _SAID if part in words), "")
    if said or isinstance(error, redis.AuthenticationError):
        return said or "refuses the password"
    if isinstance(error, redis.exceptions.NoPermissionError):
        return "refuses its user what workers do"
    unreached = next((why for part, why in _UNREACHED if part in words), type(error).__name__)
    return f"cannot be reached: {unreached}"


def remedy(why: str) -> str:
    """What to do about such trouble."""
    if why == SILENT:
        return "look whether it is stopped (T in `ps`), out of memory, cut off, or speaks no TLS (rediss)"
    return REFUSALS.get(why, "start it, or correct LARDER_BROKER_URL")


def _asked(url: str, question: Callable[[Any], Answer]) -> Answer | None:
    try:
        with _client(url) as client:
            return question(client)
    except (redis.RedisError, OSError, ValueError):
        return None


def _client(url: str) -> Any:
    # Kombu writes the address of a socket differently from the client.
    address = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    return redis.Redis.from_url(
        address, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=Retry(NoBackoff(), 0)
    )
