"""Recognition of decisions, and their metadata: status, successor, day, deciders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePosixPath
from typing import Any

from connectors.documents.fields import (
    AUTHORS,
    DATE,
    DECIDERS,
    STATUS,
    SUCCESSOR,
    RecordFields,
    record_fields,
)
from connectors.documents.globs import include_pattern
from connectors.documents.headings import AROUND, DECISION, Heading, letters, names_of, plain_text
from connectors.documents.options import DecisionRules
from connectors.documents.status import (
    NOTHING,
    PARTLY_WORD,
    Statement,
    banner,
    latest,
    offers_choices,
    statements_of_section,
    statements_of_value,
    successor_name,
)
from connectors.documents.values import parse_day, scalar_text
from pipeline.documents import DEFAULT_KIND, Kind, SourceType

__all__ = ["DecisionRules", "Evidence", "decision_facts", "is_decision", "kind_and_facts"]

OUTDATED_STATUSES = ("superseded", "rejected", "deprecated")
NO_RECORDS = frozenset(
    {
        "readme", "index", "contributing", "changelog", "toc", "overview", "process", "decisionlog", "decisions", "adr",
        "adrs", "rfcs", "architecturedecisions", "architecturedecisionrecords", "decisionrecords",
    }
)  # fmt: skip
"""Names of pages about records that are no records themselves, reduced to their letters."""
MAX_TITLE_LINE = 500
MAX_FACT = 200
MAX_NAME = 50
_PLACEHOLDER = re.compile(r"[\[{<][^\]}>]*[\]}>]$|\{[^{}]*(?:\}|$)")
_MAIL = re.compile(r"[<(]?[\w.+-]+@[\w-]+\.[\w.-]*\w[>)]?|\\?<[\w.+-]{1,100} at [\w.-]{1,100}>")
_BETWEEN_NAMES = re.compile(r"[,;&\n]|\s(?:and|und|et|/)\s")
_WILD = frozenset("*?[")
_ROLE = re.compile(
    r"(?:(?:the|our|all|of|lead|chief|senior|principal|core|platform|product|project|software|technical|system|solution"
    r"|backend|frontend|dev|development|engineering|documentation|knowledge|architecture|security|data|infrastructure|ops"
    r"|devops|design|teams?|groups?|guild|architects?|engineers?|developers?|board|council|committee|curator|managers?"
    r"|owners?|maintainers?|contributors?|reviewers?|everyone|community|staff|department|members?)\b[\s-]*)+",
    re.IGNORECASE,
)
"""Roles and teams, which are not names of people."""
_NUMBERED = re.compile(
    r"\d{1,5}(?!\d|-\d\d-\d\d)(?=[-_. ]|$)|(?:^|.*[-_ ])(?:adr|rfc|decision)[-_ ]?(?:[a-z]+[-_ ])?\d"
)
_TITLE = re.compile(
    r"\W*(?:architectur(?:e|al) )?decision record(?: \(adr\))?\W*(?::|for\b|[-–])|\W*adr[\s#-]*\d"
)
_PROPOSALS = r"RF[CD]|(?!STEP|SHIP|SKIP|TRIP|CHIP|CLIP|ZIP|VIP|WIP)[A-Z]{1,3}[EI]P"
"""RFC, RFD, and enhancement or improvement proposals of any project: PEP, KEP, BIP, EIP."""
_PROPOSAL_KEY = re.compile(rf"(?:{_PROPOSALS}|ADR)(?:NUMBER|NO|ID)?")
_NUMBER = re.compile(r"\d{1,8}")
_NO_RECORD = re.compile(rf"(?:{_PROPOSALS}|ADR)(?:NONE|NULL|N+|X+)")
"""Placeholders of a record's number, reduced to their letters: `KEP-None`, `ADR-XXXX`."""
_PROPOSAL_TITLE = re.compile(
    rf"\W*(?:\w[\w.-]* ){{0,2}}(?:(?:{_PROPOSALS})[ #-]*\d{{1,5}}|RFC)\b(?:\]|\s*[:–—]|\s+-\s|\W*$)"
)
_TITLE_NUMBER = re.compile(r"(\d{3,5}):\s")
_FORM = "template|vorlage|modèle|plantilla|modelo|modello|sjabloon|şablon|sablon|шаблон|模板|テンプレート"
_TEMPLATE = re.compile(rf"(?:^|.*[-_. ])(?:{_FORM})$|(?:{_FORM})[-_ ]|adr[-_ ]template")
_TEMPLATE_FOLDERS = frozenset(
    {"templates", "vorlagen", "modèles", "_templates", "plantillas", "modelos", *_FORM.split("|")}
)


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The facts about a document from which its kind is derived."""

    path: str
    text: str
    front_matter: Mapping[str, Any] = field(default_factory=dict)
    tags: Sequence[str] = ()
    headings: Sequence[Heading] = ()
    above: str = ""
    """Last folders above `path`, whose names may mark decisions too."""

    @cached_property
    def fields(self) -> RecordFields:
        """Fields of the front matter and the head of the text."""
        return record_fields(self.front_matter, self.text, self.headings)

    @cached_property
    def title_line(self) -> str:
        """The title as written, without `#`."""
        first = self.text.split("\n")[self.headings[0].line] if self.headings else ""
        return (scalar_text(self.front_matter.get("title")) or first).lstrip("# ")[:MAX_TITLE_LINE]

    @cached_property
    def proposal_number(self) -> str:
        """Number of a proposal from the header, such as `20` of `eip: 20`; empty if there is none."""
        front = self.front_matter.items()
        numbers = (
            scalar_text(value) for key, value in front if _PROPOSAL_KEY.fullmatch(letters(key).upper())
        )
        return next(filter(_NUMBER.fullmatch, numbers), "")

    @cached_property
    def is_titled_proposal(self) -> bool:
        """True for a title such as `RFC 0037: ...`, and for `0037: ...` in a file or folder of that number."""
        number = _TITLE_NUMBER.match(self.title_line)
        names = PurePosixPath(self.path).parts[-2:]
        numbered = number and any(name.startswith(f"{number[1]}-") for name in names)
        return bool(numbered or _PROPOSAL_TITLE.match(self.title_line))


def kind_and_facts(
    rules: DecisionRules, evidence: Evidence, source_type: SourceType
) -> tuple[Kind, dict[str, str]]:
    """Kind of a document with its `decision_facts` if it is a decision, or status and successor of an outdated page."""
    if is_decision(rules, evidence):
        return Kind.DECISION, decision_facts(evidence)
    kind = DEFAULT_KIND[source_type]
    return kind, _ended(evidence) if kind is Kind.REFERENCE else {}


def is_decision(rules: DecisionRules, evidence: Evidence) -> bool:
    """True if any of the rules holds; a template or a page about records counts only if a path names it."""
    stem = PurePosixPath(evidence.path).stem.casefold()
    signs = any(_signs(rules, evidence, stem)) and not _template(evidence, stem)
    return signs or names_file(rules, evidence.path, evidence.above)


def names_file(rules: DecisionRules, path: str, above: str = "") -> bool:
    """True if a path without wildcards names this file: all its content is decisions then.

    Args:
        rules: the paths are below the root, or begin with folders above it.
        path: below the root.
        above: the folders above the root.
    """
    exact = (_normalized(glob).removeprefix("./") for glob in rules.paths if not _WILD.intersection(glob))
    below, rooted = _normalized(path), _normalized(f"/{above}/{path}")
    return any(glob == below or (len(glob) > len(below) and rooted.endswith(f"/{glob}")) for glob in exact)


def _signs(rules: DecisionRules, evidence: Evidence, stem: str) -> Iterator[object]:
    """Result of each rule; any true value makes the document a decision."""
    front = evidence.front_matter
    named = {name for heading in evidence.headings for name in names_of(heading.text)}
    types = {scalar_text(front.get(key)).casefold() for key in ("type", "kind")}
    yield types.intersection(map(str.casefold, rules.frontmatter_types))
    if rules.frontmatter_types and evidence.headings:
        # Front matter with `status: accepted` and a date: pages and posts may be drafts, but are never accepted.
        status = latest(statements_of_value(scalar_text(front.get("status")), lifecycle=False))
        settled = status and status.status not in ("proposed", "deprecated")
        yield settled and parse_day(scalar_text(front.get("date")))
        yield evidence.proposal_number and _has_status_and_people(evidence)
    no_record = letters(stem) in NO_RECORDS
    about_records = no_record and letters(PurePosixPath(evidence.path).parent.name) in NO_RECORDS
    if rules.headings:
        yield not about_records and set(map(letters, rules.headings)) <= named
        yield not about_records and named & DECISION and len(named & AROUND) > 1
        yield _TITLE.match(evidence.title_line.casefold())
        yield evidence.is_titled_proposal and _has_status_and_people(evidence)
    if not no_record:
        yield set(map(str.casefold, evidence.tags)).intersection(map(str.casefold, rules.tags))
        yield _place(rules, evidence, named, stem)


def _has_status_and_people(evidence: Evidence) -> bool:
    """True if it has a status, and a date or people: a number alone does not make a record."""
    dates_and_people = evidence.fields.values_of((*DATE, *DECIDERS, *AUTHORS))
    return any(dates_and_people) and "decision_status" in decision_facts(evidence)


def decision_facts(evidence: Evidence) -> dict[str, str]:
    """`decision_status`, `superseded_by`, `decided_at` (ISO day), `deciders`, each only if the document has it."""
    fields = evidence.fields
    history = statements_of_section(fields.history)
    statuses = [statement for statement in (*_field_statements(evidence), latest(history)) if statement]
    status = next((statement.status for statement in statuses), "")
    successors = [*_successors(fields), *(statement.successor for statement in statuses)]
    if status not in OUTDATED_STATUSES:
        successors += map(banner, fields.head)
    successor = next(filter(None, successors), "")
    status = "superseded" if successor else status
    days = (parse_day(plain_text(value)) for value in fields.values_of(DATE))
    facts = {
        "decision_status": status,
        "superseded_by": successor,
        "decided_at": next(filter(None, days), "") or _decided_day([*history, *statuses], fields, status),
        "deciders": _people(fields.values_of(DECIDERS)) or _people(fields.values_of(AUTHORS)),
    }
    return {key: value[:MAX_FACT] for key, value in facts.items() if value}


def _ended(evidence: Evidence) -> dict[str, str]:
    """Status and successor of an outdated page, read from a head that has a date or authors as well.

    A table of states alone is the subject of a page, not its own status.
    """
    fields = evidence.fields
    if not fields.values_of((*DATE, *DECIDERS, *AUTHORS)):
        return {}
    statement = next(
        (latest(statements_of_value(value, lifecycle=False)) for value in fields.values_of(STATUS)), None
    )
    successor = next(_successors(fields), "") or (statement.successor if statement else "")
    status = "superseded" if successor else statement.status if statement else ""
    facts = {"decision_status": status, "superseded_by": successor[:MAX_FACT]}
    return {key: value for key, value in facts.items() if value} if status in OUTDATED_STATUSES else {}


def _field_statements(evidence: Evidence) -> Iterator[Statement]:
    for key in STATUS:
        # `state` of a work item is `Active` or `Done` whatever was decided; that of a proposal is a status.
        numbered = evidence.proposal_number or evidence.is_titled_proposal
        lifecycle = key != "state" or bool(numbered)
        for value in evidence.fields.values.get(key, ()):
            if statement := latest(statements_of_value(value, lifecycle=lifecycle)):
                yield statement


def _successors(fields: RecordFields) -> Iterator[str]:
    """Names in fields such as `Superseded by`; a field about a part of the record names no successor."""
    for value in fields.values_of(SUCCESSOR):
        if not _nothing(value) and not PARTLY_WORD.search(value):
            yield successor_name(value)


def _place(rules: DecisionRules, evidence: Evidence, named: set[str], stem: str) -> bool:
    """True if a path rule matches; for a rule `folder/**` only if the document looks like a record as well."""
    path = _normalized(evidence.path)
    rooted = f"{_normalized(evidence.above)}/{path}" if evidence.above else path
    matching = [
        g
        for g in rules.paths
        if include_pattern(_normalized(g)).matches(rooted if g.startswith("**/") else path)
    ]
    if not matching or any(not glob.endswith("/**") for glob in matching) or _NUMBERED.match(stem):
        return bool(matching)
    return bool(named & (DECISION | AROUND) or "decision_status" in decision_facts(evidence))


def _template(evidence: Evidence, stem: str) -> bool:
    """True for a template that is not filled in, by its name, its title, or open choices."""
    folders = PurePosixPath(evidence.path.casefold()).parts[:-1]
    if _TEMPLATE_FOLDERS & set(folders) or (_TEMPLATE.match(stem) and not re.search(r"[1-9]", stem)):
        return True
    if _PLACEHOLDER.match(evidence.title_line):
        return True
    fields = evidence.fields
    unfilled = any(value.casefold() == key for key, values in fields.values.items() for value in values)
    open_choice = any(map(offers_choices, (*fields.values_of(STATUS), *fields.history)))
    return unfilled or (open_choice and "decision_status" not in decision_facts(evidence))


def _decided_day(statements: Sequence[Statement], fields: RecordFields, status: str) -> str:
    """Day of the decision; days of its draft or its replacement do not count."""
    of_others = {"superseded", "deprecated", *({"proposed"} - {status})}
    days = [statement.day for statement in statements if statement.day and statement.status not in of_others]
    undated_status = map(parse_day, fields.history) if status != "superseded" and not statements[-1:] else ()
    return next(reversed(days), "") or next(filter(None, undated_status), "")


def _people(values: Sequence[str]) -> str:
    """Names and handles of people, each once; roles, teams and mail addresses are dropped."""
    names: dict[str, None] = {}
    for value in values:
        if not _nothing(value):
            # Links are reduced to their words first; a mail address may be the only separator of two names.
            pieces = _BETWEEN_NAMES.split(_MAIL.sub(",", plain_text(value)))
            stripped = (part.strip(" .:;()<>[]*-–|\\") for part in pieces)
            people = (name for name in stripped if 1 < len(name) <= MAX_NAME and not _ROLE.fullmatch(name))
            names |= dict.fromkeys(people)
    return ", ".join(names)


def _nothing(value: str) -> bool:
    blank = not any(map(str.isalnum, value))
    none = letters(value) in NOTHING or _NO_RECORD.fullmatch(letters(value).upper())
    return blank or bool(none or _PLACEHOLDER.match(value.strip()))


def _normalized(path: str) -> str:
    return re.sub(r"[ _]", "-", path.casefold())
