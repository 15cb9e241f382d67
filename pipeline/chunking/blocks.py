"""Markdown text as a flat list of blocks, read line by line.

A scanner instead of a parser: chunking needs the bounds of code, tables, items and headings, not their nesting,
and a hostile document cannot make a flat scan slow or deep.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from io import StringIO

from pipeline.documents.plain_text import plain_words

MAX_HEADING = 200
"""Maximum characters of a heading in a context; its text in the document stays whole."""

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_FENCE = re.compile(r"[ \t]*([-*+][ \t]+)?(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?=[ \t\r\n]|\Z)")
_QUOTE = re.compile(r" {0,3}>")
_MAX_TOP_INDENT = 3


class BlockKind(StrEnum):
    """Kind of a block; decides where the block may be cut."""

    HEADING = "heading"
    CODE = "code"
    TABLE = "table"
    ITEM = "item"
    QUOTE = "quote"
    PARAGRAPH = "paragraph"


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Consecutive lines of one kind."""

    kind: BlockKind
    text: str
    """Text without trailing blanks; empty only for blank lines at the start of a preserved text."""
    gap: str = ""
    """Blanks and line ends before the next block."""
    apart: bool = False
    """True if a blank line follows."""
    indent: int = 0
    """Columns before the first line, a tab counting four."""
    level: int = 0
    """1 to 6 for headings."""
    heading: str = ""
    """The words of a heading, at most `MAX_HEADING` characters."""
    members: tuple[Block, ...] = ()
    """The blocks of a joined list item."""


def scan(text: str, *, preserve: bool = False) -> list[Block]:
    """All blocks in order; `text` and `gap` of all together are the document.

    Unless `preserve` is set, line ends become line feeds, and outside code blanks at line ends are dropped
    and several blank lines become one.
    """
    if not preserve:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    scanner = _BlockScanner(preserve=preserve)
    for line in StringIO(text, newline=""):
        scanner.feed(line)
    scanner.finish()
    return scanner.blocks


def normalise(text: str, *, preserve: bool = False) -> str:
    """The text with line ends and blanks normalised as `scan` does."""
    return "".join(f"{block.text}{block.gap}" for block in scan(text, preserve=preserve))


def join_items(blocks: Iterable[Block]) -> Iterator[Block]:
    """Join each list item with the blocks indented below it into one block, which keeps them as `members`."""
    groups: list[list[Block]] = []
    for block in blocks:
        item = groups[-1][0] if groups and groups[-1][0].kind is BlockKind.ITEM else None
        if item and block.indent > item.indent and block.kind is not BlockKind.HEADING:
            groups[-1].append(block)
        else:
            groups.append([block])
    for *before, last in groups:
        if before:
            text = "".join(f"{block.text}{block.gap}" for block in before) + last.text
            indent, members = before[0].indent, (*before, last)
            yield replace(last, kind=BlockKind.ITEM, text=text, indent=indent, members=members)
        else:
            yield last


