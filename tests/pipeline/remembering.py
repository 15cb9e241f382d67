"""One who asks and remembers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pipeline.database.engine import Database
from pipeline.embedding import Vectors
from pipeline.search import Retriever, SearchRequest, SearchResults
from pipeline.search.cache import Caches, MemoryCache


class Asker:
    """A retriever with caches, and how often its embedder was asked."""

    def __init__(self, database: Database, tenant: UUID, embedder: Any, **options: Any) -> None:
        self.asked = 0
        self.embedder = embedder
        self.model, self.dimensions, self.limits = embedder.model, embedder.dimensions, embedder.limits
        self.results, self.vectors = MemoryCache(), MemoryCache()
        self.retriever = Retriever(
            database,
            tenant,
            lambda _index: self,
            caches=Caches(vectors=self.vectors, results=self.results),
            **options,
        )

    def embed_query(self, text: str) -> Vectors:
        self.asked += 1
        found: Vectors = self.embedder.embed_query(text)
        return found

    def embed_documents(self, texts: Any) -> Vectors:
        found: Vectors = self.embedder.embed_documents(texts)
        return found

    def count_tokens(self, text: str) -> int:
        return int(self.embedder.count_tokens(text))

    def search(self, words: str = "kestrel", *, level: int = 0, **changes: Any) -> SearchResults:
        return self.retriever.search(SearchRequest(text=words, min_similarity=-1.0, **changes), level=level)
