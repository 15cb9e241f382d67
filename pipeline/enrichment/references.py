"""Documents found for a backlog item: the probability that each is useful, and their whole texts."""

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

from pgvector import HalfVector
from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.documents.plain_text import without_controls
from pipeline.embedding import Vectors
from pipeline.embedding.known_models import model_of
from pipeline.enrichment.context import NO_LINK
from pipeline.enrichment.text import (
    Section,
    Sentence,
    by_section,
    sentences_of,
    single_line,
    stems,
    word_similarity,
)
from pipeline.errors.http_rules import web_address
from pipeline.search import Hit, SearchResults, statement
from pipeline.search.records import Filter, repeats

CANDIDATES = 15
"""Documents of a kind that are examined: the first may be shown, the others give the usual similarity."""
_MOST_SIMILAR = 3
"""Number of the most similar documents that do not count for the usual similarity."""
_USUAL, _USUAL_WEIGHT = 0.25, 4
"""Prior of the usual cosine similarity, and the number of documents it counts as."""
_USUAL_KINSHIP = 0.42
"""Cosine similarity to the most similar other document, if it is not known."""
_RARE = 0.2
"""`Explanation.overlap` of a document with a rare word of the query."""
COPY = 0.8
"""Similarity of the words of two passages from which documents with the same title are copies."""
_OLD_PLACE = re.compile(
    r"(?:^|/)(?:versioned|archived?|old|legacy|v(?:ersion)?[-_ ]?\d)(?![a-z])", re.IGNORECASE
)
OUTDATED = -0.5
"""Log-odds added for outdated documents."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """A logistic model of "a product owner calls the document useful or related", and when it is shown."""

    meaning: float = 0.0
    """Coefficient of the cosine similarity, half of the best chunk and half of the whole document."""
    lead: float = 0.0
    """Coefficient of the cosine similarity above the usual one of the documents found."""
    kinship: float = 0.0
    """Coefficient of the cosine similarity to the most similar other document: useful documents resemble each other."""
    words: float = 0.0
    """Coefficient of the cosine similarity of two sets of words: the query's, and those of title and chunk."""
    overlap: float = 0.0
    """Coefficient of `Explanation.overlap`."""
    constant: float
    least: float
    """Probability from which a document is shown."""
    behind: float = 1.0
    """Largest difference to the probability of the best document."""


CALIBRATED: Mapping[str, Mapping[Kind, Calibration]] = {
    "all-MiniLM-L6-v2": {
        Kind.WORK: Calibration(
            meaning=5.2, lead=8.1, kinship=3.6, words=6.8, overlap=2.9, constant=-5.63, least=0.7
        ),
        Kind.DECISION: Calibration(
            meaning=4.7, lead=12.7, kinship=2.3, words=6.3, overlap=4.3, constant=-6.05, least=0.54
        ),
        Kind.REFERENCE: Calibration(
            meaning=6.9, lead=9.8, kinship=2.9, words=2.2, overlap=9.7, constant=-6.75, least=0.85
        ),
    },
}
"""Model -> kind of document -> calibration; docs/evaluation.md has the pairs, and the figures on other sets."""

_READ_WORDS = Calibration(words=9.1, overlap=6.5, constant=-3.4, least=0.4, behind=0.2)
BY_WORDS: Mapping[Kind, Calibration] = {
    Kind.WORK: Calibration(words=7.6, overlap=2.4, constant=-1.6, least=0.6, behind=0.2),
    Kind.DECISION: _READ_WORDS,
    Kind.REFERENCE: _READ_WORDS,
}
"""Calibration without vectors, and for models without judged pairs."""


LIKELY_DUPLICATE, AHEAD = 0.85, 1.6
"""Least probability of a duplicate, and its least lead over the next item in log-odds, which tells more than the
probability: on three trackers with known duplicates five of six such items are duplicates (docs/evaluation.md)."""
TOGETHER, TOGETHER_AHEAD = 3, 2.0
"""Most items that may be ahead of all others together, since duplicates of one item are as close as each other, and the
least lead of two or three."""
VERBATIM = 0.93
"""Cosine similarity from which any item is a duplicate: its text is nearly the same."""


