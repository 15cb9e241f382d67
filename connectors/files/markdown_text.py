"""Markdown as its readers see it: programs, comments and layout go, labels of tabs, notes and pictures stay.

Knows what Docusaurus, VitePress, MkDocs, MyST, Hugo, Jekyll, GitBook and Obsidian add to Markdown. Code is left as it
is. Every pattern stops at a line's end or a mark of its kind, and what has no end is asked for once, so that the time
grows with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from itertools import groupby
from operator import itemgetter

from connectors.files.markdown_markup import CLOSED, GONE, LABEL, one_line, shown_lines

Line = tuple[str, bool]
"""Without its end, and whether it is code."""

# -- parts that end at a mark of their own -------------------------------------------------------------

_PARTS: dict[str, tuple[str, str]] = {
    "comment": (r"<!--", r"-->"),
    "mdx_comment": (r"\{/\*", r"\*/\}"),
    "liquid_comment": (r"\{%-?\s*comment\b[^{}\n]*%\}", r"\{%-?\s*endcomment\s*-?%\}"),
    "script": (r"<script\b[^<>]*>", r"</script\s*>"),
    "style": (r"<style\b[^<>]*>", r"</style\s*>"),
    "svg": (r"<svg\b[^<>]*>", r"</svg\s*>"),
    "obsidian": (r"^[ \t]*%%(?!%)(?=[^%\n]*$)", r"(?<!%)%%[ \t]*$"),
    "pre": (r"<pre\b[^<>]*>", r"</pre\s*>"),
    "liquid_code": (r"\{%-?\s*highlight\b[^{}\n]*%\}", r"\{%-?\s*endhighlight\s*-?%\}"),
    "shortcode": (r"\{\{[<%](?=[^{}\n]*$)", r"[%>]\}\}"),
    "hugo_code": (r"\{\{[<%]\s*highlight\b[^{}\n]*[%>]\}\}", r"\{\{[<%]\s*/\s*highlight\s*[%>]\}\}"),
    "heading": (r"<h[1-6]\b[^<>]*>", r"</h[1-6]\s*>"),
    "table": (r"<table\b[^<>]*>", r"</table\s*>"),
}
_SHOWN_PARTS = frozenset({"pre", "liquid_code", "hugo_code", "heading", "table"})
"""Those of which something remains."""
_HIDDEN_ELEMENTS = frozenset({"script", "style", "svg"})
_OPENING = re.compile(
    rf"(?<!\\)(?:{'|'.join(f'(?P<{name}>{begin})' for name, (begin, _) in _PARTS.items())})",
    re.IGNORECASE | re.MULTILINE,
)
_CODE_BEGINS = "code"
_CLOSING = {
    name: re.compile(end, re.IGNORECASE | re.MULTILINE)
    for name, end in (
        *((name, end) for name, (_, end) in _PARTS.items()),
        (_CODE_BEGINS, r"^[ \t]*(?:```|~~~)"),
    )
}
_MOST_HEADING = 1000
"""Characters of a heading's HTML; a longer one was closed elsewhere."""
_TAG_OR_BREAK = re.compile(r"<[^<>]*>")
_LANGUAGE = re.compile(r"\bhighlight\s+[\"']?([\w+#-]+)|\blang(?:uage)?[=-][\"']?([\w+#-]+)", re.IGNORECASE)

# -- lines that open something -------------------------------------------------------------------------

