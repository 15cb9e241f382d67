"""Removes licences, comments, markup and empty form fields from a document before it is cut.

Reads line by line, like the scanner of blocks: every pattern stops at the line's end or at the next mark of its kind,
so that the time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from operator import itemgetter

_REMOVED = "\0"
"""Marks the place of removed markup; PostgreSQL stores no text with this character."""

_BLANK = f"{_REMOVED} \t\r\n"

_LINE_END = re.compile(r"\r\n?|\n")
_FENCE = re.compile(r"[ \t]*(?:>[ \t]?)*(?:[-*+][ \t]+)?(`{3,}(?=[^`]*$)|~{3,})")
_CODE = re.compile(
    r"\{(code|noformat)(?::[^{}\n]*)?\}|<(pre)\b[^<>\n]*>|\{\{[<%]\s*(highlight)\b[^{}\n]*\}\}", re.IGNORECASE
)
_CLOSERS = {
    "comment": re.compile("-->"),
    "code": re.compile(r"\{code\}", re.IGNORECASE),
    "noformat": re.compile(r"\{noformat\}", re.IGNORECASE),
    "pre": re.compile(r"</pre>", re.IGNORECASE),
    "highlight": re.compile(r"\{\{[<%]\s*/\s*highlight\s*[%>]\}\}", re.IGNORECASE),
}
"""End of a comment, or of code in other markup than Markdown."""
_FENCED = "~~~~~~\n"
_ENDS = "\r\n"
_MARK = re.compile(r"\s*(?:>\s?)*(?:(?:[-*+•]|\d{1,3}[.)])(?:\s+(?:\[[ xX]\](?=\s|$))?|$))?")
"""Marks before the words of a line: quotation, list item, check box."""

_LINK_TARGET = r"\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|\[[^\[\]\n]*\]"
_MARKUP = re.compile(
    # The first character alone: the alternatives are tried only where it matches, which is rare.
    rf"""[`\[!<{{](?:(?<=`)(?P<code>`*[^`\n]*`+)
    |(?<=\[)!\[[^\[\]\n]*\](?:{_LINK_TARGET})\](?:{_LINK_TARGET})
    |(?<=!)\[(?P<alt>[^\[\]\n]*)\](?:{_LINK_TARGET})
    |(?<=!)(?=\S)[^!\s|]*\.(?:bmp|gif|jpe?g|png|svg|webp)(?:\|[^!\n]*)?!
    |(?<=<)img\b(?P<img>[^<>]*)>
    |(?<=\{{)\{{(?P<shortcode>[<%][^{{}}\n]*)[%>]\}}\}}|(?<=\{{)%[^{{}}\n]*%\}}
    |(?<=\{{)(?:anchor|color|panel|quote|toc)(?::[^{{}}\n]*)?\}})""",
    re.VERBOSE | re.IGNORECASE,
)
_LINE_MARKUP = re.compile(
    r"""^(?=[ \t]*[{:!?>hb])(?:[ \t]*\{:[^{}\n]*\}[ \t]*(?=\r?$)
    |[ \t]*:{3,}[ \t]*\w*(?:\[(?P<note>[^\[\]\n]*)\])?|[ \t]*(?:!!!|\?\?\?)\+?[ \t]+\w+
    |[ \t]*(?:>[ \t]?)+\[!\w+\][-+]?|[ \t]*(?:h[1-6]|bq)\.(?=\s))""",
    re.VERBOSE | re.MULTILINE | re.IGNORECASE,
)
"""At the start of a line."""
_ALT = re.compile(r"""\balt\s*=\s*(?:"([^"<>]*)"|'([^'<>]*)')""", re.IGNORECASE)
_SHORTCODE_TEXT = re.compile(r"""\b(?:text|title|caption)\s*=\s*"([^"]*)"|\bheading\s+"([^"]*)\"""")
_MIN_ALT_WORDS = 4
"""Minimum words of a picture's text to keep it; fewer only name the picture."""

NOISE = re.compile(
    r"""[-=_*~\#+.^<>/\\ \t]{3,}|&nbsp;
    |(?:n/?a|tb[ad]|none|todo|no\ response|not\ applicable)\.?
    |\[[^\[\]]*\]\(\#[^()\s]*\)|\[?\[_?TOC_?\]\]?|\[[^\[\]]+\]:\s*<?data:.*
    |\+\+\+\ .{1,60}\bclone\ of\ .*|(?:this\ bug|bug\ \d+)\ has\ been\ marked\ as\ a\ duplicate\ of\ .{1,60}
    |from\ bugzilla\ helper:?
    |reproducible\s*:\s*(?:always|sometimes|didn't\ try|couldn't\ reproduce|rarely|once|n/?a).{0,20}
    |created\ (?:an\ )?attachment\b.*|\(?in\ reply\ to\ .{1,80}?comment\ \#?\d+\)?
    |.{0,5}SPDX-(?:License-Identifier|FileCopyrightText)\s*:.*
    |import\s+(?:[\w*{][^'"]*\sfrom\s+)?['"][^'"]+['"];?|export\s+(?:default|const|function)\s.*[;{}]
    |(?-i:</?[A-Z]\w*(?:\s[^<>]*)?/?>)""",
    re.VERBOSE | re.IGNORECASE,
)
"""Lines without content. Browsers and build numbers stay, since documents that share them are often related."""
_LINKS = re.compile(r"\[?<?(?:https?|ftp)://\S+(?:\s+<?(?:https?|ftp)://\S+)*")
"""Lines of nothing but links."""
_NAMED = re.compile(r"(?<=[/=])(?:[A-Z][A-Z0-9]+(?:-\d+)+|GHSA(?:-[0-9a-z]{4}){3})(?=[/?#&\])>\s]|\Z)")
"""Identifier in a link, of a work item or an advisory; it replaces a line of links."""
_UNDERLINE = re.compile(r"-+|=+")
_LINK = re.compile(r"[\[<]*(?:https?|ftp)://|\[[^\[\]]*\]\(")
_COPYRIGHT = re.compile(
    r"\W*(?:copyright\W+(?:\(c\)|\d{4}|©)|\(c\)\s+\d{4}|©|all rights reserved).*", re.IGNORECASE
)
_LICENCE = re.compile(
    r"licensed (?:to the .{1,60}? under one|under (?:the|a) .{1,60}? \(the [\"“]licen[sc]e)"
    r"|apache\.org/licenses/|unless required by applicable law or agreed"
    r"|you may (?:not use this file except|obtain a copy of the license)|see the license for the specific"
    r"|see the notice file distributed with|permission is hereby granted, free of charge"
    r"|the above copyright notice and this permission|the software is provided [\"“]?as is"
    r"|redistribution and use in source|redistributions (?:of source code|in binary form) must"
    r"|this software is provided by the copyright|this program is (?:free software|distributed in the hope)"
    r"|you should have received a copy of the gnu|this (?:work|document|file) is licensed under",
    re.IGNORECASE,
)
_MAX_LICENCE = 3000
"""Maximum characters of a licence paragraph; a longer one has other text as well."""
_LABEL = re.compile(r"[*_]{0,3}[^\W\d_][^:|\n]{0,60}:[*_]{0,3}")
_MAX_LABEL_WORDS = 5
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_TEXT, _FENCED_TEXT = 7, 8
"""Levels deeper than any heading."""

Line = tuple[str, bool]
"""(line with its end, True if it is code)"""


def prose_of(text: str) -> str:
    """The text to cut: code unchanged, other lines without licences, comments, markup and noise.

    Code in other markup is fenced. An unclosed comment or code block counts as text. Bare links are removed unless
    they are all there is: "see this advisory" is often the whole work item.
    """
    prose = _prose(text, links=False)
    body_lines = (line for line in prose.split("\n") if not _HEADING.match(line))
    return prose if "://" not in text or any(map(str.strip, body_lines)) else _prose(text, links=True)


def _prose(text: str, *, links: bool) -> str:
    lines: list[Line] = []
    for verbatim, group in groupby(_Lines(text).read(), key=itemgetter(1)):
        run = list(group)
        lines += run if verbatim else _read("".join(line for line, _ in run), links=links)
    return "".join(line for line, _ in _without_empty_sections(_without_licence(lines))).replace(_REMOVED, "")


def is_label(text: str) -> bool:
    """True for a short label that ends in a colon, such as `Steps to reproduce:`."""
    return bool(_LABEL.fullmatch(text)) and len(text.split()) <= _MAX_LABEL_WORDS


class _Lines:
    """One pass over a text that separates code from other lines and removes comments from those."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._plain_ends = "\r" not in text
        self._at = 0
        self._open: set[str] = set()
        """Names of `_CLOSERS` that do not occur in the rest of the text."""

    def read(self) -> Iterator[Line]:
        """Yield all lines."""
        fence = ""
        while self._at < len(self._text):
            begin, end = self._at, self._end(self._at)
            line = self._text[begin:end]
            self._at = end
            if fence:
                bare = line.strip(" \t\r\n>")
                fence = "" if bare.startswith(fence) and not bare.strip(fence[0]) else fence
                yield line, True
            elif ("```" in line or "~~~" in line) and (mark := _FENCE.match(line)):
                fence = mark[1]
                yield line, True
            elif ("{" in line or "<" in line) and (code := self._code(begin, end)):
                yield from code
            elif "<!--" in line:
                yield self._without_comments(begin, end), False
            else:
                yield line, False

    def _end(self, at: int) -> int:
        if self._plain_ends:
            return self._text.find("\n", at) + 1 or len(self._text)
        match = _LINE_END.search(self._text, at)
        return match.end() if match else len(self._text)

    def _closed(self, name: str, at: int) -> re.Match[str] | None:
        """The end of the comment or code of this name that is open at `at`; None if unclosed."""
        match = None if name in self._open else _CLOSERS[name].search(self._text, at)
        if not match:
            self._open.add(name)
        return match

    def _code(self, begin: int, end: int) -> list[Line]:
        """A line whose code ends on it, or the text before multi-line code and that code fenced; empty without code."""
        at = begin
        while start := _CODE.search(self._text, at, end):
            close = self._closed((start[1] or start[2] or start[3]).lower(), start.end())
            if not close:
                break
            at = close.end()
            if at > end:
                self._at = at
                code = self._text[start.end() : close.start()].strip(_ENDS)
                return [
                    (f"{self._text[begin : start.start()]}\n", False),
                    (f"{_FENCED}{code}\n{_FENCED}", True),
                ]
        return [(self._text[begin:end], True)] if at > begin else []

    def _without_comments(self, at: int, end: int) -> str:
        """A line without comments, continued after a comment that ends on a later line."""
        text, segments, ticks = self._text, list[str](), 0
        while "comment" not in self._open and (begin := text.find("<!--", at, end)) >= 0:
            ticks += text.count("`", at, begin)
            quoted = ticks % 2 == 1
            close = None if quoted else self._closed("comment", begin + 4)
            segments += [text[at:begin], _REMOVED] if close else [text[at : begin + 4]]
            at = close.end() if close else begin + 4
            end = self._end(at) if at > end else end
        self._at = end
        return "".join(segments) + text[at:end]


