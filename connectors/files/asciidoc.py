"""AsciiDoc as Markdown: headings, lists, code, tables, labels of admonitions, and the attributes of the file."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MOST_ATTRIBUTE = 500
MOST_FILLED = 4000
"""Characters of a line in which names are filled in."""
MOST_COLUMNS = 50
MOST_CELLS = 100_000
SIGNS: Mapping[str, str] = {
    "empty": "", "sp": " ", "nbsp": " ", "zwsp": "", "plus": "+", "cpp": "C++", "lt": "<", "gt": ">", "amp": "&",
    "asterisk": "*", "backtick": "`", "vbar": "\\|", "startsb": "[", "endsb": "]", "caret": "^", "tilde": "~",
    "backslash": "\\", "two-colons": "::", "two-semicolons": ";;", "apos": "'", "quot": '"', "ldquo": "“",
    "rdquo": "”", "lsquo": "‘", "rsquo": "’", "deg": "°",
}  # fmt: skip
"""What every file may name as `{name}`."""

_Shown = Callable[[re.Match[str]], str]
_DROPPED = re.compile(
    r":!?[\w-]+!?:(?:\s.*)?$|//(?!/)|\[.*\]$|(?:={4,}|_{4,}|\*{4,}|--|\+|<{3,}|!===)$|(?!image|video|audio|ifn?def)\w+::\S*\[.*\]$"
)
_LINES: tuple[tuple[re.Pattern[str], _Shown], ...] = (
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
"""A link whose address begins with an attribute of another file."""
_UNDER = "=-~^+"
_FENCE = re.compile(r"(-{4,}|\.{4,}|/{4,}|`{3,})(?:(?<=`)\w[\w+-]*)?")
_CODE = "-.`"
"""Marks of blocks of code; `/` is that of a comment."""
_TABLE = re.compile(r"([|,:]={3,})")
_CELL = re.compile(
    r"(?:(?<!\S)(?:(\d{1,2})?(?:\.\d{1,2})?([*+]))?(?:[<^>]?(?:\.[<^>])?)?[aehlmdsv]?)?(?<!\\)\|"
)
_COLUMNS = re.compile(r"""cols=(?:"([^"]*)"|'([^']*)'|([\w*<^>.]+))""")


def asciidoc_markdown(text: str, most: int) -> str:
    """The Markdown of a page of AsciiDoc; of one that comes to more than `most` characters, more than these."""
    lines = _WRAPPED.sub(lambda m: m[0].replace(" \\\n", " "), text).split("\n")
    page = _Page(names=_attributes(text))
    size = 0
    for index, line in enumerate(map(str.rstrip, lines)):
        before = lines[max(0, index - 2)] if index > 1 else ""
        size += page.read(line, alone=not before.strip() or before.startswith(("[", "//", ":")))
        if size > most:
            return "\n".join(page.shown).ljust(most + 1)
    page.end_block()
    return "\n".join(page.shown)


def _attributes(text: str) -> dict[str, str]:
    """Values by name as they are first set, for a title may name what stands below it."""
    definitions = reversed(_ATTRIBUTE.findall(text))
    return {**{name.lower(): value[:MOST_ATTRIBUTE] for name, value in definitions}, **SIGNS}


@dataclass(kw_only=True)
class _Page:
    """What has been read of a page."""

    names: dict[str, str]
    shown: list[str] = field(default_factory=list)
    mark: str = ""
    """The line that opened a block of code, a comment or a table; empty outside of them."""
    table: list[str] = field(default_factory=list)
    attributes: str = ""
    """The latest line such as `[cols="1,2"]`."""
    above: str = ""
    """The line above if it may be a title that the next one underlines."""

    def read(self, source: str, *, alone: bool) -> int:
        """Take one line, and say how long it has become; `alone` if the line above stands apart from those before."""
        as_written = self.mark and not _TABLE.fullmatch(self.mark)
        line = source if as_written else _filled(source, self.names)
        above, self.above = self.above, ""
        if self.mark:
            self._inside(line)
        elif above.strip() and alone and line and line[0] in _UNDER and _underlines(above, line):
            self.shown[-1] = f"{'#' * (_UNDER.index(line[0]) + 1)} {_inline(_filled(above, self.names))}"
        elif opened := _TABLE.fullmatch(line) or _FENCE.fullmatch(line):
            self.mark = opened[1]
            self.shown += ["", "```"] if line[0] in _CODE else []
        elif label := _LABEL.match(line):
            self.shown += ["", f"**{label[1].title()}**", ""]
        elif not _DROPPED.match(line):
            self.shown.append(_shown_line(line))
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
            self.shown.append(line)

    def end_block(self) -> None:
        """Show a table, which may be unclosed at the end of the page; close a block of code."""
        if self.mark and self.mark[0] in _CODE:
            self.shown.append("```")
        self.shown += _table(self.table, self.mark, self.attributes)
        self.mark, self.table, self.attributes = "", [], ""


