"""From a question to the best documents: two searches, one ranking, a closer look, a threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

from pipeline.database.engine import Database
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import embed_query_checked
from pipeline.enrichment.degradation import Part
from pipeline.errors import EmbeddingError
from pipeline.ledger import clean
from pipeline.reranking import Reranker, RerankOptions
from pipeline.search import result_cache
from pipeline.search.cache import Caches
from pipeline.search.chunk_store import SearchIndex, check_query
from pipeline.search.chunks import Mode
from pipeline.search.index_snapshot import Ground, known, look
from pipeline.search.looking import SPARE, Asked, Found, Look
from pipeline.search.question import process
from pipeline.search.ranking import judged, looked_at, lowered
from pipeline.search.records import (
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
from pipeline.search.texts import Ranked

Watch = Callable[[Part], AbstractContextManager[None]]
"""Wraps each call to a part, and so learns how it went and how long it took."""
_UNWATCHED = nullcontext()


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
        watch: Watch = lambda _part: _UNWATCHED,
    ) -> None:
        """`reranker` is called at the first search that needs it; None means that there is none."""
        self.database = database
        self.tenant = tenant
        self.embedder_of = embedder_of
        self.options = options or RetrievalOptions()
        self.reranker = reranker
        self.rerank = rerank or RerankOptions()
        self.look = Look(database=database, tenant=tenant, options=self.options)
        self.watch = watch
        kept = caches or Caches()
        self._vectors = result_cache.memory(kept.vectors, "vector", tenant)
        self._results = result_cache.memory(kept.results, "result", tenant)
        self._way = result_cache.way_of(self.options, self.rerank)

    def search(self, request: SearchRequest, *, level: int = FULL) -> SearchResults:
        """The best documents for a question; nothing if it is blank or nothing is indexed yet.

        `level` is the degradation level to search at: 1 without the reranker, 2 only what is remembered, 3 by
        words alone, 4 and 5 not at all. The answer tells the level it really has: an embedder that fails
        makes it 3, a reranker that fails or takes too long 1.

        Answers in mode `vector` are never remembered, nor are empty ones: to look for one takes longer than it saves.

        Raises:
            StoreUnavailable: the database does not answer.
            EmbeddingError: mode `vector`, and the embedder fails.
        """
        if level >= STATIC_ONLY:
            return SearchResults(degradation_level=level)
        question = str(clean(request.text.replace("\x00", " ")))
        on = known(self.database, self.tenant)
        if on is None:
            with self.watch("store"):
                on = look(self.database, self.tenant)
        if on is None or not question.strip():
            return SearchResults(model=on.index.model if on else "", degradation_level=level)
        asked = self._asked(request, question, level)
        key = result_cache.key_of(request, on.index, self._way) if self._keeps(asked) else ""
        found = self._remembered(asked, on.index, key) if key else None
        if found is not None:
            return found
        if level == CACHED_ONLY:
            return SearchResults(model=on.index.model, degradation_level=level, query=asked.query)
        return self._fresh(asked, on, key)

    def _asked(self, request: SearchRequest, question: str, level: int) -> Asked:
        k = max(0, min(self.options.top_k if request.k is None else request.k, self.options.max_top_k))
        mode: Mode = "keyword" if level >= KEYWORD_ONLY else request.mode
        return Asked(
            request=request,
            query=process(question, self.options.synonyms),
            mode=mode,
            level=level,
            k=k,
            read_first=max(k, self.rerank.candidates) if self._reranks(mode, level) else k,
            explain=request.explain or request.trace,
        )

    def _keeps(self, asked: Asked) -> bool:
        """Whether the answer may have been kept, and may be.

        By meaning alone a new answer takes hardly longer than one way to the cache and one to the store.
        """
        if self._results is None or asked.request.trace:
            return False
        return asked.mode != "vector" and asked.level < KEYWORD_ONLY

    def _fresh(self, asked: Asked, on: Ground, key: str) -> SearchResults:
        """An answer that was searched for, and is kept if it is as good as it can be."""
        found = self._search(on, asked, state=bool(key))
        while isinstance(found, Ground):
            # Another index is active than the one the question was embedded for; the key names the old one.
            on, key = found, ""
            found = self._search(on, asked)
        shown, results = self._answer(found, on.index, asked)
        if self._results and key and found.state and shown and results.degradation_level == FULL:
            # What is kept may be asked for again with an explanation.
            self._results.put(key, lambda: result_cache.written(_hits(shown, found.least), found.state))
        return results

    def _remembered(self, asked: Asked, index: SearchIndex, key: str) -> SearchResults | None:
        """The answer that was given to the same question before, if nothing has changed since."""
        kept = self._results.get(key) if self._results else None
        if kept is None:
            return None
        with self.watch("store"):
            hits = result_cache.given_again(self.look.ask(), index, kept, asked.request)
        if hits is None:
            return None
        return SearchResults(
            hits=hits,
            degradation_level=asked.level,
            model=index.model,
            remembered=True,
            query=asked.query,
        )

    def _vector(self, index: SearchIndex, question: str, mode: Mode) -> tuple[Vectors | None, int]:
        """The question's vector, made outside of any transaction; and the degradation level."""
        if mode == "keyword":
            return None, FULL
        key = result_cache.vector_key(index, question) if self._vectors else ""
        if self._vectors and (kept := result_cache.vector_of(self._vectors.get(key), index)) is not None:
            return kept, FULL
        try:
            with self.watch("embedder"):
                vector = embed_query_checked(self.embedder_of(index), question)
        except EmbeddingError:
            if mode == "vector":
                raise
            return None, KEYWORD_ONLY
        if vector.shape != (index.dimensions,):  # which is all that is not known of it by now
            check_query(vector, index.dimensions)
        if self._vectors:
            self._vectors.put(key, result_cache.vector_bytes(vector))
        return vector, FULL

    def _search(self, on: Ground, asked: Asked, *, state: bool = False) -> Found | Ground:
        """What is found; or what there is by now, if the index is another one than the question was embedded for.

        Each statement that searches reads the active index, too, and finds nothing in another one: vectors of two
        models never meet.
        """
        vector, reached = self._vector(on.index, asked.query.text, asked.mode)
        level = max(asked.level, reached)
        with self.watch("store"):
            found = self._found(on, asked, vector, state=state)
            if found.nothing:
                now = look(self.database, self.tenant)
                if now is not None and now.index.id != on.index.id:
                    return now
            return found._replace(level=level) if level else found

    def _found(self, on: Ground, asked: Asked, vector: Vectors | None, *, state: bool) -> Found:
        """By the shortest way there is: one statement, if nobody asks for what was left out."""
        found = None
        if vector is not None and not asked.request.trace:
            if asked.mode == "vector":
                found = self.look.by_meaning(on, asked, vector)
            elif asked.mode == "hybrid":
                found = self.look.by_sum(on, asked, vector, state=state)
        if found is None:
            # Several statements follow, so the state is read before the first of them.
            now = result_cache.state(self.look.ask()) if state else ""
            found = self.look.by_both(on, asked, vector)._replace(state=now)
        return found

    def _answer(
        self, found: Found, index: SearchIndex, asked: Asked
    ) -> tuple[Sequence[Ranked], SearchResults]:
        """What is shown, and as it is shown."""
        if found.hits is not None:
            return (), SearchResults(
                hits=found.hits,
                degradation_level=found.level,
                model=index.model,
                query=asked.query,
            )
        kept, level = self._second_look(found.kept, found.level, asked)
        if asked.mode != "vector":
            kept = judged(lowered(kept, self.options.weights.outdated), asked.k, SPARE)
        least = found.least if asked.explain else None
        shown, beyond = kept[: asked.k], kept[asked.k :] if asked.request.trace else ()
        return shown, SearchResults(
            hits=_hits(shown, least),
            degradation_level=level,
            model=index.model,
            below=tuple(_hits(found.below, least)),
            beyond=tuple(_hits(beyond, least)),
            query=asked.query,
        )

    def _reranks(self, mode: Mode, level: int) -> bool:
        return self.rerank.enabled and mode == "hybrid" and level == FULL

    def _second_look(
        self, ranked: Sequence[Ranked], level: int, asked: Asked
    ) -> tuple[Sequence[Ranked], int]:
        """The best of a hybrid search in the reranker's order; as they were, with level 1, if it fails."""
        if not self._reranks(asked.mode, level) or not ranked:
            return ranked, level
        first, rest = ranked[: self.rerank.candidates], ranked[self.rerank.candidates :]
        try:
            with self.watch("reranker"):
                reranker = self.reranker()
                if reranker is None:
                    return ranked, level
                read_by_it = [r.text.chunk.embedding_text for r in first if r.text is not None]
                return [*looked_at(first, reranker.scores(asked.query.text, read_by_it)), *rest], level
        except Exception:  # noqa: BLE001 (a model may fail in any way, and a ranking without it is there)
            return ranked, max(level, NO_RERANKING)


def _hits(ranked: Sequence[Ranked], least: float | None) -> list[Hit]:
    return [
        Hit(
            document=one.text.document,
            chunk=one.text.chunk,
            score=one.score,
            standing=one.text.standing,
            feedback=one.text.shift,
            explanation=None if least is None else _explanation(one, least),
        )
        for one in ranked
        if one.text is not None
    ]


def _explanation(ranked: Ranked, least: float) -> Explanation:
    candidate, marks = ranked.candidate, ranked.text.marks if ranked.text else None
    return Explanation(
        similarity=candidate.similarity,
        bm25=candidate.bm25,
        centroid=candidate.centroid,
        overlap=candidate.overlap,
        title=candidate.title,
        covered=candidate.covered,
        vector_part=ranked.vector_part,
        keyword_part=ranked.keyword_part,
        title_part=ranked.title_part,
        covered_part=ranked.covered_part,
        min_similarity=least,
        rerank=ranked.rerank,
        rerank_part=ranked.rerank_part,
        standing_part=ranked.standing_part,
        feedback=marks.shift if marks else 0.0,
        feedback_part=ranked.feedback_part,
        feedback_why=marks.why if marks else "",
    )
