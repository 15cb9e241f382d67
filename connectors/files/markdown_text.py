"""Markdown as its readers see it: programs, comments and layout go, labels of tabs, notes and pictures stay.

Knows what Docusaurus, VitePress, MkDocs, MyST, Hugo, Jekyll, GitBook and Obsidian add to Markdown. Code is left as it
is. Every pattern stops at a line's end or a mark of its kind, and what has no end is asked for once, so that the time
grows with the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from itertools import groupby
from operator import itemgetter

_GONE, _BREAK, _ITEM = "\ufdd0", "\ufdd1", "\ufdd2"
"""Stand for markup that went, a line break and an item of a list; no text has these characters."""
_MARKERS = re.compile(f"[{_GONE}{_BREAK}{_ITEM}]")

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
    "hugo_code": (r"\{\{[<%]\s*highlight\b[^{}\n]*[%>]\}\}", r"\{\{[<%]\s*/\s*highlight\s*[%>]\}\}"),
    "heading": (r"<h[1-6]\b[^<>]*>", r"</h[1-6]\s*>"),
    "table": (r"<table\b[^<>]*>", r"</table\s*>"),
}
_SHOWN_PARTS = frozenset({"pre", "liquid_code", "hugo_code", "heading", "table"})
"""Those of which something remains."""
_OPENING = re.compile(
    "|".join(f"(?P<{name}>{begin})" for name, (begin, _) in _PARTS.items()), re.IGNORECASE | re.MULTILINE
)
_CLOSING = {name: re.compile(end, re.IGNORECASE | re.MULTILINE) for name, (_, end) in _PARTS.items()}
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
    r"[ \t]*(?:\{[:#.][^{}]*\}|\([\w:.-]+\)=|\[\[_?TOC_?\]\]|\[TOC\]|\^[\w-]*[A-Za-z][\w-]*)[ \t]*$"
)
_LINE_CHANGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^([ \t]*(?:[-*+][ \t]+)?(?:\*\*|__)?\w[\w ./-]{0,40}?(?:\*\*|__)?)::(?=[ \t]|$)"), r"\1:"),
    (re.compile(r"([\[(])(\w[\w -]{0,40})::[ \t]+([^\[\]()\n]*)[\])]"), r"\2: \3"),
    (re.compile(r"[ \t]\^(?=[\d-]{0,10}[A-Za-z])[A-Za-z0-9-]{3,}[ \t]*$"), _GONE),
    (re.compile(r"^([ \t]{0,3}#{1,6}[ \t].*?)[ \t]*\\?\{:?[ \t]*[#.-][^{}]*\}(?=[ \t#]*$)"), r"\1"),
    (re.compile(r"[ \t]*\{#[\w:.-]+(?:[ \t][^{}]*)?\}[ \t]*$"), ""),
)
"""Fields of Dataview, ids of blocks in Obsidian, ids of headings."""

# -- markup within lines -------------------------------------------------------------------------------

_VALUE = r"""(?:"[^"<]{0,1000}"|'[^'<]{0,1000}'|\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*+\})*+\})*+\}|[^\s"'=<>`{}]+)"""
_ATTRIBUTE = rf"(?:[\w:@.#*()\[\]-]+(?:[ \t]*=[ \t\n]*{_VALUE})?|\{{\.\.\.[^{{}}]*\}})"
_TOKEN = re.compile(
    # The first sign by itself: most are none of these, and the rest is looked at only where one is.
    rf"""[`\\<!\[^{{%:&](?:(?<=`)(?P<code>`*[^`\n]*`+)
    |(?<=\\)(?P<escaped>[<{{\[!%&^\\`])
    |(?<=<)(?P<slash>/?)(?P<tag>[A-Za-z][\w.-]*)(?P<attributes>(?:\s+{_ATTRIBUTE})*+)\s*(?P<alone>/?)>
    |(?<=<)/?>
    |(?<=!)\[\[[^\[\]\n|]*\.(?:avif|bmp|gif|jpe?g|mp[34]|pdf|png|svg|webp|excalidraw)(?:\#[^\[\]\n|]*)?(?:\|[^\[\]\n]*)?\]\]
    |(?<=!)\[\[(?P<embed>[^\[\]\n|]+?)(?:\\?\|(?P<alias>[^\[\]\n]*))?\]\]
    |(?<=\[)\[(?P<page>[^\[\]\n|]+?)(?:\\?\|(?P<words>[^\[\]\n]*))?\]\](?![(\[:])
    |(?<=\[)\^(?P<note>[^\[\]\s]+)\](?::[ \t]*)?
    |(?<=\^)\[(?P<aside>[^\[\]\n]+)\]
    |(?<=\[)[#¶🔗\ufffc]?\]\((?:\#[^()\s]*)?\)
    |(?<=\{{)\{{[<%](?P<shortcode>[^{{}}\n]*)[>%]\}}\}}
    |(?<=\{{)%(?P<liquid>[^{{}}\n]*)%\}}
    |(?<=\{{)\{{-?\s*(?:(?P<literal>"[^"{{}}\n]*"|'[^'{{}}\n]*')\s*\||(?:site|page|layout|theme|include)\b|\$)[^{{}}\n]*\}}\}}
    |(?<=\{{):[^{{}}\n]*\}}
    |(?<=[)\]`:]\{{)[ ]?(?:[#.][\w:.-]+|[\w-]+=(?:"[^"\n]*"|[^\s{{}}"']+))(?:[ ]+[^{{}}\n]*)?\}}
    |(?<=\{{)(?:"[ ]*"|'[ ]*')\}}
    |(?<=\{{)[\w:.-]+\}}`(?P<role>[^`\n]*)`
    |(?<=%)(?<![\w%]%)%(?!%)[^%\n]+%%(?!\w)
    |(?<=:)(?:material|fontawesome|octicons|simple)-[\w-]+:
    |(?<=&)(?P<entity>(?:\#\d{{1,7}}|\#[xX][\da-fA-F]{{1,6}}|[A-Za-z]\w{{1,30}});))""",
    re.VERBOSE,
)
_HTML = frozenset(
    {
        "a", "abbr", "acronym", "address", "area", "article", "aside", "audio", "b", "base", "bdi", "bdo",
        "big", "blockquote", "body", "br", "button", "caption", "center", "cite", "code", "col", "colgroup",
        "data", "dd", "del", "details", "dfn", "dialog", "dir", "div", "dl", "dt", "em", "embed", "fieldset",
        "figcaption", "figure", "font", "footer", "form", "frame", "h1", "h2", "h3", "h4", "h5", "h6", "head",
        "header", "hgroup", "hr", "html", "i", "iframe", "img", "input", "ins", "kbd", "label", "legend", "li",
        "link", "main", "map", "mark", "menu", "meta", "nav", "noscript", "object", "ol", "optgroup", "option",
        "p", "param", "picture", "pre", "q", "rp", "rt", "ruby", "s", "samp", "section", "select", "small",
        "source", "span", "strike", "strong", "sub", "summary", "sup", "table", "tbody", "td", "template",
        "textarea", "tfoot", "th", "thead", "time", "title", "tr", "track", "tt", "u", "ul", "var", "video",
        "wbr",
    }
)  # fmt: skip
_APART = frozenset(
    {
        "address", "article", "aside", "blockquote", "dd", "details", "div", "dl", "dt", "figcaption", "p", "section",
        "summary", "td", "th", "tr",
    }
)  # fmt: skip
"""Elements whose text does not go on in the same sentence."""
_CLOSED = re.compile(r"</([A-Za-z][\w.-]*)\s*>")
_LABELS = re.compile(
    r"""\b(?:alt|caption|header|heading|label|name|summary|term|text|title)\s*=\s*\{?(?:"([^"<>]*)"|'([^'<>]*)')"""
)
_LABELLED_TAG = re.compile(
    r"\b(?:label|title|heading|summary|text|caption|header)\s*=\s*\{?(?:\"([^\"<>]*)\"|'([^'<>]*)')"
)
_QUOTED = re.compile(r"\"([^\"]*)\"|'([^']*)'")
_REFERENCE = re.compile(r"\s*(?:rel)?ref\s+(?:path=)?\"([^\"]*)\"")
_SHORTCODES = frozenset(
    {
        "accordion", "admonition", "alert", "button", "callout", "card", "collapse", "details", "expand",
        "heading", "hint", "notice", "step", "tab",
    }
)  # fmt: skip
"""Shortcodes whose quoted words are a label."""
_KEPT_ESCAPED = frozenset("#|`<*_[]")
_LINKED = re.compile(
    r"<a\s[^<>]*?\bhref\s*=\s*(?:\"([^\"\s<>]*)\"|'([^'\s<>]*)')[^<>]*>([^<>\n\[\]]+)</a>", re.IGNORECASE
)


