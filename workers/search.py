"""A search as the doors ask for it: words of a person in, JSON out."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, get_args
from uuid import UUID
from zoneinfo import ZoneInfo

import yaml

from pipeline.database.tenancy import ALL, SHARED, project_id
from pipeline.documents import Json, Kind, SourceType
from pipeline.errors import ConfigurationError, LarderError
from pipeline.ledger import documents, sources
from pipeline.reranking import Reranker
from pipeline.search import Hit, RetrievalOptions, Retriever, SearchRequest, SearchResults, Weights
from pipeline.search.question import Synonyms
from pipeline.search.records import Filter, Mode
from pipeline.search.validity import age_days, remark
from workers.runtime import Runtime

logger = logging.getLogger(__name__)

DISABLED = 5
"""Degradation level of an installation that is switched off."""

_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class FilterWords:
    """A filter in a person's words."""

    source_types: Sequence[str] = ()
    kinds: Sequence[str] = ()
    tags: Sequence[str] = ()
    sources: Sequence[str] = ()
    projects: Sequence[str] = ()
    """Ids or names; all of the tenant's if none is named."""
    since: str | None = None
    until: str | None = None
    metadata: Sequence[str] = ()
    """`key=value`."""
    security_levels: Sequence[str] = ()
    exclude: Sequence[str] = ()
    """Ids of documents."""


def retriever(parts: Runtime, tenant: UUID) -> Retriever:
    """The search of a tenant."""
    return Retriever(
        parts.database,
        tenant,
        lambda index: parts.allowance.within(tenant, parts.embedder_of(index), index.model),
        options_of(parts),
        caches=parts.caches,
        reranker=lambda: _reranker(parts),
        rerank=parts.rerank_options,
        watch=parts.health.watching,
    )


def options_of(parts: Runtime) -> RetrievalOptions:
    """How the configuration asks to search."""
    r = parts.rag.retrieval
    return RetrievalOptions(
        top_k=r.top_k,
        max_top_k=r.max_top_k,
        candidates=r.candidates,
        min_similarity=r.min_similarity,
        max_distance=r.max_distance,
        weights=Weights(
            vector=r.weights.vector,
            keyword=r.weights.keyword,
            title=r.weights.title,
            covered=r.weights.covered,
            centroid=r.weights.centroid,
            outdated=r.weights.outdated,
        ),
        exact_below=r.exact_below,
        synonyms=synonyms_of(parts),
        languages=parts.rag.languages,
    )


def synonyms_of(parts: Runtime) -> Synonyms:
    """Words that mean the same here, none if no file is named.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    path = parts.rag.retrieval.synonyms
    return read_synonyms(parts.settings.resolve(path)) if path else Synonyms()


MOST_SYNONYM_BYTES = 1_000_000


def read_synonyms(path: Path) -> Synonyms:
    """The groups in `path`: a list of lists of words, or words with a list of what else they are called.

    Raises:
        ConfigurationError: there is no such file, it is too long, or it has another form.
    """
    try:
        if path.stat().st_size > MOST_SYNONYM_BYTES:
            raise ConfigurationError(
                f"retrieval.synonyms: {path} is larger than {MOST_SYNONYM_BYTES:,} bytes",
                fix="make it shorter",
            )
        given = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigurationError(
            f"retrieval.synonyms: {path} cannot be read: {why}", fix="correct the path or the file"
        ) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(
            f"retrieval.synonyms: {path}{line} is no YAML", fix="write one list of words per group"
        ) from None
    return Synonyms.of(_groups(given, path))


def _groups(given: Any, path: Path) -> list[list[str]]:
    def words_of(row: Any) -> list[Any]:
        return row if isinstance(row, list) else [row]

    if isinstance(given, dict):
        groups = [(repr(key), [key, *words_of(row)]) for key, row in given.items()]
    else:
        rows = given if isinstance(given, list) else [None] * bool(given)
        groups = [(f"entry {number}", words_of(row)) for number, row in enumerate(rows, 1)]
    for name, group in groups:
        if not all(isinstance(word, str | int) for word in group):
            raise ConfigurationError(
                f"retrieval.synonyms: {path}: {name} is no list of words",
                fix="write for example - [k8s, kubernetes]",
            )
    return [[str(word) for word in group] for _, group in groups]


def _reranker(parts: Runtime) -> Reranker | None:
    """The model of the second look; what keeps it from being loaded is logged, for a search does not tell."""
    try:
        return parts.reranker
    except LarderError as error:
        logger.warning("searches go without the reranker: %s", error)
        raise


def search(parts: Runtime, tenant: UUID, request: SearchRequest) -> SearchResults:
    """The answer of this installation; an empty one with level 5 if it is switched off."""
    if not parts.rag.enabled:
        return SearchResults(degradation_level=DISABLED)
    return retriever(parts, tenant).search(request)


def asked(text: str) -> str:
    """What a person asks.

    Raises:
        ConfigurationError: nothing.
    """
    if not text.strip():
        raise ConfigurationError("the question is empty", fix="write what is to be found")
    return text


def holds_documents(parts: Runtime, tenant: UUID) -> bool:
    """False if there is nothing that a search of this tenant could find."""
    with parts.database.tenant(tenant) as connection:
        return documents.exist(connection)


def mode_of(word: str) -> Mode:
    """The mode that `word` names.

    Raises:
        ConfigurationError: there is none.
    """
    known: tuple[Mode, ...] = get_args(Mode)
    for mode in known:
        if mode == word.strip().lower():
            return mode
    raise ConfigurationError(f"unknown mode {word!r}", fix=f"use one of {', '.join(known)}")


def condition(parts: Runtime, tenant: UUID, wanted: FilterWords, now: datetime | None = None) -> Filter:
    """The filter that `wanted` asks for.

    Raises:
        ConfigurationError: a word means nothing; the message says which and what is known.
    """
    zone = ZoneInfo(parts.rag.timezone)
    now = now or datetime.now(UTC)
    since = moment("--since", wanted.since, now, zone) if wanted.since else None
    until = moment("--until", wanted.until, now, zone, end=True) if wanted.until else None
    if since and until and since >= until:
        raise ConfigurationError(
            f"--since {wanted.since} is not before --until {wanted.until}: nothing lies between them",
            fix="change one of them",
        )
    return Filter(
        source_types=_known("--source-type", wanted.source_types, SourceType.parse),
        kinds=_known("--kind", wanted.kinds, _kind),
        tags=tuple(wanted.tags),
        sources=_sources(parts, tenant, wanted.sources),
        projects=tuple(sorted({project_id(tenant, name) for name in wanted.projects})),
        since=since,
        until=until,
        texts=tuple(_pair(word) for word in wanted.metadata),
        security_levels=tuple(wanted.security_levels),
        exclude=_known("--exclude", wanted.exclude, _id),
    )


def _known(option: str, words: Iterable[str], parse: Callable[[str], _Value]) -> tuple[_Value, ...]:
    try:
        return tuple(parse(word) for word in words)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}", fix="use one of the known values") from None


def _kind(word: str) -> Kind:
    try:
        return Kind(word.strip().lower())
    except ValueError:
        raise ValueError(f"unknown kind {word!r}; known are {', '.join(Kind)}") from None


def _id(word: str) -> UUID:
    """A document's id, or that of one of its hits."""
    try:
        return UUID(word.strip().partition(":")[0])
    except ValueError:
        raise ValueError(f"{word!r} is no id of a document") from None


