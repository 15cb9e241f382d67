"""Product backlog items: whole in one chunk if possible, else field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from pipeline.chunking.blocks import scan
from pipeline.chunking.packing import Packer
from pipeline.chunking.sections import Section, context_of, split_sections
from pipeline.chunking.sizes import Ruler, version_of
from pipeline.documents import Chunk, Document

if TYPE_CHECKING:
    from pipeline.chunking import ChunkingOptions

_FIELD_LEVEL = 2
_KEPT_TOGETHER = frozenset({"", "description", "acceptance criteria"})
"""Fields that share a chunk if they fit one; the empty name is the title with the text below it."""


class PbiChunker:
    """Keeps title, description and acceptance criteria together; a criterion is cut only if too long itself."""

    def __init__(self, options: ChunkingOptions, ruler: Ruler) -> None:
        self.version = version_of("pbi_aware-2", options, ruler)
        self._options = options
        self._ruler = ruler

    def chunk(self, document: Document) -> list[Chunk]:
        """See `Chunker`."""
        packer = Packer(self._options, self._ruler)
        blocks = scan(document.text, preserve=self._options.preserve_whitespace)
        sections = list(split_sections(blocks))
        fields = list(_fields(sections))
        for group in [fields] if self._fit(fields) else self._groups(fields):
            whole = len(group) == len(fields)
            names = [] if whole else [field.name for field in group if field.name]
            context = context_of(document.title, [", ".join(names)])
            for field in group:
                for section in field.sections:
                    for block in section.blocks:
                        packer.add(block, context)
            packer.flush()
        return packer.chunks

    def _fit(self, fields: Sequence[_Field]) -> bool:
        size = self._ruler.size
        sections = [section for field in fields for section in field.sections]
        blocks = [block for section in sections for block in section.blocks]
        last = size(blocks[-1].gap) if blocks else 0
        return sum(size(b.text) + size(b.gap) for b in blocks) - last <= self._options.max_size

    def _groups(self, fields: Sequence[_Field]) -> Iterator[list[_Field]]:
        """Neighbours that are kept together if they fit one chunk, every other field by itself."""
        for together, run in groupby(fields, key=lambda field: field.name.casefold() in _KEPT_TOGETHER):
            members = list(run)
            if together and self._fit(members):
                yield members
            else:
                yield from ([member] for member in members)


class _Field:
    """A `##` heading with everything below it, and a title above it that has no text of its own."""

    def __init__(self, section: Section) -> None:
        self.sections: list[Section] = []
        self.name = ""
        self._bare = True
        self.take(section)

    def take(self, section: Section) -> None:
        """Append a section; a title alone takes the name of the field that joins it."""
        if section.level == _FIELD_LEVEL and not self.name:
            self.name = section.heading.replace("_", " ")
        self.sections.append(section)
        self._bare = self._bare and section.bare

    def holds(self, section: Section) -> bool:
        """True if `section` does not begin a field of its own."""
        title_alone = self._bare and not self.name
        return section.level > _FIELD_LEVEL or title_alone


def _fields(sections: Sequence[Section]) -> Iterator[_Field]:
    held: _Field | None = None
    for section in sections:
        if held and held.holds(section):
            held.take(section)
            continue
        if held:
            yield held
        held = _Field(section)
    if held:
        yield held
