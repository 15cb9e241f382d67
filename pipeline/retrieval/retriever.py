"""From a question to the best documents: two searches, one ranking, a closer look, a threshold."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import cast
from uuid import UUID

from pipeline.caching import Caches
from pipeline.database import Database
from pipeline.degradation import Part
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import embed_query_checked
from pipeline.errors import EmbeddingError
from pipeline.fusion import above_threshold, best_per_document
from pipeline.ledger.storable import clean
from pipeline.queries import ProcessedQuery, process
from pipeline.reranking import Reranker, RerankOptions
from pipeline.retrieval import remembering
from pipeline.retrieval.ranking import Ranked, looked_at, lowered, merged, rank
from pipeline.retrieval.records import (
    CACHED_ONLY,
    FULL,
    KEYWORD_ONLY,
    NO_RERANKING,
    STATIC_ONLY,
    Explanation,
    Hit,
    RetrievalOptions,
    SearchRequest,
    SearchResults,
)
from pipeline.standing import standing
from pipeline.stores import Mode, StoreQuery, statistics
from pipeline.stores.pgvector import PgVectorStore, SearchIndex, active_index
from pipeline.stores.pgvector_query import LedgerCandidate

Watch = Callable[[Part], AbstractContextManager[None]]
"""Wraps each call to a part, and so learns how it went and how long it took."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question with all that its answer depends on."""

    request: SearchRequest
    query: ProcessedQuery
    mode: Mode
    level: int


