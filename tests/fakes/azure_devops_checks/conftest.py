"""The fake Azure DevOps, and the real client that remembers nothing of earlier ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.azure_devops_checks.asking import PAT, Client, Open


def _loaded() -> dict[str, ModuleType]:
    """Modules of the library; its errors stay, so that `except` means the same classes before and after."""
    kept = {"azure.devops", "azure.devops.exceptions"}
    return {n: m for n, m in sys.modules.items() if n.startswith("azure.devops") and n not in kept}


def _become(modules: dict[str, ModuleType]) -> None:
    """Let these be what the library consists of."""
    for name in _loaded():
        del sys.modules[name]
        parent, _, last = name.rpartition(".")
        vars(sys.modules.get(parent, ModuleType(""))).pop(last, None)
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent in sys.modules and last != "_file_cache":
            setattr(sys.modules[parent], last, module)


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The library as it comes, with its cache on disk, which our connector takes away for the whole process."""
    os.environ.setdefault("AZURE_DEVOPS_CACHE_DIR", str(tmp_path_factory.mktemp("azure-devops")))
    before = _loaded()
    _become({})
    import azure.devops.connection  # noqa: F401 (it makes its cache folder while it is imported)

    yield
    _become(before)


@pytest.fixture
def connect(sdk: None, tmp_path: Path) -> Iterator[Open]:
    """Opens the client of the boards (or another), which remembers nothing of earlier servers."""
    from azure.devops import _file_cache
    from azure.devops.client import Client as SdkClient
    from azure.devops.connection import Connection
    from msrest.authentication import BasicAuthentication

    def forget() -> None:
        SdkClient._locations_cache.clear()
        for cache in (_file_cache.OPTIONS_CACHE, _file_cache.RESOURCE_CACHE):
            cache.data = {}
            cache.file_name = str(tmp_path / Path(cache.file_name).name)

    forget()
    opened = []

    def connect(fake: FakeAzureDevOps, pat: str = PAT, client: str = "work_item_tracking") -> Client:
        connection = Connection(base_url=fake.url, creds=BasicAuthentication("", pat))
        made = getattr(connection.clients_v7_1, f"get_{client}_client")()
        made.config.retry_policy.retries = 0
        opened.append(made)
        return made

    yield connect
    forget()


@pytest.fixture
def fake() -> Iterator[FakeAzureDevOps]:
    with FakeAzureDevOps(organization="Acme", pat=PAT) as made:
        made.add_project("Web Shop")
        yield made


@pytest.fixture
def boards(connect: Open, fake: FakeAzureDevOps) -> Client:
    return connect(fake)
