"""Parts with bad days for the three steps of a document, and running some of the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.chunking.strategies import Chunker
from pipeline.documents import Chunk, Document
from pipeline.embedding import EmbedderLimits, Vectors
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.errors import EmbedderUnavailable, LarderError, TextRejected
from pipeline.ingest.steps import Indexer
from tests.pipeline.source_ledger import DIMENSIONS, MODEL, SourceLedger

STEPS = ("chunk", "embed", "upsert")


@dataclass
class Picky:
    """The hashing embedder with a provider's bad days: calls that fail, and texts it refuses."""

    fails_from: int | None = None
    """The first call, counted from 1, at which the provider is away for good."""
    trouble: LarderError | None = None
    """What every call raises."""
    refuses: str = ""
    """A text with these words in it is refused, and so is its call."""
    calls: int = 0
    seen: list[str] = field(default_factory=list)
    """What was embedded, and would be on the bill."""
    meanwhile: Callable[[], None] | None = None
    """Happens in each call before anything else."""
    model: str = MODEL
    dimensions: int = DIMENSIONS
    limits: EmbedderLimits = field(default_factory=lambda: EmbedderLimits(texts=4))

    def embed_documents(self, texts: Sequence[str]) -> Vectors:
        self.calls += 1
        if self.meanwhile:
            self.meanwhile()
        if self.fails_from is not None and self.calls >= self.fails_from:
            raise EmbedderUnavailable("the provider is away", retry_after=60)
        if self.trouble:
            raise self.trouble
        if self.refuses and any(self.refuses in t for t in texts):
            raise TextRejected("too rude")
        self.seen += texts
        return HashingEmbedder(DIMENSIONS).embed_documents(texts)

    def embed_query(self, text: str) -> Vectors:
        vector: Vectors = self.embed_documents([text])[0]
        return vector

    def count_tokens(self, text: str) -> int:
        return len(text.split())


@dataclass
class Interrupted:
    """A chunker during whose work something else happens, or that fails on some texts."""

    chunker: Chunker
    meanwhile: Callable[[], None] | None = None
    fails_on: str = "\0"
    version: str = "interrupted-1"

    def chunk(self, document: Document) -> list[Chunk]:
        if self.meanwhile:
            self.meanwhile()
        if self.fails_on in document.text:
            raise ValueError(f"cannot cut {document.text}")
        return self.chunker.chunk(document)


def run_item(notes: SourceLedger, external_id: str) -> Any:
    return notes.run_items(document_id=notes.id(external_id))[-1]


def through(notes: SourceLedger, upto: str, **changes: Any) -> Indexer:
    """Run the steps before `upto` for all that waits."""
    indexer, items = notes.indexer(**changes), notes.items()
    for name in STEPS[: STEPS.index(upto)]:
        getattr(indexer, name)(notes.tenant, items)
    return indexer
