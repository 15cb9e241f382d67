"""Measuring search and Step 4: judged questions, asked as the product asks them, and their scores."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pipeline.documents import Json
from pipeline.embedding.calls import embed_query_checked
from pipeline.enrichment.text import single_line
from pipeline.errors import ConfigurationError
from pipeline.ledger import documents
from pipeline.search import SearchRequest
from pipeline.search.chunk_store import active_index
from pipeline.search.records import Filter, Mode
from workers.app import search
from workers.app.enrichment.job import enricher
from workers.app.evaluation.dataset import DOCUMENT_SECTIONS, SECTIONS, EvalDataset
from workers.app.evaluation.measures import DEPTH, MEASURES, change, judge, keeping, mean, share
from workers.app.evaluation.sandbox import Show, document_ids, index
from workers.runtime import Runtime

WORST = 10
KEPT_SHARE = 0.98
"""Share of the relevant documents that the threshold `auto` keeps."""
GRADE_NAMES = ("noise", "related", "useful")
UNJUDGED = "unjudged"
NOISE = "noise share"


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}


def _percentiles(seconds: Sequence[float]) -> Json:
    return _rounded(dict(zip(("p50", "p95"), map(float, np.percentile(seconds, (50, 95))), strict=True)))


# Step 4 -------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One entry that an answer shows."""

    section: str
    ref: str
    """Ref of the document that is shown or cited; empty if none is."""
    text: str
    """The sentence, or the title of the document."""
    similarity: int | None = None
    """Similarity of a document, as the answer shows it."""

    @property
    def key(self) -> str:
        """Key of its judgement: the document, or the sentence itself."""
        return self.ref if self.section in DOCUMENT_SECTIONS else single_line(self.text)


def lines_of(context: Json) -> Iterator[Line]:
    """Lines that the answer for one item shows, without notices of our own."""
    for section in DOCUMENT_SECTIONS:
        for item in context.get(section, ()):
            yield Line(section, item["ref"], item["title"], item.get("similarity"))
    for work in context.get("similar_work", ()):
        for sentence in work["learnings"]:
            yield Line("learnings", work["ref"], sentence)
    for one in context.get("suggestion_details", ()):
        if one["kind"] != "notice":
            yield Line("suggestions", one["ref"] or "", one["text"])
    refs = {citation["n"]: citation["ref"] for citation in context.get("citations", ())}
    for hint in context.get("risk_hints", ()):
        yield Line("risk_hints", refs.get(hint["citation"], ""), hint["message"])


@dataclass(frozen=True, kw_only=True)
class Step4Answers:
    """The answers to the items of a set."""

    dataset: EvalDataset
    answers: Mapping[str, Json]
    seconds: Sequence[float]
    names: Mapping[str, str] = field(default_factory=dict)
    """Stored id of a document -> its id in the set: an answer calls a task in a file by the task's own id."""

    def graded(self) -> Iterator[tuple[str, Line, str]]:
        """(item, line, grade); a sentence that nobody judged has the grade of the document it cites."""
        for item, answer in self.answers.items():
            judged = self.dataset.context.get(item, {})
            cited = [one for part in (*DOCUMENT_SECTIONS, "citations") for one in answer.get(part, ())]
            names = {one["ref"]: self.names.get(one.get("document_id", ""), one["ref"]) for one in cited}
            for original in lines_of(answer):
                line = original._replace(ref=names.get(original.ref, original.ref))
                keys = ((line.section, single_line(name)) for name in (line.key, line.ref))
                yield item, line, next((GRADE_NAMES[judged[k]] for k in keys if k in judged), UNJUDGED)

    def ungraded(self) -> Iterator[tuple[str, ...]]:
        """Lines that nobody has judged, as rows of the judgements with a remark, so that a grade can be put in."""
        rows = {(i, line.section, line.key): line for i, line, grade in self.graded() if grade == UNJUDGED}
        for (item, section, key), line in rows.items():
            title = single_line(self.dataset.requests[item]["pbi"]["title"])
            label = single_line(line.text) if section in DOCUMENT_SECTIONS else line.ref
            yield item, section, key, "", f"{title} -> {label}"

    def to_json(self) -> Json:
        """`step4` in the document of `larder eval --json`; `items` are the lines of each grade by section."""
        items: dict[str, dict[str, Counter[str]]] = {item: {} for item in self.answers}
        for item, line, grade in self.graded():
            items[item].setdefault(line.section, Counter())[grade] += 1
        return {
            "seconds": _percentiles(self.seconds),
            "degraded": sum(bool(answer.get("degradation_level")) for answer in self.answers.values()),
            "sections": {
                section: _summary([each.get(section, Counter()) for each in items.values()])
                for section in SECTIONS
            },
            "all": _summary([sum(each.values(), Counter()) for each in items.values()]),
            "items": items,
        }


