"""The broker: lengths of its queues, its configuration, and Lua scripts that run in it."""

from __future__ import annotations

import json
import re
import socket
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

from workers.monitoring import REQUEST_HEADER
from workers.queue import rabbit

AWAY = (redis.RedisError, OSError)
"""Errors of an unreachable broker; their messages may contain its address with the password."""

PRIORITIES = (0, 3, 6, 9)
"""Priorities that kombu distinguishes; 0 comes first."""

SECONDS = 3.0
"""Timeout of the broker; callers are often waiting for a screen."""


@dataclass(frozen=True, kw_only=True)
class BrokerFacts:
    """Version and memory of the broker."""

    server: str
    policy: str
    """`maxmemory-policy` of a full server."""
    used: int
    limit: int
    """Bytes; 0 is no limit."""


def lengths(url: str, queues: Sequence[str]) -> dict[str, int] | None:
    """Waiting messages of each queue, without those delivered to a worker; None if the broker is away."""
    with suppress(*AWAY, ValueError), client_of(url) as client:
        return {q: sum(int(client.llen(part)) for part in lists_of(q, url)) for q in queues}
    return None


QUARANTINE_KEY = "larder:set-aside"
"""Valkey key of the number of quarantined messages."""
QUARANTINE_LIST = f"{QUARANTINE_KEY}:messages"
"""Valkey key of the newest quarantined messages: time, task and id, without arguments."""
MAX_QUARANTINED = 1000


def quarantined_total(url: str) -> int | None:
    """Number of quarantined messages; None if the broker is away, or is RabbitMQ."""
    if rabbit.is_rabbit(url):
        return None
    with suppress(*AWAY, ValueError), client_of(url) as client:
        return int(client.get(QUARANTINE_KEY) or 0)
    return None


def quarantined_messages(url: str) -> list[dict[str, str]]:
    """`{"at", "task", "id"}` of quarantined messages, newest first; task and id may be empty.

    Raises one of `AWAY`.
    """
    if rabbit.is_rabbit(url):
        return []
    with client_of(url) as client:
        return [json.loads(one) for one in client.lrange(QUARANTINE_LIST, 0, -1)]


def drop_quarantined(url: str) -> int:
    """Delete the quarantined messages; returns how many there were."""
    total = quarantined_total(url) or 0
    if not rabbit.is_rabbit(url):
        with client_of(url) as client:
            client.delete(QUARANTINE_KEY, QUARANTINE_LIST)
    return total


def lists_of(queue: str, url: str = "") -> list[str]:
    """Names of a queue's lists in Valkey, or queues in RabbitMQ: one per priority."""
    between = "." if rabbit.is_rabbit(url) else "\x06\x16"
    return [queue, *(f"{queue}{between}{step}" for step in PRIORITIES if step)]


def consumed_queues(queue: str, url: str) -> list[str]:
    """Names that a worker of this queue consumes; Kombu adds the priorities of Valkey itself."""
    return lists_of(queue, url) if rabbit.is_rabbit(url) else [queue]


def queue_for(queue: str, url: str, priority: int | None) -> str:
    """Name of the queue for a message of this priority."""
    return lists_of(queue, url)[bisect(PRIORITIES, priority or 0) - 1] if rabbit.is_rabbit(url) else queue


def waiting(url: str, queue: str) -> dict[int, int]:
    """Priority -> waiting messages of a queue, without those delivered to a worker; empty if the broker is away."""
    with suppress(*AWAY, ValueError), _connected(url) as client:
        return {p: int(client.llen(part)) for p, part in zip(PRIORITIES, lists_of(queue, url), strict=True)}
    return {}


