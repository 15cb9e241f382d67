"""An installation that services tell of their changes, and what its workers do about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi.testclient import TestClient

from pipeline.ledger import runs
from tests.ledger import Ledger
from workers.app.ingestion import pump, sync
from workers.app.ingestion.sync import configured_sources
from workers.runtime import Runtime

SECRET = "a-secret-of-the-hook"


class Told:
    """An installation, its API, and the ingest worker of its first source."""

    def __init__(self, runtime: Runtime, api: TestClient, ledger: Ledger) -> None:
        self.runtime, self.api, self.ledger = runtime, api, ledger
        self.source = next(iter(configured_sources(runtime.settings).values()))

    def tell(self, *ids: str, source: str = "wiki", event: str = "", secret: str = SECRET) -> Any:
        headers = {"X-Larder-Token": secret, **({"webhook-id": event} if event else {})}
        return self.api.post(f"/api/v1/hooks/{source}", json={"ids": [*ids]}, headers=headers)

    def work(self) -> list[str]:
        """Do what the ingest worker does until no run reads the source; the triggers of the runs."""
        triggers = []
        while (run := self._walked()) is not None:
            triggers.append(run.trigger)
            sync.sync(self.runtime, self.source.tenant_id, self.source.id, run.id)
        return triggers

    def _walked(self) -> runs.RunRow | None:
        with self.runtime.database.tenant(self.source.tenant_id) as connection:
            newest = runs.newest_open(connection, self.source.id)
        return newest if newest and newest.state == "discovering" else None

    def walk(self) -> None:
        """A sync of the schedule."""
        sync.start_run(self.runtime, self.source.tenant_id, self.source.id, trigger="manual", walk=True)
        self.work()

    def later(self, seconds: float) -> None:
        """Let time pass for the hints, and what is due then be sent."""
        past = timedelta(seconds=seconds)
        for hint in self.ledger.hints():
            times = {"hinted_at": hint["hinted_at"] - past, "reads": [read - past for read in hint["reads"]]}
            due_at = hint["due_at"] and hint["due_at"] - past
            key = {"source_id": hint["source_id"], "external_id": hint["external_id"]}
            self.ledger.hints.set(key, due_at=due_at, **times)
        pump.pump_once(self.runtime)

    def stored(self) -> dict[str, str]:
        """External id -> version of the documents that are not deleted."""
        documents = self.ledger.documents(deleted=False)
        return {one["external_id"]: str(one["metadata"].get("version")) for one in documents}
