"""The broker: what waits in its queues, how it is set up, and the scripts that run in it."""

from __future__ import annotations

import json
import re
import ssl
import sys
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from workers.queue import rabbit

AWAY = (redis.RedisError, OSError)
"""What is raised while it cannot be reached; the words may repeat its address and the password in it."""

PRIORITIES = (0, 3, 6, 9)
"""The steps that kombu tells apart; 0 comes first."""

SECONDS = 3.0
"""A broker that takes longer counts as away: the one who asks is waiting for the screen."""


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
    with suppress(*AWAY, ValueError), client_of(url) as client:
        return {q: sum(int(client.llen(part)) for part in lists_of(q, url)) for q in queues}
    return None


SET_ASIDE = "larder:set-aside"
"""Where workers count the messages that they could not take."""
ASIDE_LIST = f"{SET_ASIDE}:messages"
"""The newest of them: when each came, its task and id, and nothing of what it asked."""
MOST_ASIDE = 1000


def aside_total(url: str) -> int | None:
    """Messages that no worker could take since the broker began to keep anything; None if it is away, or no Valkey."""
    if rabbit.is_rabbit(url):
        return None
    with suppress(*AWAY, ValueError), client_of(url) as client:
        return int(client.get(SET_ASIDE) or 0)
    return None


def aside_messages(url: str) -> list[dict[str, str]]:
    """`{"at", "task", "id"}` of the newest messages that no worker could take, newest first; the last two may be empty.

    Raises what the client raises where the broker is away.
    """
    if rabbit.is_rabbit(url):
        return []
    with client_of(url) as client:
        return [json.loads(one) for one in client.lrange(ASIDE_LIST, 0, -1)]


def drop_aside(url: str) -> int:
    """Forget the messages that no worker could take, and count from 0; how many there were."""
    total = aside_total(url) or 0
    if not rabbit.is_rabbit(url):
        with client_of(url) as client:
            client.delete(SET_ASIDE, ASIDE_LIST)
    return total


def lists_of(queue: str, url: str = "") -> list[str]:
    """Each step of priority is a list of its own in Valkey, and a queue of its own in RabbitMQ."""
    between = "." if rabbit.is_rabbit(url) else "\x06\x16"
    return [queue, *(f"{queue}{between}{step}" for step in PRIORITIES if step)]


def consumed_queues(queue: str, url: str) -> list[str]:
    """What a worker of this queue reads: Kombu finds the lists of Valkey by itself."""
    return lists_of(queue, url) if rabbit.is_rabbit(url) else [queue]


def queue_for(queue: str, url: str, priority: int | None) -> str:
    """Where a message of this priority is sent to."""
    return lists_of(queue, url)[bisect(PRIORITIES, priority or 0) - 1] if rabbit.is_rabbit(url) else queue


def waiting(url: str, queue: str) -> dict[int, int]:
    """Messages of each priority that wait in a queue, without those a worker has taken; empty if the broker is away."""
    with suppress(*AWAY, ValueError), _connected(url) as client:
        return {p: int(client.llen(part)) for p, part in zip(PRIORITIES, lists_of(queue, url), strict=True)}
    return {}


SHARE = 4
"""One of so many messages of a queue is let through although others of a higher priority wait."""
_LET_THROUGH = """
local turn = redis.call('INCR', KEYS[1])
local share = tonumber(ARGV[1])
if turn % share ~= 0 then return 0 end
local behind = #KEYS - 2
for step = 0, behind - 1 do
  local list = KEYS[3 + (turn / share + step) % behind]
  local message = redis.call('RPOP', list)
  if message then return redis.call('RPUSH', KEYS[2], message) end
end
return 0
"""
"""Keys: the count of turns, the list that is read first, and those behind it, which take turns. The end that is read is
the right one."""


def promote_lower_priority(url: str, queue: str) -> None:
    """Count a finished task of a queue; after every SHARE of them put a message of a lower priority first.

    So nobody who has small changes without end keeps loads and fills waiting for ever. With RabbitMQ a worker takes
    from each queue by turns anyway.
    """
    if rabbit.is_rabbit(url):
        return
    with suppress(*AWAY, ValueError), _connected(url) as client:
        lists = lists_of(queue)
        client.eval(_LET_THROUGH, 1 + len(lists), f"larder:turn:{queue}", *lists, SHARE)


