"""Markdown text as a flat list of blocks, read line by line.

A scanner instead of a parser: chunking needs to know where code, tables, items and headings begin and end,
never how they nest, and a flat scan cannot be made slow or deep by a hostile document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import StringIO

MOST_HEADING = 200
"""Longer headings are cut where they are quoted; their text in the document stays."""

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_FENCE = re.compile(r"[ \t]*([-*+][ \t]+)?(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?=[ \t\r\n]|\Z)")
_QUOTE = re.compile(r" {0,3}>")
_MARKED = re.compile(r"[ \t]*[`~#=\-*+>0-9]")
"""Most lines start with a letter; one look spares them all the rules."""
_INDENT = re.compile(r"[ \t]*")
_MOST_TOP_INDENT = 3
_GAPS = {True: "\n\n", False: "\n"}


class BlockKind(StrEnum):
    """What a block is; decides where it may be cut."""

    HEADING = "heading"
    CODE = "code"
    TABLE = "table"
    ITEM = "item"
    QUOTE = "quote"
    PARAGRAPH = "paragraph"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Some lines that belong together."""

    kind: BlockKind
    text: str
    """Without the blanks at its end; empty only for blank lines at the start of a preserved text."""
    gap: str = ""
    """What stands between this block and the next."""
    apart: bool = False
    """A blank line follows."""
    indent: int = 0
    """Columns before the first line, a tab counting four."""
    level: int = 0
    """1 to 6 for headings."""
    heading: str = ""
    """The words of a heading, at most `MOST_HEADING` characters."""
    parts: tuple[Block, ...] = ()
    """The blocks a joined list item is made of."""


def scan(text: str, *, preserve: bool = False) -> Iterator[Block]:
    """All blocks in order; `text` and `gap` of all together are the document.

    Unless `preserve` is set, line ends become line feeds, and outside code blanks at line ends are dropped
    and several blank lines become one.
    """
    if not preserve:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    scanner = _BlockScanner(preserve=preserve)
    for line in StringIO(text, newline=""):
        scanner.feed(line)
        if scanner.blocks:
            yield from scanner.blocks
            scanner.blocks.clear()
    scanner.finish()
    yield from scanner.blocks


def normalise(text: str, *, preserve: bool = False) -> str:
    """The text as `scan` sees it, in one piece."""
    return "".join(f"{block.text}{block.gap}" for block in scan(text, preserve=preserve))


def join_items(blocks: Iterable[Block]) -> Iterator[Block]:
    """A list item and all that is indented below it become one block, with the old ones as its parts."""
    held: list[Block] = []
    for block in blocks:
        if held and not (block.indent > held[0].indent and block.kind is not BlockKind.HEADING):
            yield _joined(held)
            held = []
        if held or block.kind is BlockKind.ITEM:
            held.append(block)
        else:
            yield block
    if held:
        yield _joined(held)


