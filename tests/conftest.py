"""Real servers, once per run; each test gets a database of its own, copied from a migrated template."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, settings

from pipeline.database.engine import Database
from pipeline.ledger import project_id, sources, tenant_id
from tests import forked, template
from tests.ledger import Ledger, of_all
from workers.local import embedded, supervisor
from workers.local.embedded import postgres

# A busy machine is no bug: no example has a deadline of its own, and none is drawn too slowly.
settings.register_profile("home", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A change lands or not by what it does, not by what was drawn that day; at home new examples are drawn each time.
settings.register_profile("ci", settings.get_profile("home"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "home")


def pytest_configure(config: pytest.Config) -> None:
    """Thousands of tests are collected, and all that is made on the way stays."""
    gc.disable()
    if not hasattr(config, "workerinput"):
        template.choose()


def pytest_collection_finish() -> None:
    """From here on rubbish is looked for again, among what tests make."""
    gc.freeze()
    gc.enable()


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
    server_folder.rmdir()
    template.prepare(server_folder)
    with pytest.MonkeyPatch.context() as patch:
        # Each database that is made or removed looks through the whole cache: a third of what it costs with 1 GB.
        patch.setattr(postgres, "cache_of", lambda _memory: "64MB")
        return embedded.ensure(server_folder)


@pytest.fixture(scope="session")
def superuser(servers: embedded.Servers, server_folder: Path) -> Callable[[str], psycopg.Connection[Any]]:
    """Opens an autocommit connection that sees everything, to a database by name."""
    password = embedded.Credentials.of_folder(server_folder).postgres
    port = urlsplit(servers.database_url).port

    def connect(database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(
            host="127.0.0.1", port=port, user="postgres", password=password, dbname=database, autocommit=True
        )

    return connect


@pytest.fixture(scope="session")
def pristine(servers: embedded.Servers, superuser: Callable[[str], psycopg.Connection[Any]]) -> str:
    """A database with the current schema, copied for each test."""
    with superuser("postgres") as connection:
        # What these servers hold is thrown away; crashes are tested on servers with fsync on.
        for setting in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(f"alter system set {setting} = off")
        connection.execute("select pg_reload_conf()")
        connection.execute("alter database larder rename to larder_pristine")
    return "larder_pristine"


@dataclass(frozen=True)
class Addresses:
    """Where one test's database is, for each role."""

    name: str
    app: str
    control: str
    admin: str


Copy = Callable[[str], AbstractContextManager[Addresses]]


@pytest.fixture(scope="session")
def copy_of(servers: embedded.Servers, superuser: Callable[[str], psycopg.Connection[Any]]) -> Iterator[Copy]:
    """Makes a database, for a block, that is a copy of the named one; to that nobody may be connected meanwhile."""
    connection = superuser("postgres")

    @contextmanager
    def copied(name: str) -> Iterator[Addresses]:
        made = f"test_{os.getpid()}_{next(_counter)}"
        # By files: through the log, as is usual, takes five times as long.
        connection.execute(f"create database {made} template {name} strategy file_copy owner larder_owner")
        yield Addresses(
            name=made,
            app=with_database(servers.database_url, made),
            control=with_database(servers.control_url, made),
            admin=with_database(servers.admin_url, made),
        )
        connection.execute(f"drop database if exists {made} with (force)")

    with connection:
        yield copied


@pytest.fixture
def addresses(copy_of: Copy, pristine: str) -> Iterator[Addresses]:
    with copy_of(pristine) as made:
        yield made


@pytest.fixture
def database(addresses: Addresses) -> Iterator[Database]:
    """The application's two ways into this test's database."""
    made = Database(addresses.app, addresses.control)
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_addresses(copy_of: Copy, pristine: str) -> Iterator[Addresses]:
    """One database for the tests of a file: copying it costs more than most of them."""
    with copy_of(pristine) as made:
        yield made


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
def ledger(omniscient: psycopg.Connection[Any]) -> Ledger:
    """The rows of every tenant."""
    return Ledger(of_all(lambda: nullcontext(omniscient)))


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


INDEX = Path(__file__).with_name("index_process.py")


@dataclass
class Site:
    """A folder with a configuration and embedded servers of its own, driven by the real command line."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / ".larder"

    def prepare(self) -> None:
        """Make its data folder and start its servers, as `larder up` and `larder index` would."""
        template.prepare(self.data)
        embedded.ensure(self.data)

    def index(self) -> None:
        """Read the configured sources and make all searchable, in one process and without a queue."""
        done = forked.run([], cwd=self.root, env=forked.environment(), script=INDEX)
        assert done.returncode == 0, done.stderr

    def write(self, relative: str, content: str | bytes) -> Path:
        path = self.root / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def larder(self, *args: str, timeout: float = 120, env: dict[str, str] | None = None) -> Answer:
        done = forked.run(args, cwd=self.root, env=forked.environment(**(env or {})), seconds=timeout)
        return Answer(done.returncode, done.stdout, done.stderr)


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