def _read(text: str, *, links: bool) -> Iterator[Line]:
    """The cleaned lines of a text without code; a removed line becomes `_REMOVED`."""
    text = _LINE_MARKUP.sub(lambda match: _REMOVED + (match["note"] or ""), text)
    lines = list(StringIO(_MARKUP.sub(_words, text), newline=""))
    above = ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        cleaned = _cleaned_line(line, above, below, links=links)
        above = cleaned.strip(_BLANK)
        yield cleaned, False


def _cleaned_line(line: str, above: str, below: str, *, links: bool) -> str:
    bare = line.replace(_REMOVED, "").strip()
    core = _MARK.sub("", bare, count=1).strip("*_ ")
    if _REMOVED in line and "|" not in bare and not any(map(str.isalnum, core)):
        return f"{_REMOVED}\n"
    link = "://" in core and _LINKS.fullmatch(core)
    noise = not core or NOISE.fullmatch(core) or (link and not links)
    if bare.strip(">") and noise and not _goes_on(above, core, below.strip()):
        named = dict.fromkeys(_NAMED.findall(core)) if link else ()
        return f"{', '.join(named)}.\n" if named else _REMOVED
    return line.lstrip(f"{_REMOVED} ") if line.startswith(_REMOVED) else line


def _goes_on(above: str, core: str, below: str) -> bool:
    """True for the underline of a heading, and for a link inside a wrapped sentence."""
    if _UNDERLINE.fullmatch(core):
        return bool(above)
    if not _LINK.match(core) or _LINK.match(below):
        return False
    return above[-1:].isalnum() or above.endswith((",", "(")) or below[:1].islower()


