"""A Confluence that shows pages and lets nobody see their restrictions: nothing is stored, and that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Addresses
from tests.fakes.confluence import FakeConfluence
from tests.workers.installed import installed
from workers.app import operations, status
from workers.app.ingestion import sync, sync_now
from workers.cli.status import screen
from workers.local import embedded

CONFIG = """
rag:
  embedding: {{provider: hashing, dimensions: 64}}
  sources:
    - {{name: wiki, type: confluence, baseUrl: '{base}', spaceKeys: [ENG], autoIndex: false,
       username: '{user}', apiToken: '{token}'}}
"""


@pytest.mark.usefixtures("broker")
def test_a_source_that_yields_nothing_is_a_warning_everywhere(
    tmp_path: Path, addresses: Addresses, servers: embedded.Servers
) -> None:
    with FakeConfluence("cloud") as fake:
        fake.add_space("ENG")
        for n in range(60):
            fake.add_page("ENG", f"Page {n}", "<p>x</p>")
        fake.hide_restrictions = True
        config = CONFIG.format(base=fake.base, user=fake.email, token=fake.token)
        with installed(tmp_path, addresses, servers, config) as runtime:
            sync.register(runtime)
            (one,) = sync_now.start(
                runtime, sync_now.configured_sources_named(runtime.settings, []), force=False
            )
            assert sync.sync(runtime, one.source.tenant_id, one.source.id, one.run.id)
            found = status.status(runtime)
            (checked,) = operations.check(runtime, [])
    (source,) = found["sources"]
    ((reason, count),) = source["left_out"].items()
    assert (source["documents"], count, source["last_run"]["left_out"]) == (0, 60, source["left_out"])
    assert reason.startswith("restrictions unreadable, because Confluence answered 403")
    assert "wiki has no documents though it shows items, 60 excluded" in str(found["next"])
    assert not checked["ok"]
    assert screen(found)
