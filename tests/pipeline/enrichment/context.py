"""An answer with one item of similar work."""

from __future__ import annotations

from typing import Any

from pipeline.enrichment.context import Citation, EnrichedContext, SimilarWork


def context(*learnings: str, link: str = "#", status: str | None = None) -> EnrichedContext:
    """One item of similar work from which this was learned, each sentence cited."""
    document: dict[str, Any] = {
        "ref": "PBI-7",
        "title": "Export invoices as CSV",
        "link": link,
        "document_id": "d7",
        "source_type": "pbi",
    }
    return EnrichedContext(
        similar_work=[
            SimilarWork(
                **document,
                source="backlog",
                updated_at=None,
                age_days=None,
                citations=tuple(range(1, len(learnings) + 1)),
                similarity=84,
                similarity_by="meaning",
                learnings=learnings,
                status=status,
            )
        ],
        citations=[
            Citation(**document, n=n, chunk="d7:0", quoted=quoted) for n, quoted in enumerate(learnings, 1)
        ],
    )
