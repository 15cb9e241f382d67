"""The port of chunking, its five strategies, and the packer that fills chunks with blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import ClassVar, Protocol
from zlib import crc32

from pipeline.chunking.blocks import (
    Block,
    BlockKind,
    MarkdownSection,
    context_of,
    normalise,
    scan,
    split_sections,
)
from pipeline.chunking.splitting import (
    PROSE,
    ChunkingOptions,
    Frame,
    Piece,
    Ruler,
    Seams,
    Separator,
    Tokens,
    Words,
    framed_rows,
    holds_fence,
    split_windows,
)
from pipeline.documents import Chunk, Document
from pipeline.errors import ConfigurationError

_ROWS: dict[BlockKind, Seams] = {BlockKind.CODE: (), BlockKind.TABLE: PROSE}
"""Kind that is cut at line ends -> seams for a line that is too long by itself."""
_PROSE = frozenset({BlockKind.PARAGRAPH, BlockKind.QUOTE})
"""Kinds that may be cut rather than leave a heading alone."""

_NO_FRAME = Frame()


class Packer:
    """Packs blocks, in order, into chunks of at most `max_size`.

    A cut between blocks repeats nothing, between rows of a table its head, between lines of code the marks around it;
    a cut inside a paragraph repeats up to `overlap` of it.
    """

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        """`chunks` is complete after the last `flush`; a chunk's context is that of its first text."""
        self.chunks: list[Chunk] = []
        self._options = options
        self._ruler = ruler
        self._texts: list[str] = []
        self._gap = ""
        self._size = 0
        self._context = ""
        self._bare = True

    def add(self, block: Block, context: str) -> None:
        """Put `block` into the open chunk if it fits, else into new ones."""
        size, limit = self._ruler.size(block.text), self._options.max_size
        if self._filled() + size > limit:
            if size > limit or (block.kind in _PROSE and self._is_slight()):
                self._split(block, context)
                return
            self.flush()
        self._append(Piece(block.text, block.gap), size, context, bare=block.kind is BlockKind.HEADING)

    def flush(self) -> None:
        """Close the open chunk; a blank one is dropped, and one that is longer than its texts together is split."""
        content, limit = "".join(self._texts), self._options.max_size
        if content.strip():
            if self._options.preserve_whitespace and self._ruler.size(content + self._gap) <= limit:
                content += self._gap
            contents = [content]
            if (
                self._ruler.size(content) > limit
            ):  # a tokenizer may count more tokens in the whole than in its texts
                plain = replace(self._options, overlap=0, min_size=0)
                contents = [piece.text for piece in split_windows(content, plain, self._ruler, PROSE)]
            for text in contents:
                self.chunks.append(Chunk(ord=len(self.chunks), content=text, context=self._context))
        self._texts, self._gap, self._size, self._context, self._bare = [], "", 0, "", True

    def _filled(self) -> int:
        """Size of the open chunk, with the gap before a next text."""
        return self._size + self._ruler.size(self._gap) if self._texts else 0

    def _is_slight(self) -> bool:
        """True if the open chunk is too small to stand alone and at most half full."""
        small = self._bare or self._size < self._options.min_size
        return bool(self._texts) and small and self._filled() <= self._options.max_size // 2

    def _append(self, piece: Piece, size: int, context: str, *, bare: bool = False) -> None:
        if self._texts:
            self._size = self._filled()
            self._texts.append(self._gap)
        if self._bare:
            self._context = context
        self._texts.append(piece.text)
        self._size += size
        self._gap = piece.gap
        self._bare = self._bare and bare

    def _split(self, block: Block, context: str) -> None:
        if not self._is_slight():
            self.flush()
        for member in block.members:
            self.add(member, context)
        if block.members:
            return
        if block.kind not in _ROWS and not holds_fence(block.text):
            self._add_windows(Piece(block.text, block.gap), PROSE, context)
            return
        self._add_rows(block, context)

    def _add_rows(self, block: Block, context: str) -> None:
        """Add a block line by line; each further chunk repeats the head of the table or the mark of the code."""
        frame, limit = _NO_FRAME, self._options.max_size
        for row, frame_behind in framed_rows(block.text + block.gap):
            now, behind = (self._framing(one) for one in (frame, frame_behind))
            size, closing = self._ruler.size(row.text), self._size_of_tail(behind)
            if size + self._ruler.size(f"{now.head}\n") + closing > limit:
                if now == _NO_FRAME and not self._is_slight():
                    self.flush()
                self._add_windows(row, _ROWS.get(block.kind, PROSE), context, now)
            else:
                if self._filled() + size + closing > limit:
                    self._interrupt(now, context)
                self._append(row, size, context)
            frame = frame_behind

    def _framing(self, frame: Frame) -> Frame:
        """The frame, or none if it takes more than half a chunk or the text must not be changed."""
        size = self._ruler.size(f"{frame.head}\n") + self._size_of_tail(frame)
        too_much = self._options.preserve_whitespace or size > self._options.max_size // 2
        return _NO_FRAME if too_much else frame

    def _size_of_tail(self, frame: Frame) -> int:
        return self._ruler.size(f"\n{frame.tail}") if frame.tail else 0

    def _interrupt(self, frame: Frame, context: str) -> None:
        """Continue in a new chunk: close the code in this one and open it in the next."""
        if frame.tail and self._texts:
            self._gap = "\n"
            self._append(Piece(frame.tail, ""), self._ruler.size(frame.tail), context)
        self.flush()
        if frame.head:
            self._append(Piece(frame.head, "\n"), self._ruler.size(frame.head), context)

    def _add_windows(self, whole: Piece, seams: Seams, context: str, frame: Frame = _NO_FRAME) -> None:
        """Add a text in windows; the last one stays open, so that the next block can join it."""
        room = self._options.max_size - self._size_of_tail(frame)
        if frame.head and room - self._filled() < room // 2:
            self._interrupt(frame, context)
        first = room - self._filled()
        room -= self._ruler.size(f"{frame.head}\n") if frame.head else 0
        options = replace(
            self._options,
            max_size=room,
            overlap=min(self._options.overlap, room - 1),
            min_size=min(self._options.min_size, room),
        )
        pieces = split_windows(whole.text + whole.gap, options, self._ruler, seams, first=first)
        for number, piece in enumerate(pieces):
            if number:
                self._interrupt(frame, context)
            self._append(piece, self._ruler.size(piece.text), context)


