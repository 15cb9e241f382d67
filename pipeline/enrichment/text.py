"""Reading of document texts as words, sentences, and sections announced by headings."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from pipeline.chunking.prose import NOISE, is_label
from pipeline.documents import Chunk
from pipeline.documents.plain_text import without_controls

WORD = re.compile(r"[^\W_]+")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ies", "ers", "es", "ed", "er", "s", "e", "y")
_SHORTEST = 3
_STOP = frozenset(
    re.findall(
        r"\w+",
        """about after all also and any are been but can could did does for from had has have how into its may more must
    not our out shall should than that the their them then there these they this those was want were what when where
    which who why will with would you your
    aber als auch auf aus bei das dass dem den der des die durch ein eine einem einen einer eines für hat ich ihr im
    ist kann mit nach nicht oder sich sie sind soll und von war wenn werden wie wird zum zur
    aux avec car ces cette dans des doit elle est être les leur mais nous ont par pas pour que qui sans ses son sont
    sur une vous""",
    )
)


@lru_cache(maxsize=2_000)
def stems(text: str) -> frozenset[str]:
    """Stems of the meaningful words of a text."""
    words = (match.group().lower() for match in WORD.finditer(text))
    return frozenset(
        stem(word)
        for word in words
        if word not in _STOP and (len(word) >= _SHORTEST or any(c.isdigit() for c in word))
    )


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Beginning of a word that its usual forms share; for comparing and marking, never for ranking."""
    low = word.lower()
    for ending in _ENDINGS:
        if low.endswith(ending) and len(low) - len(ending) >= _SHORTEST:
            return low[: -len(ending)]
    return low


def share_covered(words: AbstractSet[str], whole: AbstractSet[str]) -> float:
    """Share of `words` that `whole` contains, 0 to 1; 1 without words."""
    return len(words & whole) / len(words) if words else 1.0


def word_similarity(one: AbstractSet[str], other: AbstractSet[str]) -> float:
    """Similarity of two sets of words, 0 to 1 (cosine)."""
    return float(len(one & other) / (len(one) * len(other)) ** 0.5) if one and other else 0.0


_NO_REASON = stems(
    "add allow always before being change changed each every get instead keep let make making need needs never new now"
    " one only other per same see set show take than two use used user users using via want way while within without"
)
"""Words of most items, which are no reason for showing a document."""


def shared_words(
    title: str, description: str, other_title: str, other_content: str, *, among: AbstractSet[str]
) -> list[str]:
    """Words of an item, in its spelling, that a document also has; those of both titles first, then long ones.

    `among` are the stems that count.
    """
    of_title, of_other = stems(title), stems(other_title)
    document_words = (of_other | stems(other_content)) & among
    item_words = {stem(word): word for word in reversed(WORD.findall(f"{title} {description}"))}
    shared = [key for key in item_words if key in document_words and key not in _NO_REASON]
    shared.sort(key=lambda key: (key not in of_title, key not in of_other, -len(key)))
    return [item_words[key] for key in shared]


def single_line(text: str) -> str:
    """The text on one line with single blanks."""
    return " ".join(text.split())


def printable(text: str) -> str:
    """The text on one line, without control characters and changes of the writing direction."""
    return single_line(without_controls(text))


QUOTED = 200
"""Most characters of a quotation."""
CUT = "…"
"""Mark of a cut text."""
WITHOUT_BLANK = "。！？"
"""Ends of sentences that are not followed by a blank."""

