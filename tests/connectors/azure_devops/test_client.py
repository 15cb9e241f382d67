"""The library behind the connector: no disk, no environment, no second host, nothing shared between hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_core import PydanticCustomError

from connectors.azure_devops.options import base_url_of
from connectors.azure_devops.sdk import open_library
from connectors.azure_devops.source import AzureDevOpsSource
from connectors.web.session import Access
from pipeline.errors import SourceDenied
from tests.connectors.azure_devops.world import PAT, Store, options_for, source_for, truth
from tests.fakes.azure_devops import FakeAzureDevOps
from tests.fakes.server import Fault, ScriptedServer

ROOT = Path(__file__).resolve().parents[3]
SYNC = """
import sys
from tests.connectors.azure_devops.world import options_for
from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.azure_devops.source import AzureDevOpsSource
from connectors.web.session import Access
assert not [m for m in sys.modules if m.startswith(("azure", "msrest"))], "the library was imported too early"
url = sys.argv[1]
options = AzureDevOpsOptions(
    name="x", organization=url, projects=("Web",), pat="secret-pat"
)
print(sum(len(page.documents) for page in AzureDevOpsSource(options).pages(None)))
"""


def test_nothing_is_written_and_no_proxy_or_netrc_of_the_environment_is_used(
    services: FakeAzureDevOps, tmp_path: Path
) -> None:
    services.bulk("Web", 3)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("machine 127.0.0.1 login evil password evil\n")
    (home / ".netrc").chmod(0o600)
    script = SYNC.replace("from tests.connectors.azure_devops.world import options_for\n", "")
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "http_proxy": "http://127.0.0.1:9",
        "HTTP_PROXY": "http://127.0.0.1:9",
        "ALL_PROXY": "http://127.0.0.1:9",
    }
    home.chmod(0o500)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, services.url],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        home.chmod(0o700)

    assert done.stdout.strip() == "3", done.stderr
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before
    assert all(PAT in _password(s.headers["Authorization"]) for s in services.log)


def _password(header: str) -> str:
    import base64

    return base64.b64decode(header.split()[1]).decode()


def test_two_hosts_at_once_never_mix() -> None:
    with (
        FakeAzureDevOps(pat="one") as first,
        FakeAzureDevOps(pat="two", server_collection="Default") as second,
        FakeAzureDevOps(pat="three", organization="acme") as third,
    ):
        fakes = (first, second, third)
        for n, fake in enumerate(fakes):
            fake.add_project("Web")
            fake.bulk("Web", n + 1)
        walks = [source_for(fake, pat=fake.pat).pages(None) for fake in fakes]
        stores = [Store() for _ in fakes]
        for _ in range(4):
            for store, walk in zip(stores, walks, strict=True):
                store.take(page for page in [next(walk, None)] if page)

        for fake, store in zip(fakes, stores, strict=True):
            assert store.seen() == truth(fake)
            assert {s.status for s in fake.log} == {200}
            assert {_password(s.headers["Authorization"]) for s in fake.log} == {f":{fake.pat}"}
        sessions = [{s.headers.get("X-TFS-Session") for s in fake.log} - {None} for fake in fakes]
        assert len(set.union(*sessions)) == 3, "one session id went to several hosts"


def test_only_the_configured_host_is_asked_whatever_the_service_says(services: FakeAzureDevOps) -> None:
    with ScriptedServer() as elsewhere:
        services.bulk("Web", 3)
        services.faults.next(Fault.redirect(f"{elsewhere.address}/acme/_apis", code=307), times=None)

        with pytest.raises(SourceDenied) as caught:
            list(source_for(services).pages(None))

        assert elsewhere.log == []
        assert "127.0.0.1" in str(caught.value)


def test_a_host_that_the_access_was_not_made_for_is_not_asked(services: FakeAzureDevOps) -> None:
    with ScriptedServer() as elsewhere:
        source = source_for(
            services, organization=f"{elsewhere.address}/acme", access=options_for(services).access
        )

        with pytest.raises(SourceDenied):
            source.ids()

        assert elsewhere.log == services.log == []


def test_discovery_is_asked_once_for_many_syncs_and_again_in_the_next_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with FakeAzureDevOps(pat=PAT) as fake:
        fake.add_project("Web")
        for hour, asked in ((1.2, 1), (1.9, 1), (2.1, 2)):
            monkeypatch.setattr("connectors.azure_devops.sdk.time.monotonic", lambda at=hour: at * 3600)
            library = open_library(fake.url, PAT, options_for(fake).access)
            monkeypatch.undo()
            library.get_work_item_types("Web")
            assert len([s for s in fake.log if s.method == "OPTIONS"]) == asked


def test_a_broken_discovery_is_not_remembered() -> None:
    with FakeAzureDevOps(pat=PAT) as fake:
        fake.add_project("Web")
        fake.bulk("Web", 2)
        empty = Fault.status(200, body='{"count": 0, "value": []}', content_type="application/json")
        fake.faults.next(empty, times=2)
        with pytest.raises(SourceDenied):
            source_for(fake).ids()

        assert source_for(fake).ids().ids == {"1", "2"}


@pytest.mark.parametrize(
    ("organization", "address"),
    [
        ("acme", "https://dev.azure.com/acme"),
        (" Acme-2.x_y ", "https://dev.azure.com/Acme-2.x_y"),
        ("https://dev.azure.com/acme/", "https://dev.azure.com/acme"),
        ("https://acme.visualstudio.com", "https://acme.visualstudio.com"),
        ("http://tfs:8080/tfs/DefaultCollection/", "http://tfs:8080/tfs/DefaultCollection"),
    ],
)
def test_an_organization_is_a_name_or_an_address(organization: str, address: str) -> None:
    assert base_url_of(organization) == address


@pytest.mark.parametrize(
    "organization",
    ["", " ", "a b", "a/b", "../x", "ftp://x/y", "https://u:p@x/y", "https://x/y?z=1", "https://"],
)
def test_anything_else_is_refused(organization: str) -> None:
    with pytest.raises(PydanticCustomError) as caught:
        base_url_of(organization)
    assert "p@" not in str(caught.value)


def test_the_token_is_in_no_representation(services: FakeAzureDevOps) -> None:
    options = options_for(services)
    source = AzureDevOpsSource(options)
    source.ids()

    assert PAT not in repr(options)
    assert PAT not in repr(vars(source))
    assert PAT not in repr(Access(base_url=services.url))


def test_answers_are_not_logged_even_when_debugging(
    services: FakeAzureDevOps, caplog: pytest.LogCaptureFixture
) -> None:
    services.add_item("Web", "Bug", "very private title")
    caplog.set_level("DEBUG")

    list(source_for(services).pages(None))

    assert "very private title" not in caplog.text
    assert PAT not in caplog.text