def _summary(each: Sequence[Counter[str]]) -> Json:
    """Figures of one section; shares are None if nothing was judged."""
    total = sum(each, Counter())
    judged = total.total() - total[UNJUDGED]
    precision = share([(c["useful"] + c["related"], c.total() - c[UNJUDGED]) for c in each])
    return {
        "shown": total.total(),
        "judged": judged,
        **{name: total[name] for name in (*reversed(GRADE_NAMES), UNJUDGED)},
        "precision": _rounded(vars(precision)) if precision else None,
        **{
            f"{name}_share": round(total[name] / judged, 4) if judged else None
            for name in ("useful", "noise")
        },
        "empty": sum(not one for one in each),
    }


def _enrich(runtime: Runtime, dataset: EvalDataset, items: Sequence[str], show: Show) -> Step4Answers:
    """Enrich items one by one, as the worker would; what a model would make of the words is left out."""
    enrich = enricher(runtime, runtime.settings.tenant_id)
    answers, seconds = {}, []
    for number, item in enumerate(items, 1):
        begun = time.perf_counter()
        answers[item] = enrich(dataset.requests[item])
        seconds.append(time.perf_counter() - begun)
        show("enriching", number, len(items))
    names = {str(ident): name for name, ident in document_ids(runtime, dataset).items()}
    return Step4Answers(dataset=dataset, answers=answers, seconds=seconds, names=names)


# Search -------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """One configuration's answers to a set."""

    report: Json
    """The document of `larder eval --json`; scores are of the questions that have a relevant document."""
    rankings: dict[str, list[str]]
    """Question -> documents, best first: what `--rankings` writes."""
    step4: Step4Answers | None
    """The answers of Step 4, if it was measured."""


def measure(
    runtime: Runtime, dataset: EvalDataset, mode: Mode, show: Show, items: Sequence[str] = ()
) -> Measured:
    """Index the set as a source of the runtime's tenant, then ask all questions, and enrich `items`.

    Raises:
        ConfigurationError: the configuration switches searching off.
        IndexingError: not one document could be indexed.
        SearchError: an item cannot be enriched.
    """
    if not runtime.rag.enabled:
        raise ConfigurationError("rag.enabled is false, so there is nothing to measure", fix="set it to true")
    failed = index(runtime, dataset, show)
    rankings, seconds, levels = _ask(runtime, dataset, mode, show)
    step4 = _enrich(runtime, dataset, items, show) if items else None
    exact = {query: judge(rankings[query], grades) for query, grades in dataset.relevant.items()}
    scores = {query: _rounded(one) for query, one in exact.items()}
    worst = sorted(exact, key=lambda query: (exact[query]["ndcg@10"], exact[query]["recall@10"]))
    report = {
        "set": dataset.name,
        "digest": dataset.digest,
        "documents": len(dataset.documents),
        "queries": len(rankings),
        "judged": len(scores),
        "mode": mode,
        "model": runtime.model,
        "tenant": runtime.settings.tenant,
        "scores": _rounded(mean(exact.values())),
        "seconds": _percentiles(seconds),
        "degraded": sum(level > 0 for level in levels),
        "failed": failed,
        "worst": [{"id": query, **scores[query]} for query in worst[:WORST]],
        "questions": scores,
        **({"step4": step4.to_json()} if step4 else {}),
    }
    return Measured(report, rankings, step4)


