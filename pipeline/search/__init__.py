"""From a question to the best documents."""

from pipeline.search.records import (
    CACHED_ONLY,
    FULL,
    KEYWORD_ONLY,
    MEASURED_THRESHOLDS,
    NO_RERANKING,
    STATIC_ONLY,
    Explanation,
    Filter,
    Hit,
    RetrievalOptions,
    SearchRequest,
    SearchResults,
    Weights,
)
from pipeline.search.retriever import Retriever

__all__ = [
    "CACHED_ONLY",
    "FULL",
    "KEYWORD_ONLY",
    "MEASURED_THRESHOLDS",
    "NO_RERANKING",
    "STATIC_ONLY",
    "Explanation",
    "Filter",
    "Hit",
    "RetrievalOptions",
    "Retriever",
    "SearchRequest",
    "SearchResults",
    "Weights",
]