def without_message(url: str, lists: Mapping[str, Sequence[str]]) -> set[str]:
    """Those tasks of which no message waits and none is with a worker; none of them if the broker is away.

    `lists` names those of each. What waits behind a slow worker is heard, and so is what somebody is at. None with
    RabbitMQ, too, which does not tell what a worker has taken.
    """
    if rabbit.is_rabbit(url):
        return set()
    with suppress(*AWAY, ValueError), _connected(url) as client:
        empty = {task for task, waits in lists.items() if not client.exists(*waits)}
        taken = b"".join(client.hvals("unacked")) if empty else b""
        return {task for task in empty if f'"{task}"'.encode() not in taken}
    return set()


def facts(url: str) -> BrokerFacts | None:
    """Its kind, memory and policy; None if it is away. RabbitMQ tells its kind alone."""
    if rabbit.is_rabbit(url):
        with suppress(*AWAY, ValueError):
            return BrokerFacts(server=client_of(url).version(), policy="", used=0, limit=0)
        return None
    with suppress(*AWAY, ValueError), client_of(url) as client:
        # INFO, not CONFIG: a user that may run tasks need not be allowed to read the configuration.
        found = client.info("server") | client.info("memory")
        version = found.get("valkey_version")
        return BrokerFacts(
            server=f"Valkey {version}" if version else f"Redis {found.get('redis_version', '')}",
            policy=str(found.get("maxmemory_policy", "")),
            used=int(found.get("used_memory", 0)),
            limit=int(found.get("maxmemory", 0)),
        )
    return None


SILENT = f"takes connections and says nothing for {SECONDS:g} seconds"
REFUSALS: Mapping[str, str] = {
    "needs a password, and its address has none": "write redis://:PASSWORD@HOST:6379/0 into LARDER_BROKER_URL",
    "refuses the password": "correct user and password in LARDER_BROKER_URL",
    "has no virtual host of that name for its user": "correct the part behind the host in LARDER_BROKER_URL",
    "has a queue of that name that is no quorum queue": "delete it, or name a virtual host of Larder's own",
    "has no database of that number": "correct the number at the end of LARDER_BROKER_URL",
    "has a certificate for another host name": "write the name that is in its certificate into LARDER_BROKER_URL",
    "has a certificate that nobody we trust has signed": (
        "name the file of the authority that signed it: end LARDER_BROKER_URL with ?ssl_ca_certs=/path/ca.pem"
    ),
    "is to be trusted by a file that is not there": "correct ssl_ca_certs in LARDER_BROKER_URL",
    "refuses its user what workers do": (
        "let that user run all commands on all keys and channels (ACL SETUSER), or with RabbitMQ configure, write and"
        " read all (set_permissions)"
    ),
}
"""What it says who answers and does not let us in -> what to do."""
_SAID = (
    ("Authentication required|already authenticated", "needs a password, and its address has none"),
    ("DB index", "has no database of that number"),
    ("NOT_ALLOWED", "has no virtual host of that name for its user"),
    ("Login was refused", "refuses the password"),
    ("ACCESS_REFUSED", "refuses its user what workers do"),
    ("PRECONDITION_FAILED", "has a queue of that name that is no quorum queue"),
    ("^AuthenticationError", "refuses the password"),
    ("^NoPermissionError", "refuses its user what workers do"),
    ("refused", "cannot be reached: nothing listens at its address"),
    ("No such file", "cannot be reached: there is no such socket"),
    ("Name or service|name resolution|nodename nor", "cannot be reached: its host is not known"),
    ("(?i)hostname mismatch|IP address mismatch", "has a certificate for another host name"),
    ("CERTIFICATE_VERIFY_FAILED", "has a certificate that nobody we trust has signed"),
    ("SSL", "cannot be reached: TLS with it fails"),
    ("loading", "cannot be reached: it is still reading its data"),
    (
        "closed by server|reset by peer|Broken pipe",
        "cannot be reached: it closes the connection (no Redis or Valkey?)",
    ),
)
"""Words of an error -> what is wrong."""


