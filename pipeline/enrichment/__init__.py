"""Step 4's answer: what is known already of a product backlog item."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_PLACES = {
    "EnrichedContext": "context",
    "static_context": "context",
    "Enricher": "enricher",
    "DocumentTexts": "found",
    "prompt_block": "prompt",
    "EnrichmentRequest": "request",
}


def __getattr__(name: str) -> Any:
    """What is asked for is loaded then: a search needs the degradation levels of this package alone."""
    if name not in _PLACES:
        raise AttributeError(name)
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
