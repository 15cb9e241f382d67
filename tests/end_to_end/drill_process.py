"""The ordinary command line, with two things real life has: documents that kill, and a slow model.

While the file `held-texts` exists, the model takes for ever over texts in which its words are.

Started by the drill in place of `larder`; everything else is the product's own code.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pipeline.chunking import Chunker, ChunkingOptions
from pipeline.documents import Chunk, Document
from pipeline.embedding import Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from workers.cli import main
from workers.control import steps

HELD = Path("held-texts")
SECONDS_PER_TEXT = float(os.environ.get("DRILL_SECONDS_PER_TEXT", "0.004"))


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


vars(steps)["open_chunker"] = deadly_chunker
HashingEmbedder.embed_documents = slow_embed  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
