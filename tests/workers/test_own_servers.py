"""Servers of the operator's own: what is started and refused, and the SQL of docs/operations.md on a real cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from pipeline.database import migrations
from pipeline.errors import ConfigurationError, StoreHindered, StoreUnavailable
from tests import template
from tests.forked import environment, run
from workers.api.client import RAGService
from workers.client import Client
from workers.local import embedded
from workers.local.embedded.locating import addresses, ensure_schema, migrate
from workers.settings import load

DOCS = Path(__file__).parents[2] / "docs" / "operations.md"
SQL = dict(re.findall(r"(?ms)^```sql\n-- ([^\n]+)\n(.*?)^```", DOCS.read_text("utf-8")))
"""Title -> the statements of docs/operations.md under it."""


# What starts --------------------------------------------------------------------------------------

ELSEWHERE = {
    "LARDER_DATABASE_URL": "postgresql://larder_app:x@127.0.0.1:1/larder",
    "LARDER_BROKER_URL": "redis://127.0.0.1:1/0",
}
HALVES = [
    *(({"LARDER_DATABASE_URL": ELSEWHERE["LARDER_DATABASE_URL"]}, "LARDER_BROKER_URL (storage.broker.url)"),),
    *(({"LARDER_BROKER_URL": ELSEWHERE["LARDER_BROKER_URL"]}, "LARDER_DATABASE_URL (storage.database.url)"),),
    ({"LARDER_ADMIN_DATABASE_URL": ELSEWHERE["LARDER_DATABASE_URL"]}, "LARDER_DATABASE_URL"),
    ({"LARDER_CONTROL_DATABASE_URL": ELSEWHERE["LARDER_DATABASE_URL"]}, "LARDER_DATABASE_URL"),
    ({"LARDER_VALKEY_URL": ELSEWHERE["LARDER_BROKER_URL"]}, "LARDER_DATABASE_URL"),
]
DOORS: list[tuple[str, ...]] = [
    *(("worker", "embed"), ("beat",), ("api",), ("flower",), ("up",), ("up", "--detach"), ("index",)),
    *(("ingest", "more"), ("search", "x"), ("status",), ("enrich", "item.md"), ("stories", "stats")),
]


def files_below(folder: Path) -> set[str]:
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if "postgres" in path.name or "valkey" in path.name
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("Fenders hang at quay four.\n", encoding="utf-8")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.txt").write_text("Bollards are painted red.\n", encoding="utf-8")
    (tmp_path / "item.md").write_text("Show fenders on the chart\n", encoding="utf-8")
    (tmp_path / "larder.yaml").write_text(
        "rag: {embedding: {provider: hashing}, sources: [{name: n, type: text, paths: ['notes/*.txt']}]}",
        encoding="utf-8",
    )
    return tmp_path


@pytest.mark.parametrize("door", DOORS, ids=" ".join)
def test_half_a_configuration_is_refused_by_every_door(folder: Path, door: tuple[str, ...]) -> None:
    half, missing = HALVES[0]
    ran = run(door, cwd=folder, env=environment(**half), seconds=60)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert f"half configured: {missing} is missing" in ran.stderr
    assert not files_below(folder), "nothing was started"


@pytest.mark.parametrize(
    ("half", "missing"), HALVES, ids=lambda half: "-".join(half) if isinstance(half, dict) else ""
)
def test_every_half_is_told_by_the_missing_name(folder: Path, half: dict[str, str], missing: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(missing)):
        addresses(load(folder / "larder.yaml", half), start=True)
    with pytest.raises(ConfigurationError, match=re.escape(missing)):
        RAGService.initialize(folder / "larder.yaml", half)
    assert not files_below(folder)


@pytest.mark.parametrize(
    "door",
    [
        ("worker", "embed"),
        ("beat",),
        ("api",),
        ("flower",),
        ("migrate",),
        ("enrich", "item.md"),
        ("stories", "seed"),
    ],
    ids=" ".join,
)
def test_no_other_command_makes_an_installation(folder: Path, door: tuple[str, ...]) -> None:
    ran = run(door, cwd=folder, env=environment(), seconds=60)
    assert ran.returncode == 2, ran.stdout + ran.stderr
    assert "there is no installation" in ran.stderr
    assert not files_below(folder)


STOPPED: list[tuple[str, ...]] = [("search", "x"), ("status",), ("worker", "embed"), ("api",), ("doctor",)]


@pytest.mark.parametrize("door", STOPPED, ids=" ".join)
def test_no_other_command_starts_servers_that_were_stopped(folder: Path, door: tuple[str, ...]) -> None:
    template.prepare(folder / ".larder")
    ran = run(door, cwd=folder, env=environment(), seconds=60)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert f"the servers of {folder / '.larder'} are not running" in ran.stderr
    assert "larder up --detach" in ran.stderr
    assert embedded.find(folder / ".larder") is None


def test_step_4_without_its_servers_ends_with_a_document(folder: Path) -> None:
    template.prepare(folder / ".larder")
    ran = run(("enrich", "item.md", "-o", "out.json"), cwd=folder, env=environment(), seconds=60)
    assert "are not running" in ran.stderr
    assert '"degradation_level"' in (folder / "out.json").read_text("utf-8")
    assert embedded.find(folder / ".larder") is None


# Programs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", [RAGService.initialize, lambda file, environ: Client.of(load(file, environ))]
)
def test_a_program_starts_no_servers(folder: Path, kind: Callable[..., Any]) -> None:
    with pytest.raises(ConfigurationError, match="there is no installation"):
        kind(folder / "larder.yaml", {})
    assert not files_below(folder)
    template.prepare(folder / ".larder")
    with pytest.raises(StoreUnavailable, match="are not running"):
        kind(folder / "larder.yaml", {})
    assert embedded.find(folder / ".larder") is None


def test_a_program_reads_the_variables_and_files_that_commands_read(
    folder: Path, addresses: Any, servers: embedded.Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, url in {
        "LARDER_DATABASE_URL": addresses.app,
        "LARDER_CONTROL_DATABASE_URL": addresses.control,
        "LARDER_BROKER_URL": servers.broker_url,
    }.items():
        (folder / name).write_text(f"{url}\n", encoding="utf-8")
        monkeypatch.setenv(f"{name}_FILE", str(folder / name))
    monkeypatch.chdir(folder)
    for config in (None, folder / "larder.yaml", {"embedding": {"provider": "hashing"}}):
        with RAGService.initialize(config) as service:
            assert service.search("fenders")["results"] == []
    assert not files_below(folder)


# The SQL of the docs ------------------------------------------------------------------------------


class Cluster:
    """A PostgreSQL without any role or database of ours."""

    def __init__(self, data: Path) -> None:
        template.prepare(data)
        self.data, self.servers = data, embedded.ensure(data)
        self.clear()

    def superuser(self, database: str = "postgres") -> psycopg.Connection[Any]:
        host, _, _ = self.servers.database_url.rpartition("@")[2].partition("/")
        password = quote(embedded.Credentials.of_folder(self.data).postgres)
        return psycopg.connect(f"postgresql://postgres:{password}@{host}/{database}", autocommit=True)

    def url(self, user: str, password: str, database: str = "larder") -> str:
        host = self.servers.database_url.rpartition("@")[2].partition("/")[0]
        return f"postgresql://{user}:{password}@{host}/{database}"

    def clear(self) -> None:
        """Remove what a former test made."""
        with self.superuser() as connection:
            ours = (
                "select datname from pg_database where datname not in ('postgres', 'template0', 'template1')"
            )
            for (name,) in connection.execute(ours).fetchall():
                connection.execute(f"drop database {name} with (force)")
            roles = "select rolname from pg_roles where rolname like 'larder%' or rolname like 'second%'"
            names = ", ".join(name for (name,) in connection.execute(roles).fetchall())
            if names:
                connection.execute(f"drop role {names}")

    def run(self, title: str) -> None:
        """Run statements of the docs as a superuser, as psql would."""
        first, *others = re.split(r"(?m)^\\connect (\w+)\n", SQL[title])
        for database, part in [("postgres", first), *zip(others[::2], others[1::2], strict=True)]:
            with self.superuser(database) as connection:
                for statement in filter(str.strip, part.split(";\n")):
                    connection.execute(statement)

    def environment(self, *, owner: str = "", one: str = "", database: str = "larder") -> dict[str, str]:
        """The variables of the docs."""
        found = {
            "LARDER_DATABASE_URL": self.url("larder_app", "APP", database),
            "LARDER_CONTROL_DATABASE_URL": self.url("larder_control", "CONTROL", database),
        }
        if one:
            found = {"LARDER_DATABASE_URL": self.url(one, "OWNER", database)}
        if owner:
            found["LARDER_ADMIN_DATABASE_URL"] = self.url(owner, "OWNER", database)
        return {**found, "LARDER_BROKER_URL": self.servers.broker_url}


@pytest.fixture(scope="module")
def made_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    data = tmp_path_factory.mktemp("cluster") / "data"
    yield Cluster(data)
    embedded.stop(data)


@pytest.fixture
def cluster(made_cluster: Cluster) -> Cluster:
    made_cluster.clear()
    return made_cluster


def migrated(environ: dict[str, str]) -> str:
    settings = load(None, environ)
    return migrate(settings, addresses(settings, needed=()))


def works(folder: Path, environ: dict[str, str]) -> None:
    """All of `larder up` runs, takes a file in and finds it."""
    env = environment(**environ)
    up = run(("up", "--detach", "--no-flower"), cwd=folder, env=env, seconds=180)
    try:
        assert up.returncode == 0, up.stdout + up.stderr
        assert run(("index",), cwd=folder, env=env, seconds=120).returncode == 0
        assert "Fenders hang" in run(("search", "fenders"), cwd=folder, env=env, seconds=60).stdout
    finally:
        run(("down",), cwd=folder, env=env, seconds=120)


@pytest.mark.parametrize("sql", ["owner with createrole", "roles made beforehand"])
def test_up_works_with_the_two_logins_after_the_owner_migrated(
    folder: Path, cluster: Cluster, sql: str
) -> None:
    cluster.run(sql)
    assert migrated(cluster.environment(owner="larder_owner")) == migrations.NEWEST
    assert migrated(cluster.environment(owner="larder_owner")) == migrations.NEWEST
    works(folder, cluster.environment())


def test_one_login_does_everything(folder: Path, cluster: Cluster) -> None:
    cluster.run("roles made beforehand")
    cluster.run("one login")
    works(folder, cluster.environment(one="larder_owner"))


def test_several_databases_on_one_cluster(cluster: Cluster) -> None:
    cluster.run("roles made beforehand")
    cluster.run("another database")
    environs = (
        cluster.environment(owner="larder_owner"),
        cluster.environment(owner="second_owner", database="second"),
    )
    for environ in environs:
        assert migrated(environ) == migrations.NEWEST
        settings = load(None, {name: url for name, url in environ.items() if "ADMIN" not in name})
        ensure_schema(settings, addresses(settings))


def test_a_schema_that_is_not_there_names_the_owner(folder: Path, cluster: Cluster) -> None:
    cluster.run("roles made beforehand")
    ran = run(("up", "--detach"), cwd=folder, env=environment(**cluster.environment()), seconds=120)
    assert ran.returncode != 0
    said = ran.stdout + ran.stderr
    assert f"the database has revision none of the schema, and this version needs {migrations.NEWEST}" in said
    assert "LARDER_ADMIN_DATABASE_URL" in said
    assert "disk" not in said
    screen = run(("status",), cwd=folder, env=environment(**cluster.environment()), seconds=60).stdout
    assert "database refuses us" in screen, "it answers, so it is not away"
    assert "larder migrate" in " ".join(screen.split())


def test_an_owner_that_lacks_a_grant_is_sent_to_the_page_that_has_it(cluster: Cluster) -> None:
    cluster.run("roles made beforehand")
    with cluster.superuser() as connection:
        connection.execute("revoke larder_reader from larder_owner")
    with pytest.raises(StoreHindered, match="larder_reader") as refused:
        migrated(cluster.environment(owner="larder_owner"))
    page, _, heading = refused.value.fix.partition(": ")[2].partition(" ")[0].partition("#")
    assert page == "docs/operations.md"
    assert f"\n## {heading.replace('-', ' ')}\n" in DOCS.read_text("utf-8").lower()


def test_a_role_of_the_application_without_that_of_control_is_told_so(folder: Path, cluster: Cluster) -> None:
    cluster.run("roles made beforehand")
    migrated(cluster.environment(owner="larder_owner"))
    environ = cluster.environment()
    del environ["LARDER_CONTROL_DATABASE_URL"]
    ran = run(("status",), cwd=folder, env=environment(**environ), seconds=60)
    assert 'permission denied to set role "larder_control"' in ran.stdout + ran.stderr
    assert "LARDER_CONTROL_DATABASE_URL" in ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("create table mine (n int)", "LARDER_ADMIN_DATABASE_URL"),
        ("select * from nowhere", "larder migrate"),
        ("set transaction read only; delete from alert", "the primary server"),
    ],
)
def test_advice_fits_what_the_server_refuses(addresses: Any, statement: str, advice: str) -> None:
    from pipeline.database.engine import Database

    database = Database(addresses.app, addresses.control)
    with pytest.raises(StoreHindered) as caught, database.control() as connection:
        connection.exec_driver_sql(statement)
    database.close()
    assert advice in caught.value.fix
    assert "disk" not in caught.value.fix
