"""AsciiDoc to Markdown: headings, lists, code, tables, labels of admonitions, attributes of the file."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MOST_ATTRIBUTE = 500
MOST_FILLED = 4000
"""Longest line in which attributes are replaced, in characters."""
MOST_COLUMNS = 50
MOST_CELLS = 100_000
SIGNS: Mapping[str, str] = {
    "empty": "", "sp": " ", "nbsp": " ", "zwsp": "", "plus": "+", "cpp": "C++", "lt": "<", "gt": ">", "amp": "&",
    "asterisk": "*", "backtick": "`", "vbar": "\\|", "startsb": "[", "endsb": "]", "caret": "^", "tilde": "~",
    "backslash": "\\", "two-colons": "::", "two-semicolons": ";;", "apos": "'", "quot": '"', "ldquo": "“",
    "rdquo": "”", "lsquo": "‘", "rsquo": "’", "deg": "°",
}  # fmt: skip
"""Predefined attributes, written as `{name}`."""

_Rewrite = Callable[[re.Match[str]], str]
_DROPPED = re.compile(
    r":!?[\w-]+!?:(?:\s.*)?$|//(?!/)|\[.*\]$|(?:={4,}|_{4,}|\*{4,}|--|\+|<{3,}|!===)$|(?!image|video|audio|ifn?def)\w+::\S*\[.*\]$"
)
_LINES: tuple[tuple[re.Pattern[str], _Rewrite], ...] = (
    (re.compile(r"(={1,6})[ \t]+(\S.*)"), lambda m: f"{'#' * len(m[1])} {m[2]}"),
    (re.compile(r"\.(?=[^\s.])(.+)"), lambda m: f"**{m[1]}**"),
    (re.compile(r"[ \t]*(?:\*{1,5}|\.{1,5}|-)[ \t]+(\S.*)"), lambda m: f"- {m[1]}"),
    (re.compile(r"(\S.*?):{2,4}$"), lambda m: f"\n**{m[1]}**\n"),
)  # fmt: skip
_LABEL = re.compile(r"\[(NOTE|TIP|WARNING|IMPORTANT|CAUTION)(?:[.,#%].*)?\]$")
_WRAPPED = re.compile(r"^:[\w-]+:.*(?: \\\n.*)+", re.MULTILINE)
_ATTRIBUTE = re.compile(r"^:([\w-]+):[ \t]+(\S.*)$", re.MULTILINE)
_NAME = re.compile(r"(?<!\\)\{(\w[\w-]{0,60})\}")
_LINK = re.compile(r"(?:link:|(?=https?:))([^\s\[\]]{1,1000})\[([^\[\]\n]{0,500})\]")
_REFERENCE = re.compile(
    r"<<(?! )(?:[^<>,\n]{0,200},\s*)?(?=\S)([^<>\n]{1,300}?)(?<=[^\s,]),?[ \t]*>>"
    r"|\b(?:xref|linkgit):([^\s\[\]]{1,200})\[([^\[\]\n]{0,300})\]"
)
_ANCHOR = re.compile(
    r"(?<!\[)\[\[(?!\d)[\w:][\w:.-]{0,200}(?:,[^\]\n]{0,300})?\]\](?!\])|\banchor:[\w:.-]{1,200}\[[^\[\]\n]{0,300}\]"
)
_MACRO = re.compile(
    r"\b(image|video|audio|ifn?def|icon|kbd|btn|menu|footnote|stem|latexmath|asciimath|pass|mailto)::?([^\s\[\]]{0,300})\[([^\[\]\n]{0,500})\]"
)
_TITLE = re.compile(r"""\btitle=["']?([^"',]+)""")
_ROLE = re.compile(r"\[\.[\w.-]{1,80}\](?:#([^#\n]{1,300})#|(?=[*_`]))")
_UNKNOWN_TARGET = re.compile(r"(?<![\w:])\{\w[\w-]{0,60}\}[^\s\[\]{}]{0,300}\[([^\[\]\n]{1,300})\]")
"""A link whose address begins with an attribute that the file does not define."""
_UNDER = "=-~^+"
_FENCE = re.compile(r"(-{4,}|\.{4,}|/{4,}|`{3,})(?:(?<=`)\w[\w+-]*)?")
_CODE = "-.`"
"""First characters of the marks around code; `/` marks a comment."""
_TABLE = re.compile(r"([|,:]={3,})")
_CELL = re.compile(
    r"(?:(?<!\S)(?:(\d{1,2})?(?:\.\d{1,2})?([*+]))?(?:[<^>]?(?:\.[<^>])?)?[aehlmdsv]?)?(?<!\\)\|"
)
_COLUMNS = re.compile(r"""cols=(?:"([^"]*)"|'([^']*)'|([\w*<^>.]+))""")


def asciidoc_markdown(text: str, most: int) -> str:
    """Convert a page of AsciiDoc to Markdown; a result longer than `most` characters means that it is too large."""
    lines = _WRAPPED.sub(lambda m: m[0].replace(" \\\n", " "), text).split("\n")
    page = _Page(names=_attributes(text))
    size = 0
    for index, line in enumerate(map(str.rstrip, lines)):
        before = lines[max(0, index - 2)] if index > 1 else ""
        size += page.read(line, below_break=not before.strip() or before.startswith(("[", "//", ":")))
        if size > most:
            return "\n".join(page.output).ljust(most + 1)
    page.end_block()
    return "\n".join(page.output)


def _attributes(text: str) -> dict[str, str]:
    """Attributes by name with their first value, because a title may use an attribute set below it."""
    definitions = reversed(_ATTRIBUTE.findall(text))
    return {**{name.lower(): value[:MOST_ATTRIBUTE] for name, value in definitions}, **SIGNS}


@dataclass(kw_only=True)
class _Page:
    """State of the conversion of one page, line by line."""

    names: dict[str, str]
    output: list[str] = field(default_factory=list)
    mark: str = ""
    """Line that opened the current code, comment or table; empty outside of them."""
    table: list[str] = field(default_factory=list)
    attributes: str = ""
    """Latest line of block attributes, such as `[cols="1,2"]`."""
    above: str = ""
    """The line above, if it may be a title that the next line underlines; else empty."""

    def read(self, source: str, *, below_break: bool) -> int:
        """Convert one line; returns its length. `below_break`: the line above starts a paragraph, so may be a title."""
        as_written = self.mark and not _TABLE.fullmatch(self.mark)
        line = source if as_written else _filled(source, self.names)
        above, self.above = self.above, ""
        if self.mark:
            self._inside(line)
        elif above.strip() and below_break and line and line[0] in _UNDER and _underlines(above, line):
            self.output[-1] = f"{'#' * (_UNDER.index(line[0]) + 1)} {_inline(_filled(above, self.names))}"
        elif opened := _TABLE.fullmatch(line) or _FENCE.fullmatch(line):
            self.mark = opened[1]
            self.output += ["", "```"] if line[0] in _CODE else []
        elif label := _LABEL.match(line):
            self.output += ["", f"**{label[1].title()}**", ""]
        elif not _DROPPED.match(line):
            self.output.append(_shown_line(line))
            self.above = source
        elif attribute := _ATTRIBUTE.match(line):
            self.names[attribute[1].lower()] = attribute[2][:MOST_ATTRIBUTE]
        elif line.startswith("["):
            self.attributes = line
        return len(line)

    def _inside(self, line: str) -> None:
        if line == self.mark:
            self.end_block()
        elif _TABLE.fullmatch(self.mark):
            self.table.append(line)
        elif self.mark[0] in _CODE:
            self.output.append(line)

    def end_block(self) -> None:
        """Write the current table, or close the current code; also at the end of the page."""
        if self.mark and self.mark[0] in _CODE:
            self.output.append("```")
        self.output += _table(self.table, self.mark, self.attributes)
        self.mark, self.table, self.attributes = "", [], ""


def _filled(line: str, names: Mapping[str, str]) -> str:
    """The line with attributes replaced by their values, which may use other attributes."""
    for _ in range(2):
        if "{" not in line or len(line) > MOST_FILLED:
            break
        line = _NAME.sub(lambda m: names.get(m[1].lower(), m[0]), line)
    return line


def _underlines(above: str, line: str) -> bool:
    return not line.strip(line[0]) and len(line) > 1 and abs(len(above) - len(line)) < 3  # noqa: PLR2004


def _inline(line: str) -> str:
    """The line without anchors, with links and macros as Markdown or plain words."""
    line = _MACRO.sub(_words_of_macro, _ANCHOR.sub("", line))
    line = _ROLE.sub(lambda m: m[1] or "", _UNKNOWN_TARGET.sub(r"\1", line))
    line = _LINK.sub(lambda m: f"[{m[2] or m[1]}]({m[1]})", line)
    return _REFERENCE.sub(lambda m: m[1] or (f"{m[2]}({m[3]})" if m[3].isdigit() else m[3] or m[2]), line)


def _words_of_macro(macro: re.Match[str]) -> str:
    name, target, words = macro.groups()
    first = words.split(",", 1)[0].strip(" \"'")
    match name:
        case "image" | "video" | "audio":
            return _words_of_picture(macro, first)
        case "icon":
            return ""
        case "menu":
            return " > ".join(filter(None, (target, words)))
        case "footnote":
            return words and f" ({words})"
        case "mailto":
            return first or target
        case _:
            return str(words)


def _words_of_picture(macro: re.Match[str], first: str) -> str:
    title = _TITLE.search(macro[3])
    label = title[1] if title else "" if "=" in first else first
    # Within a line, such as a tick in a cell, AsciiDoc shows the file's name if there is no text.
    in_line = f"{macro[1]}::" not in macro[0]
    return label or in_line * re.sub("[-_]", " ", macro[2].rsplit("/", 1)[-1].rsplit(".", 1)[0])


def _shown_line(line: str) -> str:
    line = _inline(line)
    for pattern, rewrite in _LINES:
        if match := pattern.fullmatch(line):
            return rewrite(match)
    return line


def _table(lines: Sequence[str], mark: str, block: str) -> list[str]:
    """Lines of a Markdown table: first row as head, each cell on one line."""
    if not lines:
        return []
    if mark[0] == "|" and "format=" not in block:
        cells, first = _cells(lines)
        width = max(1, min(_width(block) or first, MOST_COLUMNS))
        rows = [cells[at : at + width] for at in range(0, len(cells), width)]
    else:
        rows = list(_separated(lines, ":" if mark[0] == ":" or "dsv" in block else ","))
    if not rows:
        return []
    width = max(map(len, rows))
    table_lines = [f"| {' | '.join(row + [''] * (width - len(row)))} |" for row in rows]
    return ["", table_lines[0], "|" + " --- |" * width, *table_lines[1:], ""]


def _cells(lines: Sequence[str]) -> tuple[list[str], int]:
    """Cells of a table in order, and the number of cells in its first line."""
    cells: list[list[str]] = []
    first = 0
    for line in lines:
        marks = list(_CELL.finditer(line))
        ends = [mark.start() for mark in marks] + [len(line)]
        _add_words(cells, line[: ends[0]])
        for mark, end in zip(marks, ends[1:], strict=True):
            cells.append([])
            _add_words(cells, line[mark.end() : end])
            if mark[2] and len(cells) < MOST_CELLS:  # `3*|` is three equal cells, `3+|` one that spans three
                copies = cells[-1] if mark[2] == "*" else []
                cells += [list(copies) for _ in range(int(mark[1] or 1) - 1)]
        first = first or len(cells)
    return [" ".join(cell) for cell in cells], first


def _add_words(cells: list[list[str]], text: str) -> None:
    text = text.strip()
    if text and not _FENCE.fullmatch(text) and not _DROPPED.match(text):
        cells[-1:] = [[*(cells[-1] if cells else []), _shown_line(text).strip()]]


def _width(block: str) -> int:
    """Number of columns in `[cols=...]`, where `3*` counts as three; 0 if there is none."""
    columns = _COLUMNS.search(block)
    if columns is None:
        return 0
    numbers = re.findall(r"(?:^|[,;])\s*(?:(\d{1,2})\*)?", columns[1] or columns[2] or columns[3] or "")
    return sum(int(number or 1) for number in numbers)


def _separated(lines: Sequence[str], separator: str) -> Iterator[list[str]]:
    """Rows of values with a separator, as in CSV."""
    filled = [line for line in lines if line.strip()]
    try:
        rows = [row for row in csv.reader(filled, delimiter=separator) if row]
    except csv.Error:
        rows = [[line] for line in filled]
    return (
        [_inline(" ".join(value.split())).replace("|", "\\|") for value in row[:MOST_COLUMNS]] for row in rows
    )