def readable_markdown(text: str) -> str:
    """Markdown with the words that its readers see and without what only its tools read.

    Plain Markdown comes back as it is, code always does.
    """
    lines = list(_Reader(text).read())
    plain = "\n".join(line for line, is_code in lines if not is_code)
    closed = frozenset(_CLOSED.findall(plain))
    notes = frozenset(re.findall(r"^[ \t]*\[\^([^\[\]\s]+)\]:", plain, re.MULTILINE))
    shown: list[str] = []
    for is_code, run in groupby(lines, key=itemgetter(1)):
        part = [line for line, _ in run]
        shown += part if is_code else _shown(part, closed, notes)
    return "\n".join(shown)


class _Reader:
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
            before += self._text[begin : start.start()] + _GONE
            content = self._text[start.end() : close.start()]
            begin = close.end()
            end = end if begin <= end else self._line_end(begin)
            self._at = end + 1
            if name in _SHOWN_PARTS:
                if before.strip(f"{_GONE} \t"):
                    yield self._dedented(before), False
                yield from _shown_part(name, start[0], content)
                before = ""
        line = before + self._text[begin:end]
        if line.strip() or not self._text[begin - 1 : begin].strip():
            yield from self._plain_line(line)

    def _plain_line(self, line: str) -> Iterator[Line]:
        line = self._dedented(line)
        may_be_program, in_head = self._may_be_program, self._in_head
        self._may_be_program, self._in_head = not line.strip(f"{_GONE} \t"), False
        if ("```" in line or "~~~" in line) and (fence := _FENCE.match(line)):
            yield from self._opened(line, fence)
        elif self._ends_note(line):
            yield _GONE, False
        elif in_head and _OPTION.match(line):
            self._in_head = True
        elif (label := self._label(line)) is not None:
            yield label, False
        elif may_be_program and line.startswith(("import", "export")) and _PROGRAM.match(line):
            self._skip_program(line)
            self._may_be_program = True
            yield _GONE, False
        elif line.lstrip()[:1] in ("{", "(", "[", "^") and _ONLY_MARKUP.match(line):
            yield _GONE, False
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
            yield _GONE, False
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
    return f"**{words.replace('**', '')}**" if words else _GONE


