"""The default strategy: Markdown sections, whole blocks, heading path as context."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from pipeline.chunking.blocks import BlockKind, scan
from pipeline.chunking.packing import Packer
from pipeline.chunking.sections import Section, context_of, split_sections
from pipeline.chunking.sizes import Ruler, version_of
from pipeline.documents import Chunk, Document

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions


class StructureChunker:
    """Packs the blocks of each section; sections with hardly any text share a chunk with a neighbour.

    Which sections share depends on these sections alone, so an edit changes the chunks of its own section,
    of those that share with it, and no others.
    """

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        self.version = version_of("structure-2", options, ruler)
        self._options = options
        self._ruler = ruler

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        packer = Packer(self._options, self._ruler)
        blocks = scan(document.text, preserve=self._options.preserve_whitespace)
        for group in self._groups(split_sections(blocks)):
            for section in group.sections:
                context = context_of(document.title, section.path)
                for block in section.blocks:
                    packer.add(block, context)
            packer.flush()
        return packer.chunks

    def _groups(self, sections: Iterable[Section]) -> list[_Group]:
        """Sections that share chunks: first slight ones with what follows, then leftovers with what precedes."""
        groups: list[_Group] = []
        for section in sections:
            group = self._group(section)
            if groups and groups[-1].text < self._options.min_size and self._may_join(groups[-1], group):
                groups[-1].take(group)
            else:
                groups.append(group)
        settled: list[_Group] = []
        for group in groups:
            slight = group.text < self._options.min_size
            if slight and settled and self._may_join(settled[-1], group):
                settled[-1].take(group)
            else:
                settled.append(group)
        return settled

    def _group(self, section: Section) -> _Group:
        size = self._ruler.size
        text = sum(size(b.text) for b in section.blocks if b.kind is not BlockKind.HEADING)
        heading = sum(size(b.text) for b in section.blocks if b.kind is BlockKind.HEADING)
        gaps = sum(size(b.gap) for b in section.blocks)
        return _Group(section, text, text + heading + gaps)

    def _may_join(self, before: _Group, after: _Group) -> bool:
        """Below or beside `before` in the outline and small enough; a bare heading joins whatever follows."""
        related = after.level >= before.level
        return related and (before.bare or before.size + after.size <= self._options.max_size)


class _Group:
    """Neighbouring sections that are packed together."""

    def __init__(self, section: Section, text: int, size: int) -> None:
        self.sections = [section]
        self.text = text
        """Size without headings and gaps."""
        self.size = size
        self.level = section.level
        self.bare = section.bare

    def take(self, other: _Group) -> None:
        """Append `other`; the level stays that of the first section."""
        self.sections += other.sections
        self.text += other.text
        self.size += other.size
        self.bare = self.bare and other.bare