class _Strategy:
    """Base of all strategies."""

    name: ClassVar[str]
    """Name and version number of the strategy's code."""

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        sizes = f"{options.min_size}/{options.max_size}/{options.overlap}"
        self.version = f"{self.name}:{sizes}:{ruler.name}{':preserve' * options.preserve_whitespace}"
        self._options = options
        self._ruler = ruler

    def _sections(self, document: Document) -> list[MarkdownSection]:
        return split_sections(scan(document.text, preserve=self._options.preserve_whitespace))


class StructureChunker(_Strategy):
    """Packs the blocks of each section; sections with hardly any text share a chunk with a neighbour.

    Which sections share depends on these sections alone, so that an edit changes only the chunks of its section
    and of those that share with it.
    """

    name = "structure-3"

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        packer = Packer(self._options, self._ruler)
        for group in self._groups(self._sections(document)):
            for section in group.sections:
                context = context_of(document.title, section.path)
                for block in section.blocks:
                    packer.add(block, context)
            packer.flush()
        return packer.chunks

    def _groups(self, sections: Iterable[MarkdownSection]) -> list[_Group]:
        """Sections that share chunks: first slight ones with what follows, then leftovers with what precedes."""
        groups, size = list[_Group](), self._ruler.size
        for section in sections:
            text = sum(size(b.text) for b in section.blocks if b.kind is not BlockKind.HEADING)
            whole = sum(size(b.text) + size(b.gap) for b in section.blocks)
            groups.append(_Group([section], text, whole, section.bare))
        for slight in (0, 1):
            joined: list[_Group] = []
            for group in groups:
                pair = (joined[-1], group) if joined else ()
                if pair and pair[slight].text < self._options.min_size and self._may_join(*pair):
                    pair[0].take(group)
                else:
                    joined.append(group)
            groups = joined
        return groups

    def _may_join(self, before: _Group, after: _Group) -> bool:
        """True if `after` is below or beside `before` in the outline and both fit; a bare heading always joins."""
        related = after.sections[0].level >= before.sections[0].level
        return related and (before.bare or before.size + after.size <= self._options.max_size)


@dataclass
class _Group:
    """Neighbouring sections that are packed together."""

    sections: list[MarkdownSection]
    text: int
    """Size without headings and gaps."""
    size: int
    bare: bool

    def take(self, other: _Group) -> None:
        """Append `other`."""
        self.sections += other.sections
        self.text += other.text
        self.size += other.size
        self.bare = self.bare and other.bare


