"""Measuring search: judged questions, asked as the product would ask them."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from sqlalchemy import text

from pipeline.documents import Json
from pipeline.embedding.calls import embed_query_checked
from pipeline.errors import ConfigurationError
from pipeline.search import SearchRequest, SearchResults
from pipeline.search.chunk_store import active_index
from pipeline.search.measures import DEPTH, NAMES, Scores, best_limit, change, judge, keeping, mean
from pipeline.search.records import Filter, Mode
from workers import search
from workers.admin.evaluation import context_evaluation
from workers.admin.evaluation.context_evaluation import Contexts
from workers.admin.evaluation.dataset import Judged
from workers.admin.evaluation.sandbox import Show, document_ids, index
from workers.runtime import Runtime

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
    contexts: Contexts | None = None
    """The answers of Step 4, if it was measured."""

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
            "digest": self.judged.digest,
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
            "questions": {query: found.to_json() for query, found in scores.items()},
            **({"step4": self.contexts.to_json()} if self.contexts else {}),
        }


_PERCENTILES = (("p50", 50), ("p95", 95))


def measure(parts: Runtime, judged: Judged, mode: Mode, show: Show, items: Sequence[str] = ()) -> Measured:
    """Index the set as a source of the runtime's tenant, then ask all questions, and enrich `items`.

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
        contexts=context_evaluation.answer(parts, judged, items, show) if items else None,
    )


# Asking -------------------------------------------------------------------------------------------


def _ask(parts: Runtime, judged: Judged, mode: Mode, show: Show) -> dict[str, Answer]:
    retriever = search.retriever(parts, parts.settings.tenant_id)
    ids = document_ids(parts, judged)
    names = {ident: name for name, ident in ids.items()}
    answers = {}
    for number, (query, question) in enumerate(judged.queries.items()):
        show("asking", number, len(judged.queries))
        request = SearchRequest(
            text=question,
            mode=mode,
            k=DEPTH,
            filter=Filter(exclude=(ids[query],) if judged.self_exclude and query in ids else ()),
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


# Judging ------------------------------------------------------------------------------------------


NOISE = "noise share"


def compare(before: Json, after: Json) -> Json:
    """What changes from one report to the other, measure by measure, with 95 % intervals.

    A measure is left out if one of them has no judged line for it; see `not_compared`.
    """
    first, second = _values(before), _values(after)
    found = {}
    for name in [name for name in first if name in second]:
        one, other = first[name], second[name]
        questions = list(dict.fromkeys((*one, *other)))
        each = change([one.get(q, (0, 0)) for q in questions], [other.get(q, (0, 0)) for q in questions])
        if each is not None:
            found[name] = {
                "difference": round(each.mean, 4),
                "low": round(each.low, 4),
                "high": round(each.high, 4),
                "certain": each.certain,
            }
    return found


def not_compared(before: Json, after: Json) -> Json:
    """Measure -> why `compare` leaves it out, of those that one of two reports can tell."""
    judged = [
        {name for name, each in _values(one).items() if any(of for _, of in each.values())}
        for one in (before, after)
    ]
    return {
        name: f"no judged line in the {'new report' if name in judged[0] else 'baseline'}"
        for name in sorted(judged[0] ^ judged[1])
    }


def _values(report: Json) -> dict[str, dict[str, tuple[float, float]]]:
    """Measure -> question -> what it has, and of how much."""
    found = {
        name: {query: (float(scores[name]), 1.0) for query, scores in report["questions"].items()}
        for name in NAMES.values()
    }
    for item, sections in report.get("step4", {}).get("items", {}).items():
        for section, grades in sections.items():
            good = grades.get("useful", 0) + grades.get("related", 0)
            judged = good + grades.get("noise", 0)
            found.setdefault(f"{section} precision", {})[item] = (good, judged)
        total = sum((Counter(grades) for grades in sections.values()), Counter[str]())
        noise = total["noise"]
        found.setdefault(NOISE, {})[item] = (noise, noise + total["useful"] + total["related"])
    return found


def baseline(path: Path, judged: Judged, mode: Mode, items: Sequence[str]) -> Json:
    """An earlier report on the same questions, for `compare`.

    Raises:
        ConfigurationError: it is none, or it was made of another set or of other questions.
    """
    try:
        report: Json = json.loads(path.read_text(encoding="utf-8"))
        told = [part for each in _values(report).values() for value in each.values() for part in value]
        reasons = {
            "something that is no number": all(map(math.isfinite, told)),
            f"the set {report['set']!r}, not {judged.name!r}": report["set"] == judged.name,
            "other documents": report["digest"] == judged.digest,
            f"--mode {report['mode']}, not {mode}": report["mode"] == mode,
            "other questions": report["questions"].keys() == judged.relevant.keys(),
            "other items of Step 4": report.get("step4", {"items": {}})["items"].keys() == set(items),
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        reasons = {"something else: it is no report of `larder eval --json`": False}
    for reason, right in reasons.items():
        if not right:
            raise ConfigurationError(
                f"--fail-if-worse: {path} was measured with {reason}",
                fix="measure the baseline anew: `larder eval DIR --json > FILE`, with the same options",
            )
    return report


def worse(comparison: Json) -> list[str]:
    """The measures that lost more than chance explains."""
    return [
        name
        for name, each in comparison.items()
        if each["certain"] and (each["difference"] > 0) == (name == NOISE)
    ]


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
    tenant = parts.settings.tenant_id
    found: list[float] = []
    ids = document_ids(parts, judged)
    with parts.database.tenant(tenant) as connection:
        now = active_index(connection)
    for query, wanted in judged.relevant.items():
        if now is None:
            break
        asked = embed_query_checked(parts.embedder_of(now), judged.queries[query])
        with parts.database.tenant(tenant) as connection:
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
