"""Headings of a Markdown text, found without a full parse: a title is wanted of thousands of files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MAX_TITLE = 300
_ATX = re.compile(r" {0,3}(#{1,6})((?:[ \t]+.*)?)$")
_DEEPER = re.compile(r"( {0,3})(#{1,6})(?=[ \t]|$)")
_CLOSING = re.compile(r"(?:^|[ \t]+)#+[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_HEADING_STARTS = frozenset("#=-")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_NO_PARAGRAPH = re.compile(r" {4}|\t|\s*$| {0,3}(?:[-*+>|]|=+[ \t]*$|\d+[.)][ \t]|#{1,6}(?:[ \t]|$))")
_LINK = re.compile(r"!?\[([^\[\]]{0,300})\](?:\([^()\s]{0,1000}\)|\[[^\[\]]{0,100}\])?")
_MARKS = re.compile(r"\*\*|__|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)|`")


@dataclass(frozen=True, kw_only=True)
class Heading:
    """One heading and where it is."""

    level: int
    text: str
    """Without marks for emphasis, code and links."""
    line: int
    """Index of the heading's last line, from 0."""


def code_lines(lines: Sequence[str]) -> list[bool]:
    """For each line, whether it belongs to a fenced code block or an HTML comment."""
    flags: list[bool] = []
    fence, comment = "", False
    for line in lines:
        start = line.lstrip()[:4]
        match = _FENCE.match(line) if start.startswith(("```", "~~~")) and not comment else None
        if fence:
            flags.append(True)
            marks = line.lstrip(" \t").rstrip()
            fence = "" if marks.startswith(fence) and not marks.strip(fence[0]) else fence
        elif match:
            flags.append(True)
            fence = match[1]
        else:
            comment = comment or start == "<!--"
            flags.append(comment)
            comment = comment and "-->" not in line
    return flags


def headings_of(text: str) -> Iterator[Heading]:
    """All headings in order, `# ATX` and underlined ones; those in code blocks are none."""
    lines = text.split("\n")
    flags = code_lines(lines)
    for index, line in enumerate(lines):
        # Most lines begin with none of these; a look at one character is cheaper than two patterns.
        if flags[index] or line.lstrip(" ")[:1] not in _HEADING_STARTS:
            continue
        atx = _ATX.match(line)
        if atx:
            yield Heading(level=len(atx[1]), text=plain_text(_CLOSING.sub("", atx[2])), line=index)
        elif index and not flags[index - 1] and (under := _UNDERLINE.match(line)):
            above = lines[index - 1]
            if not _NO_PARAGRAPH.match(above):
                yield Heading(level=1 if under[1][0] == "=" else 2, text=plain_text(above), line=index)


def title_of(headings: Sequence[Heading]) -> str:
    """The first heading of level 1, else the first of all; empty if there is none."""
    named = [heading for heading in headings if heading.text]
    first = next((heading for heading in named if heading.level == 1), named[0] if named else None)
    return first.text if first else ""


def plain_text(text: str) -> str:
    """One line of Markdown without its marks, at most MAX_TITLE characters."""
    shown = _MARKS.sub("", _LINK.sub(r"\1", text))
    return " ".join(shown.split())[:MAX_TITLE]


def nested(text: str, depth: int) -> str:
    """Markdown with its headings so much deeper that they lie below ours."""
    if "#" not in text:
        return text
    lines = text.split("\n")
    for index, in_code in enumerate(code_lines(lines)):
        if not in_code and (match := _DEEPER.match(lines[index])):
            level = min(6, len(match[2]) + depth)
            lines[index] = match[1] + "#" * level + lines[index][match.end() :]
    return "\n".join(lines)
