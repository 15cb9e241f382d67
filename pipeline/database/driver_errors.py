"""Translates the driver's errors into ours: failed connections and failed statements.

For connections the driver has no codes, only messages. The server's follow its severity and two blanks, in the
server's language; the client's are English. None contains a password or the whole address.
"""

from __future__ import annotations

import re

import psycopg
from tenacity import RetryCallState, Retrying, stop_after_delay, wait_fixed

from pipeline.errors import (
    StoreDamaged,
    StoreError,
    StoreHindered,
    StoreMisnamed,
    StoreRefused,
    StoreRejected,
    StoreSilent,
    StoreUnavailable,
)


class AnswerTimeout(psycopg.OperationalError):
    """The server keeps the connection open and does not answer."""


_SERVER_MESSAGE = re.compile(r"failed: [^\s:]+:  ([^\n]+)")
_PARAMETER = re.compile(r'invalid (?:(\w+) value:|URI query parameter:|connection option) "(\w*)')

_UNKNOWN_HOST = re.compile(r"failed to resolve host '([^'@\s]+)'")

_LOGIN = (
    "correct user and password in the address of that login: LARDER_DATABASE_URL,"
    " LARDER_CONTROL_DATABASE_URL or LARDER_ADMIN_DATABASE_URL"
)
_TLS = "correct sslmode and sslrootcert in LARDER_DATABASE_URL, or the certificate of the server"
_STARTING = (
    "starting up",
    "in recovery mode",
    "not yet accepting connections",
    "system is not accepting connections",
)
_TRANSIENT = (
    *_STARTING,
    "shutting down",
    "too many clients",
    "too many connections",
    "connection slots are reserved",
)
"""Messages of a server that will accept connections a moment later."""
_FIXES = (
    (
        "pg_hba.conf",
        "let this machine and login in by pg_hba.conf of the server; some only do with ?sslmode=require",
    ),
    (
        "set role",
        "grant that role to the login, or name one that may: LARDER_CONTROL_DATABASE_URL, set by `larder migrate`",
    ),
    ("authentication", _LOGIN),
    ("password", _LOGIN),
    ("permission denied for database", "as its owner: grant connect on that database to that login"),
    ("database ", "correct the name at the end of the address in LARDER_DATABASE_URL, or make that database"),
    ("role ", "correct the user in LARDER_DATABASE_URL, or let `larder migrate` make the roles as the owner"),
)
"""Part of a server's refusal -> advice; the first match counts."""
_HANGS_UP = ("closed the connection", "closed unexpectedly", "unexpected eof", "SYSCALL")
"""What a proxy or a balancer of which the database is away does at once, over TLS or without."""
_NO_ANSWER = (
    ("failed to resolve host", "its host is not known"),
    ("Connection refused", "nothing listens at its address"),
    ("No such file", "there is no such socket"),
    ("unreachable", "there is no way to its host"),
    ("No route", "there is no way to its host"),
    ("invalid response", "what listens at its address is no PostgreSQL"),
    ("expected authentication request", "what listens at its address is no PostgreSQL"),
    *((words, "what listens at its address closes the connection") for words in _HANGS_UP),
)
"""Part of the client's message -> reason why nothing answers."""
RETRY_ADVICE = "see `larder doctor`; queued work is kept and tried again"


def _first_line(error: object) -> str:
    """The first line, without the list of all addresses that were tried."""
    return str(error).partition("\n")[0]


def is_starting(error: BaseException) -> bool:
    """True if the server is starting, or recovering after a crash."""
    return isinstance(error, psycopg.OperationalError) and any(words in str(error) for words in _STARTING)


START_POLL_SECONDS = 0.3
RESTART_SECONDS = 5.0
"""Seconds in which a server that is being restarted may not listen yet."""
_UNHEARD = ("Connection refused", "No such file", *_HANGS_UP)


