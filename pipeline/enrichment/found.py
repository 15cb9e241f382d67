"""What a search found for an item: how likely each document is of use to it, and those documents read whole."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import nlargest
from types import MappingProxyType
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.embedding.known_models import model_of
from pipeline.enrichment.context import NO_LINK
from pipeline.enrichment.text import (
    Part,
    Sentence,
    by_part,
    sentences_of,
    single_line,
    stems,
    word_similarity,
)
from pipeline.http_rules import web_address
from pipeline.plain_text import without_controls
from pipeline.search import Hit, SearchResults, statement
from pipeline.search.records import Filter, repeats

CANDIDATES = 15
"""Documents of a kind that are looked at: the first may be shown, the others tell what is usual for the question."""
_SHOWN = 3
"""So many of the likest are not counted among the usual ones."""
_USUAL, _USUAL_WEIGHT = 0.25, 4
"""The usual similarity in meaning where few documents tell it, and how many of them it counts as."""
_USUAL_KIN = 0.42
"""The similarity to the likest other document where it is not known."""
_RARE = 0.4
"""`Explanation.overlap` of a document that has a word or two which hardly any other has."""
COPY = 0.8
"""Of the words of two passages in documents of one title: from here on one document is a copy of the other."""
_OLD_PLACE = re.compile(
    r"(?:^|/)(?:versioned|archived?|old|legacy|v(?:ersion)?[-_ ]?\d)(?![a-z])", re.IGNORECASE
)
OUTDATED = -0.5
"""What a document loses, in log-odds, that no longer holds."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A logistic model of "a product owner calls the document useful or related", and when it is shown."""

    meaning: float = 0.0
    """Per unit of cosine similarity, half of the best chunk and half of the whole document."""
    lead: float = 0.0
    """Per unit of cosine similarity above what is usual among the documents found."""
    kin: float = 0.0
    """Per unit of cosine similarity to the likest other document found: what helps with an item is alike."""
    words: float = 0.0
    """Per unit of cosine similarity of the sets of words of the question and of title and chunk."""
    overlap: float = 0.0
    """Per unit of `Explanation.overlap`."""
    constant: float
    least: float
    """Probability from which on a document is shown."""
    behind: float = 1.0
    """... if it is not so far behind the likest one."""


