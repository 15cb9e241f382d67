"""From a question to the best documents."""

from pipeline.search.records import Hit, RetrievalOptions, SearchRequest, SearchResults, Weights
from pipeline.search.retriever import Retriever

__all__ = ["Hit", "RetrievalOptions", "Retriever", "SearchRequest", "SearchResults", "Weights"]
