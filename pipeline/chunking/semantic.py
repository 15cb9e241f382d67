"""Paragraph by paragraph: every paragraph a chunk of its own, headings as context."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pipeline.chunking.blocks import BlockKind, scan
from pipeline.chunking.packing import Packer
from pipeline.chunking.sections import context_of, split_sections
from pipeline.chunking.sizes import Ruler, version_of
from pipeline.documents import Chunk, Document

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions


class SemanticChunker:
    """Cuts at blank lines; only a paragraph over `max_size` is cut inside.

    A heading goes with the paragraph below it. A short paragraph stays alone; `min_size` concerns the
    leftovers of a cut paragraph only.
    """

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        self.version = version_of("semantic-2", options, ruler)
        self._options = options
        self._ruler = ruler

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        packer = Packer(self._options, self._ruler)
        blocks = scan(document.text, preserve=self._options.preserve_whitespace)
        for section in split_sections(blocks):
            context = context_of(document.title, section.path)
            for block in section.blocks:
                packer.add(block, context)
                if block.apart and block.kind is not BlockKind.HEADING:
                    packer.flush()
            if not section.bare:
                packer.flush()
        packer.flush()
        return packer.chunks
