"""Where one document stands, and why a question does or does not find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from sqlalchemy import RowMapping, text

from pipeline.documents import Json
from pipeline.enrichment.text import clipped
from pipeline.errors import LarderError
from pipeline.ledger import search_indexes
from pipeline.search import Hit, SearchRequest, SearchResults
from pipeline.search.arms import LedgerFilter
from pipeline.search.chunks import Filter
from pipeline.search.validity import remark
from workers import search
from workers.runtime import Runtime

MOST_NAMED = 20
"""Documents listed if a name fits several."""


class SeveralDocuments(LarderError):
    """The name fits several documents."""

    code = "E004"
    name = "SEARCH_FAILURE"

    def __init__(self, name: str, candidates: Sequence[Json], *, more: bool) -> None:
        listed = "".join(
            f"\n  {c['id']}  {c['source']}  {c['external_id']}  {c['title']}" for c in candidates
        )
        count = f"more than {len(candidates)}" if more else str(len(candidates))
        super().__init__(f"{clipped(name)!r} fits {count} documents:{listed}", fix="give one of the ids")
        self.candidates = tuple(candidates)


_FACTS = """
    select d.id, d.external_id, s.name as source, d.source_type, d.kind, d.title, d.url, d.tags, d.metadata,
           d.state, d.stage, d.hidden, d.deleted, d.desired_version, d.indexed_version, d.pipeline_version,
           d.indexed_pipeline, d.attempts, d.crash_count, d.last_error, d.chunk_count, d.created_at, d.updated_at,
           d.last_indexed, d.due_at, d.lease_until, d.security_level, d.project_id,
           (select to_jsonb(l) from (select x.stage, x.code, x.reason, x.attempts, x.version, x.created_at
            from dead_letter x where x.document_id = d.id and x.resolved_at is null
            order by x.id desc limit 1) l) as dead_letter
    from document d join source s on s.id = d.source_id"""

# How a person may name a document, the surest first; the first that fits any decides.
_NAMES = (
    "cast(d.id as text) = lower(split_part(:name, ':', 1))",
    "d.external_id = :name or d.metadata ->> 'source_path' = :name or d.url = :name",
    """right('/' || d.external_id, length(:name) + 1) = '/' || :name
       or right('/' || (d.metadata ->> 'source_path'), length(:name) + 1) = '/' || :name""",
    "lower(d.title) = lower(:name)",
    "strpos(lower(d.title), lower(:name)) > 0",
)


def find(parts: Runtime, tenant: UUID, name: str) -> Json:
    """Everything the ledger knows of the one document that `name` means.

    An id, an external id, the end of a path, or a part of a title.

    Raises:
        SeveralDocuments: it fits more than one; the message lists them.
        LarderError: it fits none.
    """
    wanted = name.strip().removeprefix("./")
    for names in _NAMES if wanted else ():
        with parts.database.tenant(tenant) as connection:
            rows = connection.execute(
                text(f"{_FACTS} where {names} order by d.deleted, d.external_id, d.id limit :most"),
                {"name": wanted, "most": MOST_NAMED + 1},
            )
            found = [_facts(row) for row in rows.mappings()]
        if len(found) == 1:
            return _whole(parts, tenant, found[0])
        if found:
            raise SeveralDocuments(name, found[:MOST_NAMED], more=len(found) > MOST_NAMED)
    raise LarderError(
        f"no document is called {clipped(name)!r}",
        fix="give its id, its external id, the end of its path or a part of its title",
    )


def _chunks_cut(parts: Runtime, tenant: UUID, document: str) -> int | None:
    """Chunks whose ends the model does not read and only words find; None if the model cannot be opened."""
    try:
        embedder = parts.embedder
    except LarderError:
        return None
    if embedder.limits.oversize != "cut":
        return 0
    with parts.database.tenant(tenant) as connection:
        rows = connection.execute(
            text("""
                select concat_ws(E'\\n\\n', nullif(context, ''), content) from searchable_chunk
                where document_id = :document and index_id = (select id from search_index where status = 'active')"""),
            {"document": document},
        ).scalars()
        return sum(embedder.count_tokens(chunk) > embedder.limits.tokens_per_text for chunk in rows)


def _whole(parts: Runtime, tenant: UUID, facts: Json) -> Json:
    """The facts with what search indexes hold of the document."""
    with parts.database.tenant(tenant) as connection:
        held = search_indexes.of_document(connection, UUID(facts["id"]))
    return {**facts, "indexes": held, "chunks_cut": _chunks_cut(parts, tenant, facts["id"])}


def _facts(row: RowMapping) -> Json:
    times = ("created_at", "updated_at", "last_indexed", "due_at", "lease_until")
    found = {**row, **{t: row[t].isoformat() if row[t] else None for t in times}}
    return {
        **found,
        "id": str(row["id"]),
        "project_id": str(row["project_id"]),
        "tags": list(row["tags"]),
        "searchable": bool(row["indexed_version"] and not row["hidden"] and not row["deleted"]),
        "next_try": found["due_at"] if row["state"] == "pending" else None,
    }


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Why a question finds a document, or does not."""

    found: bool
    reason: str
    """One word: found, beyond, below, filtered, candidates, empty, or what keeps it from being searchable."""
    sentence: str
    rank: int | None = None
    hit: Hit | None = None

    def to_json(self) -> Json:
        """`{"found", "reason", "detail", "rank", "score", "explanation"}`."""
        parts = self.hit.explanation.to_json() if self.hit and self.hit.explanation else None
        return {
            "found": self.found,
            "reason": self.reason,
            "detail": self.sentence,
            "rank": self.rank,
            "score": round(self.hit.score, 6) if self.hit else None,
            "explanation": parts,
        }