_LINK = re.compile(
    r"!?\[([^\[\]]*)\](?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\[[^\[\]]*\])|\[([^\[\]|]+)\|[^\[\]|\s]+\]"
)
_URL = re.compile(r"<?(?:https?|ftp)://\S+")
_EMPHASIS = re.compile(
    r"(?<![\w*\\])(\*{1,3})(?=\S)([^*]+)(?<=[^\s\\])\1(?![\w*])|(?<!\w)(__(?=[^_]*\s)|_)(?=\S)([^_]+)(?<=\S)\3(?!\w)"
)
_TAG = re.compile(
    r"(?P<named>(?<=[\s(])</?(?!br)\w+>(?=[\s.,;:)]+[^\s<]))"
    r"|(?P<inline></?(?:a|b|code|em|font|i|kbd|small|span|strong|sub|sup|tt|u)\b(?:\s[^<>]*)?>)"
    r"|</?(?:big|blockquote|br|center|dd|details|div|dl|dt|figure|h[1-6]|hr|img|li|ol|p|section|summary|ul)\b"
    r"(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
"""HTML tags; not `List<String>`, and not the name in a sentence about the <div> element."""
_FOOTNOTE = re.compile(r"(?:^|(?<=[\w.,;:!?)\"'”’*]))\[\^[\w-]{1,40}\](?::\s)?")
_ANCHOR = re.compile(r"\s*\{#[^{}]*\}$")
"""Anchor that some site generators write after a heading."""
_NESTED = 2
"""Most levels of nested emphasis."""
_POINTING = stems(
    "see check docs documentation information details link links more read refer learn visit page here"
)
_FEWEST_WORDS = 2
"""Least words of a sentence beyond those of its links and references to them."""
_MACHINE = re.compile(
    r"\[(?:INFO|WARN(?:ING)?|ERROR|DEBUG|TRACE|FATAL)\]|\b(?:INFO|WARN|ERROR|DEBUG|TRACE|FATAL)\s+(?:[\w$]+(?:\.[\w$]+)+|\[)"
    r"|\{(?:code|noformat)\b|-{5,}|={5,}|\([\w$]+\.(?:java|py|js|ts|cs|go):\d+\)|\\[rnt]\b"
    r"|\w\"\s*:\s*[\[{\"\d]|[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|^(?:at\s+[\w$.]+\(|Caused by:|Exception in thread|Traceback \(|\W?(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d[:,.\d])"
    r"|^(?:\$|>>>|//|/\*|@@|\||</?[\w:-]+(?:\s[^<>]*)?>|`[^`]*`\W*$|[\w.-]+\s?=\s?\S+$)|\)\s*[;{]$|[{}]$"
    r"|^(?:import|package|public|private|protected|static|def|class|function|const|var|let|return)\s.*[;{]$"
    r"|^(?:[Uu]ser[- ]?[Aa]gent|Build ?(?:[Ii]d|[Ii]dentifier|naam))\s*:|(?:(?:^|\s)~?\w+(?:\.\w+)+){3}"
    r"|</?t(?:able|d|h|r)\b|<!--|\{\{[<%]|\{%|Mozilla/\d\.\d\s*\(|\[(?:insert|describe|enter|your)\b[^\[\]]*\](?!\()",
)
"""Marks of text by or for machines: log levels, stack frames, rulers, JSON, ids, names, rows, code, templates."""
_TITLE = re.compile(r"\*\*[^*:]{1,40}\*\*\W*")
"""A few bold words that are used as a heading."""
_RAW = re.compile(r"[^\s\u0250-\U0010ffff]{200}")
"""A run of characters that is too long for a word."""
_PROSE = 0.7
"""Least share of letters, digits and blanks in a sentence: tables and traces have fewer."""

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(.*?)[ \t#]*$")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+(?:\[[ xX]\]\s+)?")
_QUOTE = re.compile(r"\s*(?:>\s?)+")
_RULE = re.compile(r"\s*(?:[-*_]\s*){3,}$|[\s|:-]*-{3,}[\s|:-]*$")
_DEFINITION = re.compile(r" {0,3}\[(?!\^)[^\[\]\n]+\]:[ \t]*\S+(?:[ \t]+[\"'(].*)?$", re.MULTILINE)
"""Definition of a link by name; not a footnote (`[^1]: ..`)."""
_ENDS = re.compile(r"[.!?…][\"'”’»)\]*_]*\s+(?=[\"'“‘„«(\[*_]*[^\W_a-zß-öø-ÿ])|[。！？]")
_LONGEST_ABBREVIATION = 20
"""Characters at the end of a sentence that are searched for an abbreviation."""
_ABBREVIATED = re.compile(
    r"(?:^|[\s(\[„“\"'])(?:[A-Za-z]|[a-z]\.[a-zA-Z]|approx|bzw|ca|cf|dr|etc|evtl|fig|inkl|mr|mrs|no|nr|resp|st|vgl|vs|usw)\.$",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Sentence:
    """A sentence or list item of a chunk, without extra white space, links and emphasis."""

    text: str
    headings: tuple[str, ...] = ()
    """Headings above the sentence, from the outermost to the nearest."""
    ord: int = 0
    """Ordinal of the chunk."""
    item: bool = False
    """Whether it is a list item, or begins one."""
    quote: bool = False
    """Whether it is part of a quotation."""
    paragraph: int = 0
    """Number shared by the sentences of one paragraph or list item."""

    def has_of(self, words: frozenset[str]) -> float:
        """Share of these words, such as a query's, that the sentence has; 0 to 1."""
        return share_covered(words, stems(self.text))


def sentences_of(chunks: Sequence[Chunk]) -> list[Sentence]:
    """All sentences of prose in order, without markup; repetitions in overlapping chunks are left out."""
    sentences: list[Sentence] = []
    visited: set[tuple[tuple[str, ...], str]] = set()
    apart, chunk = 0, -1
    for paragraph, block in enumerate(_blocks(chunks), 1):
        for piece in split_sentences(block.text):
            sentence = replace(block, text=piece, paragraph=paragraph + apart)
            torn = False
            if sentences and block.ord != chunk:
                # If a chunk repeats the end of the previous one, its first sentence may be incomplete.
                torn = any(other.text.endswith(piece) for other in sentences[-8:])
                if not torn and piece.startswith(sentences[-1].text):
                    sentences.pop()
            chunk = block.ord
            if torn or (block.headings, piece) in visited:
                apart += 1  # its neighbours are no longer adjacent
            else:
                visited.add((block.headings, piece))
                sentences.append(sentence)
    return list(_prose(sentences))


def _prose(sentences: Sequence[Sentence]) -> Iterator[Sentence]:
    """Sentences of prose without markup; neighbours of a removed sentence are no longer one paragraph."""
    apart = 0
    for sentence in sentences:
        if is_prose(sentence.text):
            yield replace(sentence, text=without_marks(sentence.text), paragraph=sentence.paragraph + apart)
        else:
            apart += 1


def is_prose(text: str) -> bool:
    """Whether a sentence was written by a person for people; all quotations must pass.

    Log lines, table rows, links and lists of links, labels, code and empty forms are not prose.
    """
    words = without_marks(text)
    plain = sum(map(str.isalnum, words)) + words.count(" ")
    if plain < _PROSE * len(words.rstrip(".!?… ")) or not any(map(str.isalpha, words)):
        return False
    label = ":" in words[-4:] and is_label(words)
    if label or _TITLE.fullmatch(text) or NOISE.fullmatch(words) or _MACHINE.search(text):
        return False
    beside_links = _URL.sub(" ", _LINK.sub(" ", text))
    few = beside_links != text and len(stems(beside_links) - _POINTING) < _FEWEST_WORDS
    return not few and not _RAW.search(beside_links)


def without_marks(text: str) -> str:
    """Remove the markup of links, footnotes, emphasis and escapes, and tags unless the text quotes code."""
    line = _LINK.sub(lambda m: m[1] or m[2] or "", text)
    if "<" in line and "`" not in line:
        line = _TAG.sub(lambda m: m["named"] or ("" if m["inline"] else " "), line)
    if "[^" in line and "`" not in line:
        line = _FOOTNOTE.sub("", line)
    for _ in range(_NESTED if "*" in line or "_" in line else 0):
        line = _EMPHASIS.sub(lambda m: m[2] or m[4], line)
    return single_line(_unescaped(line))


def split_sentences(text: str) -> Iterator[str]:
    """Split a paragraph into sentences, each on one line; a table row is one sentence."""
    line = single_line(text)
    begin = 0
    for match in () if line.startswith("|") else _ENDS.finditer(line):
        end = line[max(begin, match.end() - _LONGEST_ABBREVIATION) : match.end()].strip()
        if not _ABBREVIATED.search(end):
            yield line[begin : match.end()].strip()
            begin = match.end()
    if rest := line[begin:].strip():
        yield rest


def truncated(text: str, length: int = QUOTED) -> str:
    """The text on one line, cut to `length` characters at the end of a sentence or word."""
    line = single_line(text)
    if len(line) <= length:
        return line
    end = 0
    for sentence in split_sentences(line):
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


@dataclass(frozen=True, kw_only=True)
class Passage:
    """An excerpt on one line, with the positions of the query's words."""

    text: str
    marks: Sequence[tuple[int, int]]
    """Start and end of each matching word, in order, not overlapping."""


_NOT_SHOWN = re.compile(
    r"<!--(?:[^-]|-(?!->))*(?:-->|\Z)|^#{1,6} "
    r"|^[ \t]*\.\. (?:_[^:\n]+:[ \t]*$|[\w-]+::)|^([=~^\"*+-])\1{2,}[ \t]*$"
    r"|^#?\[=*\[\.rst:|^#\]=*\]|:[A-Za-z][\w.+-]*(?::[\w.+-]+)*:(?=`)",
    re.MULTILINE,
)
"""Comments, and markup of Markdown and reStructuredText: headings, directives, roles, targets, title underlines."""
_FENCES = re.compile(r"^[ \t]*(?:`{3,}|~{3,})[^`\n]*$", re.MULTILINE)
_ESCAPED = re.compile(r"(?P<code>(?<!\\)`[^`\n]+`)|\\(?P<sign>[!-/:-@\[-`{-~])")


def passage(content: str, question: str, *, length: int) -> Passage:
    """The excerpt of at most `length` characters with the most different words of the query.

    White space becomes single blanks; comments, markup and addresses of links are left out; three dots mark cuts.
    """
    pieces = _FENCES.split(content)  # every second one is code
    pieces[::2] = map(_without_markup, pieces[::2])
    line, question_stems = single_line("\n".join(pieces)), stems(question)
    words = ((m.start(), m.end(), stem(m.group())) for m in WORD.finditer(line))
    hits = [word for word in words if word[2] in question_stems]
    if len(line) <= length:
        return Passage(text=line, marks=[(start, end) for start, end, _ in hits])
    room = length - 8
    begin = _richest(line, hits, room)
    end = min(begin + room, len(line))
    if end < len(line) and (blank := line.rfind(" ", begin + 1, end + 1)) > begin:
        end = blank
    head = "... " if begin else ""
    shift = len(head) - begin
    marks = [(s + shift, e + shift) for s, e, _ in hits if s >= begin and e <= end]
    return Passage(text=head + line[begin:end].rstrip() + (" ..." if end < len(line) else ""), marks=marks)


def _without_markup(prose: str) -> str:
    """Remove the markup of Markdown outside of code."""
    words = _LINK.sub(_words_of_link, _DEFINITION.sub("", _NOT_SHOWN.sub("", prose)))
    for _ in range(_NESTED if "*" in words or "_" in words else 0):
        words = _EMPHASIS.sub(lambda m: m[2] or m[4], words)
    return _unescaped(words)


def _unescaped(text: str) -> str:
    """Remove the backslash of escaped characters, except in quoted code."""
    return _ESCAPED.sub(lambda m: m["code"] or m["sign"], text)


def _words_of_link(link: re.Match[str]) -> str:
    """Text of a link; a call such as `handlers[name](event)` is left as it is."""
    before = link.string[link.start() - 1 : link.start()]
    called = before and (before.isalnum() or before in "_)]")
    return link[0] if called else link[1] or link[2] or ""


def _richest(line: str, hits: Sequence[tuple[int, int, str]], room: int) -> int:
    """Start of the window with the most different words: a few words before its first match, at a word's start."""
    best, richest = 0, 0
    for n, (start, _, _) in enumerate(hits):
        reach = start - min(start, room // 5) + room
        different = len({form for _, end, form in hits[n:] if end <= reach})
        if different > richest:
            best, richest = start, different
    begin = best - min(best, room // 5)
    if begin == 0 or begin + room >= len(line):
        begin = max(0, min(begin, len(line) - room))
    while 0 < begin < best and line[begin - 1] != " ":
        begin += 1
    return begin


def _blocks(chunks: Sequence[Chunk]) -> Iterator[Sentence]:
    """Paragraphs, list items, rows and quoted lines with their headings, each as one sentence."""
    stack: list[tuple[int, str]] = []
    for place, read_lines in _outside_code(chunks):
        lines: list[str] = []
        begun = _Line()
        for read in read_lines:
            if read.fresh:
                if block := "\n".join(lines).strip():
                    headings = tuple(name for _, name in stack)
                    yield Sentence(
                        text=block, headings=headings, ord=place, item=begun.item, quote=begun.quote
                    )
                lines, begun = [], read
            if read.level:
                stack = [one for one in stack if one[0] < read.level] + [(read.level, read.text)]
            elif read.text:
                lines.append(read.text)


def _outside_code(chunks: Sequence[Chunk]) -> Iterator[tuple[int, list[_Line]]]:
    """Ordinal and lines of each chunk, with an empty line instead of each code block and at the end."""
    fence, before = "", -1
    for chunk in sorted(chunks, key=lambda c: c.ord):
        fence = fence if chunk.ord == before + 1 else ""
        before = chunk.ord
        lines: list[_Line] = []
        quoted = False
        for line in [*chunk.content.split("\n"), ""]:
            mark = _FENCE.match(line)
            if not fence:
                read = _Line() if mark else _line(line)
                lines.append(read._replace(fresh=False) if quoted and read.quote and not read.item else read)
                quoted = read.quote and bool(read.text)
                fence = mark[1] if mark else ""
            elif mark and mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        yield chunk.ord, lines


class _Line(NamedTuple):
    """A line of Markdown and its kind."""

    text: str = ""
    fresh: bool = True
    """Whether it begins a new block."""
    item: bool = False
    quote: bool = False
    level: int = 0
    """Level of a heading; 0 for other lines."""


def _line(line: str) -> _Line:
    if not line.strip() or _RULE.match(line) or _DEFINITION.match(line):
        return _Line()
    if match := _HEADING.match(line):
        return _Line(without_marks(_ANCHOR.sub("", match[2])), level=len(match[1]))
    if match := _ITEM.match(line):
        return _Line(line[match.end() :], item=True)
    if match := _QUOTE.match(line):
        content = line[match.end() :]
        if _FENCE.match(content):
            return _Line()
        item = _ITEM.match(content)
        return _Line(content[item.end() :] if item else content, item=bool(item), quote=True)
    row = line.lstrip().startswith("|")
    return _Line(line.strip() if row else line, fresh=row)


def truncated_sentence(sentence: Sentence) -> Sentence:
    """The sentence cut to QUOTED characters."""
    return replace(sentence, text=truncated(sentence.text, QUOTED))


class Section(StrEnum):
    """Sections of a document that answers are made of."""

    LESSONS = "lessons"
    RESOLUTION = "resolution"
    OUTCOME = "outcome"
    NOTES = "notes"
    CRITERIA = "criteria"
    COMMENTS = "comments"
    DECISION = "decision"
    SUMMARY = "summary"
    STATUS = "status"
    REJECTION = "rejection"
    RATIONALE = "rationale"
    CONTEXT = "context"
    CONSTRAINTS = "constraints"
    CONSEQUENCES = "consequences"
    ELSEWHERE = "elsewhere"


HEADINGS: Mapping[Section, Sequence[str]] = {
    Section(name): names
    for name, names in tomllib.loads(
        files("pipeline.enrichment").joinpath("headings.toml").read_text(encoding="utf-8")
    ).items()
}
"""Section -> headings that announce it, without numbering and punctuation."""

_SECTION_NAMES = {name: section for section, names in HEADINGS.items() for name in names}
_LONGEST = 100
"""Most characters of a heading that announces a section."""
_NUMBERING = re.compile(r"^[\W\d_]+|[\W_]+$")
_AND = re.compile(r"\s*[/&]\s*| (?:and|und|et) ")
_LABEL = re.compile(r"[*_]{0,2}([^\W\d][\w' -]{2,24}?)[*_]{0,2}\s*:[*_]{0,2}\s+(?=\S)")


@lru_cache(maxsize=2_000)
def section_of(headings: tuple[str, ...]) -> Section | None:
    """The section that the nearest known heading announces; of several (`Decision and consequences`) the first.

    A summary counts only if no heading above it announces a section. None if no heading does.
    """
    summary = None
    for heading in reversed([heading for heading in headings if len(heading) <= _LONGEST]):
        name = _NUMBERING.sub("", heading.replace("’", "'")).casefold()
        names = [name] if name in _SECTION_NAMES else _AND.split(name)
        sections = [*map(_SECTION_NAMES.get, names)]
        if all(sections) and sections[0] is not Section.SUMMARY:
            return sections[0]
        summary = sections[0] if all(sections) else summary
    return summary


def by_section(sentences: Sequence[Sentence]) -> Mapping[Section | None, Sequence[Sentence]]:
    """Sentences by section: below its headings, or in a paragraph that begins with its name (`Fix: ..`).

    Missing sections are empty; the key None has the sentences outside of sections.
    """
    sections: defaultdict[Section | None, list[Sentence]] = defaultdict(list)
    labelled: dict[int, Section | None] = {}
    for s in sentences:
        if s.paragraph not in labelled:
            label = _LABEL.match(s.text)
            section = section_of((label[1],)) if label else None
            labelled[s.paragraph] = None if section is Section.SUMMARY else section
        sections[labelled[s.paragraph] or section_of(s.headings)].append(s)
    return sections
