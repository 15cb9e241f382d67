"""Documents that a search found, read whole: their sentences, best passages and citations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import NamedTuple, Protocol
from uuid import UUID

from sqlalchemy import text

from pipeline.database.engine import Database
from pipeline.documents import Chunk, Kind
from pipeline.enrichment.context import NO_LINK, Citation
from pipeline.enrichment.similarity import Likely
from pipeline.enrichment.text import (
    CUT,
    QUOTED,
    WITHOUT_BLANK,
    Part,
    Sentence,
    by_part,
    clipped,
    covered,
    flat,
    part_of,
    sentences_of,
    shortened,
    stems,
    stems_each,
)
from pipeline.search import Hit
from pipeline.search.records import StoredDocument
from pipeline.search.snippets import passage
from pipeline.search.validity import repeats

MOST_CHUNKS = 100
"""Of one document: outcome, decision and lessons of anything longer than a book chapter are not looked for."""
DEFAULT_TITLES = {Kind.WORK: "Similar PBI", Kind.DECISION: "Decision", Kind.REFERENCE: "Documentation"}
ENOUGH = 0.6
"""Of the best passage's score: a further one that has less is not worth showing."""
OF_THE_HIT = 1.25
"""How much more a passage counts that stands in the chunk the search has chosen."""
OF_LINKS = 0.5
"""How much a passage counts that only says where to read on."""
_DOTS = " ..."
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
_TARGET = re.compile(r"https?://\S+")
"""Where a link leads: its words are those of a site's folders, not of the text."""


class DocumentText(NamedTuple):
    """What the index holds of a document."""

    external_id: str
    chunks: Sequence[Chunk]


class DocumentTexts(Protocol):
    """Reads documents that a search has found."""

    def of(self, document_ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
        """Their chunks in order; a document that is gone meanwhile is left out.

        Raises:
            StoreUnavailable: the store does not answer.
        """

    def ids(self, refs: Collection[str], projects: Collection[UUID] = ()) -> Sequence[UUID]:
        """The work items that a source knows by one of these ids; with `projects` those of these alone.

        Raises:
            StoreUnavailable: the store does not answer.
        """


class PgTexts:
    """Reads the active search index of one tenant."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant

    def of(self, document_ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
        """See `DocumentTexts`; one statement."""
        if not document_ids:
            return {}
        with self.database.tenant(self.tenant) as connection:
            rows = connection.execute(
                text("""
                    select d.id, d.external_id, c.ord, c.content, c.context
                    from document d join chunk c on c.document_id = d.id
                    where c.index_id = (select id from search_index where status = 'active')
                      and d.id = any(:ids) and not d.hidden and not d.deleted and c.ord < :most
                    order by d.id, c.ord"""),
                {"ids": list(document_ids), "most": MOST_CHUNKS},
            ).all()
        chunks: dict[tuple[UUID, str], list[Chunk]] = {}
        for row in rows:
            found = Chunk(ord=row.ord, content=row.content, context=row.context)
            chunks.setdefault((row.id, row.external_id), []).append(found)
        return {key: DocumentText(name, found) for (key, name), found in chunks.items()}

    def ids(self, refs: Collection[str], projects: Collection[UUID] = ()) -> Sequence[UUID]:
        """See `DocumentTexts`; a look into each source, by its key."""
        if not refs:
            return ()
        with self.database.tenant(self.tenant) as connection:
            rows = connection.execute(
                text("""
                    select d.id from source s cross join lateral (
                        select d.id from document d
                        where d.tenant_id = s.tenant_id and d.source_id = s.id and d.external_id = any(:refs)
                          and d.kind = 'work' and (:anywhere or d.project_id = any(:projects)) offset 0) d"""),
                {"refs": list(refs), "anywhere": not projects, "projects": list(projects)},
            )
            return [row.id for row in rows]


@dataclass(frozen=True, kw_only=True)
class FoundDocument:
    """One document of the answer, with all of its text and how much it is like the question."""

    likely: Likely
    hit: Hit
    """Its best chunk."""
    document: StoredDocument
    external_id: str
    title: str
    """On one line; a word in place of it if it has none."""
    similarity: int
    """0 to 100: the per cent of such pairs that are about the same or related work."""
    chunks: Sequence[Chunk]
    question: frozenset[str]
    """The question's words."""

    @classmethod
    def of(cls, likely: Likely, text: DocumentText | None, question: frozenset[str]) -> FoundDocument:
        """Without the text of the whole document, the chunk that was found has to do."""
        hit, document = likely.hit, likely.hit.document
        chunks = list(text.chunks) if text else []
        if all(chunk.ord != hit.chunk.ord for chunk in chunks):
            chunks.append(hit.chunk)
        named = text.external_id if text else ""
        name = named or document.metadata.get("pbi_id") or document.metadata.get("source_path") or document.id
        return cls(
            likely=likely,
            hit=hit,
            document=document,
            external_id=str(name),
            title=flat(document.title) or DEFAULT_TITLES[document.kind],
            similarity=round(100 * likely.probability),
            chunks=chunks,
            question=question,
        )

    @cached_property
    def sentences(self) -> list[Sentence]:
        """Of the whole document."""
        return sentences_of(self.chunks)

    @cached_property
    def parts(self) -> Mapping[Part | None, Sequence[Sentence]]:
        """Its sentences by the part they stand in; empty for a part that it has not."""
        return by_part(self.sentences)

    @cached_property
    def status(self) -> str | None:
        """Its state, as the source calls it."""
        return self.told("state", "status")

    @cached_property
    def outcome(self) -> str | None:
        """How it ended, where the source has a field for that."""
        return self.told("resolution", "outcome", "reason")

    @cached_property
    def abandoned(self) -> bool:
        """True for work that was given up."""
        return any(_ABANDONED.search(word) for word in (self.status, self.outcome) if word)

    @cached_property
    def done(self) -> bool:
        """True for work that its source calls finished, and nobody gave up, took up again or closed as a duplicate."""
        state = self.status or ""
        ended = bool(_DONE.search(state)) and not _REOPENED.search(state)
        return ended and not self.abandoned and not repeats(self.document)

    def told(self, *keys: str) -> str | None:
        """The first of these metadata that says something, as text."""
        for value in map(self.document.metadata.get, keys):
            if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value).strip():
                return " ".join(str(value).split())
        return None

    def fits(self, sentence: Sentence) -> float:
        """The share of the question's words that a sentence has."""
        return covered(self.question, stems(sentence.text))


