"""Filters as SQL, alike in both arms of a search and wherever its texts are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from uuid import UUID

from pipeline.search.chunks import Filter


@dataclass(frozen=True, kw_only=True)
class LedgerFilter(Filter):
    """A filter that may also ask for what the ledger knows."""

    sources: tuple[str, ...] = ()
    """Names of configured sources; the document comes from one of them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Metadata as a person writes it: the value in words, be it a text, a number or one of a list."""
    only: tuple[UUID, ...] = ()
    """No other documents than these."""
    security_levels: tuple[str, ...] = ()
    """The document's is one of these: what the caller may see."""


CONDITIONS = {
    "source_types": "d.source_type = any(%(source_types)s)",
    "kinds": "d.kind = any(%(kinds)s)",
    "tags": "d.tags @> cast(%(tags)s as text[])",
    "since": "coalesce(d.updated_at, d.created_at) >= %(since)s",
    "until": "coalesce(d.updated_at, d.created_at) < %(until)s",
    # Equal, not contained: {"path": "x"} is not {"path": "x", "more": 1}.
    "metadata": """not exists (select from jsonb_each(cast(%(metadata)s as jsonb)) m
                   where d.metadata -> m.key is distinct from m.value)""",
    # The document's: a source that changes its project takes it along at once, its chunks when they are next written.
    "projects": "d.project_id = any(%(projects)s)",
    "exclude": "not c.document_id = any(%(exclude)s)",
    "texts": """not exists (select from unnest(cast(%(keys)s as text[]), cast(%(texts)s as text[])) m(key, value)
                where (d.metadata ->> m.key = m.value or jsonb_exists(d.metadata -> m.key, m.value)) is not true)""",
    "only": "c.document_id = any(%(only)s)",
    "security_levels": "d.security_level = any(%(security_levels)s)",
    "sources": "d.source_id in (select id from source where name = any(%(sources)s))",
}

OF_CHUNKS = {name for name, condition in CONDITIONS.items() if "c." in condition}
"""Parts of a filter that need no look at the document."""
_NOTHING: tuple[Any, ...] = ((), None, {})
MOST_SHAPES = 256
"""Kinds of filters whose SQL is kept."""


@lru_cache(MOST_SHAPES)
def condition(names: tuple[str, ...]) -> str:
    """A filter that asks for this, as SQL over `c` (chunk) and `d` (document)."""
    return " and ".join(["not d.hidden", "not d.deleted", *(CONDITIONS[name] for name in names)])


def of_documents(names: tuple[str, ...]) -> tuple[str, ...]:
    """The parts that only a look at the document can tell."""
    return tuple(name for name in names if name not in OF_CHUNKS)


def of_chunks(names: tuple[str, ...]) -> tuple[str, ...]:
    """The parts that need no look at the document."""
    return tuple(name for name in names if name in OF_CHUNKS)


def names_of(wanted: Filter) -> tuple[str, ...]:
    """What the filter asks for; nothing if it lets all through."""
    if not any(vars(wanted).values()):  # the usual case; each kind of nothing is false
        return ()
    return tuple(name for name, value in vars(wanted).items() if value not in _NOTHING)


def values_of(wanted: Filter, names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of `condition`, `names` being those of the filter."""
    if not names:
        return {}
    values = {name: getattr(wanted, name) for name in names}
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = [str(v) if isinstance(v, str) else v for v in value]
    if "texts" in values:
        values["keys"], values["texts"] = (list(part) for part in zip(*values["texts"], strict=True))
    if "metadata" in values:
        values["metadata"] = json.dumps(dict(wanted.metadata), default=str)
    return values
