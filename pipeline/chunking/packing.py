"""Filling chunks with blocks, cutting only what does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pipeline.chunking.blocks import Block, BlockKind
from pipeline.chunking.sizes import Ruler
from pipeline.chunking.splitting import PROSE, Piece, Seams, split_rows, split_windows
from pipeline.documents import Chunk

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions

_ROWS: dict[BlockKind, Seams] = {BlockKind.CODE: (), BlockKind.TABLE: PROSE}
"""Kinds cut at line ends, and how to cut a line that is too long by itself."""
_PROSE = frozenset({BlockKind.PARAGRAPH, BlockKind.QUOTE})
"""Kinds that may be cut rather than leave a heading alone."""


class Packer:
    """Takes blocks in order, makes chunks of at most `max_size`.

    Between blocks, lines of code and rows of a table a cut is natural and repeats nothing; a cut inside a
    paragraph repeats up to `overlap` of it.
    """

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        """Read `chunks` after the last `flush`; a chunk's context is that of its first text."""
        self.chunks: list[Chunk] = []
        self._options = options
        self._ruler = ruler
        self._parts: list[str] = []
        self._gap = ""
        self._size = 0
        self._context = ""
        self._bare = True

    def add(self, block: Block, context: str) -> None:
        """Put `block` into the open chunk if it fits, else into new ones."""
        size = self._ruler.size(block.text)
        fits_alone = size <= self._options.max_size
        if not self._fits(size):
            if fits_alone and not (block.kind in _PROSE and self._is_slight()):
                self.flush()
            else:
                self._split(block, context)
                return
        self._append(Piece(block.text, block.gap), size, context)
        self._bare = self._bare and block.kind is BlockKind.HEADING

    def flush(self) -> None:
        """Close the open chunk; a blank one is dropped."""
        content, limit = "".join(self._parts), self._options.max_size
        if content.strip():
            if self._options.preserve_whitespace and self._ruler.size(content + self._gap) <= limit:
                content += self._gap
            self._emit(content)
        self._parts, self._gap, self._size, self._context, self._bare = [], "", 0, "", True

    def _emit(self, content: str) -> None:
        """Add a chunk, or several where a tokenizer finds the whole longer than the sum of its parts."""
        contents = [content]
        if self._ruler.size(content) > self._options.max_size:
            plain = replace(self._options, overlap=0, min_size=0)
            contents = [piece.text for piece in split_windows(content, plain, self._ruler, PROSE)]
        for text in contents:
            self.chunks.append(Chunk(ord=len(self.chunks), content=text, context=self._context))

    def _fits(self, size: int) -> bool:
        return self._filled() + size <= self._options.max_size

    def _filled(self) -> int:
        """The size of the open chunk, with the gap that the next text would make part of it."""
        return self._size + self._ruler.size(self._gap) if self._parts else 0

    def _is_slight(self) -> bool:
        """Too little to stand alone, and room enough for something to go with it."""
        small = self._bare or self._size < self._options.min_size
        return bool(self._parts) and small and self._filled() <= self._options.max_size // 2

    def _append(self, piece: Piece, size: int, context: str) -> None:
        if self._parts:
            self._size = self._filled()
            self._parts.append(self._gap)
        if self._bare:
            self._context = context
        self._parts.append(piece.text)
        self._size += size
        self._gap = piece.gap

    def _split(self, block: Block, context: str) -> None:
        if not self._is_slight():
            self.flush()
        if block.parts:
            for part in block.parts:
                self.add(part, context)
        elif block.kind in _ROWS:
            self._add_rows(block, context)
        else:
            self._add_windows(Piece(block.text, block.gap), PROSE, context)

    def _add_rows(self, block: Block, context: str) -> None:
        for row in split_rows(block.text + block.gap):
            size = self._ruler.size(row.text)
            if size > self._options.max_size:
                if not self._is_slight():
                    self.flush()
                self._add_windows(row, _ROWS[block.kind], context)
                continue
            if not self._fits(size):
                self.flush()
            self._append(row, size, context)
            self._bare = False

    def _add_windows(self, whole: Piece, seams: Seams, context: str) -> None:
        """The last piece stays open, so that what follows can join it."""
        first = self._options.max_size - self._filled()
        pieces = split_windows(whole.text + whole.gap, self._options, self._ruler, seams, first=first)
        for number, piece in enumerate(pieces):
            if number:
                self.flush()
            self._append(piece, self._ruler.size(piece.text), context)
            self._bare = False
