"""Which documents are decisions, and what became of each decision."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from connectors.documents.headings import AROUND, DECISION, Heading, code_lines, letters, plain_text
from connectors.documents.options import DecisionRules, include_pattern
from connectors.documents.values import parse_day, scalar_text
from pipeline.documents import DECISION_STATUSES, DEFAULT_KIND, Kind, SourceType

__all__ = ["DecisionRules", "Evidence", "decision_facts", "is_decision", "kind_and_facts"]

# Keys by their letters, as front matter, tables, lines and headings have them; the surest first.
STATUS = ("status", "decisionstatus", "adrstatus", "state", "stand", "statut", "état")
SUCCESSOR = ("supersededby", "replacedby", "ersetztdurch", "abgelöstdurch", "remplacépar")
DATE = (
    "decidedat", "decidedon", "decided", "decisiondate", "dateofdecision", "datedecided", "entscheidungsdatum",
    "date", "datum",
)  # fmt: skip
DECIDERS = (
    "deciders", "decider", "decisionmakers", "decisionmaker", "decidedby", "approvers", "approver", "approvedby",
    "entscheider", "décideurs",
)  # fmt: skip
AUTHORS = ("authors", "author", "owners", "owner", "autoren", "autor", "auteurs", "auteur")
KEYS = frozenset((*STATUS, *SUCCESSOR, *DATE, *DECIDERS, *AUTHORS))

STATUS_WORDS = {word: status for status, words in DECISION_STATUSES.items() for word in words}
OUTDATED_STATUSES = ("superseded", "rejected", "deprecated")
NO_RECORDS = frozenset(
    {
        "readme", "index", "contributing", "changelog", "toc", "overview", "process", "decisionlog", "decisions", "adr",
        "adrs", "rfcs", "architecturedecisions", "architecturedecisionrecords", "decisionrecords",
    }
)  # fmt: skip
"""Names of pages about records, by their letters."""
HEAD_LINES = 60
MAX_LINE = 500
"""Of a line that is searched; a longer one is cut."""
MAX_SUCCESSOR = MAX_DECIDERS = 200
MAX_NAME = 50
_WORD = re.compile(
    r"(?:\b(?:not(?: yet)?|be|partially|partly|nicht)\s+)?\b(" + "|".join(STATUS_WORDS) + r")\b",
    re.IGNORECASE,
)
_LEADING = re.compile(r"\W*(?:\d{4}-\d\d-\d\d[\s:,\-–]*)?(?:status\b[\s:*_]*)?\W*$", re.IGNORECASE)
_FIELD = re.compile(r"[\s>*+_\-]*([^\W\d_][\w ()/-]{1,24}?)[*_]*\s*:[*_]*(.*)")
_SUCCESSOR = re.compile(
    r"(?<!partially )(?<!partly )\b(?:superseded|replaced|ersetzt|abgelöst|remplacée?)[ _-]+(?:by|durch|par)\b[\s:*]*"
    r"(.+?)(?:\s+(?:on|am|le)\s+[\d.\-/]+.*)?$",
    re.IGNORECASE,
)
_BADGE = re.compile(
    r"(?:badge/|!\[|alt=[\"'])(?:adr(?:%20|[ _-]))?status(?:%20|[\s:_-])+((?:\w|%20| |--)+)",
    re.IGNORECASE,
)
_MARKUP = (
    (re.compile(r"<!--.*?(?:-->|\Z)|~~[^~\n]+~~", re.DOTALL), ""),
    (re.compile(r"\s*</t[dh]>\s*", re.IGNORECASE), "|"),
    (re.compile(r"<tr\b[^<>]*>\s*", re.IGNORECASE), "\n|"),
    (re.compile(r"<br\s*/?>", re.IGNORECASE), ", "),
    (re.compile(r"</?[a-z][^<>@]*>", re.IGNORECASE), ""),
)
_ARROW = re.compile(r"->|=>|→|⇒")
_RULE = re.compile(r"[\s|:-]*--[\s|:-]*$")
_ITEM = re.compile(r"\s+[-*+]\s+(.*)")
_UNTICKED = re.compile(r"\s*[-*+]\s+\[ \]")
_PLACEHOLDER = re.compile(r"[\[{<][^\]}>]*[\]}>]$|\{[^{}]*(?:\}|$)")
_MAIL = re.compile(r"[<(]?[\w.+-]+@[\w-]+\.[\w.-]*\w[>)]?")
_BETWEEN_NAMES = re.compile(r"[,;&\n]|\s(?:and|und|et|/)\s")
_NUMBERED = re.compile(
    r"\d{1,5}(?!\d|-\d\d-\d\d)(?=[-_. ]|$)|(?:^|.*[-_ ])(?:adr|rfc|decision)[-_ ]?(?:[a-z]+[-_ ])?\d"
)
_TITLE = re.compile(
    r"\W*(?:architectur(?:e|al) )?decision record(?: \(adr\))?\W*(?::|for\b|[-–])|\W*adr[\s#-]*\d"
)
_TEMPLATE = re.compile(
    r"(?:^|.*[-_ ])(?:template|vorlage|modèle)$|(?:template|vorlage|modèle)[-_ ]|adr[-_ ]template"
)
_TEMPLATE_FOLDERS = frozenset({"template", "templates", "vorlagen", "modèles", "_templates"})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a document when its kind is asked for."""

    path: str
    text: str
    front_matter: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    headings: Sequence[Heading] = ()
    above: str = ""
    """The folders above `path` whose names may tell."""


