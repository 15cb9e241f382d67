"""The wheel holds everything: what is installed from it works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pipeline.database import migrations
from tests.conftest import with_database
from workers.local import embedded

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("connectors", "pipeline", "workers")
BESIDE = ("pyproject.toml", "README.md", "LICENSE", "NOTICE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, since a build leaves its own files behind."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("out")
    for name in (*ROOMS, *BESIDE):
        (copy / name).symlink_to(ROOT / name)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", str(out)]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True, capture_output=True
    )
    [built] = out.iterdir()
    return zipfile.ZipFile(built)


def test_every_file_of_the_rooms_is_inside(wheel: zipfile.ZipFile) -> None:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if path.suffix not in {".md", ".pyc"}}
    inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert wanted - inside == set()
    assert {name.split("/")[0] for name in inside} == set(ROOMS)
    [entry] = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert b"larder = workers.cli:main" in wheel.read(entry)


def test_what_is_installed_from_it_makes_tables_and_answers(
    wheel: zipfile.ZipFile,
    tmp_path: Path,
    servers: embedded.Servers,
    superuser: Callable[[str], psycopg.Connection[Any]],
) -> None:
    installed, name = tmp_path / "site", f"wheel_{os.getpid()}"
    wheel.extractall(installed)
    with superuser("postgres") as connection:
        connection.execute(f"create database {name} owner larder_owner")
    with superuser(name) as connection:
        connection.execute("create extension vector")
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(installed),
        "LARDER_DATABASE_URL": with_database(servers.database_url, name),
        "LARDER_CONTROL_DATABASE_URL": with_database(servers.control_url, name),
        "LARDER_BROKER_URL": servers.broker_url,
    }
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/tides.md").write_text("# Tides\n\nThe bar is passable for three hours.\n")

    def ran(*words: str, **other: str) -> str:
        command = [
            sys.executable,
            "-c",
            "import sys, workers.cli as c; print(c.__file__, file=sys.stderr); c.main()",
        ]
        done = subprocess.run(
            [*command, *words], cwd=tmp_path, env=env | other, check=False, capture_output=True, text=True
        )
        assert str(installed) in done.stderr
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        ran("config", "init")
        # Here the owner may give nobody a password, and who names only one address need not.
        owner = {
            "LARDER_DATABASE_URL": with_database(servers.admin_url, name),
            "LARDER_CONTROL_DATABASE_URL": "",
        }
        assert f"revision {migrations.NEWEST}" in ran("migrate", **owner)
        assert '"backlog"' in ran("status", "--json")
        ran("search", "passable bar")
    finally:
        with superuser("postgres") as connection:
            connection.execute(f"drop database {name} with (force)")
