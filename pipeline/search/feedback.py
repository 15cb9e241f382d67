"""Feedback: people mark documents of an answer as useful or noise for a question, which changes their scores."""

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

USEFUL_FOR_QUERY, NOISE_FOR_QUERY = 1.0, -3.0
"""Log-odds that a verdict on the same question adds."""
FOR_OTHERS, MOST_FOR_OTHERS = 0.15, 0.6
"""Log-odds that each verdict on another question adds (useful minus noise), and their limit up or down."""
LEAST, MOST = -3.0, 1.0
SHARE = 0.25
"""Largest share of its score that a document gains or loses."""
LONGEST_NAME = 200
LONGEST_QUESTION = 20_000
"""Most stored characters of each field of a question."""

MOST_COUNTED = 200
"""Most verdicts on other questions that count, the newest first, so that popular documents do not slow searches."""

_MARK = "case b.verdict when 'useful' then 1 else -1 end"
OF_DOCUMENT = f"""(
    select array[coalesce((select {_MARK} from feedback b
                           where b.document_id = d.id and b.query_hash = %(query_key)s), 0),
                 coalesce(sum(f.mark) filter (where f.query_hash <> %(query_key)s), 0)]
    from (select b.query_hash, {_MARK} as mark from feedback b where b.document_id = d.id
          order by b.at desc limit {MOST_COUNTED}) f
    having count(*) > 0)"""
"""The `Marks` of a document `d` for the question with the key `query_key`, as an array; null without feedback."""


class Marks(NamedTuple):
    """Feedback on one document."""

    for_query: int
    """Verdict for this question: 1 useful, -1 noise, 0 none."""
    for_others: int
    """Verdicts for other questions: number of useful minus number of noise."""

    @property
    def shift(self) -> float:
        """Log-odds that the marks add to a document's relevance, from LEAST to MOST."""
        for_query = (0.0, USEFUL_FOR_QUERY, NOISE_FOR_QUERY)[self.for_query]
        for_others = max(-MOST_FOR_OTHERS, min(MOST_FOR_OTHERS, FOR_OTHERS * self.for_others))
        return max(LEAST, min(MOST, for_query + for_others))

    @property
    def factor(self) -> float:
        """Factor for a score, from 1 - SHARE to 1 + SHARE."""
        return 1.0 + SHARE * math.tanh(self.shift)

    @property
    def why(self) -> str:
        """Description, such as `marked useful for this question, +1.0`; empty without effect."""
        for_query = f"{('', 'useful', 'noise')[self.for_query]} for this question" if self.for_query else ""
        for_others = f"{'useful' if self.for_others > 0 else 'noise'} for others (net {self.for_others:+d})"
        texts = [part for part in (for_query, for_others if self.for_others else "") if part]
        return f"marked {' and '.join(texts)}, {self.shift:+.2f}".removesuffix("0") if texts else ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question that documents are marked for."""

    key: str
    item: str
    """Id of a backlog item, else the beginning of the text."""
    title: str = ""
    project: str = ""
    """Name of the item's project; empty for a plain question."""
    content: Mapping[str, Any]
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
    """Record a verdict on a document for a question; returns the previous verdict, which it replaces.

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
            {n: v[:LONGEST_QUESTION] if isinstance(v, str) else v for n, v in question.content.items()}
        ),
        "by": by,
    }
    row = connection.execute(_GIVE, values).one_or_none()
    if row is None:
        raise RequestRejected(f"there is no document {document}", fix="mark one that a search finds")
    before: Verdict | None = row.before
    return before


def undo(connection: Connection, key: str, document: UUID) -> Verdict | None:
    """Delete a verdict and return it; None if there is none."""
    verdict: Verdict | None = connection.execute(
        text("delete from feedback where query_hash = :key and document_id = :document returning verdict"),
        {"key": key, "document": document},
    ).scalar()
    return verdict


_LISTED = text("""
    select f.query_hash as key, f.item, f.title as item_title, f.project, f.verdict, f.at, f.given_by as by, f.question,
           d.external_id as ref, d.title, d.kind, s.name as source, d.id as document_id, d.deleted as removed
    from feedback f join document d on d.id = f.document_id join source s on s.id = d.source_id
    where cast(:item as text) is null or f.item = :item or f.query_hash = :key
    order by f.at desc, d.external_id, d.id""")


def listed(connection: Connection, item: str | None = None, key: str = "") -> list[Json]:
    """All verdicts, newest first; with `item` only those for items with this id, in any project, or for `key`."""
    rows = connection.execute(_LISTED, {"item": item and item[:LONGEST_NAME], "key": key})
    return [dict(row) for row in rows.mappings()]
