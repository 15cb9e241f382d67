"""A search as the configuration asks for it, and its answer as JSON."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, get_args
from uuid import UUID

import yaml
from pydantic import TypeAdapter, ValidationError

from connectors.documents.values import BoundedLoader
from pipeline.access import ADMIN, Caller
from pipeline.database.encryption import SEALED
from pipeline.documents import Json, Kind, SourceType
from pipeline.documents.plain_text import first_names
from pipeline.errors import ConfigurationError, LarderError, NotFound, RequestRejected
from pipeline.errors.http_rules import web_address
from pipeline.ledger import ALL, SHARED, documents, project_id, sources, storable, upkeep
from pipeline.ledger.audit import MOST_QUERY
from pipeline.reranking import Reranker
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, SearchResults, Weights
from pipeline.search.cache import sees_all
from pipeline.search.question import Synonyms
from pipeline.search.records import Filter, Mode, age_days, validity_note
from pipeline.search.retriever import read_document
from workers.monitoring import metrics
from workers.runtime import Runtime
from workers.settings.monitoring import AlertCondition

logger = logging.getLogger(__name__)

DISABLED = 5
"""Degradation level of an installation that is switched off."""


def retriever(runtime: Runtime, tenant: UUID) -> Retriever:
    """The search of a tenant."""
    return Retriever(
        runtime.database,
        tenant,
        lambda index: runtime.allowance.budgeted(tenant, runtime.embedder_of(index), index.model),
        options_of(runtime),
        caches=runtime.caches,
        reranker=partial(_reranker, runtime),
        rerank=runtime.rerank_options,
        stores=runtime.stores,
        watch=runtime.health.watching,
        performed=partial(
            _performed, runtime, tenant, runtime.rag.monitoring.alerts.in_force.get("slow_query")
        ),
    )


def _performed(
    runtime: Runtime,
    tenant: UUID,
    slow: AlertCondition | None,
    request: SearchRequest,
    results: SearchResults,
    seconds: float,
) -> None:
    """Count and tell of a search; its text only to who asks for everything, and only its beginning."""
    if metrics.WARMING.get():
        return
    log_fields = {
        "query": request.text[:MOST_QUERY],
        "resultCount": len(results.hits),
        "topScore": results.hits[0].score if results.hits else None,
        "duration": round(seconds, 3),
        "degradation_level": results.degradation_level,
        "tenant": str(tenant),
    }
    logger.debug("search_performed", extra=log_fields)
    metrics.record_search(seconds, len(results.hits))
    metrics.QUERY_CACHE.set(runtime.caches.size)
    took = 1000 * seconds
    if slow is not None and took >= slow.threshold:
        message = f"a search took {took:.0f} ms: larder status"
        with suppress(LarderError), runtime.database.control() as connection:
            upkeep.raise_alert(connection, slow.name, "", severity=slow.severity, message=message)


def options_of(runtime: Runtime) -> RetrievalOptions:
    """Options of the search, from the configuration."""
    r = runtime.rag.retrieval
    return RetrievalOptions(
        top_k=r.top_k,
        max_top_k=r.max_top_k,
        candidates=r.candidates,
        min_similarity=r.min_similarity,
        max_distance=r.max_distance,
        weights=Weights(vector=r.weights.vector, keyword=r.weights.keyword, title=r.weights.title),
        exact_below=r.exact_below,
        synonyms=synonyms_of(runtime),
        languages=runtime.rag.languages,
    )


def synonyms_of(runtime: Runtime) -> Synonyms:
    """Words that mean the same here, none if no file is named.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    path = runtime.rag.retrieval.synonyms
    return read_synonyms(runtime.settings.resolve(path)) if path else Synonyms()


MOST_SYNONYM_BYTES = 1_000_000


_GROUPS = TypeAdapter(list[list[str | int]])


def _listed(loaded: Any) -> Any:
    if isinstance(loaded, dict):
        return [[word, *(more if isinstance(more, list) else [more])] for word, more in loaded.items()]
    return loaded or []


def read_synonyms(path: Path) -> Synonyms:
    """The groups in `path`: a list of lists of words, or words with a list of what else they are called.

    Raises:
        ConfigurationError: there is no such file, it is too long, or it has another form.
    """
    why = f"is larger than {MOST_SYNONYM_BYTES:,} bytes"
    try:
        if path.stat().st_size <= MOST_SYNONYM_BYTES:
            loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=BoundedLoader)  # noqa: S506
            groups = _GROUPS.validate_python(_listed(loaded), strict=True)
            return Synonyms.from_groups([[str(word) for word in group] for group in groups])
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        why = "cannot be read: it is not UTF-8"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = f"is no YAML, see line {mark.line + 1}" if mark else "is no YAML"
    except ValidationError as error:
        location = error.errors()[0]["loc"]
        why = (
            f"has an entry that is no list of words: {int(location[0]) + 1}"
            if location
            else "is no list of groups"
        )
    raise ConfigurationError(
        f"retrieval.synonyms: {path} {why}", fix="write one list of words per group: - [k8s, kubernetes]"
    )


