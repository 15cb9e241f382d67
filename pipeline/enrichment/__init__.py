"""Step 4's answer: what is known already of a product backlog item."""

from __future__ import annotations

from pipeline.enrichment.context import EnrichedContext, static_context
from pipeline.enrichment.enricher import Enricher
from pipeline.enrichment.found import DocumentTexts
from pipeline.enrichment.prompt import prompt_block
from pipeline.enrichment.request import EnrichmentRequest

__all__ = [
    "DocumentTexts",
    "EnrichedContext",
    "Enricher",
    "EnrichmentRequest",
    "prompt_block",
    "static_context",
]