@dataclass(frozen=True, kw_only=True)
class LikelyDocument:
    """A document that is worth showing."""

    hit: Hit
    probability: float
    """Probability that the document is about the same or related work."""
    by: str
    """`meaning` if vectors were compared, else `words`."""
    ahead: float = 0.0
    """Lead over the next document of the kind in log-odds, whether that one is shown or not."""


def likest(hits: Iterable[Hit], question: frozenset[str]) -> list[Hit]:
    """The two hits, of any kind, most similar to a query with these words."""
    compared = [hit for hit in hits if hit.explanation and hit.explanation.similarity is not None]
    return nlargest(2, compared, key=lambda hit: (_meaning(hit) + _shared(hit, question), hit.document.id))


def likely_documents(
    results: SearchResults,
    kind: Kind,
    question: frozenset[str],
    kinship: Mapping[UUID, float] = MappingProxyType({}),
) -> list[LikelyDocument]:
    """Documents of a kind that are worth showing, the most probable first.

    Args:
        results: at least CANDIDATES hits if there are so many, with explanations.
        kind: kind of all hits.
        question: words of the query, as `pipeline.enrichment.text.stems` returns them.
        kinship: document -> cosine similarity of its chunk to that of the likest other document, of any kind.
    """
    hits, by_model = results.hits, CALIBRATED.get(model_of(results.model))
    have_vectors = [hit.explanation is not None and hit.explanation.similarity is not None for hit in hits]
    meanings = [_meaning(hit) for hit in hits]
    usual_meanings = sorted(
        (m for m, has_vector in zip(meanings, have_vectors, strict=True) if has_vector), reverse=True
    )[_MOST_SIMILAR:CANDIDATES]
    usual = (sum(usual_meanings) + _USUAL_WEIGHT * _USUAL) / (len(usual_meanings) + _USUAL_WEIGHT)
    ranked, unlike = list[LikelyDocument](), set[UUID]()
    for hit, compared, meaning in zip(hits, have_vectors, meanings, strict=True):
        by, model = ("meaning", by_model[kind]) if by_model and compared else ("words", BY_WORDS[kind])
        e = hit.explanation
        overlap = (e.overlap if e else None) or 0.0
        if e and e.similarity is not None and e.similarity < e.min_similarity and overlap < _RARE:
            unlike.add(hit.document.id)  # below the configured minimum, and without rare words of the query
        odds = (
            model.meaning * meaning
            + model.lead * (meaning - usual)
            + model.kinship * kinship.get(hit.document.id, _USUAL_KINSHIP)
            + model.words * _shared(hit, question)
            + model.overlap * overlap
            + model.constant
            + (OUTDATED if hit.outdated else 0.0)
            + (e.feedback if e else 0.0)
        )
        ranked.append(LikelyDocument(hit=hit, probability=1.0 / (1.0 + math.exp(-odds)), by=by))
    led = _with_leads(sorted(ranked, key=lambda one: -one.probability))
    ranked = [one for one in led if one.hit.document.id not in unlike]
    # Outdated documents must not displace their successors.
    holds = next((one.probability for one in ranked if not one.hit.outdated), 0.0)
    likely = [one for one in ranked if one.probability >= max(model.least, holds - model.behind)]
    return likely if kind is Kind.WORK else _without_copies(likely)


def _with_leads(ranked: Sequence[LikelyDocument]) -> list[LikelyDocument]:
    """Documents with their leads; the last one's is over a document that is just probable enough for a duplicate."""
    odds = [_log_odds(one.probability) for one in ranked]
    following = [*odds[1:], _log_odds(LIKELY_DUPLICATE)]
    return [replace(one, ahead=mine - its) for one, mine, its in zip(ranked, odds, following, strict=False)]


def _without_copies(ranked: Iterable[LikelyDocument]) -> list[LikelyDocument]:
    """Documents without copies, such as those of several versions: the current copy replaces the most probable one."""
    originals: list[LikelyDocument] = []
    for one in ranked:
        place = next((n for n, other in enumerate(originals) if _is_copy(one.hit, other.hit)), None)
        if place is None:
            originals.append(one)
        elif _current(one.hit) > _current(originals[place].hit):
            originals[place] = replace(originals[place], hit=one.hit)
    return originals


