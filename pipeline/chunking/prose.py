"""What of a document is meant to be read: licences, comments, markup and leftovers of forms go before it is cut.

Read line by line, like the scanner of blocks: every pattern stops at the line's end or at the next mark of its kind,
so that the time grows with the text whatever the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from operator import itemgetter

_GONE = "\0"
"""Stands where markup was; no text that a database keeps has it."""

_BLANK = f"{_GONE} \t\r\n"

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
"""What ends a comment, or code in other markup than Markdown's."""
_FENCED = "~~~~~~\n"
_ENDS = "\r\n"
_MARK = re.compile(r"\s*(?:>\s?)*(?:(?:[-*+•]|\d{1,3}[.)])(?:\s+(?:\[[ xX]\](?=\s|$))?|$))?")
"""What stands before the words of a line: quotation, item of a list, box."""

_WHERE = r"\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)|\[[^\[\]\n]*\]"
_MARKUP = re.compile(
    # The first sign by itself: most are none of these, and the rest is looked at only where one is.
    rf"""[`\[!<{{](?:(?<=`)(?P<code>`*[^`\n]*`+)
    |(?<=\[)!\[[^\[\]\n]*\](?:{_WHERE})\](?:{_WHERE})
    |(?<=!)\[(?P<alt>[^\[\]\n]*)\](?:{_WHERE})
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
_SAID = re.compile(r"""\b(?:text|title|caption)\s*=\s*"([^"]*)"|\bheading\s+"([^"]*)\"""")
_FEWEST_WORDS = 4
"""Of a picture's text; fewer name it and say nothing."""

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
"""A line of nothing else. Browsers and builds stay: what shares them is often about the same."""
_LINKS = re.compile(r"\[?<?(?:https?|ftp)://\S+(?:\s+<?(?:https?|ftp)://\S+)*")
"""The same of links."""
_NAMED = re.compile(r"(?<=[/=])(?:[A-Z][A-Z0-9]+(?:-\d+)+|GHSA(?:-[0-9a-z]{4}){3})(?=[/?#&\])>\s]|\Z)")
"""What a link names: a work item, an advisory. It remains of a line of links."""
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
_MOST_LICENCE = 3000
"""Characters of one paragraph of a licence; a longer one has text of its own."""
_LABEL = re.compile(r"[*_]{0,3}[^\W\d_][^:|\n]{0,60}:[*_]{0,3}")
_MOST_LABEL = 5
"""Words."""
_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]")
_TEXT, _FENCED_TEXT = 7, 8
"""Deeper than any heading."""

Line = tuple[str, bool]
"""With its end, and whether it is code."""


def prose_of(text: str) -> str:
    """The text as it is to be cut: code as it stands, everything else without what nobody reads.

    Code of other markup comes fenced. What is never closed, be it a comment or code, is text. Bare links go unless
    there is nothing else: "see this advisory" is often all that a work item says.
    """
    prose = _prose(text, links=False)
    told = (line for line in prose.split("\n") if not _HEADING.match(line))
    return prose if "://" not in text or any(map(str.strip, told)) else _prose(text, links=True)


def _prose(text: str, *, links: bool) -> str:
    lines: list[Line] = []
    for verbatim, group in groupby(_Lines(text).read(), key=itemgetter(1)):
        run = list(group)
        lines += run if verbatim else _read("".join(line for line, _ in run), links=links)
    return "".join(line for line, _ in _without_empty_parts(_without_licence(lines))).replace(_GONE, "")


def is_label(text: str) -> bool:
    """True for a few words that announce what is to follow: `Steps to reproduce:`."""
    return bool(_LABEL.fullmatch(text)) and len(text.split()) <= _MOST_LABEL


