"""Cutting a document into chunks: the port, its options, and the table of strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from pipeline.chunking.splitting import ChunkingOptions, Ruler, Tokens
from pipeline.chunking.strategies import (
    FixedChunker,
    PbiChunker,
    RecursiveChunker,
    SemanticChunker,
    StructureChunker,
)
from pipeline.documents import Chunk, Document
from pipeline.errors import ConfigurationError

__all__ = ["STRATEGIES", "Chunker", "ChunkingOptions", "open_chunker"]


class Chunker(Protocol):
    """Text in, chunks out; deterministic, no input or output of its own."""

    version: str
    """Name, code version and options in one short string; part of the pipeline version."""

    def chunk(self, document: Document) -> list[Chunk]:
        """All text of the document, in order; an empty document has no chunks."""
        ...


STRATEGIES: Mapping[str, Callable[[ChunkingOptions, Ruler], Chunker]] = {
    "structure": StructureChunker,
    "semantic": SemanticChunker,
    "recursive": RecursiveChunker,
    "fixed": FixedChunker,
    "pbi_aware": PbiChunker,
}


def open_chunker(options: ChunkingOptions, count_tokens: Callable[[str], int] | None = None) -> Chunker:
    """The chunker that `options` ask for.

    `count_tokens` measures a text where `unit` is `tokens`, without special tokens; if it is missing, four
    characters count as a token.

    Raises:
        ConfigurationError: the strategy or the unit is unknown.
    """
    rulers: Mapping[str, Ruler] = {"characters": Ruler(), "tokens": Tokens(count_tokens)}
    for key, value, known in (("strategy", options.strategy, STRATEGIES), ("unit", options.unit, rulers)):
        if value not in known:
            raise ConfigurationError(
                f"unknown chunking {key} {value!r}", fix=f"use one of {', '.join(known)}"
            )
    return STRATEGIES[options.strategy](options, rulers[options.unit])