CALIBRATED: Mapping[str, Mapping[Kind, Calibration]] = {
    "all-MiniLM-L6-v2": {
        Kind.WORK: Calibration(
            meaning=5.2, lead=8.1, kin=3.6, words=6.8, overlap=2.9, constant=-5.63, least=0.75
        ),
        Kind.DECISION: Calibration(
            meaning=4.7, lead=12.7, kin=2.3, words=6.3, overlap=4.3, constant=-6.05, least=0.61
        ),
        Kind.REFERENCE: Calibration(
            meaning=6.9, lead=9.8, kin=2.9, words=2.2, overlap=9.7, constant=-6.75, least=0.85
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


LIKELY_DUPLICATE, AHEAD = 0.98, 1.4
"""Probability from which the likest item is called a duplicate if it is so far ahead of the next one, in log-odds: on
three trackers with known duplicates four of five such items are (docs/evaluation.md)."""
VERBATIM = 0.93
"""Similarity in meaning from which any item is: its text is nearly the same."""


@dataclass(frozen=True, kw_only=True)
class LikelyDocument:
    """A document that is worth showing."""

    hit: Hit
    probability: float
    """That it is about the same or related work."""
    by: str
    """`meaning` if vectors were compared, else `words`."""


def likest(hits: Iterable[Hit], question: frozenset[str]) -> list[Hit]:
    """The two that are most like a question of these words, of documents of any kind."""
    told = [hit for hit in hits if hit.explanation and hit.explanation.similarity is not None]
    return nlargest(2, told, key=lambda hit: (_meaning(hit) + _shared(hit, question), hit.document.id))


def likely_documents(
    found: SearchResults,
    kind: Kind,
    question: frozenset[str],
    kin: Mapping[UUID, float] = MappingProxyType({}),
) -> list[LikelyDocument]:
    """Of the documents of a kind, those worth showing, the likest first.

    Args:
        found: at least CANDIDATES hits where there are so many, with explanations.
        kind: of all hits.
        question: its words, as `pipeline.enrichment.text.stems` gives them.
        kin: document -> cosine similarity of its chunk to that of the likest other document, of any kind.
    """
    hits, by_model = found.hits, CALIBRATED.get(model_of(found.model))
    told = [hit.explanation is not None and hit.explanation.similarity is not None for hit in hits]
    meanings = [_meaning(hit) for hit in hits]
    others = sorted((m for m, of in zip(meanings, told, strict=True) if of), reverse=True)[_SHOWN:CANDIDATES]
    usual = (sum(others) + _USUAL_WEIGHT * _USUAL) / (len(others) + _USUAL_WEIGHT)
    ranked = []
    for hit, compared, meaning in zip(hits, told, meanings, strict=True):
        by, model = ("meaning", by_model[kind]) if by_model and compared else ("words", BY_WORDS[kind])
        e = hit.explanation
        overlap = (e.overlap if e else None) or 0.0
        if e and e.similarity is not None and e.similarity < e.min_similarity and overlap < _RARE:
            continue  # below the configured least similarity, and without the question's rarest words
        odds = (
            model.meaning * meaning
            + model.lead * (meaning - usual)
            + model.kin * kin.get(hit.document.id, _USUAL_KIN)
            + model.words * _shared(hit, question)
            + model.overlap * overlap
            + model.constant
            + (OUTDATED if hit.outdated else 0.0)
            + (e.feedback if e else 0.0)
        )
        ranked.append(LikelyDocument(hit=hit, probability=1.0 / (1.0 + math.exp(-odds)), by=by))
    ranked.sort(key=lambda one: -one.probability)
    # What no longer holds must not keep out what took its place.
    holds = next((one.probability for one in ranked if not one.hit.outdated), 0.0)
    shown = [one for one in ranked if one.probability >= max(model.least, holds - model.behind)]
    return shown if kind is Kind.WORK else _without_copies(shown)


def _without_copies(ranked: Iterable[LikelyDocument]) -> list[LikelyDocument]:
    """One for each text: of copies, such as those of several versions, the current one in the place of the likest."""
    kept: list[LikelyDocument] = []
    for one in ranked:
        place = next((n for n, other in enumerate(kept) if _is_copy(one.hit, other.hit)), None)
        if place is None:
            kept.append(one)
        elif _current(one.hit) > _current(kept[place].hit):
            kept[place] = replace(kept[place], hit=one.hit)
    return kept


def _is_copy(one: Hit, other: Hit) -> bool:
    titles = {single_line(hit.document.title).casefold() for hit in (one, other)}
    return len(titles) == 1 and word_similarity(stems(one.chunk.content), stems(other.chunk.content)) >= COPY


def _current(hit: Hit) -> tuple[bool, bool, float]:
    """What orders copies: whether it holds, stands in no folder of an old version, and when it was changed."""
    path = str(hit.document.metadata.get("source_path") or hit.document.url)
    changed = hit.document.updated_at
    return not hit.outdated, not _OLD_PLACE.search(path), changed.timestamp() if changed else 0.0


def likely_duplicates(ranked: Sequence[LikelyDocument], title: str) -> list[LikelyDocument]:
    """Those of the likest items, best first, that may be the very same as one of this title.

    Without vectors, or with those of a model that nobody has judged pairs for, equal titles alone tell.
    """
    return [one for place, one in enumerate(ranked) if _same_title(one, title) or _is_twin(place, ranked)]


def _same_title(one: LikelyDocument, title: str) -> bool:
    return bool(title) and single_line(one.hit.document.title).casefold() == title.casefold()


def _is_twin(place: int, ranked: Sequence[LikelyDocument]) -> bool:
    first, *others = ranked[place:]
    if first.by != "meaning":
        return False
    ahead = _log_odds(first.probability) - max(
        (_log_odds(one.probability) for one in others), default=-math.inf
    )
    likest = place == 0 and first.probability >= LIKELY_DUPLICATE and ahead >= AHEAD
    return likest or _meaning(first.hit) >= VERBATIM


def _log_odds(probability: float) -> float:
    return math.log(max(probability, 1e-9) / max(1.0 - probability, 1e-9))


def _meaning(hit: Hit) -> float:
    """Of the best chunk and the whole document, half each; 0 if no vectors were compared."""
    told = hit.explanation
    if told is None or told.similarity is None:
        return 0.0
    return 0.5 * told.similarity + 0.5 * (told.similarity if told.centroid is None else told.centroid)


def _shared(hit: Hit, question: frozenset[str]) -> float:
    """Of the words of title and chunk and those of a question."""
    return word_similarity(stems(f"{hit.document.title} {hit.chunk.content}"), question)


MOST_CHUNKS = 100
"""Of one document: outcome, decision and lessons of anything longer than a book chapter are not looked for."""
DEFAULT_TITLES = {Kind.WORK: "Similar PBI", Kind.DECISION: "Decision", Kind.REFERENCE: "Documentation"}
_DONE = re.compile(
    r"\b(?:accepted|closed|completed?|delivered|done|fixed|implemented|live|merged|released|resolved|shipped|verified"
    r"|abgeschlossen|erledigt|fertig|geschlossen|fermée?|livrée?|résolue?|terminée?)\b",
    re.IGNORECASE,
)
_ABANDONED = re.compile(
    r"\b(?:abandoned|cancell?ed|cut|declined|dropped|invalid|not[ _]a[ _]bug|not[ _]planned|obsolete|rejected|removed"
    r"|(?:won['’]?t|will not)[ _]?(?:fix|do)|(?:as|by)[ _]design(?:ed)?|works[ _]?for[ _]?me"
    r"|verworfen|abgelehnt|entfernt|abandonné|rejeté|supprimé)\b",
    re.IGNORECASE,
)
_REOPENED = re.compile(r"\bre-?opened\b", re.IGNORECASE)


class DocumentText(NamedTuple):
    """What the index holds of a document."""

    external_id: str
    chunks: list[Chunk]


class DocumentTexts:
    """Reads the active search index of one tenant."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant

    def of(self, document_ids: Collection[UUID], wanted: Filter) -> Mapping[UUID, DocumentText]:
        """Chunks of these documents in order, by one statement; a document that is gone meanwhile is left out.

        So is one that the asker may no longer see: `wanted` is the filter that it was found with.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if not document_ids:
            return {}
        limits = Filter(
            only=tuple(document_ids), security_levels=wanted.security_levels, readers=wanted.readers
        )
        names = statement.names_of(limits)
        chunks = f"""
            select d.id, d.external_id, c.ord, c.content, c.context
            from document d join chunk c on c.document_id = d.id
            where c.index_id = (select id from search_index where status = 'active')
              and {statement.visible(names)} and c.ord < %(most)s
            order by d.id, c.ord"""
        values = {**statement.values_of(limits, names), "most": MOST_CHUNKS}
        read: dict[UUID, DocumentText] = {}
        for document, external_id, ord_, content, context in self.database.fetch(self.tenant, chunks, values):
            chunk = Chunk(ord=ord_, content=content, context=context)
            read.setdefault(document, DocumentText(external_id, [])).chunks.append(chunk)
        return read

    def kin(self, likest: Sequence[Hit], hits: Iterable[Hit]) -> Mapping[UUID, float]:
        """Document -> cosine similarity of the chunk found to that of the first of the likest, or to the second's."""
        if not likest[1:]:
            return {}
        chunks = {hit.document.id: hit.chunk.ord for hit in hits}
        first, second = (one.document.id for one in likest)
        compared = """
            with found as materialized (
                select c.document_id, c.embedding
                from unnest(cast(%(ids)s as uuid[]), cast(%(ords)s as int[])) as k(id, ord)
                join chunk c on c.document_id = k.id and c.ord = k.ord
                where c.index_id = (select id from search_index where status = 'active'))
            select f.document_id, 1 - (f.embedding <=> l.embedding)
            from found f join found l
              on l.document_id = case when f.document_id = %(first)s then %(second)s::uuid else %(first)s::uuid end"""
        values = {"ids": [*chunks], "ords": [*chunks.values()], "first": first, "second": second}
        rows = self.database.fetch(self.tenant, compared, values)
        return {document: alike for document, alike in rows if alike is not None}

    def ids(self, refs: Collection[str], projects: Collection[UUID] = ()) -> Mapping[UUID, tuple[str, str]]:
        """The work items that a source knows by one of these ids, with that id and the title; of `projects`, if given.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if not refs:
            return {}
        with self.database.tenant(self.tenant) as connection:
            rows = connection.execute(
                text("""
                    select d.* from source s cross join lateral (
                        select d.id, d.external_id, d.title from document d
                        where d.tenant_id = s.tenant_id and d.source_id = s.id and d.external_id = any(:refs)
                          and d.kind = 'work' and (:anywhere or d.project_id = any(:projects)) offset 0) d"""),
                {"refs": list(refs), "anywhere": not projects, "projects": list(projects)},
            )
            return {row.id: (row.external_id, row.title) for row in rows}


class FoundDocument:
    """One document of the answer, with all of its text and how much it is like the question."""

    def __init__(self, likely: LikelyDocument, text: DocumentText | None, question: frozenset[str]) -> None:
        """`question` is its words. Without the text of the whole document, the chunk that was found has to do."""
        self.likely, self.hit, self.document, self.question = (
            likely,
            likely.hit,
            likely.hit.document,
            question,
        )
        metadata, chunks = self.document.metadata, list(text.chunks) if text else []
        own = all(chunk.ord != self.hit.chunk.ord for chunk in chunks)
        self.chunks = [*chunks, self.hit.chunk] if own else chunks
        external_id, path = text and text.external_id, metadata.get("source_path")
        # A task in a file of its own is known by its id, and not by its path.
        names = (external_id if external_id != path else None, metadata.get("pbi_id"), external_id, path)
        self.external_id = str(next(filter(None, names), self.document.id))
        self.title = " ".join(self.document.title.split()) or DEFAULT_TITLES[self.document.kind]
        """On one line; a word in place of it if it has none."""
        self.similarity = round(100 * likely.probability)
        """0 to 100: the per cent of such pairs that are about the same or related work."""
        self.status = self.first_metadata("state", "status")
        """Its state, as the source calls it."""
        self.outcome = self.first_metadata("resolution", "outcome", "reason")
        """How it ended, where the source has a field for that."""
        self.abandoned = any(_ABANDONED.search(word) for word in (self.status, self.outcome) if word)
        """True for work that was given up."""

    @cached_property
    def link(self) -> str:
        """Where a person can open it; `#` if there is no such page, for answers go to other machines."""
        return web_address(without_controls(self.document.url).strip()) or NO_LINK

    @cached_property
    def done(self) -> bool:
        """True for work that its source calls finished, and nobody gave up, took up again or closed as a duplicate."""
        state = self.status or ""
        ended = bool(_DONE.search(state)) and not _REOPENED.search(state)
        return ended and not self.abandoned and not repeats(self.document)

    @cached_property
    def sentences(self) -> list[Sentence]:
        """Of the whole document."""
        return sentences_of(self.chunks)

    @cached_property
    def parts(self) -> Mapping[Part | None, Sequence[Sentence]]:
        """Its sentences by the part they stand in; empty for a part that it has not."""
        return by_part(self.sentences)

    def first_metadata(self, *keys: str) -> str | None:
        """The first of these metadata that says something, as text."""
        for value in map(self.document.metadata.get, keys):
            if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
                return " ".join(str(value).split())
        return None