def _title_in(text: str) -> str:
    """The title behind the name of a container: `[Title]`, `{title="Title"}` or `Title`."""
    if named := _LABELLED_TAG.search(text):
        return named[1] or named[2] or ""
    bare = re.sub(r"\{[^{}]*\}", "", text).strip()
    return bare[1:-1] if bare.startswith("[") and bare.endswith("]") else bare


def _shown_part(name: str, opening: str, content: str) -> Iterator[Line]:
    """The lines that stand for a part."""
    if name == "heading":
        yield from ((line, False) for line in ("", f"{'#' * int(opening[2])} {_one_line(content)}", ""))
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


def _one_line(text: str) -> str:
    return " ".join(text.split())


_CELL_END = re.compile(
    r"</(?:t[dhr]|tbody|thead|tfoot|table)\s*>|<t(?:body|foot|head)\b[^<>]*>", re.IGNORECASE
)


def _table(content: str) -> list[str]:
    """Rows of an HTML table as those of Markdown, the first one as its header."""
    rows: list[str] = []
    for row in re.split(r"<tr\b[^<>]*>", content, flags=re.IGNORECASE)[1:]:
        cells = [
            _one_line(_CELL_END.sub("", cell)).replace("|", "\\|")
            for cell in re.split(r"<t[dh]\b[^<>]*>", row, flags=re.IGNORECASE)[1:]
        ]
        if cells:
            rows.append(f"| {' | '.join(cells)} |")
            if len(rows) == 1:
                rows.append("|" + " --- |" * len(cells))
    return rows


# -- markup within lines -------------------------------------------------------------------------------


def _shown(lines: list[str], closed: frozenset[str], notes: frozenset[str]) -> Iterator[str]:
    """Lines of text without the markup in them; of one of nothing else a blank line remains, and of several one."""
    text = "\n".join(lines)
    replaced = _TOKEN.sub(
        _replacement(closed, notes), _LINKED.sub(_markdown_link, text) if "<a" in text else text
    )
    in_html, indent = False, -1
    was_blank = was_made_blank = False
    for raw in replaced.split("\n"):
        line = raw
        bare = raw.lstrip()
        if bare[:1] in (_GONE, _ITEM, _BREAK):
            in_html, indent, line = True, -1, bare
        elif not bare:
            in_html = False
        elif in_html:
            width = len(raw) - len(bare)
            indent = width if indent < 0 else indent
            line = raw[min(width, indent) :]
        marked = bool(_MARKERS.search(line))
        line = _resolved(line) if marked else line
        if not line.strip() and was_blank and (marked or was_made_blank):
            continue
        was_blank, was_made_blank = not line.strip(), marked and not line.strip()
        yield line


