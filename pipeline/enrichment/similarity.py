"""How likely a document that a search found is about the same or related work, learned from judged pairs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pipeline.documents import Kind
from pipeline.embedding.known_models import model_of
from pipeline.enrichment.text import flat, stems, word_similarity
from pipeline.search import Hit, SearchResults

CANDIDATES = 15
"""Documents of a kind that are looked at: the first may be shown, the others tell what is usual for the question."""
_SHOWN = 3
"""So many of the likest are not counted among the usual ones."""
_USUAL, _USUAL_WEIGHT = 0.25, 4
"""The usual similarity in meaning where few documents tell it, and how many of them it counts as."""
_RARE = 0.4
"""`Explanation.overlap` of a document that has a word or two which hardly any other has."""
OUTDATED = -0.5
"""What a document loses, in log-odds, that no longer holds."""


_model_of = lru_cache(maxsize=16)(model_of)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A logistic model of "a product owner calls the document useful or related", and when it is shown."""

    meaning: float = 0.0
    """Per unit of cosine similarity, half of the best chunk and half of the whole document."""
    lead: float = 0.0
    """Per unit of cosine similarity above what is usual among the documents found."""
    words: float = 0.0
    """Per unit of cosine similarity of the sets of words of the question and of title and chunk."""
    overlap: float = 0.0
    """Per unit of `Explanation.overlap`."""
    constant: float
    least: float
    """Probability from which on a document is shown."""
    behind: float
    """... if it is not so far behind the likest one."""


CALIBRATED: Mapping[str, Mapping[Kind, Calibration]] = {
    "all-MiniLM-L6-v2": {
        Kind.WORK: Calibration(meaning=3.35, lead=3.15, words=5.38, constant=-2.78, least=0.5, behind=0.15),
        Kind.DECISION: Calibration(
            meaning=3.59, lead=10.04, words=6.0, constant=-4.66, least=0.3, behind=0.2
        ),
        Kind.REFERENCE: Calibration(
            meaning=5.51, lead=6.15, words=0.74, overlap=6.33, constant=-4.76, least=0.45, behind=0.2
        ),
    },
}
"""Model -> kind of document; docs/evaluation.md tells the pairs and how well it holds for others."""

_READ_WORDS = Calibration(words=9.1, overlap=6.5, constant=-3.4, least=0.4, behind=0.2)
BY_WORDS: Mapping[Kind, Calibration] = {
    Kind.WORK: Calibration(words=7.6, overlap=2.4, constant=-1.6, least=0.6, behind=0.2),
    Kind.DECISION: _READ_WORDS,
    Kind.REFERENCE: _READ_WORDS,
}
"""Without vectors, or with those of a model that nobody has judged pairs for."""


DUPLICATES: Mapping[str, float] = {"all-MiniLM-L6-v2": 0.8}
"""Model -> similarity in meaning from which an item may be the same; of others, equal titles alone tell."""


@dataclass(frozen=True, kw_only=True)
class Likely:
    """A document that is worth showing."""

    hit: Hit
    probability: float
    """That it is about the same or related work."""
    by: str
    """`meaning` if vectors were compared, else `words`."""


def likely(found: SearchResults, kind: Kind, question: frozenset[str]) -> list[Likely]:
    """Of the documents of a kind, those worth showing, the likest first.

    Args:
        found: at least CANDIDATES hits where there are so many, with explanations.
        kind: of all hits.
        question: its words, as `pipeline.enrichment.text.stems` gives them.
    """
    by_model = CALIBRATED.get(_model_of(found.model))
    told = all(hit.explanation is not None and hit.explanation.similarity is not None for hit in found.hits)
    by, model = ("meaning", by_model[kind]) if by_model and told else ("words", BY_WORDS[kind])
    others = sorted(map(_meaning, found.hits), reverse=True)[_SHOWN:CANDIDATES]
    usual = (sum(others) + _USUAL_WEIGHT * _USUAL) / (len(others) + _USUAL_WEIGHT)
    ranked = [
        Likely(hit=hit, probability=_probability(model, hit, question, usual), by=by)
        for hit in found.hits
        if _near_enough(hit)
    ]
    ranked.sort(key=lambda one: -one.probability)
    # What no longer holds must not keep out what took its place.
    holds = next((one for one in ranked if not one.hit.outdated), None)
    least = max(model.least, holds.probability - model.behind if holds else 0.0)
    return [one for one in ranked if one.probability >= least]


def is_duplicate(one: Likely, model: str, title: str) -> bool:
    """Whether an item may be the very same as one of this title."""
    if title and flat(one.hit.document.title).casefold() == title.casefold():
        return True
    least = DUPLICATES.get(_model_of(model))
    return least is not None and _meaning(one.hit) >= least


def _probability(model: Calibration, hit: Hit, question: frozenset[str], usual: float) -> float:
    meaning = _meaning(hit)
    words = word_similarity(stems(f"{hit.document.title} {hit.chunk.content}"), question)
    overlap = hit.explanation.overlap if hit.explanation else None
    odds = (
        model.meaning * meaning
        + model.lead * (meaning - usual)
        + model.words * words
        + model.overlap * (overlap or 0.0)
        + model.constant
        + (OUTDATED if hit.outdated else 0.0)
        + hit.feedback
    )
    return 1.0 / (1.0 + math.exp(-odds))


def _meaning(hit: Hit) -> float:
    """Of the best chunk and the whole document, half each; 0 if no vectors were compared."""
    told = hit.explanation
    if told is None or told.similarity is None:
        return 0.0
    return 0.5 * told.similarity + 0.5 * (told.similarity if told.centroid is None else told.centroid)


def _near_enough(hit: Hit) -> bool:
    """False for a document below the configured least similarity, unless it has the question's rarest words."""
    told = hit.explanation
    if told is None or told.similarity is None:
        return True
    return told.similarity >= told.min_similarity or (told.overlap or 0.0) >= _RARE
