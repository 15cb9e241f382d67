"""A document's chunks read as sentences, each with the headings above it and the chunk where it stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pipeline.documents import Chunk
from pipeline.words import flat

QUOTED = 200
"""Characters of a quotation at most."""
CUT = "…"
"""Stands where a text goes on."""
WITHOUT_BLANK = "。！？"
"""Ends of sentences that no blank follows."""

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t#]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[( |x|X)\]\s+)?")
_QUOTE = re.compile(r"\s*(?:>\s?)+")
_RULE = re.compile(r"\s*(?:[-*_]\s*){3,}$|[\s|:-]*-{3,}[\s|:-]*$")
_ENDS = re.compile(r"[.!?…][\"'”’»)\]*_]*\s+(?=[\"'“‘„«(\[*_]*[^\W_a-zß-öø-ÿ])|[。！？]")
_ABBREVIATED = re.compile(
    r"(?:^|[\s(\[„“\"'])(?:[A-Za-z]|[a-z]\.[a-zA-Z]|approx|bzw|ca|cf|dr|etc|evtl|fig|inkl|mr|mrs|no|nr|resp|st|vgl|vs|usw)\.$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence or an item of a list, as it stands in a chunk but for white space."""

    text: str
    headings: tuple[str, ...] = ()
    """From the outermost to the nearest."""
    ord: int = 0
    """Of the chunk."""
    item: bool = False
    """It is an item of a list, or begins one."""
    ticked: bool = False
    """Its box in a list of tasks is ticked."""
    paragraph: int = 0
    """Sentences of one paragraph or list item share it."""

    @property
    def heading(self) -> str:
        """The nearest one."""
        return self.headings[-1] if self.headings else ""


@dataclass(frozen=True, kw_only=True)
class _Block:
    text: str
    headings: tuple[str, ...]
    item: bool
    ticked: bool


def sentences_of(chunks: Sequence[Chunk]) -> list[Sentence]:
    """All sentences in order, without headings and code; what overlapping chunks repeat is there once."""
    found: list[Sentence] = []
    stack: list[tuple[int, str]] = []
    seen: set[tuple[tuple[str, ...], str]] = set()
    paragraph = 0
    for chunk in sorted(chunks, key=lambda c: c.ord):
        first = True
        for block in _blocks(chunk.content, stack):
            paragraph += 1
            for text in split(block.text):
                sentence = Sentence(
                    text=text,
                    headings=block.headings,
                    ord=chunk.ord,
                    item=block.item,
                    ticked=block.ticked,
                    paragraph=paragraph,
                )
                # Where a chunk repeats the end of the one before, its first sentence may be a torn one.
                torn = first and bool(found) and _goes_on(found, sentence)
                first = False
                if torn or (block.headings, text) in seen:
                    # What stands around it is no longer next to each other.
                    paragraph += 1
                    continue
                seen.add((block.headings, text))
                found.append(sentence)
    return found


def _goes_on(found: list[Sentence], sentence: Sentence) -> bool:
    """True if the sentence is the end of an earlier one; an earlier one that is its beginning is taken out."""
    if any(other.text.endswith(sentence.text) for other in found[-8:]):
        return True
    last = found[-1]
    if last.ord != sentence.ord and sentence.text.startswith(last.text):
        found.pop()
    return False


def split(text: str) -> Iterator[str]:
    """The sentences of a paragraph, each on one line."""
    line = flat(text)
    begin = 0
    for match in _ENDS.finditer(line):
        piece = line[begin : match.end()].strip()
        if not _ABBREVIATED.search(piece):
            yield piece
            begin = match.end()
    if rest := line[begin:].strip():
        yield rest


def clipped(text: str, length: int = QUOTED) -> str:
    """At most `length` characters of one line, cut at the end of a sentence or a word."""
    line = flat(text)
    if len(line) <= length:
        return line
    end = 0
    for sentence in split(line):
        reach = line.index(sentence, end) + len(sentence)
        if reach + 2 > length:
            break
        end = reach
    whole = line[:end]
    if len(whole) < length // 2:
        room = line[: length - len(CUT) - 1]
        blank = room.rfind(" ")
        whole = (room[:blank] if blank > length // 2 else room).rstrip()
    return f"{whole} {CUT}"


def _blocks(content: str, stack: list[tuple[int, str]]) -> Iterator[_Block]:
    """Paragraphs, list items, rows and quoted lines below their headings; `stack` is kept up to date."""
    lines: list[str] = []
    item = ticked = False
    fence = ""

    def done() -> Iterator[_Block]:
        text = "\n".join(lines).strip()
        lines.clear()
        if text:
            headings = tuple(name for _, name in stack)
            yield _Block(text=text, headings=headings, item=item, ticked=ticked)

    for line in content.split("\n"):
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1].startswith(fence) else fence
            continue
        start = _start(line)
        if mark or start.fresh:
            yield from done()
            item, ticked = start.item, start.ticked
        if mark:
            fence = mark[1]
        elif start.heading:
            _descend(stack, *start.heading)
        elif start.text:
            lines.append(start.text)
    yield from done()


@dataclass(frozen=True, kw_only=True)
class _Start:
    """What a line is."""

    text: str = ""
    fresh: bool = True
    """It does not go on with what stands above."""
    item: bool = False
    ticked: bool = False
    heading: tuple[int, str] | None = None


def _start(line: str) -> _Start:
    if not line.strip() or _RULE.match(line):
        return _Start()
    if match := _HEADING.match(line):
        return _Start(heading=(len(match[1]), flat(match[2])))
    if match := _ITEM.match(line):
        return _Start(text=line[match.end() :], item=True, ticked=(match[1] or " ") in "xX")
    if match := _QUOTE.match(line):
        return _Start(text=line[match.end() :])
    if line.lstrip().startswith("|"):
        return _Start(text=line.strip())
    return _Start(text=line, fresh=False)


def _descend(stack: list[tuple[int, str]], level: int, name: str) -> None:
    while stack and stack[-1][0] >= level:
        stack.pop()
    stack.append((level, name))


def shortened(sentence: Sentence, length: int = QUOTED) -> Sentence:
    """The same sentence, cut to what may be quoted."""
    return replace(sentence, text=clipped(sentence.text, length))