def _sources(parts: Runtime, tenant: UUID, names: Sequence[str]) -> tuple[str, ...]:
    if names:
        with parts.database.tenant(tenant) as connection:
            known = [row.name for row in sources.listed(connection)]
        for name in names:
            if name not in known:
                listed = ", ".join(known) or "no source is known yet"
                raise ConfigurationError(f"--source: there is no source {name!r}", fix=f"known are: {listed}")
    return tuple(names)


def _pair(word: str) -> tuple[str, str]:
    key, mark, value = word.partition("=")
    if not mark or not key.strip():
        raise ConfigurationError(
            f"--metadata {word!r} is not of the form KEY=VALUE",
            fix="write for example --metadata team=search",
        )
    return key.strip(), value


MOST_NAMED = 5


def names_in(words: Iterable[str]) -> list[str]:
    """Names that are divided by commas, each once."""
    return list(dict.fromkeys(name for word in words for part in word.split(",") if (name := part.strip())))


def unknown_projects(parts: Runtime, tenant: UUID, names: Iterable[str]) -> list[str]:
    """A sentence for each of these projects that holds no documents; what is shared may be empty."""
    with parts.database.tenant(tenant) as connection:
        held = sources.projects(connection)
    there = {*held, project_id(tenant, SHARED)}
    missing = [n for n in names if n != ALL and project_id(tenant, n) not in there]
    there_are = f"there are {listed([*held.values()])}" if held else "nothing is indexed yet"
    return [f"project {name!r} holds no documents; {there_are}" for name in missing]


def listed(names: Sequence[str]) -> str:
    """The first few names, divided by commas."""
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")


_AGO = re.compile(r"(\d{1,6})\s*([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def moment(option: str, word: str, now: datetime, zone: ZoneInfo, *, end: bool = False) -> datetime:
    """The moment that `word` means: 2025-01-31, an RFC 3339 time, or how long ago (12h, 7d).

    A day is one of `zone`; with `end` it is the day's end, so that a day given as the last one counts whole. A time
    without an offset is one of `zone`, too.

    Raises:
        ConfigurationError: it is none of these.
    """
    short = word.strip()
    ago = _AGO.fullmatch(short.lower())
    try:
        if ago:
            return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        found = datetime.fromisoformat(short)
        if _DAY.fullmatch(short) and end:
            found += timedelta(days=1)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{option}: {word!r} is no date",
            fix="write 2025-01-31, 2025-01-31T08:00:00Z, or how long ago: 7d, 12h",
        ) from None


def to_json(parts: Runtime, tenant: UUID, found: SearchResults) -> Json:
    """`{"results": [...], "degradation_level"}`; `explanation` is there if it was asked for."""
    facts = _facts(parts, tenant, [hit.document.id for hit in found.hits])
    return {
        "results": [hit_json(hit, facts.get(hit.document.id, {})) for hit in found.hits],
        "degradation_level": found.degradation_level,
    }


def _facts(parts: Runtime, tenant: UUID, ids: Sequence[UUID]) -> Mapping[UUID, Json]:
    """What the ledger knows of documents besides what a search needs."""
    if not ids:
        return {}
    with parts.database.tenant(tenant) as connection:
        return documents.facts(connection, ids)


def hit_json(hit: Hit, facts: Json) -> Json:
    """One result; the document's own metadata stand beside ours, which win."""
    d = hit.document
    found: Json = {
        "id": hit.id,
        "document_id": str(d.id),
        "content": hit.chunk.content,
        "score": round(hit.score, 6),
        "metadata": {
            **d.metadata,
            "source": d.source,
            "source_type": d.source_type.value,
            "kind": d.kind.value,
            "title": d.title,
            "url": d.url,
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
    if said := remark(d):
        found["metadata"]["standing"] = said
    if hit.explanation is not None:
        found["explanation"] = hit.explanation.to_json()
    return found