def _is_copy(one: Hit, other: Hit) -> bool:
    titles = {single_line(hit.document.title).casefold() for hit in (one, other)}
    return len(titles) == 1 and word_similarity(stems(one.chunk.content), stems(other.chunk.content)) >= COPY


def _current(hit: Hit) -> tuple[bool, bool, float]:
    """Sort key of copies: not outdated, not in a folder of an old version, time of the last change."""
    path = str(hit.document.metadata.get("source_path") or hit.document.url)
    changed = hit.document.updated_at
    return not hit.outdated, not _OLD_PLACE.search(path), changed.timestamp() if changed else 0.0


def likely_duplicates(ranked: Sequence[LikelyDocument], title: str) -> list[LikelyDocument]:
    """Items that may be duplicates of one with this title, among the most similar ones.

    Without vectors, and for models without judged pairs, only equal titles count.
    """
    together = next((n for n, one in enumerate(ranked[:TOGETHER], 1) if _is_far_ahead(n, one)), 0)
    return [
        one
        for place, one in enumerate(ranked)
        if place < together
        or _same_title(one, title)
        or (one.by == "meaning" and _meaning(one.hit) >= VERBATIM)
    ]


def _same_title(one: LikelyDocument, title: str) -> bool:
    return bool(title) and single_line(one.hit.document.title).casefold() == title.casefold()


def _is_far_ahead(place: int, one: LikelyDocument) -> bool:
    sure = one.by == "meaning" and one.probability >= LIKELY_DUPLICATE
    return sure and one.ahead >= (AHEAD if place == 1 else TOGETHER_AHEAD)


def _log_odds(probability: float) -> float:
    return math.log(max(probability, 1e-9) / max(1.0 - probability, 1e-9))


def _meaning(hit: Hit) -> float:
    """Cosine similarity, half of the best chunk and half of the whole document; 0 without vectors."""
    explanation = hit.explanation
    if explanation is None or explanation.similarity is None:
        return 0.0
    return 0.5 * explanation.similarity + 0.5 * (
        explanation.similarity if explanation.centroid is None else explanation.centroid
    )


def _shared(hit: Hit, question: frozenset[str]) -> float:
    """Similarity of the words of title and chunk to those of a query."""
    return word_similarity(stems(f"{hit.document.title} {hit.chunk.content}"), question)


MOST_CHUNKS = 100
"""Most chunks that are read of one document, about a book chapter."""
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
    """Text of a document in the search index."""

    external_id: str
    chunks: list[Chunk]
    similarities: dict[int, float]
    """Ordinal of a chunk -> its cosine similarity to the query; empty without vectors."""


