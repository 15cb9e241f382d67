"""Markdown as its readers see it: without programs, comments and layout, with labels of tabs, notes and pictures.

Supports the extensions of Docusaurus, VitePress, MkDocs, MyST, Hugo, Jekyll, GitBook and Obsidian. Code is not changed.
Patterns stop at a line's end or a mark of their kind, and a missing end mark is searched once: time is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from itertools import groupby
from operator import itemgetter

from connectors.files.markdown_markup import CLOSED, CODE_SPAN, LABEL, MARKER, has_words, one_line, text_lines
from connectors.markup.elements import MARKDOWN, to_markdown
from connectors.markup.parsing import Element

Line = tuple[str, bool]
"""Text of a line without its line end, and whether it is code."""

# -- constructs of several lines, with start and end marks ---------------------------------------------

_CONSTRUCTS: dict[str, tuple[str, str]] = {
    "comment": (r"<!--", r"-->"),
    "mdx_comment": (r"\{/\*", r"\*/\}"),
    "liquid_comment": (r"\{%-?\s*comment\b[^{}\n]*%\}", r"\{%-?\s*endcomment\s*-?%\}"),
    "script": (r"<script\b[^<>]*>", r"</script\s*>"),
    "style": (r"<style\b[^<>]*>", r"</style\s*>"),
    "svg": (r"<svg\b[^<>]*>", r"</svg\s*>"),
    "obsidian": (r"^[ \t]*%%(?!%)(?=[^%\n]*$)", r"(?<![%\d])%%[ \t]*$"),
    "pre": (r"<pre\b[^<>]*>", r"</pre\s*>"),
    "liquid_code": (r"\{%-?\s*highlight\b[^{}\n]*%\}", r"\{%-?\s*endhighlight\s*-?%\}"),
    "shortcode": (r"\{\{[<%](?=[^{}\n]*$)", r"[%>]\}\}"),
    "hugo_code": (r"\{\{[<%]\s*highlight\b[^{}\n]*[%>]\}\}", r"\{\{[<%]\s*/\s*highlight\s*[%>]\}\}"),
    "heading": (r"<h[1-6]\b[^<>]*>", r"</h[1-6]\s*>"),
    "table": (r"<table\b[^<>]*>", r"</table\s*>"),
}
_RENDERED_CONSTRUCTS = frozenset({"pre", "liquid_code", "hugo_code", "heading", "table"})
"""Constructs of which text remains; others are removed."""
_HIDDEN_ELEMENTS = frozenset({"script", "style", "svg"})
_OPENING = re.compile(
    rf"(?<!\\)(?:(?P<ticks>`+)|{'|'.join(f'(?P<{name}>{begin})' for name, (begin, _) in _CONSTRUCTS.items())})",
    re.IGNORECASE | re.MULTILINE,
)
_FENCE_MARK = "fence"
_MAY_OPEN = re.compile(r"[<{]|%%")
_SPAN = re.compile(f"`{CODE_SPAN}")
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_CLOSING = {
    name: re.compile(end, re.IGNORECASE | re.MULTILINE)
    for name, end in (
        *((name, end) for name, (_, end) in _CONSTRUCTS.items()),
        (_FENCE_MARK, r"^[ \t]*(?:```|~~~)"),
    )
}
_BLANKS = f"{MARKER} \t>"
_FENCES = re.compile(r"^[ \t]*(`{3,}|~{3,})", re.MULTILINE)
_MOST_HEADING = 1000
"""Most characters of a heading in HTML; a longer match is not one heading."""
_TAG_OR_BREAK = re.compile(r"<[^<>]*>")
_LANGUAGE = re.compile(r"\bhighlight\s+[\"']?([\w+#-]+)|\blang(?:uage)?[=-][\"']?([\w+#-]+)", re.IGNORECASE)

# -- lines that open a block ---------------------------------------------------------------------------

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
"""Directives in fences with Markdown inside; others contain code."""
_SILENT = frozenset(
    {
        "block", "caption", "card", "card-grid", "code-group", "column", "columns", "define", "demo", "div",
        "figure-caption", "grid", "grid-item", "grid-item-card", "group", "html", "margin", "raw", "row", "steps",
        "tab", "tab-item", "tab-set", "table-caption", "tabs", "v-pre",
    }
)  # fmt: skip
"""Notes and layout whose name is not written as a label."""
_PLACES = frozenset({"annotate", "end", "highlight", "inline", "left", "right"})
"""Words after the name of a note that set its position."""
_OPTION = re.compile(r"[ \t]*:[\w-]+:(?:[ \t].*)?$")
_INDENTED = re.compile(
    r"(?P<indent>[ \t]*)(?:(?:!!!|\?\?\?)\+?[ \t]+(?P<name>\w[\w -]*?)|===[!+]?)(?:[ \t]+\"(?P<title>[^\"]*)\")?[ \t]*$"
)
_SLASHES = re.compile(r"/{3,}[ \t]*(?:(?P<name>[\w-]+)(?:[ \t]*\|[ \t]*(?P<title>.*))?)?$")
_CALLOUT = re.compile(r"([ \t]*(?:>[ \t]?)+)\[!([\w -]+)(?:\|[^\]]*)?\][-+]?[ \t]*(.*)$")
_PROGRAM = re.compile(
    r"""import\s+(?:(?:type\s+)?[\w$*{][^'"`;\n]*\sfrom\s+(?:'[^'\n]+'|"[^"\n]+")|['"][^'"\n]*[./@][^'"\n]*['"]);?\s*$
    |import\s+(?:type\s+)?(?:[\w$]+\s*,\s*)?\{[^'"`(){};]*$
    |export\s+(?:default\s+(?:(?:async\s+)?function\b|class\b|[({\[]|[A-Z][\w$.]*;?\s*$|[\w$.]+;\s*$)
      |(?:const|let|var)\s+[\w$]+\s*(?::[^=]*)?=(?!\s*(?!async\b|await\b|new\b)\w+\s+\w+\s+\w)|(?:async\s+)?function\s+\w+\s*\(.*[{}(,]\s*$
      |class\s+\w+\s*(?:\{|extends\s.*\{)|\{[^{}]*(?:\}\s*(?:from\s.*|;)?)?$|\*\s+from\s+['"])""",
    re.VERBOSE,
)
"""First line of a program in MDX."""
_QUOTE = re.compile(r"(?: {0,3}> ?)+")
_ITEM = re.compile(r"[ ]*(?:(?:[-*+:]|\d{1,9}[.)])(?:[ ]{1,4}(?=\S)|[ ])|\[\^[^\[\]\s]+\]:)")
_COMPONENT = re.compile(r"<(?:[A-Z]|[a-z]+-)(?:[^/]|/(?!>$))*$")
_MORE_WORDS = re.compile(r"(?:[ \t]*\n)*+([ \t]*)(?=\S)")
_STRINGS = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`|//.*")
_GOES_ON = ("=", ",", "=>", "(", "&&", "||", "?", ":", "+")
_LONGEST_LINE = 2000
"""Most characters of a line that is searched for fields and ids."""
_MOST_PROGRAM = 200
"""Most lines of a program in MDX."""
_ONLY_MARKUP = re.compile(
    r"[ \t]*(?:\{(?:[#.][\w-][^{}]*|\*.*\*)\}|\([\w:.-]+\)=|\[\[_?TOC_?\]\]|\[TOC\]|\^[\w-]*[A-Za-z][\w-]*"
    r"|<<<[ \t]+[@./][^<>]*|\[\w+(?: \w+)* src=\"[^\"]*\"[^\[\]]*\])[ \t]*$"
)
_LINE_CHANGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^([ \t]*(?:[-*+][ \t]+)?(?:\*\*|__)?\w[\w ./-]{0,40}?(?:\*\*|__)?)::(?=[ \t]|$)"), r"\1:"),
    (re.compile(r"([\[(])(\w[\w -]{0,40})::[ \t]+([^\[\]()\n]*)[\])]"), r"\2: \3"),
    (
        re.compile(
            r"(?:(?<=[.!?])[ \t]\^|[ \t]\^(?=[A-Za-z]*[\d-]))(?=[\d-]*[A-Za-z])[A-Za-z\d-]{3,}[ \t]*$"
        ),
        MARKER,
    ),
    (
        re.compile(
            r"^([ \t]{0,3}#{1,6}[ \t].*?)[ \t]*\\?\{:?[ \t]*(?:(?:#[^\s{}]|\.[\w-])[^{}]*|-)\}(?=[ \t#]*$)"
        ),
        r"\1",
    ),
    (re.compile(r"[ \t]*\{#[\w:.-]+(?:[ \t][^{}]*)?\}[ \t]*$"), ""),
)
"""Replacements within a line: fields of Dataview, ids of blocks in Obsidian, ids of headings."""


def readable_markdown(text: str) -> str:
    """Convert Markdown to the text that its readers see, without the syntax of tools.

    Plain Markdown and code are returned unchanged.
    """
    lines = _MarkdownReader(text).read()
    plain = "\n".join(line for line, is_code in lines if not is_code)
    closed = frozenset(name for tag in set(CLOSED.findall(plain)) for name in (tag, tag.lower()))
    notes = frozenset(re.findall(r"^[ \t]*\[\^([^\[\]\s]+)\]:", plain, re.MULTILINE))
    readable: list[str] = []
    for is_code, run in groupby(lines, key=itemgetter(1)):
        run_lines = [line for line, _ in run]
        readable += run_lines if is_code else text_lines(run_lines, closed, notes)
    return "\n".join(readable)


class _MarkdownReader:
    """One pass over the lines that separates code from text and removes constructs without visible text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: list[Line] = []
        self._fence = ""
        """Marks that opened the current code; empty outside of code."""
        self._quoted = False
        """Whether the current code is within a quotation."""
        self._fenced_notes: list[str] = []
        """Marks of the open directives with Markdown inside."""
        self._indents: list[int] = []
        """Indents of the text in the open tabs and notes."""
        self._ends: dict[str, re.Match[str] | None] = {}
        self._fenced_end = (-1, False)
        """End of the construct tested last, and whether it is within a fence."""
        self._in_head = False
        """True if options of a directive may follow."""
        self._code_end = 0
        """End of a span of code that began on a line above."""
        self._columns: list[int] = []
        """Indents of the text in the open list items."""
        self._in_component = False
        """True within a component, where indented text is no code."""
        self._behind_blank = True
        """True at the start and after a blank line or a program, where programs and indented code may begin."""

    def read(self) -> list[Line]:
        """All lines of the text, each with whether it is code."""
        while self._at <= len(self._text):
            begin = self._at
            end = self._line_end(begin)
            self._at = end + 1
            if self._fence:
                self._code_line(begin, end)
            elif begin == end:
                self._lines.append(("", False))
                self._behind_blank, self._in_head = True, False
            elif (
                self._behind_blank
                and self._text[begin : begin + 1] in (" ", "\t", ">")
                and self._is_indented_code(line := self._dedented(self._text[begin:end]))
            ):
                self._lines.append((line, True))
            else:
                self._text_line(begin, end)
        return self._lines

    def _line_end(self, begin: int) -> int:
        end = self._text.find("\n", begin)
        return len(self._text) if end < 0 else end

    def _code_line(self, begin: int, end: int) -> None:
        line = self._dedented(self._text[begin:end])
        if not self._fence or (self._quoted and not line.lstrip().startswith(">")):
            self._fence = ""
            self._text_line(begin, end)
            return
        marks = line.strip(" \t>" if self._quoted else " \t")
        if marks.startswith(self._fence) and not marks.strip(self._fence[0]):
            self._fence = ""
        self._lines.append((line, True))

    def _dedented(self, line: str) -> str:
        """The line without the indent of the tabs and notes around it."""
        if not self._indents or not line.strip():
            return line
        line = line.expandtabs(4) if line.startswith("\t") else line
        indent = len(line) - len(line.lstrip(" "))
        while self._indents and indent < self._indents[-1]:
            self._indents.pop()
            self._fence = ""
        return line[4 * len(self._indents) :]

    def _is_indented_code(self, line: str) -> bool:
        """Whether a line after a blank one is code by its indent, and not text of a list item or a component."""
        stripped = _unquoted(line)
        if not stripped.startswith("    ") or not stripped.strip() or self._in_component:
            return False
        self._leave_items(stripped)
        base = self._columns[-1] if self._columns else 0
        return not (_FENCE.match(stripped) or _INDENTED.match(stripped)) and (
            stripped.startswith(" " * (base + 4)) and not (base and _ITEM.match(stripped))
        )

    def _leave_items(self, stripped: str) -> None:
        while self._columns and not stripped.startswith(" " * self._columns[-1]):
            self._columns.pop()

    def _follow(self, line: str, first: str) -> None:
        """Update the open list items and component for a line of text."""
        if line[0] != first:
            line = _unquoted(line)
            first = line.lstrip(" ")[:1]
        if self._behind_blank:
            self._leave_items(line)
        if line[:1] not in " <" or line.startswith("</"):
            self._in_component = False
        elif first == "<":
            self._in_component |= _COMPONENT.match(line.strip()) is not None
        if (first in "-*+:[" or first.isdigit()) and (item := _ITEM.match(line)):
            indent = len(line) - len(line.lstrip(" "))
            self._leave_items(" " * indent)
            self._columns.append(indent + 4 if first == "[" else item.end())

    def _text_line(self, begin: int, end: int) -> None:
        """Read a line outside of code, with all lines of the constructs that begin on it."""
        before = ""
        while construct := self._construct(begin, end):
            name, start, close = construct
            before += self._text[begin : start.start()] + MARKER
            content = self._text[start.end() : close.start()]
            begin = close.end()
            end = end if begin <= end else self._line_end(begin)
            self._at = end + 1
            if name in _RENDERED_CONSTRUCTS:
                if before.strip(f"{MARKER} \t"):
                    self._lines.append((self._dedented(before), False))
                self._lines += _rendered(name, start[0], content)
                before = ""
        line = before + self._text[begin:end]
        if line.strip() or not self._text[begin - 1 : begin].strip():
            self._plain_line(line)

    def _plain_line(self, line: str) -> None:
        line = self._dedented(line) if self._indents else line
        first = line.lstrip(_BLANKS)[:1]
        behind_blank, in_head = self._behind_blank, self._in_head
        is_word = first.isalpha()
        if first and (behind_blank or self._in_component or not is_word):
            self._follow(line, first)
        # A line of a comment only is not blank, and `>` may end a tag of several lines.
        is_marked = MARKER in line or (
            ">" in line and not (self._lines or [("", False)])[-1][0].startswith(">")
        )
        self._behind_blank, self._in_head = not first and (behind_blank or not is_marked), False
        if behind_blank and line.startswith(("import", "export")) and _PROGRAM.match(line):
            self._skip_program(line)
            self._behind_blank = True
            self._lines.append((MARKER, False))
        elif is_word or not first:
            self._lines.append((self._changed(line), False))
        elif ("```" in line or "~~~" in line) and (fence := _FENCE.match(line)):
            self._opened(line, fence)
        elif self._ends_note(line):
            self._lines.append((MARKER, False))
        elif in_head and _OPTION.match(line):
            self._in_head = True
        elif (label := self._label(line)) is not None:
            self._lines.append((label, False))
        else:
            self._lines.append(
                (MARKER if first in "{([^<" and _ONLY_MARKUP.match(line) else self._changed(line), False)
            )

    def _changed(self, line: str) -> str:
        if ("::" in line or "^" in line or "{" in line) and len(line) < _LONGEST_LINE:
            for pattern, replacement in _LINE_CHANGES:
                line = pattern.sub(replacement, line)
        return line

    # -- constructs ---------------------------------------------------------------------------

    def _construct(self, begin: int, end: int) -> tuple[str, re.Match[str], re.Match[str]] | None:
        """The first closed construct that begins on a line: its name, start mark and end mark."""
        text, at = self._text, max(begin, self._code_end)
        # Most lines have none of these; testing for the characters is faster than the pattern.
        if not _MAY_OPEN.search(text, at, end) and text.count("`", at, end) % 2 == 0:
            return None
        if text[begin - 1 : begin] in ("", "\n") and _FENCE.match(text[begin:end]):
            return None
        while start := _OPENING.search(text, at, end):
            name, at = str(start.lastgroup), start.end()
            if name == "ticks":
                code = _SPAN.match(text, start.start())
                self._code_end = at = code.end() if code else at
            elif (close := self._end_of(name, at)) and self._is_construct(name, begin, start, close.start()):
                return name, start, close
        return None

    def _is_construct(self, name: str, begin: int, start: re.Match[str], end: int) -> bool:
        """False for a mark that is only mentioned: its end is in code, or beyond the paragraph of words before it."""
        text, at = self._text, start.end()
        if name == "heading" and end - at > _MOST_HEADING:
            return False
        # An inner table comes first: it is near, so that nested tables cost no more than one.
        if name == "table" and (text.find("<table", at, end) >= 0 or text.find("```", at, end) >= 0):
            return False
        if has_words(text, begin, start.start()):
            return _BLANK_LINE.search(text, at, end) is None
        code = self._end_of(_FENCE_MARK, at)
        if code is None or code.start() > end or name in _RENDERED_CONSTRUCTS:
            return True
        return name not in _HIDDEN_ELEMENTS and not self._is_fenced(at, end)

    def _is_fenced(self, at: int, end: int) -> bool:
        """Whether an end mark is within a fence opened after `at`; computed once per end mark."""
        if self._fenced_end[0] != end:
            opened = ""
            for mark in _FENCES.finditer(self._text, at, end):
                opened = mark[1] if not opened else "" if mark[1].startswith(opened) else opened
            self._fenced_end = end, bool(opened)
        return self._fenced_end[1]

    def _end_of(self, name: str, at: int) -> re.Match[str] | None:
        """The next end mark of a kind of construct; searched once for all constructs that begin before it."""
        if name not in self._ends or ((end := self._ends[name]) and end.start() < at):
            self._ends[name] = _CLOSING[name].search(self._text, at)
        return self._ends[name]

    # -- lines --------------------------------------------------------------------------------

    def _opened(self, line: str, fence: re.Match[str]) -> None:
        directive = _DIRECTIVE.match(line)
        if directive and directive["name"] in _NOTES:
            self._fenced_notes.append(directive["marks"])
            self._in_head = True
            self._lines.append((_label(directive["title"], directive["name"]), False))
        elif self._ends_note(line):
            self._lines.append((MARKER, False))
        else:
            self._fence, self._quoted = fence[2], bool(fence[1])
            self._lines.append((line, True))

    def _ends_note(self, line: str) -> bool:
        """Whether the line closes the innermost directive with Markdown inside; closes it."""
        stripped = line.strip()
        top = self._fenced_notes[-1] if self._fenced_notes else "\n"
        if stripped.startswith(top) and not stripped.strip(top[0]):
            self._fenced_notes.pop()
            return True
        return False

    def _label(self, line: str) -> str | None:
        """Label in place of a line that opens or closes a tab or a note; None for other lines."""
        stripped = line.lstrip()
        if stripped.startswith(":::") and (directive := _DIRECTIVE.match(line)):
            self._in_head = bool(directive["name"])
            kind, attributes = directive["kind"] or "", directive["more"] or ""
            title = directive["title"] or _title_in(attributes)
            if directive["name"] and directive["name"] not in _NOTES:
                kind = ""
            elif title and kind.lower() not in _NOTES | _SILENT and attributes[:1].isspace():
                title = f"{kind} {title}"
            return _label(title, directive["name"] or kind)
        if stripped.startswith(("!!!", "???", '=== "', '===! "', '===+ "')) and (
            opened := _INDENTED.match(line)
        ):
            width = len(opened["indent"].expandtabs(4)) + 4 * len(self._indents) + 4
            name = " ".join(word for word in (opened["name"] or "").split() if word not in _PLACES)
            if opened["title"] is not None or name.lower() in _NOTES or self._goes_on_at(width):
                self._indents.append(width)
                return opened["indent"] + _label(opened["title"] or "", name)
        if stripped.startswith("///") and (block := _SLASHES.match(line)):
            is_block = block["title"] or (block["name"] or "html").lower() in _NOTES | _SILENT
            return _label(block["title"] or "", block["name"] or "") if is_block else None
        if stripped.startswith(">") and (callout := _CALLOUT.match(line)):
            return callout[1] + _label(callout[3], callout[2])
        return None

    def _goes_on_at(self, column: int) -> bool:
        """Whether the next line with words is indented to this column."""
        words = _MORE_WORDS.match(self._text, self._at)
        return words is not None and len(words[1].expandtabs(4)) >= column

    def _skip_program(self, line: str) -> None:
        """Skip a program of MDX: until its brackets are closed, else to the next blank line."""
        begin, depth, blank = self._at, 0, -1
        for _ in range(_MOST_PROGRAM):
            code = _STRINGS.sub("", line).rstrip()
            depth += sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
            if depth <= 0 and code and not code.endswith(_GOES_ON):
                return
            if self._at > len(self._text):
                break
            before, self._at = self._at, self._line_end(self._at) + 1
            line = self._text[before : self._at - 1]
            blank = before if blank < 0 and not line.strip() else blank
            if line.startswith(("# ", "## ", "```", "export ", "import ")):
                self._at = before
                break
        self._at = blank if blank >= 0 else begin


_ICON = re.compile(r":(?:material|fontawesome|octicons|simple)-[\w-]+:")


def _label(title: str, name: str) -> str:
    """A bold line with the title of a tab or a note, else with its kind; a marker if it has none."""
    name = name.strip()
    silent = name.lower() in _SILENT
    words = _ICON.sub("", title).strip() or ("" if silent else name if " " in name else name.capitalize())
    return f"**{words.replace('**', '')}**" if words else MARKER


def _unquoted(line: str) -> str:
    """A line without the marks of quotations, leading tabs as blanks."""
    line = line[quote.end() :] if (quote := _QUOTE.match(line)) else line
    return line.expandtabs(4) if line[:1] in "\t " and "\t" in line else line


def _title_in(text: str) -> str:
    """Title after the name of a container: `[Title]`, `{title="Title"}` or `Title`."""
    if named := LABEL.search(text):
        return named[1] or named[2] or ""
    stripped = re.sub(r"\{[^{}]*\}", "", text).strip()
    return stripped[1:-1] if stripped.startswith("[") and stripped.endswith("]") else stripped


def _rendered(name: str, opening: str, content: str) -> Iterator[Line]:
    """Lines in place of a construct."""
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


_NOT_OF_TABLES = re.compile(
    r"<(?!/?(?:table|caption|colgroup|col|t(?:head|body|foot|[rdh]))\b)|<!--", re.IGNORECASE
)


def _table(html: str) -> list[str]:
    """A table of HTML as Markdown; its text is Markdown already, so that other tags in it are escaped."""
    tags = _NOT_OF_TABLES.sub(lambda mark: f"&lt;{mark[0][1:]}", html.replace("&", "&amp;"))
    return to_markdown(f"<table>{tags}</table>", content=_as_written).text.split("\n")


def _as_written(page: Element) -> Element:
    """The page with its texts marked as Markdown."""
    for node in (page, *list(page.within())):
        node.children = [Element(MARKDOWN, children=[c]) if isinstance(c, str) else c for c in node.children]
    return page