@dataclass(frozen=True, kw_only=True)
class _Told:
    """What a document says of itself: values by the letters of their key, and its section on the status."""

    values: Mapping[str, Sequence[str]]
    history: Sequence[str]

    def of(self, keys: Sequence[str]) -> list[str]:
        return [value for key in keys for value in self.values.get(key, ())]


def kind_and_facts(
    rules: DecisionRules, evidence: Evidence, source_type: SourceType
) -> tuple[Kind, dict[str, str]]:
    """The kind of a document and, for a decision, its `decision_facts`; for a page those that say that it has ended."""
    if is_decision(rules, evidence):
        return Kind.DECISION, decision_facts(evidence)
    kind = DEFAULT_KIND[source_type]
    return kind, _ended(evidence) if kind is Kind.REFERENCE else {}


def is_decision(rules: DecisionRules, evidence: Evidence) -> bool:
    """True if any of the rules holds; templates, and pages about records, are none."""
    stem = PurePosixPath(evidence.path).stem.casefold()
    return any(_signs(rules, evidence, stem)) and not _template(evidence, stem)


def _signs(rules: DecisionRules, evidence: Evidence, stem: str) -> Iterator[object]:
    """What each rule finds; true is a decision."""
    front = evidence.front_matter
    named = {letters(heading.text) for heading in evidence.headings}
    types = {scalar_text(front.get(key)).casefold() for key in ("type", "kind")}
    yield types.intersection(map(str.casefold, rules.frontmatter_types))
    if rules.frontmatter_types and evidence.headings:
        # A head such as `status: accepted` with a date: pages and posts have drafts, but are not accepted.
        settled = _status([scalar_text(front.get("status"))]) not in ("", "proposed", "deprecated")
        yield settled and parse_day(scalar_text(front.get("date")))
    if rules.headings:
        yield set(map(letters, rules.headings)) <= named
        yield named & DECISION and len(named & AROUND) > 1
        yield _TITLE.match(_title(evidence))
    if letters(stem) not in NO_RECORDS:
        yield set(map(str.casefold, evidence.tags)).intersection(map(str.casefold, rules.tags))
        yield _place(rules, evidence, named, stem)