def _filled(line: str, names: Mapping[str, str]) -> str:
    """The line with the values of attributes, which may name others."""
    for _ in range(2):
        if "{" not in line or len(line) > MOST_FILLED:
            break
        line = _NAME.sub(lambda m: names.get(m[1].lower(), m[0]), line)
    return line


def _underlines(above: str, line: str) -> bool:
    return not line.strip(line[0]) and len(line) > 1 and abs(len(above) - len(line)) < 3  # noqa: PLR2004


def _inline(line: str) -> str:
    """The line without anchors, its links and macros as Markdown or as their words."""
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
    shown = title[1] if title else "" if "=" in first else first
    # Within a line, such as a tick in a cell: AsciiDoc shows the file's name where no words are given.
    in_line = f"{macro[1]}::" not in macro[0]
    return shown or in_line * re.sub("[-_]", " ", macro[2].rsplit("/", 1)[-1].rsplit(".", 1)[0])


def _shown_line(line: str) -> str:
    line = _inline(line)
    for pattern, shown in _LINES:
        if match := pattern.fullmatch(line):
            return shown(match)
    return line


def _table(lines: Sequence[str], mark: str, block: str) -> list[str]:
    """A table with its first row as the head, whatever is in its cells on one line each."""
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
    shown = [f"| {' | '.join(row + [''] * (width - len(row)))} |" for row in rows]
    return ["", shown[0], "|" + " --- |" * width, *shown[1:], ""]


def _cells(lines: Sequence[str]) -> tuple[list[str], int]:
    """The cells of a table in their order, and how many of them stand in its first line."""
    cells: list[list[str]] = []
    first = 0
    for line in lines:
        marks = list(_CELL.finditer(line))
        ends = [mark.start() for mark in marks] + [len(line)]
        _add_words(cells, line[: ends[0]])
        for mark, end in zip(marks, ends[1:], strict=True):
            cells.append([])
            _add_words(cells, line[mark.end() : end])
            if mark[2] and len(cells) < MOST_CELLS:  # `3*|` is three alike, `3+|` one as wide as three
                again = cells[-1] if mark[2] == "*" else []
                cells += [list(again) for _ in range(int(mark[1] or 1) - 1)]
        first = first or len(cells)
    return [" ".join(cell) for cell in cells], first


def _add_words(cells: list[list[str]], text: str) -> None:
    text = text.strip()
    if text and not _FENCE.fullmatch(text) and not _DROPPED.match(text):
        cells[-1:] = [[*(cells[-1] if cells else []), _shown_line(text).strip()]]


def _width(block: str) -> int:
    """Columns that `[cols=...]` names: a number of each, `3*` is three of them."""
    columns = _COLUMNS.search(block)
    if columns is None:
        return 0
    numbers = re.findall(r"(?:^|[,;])\s*(?:(\d{1,2})\*)?", columns[1] or columns[2] or columns[3] or "")
    return sum(int(number or 1) for number in numbers)


def _separated(lines: Sequence[str], separator: str) -> Iterator[list[str]]:
    """Rows of values with a separator between them, as in CSV."""
    filled = [line for line in lines if line.strip()]
    try:
        rows = [row for row in csv.reader(filled, delimiter=separator) if row]
    except csv.Error:
        rows = [[line] for line in filled]
    return (
        [_inline(" ".join(value.split())).replace("|", "\\|") for value in row[:MOST_COLUMNS]] for row in rows
    )
