"""An installation whose workers are driven by hand, for the doctor to look at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from pipeline.documents import Json
from pipeline.ledger import Item, Stage, upkeep
from tests.conftest import Addresses
from tests.ledger import ago, of_connection
from tests.workers.installed import installed, without_messages
from workers import runtime as runtimes
from workers.app.doctor import doctor
from workers.app.ingestion import maintenance, pump, steps
from workers.app.ingestion import sync as control
from workers.app.ingestion.sync import configured_sources
from workers.local import embedded
from workers.queue.celeryconfig import QUEUES
from workers.runtime import Runtime

CONFIG = """
rag:
  tenant: acme
  project: app
  embedding: {provider: hashing, dimensions: 64}
  retrieval: {exactBelow: 100}
  sources:
    - {name: notes, type: markdown, paths: ["docs/*.md"]}
"""
SQL = psycopg.Connection[Any]
Findings = dict[str, Json]


class Store:
    """An installation whose workers are driven by hand."""

    def __init__(self, runtime: Runtime, root: Path) -> None:
        self.runtime = runtime
        self.root = root

    def write(self, name: str, sections: int = 3) -> None:
        """A file that becomes some chunks."""
        words = [
            f"## Part {n} of {name}\n\n" + f"{name} {n} quay crane berth tide. " * 30 for n in range(sections)
        ]
        path = self.root / "docs" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"# {name}\n\n" + "\n\n".join(words), encoding="utf-8")

    def sync(self) -> None:
        """One whole sync of the source, through all stages."""
        one = next(iter(configured_sources(self.runtime.settings).values()))
        run = control.start_run(self.runtime, one.tenant_id, one.id, trigger="manual")
        assert run is not None
        assert control.sync(self.runtime, one.tenant_id, one.id, run)
        self.work()

    def work(self) -> None:
        """Everything that waits, then what the pump does when runs are settled."""
        tenant = self.runtime.settings.tenant_id
        indexer = steps.indexer(self.runtime, tenant)
        work = {Stage.FETCHED: indexer.chunk, Stage.CHUNKED: indexer.embed, Stage.EMBEDDED: indexer.upsert}
        for stage, step in work.items():
            step(tenant, self.waiting(stage))
        maintenance.refresh_statistics(self.runtime)
        pump.pump_once(self.runtime)
        maintenance.build_indexes(self.runtime)

    def waiting(self, stage: Stage) -> list[Item]:
        """Documents that wait for a stage."""
        with self.runtime.database.control() as connection:
            documents = of_connection(connection).documents
            waiting = documents.values("id", "desired_version", state="pending", stage=stage.value)
            return [Item(*one) for one in waiting]

    def examine(self, *, repair: bool = False) -> Findings:
        """The doctor's findings by the name of their check."""
        found = doctor.report(doctor.examine(self.runtime, repair=repair))["findings"]
        assert len({f["check"] for f in found}) == len(found)
        return {f["check"]: f for f in found}

    def mend(self, check: str) -> Json:
        """What repairing this damage reports; it is found before, and not found again afterwards."""
        before = self.examine()[check]
        assert before["status"] != "ok", before
        assert before["fix"]
        assert before["repaired"] is False
        mended = self.examine(repair=True)[check]
        assert mended["repaired"] is True, mended
        assert mended["status"] == "ok"
        assert self.examine()[check]["status"] == "ok"
        return before


@contextmanager
def opened(folder: Path, addresses: Addresses, servers: embedded.Servers) -> Iterator[Runtime]:
    """The parts of this process for a folder and its database, the source registered."""
    with installed(folder, addresses, servers, CONFIG) as made:
        runtimes.use(made)
        control.register(made)
        yield made
    without_messages(servers)


def beat(runtime: Runtime, queues: tuple[str, ...] = QUEUES) -> None:
    """Signs of life of a worker per queue, and its task of the minute."""
    with runtime.database.control() as connection:
        workers = of_connection(connection).workers
        workers.clear()
        for queue in queues:
            upkeep.record_canary(connection, queue)
            workers.add(name=f"worker-{queue}", queues=queue, host="here", pid=1, started_at=ago(hours=1))
