"""Filters as SQL, alike in both arms of a search and where its texts are read."""

from __future__ import annotations

import json
from typing import Any

from pipeline.search.chunks import Filter

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
    "only": "d.id = any(%(only)s)",
    "security_levels": "d.security_level = any(%(security_levels)s)",
    "sources": "d.source_id in (select id from source where name = any(%(sources)s))",
}
"""Part of a filter -> its condition on a chunk `c` and its document `d`."""
CHUNKS_ALONE = {"exclude"}
"""Parts that need no look at the document."""


def names_of(wanted: Filter) -> tuple[str, ...]:
    """What the filter asks for; nothing if it lets all through."""
    return tuple(name for name, value in vars(wanted).items() if value not in ((), None, {}))


def of_documents(names: tuple[str, ...]) -> tuple[str, ...]:
    """The parts that only a look at the document can tell."""
    return tuple(name for name in names if name not in CHUNKS_ALONE)


def visible(names: tuple[str, ...]) -> str:
    """A filter that asks for this, as SQL over `c` (chunk) and `d` (document)."""
    return " and ".join(["not d.hidden", "not d.deleted", *(CONDITIONS[name] for name in names)])


def values_of(wanted: Filter, names: tuple[str, ...]) -> dict[str, Any]:
    """The parameters of the conditions of these names."""
    values = {name: getattr(wanted, name) for name in names}
    for name, value in values.items():
        if isinstance(value, tuple):
            values[name] = [str(v) if isinstance(v, str) else v for v in value]
    if "texts" in values:
        values["keys"], values["texts"] = (list(part) for part in zip(*values["texts"], strict=True))
    if "metadata" in values:
        values["metadata"] = json.dumps(dict(wanted.metadata), default=str)
    return values
