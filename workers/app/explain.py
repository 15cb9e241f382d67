"""State of one document, and why a question does or does not find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy import Connection

from pipeline.access import Caller
from pipeline.documents import Json
from pipeline.documents.plain_text import plural
from pipeline.enrichment.text import truncated
from pipeline.errors import LarderError
from pipeline.ledger import ALL, documents, overview, search_indexes
from pipeline.search import Hit, SearchRequest, SearchResults
from pipeline.search.records import Filter, validity_note
from workers.app import search
from workers.runtime import Runtime, current_user

MOST_NAMED = 20
"""Most documents that are listed if a name fits several."""


class SeveralDocuments(LarderError):
    """The name fits several documents."""

    code = "E004"
    name = "SEARCH_FAILURE"

    def __init__(self, name: str, candidates: Sequence[Json], *, more: bool) -> None:
        count = f"more than {len(candidates)}" if more else str(len(candidates))
        super().__init__(f"{truncated(name)!r} fits {count} documents", fix="give one of the ids")
        self.candidates = tuple(candidates)


def find(runtime: Runtime, tenant: UUID, name: str) -> Json:
    """Facts of the one document that `name` means, from the ledger and the search indexes.

    An id, an external id, the end of a path, or a part of a title.

    Raises:
        SeveralDocuments: it fits more than one; `candidates` are their facts.
        LarderError: it fits none.
    """
    stripped = name.strip().removeprefix("./")
    with runtime.database.tenant(tenant) as connection:
        rows = documents.find(connection, stripped, most=MOST_NAMED + 1) if stripped else []
        if not rows:
            if why := _left_out(connection, stripped):
                raise LarderError(why, fix="correct it and run `larder index`")
            raise LarderError(
                f"no document is called {truncated(name)!r}",
                fix="give its id, its external id, the end of its path or a part of its title",
            )
        if len(rows) > 1:
            candidates = [_facts(row) for row in rows[:MOST_NAMED]]
            raise SeveralDocuments(name, candidates, more=len(rows) > MOST_NAMED)
        in_indexes = search_indexes.of_document(connection, rows[0]["id"])
        chunks = documents.searchable_texts(connection, rows[0]["id"])
    _, metadata = runtime.keyring.opened(rows[0]["metadata"])
    cut = search.are_truncated(runtime, chunks)
    return {
        **_facts(rows[0]),
        "metadata": metadata,
        "indexes": in_indexes,
        "chunks_cut": None if cut is None else sum(cut),
    }


def _left_out(connection: Connection, name: str) -> str:
    """Why the newest walks did not take an item of this name or path; empty if they met none."""
    every = (one for problems in overview.newest_problems(connection).values() for one in problems)
    fits = (p for p in every if p["item"] and f"/{p['item']}".endswith(f"/{name}"))
    reasons = ((p["item"], p["reason"]) for p in fits)
    return next((f"not indexed: {why if item in why else f'{item}: {why}'}" for item, why in reasons), "")


def _facts(row: Json) -> Json:
    times = ("created_at", "updated_at", "last_indexed", "due_at", "lease_until")
    facts = {**row, **{t: row[t].isoformat() if row[t] else None for t in times}}
    return {
        **facts,
        "id": str(row["id"]),
        "project_id": str(row["project_id"]),
        "tags": list(row["tags"]),
        "searchable": bool(_is_found(row) and not row["hidden"] and not row["deleted"]),
        "next_try": facts["due_at"] if row["state"] == "pending" else None,
    }


def why(runtime: Runtime, tenant: UUID, facts: Json, request: SearchRequest) -> Json:
    """Why a question finds a document, or does not; `facts` are those of `find`.

    `{"found", "reason", "detail", "rank", "score", "explanation"}`; the reason is a word: found, beyond, below,
    filtered, candidates, no_match, empty, or what keeps the document from being searchable.
    """
    if missing := _not_searchable(facts):
        return _verdict(*missing)
    results = search.search(runtime, tenant, replace(request, explain=True, trace=True), by=current_user())
    document = UUID(facts["id"])
    for rank, hit in enumerate((*results.hits, *results.beyond), 1):
        if hit.document.id == document:
            return _ranked(hit, rank, len(results.hits))
    for hit in results.below:
        if hit.document.id == document and (e := hit.explanation):
            detail = (
                f"below the threshold: similarity {e.similarity or 0.0:.3f} where {e.min_similarity:.3f} is "
                "asked for, and it contains none of the query's words"
            )
            return _verdict("below", detail, hit)
    return _outside(runtime, tenant, document, request, results)


def why_visible(caller: Caller, facts: Json) -> Json:
    """Rules by which a caller may find a document, or not; `facts` are those of `find`.

    `{"visible", "rules": [{"rule", "passes", "detail"}]}`, with a rule for each layer of its `acl`.
    """
    missing, served = _not_searchable(facts), facts["served_level"]
    allowed = f"theirs: {', '.join(caller.projects or ('none',))}, and what is shared"
    rules = [
        ("tenant", True, f"both are of {caller.tenant_name}"),
        ("searchable", not missing, missing[1] if missing else "it is indexed"),
        ("project", caller.may_see(UUID(facts["project_id"])), f"it is of {facts['project']}; {allowed}"),
    ]
    for text, level in (("its text", facts["security_level"]), ("the text that is still found", served)):
        if level is not None:
            sentence = f"{text} is {level}; they see up to {caller.level}"
            rules.append(("security level", level in caller.levels, sentence))
    for layer in (*facts["acl"], *(facts["served_acl"] or ())):
        names = layer if isinstance(layer, list) else []
        matching = [name for name in caller.readers if name in names]
        sentence = f"they are {' and '.join(matching)}" if matching else "they are none of these"
        rules.append(("acl", bool(matching), f"open to {', '.join(map(str, names)) or 'nobody'}; {sentence}"))
    rule_rows = [{"rule": rule, "passes": passes, "detail": detail} for rule, passes, detail in rules]
    return {"visible": all(one["passes"] for one in rule_rows), "rules": rule_rows}


def _ranked(hit: Hit, rank: int, hit_count: int) -> Json:
    e = hit.explanation
    remarks = (hit.outdated and f"lowered: {hit.outdated}") or validity_note(hit.document)
    suffix = "".join(
        f" ({remark})" for remark in (remarks, e.feedback_why if e else "", hit.weak and "weak") if remark
    )
    score = f"score {hit.score:.3f}{suffix}"
    if rank <= hit_count:
        return _verdict("found", f"found: rank {rank}, {score}", hit, rank)
    return _verdict(
        "beyond", f"rank {rank}, beyond the {plural(hit_count, 'result')} shown; {score}", hit, rank
    )


def _is_found(facts: Json) -> bool:
    """Whether searches can return it; by its words alone until it has its vectors."""
    return facts["indexed_version"] is not None or facts["chunk_count"] > 0


def _not_searchable(facts: Json) -> tuple[str, str] | None:
    if facts["deleted"]:
        return "deleted", "it is deleted: its source no longer has it"
    if facts["hidden"]:
        return "hidden", "it is hidden: the last complete walk of its source did not find it"
    if not _is_found(facts):
        waits = f"it is not indexed yet: state {facts['state']}, stage {facts['stage']}"
        return "not_indexed", waits + (f", last error: {facts['last_error']}" if facts["last_error"] else "")
    if not facts["chunk_count"]:
        return "no_text", "it has no text to search in"
    return None


def _verdict(reason: str, detail: str, hit: Hit | None = None, rank: int | None = None) -> Json:
    return {
        "found": reason == "found",
        "reason": reason,
        "detail": detail,
        "rank": rank,
        "score": round(hit.score, 6) if hit else None,
        "explanation": hit.explanation.to_json() if hit and hit.explanation else None,
    }


def _outside(
    runtime: Runtime, tenant: UUID, document: UUID, request: SearchRequest, results: SearchResults
) -> Json:
    """Verdict on a document outside the candidates: kept out by the filter, or ranked too low in both searches."""
    if not request.text.strip():
        return _verdict("empty", "the question is empty")
    names = [
        name
        for name, value in vars(request.filter).items()
        if value not in (ALL, (), None, {}) and not _alone(runtime, tenant, document, request, {name: value})
    ]
    if names:
        listed = " and ".join(name.replace("_", " ") for name in names)
        return _verdict("filtered", f"kept out by the filter: {listed}")
    alone = _alone(runtime, tenant, document, request, {})
    if not alone:
        return _verdict("no_match", "it contains none of the query's words")
    e, ranked = alone[0].explanation, len((*results.hits, *results.beyond, *results.below))
    values = [("similarity {:.3f}", e.similarity), ("BM25 {:.2f}", e.bm25)] if e else []
    scores = [form.format(value) for form, value in values if value is not None]
    most = runtime.rag.retrieval.candidates
    detail = f"not among the {most} best of either search ({ranked} were ranked): {', '.join(scores)}"
    return _verdict("candidates", detail, alone[0])


def _alone(
    runtime: Runtime, tenant: UUID, document: UUID, request: SearchRequest, only: Json
) -> Sequence[Hit]:
    """Hits of a search in this document alone, under some conditions of the filter."""
    narrow = Filter(only=(document,), **only)
    narrowed = replace(request, filter=narrow, explain=True, trace=True, k=None, min_similarity=-1.0)
    return search.retriever(runtime, tenant).search(narrowed).hits
