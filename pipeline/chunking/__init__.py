"""Cutting a document into chunks: the port, its options, and the table of strategies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from pipeline.documents import Chunk, Document


@dataclass(frozen=True, kw_only=True)
class ChunkingOptions:
    """Sizes are characters, or tokens of the embedder if `unit` is `tokens`."""

    strategy: str = "structure"
    min_size: int = 100
    max_size: int = 1000
    overlap: int = 200
    split_on: tuple[str, ...] = ("\n\n", "\n", ". ", ", ")
    preserve_whitespace: bool = False
    unit: Literal["characters", "tokens"] = "characters"


class Chunker(Protocol):
    """Text in, chunks out; deterministic, no input or output of its own."""

    version: str
    """Name, code version and options in one short string; part of the pipeline version."""

    def chunk(self, document: Document) -> list[Chunk]:
        """All text of the document, in order; an empty document has no chunks."""
        ...
