"""A document that a search has found, with all of its text and how much it is like the question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.documents import Chunk, Kind
from pipeline.enrichment.sentences import Sentence, sentences_of
from pipeline.enrichment.similarity import Likely
from pipeline.enrichment.texts import DocumentText
from pipeline.enrichment.words import covered, flat, stems
from pipeline.search import Hit

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