_FENCE = re.compile(r"[ \t]*((?:>[ \t]?)*)(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(`{3,}(?=[^`]*$)|~{3,})")
_DIRECTIVE = re.compile(
    r"[ \t]*(?P<marks>`{3,}|~{3,}|:{3,})[ \t]*\{(?P<name>[\w:-]+)\}[ \t]*(?P<title>[^`{}]*)$"
    r"|[ \t]*:{3,}[ \t]*(?P<kind>[\w-]+)?(?P<more>(?:[ \t]|[\[{]).*)?$"
)
_NOTES = frozenset(
    {
        "abstract", "admonition", "attention", "bug", "card", "caution", "danger", "details", "dropdown", "error",
        "example", "failure", "faq", "grid", "grid-item", "grid-item-card", "hint", "important", "info", "note",
        "question", "quote", "seealso", "success", "summary", "tab-item", "tab-set", "tabs", "tab", "tip", "todo",
        "versionadded", "versionchanged", "deprecated", "margin", "sidebar", "topic", "epigraph", "warning", "div",
        "aside", "exercise", "solution", "collapse",
    }
)  # fmt: skip
"""Directives in fences that hold Markdown; others hold code."""
_SILENT = _NOTES & {
    "card",
    "div",
    "grid",
    "grid-item",
    "grid-item-card",
    "margin",
    "tab-item",
    "tab-set",
    "tabs",
    "tab",
}
"""Those whose own name says nothing to a reader."""
_OPTION = re.compile(r"[ \t]*:[\w-]+:(?:[ \t].*)?$")
_INDENTED = re.compile(
    r"(?P<indent>[ \t]*)(?:(?:!!!|\?\?\?)\+?[ \t]+(?P<name>[\w -]+?)|===[!+]?)(?:[ \t]+\"(?P<title>[^\"]*)\")?[ \t]*$"
)
_SLASHES = re.compile(r"/{3,}[ \t]*(?:(?P<name>[\w-]+)(?:[ \t]*\|[ \t]*(?P<title>.*))?)?$")
_CALLOUT = re.compile(r"([ \t]*(?:>[ \t]?)+)\[!([\w -]+)(?:\|[^\]]*)?\][-+]?[ \t]*(.*)$")
_PROGRAM = re.compile(
    r"""import\s+(?:(?:type\s+)?[\w$*{][^'"`;\n]*\sfrom\s+)?(?:'[^'\n]+'|"[^"\n]+");?\s*$
    |import\s+(?:type\s+)?(?:[\w$]+\s*,\s*)?\{[^'"`(){};]*$
    |export\s+(?:default\s+(?:(?:async\s+)?function\b|class\b|[({\[]|[A-Z][\w$.]*;?\s*$|[\w$.]+;\s*$)
      |(?:const|let|var)\s+[\w$]+\s*(?::[^=]*)?=|(?:async\s+)?function\s+\w+\s*\(|class\s+\w+\s*[{e]|\{|\*\s+from\s)""",
    re.VERBOSE,
)
"""A line of MDX that begins a program."""
_STRINGS = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`|//.*")
_GOES_ON = ("=", ",", "=>", "(", "&&", "||", "?", ":", "+")
_LONGEST_LINE = 2000
"""Characters of a line that is searched for fields and ids."""
_MOST_PROGRAM = 200
"""Lines."""
_ONLY_MARKUP = re.compile(
    r"[ \t]*(?:\{[:#.*][^{}]*\}|\([\w:.-]+\)=|\[\[_?TOC_?\]\]|\[TOC\]|\^[\w-]*[A-Za-z][\w-]*"
    r"|<<<[ \t]+[@./][^<>]*|\[\w+(?: \w+)* src=\"[^\"]*\"[^\[\]]*\])[ \t]*$"
)
_LINE_CHANGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^([ \t]*(?:[-*+][ \t]+)?(?:\*\*|__)?\w[\w ./-]{0,40}?(?:\*\*|__)?)::(?=[ \t]|$)"), r"\1:"),
    (re.compile(r"([\[(])(\w[\w -]{0,40})::[ \t]+([^\[\]()\n]*)[\])]"), r"\2: \3"),
    (re.compile(r"[ \t]\^(?=[\d-]{0,10}[A-Za-z])[A-Za-z0-9-]{3,}[ \t]*$"), GONE),
    (re.compile(r"^([ \t]{0,3}#{1,6}[ \t].*?)[ \t]*\\?\{:?[ \t]*[#.-][^{}]*\}(?=[ \t#]*$)"), r"\1"),
    (re.compile(r"[ \t]*\{#[\w:.-]+(?:[ \t][^{}]*)?\}[ \t]*$"), ""),
)
"""Fields of Dataview, ids of blocks in Obsidian, ids of headings."""


def readable_markdown(text: str) -> str:
    """Markdown with the words that its readers see and without what only its tools read.

    Plain Markdown comes back as it is, code always does.
    """
    lines = list(_MarkdownReader(text).read())
    plain = "\n".join(line for line, is_code in lines if not is_code)
    closed = frozenset(CLOSED.findall(plain))
    notes = frozenset(re.findall(r"^[ \t]*\[\^([^\[\]\s]+)\]:", plain, re.MULTILINE))
    shown: list[str] = []
    for is_code, run in groupby(lines, key=itemgetter(1)):
        part = [line for line, _ in run]
        shown += part if is_code else shown_lines(part, closed, notes)
    return "\n".join(shown)


class _MarkdownReader:
    """One pass over the lines: tells code from text, and takes out parts and lines that are no text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._fence = ""
        """The marks that opened the code we are in."""
        self._quoted = False
        """Whether that code stands in a quotation."""
        self._fenced_notes: list[str] = []
        """Marks of the directives we are in that hold Markdown."""
        self._indents: list[int] = []
        """Columns at which the text of tabs and notes we are in begins."""
        self._ends: dict[str, re.Match[str] | None] = {}
        self._in_head = False
        """Whether options of a directive may follow."""
        self._may_be_program = True
        """At the start and behind a blank line or another program."""

    def read(self) -> Iterator[Line]:
        """All lines."""
        while self._at <= len(self._text):
            begin, end = self._at, self._line_end(self._at)
            self._at = end + 1
            if self._fence:
                yield from self._code_line(begin, end)
            else:
                yield from self._text_line(begin, end)

    def _line_end(self, begin: int) -> int:
        end = self._text.find("\n", begin)
        return len(self._text) if end < 0 else end

    def _next_line(self) -> str:
        begin, end = self._at, self._line_end(self._at)
        self._at = end + 1
        return self._text[begin:end]

    def _code_line(self, begin: int, end: int) -> Iterator[Line]:
        line = self._dedented(self._text[begin:end])
        if not self._fence or (self._quoted and not line.lstrip().startswith(">")):
            self._fence = ""
            yield from self._text_line(begin, end)
            return
        marks = line.strip(" \t>" if self._quoted else " \t")
        if marks.startswith(self._fence) and not marks.strip(self._fence[0]):
            self._fence = ""
        yield line, True

    def _dedented(self, line: str) -> str:
        """The line without the columns by which tabs and notes around it are indented."""
        if not self._indents or not line.strip():
            return line
        line = line.expandtabs(4) if line.startswith("\t") else line
        indent = len(line) - len(line.lstrip(" "))
        while self._indents and indent < self._indents[-1]:
            self._indents.pop()
            self._fence = ""
        return line[4 * len(self._indents) :]

    def _text_line(self, begin: int, end: int) -> Iterator[Line]:
        """A line outside of code, with all lines of the parts that begin on it."""
        before = ""
        while part := self._part(begin, end):
            name, start, close = part
            before += self._text[begin : start.start()] + GONE
            content = self._text[start.end() : close.start()]
            begin = close.end()
            end = end if begin <= end else self._line_end(begin)
            self._at = end + 1
            if name in _SHOWN_PARTS:
                if before.strip(f"{GONE} \t"):
                    yield self._dedented(before), False
                yield from _shown_part(name, start[0], content)
                before = ""
        line = before + self._text[begin:end]
        if line.strip() or not self._text[begin - 1 : begin].strip():
            yield from self._plain_line(line)

    def _plain_line(self, line: str) -> Iterator[Line]:
        line = self._dedented(line)
        may_be_program, in_head = self._may_be_program, self._in_head
        self._may_be_program, self._in_head = not line.strip(f"{GONE} \t"), False
        if ("```" in line or "~~~" in line) and (fence := _FENCE.match(line)):
            yield from self._opened(line, fence)
        elif self._ends_note(line):
            yield GONE, False
        elif in_head and _OPTION.match(line):
            self._in_head = True
        elif (label := self._label(line)) is not None:
            yield label, False
        elif may_be_program and line.startswith(("import", "export")) and _PROGRAM.match(line):
            self._skip_program(line)
            self._may_be_program = True
            yield GONE, False
        elif line.lstrip()[:1] in ("{", "(", "[", "^", "<") and _ONLY_MARKUP.match(line):
            yield GONE, False
        else:
            if len(line) < _LONGEST_LINE and ("::" in line or "^" in line or "{" in line):
                for pattern, instead in _LINE_CHANGES:
                    line = pattern.sub(instead, line)
            yield line, False

    # -- parts --------------------------------------------------------------------------------

    def _part(self, begin: int, end: int) -> tuple[str, re.Match[str], re.Match[str]] | None:
        """The first part that begins on a line and ends: its name, its start and its end."""
        text = self._text
        at = begin
        # Most lines hold none of these; asking for the characters takes less time than the pattern.
        if (
            text.find("<", begin, end) < 0
            and text.find("{", begin, end) < 0
            and text.find("%%", begin, end) < 0
        ):
            return None
        if text[begin - 1 : begin] in ("", "\n") and _FENCE.match(text[begin:end]):
            return None
        ticks, counted = 0, begin
        while start := _OPENING.search(text, at, end):
            name, at = str(start.lastgroup), start.end()
            ticks += text.count("`", counted, start.start())
            counted = start.start()
            if ticks % 2 == 0 and (close := self._end_of(name, at)):
                too_long = name == "heading" and close.start() - at > _MOST_HEADING
                # The end of an element that is only named may stand in an example far below.
                code = self._end_of(_CODE_BEGINS, at) if name in _HIDDEN_ELEMENTS else None
                too_long |= code is not None and code.start() < close.start()
                if not too_long and not (name == "table" and self._is_mixed(at, close.start())):
                    return name, start, close
        return None

    def _is_mixed(self, begin: int, end: int) -> bool:
        """Whether a table holds what no row can: code, or another table."""
        # The inner table first: it is near, so that many tables in one another cost no more than one.
        return self._text.find("<table", begin, end) >= 0 or self._text.find("```", begin, end) >= 0

    def _end_of(self, name: str, at: int) -> re.Match[str] | None:
        """The next end of a kind of part; looked for once, wherever parts of that kind begin before it."""
        if name not in self._ends or ((end := self._ends[name]) and end.start() < at):
            self._ends[name] = _CLOSING[name].search(self._text, at)
        return self._ends[name]

    # -- lines --------------------------------------------------------------------------------

    def _opened(self, line: str, fence: re.Match[str]) -> Iterator[Line]:
        directive = _DIRECTIVE.match(line)
        if directive and directive["name"] in _NOTES:
            self._fenced_notes.append(directive["marks"])
            self._in_head = True
            yield _label(directive["title"], directive["name"]), False
        elif self._ends_note(line):
            yield GONE, False
        else:
            self._fence, self._quoted = fence[2], bool(fence[1])
            yield line, True

    def _ends_note(self, line: str) -> bool:
        """Whether the line closes the innermost directive that holds Markdown."""
        bare = line.strip()
        top = self._fenced_notes[-1] if self._fenced_notes else "\n"
        if bare.startswith(top) and not bare.strip(top[0]):
            self._fenced_notes.pop()
            return True
        return False

    def _label(self, line: str) -> str | None:
        """What stands for the line that opens or closes a tab or a note; None for any other."""
        bare = line.lstrip()
        if bare.startswith(":::") and (directive := _DIRECTIVE.match(line)):
            self._in_head = bool(directive["name"])
            title = directive["title"] or _title_in(directive["more"] or "")
            return _label(title, directive["name"] or directive["kind"] or "")
        if bare.startswith(("!!!", "???", '=== "', '===! "', '===+ "')) and (opened := _INDENTED.match(line)):
            width = len(opened["indent"].expandtabs(4))
            self._indents.append(width + 4 * len(self._indents) + 4)
            return opened["indent"] + _label(opened["title"] or "", (opened["name"] or "").partition(" ")[0])
        if bare.startswith("///") and (block := _SLASHES.match(line)):
            return _label(block["title"] or "", block["name"] or "")
        if bare.startswith(">") and (callout := _CALLOUT.match(line)):
            return callout[1] + _label(callout[3], callout[2])
        return None

    def _skip_program(self, line: str) -> None:
        """Go behind a program of MDX: to where its brackets are closed, else to the next blank line."""
        begin, depth, blank = self._at, 0, -1
        for _ in range(_MOST_PROGRAM):
            code = _STRINGS.sub("", line).rstrip()
            depth += sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
            if depth <= 0 and code and not code.endswith(_GOES_ON):
                return
            if self._at > len(self._text):
                break
            before, line = self._at, self._next_line()
            blank = before if blank < 0 and not line.strip() else blank
            if line.startswith(("# ", "## ", "```", "export ", "import ")):
                self._at = before
                break
        self._at = blank if blank >= 0 else begin


