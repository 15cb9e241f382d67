"""Real servers, once per run; each test gets a database of its own, copied from a migrated template."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from pipeline.database import migrations
from pipeline.database.engine import Database
from pipeline.ledger import project_id, sources, tenant_id
from workers import embedded
from workers.processes import supervisor

# A busy machine is no bug: no example has a deadline of its own, and none is drawn too slowly.
settings.register_profile("home", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change lands or not by what it does, not by what was drawn that day; at home new examples are drawn each time.
settings.register_profile("ci", settings.get_profile("home"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")

TEMPLATE = "larder_template"
_counter = itertools.count(1)


def with_database(url: str, name: str) -> str:
    """The same server and role, another database."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"/{name}"))


@pytest.fixture(scope="session")
def server_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="larder-tests-"))
    yield folder
    embedded.stop(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def servers(server_folder: Path) -> embedded.Servers:
    """PostgreSQL and Valkey, running. A server that does not start fails the run; nothing is skipped."""
    return embedded.ensure(server_folder)


@pytest.fixture(scope="session")
def superuser(servers: embedded.Servers, server_folder: Path) -> Callable[[str], psycopg.Connection[Any]]:
    """Opens an autocommit connection that sees everything, to a database by name."""
    password = embedded.Credentials.of(server_folder).postgres
    port = urlsplit(servers.database_url).port

    def connect(database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=port, user="postgres", password=password, dbname=database, autocommit=True
        )

    return connect


@pytest.fixture(scope="session")
def template(servers: embedded.Servers, superuser: Callable[[str], psycopg.Connection[Any]]) -> str:
    """A database with the current schema, copied for each test."""
    with superuser("postgres") as connection:
        # What these servers hold is thrown away; crashes are tested on servers with fsync on.
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(f"alter system set {setting} = off")
        connection.execute("select pg_reload_conf()")
        connection.execute(f"create database {TEMPLATE} owner larder_owner")
    with superuser(TEMPLATE) as connection:
        connection.execute("create extension vector")
        connection.execute("grant create on schema public to larder_owner")
    migrations.upgrade(with_database(servers.admin_url, TEMPLATE))
    return TEMPLATE


@dataclass(frozen=True)
class Addresses:
    """Where one test's database is, for each role."""

    name: str
    app: str
    control: str
    admin: str


@pytest.fixture
def addresses(
    servers: embedded.Servers, template: str, superuser: Callable[[str], psycopg.Connection[Any]]
) -> Iterator[Addresses]:
    name = f"test_{os.getpid()}_{next(_counter)}"
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} template {template} owner larder_owner")
    yield Addresses(
        name=name,
        app=with_database(servers.database_url, name),
        control=with_database(servers.control_url, name),
        admin=with_database(servers.admin_url, name),
    )
    with superuser("postgres") as connection:
        connection.execute(f"drop database if exists {name} with (force)")


@pytest.fixture
def database(addresses: Addresses) -> Iterator[Database]:
    """The application's two ways into this test's database."""
    made = Database(addresses.app, addresses.control)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_addresses(
    request: pytest.FixtureRequest,
    servers: embedded.Servers,
    template: str,
    superuser: Callable[[str], psycopg.Connection[Any]],
) -> Iterator[Addresses]:
    """One database for the tests of a file: copying the template costs more than most of them."""
    name = f"shared_{os.getpid()}_{abs(hash(request.node.nodeid))}"
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} template {template} owner larder_owner")
    yield Addresses(
        name=name,
        app=with_database(servers.database_url, name),
        control=with_database(servers.control_url, name),
        admin=with_database(servers.admin_url, name),
    )
    with superuser("postgres") as connection:
        connection.execute(f"drop database if exists {name} with (force)")


@pytest.fixture(scope="module")
def shared_database(shared_addresses: Addresses) -> Iterator[Database]:
    """The application's two ways into the shared database."""
    made = Database(shared_addresses.app, shared_addresses.control, pool_size=12)
    yield made
    made.close()


@pytest.fixture
def omniscient(
    addresses: Addresses, superuser: Callable[[str], psycopg.Connection[Any]]
) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees every tenant's rows, for assertions."""
    with superuser(addresses.name) as connection:
        yield connection


@pytest.fixture
def tenant(database: Database) -> UUID:
    """A tenant called `acme` with a project `app`, in the ledger."""
    made = tenant_id("acme")
    with database.tenant(made) as connection:
        sources.ensure_tenant(connection, made, "acme", project_id(made, "app"), "app")
    return made


@pytest.fixture
def project(tenant: UUID) -> UUID:
    """The id of acme's project `app`."""
    return project_id(tenant, "app")


@dataclass
class Answer:
    """What a command printed and how it ended."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


@dataclass
class Site:
    """A folder with a configuration and embedded servers of its own, driven by the real command line."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / ".larder"

    def write(self, relative: str, content: str | bytes) -> Path:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def larder(self, *args: str, timeout: float = 120, env: dict[str, str] | None = None) -> Answer:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("LARDER_", "RAG_"))}
        # Files, not pipes: a detached process that inherits a pipe would keep it open.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            done = subprocess.run(
                [sys.executable, "-m", "workers.cli", *args],
                cwd=self.root,
                env={**clean, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[1]), **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                timeout=timeout,
                check=False,
            )
            out.seek(0)
            err.seek(0)
            return Answer(done.returncode, out.read().decode(), err.read().decode())


@pytest.fixture(scope="session")
def make_site() -> Callable[[Path], Site]:
    """Builds a site in a folder; the caller stops it."""
    return Site


@pytest.fixture
def site() -> Iterator[Site]:
    """An empty site; whatever it started is stopped at the end."""
    root = Path(tempfile.mkdtemp(prefix="larder-site-"))
    made = Site(root)
    yield made
    supervisor.shut_down(made.data)
    shutil.rmtree(root, ignore_errors=True)
