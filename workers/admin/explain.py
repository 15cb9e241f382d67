"""Where one document stands, and why a question does or does not find it."""

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
from pipeline.ledger import documents, overview, search_indexes
from pipeline.search import Hit, SearchRequest, SearchResults
from pipeline.search.records import Filter, validity_note
from workers import search
from workers.runtime import Runtime, current_user

MOST_NAMED = 20
"""Documents listed if a name fits several."""


class SeveralDocuments(LarderError):
    """The name fits several documents."""

    code = "E004"
    name = "SEARCH_FAILURE"

    def __init__(self, name: str, candidates: Sequence[Json], *, more: bool) -> None:
        count = f"more than {len(candidates)}" if more else str(len(candidates))
        super().__init__(f"{truncated(name)!r} fits {count} documents", fix="give one of the ids")
        self.candidates = tuple(candidates)


def find(parts: Runtime, tenant: UUID, name: str) -> Json:
    """Everything the ledger knows of the one document that `name` means, and what search indexes hold of it.

    An id, an external id, the end of a path, or a part of a title.

    Raises:
        SeveralDocuments: it fits more than one; `candidates` are their facts.
        LarderError: it fits none.
    """
    wanted = name.strip().removeprefix("./")
    with parts.database.tenant(tenant) as connection:
        found = documents.find(connection, wanted, most=MOST_NAMED + 1) if wanted else []
        if not found:
            if why := _left_out(connection, wanted):
                raise LarderError(why, fix="mend it and run `larder index`")
            raise LarderError(
                f"no document is called {truncated(name)!r}",
                fix="give its id, its external id, the end of its path or a part of its title",
            )
        if len(found) > 1:
            candidates = [_facts(row) for row in found[:MOST_NAMED]]
            raise SeveralDocuments(name, candidates, more=len(found) > MOST_NAMED)
        held = search_indexes.of_document(connection, found[0]["id"])
        chunks = documents.searchable_texts(connection, found[0]["id"])
    _, whole = parts.keyring.opened(found[0]["metadata"])
    cut = search.are_truncated(parts, chunks)
    return {
        **_facts(found[0]),
        "metadata": whole,
        "indexes": held,
        "chunks_cut": None if cut is None else sum(cut),
    }


def _left_out(connection: Connection, wanted: str) -> str:
    """Why the newest walks did not take an item of this name or path; empty if they met none."""
    every = (one for problems in overview.newest_problems(connection).values() for one in problems)
    fits = (p for p in every if p["item"] and f"/{p['item']}".endswith(f"/{wanted}"))
    said = ((p["item"], p["reason"]) for p in fits)
    return next((f"not indexed: {why if item in why else f'{item}: {why}'}" for item, why in said), "")


def _facts(row: Json) -> Json:
    times = ("created_at", "updated_at", "last_indexed", "due_at", "lease_until")
    found = {**row, **{t: row[t].isoformat() if row[t] else None for t in times}}
    return {
        **found,
        "id": str(row["id"]),
        "project_id": str(row["project_id"]),
        "tags": list(row["tags"]),
        "searchable": bool(_is_found(row) and not row["hidden"] and not row["deleted"]),
        "next_try": found["due_at"] if row["state"] == "pending" else None,
    }


def why(parts: Runtime, tenant: UUID, facts: Json, request: SearchRequest) -> Json:
    """Why a question finds a document, or does not; `facts` are those of `find`.

    `{"found", "reason", "detail", "rank", "score", "explanation"}`; the reason is a word: found, beyond, below,
    filtered, candidates, no_match, empty, or what keeps the document from being searchable.
    """
    if missing := _not_searchable(facts):
        return _verdict(*missing)
    found = search.search(parts, tenant, replace(request, explain=True, trace=True), by=current_user())
    document = UUID(facts["id"])
    for rank, hit in enumerate((*found.hits, *found.beyond), 1):
        if hit.document.id == document:
            return _ranked(hit, rank, len(found.hits))
    for hit in found.below:
        if hit.document.id == document and (e := hit.explanation):
            said = (
                f"below the threshold: similarity {e.similarity or 0.0:.3f} where {e.min_similarity:.3f} is "
                "asked for, and none of the question's words stands in it"
            )
            return _verdict("below", said, hit)
    return _outside(parts, tenant, document, request, found)