def _joined(blocks: Sequence[Block]) -> Block:
    last = blocks[-1]
    if len(blocks) == 1:
        return last
    text = "".join(f"{block.text}{block.gap}" for block in blocks[:-1]) + last.text
    return Block(
        kind=BlockKind.ITEM,
        text=text,
        gap=last.gap,
        apart=last.apart,
        indent=blocks[0].indent,
        parts=tuple(blocks),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Fence:
    """An open code fence."""

    mark: str
    length: int
    nested: bool

    def closes(self, line: str) -> bool:
        """A line of at least as many of the same marks and nothing else."""
        body = line.strip()
        return len(body) >= self.length and not body.strip(self.mark)


class _BlockScanner:
    """One pass over the lines; at any time at most one block is open."""

    def __init__(self, *, preserve: bool) -> None:
        self.blocks: list[Block] = []
        """Finished ones; `scan` takes them away."""
        self._preserve = preserve
        self._kind: BlockKind | None = None
        self._lines: list[str] = []
        self._gap: list[str] = []
        self._level = 0
        self._in_list = False
        self._fence: _Fence | None = None
        self._rules = (
            self._open_fence,
            self._atx_heading,
            self._underline,
            self._table,
            self._item,
            self._quote,
        )

    def feed(self, line: str) -> None:
        """Take the next line with its end."""
        if self._fence:
            if not self._leaves_list(line):
                self._in_fence(self._fence, line)
                return
            self._fence = None
            self.finish()
        if line.isspace():
            self._gap.append(line)
        elif not (_MARKED.match(line) or "|" in line) or not any(rule(line) for rule in self._rules):
            self._text(line)

    def finish(self) -> None:
        """Turn what is open into a block."""
        if self._kind is None and not (self._gap and self._preserve):
            self._gap = []
            return
        kind = self._kind or BlockKind.PARAGRAPH
        verbatim = self._preserve or kind is BlockKind.CODE
        whole = "".join(self._lines) if verbatim else "\n".join(map(str.rstrip, self._lines))
        text = whole.rstrip()
        gap = whole[len(text) :] + "".join(self._gap)
        # A fence that nobody closed holds the blank lines behind it as lines of its own.
        apart = bool(self._gap) or gap.count("\n") > 1
        self.blocks.append(
            Block(
                kind=kind,
                text=text,
                gap=gap if self._preserve else _GAPS[apart],
                apart=apart,
                indent=_indent(text),
                level=self._level,
                heading=_heading(text) if kind is BlockKind.HEADING else "",
            )
        )
        self._kind, self._lines, self._gap, self._level = None, [], [], 0

    def _begin(self, kind: BlockKind, *lines: str) -> bool:
        self.finish()
        self._kind, self._lines = kind, list(lines)
        return True

    def _extend(self, line: str) -> bool:
        self._lines.append(line)
        return True

    @property
    def _open(self) -> BlockKind | None:
        """The kind of a block that the next line may still belong to."""
        return None if self._gap else self._kind

    def _leaves_list(self, line: str) -> bool:
        """A fence inside a list item ends with the item, even if nobody closed it."""
        fence = self._fence
        return bool(fence and fence.nested and not line[0].isspace() and not fence.closes(line))

    def _in_fence(self, fence: _Fence, line: str) -> None:
        self._lines.append(line)
        if fence.closes(line):
            self._fence = None

    def _open_fence(self, line: str) -> bool:
        match = _FENCE.match(line)
        if not match or (match[2][0] == "`" and "`" in line[match.end() :]):
            return False
        indent = _indent(line)
        if indent > _MOST_TOP_INDENT and not self._in_list:
            return False
        nested = bool(match[1]) or (self._in_list and indent > 1)
        self._in_list = nested
        self._fence = _Fence(mark=match[2][0], length=len(match[2]), nested=nested)
        return self._begin(BlockKind.CODE, line)

    def _atx_heading(self, line: str) -> bool:
        match = _ATX.match(line)
        if not match:
            return False
        self._in_list = False
        self._begin(BlockKind.HEADING, line)
        self._level = len(match[1])
        return True

    def _underline(self, line: str) -> bool:
        """A setext heading, or a rule.

        Several lines above an underline are a heading to the letter of Markdown, but nearly always a
        paragraph that somebody put a rule under.
        """
        body = line.strip()
        if body[0] not in "=-" or body.strip(body[0]) or _ITEM.match(line):
            return False
        if self._open is BlockKind.PARAGRAPH and len(self._lines) == 1 and not self._is_rule():
            self._kind, self._level = BlockKind.HEADING, 1 if body[0] == "=" else 2
            return self._extend(line)
        return self._begin(BlockKind.PARAGRAPH, line)

    def _is_rule(self) -> bool:
        return not self._lines[0].strip().strip("=-")

    def _table(self, line: str) -> bool:
        if "|" not in line:
            return False
        if self._open is BlockKind.TABLE:
            return self._extend(line)
        if line.lstrip()[0] == "|":
            return self._begin(BlockKind.TABLE, line)
        if self._open is BlockKind.PARAGRAPH and "|" in self._lines[-1] and not line.strip("|-: \t\r\n"):
            head = self._lines.pop()
            if not self._lines:
                self._kind = None
            return self._begin(BlockKind.TABLE, head, line)
        return False

    def _item(self, line: str) -> bool:
        if not _ITEM.match(line):
            return False
        self._in_list = True
        return self._begin(BlockKind.ITEM, line)

    def _quote(self, line: str) -> bool:
        if not _QUOTE.match(line):
            return False
        if self._open is BlockKind.QUOTE:
            return self._extend(line)
        return self._begin(BlockKind.QUOTE, line)

    def _text(self, line: str) -> None:
        if self._open in {BlockKind.PARAGRAPH, BlockKind.ITEM, BlockKind.QUOTE}:
            self._extend(line)
            return
        if not line[0].isspace():
            self._in_list = False
        self._begin(BlockKind.PARAGRAPH, line)


def _indent(text: str) -> int:
    match = _INDENT.match(text)
    return len(match[0].expandtabs(4)) if match else 0


def _heading(text: str) -> str:
    """The words of a heading without its marks."""
    body = text.splitlines()[0].strip()
    if _ATX.match(body):
        body = body.lstrip("#").strip()
        bare = body.rstrip("#")
        # Closing marks stand behind a blank; the one of "C#" belongs to the word.
        body = bare.rstrip() if not bare or bare[-1].isspace() else body
    return body[:MOST_HEADING].rstrip()


MOST_TITLE = 100
MOST_CONTEXT = 200
"""Characters; a context is embedded with every chunk and must leave room for the text."""

_ARROW = " > "


@dataclass(frozen=True, kw_only=True)
class MarkdownSection:
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


def split_sections(blocks: Iterable[Block]) -> Iterator[MarkdownSection]:
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


def _section(blocks: Sequence[Block], path: Sequence[tuple[int, str]]) -> MarkdownSection:
    return MarkdownSection(
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
