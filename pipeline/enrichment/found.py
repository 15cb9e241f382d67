"""Documents that a search found, read whole: their sentences, best passages and citations."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol
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
    clipped,
    covered,
    flat,
    part_of,
    sentences_of,
    shortened,
    stems,
)
from pipeline.search import Hit
from pipeline.search.snippets import passage

MOST_CHUNKS = 100
"""Of one document: outcome, decision and lessons of anything longer than a book chapter are not looked for."""


@dataclass(frozen=True, kw_only=True)
class DocumentText:
    """What the index holds of a document."""

    external_id: str
    chunks: Sequence[Chunk]


class Texts(Protocol):
    """Reads documents that a search has found."""

    def of(self, document_ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
        """Their chunks in order; a document that is gone meanwhile is left out.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        ...

    def ids(self, refs: Collection[str]) -> Sequence[UUID]:
        """The work items that a source knows by one of these ids.

        Raises:
            StoreUnavailable: the store does not answer.
        """
        ...


class PgTexts:
    """Reads the active search index of one tenant."""

    def __init__(self, database: Database, tenant: UUID) -> None:
        self.database = database
        self.tenant = tenant

    def of(self, document_ids: Collection[UUID]) -> Mapping[UUID, DocumentText]:
        """See `Texts`; one statement."""
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
        names = {row.id: row.external_id for row in rows}
        chunks: dict[UUID, list[Chunk]] = {}
        for row in rows:
            found = Chunk(ord=row.ord, content=row.content, context=row.context)
            chunks.setdefault(row.id, []).append(found)
        return {key: DocumentText(external_id=names[key], chunks=chunks[key]) for key in names}

    def ids(self, refs: Collection[str]) -> Sequence[UUID]:
        """See `Texts`; a look into each source, by its key."""
        if not refs:
            return ()
        with self.database.tenant(self.tenant) as connection:
            rows = connection.execute(
                text("""
                    select d.id from source s cross join lateral (
                        select d.id from document d
                        where d.tenant_id = s.tenant_id and d.source_id = s.id and d.external_id = any(:refs)
                          and d.kind = 'work' offset 0) d"""),
                {"refs": list(refs)},
            )
            return [row.id for row in rows]


