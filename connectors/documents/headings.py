"""Headings, titles and code lines of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from pipeline.documents.plain_text import LINK_OR_BRACKETS, plain_words

DECISION = frozenset(
    {
        "decision", "decisions", "decisionoutcome", "thedecision", "entscheidung", "ergebnisderentscheidung",
        "entscheidungsergebnis", "décision", "résultatdeladécision", "decisión", "ladecisión", "resultadodeladecisión",
        "decisão", "resultadodadecisão", "decisione", "esitodelladecisione", "beslissing", "besluit", "karar",
        "alınankarar", "решение", "决策", "決策", "决定", "決定", "决策结果", "決定事項",
    }
)  # fmt: skip
AROUND = frozenset(
    {
        "status", "context", "contextandproblemstatement", "background", "decisiondrivers", "consideredoptions",
        "alternatives", "alternativesconsidered", "rationale", "justification", "reasoning", "consequences",
        "implications", "kontext", "kontextundproblemstellung", "ausgangslage", "betrachteteoptionen", "alternativen",
        "begründung", "konsequenzen", "auswirkungen", "statut", "contexte", "contexteeténoncéduproblème",
        "optionsenvisagées", "optionsconsidérées", "conséquences", "estado", "contexto",
        "contextoyplanteamientodelproblema", "opcionesconsideradas", "alternativasconsideradas", "alternativas",
        "justificación", "consecuencias", "situação", "contextoedescriçãodoproblema", "opçõesconsideradas",
        "justificativa", "consequências", "stato", "contesto", "conseguenze", "alternative", "overwogenopties",
        "gevolgen", "durum", "bağlam", "gerekçe", "sonuçlar", "alternatifler", "değerlendirilenseçenekler",
        "değerlendirilenalternatifler", "статус", "контекст", "обоснование", "последствия", "альтернативы", "状态",
        "狀態", "背景", "上下文", "理由", "后果", "影响", "備選方案", "备选方案", "ステータス", "状態", "コンテキスト",
        "文脈", "結果", "影響", "代替案", "検討した選択肢",
    }
)  # fmt: skip
"""Headings of the templates of MADR, Nygard and others; with a heading of DECISION, two of these make a record."""
SECTIONS = DECISION | AROUND | {
    "summary", "executivesummary", "abstract", "tldr", "motivation", "proposal", "zusammenfassung", "résumé", "resumen",
    "resumo", "özet",
}  # fmt: skip
"""Names of sections, reduced to their letters."""

FIRST_SECTIONS = frozenset(
    {
        "about", "changelog", "contents", "features", "getstarted", "gettingstarted", "goals", "inhalt", "install",
        "installation", "introduction", "overview", "prerequisites", "problem", "problemstatement", "problemstatements",
        "purpose", "quickstart", "requirements", "scope", "setup", "tableofcontents", "toc", "usage", "übersicht",
    }
)  # fmt: skip
"""Names of first sections in texts whose title is not a heading, reduced to their letters."""
FEWEST_SECTIONS = 2
"""Fewest headings of one level with names of sections that show that none is the title."""
_WRITTEN_NAME = re.compile(r"[^\x21-\x7f]")
"""Characters that only people put into file names: a blank, or a letter of another alphabet."""
_NAME_OF_NOTE = re.compile(r"(?!(?:Home|Index|Readme)$)[A-Z][a-z]+|\d{4}-\d\d-\d\d")
_ATX = re.compile(r" {0,3}(#{1,6})((?:[ \t]+.*)?)$")
_DEEPER = re.compile(r"( {0,3})(#{1,6})(?=[ \t]|$)")
_CLOSING = re.compile(r"(?:^|[ \t]+)#+[ \t]*$")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_HEADING_STARTS = frozenset("#=-")
_FENCE = re.compile(r"[ \t]*(`{3,}(?=[^`]*$)|~{3,})")
_NO_PARAGRAPH = re.compile(r" {4}|\t|\s*$| {0,3}(?:[-*+>|]|=+[ \t]*$|\d+[.)][ \t]|#{1,6}(?:[ \t]|$))")


@dataclass(frozen=True, kw_only=True)
class Heading:
    """A heading of a text."""

    level: int
    source: str
    """The heading as written, without its own marks."""
    line: int
    """Index of the heading's last line, from 0."""

    @cached_property
    def text(self) -> str:
        """Text of the heading, without emphasis, code marks, links and brackets."""
        return plain_text(self.source)

    @property
    def title(self) -> str:
        """Text of the heading with brackets that are no link, such as `fill(value[, offset])`."""
        return plain_words(self.source)


