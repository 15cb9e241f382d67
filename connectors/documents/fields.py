"""Fields of a record from its front matter and head: status, successor, date and people, in any notation.

Keys are reduced to their letters: `Superseded-By` and `superseded_by` are `supersededby`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter
from typing import Any

from connectors.documents.headings import Heading, code_lines, letters, names_of
from connectors.documents.values import parse_day, scalar_text

# Keys by their letters, the most reliable first.
STATUS = (
    "status", "decisionstatus", "adrstatus", "rfcstatus", "state", "stand", "statut", "état", "estado", "durum",
    "situação", "situacao", "stato", "статус", "状态", "狀態", "状態", "ステータス", "stage",
)  # fmt: skip
SUCCESSOR = (
    "supersededby", "supercededby", "superseededby", "replacedby", "replacedwith", "obsoletedby", "ersetztdurch",
    "abgelöstdurch", "remplacépar", "remplacéepar", "reemplazadopor", "reemplazadapor", "sustituidopor",
    "sustituidapor", "substituídopor", "substituídapor", "substituidopor", "sostituitoda", "sostituitada",
    "vervangendoor",
)  # fmt: skip
DATE = (
    "decidedat", "decidedon", "decided", "decisiondate", "dateofdecision", "datedecided", "entscheidungsdatum",
    "date", "datum", "fecha", "data", "tarih", "дата", "日期", "日付",
)  # fmt: skip
DECIDERS = (
    "deciders", "decider", "decisionmakers", "decisionmaker", "decidedby", "approvers", "approver", "approvedby",
    "entscheider", "décideurs", "décisionnaires", "decisores", "decididopor", "kararvericiler", "besluitvormers",
)  # fmt: skip
AUTHORS = (
    "authors", "author", "owners", "owner", "autoren", "autor", "auteurs", "auteur", "autores", "yazar",
)  # fmt: skip
KEYS = frozenset((*STATUS, *SUCCESSOR, *DATE, *DECIDERS, *AUTHORS))

HEAD_LINES = 60
LIST_LINES = 12
MAX_LINE = 500
"""Most characters of a line that are searched; a longer one is cut."""
_FIELD = re.compile(r"[^\w|#]*([^\W\d_][\w ()/-]{1,24}?)[*_`]*(?:\s*[:：=]|\s+[–—-]\s)[*_`]*(.*)")
_KEY_ALONE = re.compile(r"(\s*[*_]{2})?([^\W\d_][\w ]{1,24})(?(1)[*_]{2}\s*)$")
_HEADING_FIELD = re.compile(r"[^\w]*([^\W\d_][\w ()]{1,24}?)\s*(?:[:：]|\s[–—-]\s)\s*(.+)")
_RULE = re.compile(r"[\s|:-]*--[\s|:-]*$")
_NESTED_ITEM = re.compile(r"\s+[-*+]\s+(.*)")
_UNTICKED = re.compile(r"\s*[-*+]\s+\[ \]")
_BADGE = re.compile(
    r"(?:badge/|!\[|alt=[\"'])(?:(?:adr(?:%20|[ _-]))?status(?:%20|[\s:_/-])+|adr[/-])((?:\w|%20| |--)+)",
    re.IGNORECASE,
)
_BADGE_OF_STATUS = re.compile(rf"{_BADGE.pattern}|badge/-?((?:(?!-)\w|%20|--)+)[-/][a-z]+\b", re.IGNORECASE)
"""Badges below a heading `Status`, which need no label."""
_MARKUP = (
    (re.compile(r"<!--.*?(?:-->|\Z)|~~[^~\n]+~~", re.DOTALL), ""),
    (re.compile(r"\s*</t[dh]>\s*", re.IGNORECASE), "|"),
    (re.compile(r"<tr\b[^<>]*>\s*", re.IGNORECASE), "\n|"),
    (re.compile(r"<br\s*/?>", re.IGNORECASE), ", "),
    (re.compile(r"</?[a-z][^<>@]*>", re.IGNORECASE), ""),
)


@dataclass(frozen=True, kw_only=True)
class RecordFields:
    """Values by key, the lines of the head, and the lines of the section `Status`."""

    values: Mapping[str, Sequence[str]]
    head: Sequence[str]
    history: Sequence[str]

    def values_of(self, keys: Sequence[str]) -> list[str]:
        """The values of several keys, in the order of the keys."""
        return [value for key in keys for value in self.values.get(key, ())]


def record_fields(front_matter: Mapping[str, Any], text: str, headings: Sequence[Heading]) -> RecordFields:
    """Fields of a record: of the front matter, of tables, lines and badges in the head, of headings and sections."""
    lines, marks = text.split("\n"), code_lines(text)
    clean = [line[:MAX_LINE] * (not mark) for line, mark in zip(lines, marks, strict=True)]
    below_title = (heading.line for heading in headings[1:] if heading.level > 1)
    source = clean[: min(next(below_title, len(clean)), HEAD_LINES)]
    head = _plain(source)
    pairs = [*front_matter.items(), *_fields(head), ("status", _badges(_BADGE, source))]
    history: list[str] = []
    ends = [*map(attrgetter("line"), headings), len(clean)][1:]
    for heading, end in zip(headings, ends, strict=True):
        inline = _HEADING_FIELD.match(heading.text)
        name = next(filter(KEYS.__contains__, names_of(heading.text)), "")
        below = clean[heading.line + 1 : end][:HEAD_LINES]
        if inline and letters(inline[1]) in KEYS:
            pairs.append((inline[1], inline[2]))
        elif name in STATUS:
            history = history or [*_plain(below), *_badges(_BADGE_OF_STATUS, below)]
        elif name:
            pairs.append((name, [line.strip(" -*+>") for line in _plain(below)]))
    return RecordFields(values=_values(pairs), head=head, history=history)


def _values(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[str]]:
    """Texts by key, reduced to its letters; only of `KEYS`."""
    values: defaultdict[str, list[str]] = defaultdict(list)
    for key, value in pairs:
        texts = map(scalar_text, value if isinstance(value, list | tuple) else [value])
        if (name := letters(key)) in KEYS:
            values[name] += (text[:MAX_LINE] for text in texts if text)
    return values


def _badges(pattern: re.Pattern[str], lines: Sequence[str]) -> list[str]:
    texts = (next(filter(None, match.groups())) for match in pattern.finditer("\n".join(lines)))
    return [re.sub("%20|_", " ", text).replace("--", "-") for text in texts]


def _fields(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys and values from tables and from lines such as `* Status: accepted`."""
    for index, line in enumerate(lines):
        cells = _cells(line)
        below = lines[index + 1 : index + 1 + LIST_LINES]
        if any(map(_RULE.match, below[:1])) and len(cells) > 1:
            yield from _columns(cells, below[1:])
        elif line.lstrip().startswith("|"):
            yield from _pairs(cells)
        else:
            yield from _line_fields(line, cells if len(cells) > 1 else re.split("[·•]", line), below)


