"""Servers that answer and let nobody in: every command says what was refused and what to correct."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
import redis

from pipeline.database.engine import Database
from pipeline.errors import StoreRefused, StoreUnavailable
from tests.conftest import Addresses
from tests.workers.cli.asking import Run
from tests.workers.cli.conftest import runner
from workers.local import embedded
from workers.queue import broker

Superuser = Callable[[str], psycopg.Connection[Any]]
SESAME = "open-sesame"


def as_user(url: str, login: str) -> str:
    """The same server, with another `user:password`; without one if it is empty."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{login}{'@' * bool(login)}{parts.netloc.rpartition('@')[2]}"))


CONFIG = (
    "rag: {tenant: acme, embedding: {provider: hashing}, sources: [{name: n, type: text, paths: ['*.txt']}]}"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]) -> Run:
    """`run("status", LARDER_BROKER_URL=...)`: any command on this test's servers."""
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "a.txt").write_text("A text.")
    return runner(tmp_path, monkeypatch, {**environment, "COLUMNS": "1000"}, CONFIG)


# The database -------------------------------------------------------------------------------------

COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("doctor",),
    ("search", "kestrel"),
    ("ingest", "inbox"),
    ("index",),
    ("sources", "list"),
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda c: c[0])
def test_a_wrong_password_is_a_refusal_and_never_shown(
    run: Run, addresses: Addresses, command: tuple[str, ...]
) -> None:
    wrong = as_user(addresses.app, f"larder_app:{SESAME}")
    said = run(*command, LARDER_DATABASE_URL=wrong, LARDER_CONTROL_DATABASE_URL=wrong)
    assert said.exit_code == 1
    assert 'refuses the login: password authentication failed for user "larder_app"' in said.output
    assert "LARDER_DATABASE_URL" in said.output
    assert "does not answer" not in said.output
    assert SESAME not in said.output
    assert "Traceback" not in said.output


def test_status_tells_a_refusal_from_silence(run: Run, addresses: Addresses) -> None:
    wrong = as_user(addresses.app, f"larder_app:{SESAME}")
    away = {"LARDER_DATABASE_URL": wrong, "LARDER_CONTROL_DATABASE_URL": wrong}
    assert "database refuses us" in run("status", **away).stdout
    found = json.loads(run("status", "--json", **away).stdout)
    assert (found["database"], found["broker"]) == ("refused", "ok")
    assert "user and password" in found["error"]["fix"]


def refused(url: str) -> StoreUnavailable:
    database = Database(url)
    with pytest.raises(StoreUnavailable) as caught, database.tenant(uuid4()):
        pass
    database.close()
    assert caught.value.transient, "work must wait until the login is mended"
    return caught.value


@pytest.fixture
def login(superuser: Superuser, addresses: Addresses) -> Iterator[str]:
    """A login that may do nothing."""
    name = f"guest_{addresses.name}"
    with superuser("postgres") as connection:
        connection.execute(f"create role {name} login password '{SESAME}'")
    yield name
    with superuser("postgres") as connection:
        connection.execute(f"drop role {name}")


@pytest.mark.parametrize(
    ("change", "message", "fix"),
    [
        (lambda url: f"{url}x", "does not exist", "the name at the end"),
        (lambda url: as_user(url, "larder_app"), "needs a password", "user and password"),
        (lambda url: f"{url}?sslmode=require", "TLS with the database fails: server does not", "sslmode"),
        (lambda url: f"{url}?sslmode=maybe", "its parameter sslmode is refused", "behind the ?"),
        (lambda url: f"{url}?secret={SESAME}", "its parameter secret is refused", "behind the ?"),
    ],
    ids=["database", "no password", "tls", "sslmode", "parameter"],
)
def test_what_is_refused_is_named(
    addresses: Addresses, change: Callable[[str], str], message: str, fix: str
) -> None:
    error = refused(change(addresses.app))
    assert isinstance(error, StoreRefused)
    assert message in error.message
    assert fix in error.fix
    assert SESAME not in str(error)


def test_a_login_that_may_not_act_for_us(addresses: Addresses, login: str, superuser: Superuser) -> None:
    error = refused(as_user(addresses.app, f"{login}:{SESAME}"))
    assert isinstance(error, StoreRefused)
    assert 'permission denied to set role "larder_app"' in error.message
    assert "larder migrate" in error.fix
    with superuser("postgres") as connection:
        connection.execute(f"alter role {login} nologin")
    error = refused(as_user(addresses.app, f"{login}:{SESAME}"))
    assert "is not permitted to log in" in error.message
    assert "the user in LARDER_DATABASE_URL" in error.fix


