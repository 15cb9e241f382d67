"""The driver's errors as ours: why a connection could not be made or is of no use, and what a statement failed of.

Of connections the driver gives no code, only words. The server's own come after its severity and two blanks, in
whatever language it speaks; those of the client are English. None holds a password or the whole address.
"""

from __future__ import annotations

import re

import psycopg
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

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
    """The server keeps the connection and says nothing."""


_SERVER_SAYS = re.compile(r"failed: [^\s:]+:  ([^\n]+)")
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
_PASSING = (
    *_STARTING,
    "shutting down",
    "too many clients",
    "too many connections",
    "connection slots are reserved",
)
"""Said by a server that will let us in a moment later."""
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
"""Words of a server that refuses -> what to do; the first that fits."""
_NO_ANSWER = (
    ("failed to resolve host", "its host is not known"),
    ("Connection refused", "nothing listens at its address"),
    ("No such file", "there is no such socket"),
    ("unreachable", "there is no way to its host"),
    ("No route", "there is no way to its host"),
    ("invalid response", "what listens at its address is no PostgreSQL"),
    ("expected authentication request", "what listens at its address is no PostgreSQL"),
)
"""Words of the client -> why nobody answers."""
KEPT = "see `larder doctor`; queued work is kept and tried again"


def _first_line(error: object) -> str:
    """Without the list of all addresses that were tried, where a host has several."""
    return str(error).partition("\n")[0]


def is_starting(error: BaseException) -> bool:
    """Whether a server says that it is being started, or reads its log after a crash."""
    return isinstance(error, psycopg.OperationalError) and any(words in str(error) for words in _STARTING)


START_POLL_SECONDS = 0.3


def while_starting(seconds: float) -> Retrying:
    """Calls again what fails since a server is being started, for so many seconds."""
    return Retrying(
        retry=retry_if_exception(is_starting),
        stop=stop_after_delay(seconds),
        wait=wait_fixed(START_POLL_SECONDS),
        reraise=True,
    )


def _refusal(error: psycopg.Error) -> StoreError | None:
    """The error of ours if the server answered and let us in no further, or the address itself is wrong; else None."""
    words = str(error)
    if parameter := _PARAMETER.search(words):
        return StoreMisnamed(
            f"the address of the database is wrong: its parameter {parameter[1] or parameter[2]} is refused",
            fix="correct what stands behind the ? in LARDER_DATABASE_URL",
        )
    if answers := _SERVER_SAYS.findall(words):
        return _refused(answers[-1])
    said = words.rpartition("failed: ")[2].partition("\n")[0]
    if "SSL" in said or "certificate" in said:
        return StoreRefused(f"TLS with the database fails: {said}", fix=_TLS)
    if "no password supplied" in words:
        return StoreMisnamed("the database wants a password, and its address holds none", fix=_LOGIN)
    return None


def _refused(said: str) -> StoreError:
    if any(words in said for words in _PASSING):
        return StoreUnavailable(f"the database takes no connections now: {said}", fix=KEPT)
    fix = next((fix for words, fix in _FIXES if words in said), "see the log of the database server")
    kind = StoreMisnamed if "set role" in said else StoreRefused
    return kind(f"the database refuses the login: {said}", fix=fix)


def check_parameters(url: str) -> None:
    """See whether the client takes what stands behind the ? of an address; nobody is asked.

    Raises:
        StoreRefused: it does not.
    """
    plain = url.replace("postgresql+psycopg:", "postgresql:", 1)
    try:
        psycopg.connect(plain, host="/nowhere", hostaddr="", port="1", connect_timeout=1).close()
    except psycopg.Error as error:
        refused = _refusal(error)
        if refused and "parameter" in refused.message:
            raise refused from None


def _no_answer(error: BaseException | None, state: str | None) -> str:
    """Why nobody answers, in words; what the driver calls it if we have none."""
    said, named = str(error), " ".join(filter(None, (type(error).__name__, state)))
    host = _UNKNOWN_HOST.search(said)
    why = next((why for words, why in _NO_ANSWER if words in said), named)
    return f"its host {host[1]!r} is not known" if host else why


def message_of(error: BaseException | None) -> str:
    """The server's message without values: the lines after the first quote rows, and that of wrong data quotes them."""
    said = getattr(getattr(error, "diag", None), "message_primary", None)
    wrong_data = str(getattr(error, "sqlstate", None)).startswith("22")
    return type(error).__name__ if wrong_data or not said else str(said)


# Nobody else could write such a value either: its form, a column's rule, a limit of the server, or our own functions
# refuse it. All else is trouble of the server or of its tables, and mending that mends it for all that waits.
_OF_THE_VALUE = ("22", "23502", "23505", "23514", "54", "P0")
_HINDRANCES = (
    (
        "42501",
        "the login lacks that right: `larder migrate`, with the owner's LARDER_ADMIN_DATABASE_URL, grants all",
    ),
    ("42", "the schema is that of another version, or was changed by hand: `larder migrate`"),
    ("25006", "it only reads: name the primary server in LARDER_DATABASE_URL, not a standby"),
    ("53100", f"its disk is full: make room. {KEPT}"),
    ("53", f"it lacks memory or connections: give it more. {KEPT}"),
    ("58", f"it cannot read or write its files: see its log and its disk. {KEPT}"),
    ("XX", f"it fails in itself: see its log and its disk. {KEPT}"),
    ("", f"see its log. {KEPT}"),
)
"""First letters of a state of the server in which it does nothing -> what to do; the first that fits."""
# Deadlock, serialization failure, lock or statement timeout, too many connections, shutdown in progress:
# the same work may succeed a moment later.
_PASSING_STATES = (
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
    """The error of ours for one of the driver's: passing trouble or refusal."""
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
    if lost or state in _PASSING_STATES:
        return StoreUnavailable(f"the database does not answer: {_no_answer(original, state)}", fix=KEPT)
    what = message_of(original)
    if not state or state.startswith(_OF_THE_VALUE):
        return StoreRejected(f"the database refuses: {what}")
    # A state of the server in which it can do nothing, or nothing with some of its rows.
    kind = StoreDamaged if state.startswith("XX") else StoreHindered
    return kind(
        f"the database cannot do this now: {what} ({state})",
        fix=next(fix for letters, fix in _HINDRANCES if state.startswith(letters)),
    )
