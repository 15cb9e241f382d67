"""The ordinary command line, with what real life has: documents that kill, a slow model, and children that stop.

While the file `held-texts` exists, the model takes for ever over texts in which its words are. A file `stall` in the
folder named by `DRILL_STALLS` names a place in the middle of a transaction; the first child that comes there renames it to
`stalled` and waits for a file `go`. Vector stores are looked at every two seconds, and tried again after one.

Started by the drills in place of `larder`; everything else is the product's own code.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import Chunker
from pipeline.documents import Chunk, Document
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ingest import work_in_progress
from pipeline.ledger import admission, due_work, jobs, work
from pipeline.search.stores import mirror
from workers.app import stores
from workers.app.ingestion import steps
from workers.cli import main

HELD = Path("held-texts")
SECONDS_PER_TEXT = float(os.environ.get("DRILL_SECONDS_PER_TEXT", "0.004"))
STALLS = os.environ.get("DRILL_STALLS")
PLACES: dict[str, tuple[Any, str]] = {
    "pump": (due_work, "pump_once"),
    "walk": (admission, "admit"),
    "cut": (work_in_progress, "stage_chunks"),
    "embed": (work_in_progress, "cache_vectors"),
    "write": (work, "finish"),
    "answer": (jobs, "claim"),
}
"""What each has locked when it returns: the pump, a source, documents, vectors, documents and chunks, a job."""
FIRST = os.getpid()


class Deadly:
    """Cuts like the chunker it wraps, unless the text is poison: then its process is gone, as in a segfault."""

    def __init__(self, inner: Chunker) -> None:
        self.inner = inner
        self.version = inner.version

    def chunk(self, document: Document) -> list[Chunk]:
        if "POISON" in document.text:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner.chunk(document)


_open_chunker = steps.open_chunker  # type: ignore[attr-defined]
_embed = HashingEmbedder.embed_documents


def deadly_chunker(options: ChunkingOptions, count_tokens: Callable[[str], int]) -> Any:
    return Deadly(_open_chunker(options, count_tokens))


def is_held(texts: Sequence[str]) -> bool:
    try:
        words = HELD.read_text()
    except FileNotFoundError:
        return False
    return any(words in text for text in texts)


def slow_embed(self: HashingEmbedder, texts: Sequence[str]) -> Vectors:
    time.sleep(SECONDS_PER_TEXT * len(texts))
    while is_held(texts):
        time.sleep(0.05)
    return _embed(self, texts)


def stalling(place: str, inner: Callable[..., Any], *args: Any, **options: Any) -> Any:
    found = inner(*args, **options)
    if STALLS is None or os.getpid() == FIRST:
        return found
    asked = Path(STALLS, "stall")
    try:
        if asked.read_text() != place:
            return found
        asked.rename(Path(STALLS, "stalled"))
    except FileNotFoundError:
        return found
    while not Path(STALLS, "go").exists():
        time.sleep(0.05)
    return found


mirror.MARK_SECONDS = 2.0
stores.REST_SECONDS = 1.0
vars(steps)["open_chunker"] = deadly_chunker
HashingEmbedder.embed_documents = slow_embed  # type: ignore[method-assign]
for name, (module, function) in PLACES.items():
    setattr(module, function, partial(stalling, name, getattr(module, function)))

if __name__ == "__main__":
    main()