def test_a_missing_control_address_is_wrong_configuration(
    run: Run, addresses: Addresses, superuser: Superuser
) -> None:
    name = f"only_app_{addresses.name}"
    with superuser("postgres") as connection:
        connection.execute(f"create role {name} login password '{SESAME}'")
        connection.execute(f"grant larder_app to {name}")
    try:
        own = as_user(addresses.app, f"{name}:{SESAME}")
        said = run("sources", "list", LARDER_DATABASE_URL=own, LARDER_CONTROL_DATABASE_URL="")
        assert "LARDER_CONTROL_DATABASE_URL" in said.output
        assert said.exit_code == 2
    finally:
        with superuser("postgres") as connection:
            connection.execute(f"drop role {name}")


def test_a_server_that_is_full_only_asks_for_patience(addresses: Addresses, superuser: Superuser) -> None:
    with superuser("postgres") as connection:
        connection.execute(f"alter database {addresses.name} connection limit 0")
    error = refused(addresses.app)
    assert not isinstance(error, StoreRefused)
    assert "takes no connections now: too many connections" in error.message


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("127.0.0.1:1", "nothing listens at its address"),
        ("nowhere.invalid", "its host 'nowhere.invalid' is not known"),
        (f"{SESAME}@nowhere.invalid", "its host is not known"),  # may be a piece of the password
    ],
)
def test_why_nobody_answers_is_said(where: str, why: str) -> None:
    error = refused(f"postgresql://larder_app:{SESAME}@{where}/larder")
    assert not isinstance(error, StoreRefused)
    assert error.message == f"the database does not answer: {why}"


# The broker ---------------------------------------------------------------------------------------


@pytest.fixture
def slammer() -> Iterator[int]:
    """A port at which somebody takes connections and closes them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def slam() -> None:
            while True:
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        threading.Thread(target=slam, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def reader(servers: embedded.Servers) -> Iterator[str]:
    """The address for a user of the broker that may only ping."""
    client: Any = redis.Redis.from_url(servers.broker_url)
    client.execute_command("ACL", "SETUSER", "guest", "on", f">{SESAME}", "+ping", "+hello", "+client")
    yield as_user(servers.broker_url, f"guest:{SESAME}")
    client.execute_command("ACL", "DELUSER", "guest")
    client.close()


def test_a_broker_that_refuses_says_what(servers: embedded.Servers, reader: str, slammer: int) -> None:
    said = {
        as_user(servers.broker_url, f":{SESAME}"): "refuses the password",
        as_user(servers.broker_url, ""): "needs a password, and its address has none",
        servers.broker_url.removesuffix("/0") + "/4711": "has no database of that number",
        reader: "refuses its user what workers do",
        f"rediss{servers.broker_url.removeprefix('redis')}": broker.PLAIN,
    }
    for url, why in said.items():
        assert broker.connect_problem(url) == why
        assert why in broker.REFUSALS, "it has a remedy of its own"
    unreached = {
        f"redis://:{SESAME}@127.0.0.1:{slammer}/0": "it closes the connection (no Redis or Valkey?)",
        f"redis://:{SESAME}@nowhere.invalid:6379/0": "its host 'nowhere.invalid' is not known",
        f"redis://:pass@{SESAME}.invalid/@nowhere.invalid:6379/0": "its host is not known",
        f"redis://:{SESAME}@127.0.0.1:1/0": "nothing listens at its address",
    }
    for url, why in unreached.items():
        assert broker.connect_problem(url) == f"cannot be reached: {why}"
    assert broker.connect_problem(servers.broker_url) == ""


@pytest.mark.parametrize("command", ["status", "doctor", "index"])
def test_a_wrong_password_of_the_broker_is_said(run: Run, servers: embedded.Servers, command: str) -> None:
    said = run(command, LARDER_BROKER_URL=as_user(servers.broker_url, f":{SESAME}"))
    assert said.exit_code == (0 if command == "status" else 1)
    assert "broker refuses the password" in said.output
    assert "does not answer" not in said.output
    assert SESAME not in said.output
    if command != "status":
        assert "correct user and password in LARDER_BROKER_URL" in said.output


def test_status_names_the_brokers_refusal(run: Run, servers: embedded.Servers) -> None:
    wrong = as_user(servers.broker_url, "")
    assert "broker refuses us" in run("status", LARDER_BROKER_URL=wrong).stdout
    found = json.loads(run("status", "--json", LARDER_BROKER_URL=wrong).stdout)
    assert (found["broker"], found["broker_error"]) == (
        "refused",
        "needs a password, and its address has none",
    )
