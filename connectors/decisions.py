"""Which documents are decisions, and what became of each decision."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from connectors.headings import Heading, plain_text
from connectors.json_values import scalar_text
from connectors.options import DecisionRules
from connectors.patterns import Pattern, include_pattern
from connectors.times import parse_time
from pipeline.documents import DEFAULT_KIND, Kind, SourceType

__all__ = ["DecisionRules", "Evidence", "decision_facts", "is_decision", "kind_and_facts"]

STATUS_WORDS: Mapping[str, str] = {
    "accepted": "accepted",
    "approved": "accepted",
    "adopted": "accepted",
    "decided": "accepted",
    "proposed": "proposed",
    "draft": "proposed",
    "superseded": "superseded",
    "replaced": "superseded",
    "rejected": "rejected",
    "declined": "rejected",
    "deprecated": "deprecated",
    "obsolete": "deprecated",
}
STATUS_KEYS = ("status", "decision_status", "state")
SUCCESSOR_KEYS = ("superseded_by", "superseded-by", "supersededBy", "replaced_by")
DATE_KEYS = ("decided_at", "decided", "decision_date", "date")
MAX_SUCCESSOR = 200
_WORD = re.compile(r"\b(" + "|".join(STATUS_WORDS) + r")\b", re.IGNORECASE)
_LEADING = re.compile(r"[\s>*+_\-]*(?:\d{4}-\d\d-\d\d[\s:,\-–]*)?(?:status\b[\s:*_]*)?[*_]*$", re.IGNORECASE)
_LABELLED = re.compile(r"[\s*+_\-]*(status|date|decided|decided on)[*_]*\s*:", re.IGNORECASE)
_SUCCESSOR = re.compile(r"\b(?:superseded|replaced)[ _-]+by\b[\s:*]*(.+)", re.IGNORECASE)
_DAY = re.compile(r"\b\d{4}-\d\d-\d\d\b")
_NUMBERING = re.compile(r"^[\d.\s]+")


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What is known of a document when its kind is asked for."""

    path: str
    text: str
    front_matter: Mapping[str, Any]
    tags: Sequence[str]
    headings: Sequence[Heading]


def kind_and_facts(
    rules: DecisionRules, evidence: Evidence, source_type: SourceType
) -> tuple[Kind, dict[str, str]]:
    """The kind of a document and, for a decision, its `decision_facts`."""
    if is_decision(rules, evidence):
        return Kind.DECISION, decision_facts(evidence)
    return DEFAULT_KIND[source_type], {}


def is_decision(rules: DecisionRules, evidence: Evidence) -> bool:
    """True if any of the rules holds."""
    types = {scalar_text(evidence.front_matter.get(key)).casefold() for key in ("type", "kind")}
    if types & {name.casefold() for name in rules.types}:
        return True
    if {tag.casefold() for tag in evidence.tags} & {tag.casefold() for tag in rules.tags}:
        return True
    if any(_path_pattern(glob).matches(evidence.path.casefold()) for glob in rules.paths):
        return True
    names = {_heading_name(heading) for heading in evidence.headings}
    return bool(rules.headings) and {name.casefold() for name in rules.headings} <= names


def decision_facts(evidence: Evidence) -> dict[str, str]:
    """`decision_status`, `superseded_by` and `decided_at` (ISO day), each only if the document tells."""
    lines = _status_lines(evidence)
    said = [_first(evidence.front_matter, STATUS_KEYS), *lines]
    successor = _successor_name(_first(evidence.front_matter, SUCCESSOR_KEYS)) or _successor(said)
    status = "superseded" if successor else _status(said[:1]) or _status(lines)
    facts = {
        "decision_status": status,
        "superseded_by": successor,
        "decided_at": _day(_first(evidence.front_matter, DATE_KEYS)) or _decided_day(lines, status),
    }
    return {key: value for key, value in facts.items() if value}


def _status_lines(evidence: Evidence) -> list[str]:
    """The Status section, before it the `Status:` and `Date:` lines of the head."""
    lines = evidence.text.split("\n")
    ends = [heading.line for heading in evidence.headings] + [len(lines)]
    section: list[str] = []
    for index, heading in enumerate(evidence.headings):
        if _heading_name(heading) == "status":
            section += lines[heading.line + 1 : ends[index + 1]]
    below_title = [heading.line for heading in evidence.headings if heading.level > 1]
    head = lines[: min(below_title[0] if below_title else len(lines), 40)]
    return [line for line in (*(h for h in head if _LABELLED.match(h)), *section) if line.strip()]


def _status(lines: Sequence[str]) -> str:
    """The last line that begins with a status word (a history grows downwards), else the first word found."""
    leading = anywhere = ""
    for line in lines:
        words = [match for match in _WORD.finditer(line) if not _template(line)]
        if words and _LEADING.match(line[: words[0].start()]):
            leading = words[0][1]
        elif words:
            anywhere = anywhere or words[0][1]
    return STATUS_WORDS.get((leading or anywhere).lower(), "")


def _template(line: str) -> bool:
    """A line that still offers the choices (`proposed | accepted | ...`) tells nothing."""
    return "|" in line and len({match[1].lower() for match in _WORD.finditer(line)}) > 1


def _successor(lines: Sequence[str]) -> str:
    found = [match[1] for line in lines if not _template(line) and (match := _SUCCESSOR.search(line))]
    return _successor_name(found[-1]) if found else ""


def _successor_name(text: str) -> str:
    return plain_text(text).strip(" .,;:()")[:MAX_SUCCESSOR]


def _decided_day(lines: Sequence[str], status: str) -> str:
    """A day in a line about the decision itself; the day of its replacement is another one."""
    for line in lines:
        words = {STATUS_WORDS[match[1].lower()] for match in _WORD.finditer(line)}
        if words & {"superseded", "deprecated"} or (status == "superseded" and not words | _labels(line)):
            continue
        if day := _DAY.search(line):
            return _day(day[0])
    return ""


def _labels(line: str) -> set[str]:
    match = _LABELLED.match(line)
    return {match[1].lower()} if match else set()


def _day(value: str) -> str:
    moment = parse_time(value)
    return moment.date().isoformat() if moment else ""


def _first(front_matter: Mapping[str, Any], keys: Sequence[str]) -> str:
    for key in keys:
        value = front_matter.get(key)
        if isinstance(value, list) and value:
            value = value[0]
        if text := scalar_text(value):
            return text
    return ""


def _heading_name(heading: Heading) -> str:
    return _NUMBERING.sub("", heading.text).strip(" :").casefold()


@lru_cache(maxsize=256)
def _path_pattern(glob: str) -> Pattern:
    return include_pattern(glob.casefold())
