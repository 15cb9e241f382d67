"""Search of one tenant's documents: embedding the query, one SQL statement, and reranking if configured."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from itertools import filterfalse
from typing import Literal
from uuid import UUID

from pgvector import HalfVector

from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.documents.plain_text import composed
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import embed_query_checked
from pipeline.embedding.known_models import model_of
from pipeline.enrichment.degradation import CACHED, FULL, KEYWORDS, STATIC, UNRANKED, Dependency
from pipeline.errors import EmbeddingError, StoreRejected, StoreUnavailable
from pipeline.reranking import Reranker, RerankOptions
from pipeline.search import cache, statement
from pipeline.search.cache import Caches, IndexSnapshot
from pipeline.search.chunk_store import SearchIndex
from pipeline.search.question import key_of
from pipeline.search.records import (
    MEASURED_THRESHOLDS,
    Filter,
    Hit,
    Mode,
    Quantization,
    RetrievalOptions,
    SearchRequest,
    SearchResults,
    Weights,
)
from pipeline.search.stores.registry import VectorArm, VectorStores

Watch = Callable[[Dependency], AbstractContextManager[None]]
"""Context manager around each call to a part, which can measure its time and result."""
Performed = Callable[[SearchRequest, SearchResults, float], None]
"""Called after each search, with its results and seconds."""
_UNWATCHED = nullcontext()

SPARE = 5
"""Hits read beyond the requested ones, as replacements for outdated ones and those marked as noise."""
CHUNKS_PER_DOCUMENT = 2
"""Chunks that a vector search takes from the index for each requested document."""
CHUNKS_PER_HIT = 2
"""Chunks that a vector search takes for each requested chunk: with a filter the index scan is not exactly ordered."""
EF_SEARCH = (100, 1000)
"""Least and most `hnsw.ef_search`: with fewer than the requested rows the index returns fewer rows."""
SPARSE = 250_000
"""Chunks of a tenant from which `ef_search` grows, up to MOST_TIMES, since recall is lower in large graphs."""
MOST_TIMES = 4.0
_SCANS: Mapping[Quantization, Literal["index", "bits"]] = {"halfvec": "index", "bit": "bits"}
ANY = -2.0
"""A minimum similarity that every chunk reaches."""


def ef_search_for(candidates: int, chunks: int) -> int:
    """`hnsw.ef_search` for a number of candidates among a tenant's chunks."""
    least, most = EF_SEARCH
    return min(most, max(least, int(candidates * min(MOST_TIMES, max(1.0, chunks / SPARSE)))))


@dataclass(frozen=True, kw_only=True)
class _Query:
    """A query with everything that its results depend on."""

    request: SearchRequest
    text: str
    mode: Mode
    level: int
    k: int
    """Most hits in the result."""
    reranks: bool
    vector: Vectors | None = None
    store: str = ""
    """Name of the store that found the nearest chunks."""


