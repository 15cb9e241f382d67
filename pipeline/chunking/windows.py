"""The two strategies that know no Markdown: recursive separators, and plain windows."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from pipeline.chunking.blocks import normalise
from pipeline.chunking.sections import context_of
from pipeline.chunking.sizes import Ruler, version_of
from pipeline.chunking.splitting import Seams, Separator, Words, split_windows
from pipeline.documents import Chunk, Document

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions

_NEAR = 0.8
"""A blank is near if cutting there leaves at most a fifth of the chunk empty."""


class FixedChunker:
    """Windows of `max_size` that overlap by `overlap`, cut at a blank when one is near."""

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        self.version = version_of("fixed-2", options, ruler)
        self._options = options
        self._ruler = ruler
        self._seams: Seams = ((Words(), _NEAR),)

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        keep, limit = self._options.preserve_whitespace, self._options.max_size
        text = normalise(document.text, preserve=keep)
        context = context_of(document.title)
        chunks = []
        for number, piece in enumerate(split_windows(text, self._options, self._ruler, self._seams)):
            whole = piece.text + piece.gap
            fits = keep and self._ruler.size(whole) <= limit
            chunks.append(Chunk(ord=number, content=whole if fits else piece.text, context=context))
        return chunks


class RecursiveChunker(FixedChunker):
    """Cuts at the first separator of `split_on` that a window holds, then at a blank, then anywhere.

    A separator in the first `min_size` of a chunk is passed over for the next one. Neighbours overlap by
    what follows the first separator within `overlap` of the cut.
    """

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        super().__init__(options, ruler)
        marks = crc32(repr(options.split_on).encode("utf-8", "backslashreplace"))
        self.version = f"{version_of('recursive-2', options, ruler)}:{marks:08x}"
        share = options.min_size / options.max_size
        separators = [(Separator(mark=mark), share) for mark in options.split_on if mark]
        self._seams = (*separators, *self._seams)