def _words(match: re.Match[str]) -> str:
    """The words of markup that a reader would see."""
    if match["code"]:
        return match[0]
    if match["shortcode"]:
        return _REMOVED + _quoted(_SHORTCODE_TEXT, match["shortcode"])
    alt = (match["alt"] or _quoted(_ALT, match["img"] or "")).strip()
    return f"{_REMOVED}{alt}" if len(alt.split()) >= _MIN_ALT_WORDS else _REMOVED


def _quoted(attribute: re.Pattern[str], markup: str) -> str:
    """The quoted value of an attribute; empty if missing."""
    match = attribute.search(markup)
    return (match[1] or match[2] or "") if match else ""


def _without_licence(lines: Sequence[Line]) -> Iterator[Line]:
    """Drop licence paragraphs at the start of a document, before any other paragraph."""
    looked = 0
    for (verbatim, filled), run in groupby(lines, key=lambda line: (line[1], bool(line[0].strip(_BLANK)))):
        if verbatim:
            break
        paragraph: Sequence[Line] = list(run)
        looked += len(paragraph)
        if filled:
            paragraph = _lines_without_licence(paragraph)
        yield from paragraph or [(_REMOVED, False)]
        if filled and any(not _HEADING.match(line) for line, _ in paragraph):
            break
    yield from lines[looked:]


