"""Measuring Step 4: the answers of the enrich worker's own code, line by line against judgements."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.documents import Json
from pipeline.enrichment.text import flat
from pipeline.search.measures import share
from workers.admin.evaluation.dataset import DOCUMENT_SECTIONS, SECTIONS, Judged
from workers.admin.evaluation.sandbox import Show
from workers.enrichment.job import enricher
from workers.runtime import Runtime

GRADE_NAMES = ("noise", "related", "useful")
UNJUDGED = "unjudged"


@dataclass(frozen=True, kw_only=True)
class Line:
    """One thing that an answer shows."""

    section: str
    ref: str
    """Of the document that is shown or cited; empty if none is."""
    text: str
    """The sentence, or the title of the document."""

    @property
    def key(self) -> str:
        """What it is judged by: the document, or the sentence itself."""
        return self.ref if self.section in DOCUMENT_SECTIONS else flat(self.text)

    def grade(self, judged: Mapping[tuple[str, str], int]) -> str:
        """What was said of it; of a sentence that nobody judged, what was said of the document it cites."""
        found = judged.get((self.section, flat(self.key)), judged.get((self.section, flat(self.ref))))
        return UNJUDGED if found is None else GRADE_NAMES[found]


def lines_of(context: Json) -> Iterator[Line]:
    """What the answer for one item shows, but for notices of our own."""
    for section in DOCUMENT_SECTIONS:
        for item in context.get(section, ()):
            yield Line(section=section, ref=item["ref"], text=item["title"])
    for work in context.get("similar_work", ()):
        for sentence in work["learnings"]:
            yield Line(section="learnings", ref=work["ref"], text=sentence)
    for one in context.get("suggestion_details", ()):
        if one["kind"] != "notice":
            yield Line(section="suggestions", ref=one["ref"] or "", text=one["text"])
    refs = {citation["n"]: citation["ref"] for citation in context.get("citations", ())}
    for hint in context.get("risk_hints", ()):
        yield Line(section="risk_hints", ref=refs.get(hint["citation"], ""), text=hint["message"])


@dataclass(frozen=True, kw_only=True)
class Contexts:
    """The answers to the items of a set."""

    judged: Judged
    answers: Mapping[str, Json]
    seconds: Sequence[float]

    @property
    def counts(self) -> dict[str, dict[str, Counter[str]]]:
        """Item -> section -> how many lines have which grade; only sections that show something."""
        found: dict[str, dict[str, Counter[str]]] = {}
        for item, answer in self.answers.items():
            sections = found.setdefault(item, {})
            for line in lines_of(answer):
                grade = line.grade(self.judged.context.get(item, {}))
                sections.setdefault(line.section, Counter())[grade] += 1
        return found

    def ungraded(self) -> Iterator[tuple[str, ...]]:
        """Lines that nobody has judged, as rows of the judgements with a remark, so that a grade can be put in."""
        for item, answer in self.answers.items():
            judged = self.judged.context.get(item, {})
            rows = {
                (line.section, line.key): line for line in lines_of(answer) if line.grade(judged) == UNJUDGED
            }
            title = flat(self.judged.requests[item]["pbi"]["title"])
            for (section, key), line in rows.items():
                shown = flat(line.text) if section in DOCUMENT_SECTIONS else line.ref
                yield item, section, key, "", f"{title} -> {shown}"

    def to_json(self) -> Json:
        """`step4` in the document of `larder eval --json`."""
        counts = self.counts
        p50, p95 = np.percentile(self.seconds, (50, 95))
        return {
            "seconds": {"p50": round(float(p50), 4), "p95": round(float(p95), 4)},
            "degraded": sum(bool(answer.get("degradation_level")) for answer in self.answers.values()),
            "sections": {
                section: _summary([each.get(section, Counter()) for each in counts.values()])
                for section in SECTIONS
            },
            "all": _summary([sum(each.values(), Counter()) for each in counts.values()]),
            "items": counts,
        }


def _summary(each: Sequence[Counter[str]]) -> Json:
    """Of one section; shares are None if nothing was judged."""
    total = sum(each, Counter())
    judged = total.total() - total[UNJUDGED]
    precision = share([(c["useful"] + c["related"], c.total() - c[UNJUDGED]) for c in each])
    return {
        "shown": total.total(),
        "judged": judged,
        **{name: total[name] for name in (*reversed(GRADE_NAMES), UNJUDGED)},
        "precision": {name: round(value, 4) for name, value in vars(precision).items()}
        if precision
        else None,
        "useful_share": round(total["useful"] / judged, 4) if judged else None,
        "noise_share": round(total["noise"] / judged, 4) if judged else None,
        "empty": sum(not one for one in each),
    }


def answer(parts: Runtime, judged: Judged, items: Sequence[str], show: Show) -> Contexts:
    """Enrich items one by one, as the worker would; what a model would make of the words is left out.

    Raises:
        SearchError: a question cannot be enriched.
    """
    tenant = parts.settings.tenant_id
    enrich = enricher(parts, tenant)
    answers, seconds = {}, []
    for number, item in enumerate(items):
        show("enriching", number, len(items))
        begun = time.perf_counter()
        answers[item] = enrich(judged.requests[item])
        seconds.append(time.perf_counter() - begun)
    show("enriching", len(items), len(items))
    return Contexts(judged=judged, answers=answers, seconds=seconds)