def while_starting(seconds: float) -> Retrying:
    """Retries for `seconds` calls that fail while the server is starting, and for a moment if nothing listens."""

    def may_pass(state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome else None
        if error is None or is_starting(error):
            return error is not None
        unheard = isinstance(error, psycopg.OperationalError) and any(w in str(error) for w in _UNHEARD)
        return unheard and (state.seconds_since_start or 0) < RESTART_SECONDS

    return Retrying(
        retry=may_pass,
        stop=stop_after_delay(seconds),
        wait=wait_fixed(START_POLL_SECONDS),
        reraise=True,
    )


def _refusal(error: psycopg.Error) -> StoreError | None:
    """The error for a server that refused the login or an address that is wrong; None for other errors."""
    words = str(error)
    if parameter := _PARAMETER.search(words):
        return StoreMisnamed(
            f"the address of the database is wrong: its parameter {parameter[1] or parameter[2]} is refused",
            fix="correct what stands behind the ? in LARDER_DATABASE_URL",
        )
    if answers := _SERVER_MESSAGE.findall(words):
        return _refused(answers[-1])
    reason = words.rpartition("failed: ")[2].partition("\n")[0]
    hangs_up = any(words in reason for words in _HANGS_UP)
    if ("SSL" in reason or "certificate" in reason) and not hangs_up:
        return StoreRefused(f"TLS with the database fails: {reason}", fix=_TLS)
    if "no password supplied" in words:
        return StoreMisnamed("the database needs a password, and its address has none", fix=_LOGIN)
    return None


def _refused(reason: str) -> StoreError:
    if any(words in reason for words in _TRANSIENT):
        return StoreUnavailable(f"the database takes no connections now: {reason}", fix=RETRY_ADVICE)
    fix = next((fix for words, fix in _FIXES if words in reason), "see the log of the database server")
    kind = StoreMisnamed if "set role" in reason else StoreRefused
    return kind(f"the database refuses the login: {reason}", fix=fix)


def check_parameters(url: str) -> None:
    """Check the parameters after the ? of an address; nothing is connected.

    Raises:
        StoreRefused: a parameter is unknown or wrong.
    """
    plain = url.replace("postgresql+psycopg:", "postgresql:", 1)
    try:
        psycopg.connect(plain, host="/nowhere", hostaddr="", port="1", connect_timeout=1).close()
    except psycopg.Error as error:
        refused = _refusal(error)
        if refused and "parameter" in refused.message:
            raise refused from None


def _no_answer(error: BaseException | None, state: str | None) -> str:
    """Reason why nothing answers; the name of the driver's error if it is unknown."""
    message, named = str(error), " ".join(filter(None, (type(error).__name__, state)))
    host = _UNKNOWN_HOST.search(message)
    why = next((why for words, why in _NO_ANSWER if words in message), named)
    return f"its host {host[1]!r} is not known" if host else why


def message_of(error: BaseException | None) -> str:
    """The server's message without values; later lines quote rows, and messages on wrong data quote values."""
    message = getattr(getattr(error, "diag", None), "message_primary", None)
    wrong_data = str(getattr(error, "sqlstate", None)).startswith("22")
    return type(error).__name__ if wrong_data or not message else str(message)


# States that blame the value: its format, a constraint, a limit of the server, or our own functions refuse it. Other
# states are faults of the server or its tables; once they are repaired, all waiting work succeeds.
_VALUE_STATES = ("22", "23502", "23505", "23514", "54", "P0")
_GRANT = (
    "grant it to that login: docs/operations.md#own-postgresql-and-valkey has what the owner is granted by hand;"
    " `larder migrate`, with the owner's LARDER_ADMIN_DATABASE_URL, grants the rest"
)
_HINDRANCES = (
    ("42501", _GRANT),
    ("42", "the schema is that of another version, or was changed by hand: `larder migrate`"),
    ("25006", "it only reads: name the primary server in LARDER_DATABASE_URL, not a standby"),
    ("53100", f"its disk is full: make room. {RETRY_ADVICE}"),
    ("53", f"it lacks memory or connections: give it more. {RETRY_ADVICE}"),
    ("58", f"it cannot read or write its files: see its log and its disk. {RETRY_ADVICE}"),
    ("XX", f"it fails in itself: see its log and its disk. {RETRY_ADVICE}"),
    ("", f"see its log. {RETRY_ADVICE}"),
)
"""Prefix of an SQL state in which the server cannot work -> advice; the first match counts."""
# Deadlock, serialization failure, lock or statement timeout, too many connections, shutdown in progress:
# the same work may succeed a moment later.
_TRANSIENT_STATES = (
    "40P01",
    "40001",
    "55P03",
    "57014",
    "53300",
    "57P01",
    "57P02",
    "57P03",
    "08006",
    "08001",
    "08003",
)


def translate(original: BaseException | None, *, lost: bool = False) -> StoreError:
    """Our error for one of the driver's."""
    if isinstance(original, (AnswerTimeout, psycopg.errors.ConnectionTimeout)):
        return StoreSilent(
            f"the database says nothing: {_first_line(original)}",
            fix="it is frozen, overloaded or cut off: see `larder doctor`; queued work is kept and tried again",
        )
    state = getattr(original, "sqlstate", None)
    if not state and isinstance(original, psycopg.Error):
        if refused := _refusal(original):
            return refused
        lost |= isinstance(original, psycopg.OperationalError)
    if lost or state in _TRANSIENT_STATES:
        return StoreUnavailable(
            f"the database does not answer: {_no_answer(original, state)}", fix=RETRY_ADVICE
        )
    message = message_of(original)
    if not state or state.startswith(_VALUE_STATES):
        return StoreRejected(f"the database refuses: {message}")
    # The server as a whole, or some of its rows, cannot be used.
    kind = StoreDamaged if state.startswith("XX") else StoreHindered
    return kind(
        f"the database cannot do this now: {message} ({state})",
        fix=next(fix for letters, fix in _HINDRANCES if state.startswith(letters)),
    )