class Citations:
    """The numbered list of places that an answer was taken from; the same words of the same chunk have one number."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str], Citation] = {}

    def cite(self, found: FoundDocument, sentence: Sentence) -> int:
        """The number of a sentence."""
        place = f"{found.document.id}:{sentence.ord}", clipped(sentence.text)
        if place not in self._by_place:
            self._by_place[place] = Citation(
                n=len(self._by_place) + 1,
                ref=found.external_id,
                title=found.title,
                link=found.document.url or NO_LINK,
                document_id=str(found.document.id),
                chunk=place[0],
                source_type=found.document.source_type.value,
                quoted=place[1],
            )
        return self._by_place[place].n

    def all_of(self, found: FoundDocument, sentences: Iterable[Sentence]) -> tuple[int, ...]:
        """The numbers of sentences, in order."""
        return tuple(self.cite(found, sentence) for sentence in sentences)

    @property
    def listed(self) -> list[Citation]:
        """All so far, by number."""
        return list(self._by_place.values())


class Excerpt(NamedTuple):
    """A place of a document that matters for a question, short enough to be read at a glance."""

    sentence: Sentence
    """Its text and its place."""
    shown: str
    """With the nearest heading before it, if there is room."""


def best_passages(found: FoundDocument, *, most: int) -> list[Excerpt]:
    """At most `most` passages, the best first; none of a document without prose."""
    windows = list(_windows(found.sentences))
    if not windows:
        return []
    told = stems_each(_TARGET.sub(" ", s.text) for s in found.sentences)
    words = {s: said & found.question for s, said in zip(found.sentences, told, strict=True)}
    scored = sorted(((_score(found, w, words), -n, w) for n, w in enumerate(windows)), reverse=True)
    top = scored[0][0]
    if not top:
        # No sentence has a word of the question: the first of the chunk that was found, or of the document.
        own = (s for s in found.sentences if s.ord == found.hit.chunk.ord)
        return [_shown(found, shortened(next(own, found.sentences[0])))]
    good = (window for score, _, window in scored if score >= ENOUGH * top)
    return [_shown(found, _joined(found, window)) for window in islice(_apart(good), most)]


def _apart(windows: Iterable[tuple[Sentence, ...]]) -> Iterator[tuple[Sentence, ...]]:
    """Those that share no sentence with one before."""
    seen: set[Sentence] = set()
    for window in windows:
        if seen.isdisjoint(window):
            seen.update(window)
            yield window


def _windows(sentences: Sequence[Sentence]) -> Iterator[tuple[Sentence, ...]]:
    """From each sentence on, as many of the same paragraph as may be shown together."""
    for n, first in enumerate(sentences):
        window = [first]
        size = len(first.text)
        for other in sentences[n + 1 :]:
            size += len(other.text) + 1
            apart = (other.paragraph, other.ord) != (first.paragraph, first.ord)
            if apart or size > QUOTED or window[-1].text.endswith(tuple(WITHOUT_BLANK)):
                break
            window.append(other)
        yield tuple(window)


def _score(
    found: FoundDocument, window: tuple[Sentence, ...], words: Mapping[Sentence, frozenset[str]]
) -> float:
    """How many different words of the question it has, those under a fitting heading a little more."""
    had = frozenset().union(*(words[s] for s in window))
    score = len(had) + 0.5 * len(stems(window[0].heading) & found.question)
    if part_of(window[0].headings) is Part.ELSEWHERE:
        score *= OF_LINKS
    return score * (OF_THE_HIT if window[0].ord == found.hit.chunk.ord else 1.0)


def _joined(found: FoundDocument, window: tuple[Sentence, ...]) -> Sentence:
    """The window as one sentence; of a long text the part where the question's words stand."""
    first = window[0]
    if len(window) > 1 or len(first.text) <= QUOTED:
        return replace(first, text=" ".join(s.text for s in window))
    cut = passage(first.text, " ".join(sorted(found.question)), length=QUOTED).text
    line = flat(first.text)
    if cut.endswith(_DOTS) and not line.endswith(cut):
        cut = cut.removesuffix(_DOTS) + f" {CUT}"
    if not line.startswith(cut[:-2]) and cut.startswith("... "):
        cut = f"{CUT} " + cut.removeprefix("... ")
    return replace(first, text=cut)


def _shown(found: FoundDocument, sentence: Sentence) -> Excerpt:
    heading = sentence.heading
    tells = heading and heading.casefold() != found.title.casefold()
    mark = " " if heading.endswith(("?", "!", ":")) else ": "
    if tells and len(heading) + len(mark) + len(sentence.text) <= QUOTED:
        return Excerpt(sentence, f"{heading}{mark}{sentence.text}")
    return Excerpt(sentence, sentence.text)
