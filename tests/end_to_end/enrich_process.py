"""The ordinary command line, with PBIs that take their time and PBIs that kill: for the tests of enrichment.

Everything else is the product's own code.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from uuid import UUID

from pipeline.documents import Json
from workers import runtime
from workers.cli import main

_enricher_of = runtime.Runtime.enricher_of


def trying(self: runtime.Runtime, tenant: UUID) -> Callable[[Json], Json]:
    """As the real one, but a title may say POISON or SLOW and a number of seconds."""
    inner = _enricher_of(self, tenant)

    def enrich(request: Json) -> Json:
        title = str(request["pbi"].get("title", ""))
        if "POISON" in title:
            os.kill(os.getpid(), signal.SIGKILL)
        if title.startswith("SLOW"):
            time.sleep(float(title.split()[1]))
        return inner(request)

    return enrich


runtime.Runtime.enricher_of = trying  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
