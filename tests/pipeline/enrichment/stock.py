"""Documents that a search finds with likenesses given by hand, where no store is needed to show what follows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from pipeline.documents import Chunk, Json, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.enrichment.enricher import Enricher
from pipeline.enrichment.references import DocumentText, DocumentTexts
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.text import without_marks
from pipeline.errors import StoreUnavailable
from pipeline.search import Hit, SearchRequest, SearchResults
from pipeline.search.records import Explanation, Filter, StoredDocument, outdated
from tests.pipeline.enrichment.library import NOW, sound

MINILM = "all-MiniLM-L6-v2"
"""A model that pairs were judged for."""
SAME = 0.95
"""Likeness in meaning of a document that anyone would call about the same; of one that nobody would, FAR."""
FAR = 0.1


def explained(
    similarity: float | None = SAME, centroid: float | None = None, overlap: float = 0.0, least: float = 0.0
) -> Explanation:
    return Explanation(
        similarity=similarity,
        bm25=None,
        centroid=similarity if centroid is None else centroid,
        overlap=overlap,
        title=None,
        covered=None,
        vector_part=0.0,
        keyword_part=0.0,
        title_part=0.0,
        covered_part=0.0,
        min_similarity=least,
    )


def hit(
    n: int = 1,
    text: str = "Nothing in common.",
    *,
    title: str = "",
    kind: Kind = Kind.WORK,
    told: Explanation | None = None,
    **metadata: Any,
) -> Hit:
    """The document of this number, as a search finds it by its only chunk."""
    source_type = SourceType.PBI if kind is Kind.WORK else SourceType.DOCUMENTATION
    stored = StoredDocument(
        id=UUID(int=n),
        version=1,
        title=title or f"Number {n}",
        source_type=source_type,
        kind=kind,
        metadata={"source_path": f"D-{n}", **metadata},
    )
    chunk = Chunk(ord=0, content=text)
    return Hit(
        document=stored, chunk=chunk, score=1.0, explanation=told or explained(), outdated=outdated(stored)
    )


class Stock(DocumentTexts):
    """A search that always finds the same hits, and their texts."""

    def __init__(
        self, hits: Sequence[Hit], *, model: str = MINILM, level: int = 0, away: bool = False
    ) -> None:
        self.hits = hits
        self.model = model
        self.level = level
        self.away = away
        """The store does not answer: what is found comes from a cache."""

    def search(self, request: SearchRequest) -> SearchResults:
        hits = [
            one
            for one in self.hits
            if one.document.kind in request.filter.kinds and one.document.id not in request.filter.exclude
        ]
        return SearchResults(hits=hits, model=self.model, degradation_level=self.level)

    def read(
        self,
        document_ids: Collection[UUID],
        query_filter: Filter,  # noqa: ARG002 (all are seen here)
        vector: Vectors | None = None,  # noqa: ARG002 (no vectors here)
    ) -> Mapping[UUID, DocumentText]:
        if self.away:
            raise StoreUnavailable("no answer")
        return {
            one.document.id: DocumentText(f"D-{one.document.id.int}", [one.chunk], {})
            for one in self.hits
            if one.document.id in document_ids
        }

    def kinship(self, likest: Sequence[Hit], hits: Iterable[Hit]) -> Mapping[UUID, float]:  # noqa: ARG002 (no vectors here)
        if self.away:
            raise StoreUnavailable("no answer")
        return {}

    def ids(self, refs: Collection[str], projects: Collection[UUID] = ()) -> Mapping[UUID, tuple[str, str]]:
        if self.away:
            raise StoreUnavailable("no answer")
        return {
            one.document.id: (f"D-{one.document.id.int}", one.document.title)
            for one in self.hits
            if f"D-{one.document.id.int}" in refs
            and one.document.kind is Kind.WORK
            and (not projects or one.document.project_id in (None, *projects))
        }

    def answer(self, pbi: Mapping[str, Any], **wanted: Any) -> Json:
        """The context of a PBI, seen to be sound."""
        request = EnrichmentRequest.from_json({"pbi": pbi, **wanted})
        texts = {one.id: without_marks(one.chunk.content) for one in self.hits}
        return sound(Enricher(self.search, self, now=lambda: NOW).enrich(request), texts.__getitem__)
