"""The audit that sees every kind of damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

AUDIT = """
    select count(*) filter (where d.state <> 'done') as unfinished,
           count(*) filter (where c.pieces <> d.chunk_count or c.pieces = 0) as lost,
           count(*) filter (where c.foreign_text or c.oldest <> d.desired_version
                            or d.indexed_version is distinct from d.desired_version
                            or d.indexed_hash is distinct from d.desired_hash) as stale,
           count(*) filter (where c.oldest <> c.newest) as mixed,
           count(*) filter (where c.pieces <> c.different) as doubled
    from document d join document_body b on b.document_id = d.id and b.version = d.desired_version
    cross join lateral (
        select count(*) as pieces, count(distinct content) as different, min(version) as oldest,
               max(version) as newest, coalesce(bool_or(strpos(b.body, content) = 0), false) as foreign_text
        from chunk where chunk.document_id = d.id) c
    where not d.deleted"""
"""Documents by kind of damage: what search has, against what the ledger wants. Texts must not repeat themselves."""


@pytest.fixture
def audit(omniscient: psycopg.Connection[Any]) -> Callable[[], dict[str, int]]:
    """Counts the damaged documents of all tenants, by kind of damage."""

    def look() -> dict[str, int]:
        cursor = omniscient.execute(AUDIT)
        row = cursor.fetchone()
        assert row is not None
        assert cursor.description is not None
        return {column.name: int(n) for column, n in zip(cursor.description, row, strict=True)}

    return look