def _ask(
    runtime: Runtime, dataset: EvalDataset, mode: Mode, show: Show
) -> tuple[dict[str, list[str]], list[float], list[int]]:
    """(rankings, seconds, levels) of all questions."""
    retriever = search.retriever(runtime, runtime.settings.tenant_id)
    ids = document_ids(runtime, dataset)
    names = {ident: name for name, ident in ids.items()}
    rankings: dict[str, list[str]] = {}
    seconds, levels = [], []
    for number, (query, question) in enumerate(dataset.queries.items(), 1):
        excluded = (ids[query],) if dataset.self_exclude and query in ids else ()
        request = SearchRequest(text=question, mode=mode, k=DEPTH, filter=Filter(exclude=excluded))
        begun = time.perf_counter()
        results = retriever.search(request)
        seconds.append(time.perf_counter() - begun)
        levels.append(results.degradation_level)
        rankings[query] = [names[hit.document.id] for hit in results.hits]
        show("asking", number, len(dataset.queries))
    return rankings, seconds, levels


# Judging ------------------------------------------------------------------------------------------


def compare(before: Json, after: Json) -> Json:
    """Changes from one report to the other, measure by measure, with 95 % intervals.

    A measure is left out if one of them has no judged line for it; see `not_compared`.
    """
    first, second = _values(before), _values(after)
    changes = {}
    for name in [name for name in first if name in second]:
        one, other = first[name], second[name]
        questions = list(dict.fromkeys((*one, *other)))
        each = change([one.get(q, (0, 0)) for q in questions], [other.get(q, (0, 0)) for q in questions])
        if each is not None:
            figures = _rounded({"difference": each.mean, "low": each.low, "high": each.high})
            changes[name] = {**figures, "certain": each.certain}
    return changes


def not_compared(before: Json, after: Json) -> Json:
    """Measure -> why `compare` leaves it out, of those that one of two reports can tell."""
    judged = [
        {name for name, each in _values(one).items() if any(total for _, total in each.values())}
        for one in (before, after)
    ]
    return {
        name: f"no judged line in the {'new report' if name in judged[0] else 'baseline'}"
        for name in sorted(judged[0] ^ judged[1])
    }


def _values(report: Json) -> dict[str, dict[str, tuple[float, float]]]:
    """Measure -> question -> (sum, number judged)."""
    values = {
        name: {query: (float(scores[name]), 1.0) for query, scores in report["questions"].items()}
        for name in MEASURES
    }
    for item, sections in report.get("step4", {}).get("items", {}).items():
        for section, grades in sections.items():
            good = grades.get("useful", 0) + grades.get("related", 0)
            values.setdefault(f"{section} precision", {})[item] = (good, good + grades.get("noise", 0))
        total = sum(map(Counter, sections.values()), Counter[str]())
        judged = sum(total[name] for name in GRADE_NAMES)
        values.setdefault(NOISE, {})[item] = (total["noise"], judged)
    return values


def baseline(path: Path, dataset: EvalDataset, mode: Mode, items: Sequence[str]) -> Json:
    """An earlier report on the same questions, for `compare`.

    Raises:
        ConfigurationError: it is none, or it was made of another set or of other questions.
    """
    try:
        report: Json = json.loads(path.read_text(encoding="utf-8"))
        numbers = [part for each in _values(report).values() for value in each.values() for part in value]
        reasons = {
            "something that is no number": all(map(math.isfinite, numbers)),
            f"the set {report['set']!r}, not {dataset.name!r}": report["set"] == dataset.name,
            "other documents": report["digest"] == dataset.digest,
            f"--mode {report['mode']}, not {mode}": report["mode"] == mode,
            "other questions": report["questions"].keys() == dataset.relevant.keys(),
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


def regressions(comparison: Json) -> list[str]:
    """The measures that lost more than chance explains."""
    return [
        name
        for name, each in comparison.items()
        if each["certain"] and (each["difference"] > 0) == (name == NOISE)
    ]


def calibrate(runtime: Runtime, dataset: EvalDataset) -> Json:
    """Threshold that suits this model by this set, and the number of pairs of question and document behind it."""
    tenant, ids = runtime.settings.tenant_id, document_ids(runtime, dataset)
    near: list[float] = []
    with runtime.database.tenant(tenant) as connection:
        read = active_index(connection)
    for query, grades in dataset.relevant.items():
        if read is not None:
            query_vector = embed_query_checked(runtime.embedder_of(read), dataset.queries[query])
            with runtime.database.tenant(tenant) as connection:
                near += documents.similarities(
                    connection, read.id, query_vector, [ids[name] for name in grades]
                )
    threshold = round(keeping(near, KEPT_SHARE), 4) if near else None
    return {"pairs": len(near), "min_similarity": threshold, "kept_share": KEPT_SHARE}