def _lines_without_licence(paragraph: Sequence[Line]) -> Sequence[Line]:
    """The lines that belong to no licence; a heading above a licence stays."""
    other_lines = [line for line in paragraph if not _COPYRIGHT.fullmatch(line[0].strip())]
    whole = " ".join(line.strip(" \t\r\n#*;/-") for line, _ in other_lines)
    if len(whole) >= _MAX_LICENCE or not _LICENCE.search(whole):
        return other_lines
    titled = (
        bool(other_lines)
        and bool(_HEADING.match(other_lines[0][0]))
        and not all(s.startswith("#") for s, _ in other_lines)
    )
    return other_lines[:1] if titled else []


def _without_empty_sections(lines: Iterable[Line]) -> Iterable[Line]:
    """Drop labels without text below, and headings whose text was removed; a title stays."""
    kept_lines: list[Line] = []
    below, indent, removed_below = 0, -1, False
    # below: level of the next line that stays, 0 at the end; indent: column of the next label
    for line, level, heading_level in reversed(list(_levels(lines))):
        column = _label_place(line) if level == _TEXT else -1
        label = column >= 0 and (below <= heading_level or 0 <= indent <= column)
        if level == 0:
            removed_below |= _REMOVED in line
            kept_lines.append((line, False))
        elif label or (removed_below and max(below, 2) <= level < _TEXT):
            removed_below = True
        else:
            kept_lines.append((line, False))
            below, indent, removed_below = level, column, False
    return reversed(kept_lines)


def _levels(lines: Iterable[Line]) -> Iterator[tuple[str, int, int]]:
    """Yield each line with its level, 0 for a blank one, and the level of the heading above it."""
    above = 0
    for line, verbatim in lines:
        level = _FENCED_TEXT if verbatim else _TEXT if line.strip(_BLANK) else 0
        if not verbatim and (heading := _HEADING.match(line)):
            level = above = len(heading[1])
        yield line, level, above


def _label_place(line: str) -> int:
    """Indentation of a label, a plain one counted deeper than a bold one; -1 for other lines."""
    if ":" not in line:
        return -1
    bare = line.strip(_BLANK)
    label = _MARK.sub("", bare, count=1)
    return 2 * (len(line) - len(line.lstrip())) + (label[0] not in "*_") if is_label(label) else -1
