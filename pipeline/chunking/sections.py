"""Blocks under their headings, and the heading path that goes with each chunk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pipeline.chunking.blocks import Block, BlockKind, join_items

MOST_TITLE = 100
MOST_CONTEXT = 200
"""Characters; a context is embedded with every chunk and must leave room for the text."""

_ARROW = " > "


@dataclass(frozen=True, kw_only=True)
class Section:
    """A heading and the text up to the next heading; the first section may have none."""

    blocks: tuple[Block, ...]
    level: int
    """1 to 6; 0 for text before the first heading."""
    path: tuple[str, ...]
    """The headings above and its own."""

    @property
    def heading(self) -> str:
        """The words of its own heading, empty if it has none."""
        return self.path[-1] if self.level else ""

    @property
    def bare(self) -> bool:
        """True if there is nothing but a heading."""
        return all(block.kind is BlockKind.HEADING for block in self.blocks)


def split_sections(blocks: Iterable[Block]) -> Iterator[Section]:
    """All blocks in order, a new section at each heading; list items come joined."""
    path: list[tuple[int, str]] = []
    held: list[Block] = []
    for block in join_items(blocks):
        if block.kind is BlockKind.HEADING:
            if held:
                yield _section(held, path)
            held = []
            while path and path[-1][0] >= block.level:
                path.pop()
            path.append((block.level, block.heading))
        held.append(block)
    if held:
        yield _section(held, path)


def _section(blocks: Sequence[Block], path: Sequence[tuple[int, str]]) -> Section:
    return Section(
        blocks=tuple(blocks), level=path[-1][0] if path else 0, path=tuple(heading for _, heading in path)
    )


def context_of(title: str, path: Sequence[str] = ()) -> str:
    """`Title > Heading > Heading`; a first heading that repeats the title is left out.

    If that is too long, the headings between the title and the last one go first.
    """
    name = " ".join(title[: 4 * MOST_TITLE].split())
    headings = [" ".join(heading.split()) for heading in path]
    if headings and headings[0].casefold() == name.casefold():
        del headings[0]
    parts = [part for part in (name[:MOST_TITLE].rstrip(), *headings) if part]
    while len(parts) > 2 and len(_ARROW.join(parts)) > MOST_CONTEXT:  # noqa: PLR2004 - title and last heading
        del parts[1]
    return _ARROW.join(parts)[:MOST_CONTEXT].rstrip()