DEFAULT_TITLES = {Kind.WORK: "Similar PBI", Kind.DECISION: "Decision", Kind.REFERENCE: "Documentation"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """One document of the answer."""

    likely: Likely
    external_id: str
    chunks: Sequence[Chunk]
    question: frozenset[str]
    """The question's words."""

    @classmethod
    def of(cls, likely: Likely, text: DocumentText | None, question: frozenset[str]) -> Found:
        """Without the text of the whole document, the chunk that was found has to do."""
        hit = likely.hit
        chunks = list(text.chunks) if text else []
        if all(chunk.ord != hit.chunk.ord for chunk in chunks):
            chunks.append(hit.chunk)
        named = text.external_id if text else ""
        metadata = hit.document.metadata
        name = named or metadata.get("pbi_id") or metadata.get("source_path") or hit.document.id
        return cls(likely=likely, external_id=str(name), chunks=chunks, question=question)

    @property
    def hit(self) -> Hit:
        """Its best chunk."""
        return self.likely.hit

    @property
    def similarity(self) -> int:
        """0 to 100: the per cent of such pairs that are about the same or related work."""
        return round(100 * self.likely.probability)

    @property
    def title(self) -> str:
        """Of the document, or a word in place of it."""
        return flat(self.hit.document.title) or DEFAULT_TITLES[self.hit.document.kind]

    @cached_property
    def sentences(self) -> list[Sentence]:
        """Of the whole document."""
        return sentences_of(self.chunks)

    def told(self, *keys: str) -> str | None:
        """The first of these metadata that says something, as text."""
        return next((text for key in keys if (text := _word(self.hit.document.metadata.get(key)))), None)

    def fits(self, sentence: Sentence) -> float:
        """The share of the question's words that a sentence has."""
        return covered(self.question, stems(sentence.text))


def _word(value: Any) -> str:
    return flat(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""


class Citations:
    """Grows while an answer is written; the same words of the same chunk have one number."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[str, str], Citation] = {}

    def cite(self, found: Found, sentence: Sentence) -> int:
        """The number of a sentence."""
        document = found.hit.document
        quoted = clipped(sentence.text)
        chunk = f"{document.id}:{sentence.ord}"
        made = self._by_place.get((chunk, quoted))
        if made is None:
            made = Citation(
                n=len(self._by_place) + 1,
                ref=found.external_id,
                title=found.title,
                link=document.url or NO_LINK,
                document_id=str(document.id),
                chunk=chunk,
                source_type=document.source_type.value,
                quoted=quoted,
            )
            self._by_place[chunk, quoted] = made
        return made.n

    def all_of(self, found: Found, sentences: Iterable[Sentence]) -> tuple[int, ...]:
        """The numbers of sentences, in order."""
        return tuple(self.cite(found, sentence) for sentence in sentences)

    @property
    def listed(self) -> list[Citation]:
        """All so far, by number."""
        return list(self._by_place.values())


ENOUGH = 0.6
"""Of the best passage's score: a further one that has less is not worth showing."""
OF_THE_HIT = 1.25
"""How much more a passage counts that stands in the chunk the search has chosen."""
OF_LINKS = 0.5
"""How much a passage counts that only says where to read on."""
_DOTS = " ..."
_TARGET = re.compile(r"https?://\S+")
"""Where a link leads: its words are those of a site's folders, not of the text."""


@dataclass(frozen=True, kw_only=True)
class Best:
    """A passage."""

    sentence: Sentence
    """Its text and its place."""
    shown: str
    """With the nearest heading before it, if there is room."""


def best_passages(found: Found, *, most: int) -> list[Best]:
    """At most `most` passages, the best first; none of a document without prose."""
    windows = list(_windows(found.sentences))
    if not windows:
        return []
    words = {s: stems(_TARGET.sub(" ", s.text)) & found.question for s in found.sentences}
    scored = sorted(((_score(found, w, words), -n, w) for n, w in enumerate(windows)), reverse=True)
    top = scored[0][0]
    if not top:
        return [_shown(found, _from_chunk(found))]
    kept: list[tuple[Sentence, ...]] = []
    for score, _, window in scored:
        apart = all(not set(window) & set(other) for other in kept)
        if len(kept) < most and apart and score >= ENOUGH * top:
            kept.append(window)
    return [_shown(found, _joined(found, window)) for window in kept]


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


def _score(found: Found, window: tuple[Sentence, ...], words: Mapping[Sentence, frozenset[str]]) -> float:
    """How many different words of the question it has, those under a fitting heading a little more."""
    had = frozenset().union(*(words[s] for s in window))
    score = len(had) + 0.5 * len(stems(window[0].heading) & found.question)
    if part_of(window[0].headings) is Part.ELSEWHERE:
        score *= OF_LINKS
    return score * (OF_THE_HIT if window[0].ord == found.hit.chunk.ord else 1.0)


def _joined(found: Found, window: tuple[Sentence, ...]) -> Sentence:
    first = window[0]
    if len(window) == 1 and len(first.text) > QUOTED:
        return replace(first, text=_cut(first.text, found))
    return replace(first, text=" ".join(s.text for s in window))


def _cut(text: str, found: Found) -> str:
    """The part of a long text where the question's words stand."""
    cut = passage(text, " ".join(sorted(found.question)), length=QUOTED).text
    line = flat(text)
    if cut.endswith(_DOTS) and not line.endswith(cut):
        cut = cut.removesuffix(_DOTS) + f" {CUT}"
    if not line.startswith(cut[:-2]) and cut.startswith("... "):
        cut = f"{CUT} " + cut.removeprefix("... ")
    return cut


def _from_chunk(found: Found) -> Sentence:
    """Of the chunk that was found or else the document, when no sentence has a word of the question."""
    own = (s for s in found.sentences if s.ord == found.hit.chunk.ord)
    return shortened(next(own, found.sentences[0]))


def _shown(found: Found, sentence: Sentence) -> Best:
    heading = sentence.heading
    tells = heading and heading.casefold() != found.title.casefold()
    mark = " " if heading.endswith(("?", "!", ":")) else ": "
    if tells and len(heading) + len(mark) + len(sentence.text) <= QUOTED:
        return Best(sentence=sentence, shown=f"{heading}{mark}{sentence.text}")
    return Best(sentence=sentence, shown=sentence.text)