class _Lines:
    """One pass over a text; tells code from the rest, and takes comments out of the rest."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._plain_ends = "\r" not in text
        self._at = 0
        self._open: set[str] = set()
        """What has no end in the rest of the text."""

    def read(self) -> Iterator[Line]:
        """All lines."""
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
        """The end of something that is open at a place."""
        found = None if name in self._open else _CLOSERS[name].search(self._text, at)
        if not found:
            self._open.add(name)
        return found

    def _code(self, begin: int, end: int) -> list[Line]:
        """A line with code that ends on it, or all code that goes on, after the line up to there; else none."""
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
        """A line, with what follows a comment that ends on a later one."""
        text, parts, ticks = self._text, list[str](), 0
        while "comment" not in self._open and (begin := text.find("<!--", at, end)) >= 0:
            ticks += text.count("`", at, begin)
            quoted = ticks % 2 == 1
            close = None if quoted else self._closed("comment", begin + 4)
            parts += [text[at:begin], _GONE] if close else [text[at : begin + 4]]
            at = close.end() if close else begin + 4
            end = self._end(at) if at > end else end
        self._at = end
        return "".join(parts) + text[at:end]


def _read(text: str, *, links: bool) -> Iterator[Line]:
    """The lines of a text without code; of one that is left out `_GONE` remains."""
    text = _LINE_MARKUP.sub(lambda found: _GONE + (found["note"] or ""), text)
    lines = list(StringIO(_MARKUP.sub(_words, text), newline=""))
    above = ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        kept = _kept(line, above, below, links=links)
        above = kept.strip(_BLANK)
        yield kept, False


def _kept(line: str, above: str, below: str, *, links: bool) -> str:
    bare = line.replace(_GONE, "").strip()
    core = _MARK.sub("", bare, count=1).strip("*_ ")
    if _GONE in line and "|" not in bare and not any(map(str.isalnum, core)):
        return f"{_GONE}\n"
    link = "://" in core and _LINKS.fullmatch(core)
    noise = not core or NOISE.fullmatch(core) or (link and not links)
    if bare.strip(">") and noise and not _goes_on(above, core, below.strip()):
        named = dict.fromkeys(_NAMED.findall(core)) if link else ()
        return f"{', '.join(named)}.\n" if named else _GONE
    return line.lstrip(f"{_GONE} ") if line.startswith(_GONE) else line


def _goes_on(above: str, core: str, below: str) -> bool:
    """True for the underline of a heading, and for a link in the middle of a sentence that was wrapped."""
    if _UNDERLINE.fullmatch(core):
        return bool(above)
    if not _LINK.match(core) or _LINK.match(below):
        return False
    return above[-1:].isalnum() or above.endswith((",", "(")) or below[:1].islower()


def _words(match: re.Match[str]) -> str:
    """What remains of markup: its words, if it has any."""
    if match["code"]:
        return match[0]
    if match["shortcode"]:
        return _GONE + _quoted(_SAID, match["shortcode"])
    alt = (match["alt"] or _quoted(_ALT, match["img"] or "")).strip()
    return f"{_GONE}{alt}" if len(alt.split()) >= _FEWEST_WORDS else _GONE


def _quoted(attribute: re.Pattern[str], markup: str) -> str:
    """The value of an attribute in either kind of quotes; empty if it has none."""
    found = attribute.search(markup)
    return (found[1] or found[2] or "") if found else ""


def _without_licence(lines: Sequence[Line]) -> Iterator[Line]:
    """Paragraphs of licences go as long as nothing but them and headings has been seen."""
    looked = 0
    for (verbatim, filled), run in groupby(lines, key=lambda line: (line[1], bool(line[0].strip(_BLANK)))):
        if verbatim:
            break
        paragraph: Sequence[Line] = list(run)
        looked += len(paragraph)
        if filled:
            paragraph = _own_lines(paragraph)
        yield from paragraph or [(_GONE, False)]
        if filled and any(not _HEADING.match(line) for line, _ in paragraph):
            break
    yield from lines[looked:]


def _own_lines(paragraph: Sequence[Line]) -> Sequence[Line]:
    """Those of no licence; of one below a heading the heading remains."""
    own = [line for line in paragraph if not _COPYRIGHT.fullmatch(line[0].strip())]
    whole = " ".join(line.strip(" \t\r\n#*;/-") for line, _ in own)
    if len(whole) >= _MOST_LICENCE or not _LICENCE.search(whole):
        return own
    titled = bool(own) and bool(_HEADING.match(own[0][0])) and not all(s.startswith("#") for s, _ in own)
    return own[:1] if titled else []


def _without_empty_parts(lines: Iterable[Line]) -> Iterable[Line]:
    """Labels with nothing below go, and headings below which nothing is left; a title stays."""
    kept: list[Line] = []
    below, indent, gone = 0, -1, False
    """What comes next: the level of a heading, of text, 0 for the end; the place of a label."""
    for line, level, own in reversed(list(_levels(lines))):
        column = _label_place(line) if level == _TEXT else -1
        label = column >= 0 and (below <= own or 0 <= indent <= column)
        if level == 0:
            gone |= _GONE in line
            kept.append((line, False))
        elif label or (gone and max(below, 2) <= level < _TEXT):
            gone = True
        else:
            kept.append((line, False))
            below, indent, gone = level, column, False
    return reversed(kept)


def _levels(lines: Iterable[Line]) -> Iterator[tuple[str, int, int]]:
    """Each line with its level, 0 of a blank one, and the level of the heading above it."""
    above = 0
    for line, verbatim in lines:
        level = _FENCED_TEXT if verbatim else _TEXT if line.strip(_BLANK) else 0
        if not verbatim and (heading := _HEADING.match(line)):
            level = above = len(heading[1])
        yield line, level, above


def _label_place(line: str) -> int:
    """How deep a label stands, a plain one deeper than a bold one; -1 for any other line."""
    if ":" not in line:
        return -1
    bare = line.strip(_BLANK)
    label = _MARK.sub("", bare, count=1)
    return 2 * (len(line) - len(line.lstrip())) + (label[0] not in "*_") if is_label(label) else -1