@dataclass
class Retriever:
    """Searches one tenant's documents."""

    database: Database
    tenant: UUID
    embedder_of: Callable[[SearchIndex], Embedder]
    options: RetrievalOptions = field(default_factory=RetrievalOptions)
    _: KW_ONLY
    caches: Caches = field(default_factory=Caches)
    reranker: Callable[[], Reranker | None] = lambda: None
    """Called by the first search that needs it; returns None if there is no reranker."""
    rerank: RerankOptions = field(default_factory=RerankOptions)
    stores: VectorStores | None = None
    """Vector stores beside PostgreSQL; None if none is configured."""
    watch: Watch = lambda _part: _UNWATCHED
    performed: Performed = lambda *_: None

    def search(self, request: SearchRequest, *, level: int = FULL) -> SearchResults:
        """The best documents for a query; none if it is blank or nothing is indexed yet.

        `level` is the degradation level to search at: 1 without the reranker, 2 only from the cache, 3 by keywords
        alone, 4 and 5 not at all. The results have the actual level: 3 if the embedder fails, 1 if the reranker fails
        or takes too long, 2 if the database is unavailable and the results are cached.

        Raises:
            StoreUnavailable: the database does not answer, and the results are not cached.
            EmbeddingError: mode `vector`, and the embedder fails.
        """
        begun = time.monotonic()
        results = self._search_at(request, level)
        self.performed(request, results, time.monotonic() - begun)
        return results

    def _search_at(self, request: SearchRequest, level: int) -> SearchResults:
        if level >= STATIC:
            return SearchResults(degradation_level=level)
        if level == CACHED:
            snapshot = cache.last_snapshot(self.database, self.tenant)
            return self._from_cache(request) or SearchResults(
                model=snapshot.index.model if snapshot else "", degradation_level=level
            )
        try:
            return self._search_store(request, level)
        except StoreUnavailable:
            cached = self._from_cache(request)
            if cached is None:
                raise
            return cached

    def _query_of(self, question: str, request: SearchRequest, level: int) -> _Query:
        """The query for a request by the options, at a degradation level."""
        mode: Mode = "keyword" if level >= KEYWORDS else request.mode
        return _Query(
            request=request,
            text=question,
            mode=mode,
            level=level,
            k=max(0, min(self.options.top_k if request.k is None else request.k, self.options.max_top_k)),
            reranks=self.rerank.enabled and mode == "hybrid" and level == FULL,
        )

    def _search_store(self, request: SearchRequest, level: int) -> SearchResults:
        question = composed(request.text.replace("\x00", " ").encode("utf-8", "replace").decode())
        snapshot = cache.fresh_snapshot(self.database, self.tenant)
        if snapshot is None:
            with self.watch("store"):
                snapshot = cache.read_snapshot(self.database, self.tenant)
        if snapshot is None:
            return SearchResults(degradation_level=level)
        if not question.strip():
            partial = cache.partial_for(self.database, self.tenant, snapshot, request.filter)
            return SearchResults(model=snapshot.index.model, partial=partial, degradation_level=level)
        query = self._query_of(question, request, level)
        while True:
            query = self._with_vector(snapshot.index, query)
            with self.watch("store"):
                hits, query = self._candidates(snapshot, query)
                current = snapshot if hits else cache.read_snapshot(self.database, self.tenant)
            if current is None or current.index.id == snapshot.index.id:
                return self._answer(hits, snapshot, query)
            # Another index has become active since the query was embedded; vectors of two models must not be compared.
            snapshot = current

    # -- the query's vector ------------------------------------------------------------------------

    def _with_vector(self, index: SearchIndex, query: _Query) -> _Query:
        """The query with its vector, embedded outside of transactions; a keyword query if the embedder fails."""
        if query.mode == "keyword":
            return query
        vectors, space = self.caches.vectors, f"vector:{self.tenant}"
        key = _hash(f"{index.provider} {index.model} {index.dimensions} {query.text}") if vectors else ""
        vector = vectors.get(space, key) if vectors else None
        if vector is None:
            try:
                with self.watch("embedder"):
                    vector = embed_query_checked(self.embedder_of(index), query.text)
            except EmbeddingError:
                if query.mode == "vector":
                    raise
                return replace(query, mode="keyword", level=max(query.level, KEYWORDS), reranks=False)
            if vector.shape != (index.dimensions,):
                raise StoreRejected(
                    f"the query's vector has the shape {vector.shape}; the index has {index.dimensions} dimensions",
                    fix="embed the query with the model this index was made for",
                )
            if vectors:
                vectors.put(space, key, vector)
        return replace(query, vector=vector)

    # -- the statement -----------------------------------------------------------------------------

    def _candidates(self, snapshot: IndexSnapshot, query: _Query) -> tuple[list[Hit], _Query]:
        """Ranked candidates, as many as may be needed for the result, all of them with `trace`; and the query as done.

        The statement is run again for more if they do not suffice: outdated documents are demoted later, so there must
        be `k` others; and many of the nearest chunks may belong to one document.
        """
        by_meaning, o, request = query.mode == "vector", self.options, query.request
        names = statement.names_of(request.filter)
        parameters = statement.values_of(request.filter, names)
        least = least_similarity(o, snapshot.index.model, request.min_similarity)
        shape = self._shape(snapshot, query, names)
        values = parameters | {
            **_weights(o.weights, query.mode),
            # In a vector search the first rows are the most similar; the minimum is applied afterwards.
            "least": ANY if by_meaning or request.trace else least,
            "dedupe": request.dedupe and not request.trace,
            "query_key": request.feedback_key or key_of(request.text),
            "vector": None if query.vector is None else HalfVector(query.vector),
            "words": "" if by_meaning else o.synonyms.searchable(query.text),
            "languages": list(o.languages),
            "tenant": self.tenant,
            "index": snapshot.index.id,
            "chunks": snapshot.chunks,
            "mean": max(snapshot.mean_length, 1.0),
        }
        if query.vector is not None:
            arm = VectorArm(shape=shape)
            if self.stores:
                arm = self.stores.arm(self.tenant, snapshot, shape, request.filter, parameters, query.vector)
            shape, values, query = arm.shape, {**values, **arm.values}, replace(query, store=arm.store)
            if not shape.vector:
                query = replace(query, level=max(query.level, KEYWORDS), reranks=False)
        # At least one row is read, to see whether there are any.
        top = most = 2 * o.candidates
        if not request.trace:
            spared = max(query.k, self.rerank.candidates if query.reranks else 0) + SPARE
            top = max(1, query.k) if by_meaning else spared
        spread = statement.BITS_OVERSAMPLED if shape.vector == "bits" else 1
        ef_search = ef_search_for(o.candidates * spread, snapshot.chunks)
        while True:
            rows = self.database.fetch(
                self.tenant,
                statement.search(shape),
                values | {"top": top},
                ef_search=ef_search,
                one_plan=True,
            )
            model = snapshot.index.model
            unsorted = (
                Hit.of_row(dict(zip(statement.COLUMNS, row, strict=True)), least, model) for row in rows
            )
            hits = sorted(unsorted, key=lambda hit: (-hit.score, hit.document.id, hit.chunk.ord))
            holding = len(hits) if by_meaning else sum(not hit.outdated for hit in hits)
            if len(hits) == top < most and holding < query.k:
                top = min(4 * top, most)
            elif len(hits) < query.k and shape.near < o.candidates:
                shape = shape._replace(near=o.candidates)
            else:
                return hits, query

    def _shape(self, snapshot: IndexSnapshot, query: _Query, names: tuple[str, ...]) -> statement.Shape:
        o, near = self.options, self.options.candidates
        exact = snapshot.chunks < o.exact_below
        if query.mode == "vector" and not query.request.trace and not exact and not self.stores:
            each = CHUNKS_PER_DOCUMENT if query.request.dedupe else CHUNKS_PER_HIT
            near = min(near, max(1, query.k) * each)
        if query.vector is not None and not exact:
            names_of_documents = statement.of_documents(names)
            values = statement.values_of(query.request.filter, names_of_documents)
            exact = cache.is_narrow(self.database, self.tenant, snapshot, names_of_documents, values, near)
        return statement.Shape(
            number=snapshot.index.id,
            dimensions=snapshot.index.dimensions,
            vector="" if query.vector is None else "all" if exact else _SCANS[snapshot.index.quantization],
            keywords=query.mode != "vector",
            near=near,
            matching=o.candidates,
            filter=names,
        )

    # -- the answer --------------------------------------------------------------------------------

    def _answer(self, candidates: Sequence[Hit], snapshot: IndexSnapshot, query: _Query) -> SearchResults:
        """Results from candidates; cached for level 2 if nothing is degraded."""
        request, ranked = query.request, list(filter(_is_similar_enough, candidates))
        if request.trace and request.dedupe:
            ranked = first_of_documents(ranked)
        ranked, level = self._reranked(ranked, query)
        if query.mode != "vector":
            ranked = apply_feedback(demote_outdated(ranked, self.options.weights.outdated), query.k, SPARE)
        answer = SearchResults(
            hits=ranked[: query.k],
            degradation_level=level,
            model=snapshot.index.model,
            vector=query.vector,
            store=query.store,
            partial=snapshot.partial
            and cache.partial_for(self.database, self.tenant, snapshot, request.filter),
        )
        if request.trace:
            return replace(
                answer, below=list(filterfalse(_is_similar_enough, candidates)), beyond=ranked[query.k :]
            )
        if self.caches.answers and answer.hits and level == FULL:
            self.caches.answers.put(f"answer:{self.tenant}", self._key(request, snapshot), answer)
        return answer if request.explain else _unexplained(answer)

    def _reranked(self, hits: list[Hit], query: _Query) -> tuple[list[Hit], int]:
        """The best candidates of a hybrid search in the reranker's order; unchanged and with level 1 if it fails."""
        if not query.reranks or not hits:
            return hits, query.level
        first, rest = hits[: self.rerank.candidates], hits[self.rerank.candidates :]
        try:
            with self.watch("reranker"):
                reranker = self.reranker()
                if reranker is None:
                    return hits, query.level
                texts = [hit.chunk.embedding_text for hit in first]
                return [*reranked(first, reranker.scores(query.text, texts)), *rest], query.level
        except Exception:  # noqa: BLE001 (a model may fail in any way, and there is a ranking without it)
            return hits, max(query.level, UNRANKED)

    def _from_cache(self, request: SearchRequest) -> SearchResults | None:
        """Recent results of the same request, if no change of the documents is known."""
        snapshot = cache.last_snapshot(self.database, self.tenant)
        if self.caches.answers is None or snapshot is None or request.trace:
            return None
        cached = self.caches.answers.get(f"answer:{self.tenant}", self._key(request, snapshot))
        if cached is None:
            return None
        cached = replace(cached, degradation_level=CACHED, from_cache=True)
        return cached if request.explain else _unexplained(cached)

    def _key(self, request: SearchRequest, snapshot: IndexSnapshot) -> str:
        """Cache key of a request: text, filter and rights, index, state of the documents, and options."""
        key_request = replace(request, explain=False)
        return _hash(f"{key_request!r} {snapshot.index.id} {snapshot.state} {self.options!r} {self.rerank!r}")