def decision_facts(evidence: Evidence) -> dict[str, str]:
    """`decision_status`, `superseded_by`, `decided_at` (ISO day), `deciders`, each only if the document tells."""
    told = _told(evidence)
    successor = _successor(told)
    known = (_status([value]) for value in told.of(STATUS))
    status = "superseded" if successor else next(filter(None, known), "") or _status(told.history)
    days = (parse_day(plain_text(value)) for value in told.of(DATE))
    facts = {
        "decision_status": status,
        "superseded_by": successor,
        "decided_at": next(filter(None, days), "") or _decided_day(told.history, status),
        "deciders": _people(told.of(DECIDERS)) or _people(told.of(AUTHORS)),
    }
    return {key: value for key, value in facts.items() if value}


def _ended(evidence: Evidence) -> dict[str, str]:
    """Status and successor of a page that no longer holds, as its head says beside its date or its authors.

    A table of states alone is what a page tells of.
    """
    told = _told(evidence)
    if not told.of((*DATE, *DECIDERS, *AUTHORS)):
        return {}
    successor = _successor(replace(told, history=()))
    status = "superseded" if successor else _status(told.of(STATUS)[:1])
    facts = {"decision_status": status, "superseded_by": successor}
    return {key: value for key, value in facts.items() if value} if status in OUTDATED_STATUSES else {}


def _place(rules: DecisionRules, evidence: Evidence, named: set[str], stem: str) -> bool:
    """A path that a rule names; in a folder of records only with a sign that this is one."""
    path = _alike(evidence.path)
    rooted = f"{_alike(evidence.above)}/{path}" if evidence.above else path
    fit = [
        g for g in rules.paths if include_pattern(_alike(g)).matches(rooted if g.startswith("**/") else path)
    ]
    if not fit or any(not glob.endswith("/**") for glob in fit) or _NUMBERED.match(stem):
        return bool(fit)
    return bool(named & (DECISION | AROUND) or "decision_status" in decision_facts(evidence))


def _template(evidence: Evidence, stem: str) -> bool:
    """A form that nobody has filled in: by its name, its title, or choices that are still open."""
    folders = PurePosixPath(evidence.path.casefold()).parts[:-1]
    if _TEMPLATE_FOLDERS & set(folders) or (_TEMPLATE.match(stem) and not re.search(r"[1-9]", stem)):
        return True
    if _PLACEHOLDER.match(_title(evidence)):
        return True
    told = _told(evidence)
    said = [*told.of(STATUS), *told.history]
    unfilled = any(value.casefold() == key for key, values in told.values.items() for value in values)
    return unfilled or (any(map(_choices, said)) and not _status(said))


def _title(evidence: Evidence) -> str:
    """As it is written, in lower case and without its mark."""
    first = evidence.text.split("\n")[evidence.headings[0].line] if evidence.headings else ""
    return (scalar_text(evidence.front_matter.get("title")) or first).lstrip("# ")[:MAX_LINE].casefold()


def _told(evidence: Evidence) -> _Told:
    """Front matter first, then tables, lines and badges of the head, then sections that are called so."""
    lines, marks = evidence.text.split("\n"), code_lines(evidence.text)
    clean = [line[:MAX_LINE] if not mark else "" for line, mark in zip(lines, marks, strict=True)]
    values: defaultdict[str, list[str]] = defaultdict(list)
    history: list[str] = []
    below_title = (heading.line for heading in evidence.headings[1:] if heading.level > 1)
    head = clean[: min(next(below_title, len(clean)), HEAD_LINES)]
    badges = (("status", value) for value in _badges(head))
    for key, given in (*evidence.front_matter.items(), *_fields(_plain(head)), *badges):
        for value in map(scalar_text, given if isinstance(given, list | tuple) else [given]):
            if (name := letters(key)) in KEYS and value.strip():
                values[name].append(value.strip()[:MAX_LINE])
    ends = [heading.line for heading in evidence.headings[1:]] + [len(clean)]
    for heading, end in zip(evidence.headings, ends, strict=False):
        if (name := letters(heading.text)) not in KEYS:
            continue
        below = clean[heading.line + 1 : end][:HEAD_LINES]
        section = [line for line in _plain(below) if line.strip()]
        if name in STATUS:
            history = history or [s for s in section if not _UNTICKED.match(s)] + _badges(below)
        else:
            values[name] += (line.strip(" -*+>") for line in section)
    return _Told(values=values, history=history)