class SemanticChunker(_Strategy):
    """Cuts at blank lines; only a paragraph over `max_size` is cut inside.

    A heading goes with the paragraph below it. A short paragraph stays alone; `min_size` concerns the
    leftovers of a cut paragraph only.
    """

    name = "semantic-3"

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        packer = Packer(self._options, self._ruler)
        for section in self._sections(document):
            context = context_of(document.title, section.path)
            for block in section.blocks:
                packer.add(block, context)
                if block.apart and block.kind is not BlockKind.HEADING:
                    packer.flush()
            if not section.bare:
                packer.flush()
        packer.flush()
        return packer.chunks


_FIELD_LEVEL = 2
_KEPT_TOGETHER = frozenset({"", "description", "acceptance criteria"})
"""Fields that share a chunk if they fit one; the empty name is the title with the text below it."""


class PbiChunker(_Strategy):
    """Keeps title, description and acceptance criteria together; a criterion is cut only if too long itself."""

    name = "pbi_aware-3"

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        packer = Packer(self._options, self._ruler)
        fields = _fields(self._sections(document))
        for group in [fields] if self._fit(fields) else self._groups(fields):
            whole = len(group) == len(fields)
            names = [] if whole else [field.name for field in group if field.name]
            context = context_of(document.title, [", ".join(names)])
            for block in _blocks(group):
                packer.add(block, context)
            packer.flush()
        return packer.chunks

    def _fit(self, fields: Sequence[_Field]) -> bool:
        size, blocks = self._ruler.size, _blocks(fields)
        last = size(blocks[-1].gap) if blocks else 0
        return sum(size(b.text) + size(b.gap) for b in blocks) - last <= self._options.max_size

    def _groups(self, fields: Sequence[_Field]) -> Iterator[list[_Field]]:
        """Groups of fields: neighbours of `_KEPT_TOGETHER` that fit one chunk, every other field alone."""
        for together, run in groupby(fields, key=lambda field: field.name.casefold() in _KEPT_TOGETHER):
            members = list(run)
            if together and self._fit(members):
                yield members
            else:
                yield from ([member] for member in members)


@dataclass
class _Field:
    """A `##` heading with everything below it, and a title above it that has no text of its own."""

    sections: list[MarkdownSection] = field(default_factory=list)
    name: str = ""
    bare: bool = True


def _fields(sections: Iterable[MarkdownSection]) -> list[_Field]:
    fields: list[_Field] = []
    for section in sections:
        title_alone = bool(fields) and fields[-1].bare and not fields[-1].name
        if not (fields and (section.level > _FIELD_LEVEL or title_alone)):
            fields.append(_Field())
        last = fields[-1]
        if section.level == _FIELD_LEVEL and not last.name:
            last.name = section.path[-1].replace("_", " ")
        last.sections.append(section)
        last.bare = last.bare and section.bare
    return fields


def _blocks(fields: Sequence[_Field]) -> list[Block]:
    return [block for field in fields for section in field.sections for block in section.blocks]


_NEAR = 0.8
"""Minimum share of a chunk that a cut at a blank must fill."""


class FixedChunker(_Strategy):
    """Windows of `max_size` that overlap by `overlap`, cut at a blank when one is near."""

    name = "fixed-2"
    _seams: Seams = ((Words(), _NEAR),)

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
    """Cuts at the first separator of `split_on` in a window, then at a blank, then anywhere.

    A separator within the first `min_size` of a chunk is skipped. Neighbours overlap by the text after the first
    separator within `overlap` of the cut.
    """

    name = "recursive-2"

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        super().__init__(options, ruler)
        marks = crc32(repr(options.split_on).encode("utf-8", "backslashreplace"))
        self.version += f":{marks:08x}"
        share = options.min_size / options.max_size
        separators = [(Separator(mark=mark), share) for mark in options.split_on if mark]
        self._seams = (*separators, *self._seams)


class Chunker(Protocol):
    """A chunking strategy: document in, chunks out; deterministic, without I/O."""

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
    """The chunker of `options`.

    `count_tokens` measures a text where `unit` is `tokens`, without special tokens; if it is missing, four
    characters count as a token.

    Raises:
        ConfigurationError: the strategy or the unit is unknown.
    """
    rulers: Mapping[str, Ruler] = {"characters": Ruler(), "tokens": Tokens(count_tokens)}
    for key, value, choices in (("strategy", options.strategy, STRATEGIES), ("unit", options.unit, rulers)):
        if value not in choices:
            raise ConfigurationError(
                f"unknown chunking {key} {value!r}", fix=f"use one of {', '.join(choices)}"
            )
    return STRATEGIES[options.strategy](options, rulers[options.unit])
