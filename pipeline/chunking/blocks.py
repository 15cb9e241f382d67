"""Markdown text as a flat list of blocks, read line by line.

A scanner instead of a parser: chunking needs to know where code, tables, items and headings begin and end,
never how they nest, and a flat scan cannot be made slow or deep by a hostile document.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from io import StringIO

from pipeline.documents import plain_words

MOST_HEADING = 200
"""Longer headings are cut where they are quoted; their text in the document stays."""

_ATX = re.compile(r" {0,3}(#{1,6})(?=[ \t\r\n]|\Z)")
_FENCE = re.compile(r"[ \t]*([-*+][ \t]+)?(`{3,}|~{3,})")
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])(?=[ \t\r\n]|\Z)")
_QUOTE = re.compile(r" {0,3}>")
_MOST_TOP_INDENT = 3


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
    """The text as `scan` sees it, in one piece."""
    return "".join(f"{block.text}{block.gap}" for block in scan(text, preserve=preserve))


def join_items(blocks: Iterable[Block]) -> Iterator[Block]:
    """A list item and all that is indented below it become one block, with the old ones as its parts."""
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
            indent, parts = before[0].indent, (*before, last)
            yield replace(last, kind=BlockKind.ITEM, text=text, indent=indent, parts=parts)
        else:
            yield last


class _BlockScanner:
    """One pass over the lines; at any time at most one block is open."""

    def __init__(self, *, preserve: bool) -> None:
        self.blocks: list[Block] = []
        self._preserve = preserve
        self._kind: BlockKind | None = None
        self._lines: list[str] = []
        self._gap: list[str] = []
        self._level = 0
        self._in_list = False
        self._fence = ""
        """The marks that opened the code we are in."""
        self._nested = False
        """Whether that code stands in a list item."""

    def feed(self, line: str) -> None:
        """Take the next line with its end."""
        body = line.strip()
        if self._fence:
            closes = body.startswith(self._fence) and not body.strip(self._fence[0])
            if closes or not self._nested or line[0].isspace():
                self._lines.append(line)
                self._fence = "" if closes else self._fence
                return
            # A fence inside a list item ends with the item, even if nobody closed it.
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
        """One more line of a block of this kind, or the first."""
        if self._open is kind:
            self._lines.append(line)
        else:
            self._begin(kind, line)

    @property
    def _open(self) -> BlockKind | None:
        """The kind of a block that the next line may still belong to."""
        return None if self._gap else self._kind

    def _is_marked(self, line: str, body: str) -> bool:
        """Whether the line's marks said where it belongs, and it was put there."""
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
        if indent > _MOST_TOP_INDENT and not self._in_list:
            return False
        self._nested = self._in_list = bool(match[1]) or (self._in_list and indent > 1)
        self._fence = match[2]
        return True

    def _underline(self, line: str, mark: str) -> None:
        """A setext heading, or a rule.

        Several lines above an underline are a heading to the letter of Markdown, but nearly always a
        paragraph that somebody put a rule under.
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
        # Closing marks stand behind a blank; the one of "C#" belongs to the word.
        body = bare.rstrip() if not bare or bare[-1].isspace() else body
    return plain_words(body)[:MOST_HEADING].rstrip()


MOST_TITLE = 100
MOST_CONTEXT = 200
"""Characters; a context is embedded with every chunk and must leave room for the text."""

_ARROW = " > "


@dataclass(frozen=True, kw_only=True)
class MarkdownSection:
    """A heading and the text up to the next heading; the first section may have none."""

    blocks: list[Block] = field(default_factory=list)
    level: int = 0
    """1 to 6; 0 for text before the first heading."""
    path: tuple[str, ...] = ()
    """The headings above and its own."""

    @property
    def bare(self) -> bool:
        """True if there is nothing but a heading."""
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