def why_visible(caller: Caller, facts: Json) -> Json:
    """Which rules let a caller find a document, or keep it from them; `facts` are those of `find`.

    `{"visible", "rules": [{"rule", "passes", "detail"}]}`, with a rule for each layer of its `acl`.
    """
    missing, served = _not_searchable(facts), facts["served_level"]
    theirs = f"theirs: {', '.join(caller.projects or ('none',))}, and what is shared"
    rules = [
        ("tenant", True, f"both are of {caller.tenant_name}"),
        ("searchable", not missing, missing[1] if missing else "it is indexed"),
        ("project", caller.may_see(UUID(facts["project_id"])), f"it is of {facts['project']}; {theirs}"),
    ]
    for text, level in (("its text", facts["security_level"]), ("the text that is still found", served)):
        if level is not None:
            said = f"{text} is {level}; they see up to {caller.level}"
            rules.append(("security level", level in caller.levels, said))
    for layer in (*facts["acl"], *(facts["served_acl"] or ())):
        names = layer if isinstance(layer, list) else []
        held = [name for name in caller.readers if name in names]
        said = f"they are {' and '.join(held)}" if held else "they are none of these"
        rules.append(("acl", bool(held), f"open to {', '.join(map(str, names)) or 'nobody'}; {said}"))
    told = [{"rule": rule, "passes": passes, "detail": detail} for rule, passes, detail in rules]
    return {"visible": all(one["passes"] for one in told), "rules": told}


def _ranked(hit: Hit, rank: int, shown: int) -> Json:
    e = hit.explanation
    remarks = (hit.outdated and f"lowered: {hit.outdated}") or validity_note(hit.document)
    told = "".join(
        f" ({said})" for said in (remarks, e.feedback_why if e else "", hit.weak and "weak") if said
    )
    score = f"score {hit.score:.3f}{told}"
    if rank <= shown:
        return _verdict("found", f"found: rank {rank}, {score}", hit, rank)
    return _verdict("beyond", f"rank {rank}, beyond the {plural(shown, 'result')} shown; {score}", hit, rank)


def _is_found(facts: Json) -> bool:
    """By meaning, or by its words alone until it has its vectors."""
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
    parts: Runtime, tenant: UUID, document: UUID, request: SearchRequest, found: SearchResults
) -> Json:
    """It is not among the candidates: kept out by the filter, or too far down in both searches."""
    if not request.text.strip():
        return _verdict("empty", "the question is empty")
    names = [
        name
        for name, value in vars(request.filter).items()
        if value not in ((), None, {}) and not _alone(parts, tenant, document, request, {name: value})
    ]
    if names:
        listed = " and ".join(name.replace("_", " ") for name in names)
        return _verdict("filtered", f"kept out by the filter: {listed}")
    alone = _alone(parts, tenant, document, request, {})
    if not alone:
        return _verdict("no_match", "none of the question's words stands in it")
    e, ranked = alone[0].explanation, len((*found.hits, *found.beyond, *found.below))
    values = [("similarity {:.3f}", e.similarity), ("BM25 {:.2f}", e.bm25)] if e else []
    scores = [form.format(value) for form, value in values if value is not None]
    most = parts.rag.retrieval.candidates
    said = f"not among the {most} best of either search ({ranked} were ranked): {', '.join(scores)}"
    return _verdict("candidates", said, alone[0])


def _alone(parts: Runtime, tenant: UUID, document: UUID, request: SearchRequest, only: Json) -> Sequence[Hit]:
    """The document searched by itself, under some conditions of the filter."""
    narrow = Filter(only=(document,), **only)
    asked = replace(request, filter=narrow, explain=True, trace=True, k=None, min_similarity=-1.0)
    return search.retriever(parts, tenant).search(asked).hits
