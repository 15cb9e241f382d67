"""Search: retrieval, ranking and caching of the best documents for a query."""

from pipeline.search.records import Hit, RetrievalOptions, SearchRequest, SearchResults, Weights
from pipeline.search.retriever import Retriever

__all__ = ["Hit", "RetrievalOptions", "Retriever", "SearchRequest", "SearchResults", "Weights"]
