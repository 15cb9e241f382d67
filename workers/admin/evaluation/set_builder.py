"""A judged set from what is indexed: duplicates, relations and decisions say what should have been found."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from pipeline.documents import Json, Kind
from pipeline.errors import ConfigurationError
from pipeline.ledger.documents import corpus
from workers.admin.evaluation.dataset import refuse_used, write
from workers.runtime import Runtime

RELATIONS = ("links", "dependencies", "related", "related_to", "relates_to", "related_ids", "related_work")
"""Metadata that name other work."""
REASONS = ("duplicates", "relations", "decisions")
"""Why two documents belong together."""
LATER = re.compile(
    r"^## (?:links|details|history|comments|discussion|resolution|outcome|dependencies|closing comment|final summary"
    r"|implementation notes|lessons learned|retro\w*|post-?mortem)\b.*?(?=^## |\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
"""Sections that an item has only later, or that name what is to be found."""
_RELATED = re.compile(r"^- (?:Related|Predecessor|Successor): (.+)$", re.MULTILINE)
_TOKEN = re.compile(r"[^\s,;()\[\]<>{}\"'`|]+")


def build(parts: Runtime, tenant: UUID, folder: Path) -> Json:
    """Write a set of the tenant's documents into `folder`; it then holds their texts, for this user only.

    Raises:
        ConfigurationError: the folder is not empty, or nothing indexed says what belongs together.
    """
    refuse_used(folder)
    with parts.database.tenant(tenant) as connection:
        documents = list(corpus(connection))
    made = _pairs(documents)
    if not made.relevant:
        raise ConfigurationError(
            "nothing that is indexed names a duplicate, a related item, or an item in a decision",
            fix="make a set by hand: docs/evaluation.md",
        )
    asked = [row for row in documents if row["_id"] in {query for query, _ in made.relevant}]
    counts = {"documents": len(documents), "queries": len(asked), **made.counts}
    write(
        folder,
        documents=documents,
        queries=({"_id": row["_id"], "text": _question(row), "project": row["project"]} for row in asked),
        relevant=((*pair, grade) for pair, grade in made.relevant.items()),
        context=((*key, grade) for key, grade in made.context.items()),
        counts=counts,
    )
    return counts


def _question(row: Json) -> str:
    """The item as it was when it was new."""
    title, body = row["title"], LATER.sub("", row.get("text", "")).strip()
    return f"{title}\n{body.removeprefix(f'# {title}').strip()}".strip()


# What belongs together ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    relevant: dict[tuple[str, str], int] = field(default_factory=dict)
    """(question, document) -> grade."""
    context: dict[tuple[str, str, str], int] = field(default_factory=dict)
    """(question, section, document) -> grade."""
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, why: str, query: str, name: str, sections: Sequence[str], grade: int) -> None:
        """The first that is said of a pair holds."""
        if query == name or (query, name) in self.relevant:
            return
        self.relevant[query, name] = grade
        self.context.update({(query, section, name): grade for section in sections})
        self.counts[why] = self.counts.get(why, 0) + 1


def _pairs(documents: Sequence[Json]) -> _Pairs:
    made = _Pairs()
    work = [row for row in documents if row["kind"] == Kind.WORK]
    names = _Names(work)
    _note_duplicates(made, _groups(work, names))
    for row in documents:
        told = [row.get("metadata", {}).get(key) for key in RELATIONS]
        if row["kind"] == Kind.DECISION:
            told += [row["title"], row.get("text", "")]
            for item in sorted(names.within(told, row["source"])):
                made.note("decisions", item, row["_id"], ("past_decisions",), 2)
        elif row["kind"] == Kind.WORK:
            told += _RELATED.findall(row.get("text", ""))
            for item in sorted(names.within(told, row["source"])):
                for query, name in ((row["_id"], item), (item, row["_id"])):
                    made.note("relations", query, name, ("similar_work",), 1)
    return made


def _note_duplicates(made: _Pairs, groups: Sequence[Sequence[str]]) -> None:
    for group in groups:
        for query in group:
            for name in group:
                made.note("duplicates", query, name, ("similar_work", "likely_duplicates"), 2)


def _groups(work: Sequence[Json], names: _Names) -> list[list[str]]:
    """Items that are one another's duplicates, however many links lie between; a master need not be indexed."""
    groups: dict[str, set[str]] = {}
    for row in work:
        master = str(row.get("metadata", {}).get("duplicate_of") or "").strip()
        if master:
            key = names.find(master, row["source"]) or f"\0{master}"
            joined = groups.get(row["_id"], {row["_id"]}) | groups.get(key, {key})
            groups.update(dict.fromkeys(joined, joined))
    known = [row["_id"] for row in work]
    return [
        [name for name in known if name in group] for group in {id(g): g for g in groups.values()}.values()
    ]


class _Names:
    """Work items by the names that others call them: id and address."""

    def __init__(self, work: Sequence[Json]) -> None:
        self._ids: dict[str, list[tuple[str, str]]] = {}
        for row in work:
            called = {row["external_id"], str(row.get("metadata", {}).get("pbi_id", "")), row.get("url", "")}
            for name in called - {""}:
                self._ids.setdefault(name, []).append((row["source"], row["_id"]))

    def find(self, name: str, source: str) -> str | None:
        """The item of that name, the one of the same source if there are several; None if that leaves no one."""
        found = self._ids.get(name.removeprefix("#"), [])
        own = [one for one in found if one[0] == source] if len(found) > 1 else found
        return own[0][1] if len(own) == 1 else None

    def within(self, told: Any, source: str) -> set[str]:
        """Items that a value or its texts name; inside a text a bare number or word is none."""
        if isinstance(told, Mapping):
            told = list(told.values())
        if isinstance(told, list):
            return set[str]().union(*(self.within(one, source) for one in told))
        whole = str(told or "").strip()
        found = {self.find(whole, source)}
        for token in _TOKEN.findall(whole):
            name = token.rstrip(".:!?*_")
            if any(c.isdigit() for c in name) and not name.isdigit():
                found.add(self.find(name, source))
        return {name for name in found if name}