def _resolved(line: str) -> str:
    """The line with what its markers stand for."""
    core = line.strip(f"{_GONE} \t")
    if re.fullmatch(
        r"[#>]*", core.translate({ord(_GONE): "", ord(_BREAK): "", ord(_ITEM): ""}).replace(" ", "")
    ):
        return ""
    one_line = core.startswith("#") or "|" in core
    at_end = "" if line.endswith(" ") and not line.strip().endswith(_GONE) else " "
    first = f"{_GONE}{_BREAK}{_ITEM} \t"
    if line[0] in first[:3]:
        begins_item = _ITEM in line[: len(line) - len(line.lstrip(first))]
        line = ("- " if begins_item and not one_line else "") + line.lstrip(first)
    line = line.rstrip(first) if at_end else line
    line = re.sub(
        rf"[ ]*{_BREAK}[ {_GONE}{_BREAK}]*(?=(.))",
        ", " if one_line and "|" in core else " " if one_line else "\n",
        line,
    )
    line = re.sub(rf"[ ]*{_ITEM}[ {_GONE}]*", ", " if one_line else "\n- ", line)
    line = re.sub(rf"(?<=\s){_GONE}[ ]?|{_GONE}", "", line)
    return re.sub(r"(?<=\|) *, ", " ", line) if one_line else line


def _markdown_link(link: re.Match[str]) -> str:
    """A link of HTML as one of Markdown."""
    target = link[1] or link[2] or ""
    words = _one_line(link[3])
    return f"[{words}]({target})" if target and words and not set(target) & set("()") else link[3]


def _replacement(closed: frozenset[str], notes: frozenset[str]) -> Callable[[re.Match[str]], str]:
    """What stands for a token: its words, if it has any; for what is no markup the token itself.

    `closed` are the elements that end somewhere in the text, `notes` the footnotes that are defined in it.
    """

    def words(token: re.Match[str]) -> str:
        kind = token.lastgroup or ""
        if kind == "alone":
            return _of_tag(token, closed)
        if kind == "note" and token["note"] not in notes:
            return token[0]
        return _WORDS[kind](token) if kind in _WORDS else _GONE

    return words


def _of_page(token: re.Match[str]) -> str:
    page, words = token["page"] or token["embed"], token["words"] or token["alias"] or ""
    return words.strip() or page.replace("#^", " ").replace("#", " ").strip()


def _of_role(token: re.Match[str]) -> str:
    words = re.sub(r"\s*<[^<>]*>$", "", token["role"])
    return words if words != token["role"] else f"`{words}`"


def _of_liquid(token: re.Match[str]) -> str:
    label = _LABELLED_TAG.search(token["liquid"])
    return _bold(label[1] or label[2] or "") if label else _GONE


def _bold(words: str) -> str:
    return f"{_GONE}**{words.strip()}**" if words.strip() else _GONE


def _of_tag(token: re.Match[str], closed: frozenset[str]) -> str:
    name, attributes = token["tag"], token["attributes"]
    small = name.lower()
    if small == "img" and (alt := _ALT.search(attributes)):
        source = _SRC.search(attributes)
        words = _one_line(alt[1] or alt[2] or "").replace("[", "(").replace("]", ")")
        target = (source[1] or source[2] or "") if source else ""
        return f"{_GONE}![{words}]({target})" if not set(target) & set("() ") and words else f"{_GONE}{words}"
    if small in _HTML and name in (small, name.upper()):
        if small == "br":
            return _BREAK
        if small == "li":
            return _GONE if token["slash"] else _ITEM
        return f"{_GONE} " if small in _APART and token["slash"] else _GONE
    if name not in closed and not (
        token["alone"] and (attributes.strip() or name[0].isupper() or "-" in name)
    ):
        return token[0]
    label = _LABELLED_TAG.search(attributes) if small != "badge" else None
    return _bold(label[1] or label[2] or "") if label else _GONE


_ALT = re.compile(r"""\balt\s*=\s*\{?(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)
_SRC = re.compile(r"""\bsrc\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)


def _of_entity(token: re.Match[str]) -> str:
    sign = unescape(token[0])
    if sign == "\xa0":
        return " "
    if sign in ("\xad", "\u200b"):
        return ""
    return (
        f"\\{sign}"
        if sign in _KEPT_ESCAPED - {"<"}
        or (sign == "<" and token.string[token.end() : token.end() + 1] == "!")
        else sign
    )


def _of_shortcode(token: re.Match[str]) -> str:
    """The target of a reference, the label of a tab or a note."""
    text = token["shortcode"]
    if reference := _REFERENCE.match(text):
        return reference[1]
    if label := _LABELS.search(text):
        return _bold(label[1] or label[2] or "")
    name = text.strip().partition(" ")[0]
    quoted = _QUOTED.search(text) if name in _SHORTCODES else None
    return _bold(quoted[1] or quoted[2] or "") if quoted else _GONE


_WORDS: dict[str, Callable[[re.Match[str]], str]] = {
    "code": lambda token: token[0],
    "escaped": lambda token: token[0],
    "entity": _of_entity,
    **dict.fromkeys(("page", "words", "embed", "alias"), _of_page),
    "aside": lambda token: f" ({token['aside']})",
    "role": _of_role,
    "literal": lambda token: token["literal"][1:-1],
    "shortcode": _of_shortcode,
    "liquid": _of_liquid,
}
"""Name of a token's last group -> what stands for the token, where something does."""