def _badges(lines: Sequence[str]) -> list[str]:
    return [re.sub("%20|_", " ", found).replace("--", "-") for found in _BADGE.findall("\n".join(lines))]


def _fields(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys and values of tables and of lines such as `* Status: accepted`."""
    for index, line in enumerate(lines):
        cells = line.strip().removeprefix("|").removesuffix("|").split("|")
        under = lines[index + 1 : index + 3]
        across = cells[1 if letters(cells[-1]) in KEYS else 2 :]
        if across and any(map(_RULE.match, under[:1])):
            yield from zip(cells, under[-1].strip().strip("|").split("|"), strict=False)
        elif line.lstrip().startswith("|"):
            yield from filter(lambda pair: letters(pair[1]) not in KEYS, pairwise(cells))
        else:
            # What the line says, or each of its cells; a key without a value has the list below it.
            several = all(map(_FIELD.match, cells))
            listed = ", ".join(item[1] for item in map(_ITEM.match, lines[index + 1 : index + 12]) if item)
            for match in filter(None, map(_FIELD.match, cells if several else [line])):
                yield match[1], match[2].strip() or listed


def _plain(lines: Sequence[str]) -> list[str]:
    text = "\n".join(lines)
    for pattern, instead in _MARKUP:
        text = pattern.sub(instead, text)
    return text.split("\n")


def _status(lines: Sequence[str]) -> str:
    """The last line that begins with a status word (a history grows downwards), else the first word found."""
    leading = anywhere = ""
    for line in (_ARROW.split(line[:MAX_LINE])[-1] for line in lines):
        words = [m for m in _WORD.finditer(line) if m[0] == m[1] and not _choices(line)]
        if words and _LEADING.match(line[: words[0].start()]):
            leading = words[0][1]
        elif words:
            anywhere = anywhere or words[0][1]
    return STATUS_WORDS.get((leading or anywhere).casefold(), "")


def _choices(line: str) -> bool:
    """A line that still offers the choices (`proposed | accepted | ...`) tells nothing."""
    said = {STATUS_WORDS[match[1].casefold()] for match in _WORD.finditer(line)}
    return len(said) > (1 if "|" in line else 2) and not re.search(r"\d{4}-\d\d", line)


def _successor(told: _Told) -> str:
    lines = [*told.of(STATUS), *told.history]
    said = [match[1] for line in lines if not _choices(line) and (match := _SUCCESSOR.search(line))]
    names = [
        plain_text(text).strip(" .,;:()|") for text in (*told.of(SUCCESSOR), *said[-1:]) if not _nothing(text)
    ]
    return next(filter(None, names), "")[:MAX_SUCCESSOR]


def _decided_day(history: Sequence[str], status: str) -> str:
    """A day in a line about the decision itself; the day of its replacement is another one."""
    for line in history:
        words = {STATUS_WORDS[match[1].casefold()] for match in _WORD.finditer(line)}
        if words & {"superseded", "deprecated"} or (status == "superseded" and not words):
            continue
        if day := parse_day(line):
            return day
    return ""


def _people(values: Sequence[str]) -> str:
    """Names and handles, each once; addresses of mail are dropped."""
    names: dict[str, None] = {}
    for value in values:
        if not _nothing(value):
            # A link to an address is read as its words first; an address may be all that stands between two names.
            parts = _BETWEEN_NAMES.split(_MAIL.sub(",", plain_text(value)))
            bare = (part.strip(" .:;()<>[]*-–|") for part in parts)
            names |= dict.fromkeys(name for name in bare if 1 < len(name) <= MAX_NAME)
    return ", ".join(names)[:MAX_DECIDERS]


def _nothing(value: str) -> bool:
    empty = letters(value) in {"", "na", "none", "tbd", "tba", "no", "nobody", "keine", "aucun", "todo"}
    return empty or bool(_PLACEHOLDER.match(value.strip()))


def _alike(path: str) -> str:
    return re.sub(r"[ _]", "-", path.casefold())