class _TimedReranker:
    """A model of the second look, whose calls are timed."""

    def __init__(self, model: Reranker) -> None:
        self.name = model.name
        self._model = model

    def scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Score the texts as the model does, with the time measured."""
        with metrics.timed(metrics.RERANKING):
            return self._model.scores(query, texts)


def _reranker(runtime: Runtime) -> Reranker | None:
    """The model of the second look; what keeps it from being loaded is logged, for a search does not tell."""
    try:
        reranker = runtime.reranker
    except LarderError as error:
        logger.warning("searches go without the reranker: %s", error)
        raise
    return reranker and _TimedReranker(reranker)


def search(runtime: Runtime, tenant: UUID, request: SearchRequest, *, by: str) -> SearchResults:
    """The answer of this installation to `by`, which is audited; an empty one with level 5 if it is switched off."""
    if not runtime.rag.enabled:
        return SearchResults(degradation_level=DISABLED)
    results = retriever(runtime, tenant).search(request)
    if runtime.rag.security.audit:
        runtime.audit_log.search(tenant, request.text, len(results.hits), by=by)
    return results


LONGEST_QUERY = 10_000
"""Characters."""
MOST_K = 2**31 - 1


def _check(text: object, k: object, **moments: object) -> None:
    if not (isinstance(text, str) and 0 < len(text) <= LONGEST_QUERY):
        raise RequestRejected(f"text must be a question of 1 to {LONGEST_QUERY:,} characters")
    if k is not None and not (isinstance(k, int) and 0 < k <= MOST_K):
        raise RequestRejected("k must be a whole number from 1")
    for name, moment in moments.items():
        if moment is not None and getattr(moment, "tzinfo", None) is None:
            raise RequestRejected(f"{name} must be a time with a zone, such as datetime.now(UTC)")


def _words(name: str, values: Sequence[object]) -> tuple[str, ...]:
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise RequestRejected(f"{name}[{number}] is no text")
    return tuple(map(str, values))


def request_of(
    text: str,
    *,
    k: int | None = None,
    mode: str = "hybrid",
    source_types: Sequence[str] = (),
    kinds: Sequence[str] = (),
    tags: Sequence[str] = (),
    sources: Sequence[str] = (),
    since: datetime | None = None,
    until: datetime | None = None,
    metadata: Mapping[str, Any] | None = None,
    explain: bool = False,
) -> SearchRequest:
    """A question with its conditions, as programs ask it.

    Raises:
        RequestRejected: a word means nothing; the message says which and what is known.
    """
    _check(text, k, since=since, until=until)
    try:
        condition = Filter(
            source_types=tuple(map(SourceType.parse, _words("source_types", source_types))),
            kinds=tuple(map(Kind, _words("kinds", kinds))),
            tags=_words("tags", tags),
            sources=_words("sources", sources),
            since=since,
            until=until,
            metadata=tuple((metadata or {}).items()),
        )
        words = storable(text, nul="\ufffd")
        return SearchRequest(text=words, k=k, mode=mode_of(mode), filter=condition, explain=explain)
    except (ValueError, ConfigurationError) as error:
        raise RequestRejected(str(error)) from None


def visible_filter(runtime: Runtime, caller: Caller, projects: Sequence[str] = ()) -> Filter:
    """Filter for what the caller may see of these projects; of all of theirs if none is named.

    Raises:
        NotFound: there is no such project.
        Forbidden: it is not the caller's.
    """
    visible_projects = caller.own_projects
    if projects:
        with runtime.database.tenant(caller.tenant) as connection:
            visible_projects = tuple(sorted({caller.project(connection, name) for name in projects}))
    return replace(caller.search_filter, projects=visible_projects)


def search_as(
    runtime: Runtime, caller: Caller, request: SearchRequest, projects: Sequence[str] = ()
) -> SearchResults:
    """The answer as far as the caller may see it, from these projects; raises as `visible_filter` does.

    Who may not see all documents is not told the parts of scores that come from counts over all.
    """
    s = visible_filter(runtime, caller, projects)
    limited = replace(
        request.filter, security_levels=s.security_levels, readers=s.readers, projects=s.projects
    )
    results = search(runtime, caller.tenant, replace(request, filter=limited), by=caller.subject)
    explained = [hit for hit in results.hits if hit.explanation]
    if not explained or sees_all(runtime.database, caller.tenant, visible_filter(runtime, caller)):
        return results
    limited_hits = [
        replace(hit, explanation=e.without_statistics()) for hit in explained if (e := hit.explanation)
    ]
    return replace(results, hits=limited_hits)


def document_as(runtime: Runtime, caller: Caller, document: UUID) -> Json:
    """A document with its whole text, if the caller may see it; its columns are those of `read_document`.

    Raises:
        NotFound: there is none that they may know of.
    """
    document_filter = replace(visible_filter(runtime, caller), only=(document,))
    document_row = read_document(runtime.database, caller.tenant, document_filter)
    if document_row is None:
        raise NotFound("there is no such document")
    document_row["url"] = web_address(document_row["url"])
    sealed = document_row["metadata"].pop(SEALED, None)
    if sealed and caller.may(ADMIN):
        _, document_row["metadata"] = runtime.keyring.opened({**document_row["metadata"], SEALED: sealed})
    return document_row


def holds_documents(runtime: Runtime, tenant: UUID) -> bool:
    """False if there is nothing that a search of this tenant could find."""
    with runtime.database.tenant(tenant) as connection:
        return documents.exist(connection)


def mode_of(word: str) -> Mode:
    """The mode that `word` names.

    Raises:
        ConfigurationError: there is none.
    """
    modes: tuple[Mode, ...] = get_args(Mode)
    for mode in modes:
        if mode == word.strip().lower():
            return mode
    raise ConfigurationError(f"unknown mode {word!r}", fix=f"use one of {', '.join(modes)}")


MOST_NAMED = 5


def names_in(words: Iterable[str]) -> list[str]:
    """Names that are divided by commas, each once."""
    return list(dict.fromkeys(name for word in words for part in word.split(",") if (name := part.strip())))


def unknown_projects(runtime: Runtime, tenant: UUID, names: Iterable[str]) -> list[str]:
    """A sentence for each of these projects that holds no documents; what is shared may be empty."""
    with runtime.database.tenant(tenant) as connection:
        stored_projects = sources.projects(connection)
    existing_ids = {*stored_projects, project_id(tenant, SHARED)}
    missing = [n for n in names if n != ALL and project_id(tenant, n) not in existing_ids]
    there_are = (
        f"there are {first_names([*stored_projects.values()], MOST_NAMED)}"
        if stored_projects
        else "nothing is indexed yet"
    )
    return [f"project {name!r} holds no documents; {there_are}" for name in missing]


def are_truncated(runtime: Runtime, texts: Sequence[str]) -> list[bool] | None:
    """Tell for each text of a chunk whether the model reads only its beginning; None if the model cannot be opened."""
    try:
        embedder = runtime.embedder
    except LarderError:
        return None
    most = embedder.limits.tokens_per_text if embedder.limits.oversize == "cut" else None
    return [most is not None and embedder.count_tokens(text) > most for text in texts]


def to_json(runtime: Runtime, tenant: UUID, search_results: SearchResults, *, local: bool = False) -> Json:
    """`{"results": [...], "degradation_level", "weak"}`; `explanation` if it was asked for, `partial` during loads.

    `store` is there where vector stores beside PostgreSQL are configured.
    Addresses of files are told to who is on this machine (`local`) alone.
    """
    facts: Mapping[UUID, Json] = {}
    if search_results.hits:
        with runtime.database.tenant(tenant) as connection:
            facts = documents.facts(connection, [hit.document.id for hit in search_results.hits])
    return {
        "results": [
            hit_json(hit, facts.get(hit.document.id, {}), local=local) for hit in search_results.hits
        ],
        "degradation_level": search_results.degradation_level,
        "weak": search_results.weak,
        **({"store": search_results.store} if runtime.stores and search_results.store else {}),
        **({"partial": vars(search_results.partial)} if search_results.partial else {}),
    }


def hit_json(hit: Hit, facts: Json, *, local: bool) -> Json:
    """One result; the document's own metadata stand beside ours, which win."""
    d = hit.document
    result: Json = {
        "id": hit.id,
        "document_id": str(d.id),
        "content": hit.chunk.content,
        "score": round(hit.score, 6),
        "weak": hit.weak,
        "metadata": {
            **d.metadata,
            "source": d.source,
            "source_type": d.source_type.value,
            "kind": d.kind.value,
            "title": d.title,
            "url": d.url if local else web_address(d.url),
            "tags": list(d.tags),
            "created_at": d.created_at.isoformat() if d.created_at else None,
            "updated_at": d.updated_at.isoformat() if d.updated_at else None,
            "context": hit.chunk.context,
            "chunk_index": hit.chunk.ord,
            "chunk_total": facts.get("chunk_count"),
            "source_path": d.metadata.get("source_path") or facts.get("external_id"),
            "external_id": facts.get("external_id"),
            "project_id": str(d.project_id) if d.project_id else None,
            "security_level": facts.get("security_level"),
            "age_days": age_days(d),
        },
    }
    if note := validity_note(d):
        result["metadata"]["standing"] = note
    if hit.explanation is not None:
        result["explanation"] = hit.explanation.to_json()
    return result