@lru_cache(maxsize=1)
def code_lines(text: str) -> Sequence[bool]:
    """Flags, one per line: true within a fenced code block or an HTML comment.

    Cached for one text, because each document needs it several times in a row.
    """
    lines = text.split("\n")
    if not any(map(text.__contains__, ("```", "~~~", "<!--"))):
        return [False] * len(lines)
    return _in_code(lines)


def _in_code(lines: Sequence[str]) -> list[bool]:
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
    lines, flags = text.split("\n"), code_lines(text)
    for index, line in enumerate(lines):
        # Most lines begin with none of these; testing one character is cheaper than two patterns.
        if flags[index] or line.lstrip(" ")[:1] not in _HEADING_STARTS:
            continue
        atx = _ATX.match(line)
        if atx:
            yield Heading(level=len(atx[1]), source=_CLOSING.sub("", atx[2]), line=index)
        elif index and not flags[index - 1] and (under := _UNDERLINE.match(line)):
            above = lines[index - 1]
            if not _NO_PARAGRAPH.match(above):
                yield Heading(level=1 if under[1][0] == "=" else 2, source=above, line=index)


def title_of(headings: Sequence[Heading], *, text: str = "", file_stem: str = "") -> str:
    """The title: the first heading of level 1, else the first of all; empty if there is none or it names a section.

    A file name that reads like a title goes before headings, unless exactly one is of level 1: headings of notes are
    sections. So does a capitalized word, or a day, if no heading is of level 1.

    Args:
        headings: of the text, in order.
        text: empty if only the headings are known.
        file_stem: the file's name without its ending; empty if there is no file.
    """
    named = [heading for heading in headings if heading.text]
    first = min(named, key=lambda heading: heading.level > 1, default=None)
    if first is None:
        return ""
    top, same_level = first.level == 1, [heading for heading in named if heading.level == first.level]
    if top and len(same_level) == 1:
        return first.title
    if _WRITTEN_NAME.search(file_stem) or (not top and _NAME_OF_NOTE.fullmatch(file_stem)):
        return file_stem
    above = "".join(text.split("\n")[: max(0, first.line - 1)]).strip()
    return "" if _is_section(same_level, below_text=bool(above)) else first.title


def _is_section(same_level: Sequence[Heading], *, below_text: bool) -> bool:
    """Whether the first heading of a level names a section, so that it is not the title."""
    names, top = [letters(heading.text) for heading in same_level], same_level[0].level == 1
    has_sections = sum(map(SECTIONS.__contains__, names)) >= FEWEST_SECTIONS
    if names[0] in FIRST_SECTIONS or (names[0] in SECTIONS and (has_sections or not top)):
        return True
    return not top and below_text and len(names) > 1


def plain_text(text: str) -> str:
    """Text without emphasis, code marks and links, as of `plain_words`, and without other brackets."""
    return plain_words(text, link=LINK_OR_BRACKETS)


def nested(text: str, depth: int) -> str:
    """Markdown with its headings `depth` levels deeper, at most 6."""
    if "#" not in text:
        return text
    lines = text.split("\n")
    for index, in_code in enumerate(code_lines(text)):
        if not in_code and (match := _DEEPER.match(lines[index])):
            level = min(6, len(match[2]) + depth)
            lines[index] = match[1] + "#" * level + lines[index][match.end() :]
    return "\n".join(lines)


def letters(text: str) -> str:
    """The letters of a text in lower case: `Status (ADR)` is `statusadr`."""
    return "".join(filter(str.isalpha, text.casefold()))


def names_of(text: str) -> tuple[str, ...]:
    """Letters of a heading, whole and up to a bracket or a slash: `1. Karar (Decision)` is `karar` as well."""
    return tuple(
        dict.fromkeys((letters(text), letters(text.split("(", 1)[0]), letters(text.split("/", 1)[0])))
    )