def _host_in(url: str) -> str:
    """The host of an address, if none of it can be a piece of a password with an @ or / in it."""
    with suppress(ValueError):
        parts = urlsplit(url)
        if url.count("@") == parts.netloc.count("@") <= 1:
            return parts.hostname or ""
    return ""


def connect_problem(url: str) -> str:
    """Why it cannot be used, as the end of a sentence; empty if it can. Of the address only an unknown host is told."""
    try:
        with client_of(url) as client:
            client.ping()
            client.exists("control")  # to answer a ping needs no right on any key
    except (redis.TimeoutError, TimeoutError):
        return SILENT
    except (redis.RedisError, OSError, ValueError) as error:
        kind = type(error).__name__
        if url.startswith(("rediss:", "amqps:")) and "No such file" in str(error):
            return "is to be trusted by a file that is not there"
        said = (why for words, why in _SAID if re.search(words, f"{kind}: {error}"))
        why = next(said, f"cannot be reached: {kind}")
        return why.replace(" is not known", f" {_host_in(url)!r} is not known") if _host_in(url) else why
    return ""


def advice_on(why: str) -> str:
    """What to do about such trouble."""
    if why == SILENT:
        return "look whether it is stopped (T in `ps`), out of memory, cut off, or speaks no TLS (rediss)"
    return REFUSALS.get(why, "start it, or correct LARDER_BROKER_URL")


def client_of(url: str) -> Any:
    """A client of the broker; it connects at the first use. That of RabbitMQ knows `ping`, `exists` and `llen`.

    It tries nothing twice: a script that ran, and whose answer was lost, must not run again.
    """
    if rabbit.is_rabbit(url):
        return rabbit.RabbitClient(url, SECONDS)
    # Kombu writes the address of a socket differently from the client.
    address = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    return redis.Redis.from_url(
        address, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=Retry(NoBackoff(), 0)
    )


@lru_cache(maxsize=2)
def _kept_client(url: str) -> Any:
    return client_of(url)


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    """A client for what each step asks: it stays connected, since that takes longer than what is asked.

    One whose connection was cut meanwhile connects again; what is forked connects by itself.
    """
    if not rabbit.is_rabbit(url):
        yield _kept_client(url)
        return
    with client_of(url) as client:
        yield client


def tls_of(url: str) -> dict[str, Any] | None:
    """What Celery needs to know of TLS beyond the address: that the server must prove who it is; None without TLS."""
    return rabbit.tls_of(url) or (
        {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
        if url.startswith("rediss:")
        else None
    )


KEPT_SECONDS = 30 * 86_400


def set_if_absent(url: str, key: str, value: str) -> bool | None:
    """Keep a value for others to take; False if there is one already, None if the broker is away."""
    with suppress(*AWAY, ValueError), client_of(url) as client:
        return bool(client.set(key, value, nx=True, ex=KEPT_SECONDS))
    return None


def get_and_delete(url: str, key: str) -> bytes | None:
    """The value kept there, which one alone gets; None if there is none, or the broker is away."""
    with suppress(*AWAY, ValueError), client_of(url) as client:
        found: bytes | None = client.getdel(key)
        return found
    return None


REQUEST_HEADER = "larder_request"


def request_header() -> dict[str, str]:
    """The id of the request to the API that asks for what is sent, for the log of whoever does it."""
    structlog = sys.modules.get("structlog")  # the API has it; for who has not, it is large
    request = structlog.contextvars.get_contextvars().get("request") if structlog else None
    return {REQUEST_HEADER: request} if request else {}


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
        self._client = client_of(broker_url)
        self._prefix = prefix

    def run(self, script: str, name: str, parts: str, *arguments: object) -> Any:
        """What the script returns.

        `name` tells what is limited, `parts` which of its keys the script gets, with blanks; names are readable in
        Valkey and so must hold nothing secret. Raises one of `AWAY`.
        """
        # The braces keep the keys on one node of a cluster.
        keys = [f"{self._prefix}{{{name}}}:{part}" for part in parts.split()]
        return self._client.register_script(script)(keys, arguments)

    def disconnect(self) -> None:
        """Give the connections back."""
        self._client.connection_pool.disconnect()
