"""Measuring search: judged questions, asked as the product would ask them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import text

from pipeline.documents import Json
from pipeline.embedding.calls import embed_query_checked
from pipeline.errors import ConfigurationError
from pipeline.ledger import document_id, source_id
from pipeline.measures import (
    DEPTH,
    NAMES,
    Difference,
    Scores,
    best_limit,
    difference,
    judge,
    keeping,
    mean,
)
from pipeline.retrieval import SearchRequest, SearchResults
from pipeline.stores import Filter, Mode
from pipeline.stores.pgvector import active_index
from workers import searching
from workers.judged import Judged
from workers.runtime import Runtime
from workers.scratch import SOURCE, Show, index

WORST = 10
KEPT_SHARE = 0.98
"""Of the relevant documents, what the threshold `auto` keeps."""
SHOWN = 5
"""A duplicate is pointed out only among the first results."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one question brought."""

    ranking: tuple[str, ...]
    """Documents, best first."""
    similarities: tuple[float | None, ...]
    """Of the same places."""
    seconds: float
    level: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One configuration's answers to a set."""

    judged: Judged
    mode: Mode
    model: str
    tenant: str
    answers: Mapping[str, Answer]
    failed: int
    """Documents that could not be indexed."""

    @property
    def scores(self) -> dict[str, Scores]:
        """Of every question that has a relevant document."""
        return {q: judge(self.answers[q].ranking, wanted) for q, wanted in self.judged.relevant.items()}

    @property
    def rankings(self) -> dict[str, list[str]]:
        """What `--rankings` writes."""
        return {query: list(answer.ranking) for query, answer in self.answers.items()}

    @property
    def worst(self) -> list[tuple[str, Scores]]:
        """The questions answered worst, worst first."""
        return sorted(self.scores.items(), key=lambda one: (one[1].ndcg10, one[1].recall10))[:WORST]

    def to_json(self) -> Json:
        """The document of `larder eval --json`."""
        scores = self.scores
        seconds = [answer.seconds for answer in self.answers.values()]
        return {
            "set": self.judged.name,
            "documents": len(self.judged.documents),
            "queries": len(self.answers),
            "judged": len(scores),
            "mode": self.mode,
            "model": self.model,
            "tenant": self.tenant,
            "scores": mean(scores.values()).to_json(),
            "seconds": {name: round(float(np.percentile(seconds, p)), 4) for name, p in _PERCENTILES},
            "degraded": sum(answer.level > 0 for answer in self.answers.values()),
            "failed": self.failed,
            "worst": [{"id": query, **found.to_json()} for query, found in self.worst],
        }


_PERCENTILES = (("p50", 50), ("p95", 95))


def measure(parts: Runtime, judged: Judged, mode: Mode, show: Show) -> Measured:
    """Index the set as a source of the runtime's tenant, then ask all questions.

    Raises:
        ConfigurationError: the configuration switches searching off.
        IndexingError: not one document could be indexed.
    """
    if not parts.rag.enabled:
        raise ConfigurationError("rag.enabled is false, so there is nothing to measure", fix="set it to true")
    failed = index(parts, judged, show)
    return Measured(
        judged=judged,
        mode=mode,
        model=parts.model,
        tenant=parts.settings.tenant,
        answers=_ask(parts, judged, mode, show),
        failed=failed,
    )


# Asking -------------------------------------------------------------------------------------------


def _ask(parts: Runtime, judged: Judged, mode: Mode, show: Show) -> dict[str, Answer]:
    retriever = searching.retriever(parts)
    names = _names(parts, judged)
    answers = {}
    for number, (query, question) in enumerate(judged.queries.items()):
        show("asking", number, len(judged.queries))
        request = SearchRequest(
            text=question,
            mode=mode,
            k=DEPTH,
            filter=Filter(exclude=_own(parts, judged, query)),
            explain=True,
        )
        begun = time.perf_counter()
        found = retriever.search(request)
        answers[query] = _answer(found, names, time.perf_counter() - begun)
    show("asking", len(judged.queries), len(judged.queries))
    return answers


def _answer(found: SearchResults, names: Mapping[UUID, str], seconds: float) -> Answer:
    return Answer(
        ranking=tuple(names[hit.document.id] for hit in found.hits),
        similarities=tuple(hit.explanation.similarity if hit.explanation else None for hit in found.hits),
        seconds=seconds,
        level=found.degradation_level,
    )


def _names(parts: Runtime, judged: Judged) -> dict[UUID, str]:
    source = source_id(parts.tenant, SOURCE)
    return {document_id(source, d.external_id): d.external_id for d in judged.documents}


def _own(parts: Runtime, judged: Judged, query: str) -> tuple[UUID, ...]:
    return (document_id(source_id(parts.tenant, SOURCE), query),) if judged.self_exclude else ()


# Judging ------------------------------------------------------------------------------------------


def compare(first: Measured, second: Measured) -> Json:
    """What the second configuration changes, measure by measure, with 95 % intervals."""
    before, after = first.scores, second.scores
    found = {}
    for field in fields(Scores):
        each: Difference = difference(
            [getattr(before[query], field.name) for query in before],
            [getattr(after[query], field.name) for query in before],
        )
        found[NAMES[field.name]] = {
            "difference": round(each.mean, 4),
            "low": round(each.low, 4),
            "high": round(each.high, 4),
            "certain": each.certain,
        }
    return found


def calibrate(parts: Runtime, measured: Measured) -> Json:
    """The thresholds that this model and this set ask for."""
    near = _nearest(parts, measured.judged)
    shown = [
        (similarity, document in wanted)
        for query, wanted in measured.judged.relevant.items()
        for document, similarity in list(
            zip(measured.answers[query].ranking, measured.answers[query].similarities, strict=True)
        )[:SHOWN]
        if similarity is not None
    ]
    limit = best_limit(shown, sum(len(wanted) for wanted in measured.judged.relevant.values()))
    return {
        "pairs": len(near),
        "min_similarity": round(keeping(near, KEPT_SHARE), 4) if near else None,
        "kept_share": KEPT_SHARE,
        "duplicate": {name: round(value, 4) for name, value in vars(limit).items()} if limit else None,
        "duplicate_within": SHOWN,
    }


def _nearest(parts: Runtime, judged: Judged) -> list[float]:
    """For each question and relevant document, the similarity of its nearest chunk: what a threshold cuts off."""
    found: list[float] = []
    ids = {name: ident for ident, name in _names(parts, judged).items()}
    with parts.database.tenant(parts.tenant) as connection:
        now = active_index(connection)
    for query, wanted in judged.relevant.items():
        if now is None:
            break
        asked = embed_query_checked(parts.embedder_of(now), judged.queries[query])
        with parts.database.tenant(parts.tenant) as connection:
            rows = connection.execute(
                text("""
                    select 1 - min(embedding <=> cast(:vector as halfvec)) as similarity
                    from searchable_chunk where index_id = :index and document_id = any(:ids)
                    group by document_id"""),
                {
                    "vector": HalfVector(asked).to_text(),
                    "index": now.id,
                    "ids": [ids[name] for name in wanted if name in ids],
                },
            )
            found += [float(row.similarity) for row in rows]
    return found