def _weights(w: Weights, mode: Mode) -> dict[str, float]:
    """Weights of the parts of a score, scaled to a sum of 1; a vector search scores by the similarity alone."""
    if mode == "vector":
        w = Weights(vector=1.0, keyword=0.0, title=0.0, covered=0.0, centroid=0.0)
    meaning = 0.0 if mode == "keyword" else w.vector
    whole = meaning + w.keyword + w.title + w.covered or 1.0
    return {
        "meaning_weight": meaning / whole,
        "keyword_weight": w.keyword / whole,
        "title_weight": w.title / whole,
        "covered_weight": w.covered / whole,
        "chunk_share": 1.0 - min(w.centroid, 1.0),
        "document_share": min(w.centroid, 1.0),
    }


def least_similarity(options: RetrievalOptions, model: str, requested: float | None = None) -> float:
    """Minimum similarity of hits without keyword matches."""
    if requested is None:
        measured = MEASURED_THRESHOLDS.get(model_of(model), 0.0)
        requested = measured if options.min_similarity == "auto" else options.min_similarity
    return requested if options.max_distance is None else max(requested, 1 - options.max_distance)


def _is_similar_enough(hit: Hit) -> bool:
    """Whether a hit reaches the minimum similarity, or has a word of the query."""
    e = hit.explanation
    return e is None or bool(e.bm25) or (e.similarity is not None and e.similarity >= e.min_similarity)