def why(parts: Runtime, tenant: UUID, facts: Json, request: SearchRequest) -> Verdict:
    """What the search makes of this document; `facts` are those of `find`."""
    missing = _not_searchable(facts)
    if missing:
        return Verdict(found=False, reason=missing[0], sentence=missing[1])
    found = search.search(parts, tenant, replace(request, explain=True, trace=True))
    document = UUID(facts["id"])
    for rank, hit in enumerate((*found.hits, *found.beyond), 1):
        if hit.document.id == document:
            return _ranked(hit, rank, len(found.hits))
    for hit in found.below:
        if hit.document.id == document:
            return _below(hit)
    return _outside(parts, tenant, document, request, found)


_STATES = (
    ("deleted", "deleted", "it is deleted: its source no longer has it"),
    ("hidden", "hidden", "it is hidden: the last complete walk of its source did not find it"),
)


def _not_searchable(facts: Json) -> tuple[str, str] | None:
    for column, reason, sentence in _STATES:
        if facts[column]:
            return reason, sentence
    if facts["indexed_version"] is None:
        waits = f"it is not indexed yet: state {facts['state']}, stage {facts['stage']}"
        return "not_indexed", waits + (f", last error: {facts['last_error']}" if facts["last_error"] else "")
    if not facts["chunk_count"]:
        return "no_text", "it has no text to search in"
    return None


def _ranked(hit: Hit, rank: int, shown: int) -> Verdict:
    score = f"score {hit.score:.3f}"
    if hit.standing is not None:
        score += f" (lowered: {hit.standing.why})"
    elif said := remark(hit.document):
        score += f" ({said})"
    if hit.explanation is not None and hit.explanation.feedback_why:
        score += f" ({hit.explanation.feedback_why})"
    if rank <= shown:
        return Verdict(
            found=True, reason="found", sentence=f"found: rank {rank}, {score}", rank=rank, hit=hit
        )
    sentence = f"rank {rank}, beyond the {shown} results shown; {score}"
    return Verdict(found=False, reason="beyond", sentence=sentence, rank=rank, hit=hit)


def _below(hit: Hit) -> Verdict:
    e = hit.explanation
    similarity, least = (e.similarity, e.min_similarity) if e else (None, 0.0)
    return Verdict(
        found=False,
        reason="below",
        sentence=f"below the threshold: similarity {similarity or 0.0:.3f} where {least:.3f} is asked for, "
        "and none of the question's words stands in it",
        hit=hit,
    )


def _outside(
    parts: Runtime, tenant: UUID, document: UUID, request: SearchRequest, found: SearchResults
) -> Verdict:
    """It is not among the candidates: kept out by the filter, or too far down in both searches."""
    if not request.text.strip():
        return Verdict(found=False, reason="empty", sentence="the question is empty")
    names = [
        name
        for name, value in vars(request.filter).items()
        if value not in ((), None, {}) and not _alone(parts, tenant, document, request, {name: value})
    ]
    if names:
        listed = " and ".join(name.replace("_", " ") for name in names)
        return Verdict(found=False, reason="filtered", sentence=f"kept out by the filter: {listed}")
    alone = _alone(parts, tenant, document, request, {})
    if not alone:
        return Verdict(found=False, reason="no_match", sentence="none of the question's words stands in it")
    best, last = alone[0], (*found.hits, *found.beyond, *found.below)
    e, candidates = best.explanation, parts.rag.retrieval.candidates
    scores = f"similarity {e.similarity:.3f}" if e and e.similarity is not None else ""
    scores += f"{', ' if scores else ''}BM25 {e.bm25:.2f}" if e and e.bm25 is not None else ""
    return Verdict(
        found=False,
        reason="candidates",
        sentence=f"not among the {candidates} best of either search ({len(last)} were ranked): {scores}",
        hit=best,
    )


def _alone(parts: Runtime, tenant: UUID, document: UUID, request: SearchRequest, only: Json) -> Sequence[Hit]:
    """The document searched by itself, under some conditions of the filter."""
    narrow: Filter = LedgerFilter(only=(document,), **only)
    return search.search(
        parts, tenant, replace(request, filter=narrow, explain=True, trace=True, k=None, min_similarity=-1.0)
    ).hits