SHARE = 4
"""One of so many messages of a queue may pass others of a higher priority."""
_PROMOTE = """
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
"""KEYS: counter of turns, the list of the highest priority, and the lists of lower ones, which take turns.
Lists are read from the right."""


def promote_lower_priority(url: str, queue: str) -> None:
    """Count a finished task of a queue; after every SHARE tasks move a message of a lower priority to the front.

    An endless stream of small changes would otherwise block bulk loads. With RabbitMQ a worker reads its queues by
    turns anyway.
    """
    if rabbit.is_rabbit(url):
        return
    with suppress(*AWAY, ValueError), _connected(url) as client:
        lists = lists_of(queue)
        client.eval(_PROMOTE, 1 + len(lists), f"larder:turn:{queue}", *lists, SHARE)


def without_message(url: str, lists: Mapping[str, Sequence[str]]) -> set[str]:
    """Tasks without any message, neither waiting nor delivered to a worker; empty if the broker is away.

    `lists` are the lists of each task. Always empty with RabbitMQ, which does not tell which messages are delivered.
    """
    if rabbit.is_rabbit(url):
        return set()
    with suppress(*AWAY, ValueError), _connected(url) as client:
        empty = {task for task, waits in lists.items() if not client.exists(*waits)}
        unacknowledged = b"".join(client.hvals("unacked")) if empty else b""
        return {task for task in empty if f'"{task}"'.encode() not in unacknowledged}
    return set()


def facts(url: str) -> BrokerFacts | None:
    """Version, memory and policy of the broker; None if it is away. RabbitMQ gives only its version."""
    if rabbit.is_rabbit(url):
        with suppress(*AWAY, ValueError):
            return BrokerFacts(server=client_of(url).version(), policy="", used=0, limit=0)
        return None
    with suppress(*AWAY, ValueError), client_of(url) as client:
        # INFO, not CONFIG: a user that may run tasks may lack the right to read the configuration.
        info = client.info("server") | client.info("memory")
        version = info.get("valkey_version")
        return BrokerFacts(
            server=f"Valkey {version}" if version else f"Redis {info.get('redis_version', '')}",
            policy=str(info.get("maxmemory_policy", "")),
            used=int(info.get("used_memory", 0)),
            limit=int(info.get("maxmemory", 0)),
        )
    return None


SILENT = f"accepts connections and does not answer within {SECONDS:g} seconds"
PLAIN = "speaks no TLS at that port, which its address (rediss) wants"
REFUSALS: Mapping[str, str] = {
    PLAIN: "write redis:// instead of rediss:// into LARDER_BROKER_URL, or name the port at which it speaks TLS",
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
"""Problem with a broker that answers -> advice; the end of a sentence about the broker."""
_PROBLEMS = (
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
"""Pattern of an error -> problem."""


def _host_in(url: str) -> str:
    """The host of an address; empty if it might contain part of a password with an @ or / in it."""
    with suppress(ValueError):
        address = urlsplit(url)
        if url.count("@") == address.netloc.count("@") <= 1:
            return address.hostname or ""
    return ""


def _speaks_plainly(url: str) -> bool:
    """Whether a Valkey without TLS, which says nothing to who begins with it, is behind that address."""
    address = urlsplit(url)
    place = address.hostname or "", address.port or 6379
    with suppress(OSError), socket.create_connection(place, SECONDS) as line:
        line.settimeout(SECONDS)
        line.sendall(b"PING\r\n")
        return line.recv(1) in {b"+", b"-"}
    return False


def connect_problem(url: str) -> str:
    """Why the broker cannot be used, as the end of a sentence; empty if it can. It names no more than the host."""
    try:
        with client_of(url) as client:
            client.ping()
            client.exists("control")  # a ping needs no rights on keys
    except (redis.TimeoutError, TimeoutError):
        return PLAIN if url.startswith("rediss:") and _speaks_plainly(url) else SILENT
    except (redis.RedisError, OSError, ValueError) as error:
        kind = type(error).__name__
        if url.startswith(("rediss:", "amqps:")) and "No such file" in str(error):
            return "is to be trusted by a file that is not there"
        problems = (why for words, why in _PROBLEMS if re.search(words, f"{kind}: {error}"))
        why = next(problems, f"cannot be reached: {kind}")
        return why.replace(" is not known", f" {_host_in(url)!r} is not known") if _host_in(url) else why
    return ""


def advice_on(why: str) -> str:
    """Advice on a problem of `connect_problem`."""
    if why == SILENT:
        return "check whether it is stopped (T in `ps`), out of memory or cut off"
    return REFUSALS.get(why, "start it, or correct LARDER_BROKER_URL")


def client_of(url: str) -> Any:
    """A client of the broker, which connects on first use; for RabbitMQ it has `ping`, `exists` and `llen`.

    It does not retry: a script whose answer was lost must not run twice.
    """
    if rabbit.is_rabbit(url):
        return rabbit.RabbitClient(url, SECONDS)
    # Kombu and the client write socket addresses and the check of certificates differently.
    address = url.replace("redis+socket://", "unix://").replace("virtual_host=", "db=")
    address = re.sub(
        "ssl_cert_reqs=CERT_[A-Z]+", lambda match: match[0].replace("CERT_", "").lower(), address
    )
    return redis.Redis.from_url(
        address, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=Retry(NoBackoff(), 0)
    )


@lru_cache(maxsize=2)
def _cached_client(url: str) -> Any:
    return client_of(url)


@contextmanager
def _connected(url: str) -> Iterator[Any]:
    """A client for frequent short calls, which stays connected, since connecting takes longer than a call.

    It reconnects after a lost connection and after a fork.
    """
    if not rabbit.is_rabbit(url):
        yield _cached_client(url)
        return
    with client_of(url) as client:
        yield client


def tls_of(url: str) -> dict[str, Any] | None:
    """Celery's TLS options, which verify the server; None without TLS."""
    return rabbit.tls_of(url) or (
        {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
        if url.startswith("rediss:")
        else None
    )


def results_url(url: str) -> str:
    """The address for Celery's backend of results, which asks for `ssl_cert_reqs` in every address with TLS."""
    if not url.startswith("rediss:") or "ssl_cert_reqs=" in url:
        return url
    return f"{url}{'&' if '?' in url else '?'}ssl_cert_reqs=required"


KEPT_SECONDS = 30 * 86_400


def set_if_absent(url: str, key: str, value: str) -> bool | None:
    """Store a value for KEPT_SECONDS; False if the key exists, None if the broker is away."""
    with suppress(*AWAY, ValueError), client_of(url) as client:
        return bool(client.set(key, value, nx=True, ex=KEPT_SECONDS))
    return None


def get_and_delete(url: str, key: str) -> bytes | None:
    """Take a value, for one caller only; None if there is none, or the broker is away."""
    with suppress(*AWAY, ValueError), client_of(url) as client:
        value: bytes | None = client.getdel(key)
        return value
    return None


OWNER = "larder:database"
"""Names the database whose workers take the messages of this broker."""
OWNER_SECONDS = 45
"""Without a word of them it is anybody's: no mark of what was moved or restored is left to be removed by hand."""


def claim(url: str, database: str) -> str:
    """Note that workers of this database take the messages of a Valkey; the other one whose workers do so already.

    Empty if there is none, or the broker is away. A RabbitMQ has virtual hosts, and keeps no such note.
    """
    if not rabbit.is_rabbit(url):
        with suppress(*AWAY, ValueError), _connected(url) as client:
            if client.set(OWNER, database, nx=True, ex=OWNER_SECONDS):
                return ""
            if (owner := (client.get(OWNER) or b"").decode(errors="replace")) != database:
                return owner
            client.expire(OWNER, OWNER_SECONDS)
    return ""


def owner(url: str) -> str:
    """The database whose workers take its messages; empty if none do, or the broker is away."""
    if not rabbit.is_rabbit(url):
        with suppress(*AWAY, ValueError), client_of(url) as client:
            return str((client.get(OWNER) or b"").decode(errors="replace"))
    return ""


def disown(url: str) -> None:
    """Forget whose workers take its messages."""
    with suppress(*AWAY, ValueError), client_of(url) as client:
        client.delete(OWNER)


def shared_with(database: str) -> tuple[str, str]:
    """Message and fix for a broker whose messages workers of another database take."""
    name = database.partition("/")[2]
    message = f"workers of another database ({name!r}) use the same number of this Valkey:"
    message += " each installation takes the other's messages"
    fix = "end LARDER_BROKER_URL with a number that is free, as redis://HOST:6379/1; if this database was moved or"
    fix += f" restored, stop the workers of the former one and begin again {OWNER_SECONDS} s later"
    return message, fix


def request_header() -> dict[str, str]:
    """Header with the id of the current API request, for the log of the worker."""
    structlog = sys.modules.get("structlog")  # loaded in the API; not imported elsewhere, since it is large
    request = structlog.contextvars.get_contextvars().get("request") if structlog else None
    return {REQUEST_HEADER: request} if request else {}


FIX = "check that Valkey runs and is reachable at the broker's address; it is retried automatically"
"""Advice while Valkey is away."""

CLOSING = """
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local function closed(key) return math.max(0, redis.call('PTTL', key)) / 1000 end
local function close(key, seconds)
  if seconds > closed(key) then redis.call('SET', key, '1', 'PX', math.ceil(seconds * 1000)) end
end
local function answer(why, seconds) return {why, string.format('%.3f', seconds)} end
"""
"""Common start of all limiter scripts: the server's time, and a key that closes a service for some seconds.

Each step of a limiter is one script, so that workers neither overtake each other nor disagree on the time. A shorter
closing never shortens a longer one.
"""


class Scripts:
    """Runs the scripts of one limiter; connects on first use, and again after `disconnect`. Thread-safe."""

    def __init__(self, broker_url: str, prefix: str) -> None:
        """`prefix` starts all its keys."""
        self._client = client_of(broker_url)
        self._prefix = prefix

    def run(self, script: str, name: str, key_names: str, *arguments: object) -> Any:
        """Run a script and return its result.

        `name` is the limited host or provider, `key_names` are its keys, separated by blanks. Names are readable in
        Valkey and must not be secret. Raises one of `AWAY`.
        """
        # Braces keep the keys on one node of a cluster.
        keys = [f"{self._prefix}{{{name}}}:{part}" for part in key_names.split()]
        return self._client.register_script(script)(keys, arguments)

    def disconnect(self) -> None:
        """Close the connections."""
        self._client.connection_pool.disconnect()