def _unexplained(answer: SearchResults) -> SearchResults:
    return replace(answer, hits=[replace(hit, explanation=None) for hit in answer.hits])


def _hash(words: str) -> str:
    return hashlib.sha256(words.encode("utf-8", "surrogatepass")).hexdigest()


_DOCUMENT = """
    select d.id, d.external_id, d.title, d.url, d.source_type, d.kind, d.tags, d.metadata, d.project_id, d.updated_at,
           s.name, b.body
    from document d join source s on s.id = d.source_id
    left join document_body b on b.document_id = d.id and b.version = d.desired_version
    where {visible}"""
_DOCUMENT_COLUMNS = (
    "document_id", "external_id", "title", "url", "source_type", "kind", "tags", "metadata", "project_id",
    "updated_at", "source", "text",
)  # fmt: skip


def read_document(database: Database, tenant: UUID, query_filter: Filter) -> Json | None:
    """The first document that passes a filter, with its whole text; None if there is none.

    Its keys are `_DOCUMENT_COLUMNS`, its values as in the database.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = statement.of_documents(statement.names_of(query_filter))
    sql = _DOCUMENT.format(visible=statement.visible(names)) + " limit 1"
    rows = database.fetch(tenant, sql, statement.values_of(query_filter, names))
    return dict(zip(_DOCUMENT_COLUMNS, rows[0], strict=True)) if rows else None


def indexed_since(
    database: Database, tenant: UUID, query_filter: Filter, since: datetime, most: int
) -> list[Json]:
    """Documents that pass a filter and were indexed since a time, newest first.

    Each is `{"document_id", "title", "source", "kind", "last_indexed"}`.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = statement.of_documents(statement.names_of(query_filter))
    sql = f"""
        select d.id, d.title, s.name, d.kind, d.last_indexed from document d join source s on s.id = d.source_id
        where {statement.visible(names)} and d.last_indexed >= %(indexed_since)s
        order by d.last_indexed desc limit %(most)s"""
    values = {**statement.values_of(query_filter, names), "indexed_since": since, "most": most}
    columns = ("document_id", "title", "source", "kind", "last_indexed")
    return [dict(zip(columns, row, strict=True)) for row in database.fetch(tenant, sql, values)]


