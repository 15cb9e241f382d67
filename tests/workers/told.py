"""An installation that services tell of their changes, and what its workers do about it."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient

from pipeline.ledger import runs
from workers.app.ingestion import pump, sync
from workers.app.ingestion.sync import configured_sources
from workers.runtime import Runtime

SECRET = "a-secret-of-the-hook"


class Told:
    """An installation, its API, and the ingest worker of its first source."""

    def __init__(self, runtime: Runtime, api: TestClient, sql: Any) -> None:
        self.runtime, self.api, self.sql = runtime, api, sql
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
        self.sql.execute(
            """update source_hint set due_at = due_at - make_interval(secs => %(s)s),
                   hinted_at = hinted_at - make_interval(secs => %(s)s),
                   reads = array(select r - make_interval(secs => %(s)s) from unnest(reads) with ordinality as u(r, n)
                                 order by n)""",
            {"s": seconds},
        )
        pump.pump_once(self.runtime)

    def stored(self) -> dict[str, str]:
        """External id -> version of the documents that are not deleted."""
        rows = self.sql.execute(
            "select external_id, metadata->>'version' from document where not deleted order by 1"
        )
        return dict(rows.fetchall())