class DocumentTexts:
    """Reads the active search index of one tenant."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant

    def read(
        self, document_ids: Collection[UUID], query_filter: Filter, vector: Vectors | None = None
    ) -> Mapping[UUID, DocumentText]:
        """Read the chunks of documents in order, by one statement; a document deleted meanwhile is left out.

        So is a document that the caller may no longer see: `query_filter` is the filter of the search. `vector` is the
        query's, with which the chunks are compared.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        if not document_ids:
            return {}
        limits = Filter(
            only=tuple(document_ids),
            security_levels=query_filter.security_levels,
            readers=query_filter.readers,
        )
        names = statement.names_of(limits)
        chunks = f"""
            select d.id, d.external_id, c.ord, c.content, c.context,
              case when vector_dims(c.embedding) = vector_dims(%(vector)s::halfvec)
                then nullif(1 - (c.embedding <=> %(vector)s::halfvec), 'NaN') end
            from document d join chunk c on c.document_id = d.id
            where c.index_id = (select id from search_index where status = 'active')
              and {statement.visible(names)} and c.ord < %(most)s
            order by d.id, c.ord"""
        compared = None if vector is None else HalfVector(vector)
        values = {**statement.values_of(limits, names), "most": MOST_CHUNKS, "vector": compared}
        texts: dict[UUID, DocumentText] = {}
        for row in self.database.fetch(self.tenant, chunks, values):
            document, external_id, ord_, content, context, similarity = row
            one = texts.setdefault(document, DocumentText(external_id, [], {}))
            one.chunks.append(Chunk(ord=ord_, content=content, context=context))
            if similarity is not None:
                one.similarities[ord_] = similarity
        return texts

    def kinship(self, likest: Sequence[Hit], hits: Iterable[Hit]) -> Mapping[UUID, float]:
        """Document -> cosine similarity of its chunk to the most similar document's; for that one to the second's."""
        if not likest[1:]:
            return {}
        chunks = {hit.document.id: hit.chunk.ord for hit in hits}
        first, second = (one.document.id for one in likest)
        compared = """
            with candidate as materialized (
                select c.document_id, c.embedding
                from unnest(cast(%(ids)s as uuid[]), cast(%(ords)s as int[])) as k(id, ord)
                join chunk c on c.document_id = k.id and c.ord = k.ord
                where c.index_id = (select id from search_index where status = 'active'))
            select f.document_id, 1 - (f.embedding <=> l.embedding)
            from candidate f join candidate l
              on l.document_id = case when f.document_id = %(first)s then %(second)s::uuid else %(first)s::uuid end"""
        values = {"ids": [*chunks], "ords": [*chunks.values()], "first": first, "second": second}
        rows = self.database.fetch(self.tenant, compared, values)
        return {document: alike for document, alike in rows if alike is not None}

    def ids(self, refs: Collection[str], projects: Collection[UUID] = ()) -> Mapping[UUID, tuple[str, str]]:
        """Documents of the kind work with one of these source ids -> id and title; limited to `projects`, if any.

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
    """One document of the answer, with its text and its similarity to the query."""

    def __init__(self, likely: LikelyDocument, text: DocumentText | None, question: frozenset[str]) -> None:
        """`question` is the query's words. Without `text` only the chunk of the hit is available."""
        self.likely, self.hit, self.document, self.question = (
            likely,
            likely.hit,
            likely.hit.document,
            question,
        )
        metadata, chunks = self.document.metadata, list(text.chunks) if text else []
        hit_is_missing = all(chunk.ord != self.hit.chunk.ord for chunk in chunks)
        self.chunks = [*chunks, self.hit.chunk] if hit_is_missing else chunks
        self.similarities: Mapping[int, float] = text.similarities if text else {}
        """Ordinal of a chunk -> its cosine similarity to the query."""
        external_id, path = text and text.external_id, metadata.get("source_path")
        # A task in its own file is named by its id instead of its path.
        names = (external_id if external_id != path else None, metadata.get("pbi_id"), external_id, path)
        self.external_id = str(next(filter(None, names), self.document.id))
        self.title = " ".join(self.document.title.split()) or DEFAULT_TITLES[self.document.kind]
        """Title on one line; a generic word if there is none."""
        self.similarity = round(100 * likely.probability)
        """Calibrated similarity, 0 to 100: per cent of such pairs that are about the same or related work."""
        self.status = self.first_metadata("state", "status")
        """State of the item, as the source names it."""
        self.outcome = self.first_metadata("resolution", "outcome", "reason")
        """Resolution, if the source has a field for it."""
        self.abandoned = any(_ABANDONED.search(word) for word in (self.status, self.outcome) if word)
        """Whether the work was given up."""

    @cached_property
    def link(self) -> str:
        """Web address of the document; `#` if it has none that other machines can open."""
        return web_address(without_controls(self.document.url).strip()) or NO_LINK

    @cached_property
    def done(self) -> bool:
        """Whether work is finished, by its source's state, and neither abandoned, reopened nor a duplicate."""
        state = self.status or ""
        ended = bool(_DONE.search(state)) and not _REOPENED.search(state)
        return ended and not self.abandoned and not repeats(self.document)

    @cached_property
    def sentences(self) -> list[Sentence]:
        """Sentences of the whole document."""
        return sentences_of(self.chunks)

    @cached_property
    def sections(self) -> Mapping[Section | None, Sequence[Sentence]]:
        """Sentences by section; empty for a missing section."""
        return by_section(self.sentences)

    def first_metadata(self, *keys: str) -> str | None:
        """The first of these metadata with a value, as text."""
        for value in map(self.document.metadata.get, keys):
            if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
                return " ".join(str(value).split())
        return None