# -- changes of the ranking after the search ---------------------------------------------------------


def reranked(hits: Sequence[Hit], scores: Sequence[float]) -> list[Hit]:
    """Hits in the order of a reranker's `scores`, one for each; hits with equal scores keep their order.

    New scores are between the best and worst old ones, so that they stay comparable with the following hits.

    Raises:
        ValueError: a score is missing or not a finite number.
    """
    if len(hits) != len(scores) or not all(math.isfinite(score) for score in scores):
        raise ValueError("a reranker must give one number for each text")
    if not hits:
        return []
    low, high = min(hit.score for hit in hits), max(hit.score for hit in hits)
    least, most = min(scores), max(scores)
    shares = [(raw - least) / (most - least) if most > least else 1.0 for raw in scores]
    moved = [
        hit.rescored(low + (high - low) * share, "rerank_part", rerank=raw)
        for hit, raw, share in zip(hits, scores, shares, strict=True)
    ]
    return sorted(moved, key=_descending)


def demote_outdated(hits: Sequence[Hit], share: float) -> list[Hit]:
    """Hits with outdated documents reduced to `share` of their score, in the new order."""
    return sorted(
        (
            hit.rescored(hit.score * share, "outdated_part") if hit.outdated and hit.score > 0.0 else hit
            for hit in hits
        ),
        key=_descending,
    )


def apply_feedback(hits: Sequence[Hit], k: int, spare: int) -> list[Hit]:
    """Hits with the feedback on the first `k` and the following `spare` applied to scores and order.

    Hits marked as noise for this question stay among the first `k` if their score allows, but after all others, and
    with no higher scores.
    """
    near = sorted(
        (
            hit.rescored(hit.score * hit.marks.factor, "feedback_part")
            if hit.marks and hit.score > 0.0
            else hit
            for hit in hits[: k + spare]
        ),
        key=_descending,
    )
    page = sorted(near[:k], key=_noise)
    least = min((hit.score for hit in page if not _noise(hit)), default=math.inf)
    page = [
        hit.rescored(least, "feedback_part") if _noise(hit) and hit.score > least else hit for hit in page
    ]
    return [*page, *near[k:], *hits[k + spare :]]


def first_of_documents(hits: Sequence[Hit]) -> list[Hit]:
    """The first hit of each document, in the same order."""
    first: dict[object, Hit] = {}
    for hit in hits:
        first.setdefault(hit.document.id, hit)
    return list(first.values())


def _descending(hit: Hit) -> float:
    return -hit.score


def _noise(hit: Hit) -> bool:
    return hit.marks is not None and hit.marks.for_query < 0
