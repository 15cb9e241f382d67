"""What people say of documents that answers showed, useful or noise for a question; and what that does to a score."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json
from pipeline.errors import RequestRejected

Verdict = Literal["useful", "noise"]

USEFUL_HERE, NOISE_HERE = 1.0, -3.0
"""Log-odds that a verdict on the very same question adds."""
ELSEWHERE, MOST_ELSEWHERE = 0.15, 0.6
"""The same of each verdict on another question, useful less noise; and of all of them, up or down."""
LEAST, MOST = -3.0, 1.0
SHARE = 0.25
"""Of its score that a document gains or loses at most."""
LONGEST_NAME = 200
LONGEST_QUESTION = 20_000
"""Characters of each part of a question that is kept."""

MOST_COUNTED = 200
"""Verdicts on other questions that count, the newest: a document that everybody marks takes a search no longer."""

_MARK = "case b.verdict when 'useful' then 1 else -1 end"
OF_DOCUMENT = f"""(
    select array[coalesce((select {_MARK} from feedback b where b.document_id = d.id and b.query_hash = %(asked)s), 0),
                 coalesce(sum(f.mark) filter (where f.query_hash <> %(asked)s), 0)]
    from (select b.query_hash, {_MARK} as mark from feedback b where b.document_id = d.id
          order by b.at desc limit {MOST_COUNTED}) f
    having count(*) > 0)"""
"""The `Marks` of a document `d` for the question of the key `asked`, as an array; null if nobody said anything."""


class Marks(NamedTuple):
    """What was said of one document."""

    here: int
    """For this very question: 1 useful, -1 noise, 0 nothing."""
    elsewhere: int
    """For all others: how often useful, less how often noise."""

    @property
    def shift(self) -> float:
        """Log-odds that it adds to a document's relevance, from LEAST to MOST."""
        here = (0.0, USEFUL_HERE, NOISE_HERE)[self.here]
        elsewhere = max(-MOST_ELSEWHERE, min(MOST_ELSEWHERE, ELSEWHERE * self.elsewhere))
        return max(LEAST, min(MOST, here + elsewhere))

    @property
    def factor(self) -> float:
        """What it makes of a score, at most SHARE more or less."""
        return 1.0 + SHARE * math.tanh(self.shift)

    @property
    def why(self) -> str:
        """In words: `marked useful for this question, +1.0`; empty if it changes nothing."""
        here = f"{('', 'useful', 'noise')[self.here]} for this question" if self.here else ""
        elsewhere = f"{'useful' if self.elsewhere > 0 else 'noise'} for others (net {self.elsewhere:+d})"
        said = [part for part in (here, elsewhere if self.elsewhere else "") if part]
        return f"marked {' and '.join(said)}, {self.shift:+.2f}".removesuffix("0") if said else ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What documents are judged for."""

    key: str
    item: str
    """As people name it: the id of an item, else the beginning of the text."""
    title: str = ""
    project: str = ""
    """Of the item, as people name it; empty for a plain question."""
    asked: Mapping[str, Any]
    """`title`, `description` and `acceptance_criteria` of an item, or `text` of a plain question."""


_GIVE = text("""
    with before as (select verdict from feedback
                    where tenant_id = :tenant and document_id = :document and query_hash = :key)
    insert into feedback (tenant_id, document_id, query_hash, verdict, item, title, project, question, given_by)
    select :tenant, d.id, :key, :verdict, :item, :title, :project, cast(:asked as jsonb), :by from document d
    where d.id = :document
    on conflict (tenant_id, document_id, query_hash) do update
        set verdict = excluded.verdict, item = excluded.item, title = excluded.title, project = excluded.project,
            question = excluded.question, given_by = excluded.given_by, at = now()
    returning (select verdict from before) as before""")


def record(
    connection: Connection,
    tenant: UUID,
    question: Question,
    document: UUID,
    verdict: Verdict,
    *,
    by: str = "",
) -> Verdict | None:
    """Say of a document of this tenant what it is for a question; returns what was said before, which ends.

    Raises:
        RequestRejected: the tenant has no such document.
    """
    values = {
        "tenant": tenant,
        "document": document,
        "key": question.key,
        "verdict": verdict,
        "item": question.item[:LONGEST_NAME],
        "title": question.title[:LONGEST_NAME],
        "project": question.project[:LONGEST_NAME],
        "asked": json.dumps(
            {n: v[:LONGEST_QUESTION] if isinstance(v, str) else v for n, v in question.asked.items()}
        ),
        "by": by,
    }
    row = connection.execute(_GIVE, values).one_or_none()
    if row is None:
        raise RequestRejected(f"there is no document {document}", fix="mark one that a search finds")
    before: Verdict | None = row.before
    return before


def undo(connection: Connection, key: str, document: UUID) -> Verdict | None:
    """Take back what was said; returns what it was, None if nothing."""
    found: Verdict | None = connection.execute(
        text("delete from feedback where query_hash = :key and document_id = :document returning verdict"),
        {"key": key, "document": document},
    ).scalar()
    return found


_LISTED = text("""
    select f.query_hash as key, f.item, f.title as item_title, f.project, f.verdict, f.at, f.given_by as by, f.question,
           d.external_id as ref, d.title, d.kind, s.name as source, d.id as document_id, d.deleted as removed
    from feedback f join document d on d.id = f.document_id join source s on s.id = d.source_id
    where cast(:item as text) is null or f.item = :item or f.query_hash = :key
    order by f.at desc, d.external_id, d.id""")


def listed(connection: Connection, item: str | None = None, key: str = "") -> list[Json]:
    """All that was said, newest first; with `item` of those called so, in any project, and of the question `key`."""
    rows = connection.execute(_LISTED, {"item": item and item[:LONGEST_NAME], "key": key})
    return [dict(row) for row in rows.mappings()]