class _BlockScanner:
    """One pass over the lines, with at most one open block."""

    def __init__(self, *, preserve: bool) -> None:
        self.blocks: list[Block] = []
        self._preserve = preserve
        self._kind: BlockKind | None = None
        self._lines: list[str] = []
        self._gap: list[str] = []
        self._level = 0
        self._in_list = False
        self._fence = ""
        """Marks that opened the current code block; empty outside code."""
        self._nested = False
        """True if that code is inside a list item."""

    def feed(self, line: str) -> None:
        """Process the next line, line end included."""
        body = line.strip()
        if self._fence:
            closes = body.startswith(self._fence) and not body.strip(self._fence[0])
            if closes or not self._nested or line[0].isspace():
                self._lines.append(line)
                self._fence = "" if closes else self._fence
                return
            # A fence inside a list item ends with the item, even if unclosed.
            self._fence = ""
            self.finish()
        if not body:
            self._gap.append(line)
        elif not self._is_marked(line, body):
            if self._open in {BlockKind.PARAGRAPH, BlockKind.ITEM, BlockKind.QUOTE}:
                self._lines.append(line)
                return
            self._in_list &= line[0].isspace()
            self._begin(BlockKind.PARAGRAPH, line)

    def finish(self) -> None:
        """Close the open block."""
        if self._kind is None and not (self._gap and self._preserve):
            self._gap = []
            return
        kind = self._kind or BlockKind.PARAGRAPH
        verbatim = self._preserve or kind is BlockKind.CODE
        whole = "".join(self._lines) if verbatim else "\n".join(map(str.rstrip, self._lines))
        text = whole.rstrip()
        gap = whole[len(text) :] + "".join(self._gap)
        # An unclosed fence keeps the blank lines after it as its own lines.
        apart = bool(self._gap) or gap.count("\n") > 1
        self.blocks.append(
            Block(
                kind=kind,
                text=text,
                gap=gap if self._preserve else "\n" * (1 + apart),
                apart=apart,
                indent=_indent(text),
                level=self._level,
                heading=_heading(text) if kind is BlockKind.HEADING else "",
            )
        )
        self._kind, self._lines, self._gap, self._level = None, [], [], 0

    def _begin(self, kind: BlockKind, *lines: str) -> None:
        self.finish()
        self._kind, self._lines = kind, list(lines)

    def _extend(self, kind: BlockKind, line: str) -> None:
        """Append a line to the open block of this kind, or begin one."""
        if self._open is kind:
            self._lines.append(line)
        else:
            self._begin(kind, line)

    @property
    def _open(self) -> BlockKind | None:
        """Kind of the block that the next line may continue."""
        return None if self._gap else self._kind

    def _is_marked(self, line: str, body: str) -> bool:
        """Add a line that has block marks; False if it has none."""
        if body[0].isalpha() and "|" not in line:
            return False
        item = _ITEM.match(line)
        if self._opens_fence(line):
            self._begin(BlockKind.CODE, line)
        elif match := _ATX.match(line):
            self._in_list = False
            self._begin(BlockKind.HEADING, line)
            self._level = len(match[1])
        elif body[0] in "=-" and not body.strip(body[0]) and not item:
            self._underline(line, body[0])
        elif "|" in line and self._is_table(line, body):
            return True
        elif item:
            self._in_list = True
            self._begin(BlockKind.ITEM, line)
        elif _QUOTE.match(line):
            self._extend(BlockKind.QUOTE, line)
        else:
            return False
        return True

    def _opens_fence(self, line: str) -> bool:
        match = _FENCE.match(line)
        if not match or (match[2][0] == "`" and "`" in line[match.end() :]):
            return False
        indent = _indent(line)
        if indent > _MAX_TOP_INDENT and not self._in_list:
            return False
        self._nested = self._in_list = bool(match[1]) or (self._in_list and indent > 1)
        self._fence = match[2]
        return True

    def _underline(self, line: str, mark: str) -> None:
        """Add the underline of a setext heading, or a rule.

        By CommonMark several lines above an underline are a heading; in practice they are nearly always a
        paragraph above a rule.
        """
        single = self._open is BlockKind.PARAGRAPH and len(self._lines) == 1
        if single and self._lines[0].strip().strip("=-"):
            self._kind, self._level = BlockKind.HEADING, 1 if mark == "=" else 2
            self._lines.append(line)
        else:
            self._begin(BlockKind.PARAGRAPH, line)

    def _is_table(self, line: str, body: str) -> bool:
        if self._open is BlockKind.TABLE or body[0] == "|":
            self._extend(BlockKind.TABLE, line)
            return True
        if self._open is BlockKind.PARAGRAPH and "|" in self._lines[-1] and not line.strip("|-: \t\r\n"):
            head = self._lines.pop()
            if not self._lines:
                self._kind = None
            self._begin(BlockKind.TABLE, head, line)
            return True
        return False


def _indent(text: str) -> int:
    return len(text[: len(text) - len(text.lstrip(" \t"))].expandtabs(4))


def _heading(text: str) -> str:
    """The words of a heading without its marks."""
    body = text.splitlines()[0].strip()
    if _ATX.match(body):
        body = body.lstrip("#").strip()
        bare = body.rstrip("#")
        # Closing marks follow a blank; the one of "C#" belongs to the word.
        body = bare.rstrip() if not bare or bare[-1].isspace() else body
    return plain_words(body)[:MAX_HEADING].rstrip()


MAX_CONTEXT_TITLE = 100
MAX_CONTEXT = 200
"""Characters of title and context, which is embedded with every chunk and must leave room for the text."""

_ARROW = " > "


@dataclass(frozen=True, kw_only=True)
class MarkdownSection:
    """A heading and the text up to the next heading; the first section may have none."""

    blocks: list[Block] = field(default_factory=list)
    level: int = 0
    """1 to 6; 0 for text before the first heading."""
    path: tuple[str, ...] = ()
    """The headings above this section and its own."""

    @property
    def bare(self) -> bool:
        """True if the section has only headings."""
        return all(block.kind is BlockKind.HEADING for block in self.blocks)


def split_sections(blocks: Iterable[Block]) -> list[MarkdownSection]:
    """All blocks in order, a new section at each heading; list items come joined."""
    path: list[tuple[int, str]] = []
    sections: list[MarkdownSection] = []
    for block in join_items(blocks):
        if block.kind is BlockKind.HEADING:
            path = [(level, heading) for level, heading in path if level < block.level]
            path.append((block.level, block.heading))
            sections.append(MarkdownSection(level=block.level, path=tuple(heading for _, heading in path)))
        elif not sections:
            sections.append(MarkdownSection())
        sections[-1].blocks.append(block)
    return sections


def context_of(title: str, path: Sequence[str] = ()) -> str:
    """`Title > Heading > Heading`; a first heading that repeats the title is left out.

    If it is too long, headings between the title and the last one are dropped first.
    """
    name = " ".join(title[: 4 * MAX_CONTEXT_TITLE].split())
    headings = [" ".join(heading.split()) for heading in path]
    if headings and headings[0].casefold() == name.casefold():
        del headings[0]
    names = [part for part in (name[:MAX_CONTEXT_TITLE].rstrip(), *headings) if part]
    while len(names) > 2 and len(_ARROW.join(names)) > MAX_CONTEXT:  # noqa: PLR2004 - title and last heading
        del names[1]
    return _ARROW.join(names)[:MAX_CONTEXT].rstrip()