_ICON = re.compile(r":(?:material|fontawesome|octicons|simple)-[\w-]+:")


def _label(title: str, name: str) -> str:
    """A line in bold with the title of a tab or a note, or with what kind of note it is."""
    words = _ICON.sub("", title).strip() or (
        name.strip().capitalize() if name.lower().strip() in _NOTES - _SILENT else ""
    )
    return f"**{words.replace('**', '')}**" if words else GONE


def _title_in(text: str) -> str:
    """The title behind the name of a container: `[Title]`, `{title="Title"}` or `Title`."""
    if named := LABEL.search(text):
        return named[1] or named[2] or ""
    bare = re.sub(r"\{[^{}]*\}", "", text).strip()
    return bare[1:-1] if bare.startswith("[") and bare.endswith("]") else bare


def _shown_part(name: str, opening: str, content: str) -> Iterator[Line]:
    """The lines that stand for a part."""
    if name == "heading":
        yield from ((line, False) for line in ("", f"{'#' * int(opening[2])} {one_line(content)}", ""))
    elif name == "table":
        yield from ((line, False) for line in ("", *_table(content), ""))
    else:
        yield from _fenced(opening, content, is_html=name == "pre")


def _fenced(opening: str, content: str, *, is_html: bool) -> Iterator[Line]:
    language = _LANGUAGE.search(opening + (content[:100] if is_html else ""))
    code = unescape(_TAG_OR_BREAK.sub("", content)) if is_html else content
    yield f"~~~~~~{language[1] or language[2] if language else ''}", True
    yield from ((line, True) for line in code.strip("\n").split("\n"))
    yield "~~~~~~", True


_CELL_END = re.compile(
    r"</(?:t[dhr]|tbody|thead|tfoot|table)\s*>|<t(?:body|foot|head)\b[^<>]*>", re.IGNORECASE
)


def _table(content: str) -> list[str]:
    """Rows of an HTML table as those of Markdown, the first one as its header."""
    rows: list[str] = []
    for row in re.split(r"<tr\b[^<>]*>", content, flags=re.IGNORECASE)[1:]:
        cells = [
            one_line(_CELL_END.sub("", cell)).replace("|", "\\|")
            for cell in re.split(r"<t[dh]\b[^<>]*>", row, flags=re.IGNORECASE)[1:]
        ]
        if cells:
            rows.append(f"| {' | '.join(cells)} |")
            if len(rows) == 1:
                rows.append("|" + " --- |" * len(cells))
    return rows
