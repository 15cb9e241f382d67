"""The ordinary command line, with a model and a ledger that take their time, so that a kill finds work under way."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.ledger import jobs
from workers.cli import main

SECONDS = 0.15

_embed, _finish = HashingEmbedder.embed_documents, jobs.finish


def embed(self: HashingEmbedder, texts: Sequence[str]) -> Vectors:
    """Before anything is stored."""
    time.sleep(SECONDS)
    return _embed(self, texts)


def finish(*given: Any) -> None:
    """After all is stored, before the job says so."""
    time.sleep(SECONDS)
    _finish(*given)


HashingEmbedder.embed_documents = embed  # type: ignore[method-assign]
jobs.finish = finish  # type: ignore[assignment]

if __name__ == "__main__":
    main()