class Retriever:
    """Searches one tenant's documents."""

    def __init__(
        self,
        database: Database,
        tenant: UUID,
        embedder_of: Callable[[SearchIndex], Embedder],
        options: RetrievalOptions | None = None,
        *,
        caches: Caches | None = None,
        reranker: Callable[[], Reranker | None] = lambda: None,
        rerank: RerankOptions | None = None,
        watch: Watch = lambda _part: nullcontext(),
    ) -> None:
        """`reranker` is called at the first search that needs it; None means that there is none."""
        self.database = database
        self.tenant = tenant
        self.embedder_of = embedder_of
        self.options = options or RetrievalOptions()
        self.reranker = reranker
        self.rerank = rerank or RerankOptions()
        self.watch = watch
        kept = caches or Caches()
        self._vectors = remembering.memory(kept.vectors, "vector", tenant)
        self._results = remembering.memory(kept.results, "result", tenant)

    def search(self, request: SearchRequest, *, level: int = FULL) -> SearchResults:
        """The best documents for a question; nothing if it is blank or nothing is indexed yet.

        `level` is the degradation level to search at: 1 without the reranker, 2 only what is remembered, 3 by
        words alone, 4 and 5 not at all. The answer tells the level it really has: an embedder that fails
        makes it 3, a reranker that fails or takes too long 1.

        Raises:
            StoreUnavailable: the database does not answer.
            EmbeddingError: mode `vector`, and the embedder fails.
        """
        if level >= STATIC_ONLY:
            return SearchResults(degradation_level=level)
        question = str(clean(request.text.replace("\x00", " ")))
        with self.watch("store"), self.database.tenant(self.tenant) as connection:
            index = active_index(connection)
            now = remembering.state(connection) if self._results else ""
        if index is None or not question.strip():
            return SearchResults(model=index.model if index else "", degradation_level=level)
        asked = _Asked(
            request=request,
            query=process(question, self.options.synonyms, variants=self.options.queries),
            mode="keyword" if level >= KEYWORD_ONLY else request.mode,
            level=level,
        )
        key = remembering.key_of(request, index, now, self.options, repr(self.rerank)) if now else ""
        found = self._remembered(asked, index, key)
        if found is not None:
            return found
        if level == CACHED_ONLY:
            return SearchResults(model=index.model, degradation_level=level, intent=asked.query.intent)
        return self._fresh(asked, index, key)

    def _fresh(self, asked: _Asked, index: SearchIndex, key: str) -> SearchResults:
        """An answer that was searched for, and is kept if it is as good as it can be."""
        found = self._rankings(index, asked)
        while isinstance(found, SearchIndex):
            # Another index was made active while the question was embedded; the key names the old one.
            index, key = found, ""
            found = self._rankings(index, asked)
        rankings, level = found
        results = self._answer(merged(rankings), index, level, asked)
        full = results.degradation_level == FULL and not asked.request.trace
        if self._results and key and full:
            self._results.put(key, remembering.written(results.hits))
        if asked.request.explain:
            return results
        return replace(results, hits=[replace(hit, explanation=None) for hit in results.hits])

    def _remembered(self, asked: _Asked, index: SearchIndex, key: str) -> SearchResults | None:
        """The answer that was given to the same question before, if nothing has changed since."""
        if self._results is None or not key or asked.request.trace or asked.level >= KEYWORD_ONLY:
            return None
        kept = self._results.get(key)
        if kept is None:
            return None
        with self.watch("store"), self.database.tenant(self.tenant) as connection:
            hits = remembering.reread(connection, index, kept, asked.request)
        if hits is None:
            return None
        return SearchResults(
            hits=hits,
            degradation_level=asked.level,
            model=index.model,
            remembered=True,
            intent=asked.query.intent,
        )

    def _rankings(self, index: SearchIndex, asked: _Asked) -> tuple[list[list[Ranked]], int] | SearchIndex:
        """A ranking for each way to ask, and the level; or the index that is active by now, if it is another."""
        rankings = []
        level = asked.level
        for way in asked.query.variants:
            vector, reached = self._vector(index, way, asked.mode)
            level = max(level, reached)
            words = asked.query.words if way == asked.query.text else way
            found = self._candidates(index, words, vector, asked)
            if isinstance(found, SearchIndex):
                return found
            mode: Mode = "keyword" if vector is None else asked.mode
            rankings.append(rank(found, self.options.weights, mode, self.options.fusion))
        return rankings, level

    def _vector(self, index: SearchIndex, question: str, mode: Mode) -> tuple[Vectors | None, int]:
        """The question's vector, made outside of any transaction; and the degradation level."""
        if mode == "keyword":
            return None, FULL
        key = remembering.vector_key(index, question)
        kept = remembering.vector_of(self._vectors.get(key) if self._vectors else None, index)
        if kept is not None:
            return kept, FULL
        try:
            with self.watch("embedder"):
                vector = embed_query_checked(self.embedder_of(index), question)
        except EmbeddingError:
            if mode == "vector":
                raise
            return None, KEYWORD_ONLY
        if self._vectors:
            self._vectors.put(key, remembering.vector_bytes(vector))
        return vector, FULL

    def _candidates(
        self, index: SearchIndex, words: str, vector: Vectors | None, asked: _Asked
    ) -> list[LedgerCandidate] | SearchIndex:
        """Both arms; or the index that is active by now, if it is another one."""
        with self.watch("store"), self.database.tenant(self.tenant) as connection:
            now = active_index(connection)
            if now is not None and now.id != index.id:
                return now
            statistics.ensure(connection, self.tenant, index.id)
            store = PgVectorStore(connection, index, self.tenant, exact_below=self.options.exact_below)
            return store.scored(
                StoreQuery(
                    text=words,
                    vector=vector,
                    keywords=asked.mode != "vector",
                    candidates=self.options.candidates,
                    filter=asked.request.filter,
                    top=None if asked.request.trace or not asked.request.dedupe else self._k(asked.request),
                )
            )

    def _k(self, request: SearchRequest) -> int:
        """How many hits may come back."""
        return max(0, min(self.options.top_k if request.k is None else request.k, self.options.max_top_k))

    def _answer(self, ranked: list[Ranked], index: SearchIndex, level: int, asked: _Asked) -> SearchResults:
        request, least = asked.request, self.options.threshold(index.model, asked.request.min_similarity)
        reaching = cast("list[Ranked]", above_threshold(ranked, min_similarity=least))
        kept = cast("list[Ranked]", best_per_document(reaching)) if request.dedupe else reaching
        kept, level = self._second_look(kept, level, asked)
        if asked.mode != "vector":
            kept = lowered(kept, self.options.weights.outdated)
        k = self._k(request)
        passed = {id(r) for r in reaching}
        return SearchResults(
            hits=[_hit(r, least) for r in kept[:k]],
            degradation_level=level,
            model=index.model,
            below=tuple(_hit(r, least) for r in ranked if request.trace and id(r) not in passed),
            beyond=tuple(_hit(r, least) for r in kept[k:] if request.trace),
            intent=asked.query.intent,
        )

    def _second_look(self, ranked: list[Ranked], level: int, asked: _Asked) -> tuple[list[Ranked], int]:
        """The best of a hybrid search in the reranker's order; as they were, with level 1, if it fails."""
        if not self.rerank.enabled or asked.mode != "hybrid" or level != FULL or not ranked:
            return ranked, level
        first, rest = ranked[: self.rerank.candidates], ranked[self.rerank.candidates :]
        try:
            with self.watch("reranker"):
                reranker = self.reranker()
                if reranker is None:
                    return ranked, level
                texts = [r.candidate.chunk.embedding_text for r in first]
                return looked_at(first, reranker.scores(asked.query.text, texts)) + rest, level
        except Exception:  # noqa: BLE001 (a model may fail in any way, and a ranking without it is there)
            return ranked, max(level, NO_RERANKING)


def _hit(ranked: Ranked, least: float) -> Hit:
    candidate = cast("LedgerCandidate", ranked.candidate)
    return Hit(
        document=candidate.document,
        chunk=candidate.chunk,
        score=ranked.score,
        standing=standing(candidate.document),
        explanation=Explanation(
            similarity=candidate.similarity,
            bm25=candidate.bm25,
            title_bm25=candidate.title,
            centroid=candidate.centroid,
            rare=candidate.rare,
            vector_part=ranked.vector_part,
            keyword_part=ranked.keyword_part,
            title_part=ranked.title_part,
            rare_part=ranked.rare_part,
            min_similarity=least,
            rerank=ranked.rerank,
            rerank_part=ranked.rerank_part,
            standing_part=ranked.standing_part,
        ),
    )
