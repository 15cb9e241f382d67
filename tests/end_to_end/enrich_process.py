"""The ordinary command line, with PBIs that take their time and PBIs that kill, and a model that can be taken away.

Started by the tests of enrichment in place of `larder`; everything else is the product's own code.
`DRILL_HEALTH` shortens the times of `HealthOptions`: `calm_seconds=2 slow_seconds=0.4`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from uuid import UUID

from pipeline.documents import Json
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.enrichment import degradation
from pipeline.errors import EmbedderUnavailable
from workers.app.enrichment import job
from workers.cli import main
from workers.runtime import Runtime

AWAY = Path("embedder-is-away")
"""While this file exists, questions cannot be embedded."""

_embed_query = HashingEmbedder.embed_query
_enricher = job.enricher


def trying(runtime: Runtime, tenant: UUID, project: UUID | None = None) -> job.Enrich:
    """As the real one, but a title may say POISON or SLOW and a number of seconds."""
    inner = _enricher(runtime, tenant, project)

    def enrich(request: Json) -> Json:
        title = str(request["pbi"].get("title", ""))
        if "POISON" in title:
            os.kill(os.getpid(), signal.SIGKILL)
        if title.startswith("SLOW"):
            time.sleep(float(title.split()[1]))
        return inner(request)

    return enrich


def fragile(self: HashingEmbedder, text: str) -> Vectors:
    """As the real one, while it is there."""
    if AWAY.exists():
        raise EmbedderUnavailable("the model is away")
    return _embed_query(self, text)


def hurried() -> degradation.HealthOptions:
    """The usual times, but for those that the drill shortens."""
    pairs = (word.split("=") for word in os.environ.get("DRILL_HEALTH", "").split())
    return _options(**{name: float(value) for name, value in pairs})  # type: ignore[arg-type]


_options = degradation.HealthOptions
degradation.HealthOptions = hurried  # type: ignore[assignment, misc]
HashingEmbedder.embed_query = fragile  # type: ignore[method-assign]
job.enricher = trying

if __name__ == "__main__":
    main()