def _line_fields(line: str, pieces: Sequence[str], below: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Fields of a line, one or one per piece; a key without a value takes the list below it."""
    if key_line := _KEY_ALONE.match(line):
        if key_line[1] or _is_definition(below):
            yield key_line[2], _status_below(key_line[2], below)
        return
    matches = [*map(_FIELD.match, pieces)]
    for match in filter(None, matches if all(matches) else [_FIELD.match(line)]):
        key, value = match[1], match[2].strip()
        listed = ", ".join(item[1] for item in map(_NESTED_ITEM.match, below) if item)
        yield key, value or listed or _status_below(key, below)


def _columns(cells: Sequence[str], below: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of a table with a head row: of its first row, or of the latest row if all rows have days."""
    rows: list[str] = []
    for line in below:
        if "|" not in line:
            break
        rows.append(line)
    if len(cells) == 2 and letters(cells[-1]) not in KEYS:  # noqa: PLR2004 - the head may be a pair like the rows below
        yield from _pairs(cells)
        if letters(cells[0]) not in STATUS:
            return
    if rows:
        latest = max(reversed(rows), key=parse_day) if all(map(parse_day, rows)) else rows[0]
        yield from zip(cells, _cells(latest), strict=False)


def _pairs(cells: Sequence[str]) -> Iterator[tuple[str, str]]:
    return filter(lambda pair: letters(pair[1]) not in KEYS, pairwise(cells))


def _cells(line: str) -> list[str]:
    return line.strip().removeprefix("|").removesuffix("|").split("|")


def _is_definition(below: Sequence[str]) -> bool:
    return bool(below) and below[0].lstrip().startswith((": ", ":\t"))


def _status_below(key: str, below: Sequence[str]) -> str:
    """The status below a line with its key only, directly or after one blank line."""
    text = next(filter(str.strip, below[:2]), "") if letters(key) in STATUS else ""
    return "" if _FIELD.match(text.lstrip(": ")) or text.startswith("#") else text.lstrip(" \t:-*+>")


def _plain(lines: Sequence[str]) -> list[str]:
    text = "\n".join(lines)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.split("\n")
