"""What a command says that waits for work no worker hears of."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.errors import StoreUnavailable
from tests.fakes.tcp_proxy import TcpProxy
from tests.workers.indexed import Build
from workers.admin import sync_now


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at once, and gives up at the second look."""
    monkeypatch.setattr(sync_now, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(sync_now, "AWAY_SECONDS", 0.0)


def test_its_own_run_is_kept_and_one_that_it_could_not_open_is_to_be_asked_for_again(build: Build) -> None:
    parts = build()
    with TcpProxy.to(parts.addresses.broker) as proxy:
        parts.addresses = replace(parts.addresses, broker=proxy.url(parts.addresses.broker))
        proxy.cut()
        every = sync_now.chosen(parts, [])
        opened = sync_now.start(parts, every, force=False)
        with pytest.raises(StoreUnavailable) as own:
            sync_now.wait(parts, opened, lambda _: None)
        assert "it is kept" in str(own.value.fix)
        with pytest.raises(StoreUnavailable) as other:
            sync_now.start(parts, every, force=False)
        assert "an earlier sync of docs is under way" in str(other.value.fix)
        assert "ask again" in str(other.value.fix)
