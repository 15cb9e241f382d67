"""A document that a search has found, with all of its text and how much it is like the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.documents import Chunk, Kind
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.sentences import Sentence, sentences_of
from pipeline.enrichment.texts import DocumentText
from pipeline.retrieval import Hit
from pipeline.words import covered, flat, likeness, stems

DEFAULT_TITLES = {Kind.WORK: "Similar PBI", Kind.DECISION: "Decision", Kind.REFERENCE: "Documentation"}

RARE_SHARE = 0.25
"""Of the question's weight in its rarest words: whoever has so much of it speaks of the same thing."""
WORDS_IN_COMMON = 3
"""Without an embedder: fewer shared words than this are chance, unless the question is as short."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """One document of the answer."""

    hit: Hit
    external_id: str
    chunks: Sequence[Chunk]
    question: frozenset[str]
    """The question's words."""

    @classmethod
    def of(cls, hit: Hit, text: DocumentText | None, question: frozenset[str]) -> Found:
        """Without the text of the whole document, the chunk that was found has to do."""
        chunks = list(text.chunks) if text else []
        if all(chunk.ord != hit.chunk.ord for chunk in chunks):
            chunks.append(hit.chunk)
        named = text.external_id if text else ""
        metadata = hit.document.metadata
        name = named or metadata.get("pbi_id") or metadata.get("source_path") or hit.document.id
        return cls(hit=hit, external_id=str(name), chunks=chunks, question=question)

    @property
    def title(self) -> str:
        """Of the document, or a word in place of it."""
        return flat(self.hit.document.title) or DEFAULT_TITLES[self.hit.document.kind]

    @cached_property
    def sentences(self) -> list[Sentence]:
        """Of the whole document."""
        return sentences_of(self.chunks)

    @cached_property
    def words(self) -> frozenset[str]:
        """Of the title and the chunk that was found."""
        return stems(f"{self.hit.document.title} {self.hit.chunk.content}")

    @property
    def cosine(self) -> float | None:
        """Of the best chunk; None if there was no vector to compare."""
        return self.hit.explanation.similarity if self.hit.explanation else None

    @property
    def similarity(self) -> int:
        """0 to 100, by meaning where vectors were compared, else by words."""
        share = likeness(self.words, self.question) if self.cosine is None else self.cosine
        return round(100 * min(1.0, max(0.0, share)))

    @property
    def similarity_by(self) -> str:
        """`meaning` or `words`."""
        return "words" if self.cosine is None else "meaning"

    @property
    def relevant(self) -> bool:
        """False for a document that has only everyday words in common with the question.

        A search keeps whatever shares a word with the question; in a list of results that does no harm, in an
        answer it would look like knowledge.
        """
        explanation = self.hit.explanation
        if explanation is None or explanation.similarity is None:
            return len(self.words & self.question) >= min(WORDS_IN_COMMON, len(self.question))
        return explanation.similarity >= explanation.min_similarity or explanation.rare >= RARE_SHARE

    def is_own(self, request: EnrichmentRequest) -> bool:
        """True for the PBI's own document: the same id, or the same title and text."""
        document = self.hit.document
        if document.kind is not Kind.WORK:
            return False
        own_ids = {self.external_id, str(document.metadata.get("pbi_id", ""))}
        if request.id and request.id in own_ids:
            return True
        parts = [request.description, *request.criteria]
        if flat(document.title).casefold() != request.title.casefold() or not any(
            part.strip() for part in parts
        ):
            return False
        text = flat("\n".join(chunk.content for chunk in self.chunks)).casefold()
        return all(flat(part).casefold() in text for part in parts)

    def told(self, *keys: str) -> str | None:
        """The first of these metadata that says something, as text."""
        return next((text for key in keys if (text := _word(self.hit.document.metadata.get(key)))), None)

    def fits(self, sentence: Sentence) -> float:
        """The share of the question's words that a sentence has."""
        return covered(self.question, stems(sentence.text))


def _word(value: Any) -> str:
    return flat(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
