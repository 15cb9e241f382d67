"""The ordinary command line, whose children stop in the middle of a transaction when they are asked to.

A file `stall` in the folder named by `DRILL_STALLS` names the place; the first child that comes there renames it to
`stalled` and waits for a file `go`. Started by the drill in place of `larder`; all else is the product's own code.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.ingest import work_in_progress
from pipeline.ledger import admission, jobs, work
from workers.cli import main

PLACES: dict[str, tuple[Any, str]] = {
    "pump": (work, "pump_once"),
    "walk": (admission, "admit"),
    "cut": (work_in_progress, "stage_chunks"),
    "embed": (work_in_progress, "cache_vectors"),
    "write": (work, "finish"),
    "answer": (jobs, "claim"),
}
"""What each has locked when it returns: the pump, a source, documents, vectors, documents and chunks, a job."""
FIRST = os.getpid()


def stalling(place: str, inner: Callable[..., Any], *args: Any, **options: Any) -> Any:
    found = inner(*args, **options)
    folder = os.environ.get("DRILL_STALLS")
    if folder is None or os.getpid() == FIRST:
        return found
    asked = Path(folder, "stall")
    try:
        if asked.read_text() != place:
            return found
        asked.rename(Path(folder, "stalled"))
    except FileNotFoundError:
        return found
    while not Path(folder, "go").exists():
        time.sleep(0.05)
    return found


for name, (module, function) in PLACES.items():
    setattr(module, function, partial(stalling, name, getattr(module, function)))

if __name__ == "__main__":
    main()
