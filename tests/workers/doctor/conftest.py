"""An installation for the doctor to look at, and what may be wrong with its surroundings."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import Addresses, Copy
from tests.workers.doctor.installation import Store, beat, opened
from workers import runtime as runtimes
from workers.local import embedded
from workers.runtime import Runtime


@pytest.fixture(scope="module")
def filled(
    tmp_path_factory: pytest.TempPathFactory, copy_of: Copy, pristine: str, servers: embedded.Servers
) -> Iterator[tuple[Path, str]]:
    """A folder of three documents, and the name of the database in which they are indexed."""
    folder = tmp_path_factory.mktemp("filled")
    with copy_of(pristine) as made:
        with opened(folder, made, servers) as runtime:
            store = Store(runtime, folder)
            for name in ("berth.md", "crane.md", "tide.md"):
                store.write(name)
            store.sync()
        yield folder, made.name


@pytest.fixture
def addresses(filled: tuple[Path, str], copy_of: Copy) -> Iterator[Addresses]:
    with copy_of(filled[1]) as made:
        yield made


@pytest.fixture
def runtime(
    tmp_path: Path, filled: tuple[Path, str], addresses: Addresses, servers: embedded.Servers
) -> Iterator[Runtime]:
    shutil.copytree(filled[0] / "docs", tmp_path / "docs")
    with opened(tmp_path, addresses, servers) as made:
        yield made


@pytest.fixture
def elsewhere(runtime: Runtime) -> Iterator[Callable[..., Runtime]]:
    """`elsewhere(broker=...)`: the same installation, with another address; closed at the end."""
    made: list[Runtime] = []

    def build(**addresses: str) -> Runtime:
        made.append(Runtime(runtime.settings, runtimes.Addresses(**{**vars(runtime.addresses), **addresses})))
        return made[-1]

    yield build
    for one in made:
        one.close()


@pytest.fixture
def store(runtime: Runtime, tmp_path: Path) -> Store:
    """Three documents, indexed, and workers that say they live."""
    beat(runtime)
    return Store(runtime, tmp_path)
