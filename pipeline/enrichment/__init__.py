"""Step 4's answer: what is known already of a product backlog item."""

from __future__ import annotations

from pipeline.enrichment.context import EnrichedContext, static_context
from pipeline.enrichment.enricher import Enricher
from pipeline.enrichment.found import PgTexts
from pipeline.enrichment.prompt import prompt_block
from pipeline.enrichment.request import EnrichmentRequest

__all__ = [
    "EnrichedContext",
    "Enricher",
    "EnrichmentRequest",
    "PgTexts",
    "prompt_block",
    "static_context",
]
