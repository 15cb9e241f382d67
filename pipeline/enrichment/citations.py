"""The numbered list of places that an answer was taken from."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.enrichment.context import NO_LINK, Citation
from pipeline.enrichment.found import Found
from pipeline.enrichment.sentences import Sentence, clipped


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
