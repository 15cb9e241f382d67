"""A judged set from what is indexed: duplicates, relations and decisions say what should have been found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
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
REASONS = {
    "duplicates": (2, ("similar_work", "likely_duplicates")),
    "relations": (1, ("similar_work",)),
    "decisions": (2, ("past_decisions",)),
}
"""Why a question should find a document -> its grade, and the sections that should show it."""
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
    pairs = _pairs(documents)
    if not pairs:
        raise ConfigurationError(
            "nothing that is indexed names a duplicate, a related item, or an item in a decision",
            fix="make a set by hand: docs/evaluation.md",
        )
    queries = {query for query, _ in pairs}
    counts = {"documents": len(documents), "queries": len(queries), **Counter(pairs.values())}
    write(
        folder,
        documents=documents,
        queries=(_question(row) for row in documents if row["_id"] in queries),
        relevant=((*pair, REASONS[why][0]) for pair, why in pairs.items()),
        context=(
            (query, section, name, REASONS[why][0])
            for (query, name), why in pairs.items()
            for section in REASONS[why][1]
        ),
        counts=counts,
    )
    return counts


def _question(row: Json) -> Json:
    """The item as it was when it was new."""
    title, body = row["title"], LATER.sub("", row.get("text", "")).strip()
    text = f"{title}\n{body.removeprefix(f'# {title}').strip()}".strip()
    return {"_id": row["_id"], "text": text, "project": row["project"]}


def _pairs(documents: Sequence[Json]) -> dict[tuple[str, str], str]:
    """(question, document) -> why the one should find the other; the first reason holds."""
    work = [row for row in documents if row["kind"] == Kind.WORK]
    names = _Names(work)
    found = {pair: "duplicates" for group in _groups(work, names) for pair in permutations(group, 2)}
    for row in documents:
        own, text = row["_id"], row.get("text", "")
        told = [row.get("metadata", {}).get(key) for key in RELATIONS]
        if row["kind"] == Kind.DECISION:
            for item in sorted(names.within([*told, row["title"], text], row["source"])):
                found.setdefault((item, own), "decisions")
        elif row["kind"] == Kind.WORK:
            for item in sorted(names.within([*told, *_RELATED.findall(text)], row["source"]) - {own}):
                found.setdefault((own, item), "relations")
                found.setdefault((item, own), "relations")
    return found


def _groups(work: Sequence[Json], names: _Names) -> list[list[str]]:
    """Items that are one another's duplicates, however many links lie between; a master need not be indexed."""
    groups: dict[str, set[str]] = {}
    for row in work:
        if master := str(row.get("metadata", {}).get("duplicate_of") or "").strip():
            key = names.find(master, row["source"]) or f"\0{master}"
            joined = groups.get(row["_id"], {row["_id"]}) | groups.get(key, {key})
            groups.update(dict.fromkeys(joined, joined))
    each = {id(group): group for group in groups.values()}.values()
    return [[row["_id"] for row in work if row["_id"] in group] for group in each]


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
        if isinstance(told, Mapping | list):
            parts = told.values() if isinstance(told, Mapping) else told
            return set[str]().union(*(self.within(one, source) for one in parts))
        whole = str(told or "").strip()
        found = {self.find(whole, source)}
        for token in _TOKEN.findall(whole):
            name = token.rstrip(".:!?*_")
            if any(c.isdigit() for c in name) and not name.isdigit():
                found.add(self.find(name, source))
        return {name for name in found if name}
