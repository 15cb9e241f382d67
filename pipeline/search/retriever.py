"""From a question to the best documents: understand it, embed it, one statement, then a reranker if configured."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from itertools import filterfalse
from uuid import UUID

from pgvector import HalfVector

from pipeline.database.engine import Database
from pipeline.documents import Json
from pipeline.documents.plain_text import composed
from pipeline.embedding import Embedder, Vectors
from pipeline.embedding.calls import embed_query_checked
from pipeline.embedding.known_models import model_of
from pipeline.enrichment.degradation import CACHED, FULL, KEYWORDS, STATIC, UNRANKED, Part
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
    RetrievalOptions,
    SearchRequest,
    SearchResults,
    Weights,
)

Watch = Callable[[Part], AbstractContextManager[None]]
"""Wraps each call to a part, and so learns how it went and how long it took."""
Performed = Callable[[SearchRequest, SearchResults, float], None]
"""Hears of each search that was answered, and how many seconds that took."""
_UNWATCHED = nullcontext()

SPARE = 5
"""Hits read beyond those wanted, in place of such as no longer hold or are marked as noise."""
CHUNKS_PER_DOCUMENT = 2
"""Chunks that the vector index is followed to for each document wanted, in a search by meaning alone."""
CHUNKS_PER_HIT = 2
"""The same if each chunk is a hit: an index that goes on for a filter does not keep the order to the last."""
EF_SEARCH = (100, 1000)
"""Neighbours that a step of the vector index looks for: fewer than asked for would come back as fewer rows."""
SPARSE = 250_000
"""Chunks of a tenant from which on it looks for more, up to MOST_TIMES as many: in a large graph it finds fewer."""
MOST_TIMES = 4.0
ANY = -2.0
"""A similarity that every chunk reaches."""


def ef_search_for(candidates: int, chunks: int) -> int:
    """How many neighbours a step of the vector index looks for among so many chunks of a tenant."""
    least, most = EF_SEARCH
    return min(most, max(least, int(candidates * min(MOST_TIMES, max(1.0, chunks / SPARSE)))))


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """A question with all that its answer depends on."""

    request: SearchRequest
    text: str
    mode: Mode
    level: int
    k: int
    """How many hits may come back."""
    reranks: bool
    vector: Vectors | None = None


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
    """Called at the first search that needs it; None means that there is none."""
    rerank: RerankOptions = field(default_factory=RerankOptions)
    watch: Watch = lambda _part: _UNWATCHED
    performed: Performed = lambda *_: None

    def search(self, request: SearchRequest, *, level: int = FULL) -> SearchResults:
        """The best documents for a question; nothing if it is blank or nothing is indexed yet.

        `level` is the degradation level to search at: 1 without the reranker, 2 only what is remembered, 3 by
        words alone, 4 and 5 not at all. The answer tells the level it really has: an embedder that fails
        makes it 3, a reranker that fails or takes too long 1, a database that is away 2 if the answer is remembered.

        Raises:
            StoreUnavailable: the database does not answer, and the answer is not remembered.
            EmbeddingError: mode `vector`, and the embedder fails.
        """
        begun = time.monotonic()
        found = self._at(request, level)
        self.performed(request, found, time.monotonic() - begun)
        return found

    def _at(self, request: SearchRequest, level: int) -> SearchResults:
        if level >= STATIC:
            return SearchResults(degradation_level=level)
        if level == CACHED:
            last = cache.last_snapshot(self.database, self.tenant)
            return self._from_cache(request) or SearchResults(
                model=last.index.model if last else "", degradation_level=level
            )
        try:
            return self._searched(request, level)
        except StoreUnavailable:
            found = self._from_cache(request)
            if found is None:
                raise
            return found

    def _asked(self, question: str, request: SearchRequest, level: int) -> _Asked:
        """What the options make of a request at a level."""
        mode: Mode = "keyword" if level >= KEYWORDS else request.mode
        return _Asked(
            request=request,
            text=question,
            mode=mode,
            level=level,
            k=max(0, min(self.options.top_k if request.k is None else request.k, self.options.max_top_k)),
            reranks=self.rerank.enabled and mode == "hybrid" and level == FULL,
        )

    def _searched(self, request: SearchRequest, level: int) -> SearchResults:
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
        asked = self._asked(question, request, level)
        while True:
            asked = self._embedded(snapshot.index, asked)
            with self.watch("store"):
                hits = self._found(snapshot, asked)
                now = snapshot if hits else cache.read_snapshot(self.database, self.tenant)
            if now is None or now.index.id == snapshot.index.id:
                return self._answer(hits, snapshot, asked)
            # Another index is active than the one the question was embedded for; vectors of two models never meet.
            snapshot = now

    # -- the question's vector ---------------------------------------------------------------------

    def _embedded(self, index: SearchIndex, asked: _Asked) -> _Asked:
        """With the question's vector, made outside of any transaction; by words alone if the embedder fails."""
        if asked.mode == "keyword":
            return asked
        kept, space = self.caches.vectors, f"vector:{self.tenant}"
        key = _hash(f"{index.provider} {index.model} {index.dimensions} {asked.text}") if kept else ""
        vector = kept.get(space, key) if kept else None
        if vector is None:
            try:
                with self.watch("embedder"):
                    vector = embed_query_checked(self.embedder_of(index), asked.text)
            except EmbeddingError:
                if asked.mode == "vector":
                    raise
                return replace(asked, mode="keyword", level=max(asked.level, KEYWORDS), reranks=False)
            if vector.shape != (index.dimensions,):
                raise StoreRejected(
                    f"the query's vector has the shape {vector.shape}; the index has {index.dimensions} dimensions",
                    fix="embed the query with the model this index was made for",
                )
            if kept:
                kept.put(space, key, vector)
        return replace(asked, vector=vector)

    # -- the statement -----------------------------------------------------------------------------

    def _found(self, snapshot: IndexSnapshot, asked: _Asked) -> list[Hit]:
        """Hits in order, at least as many as can come to be shown; all candidates if the request says `trace`.

        The statement is run again for more if that was not enough: documents that no longer hold are lowered later, so
        there must be `k` that hold; and many of the nearest chunks may belong to one document.
        """
        by_meaning, o, request = asked.mode == "vector", self.options, asked.request
        names = statement.names_of(request.filter)
        given = statement.values_of(request.filter, names)
        least = least_similarity(o, snapshot.index.model, request.min_similarity)
        shape = self._shape(snapshot, asked, names)
        values = given | {
            **_weights(o.weights, asked.mode),
            # By meaning alone the first are the most similar; whether they are similar enough is seen afterwards.
            "least": ANY if by_meaning or request.trace else least,
            "dedupe": request.dedupe and not request.trace,
            "asked": request.feedback_key or key_of(request.text),
            "vector": None if asked.vector is None else HalfVector(asked.vector),
            "words": "" if by_meaning else o.synonyms.searchable(asked.text),
            "languages": list(o.languages),
            "tenant": self.tenant,
            "index": snapshot.index.id,
            "chunks": snapshot.chunks,
            "mean": max(snapshot.mean_length, 1.0),
        }
        # At least one is read: that something was found is to be seen.
        top = most = 2 * o.candidates
        if not request.trace:
            spared = max(asked.k, self.rerank.candidates if asked.reranks else 0) + SPARE
            top = max(1, asked.k) if by_meaning else spared
        ef_search = ef_search_for(o.candidates, snapshot.chunks)
        while True:
            rows = self.database.fetch(
                self.tenant,
                statement.search(shape),
                values | {"top": top},
                ef_search=ef_search,
                one_plan=True,
            )
            model = snapshot.index.model
            found = (Hit.of_row(dict(zip(statement.COLUMNS, row, strict=True)), least, model) for row in rows)
            hits = sorted(found, key=lambda hit: (-hit.score, hit.document.id, hit.chunk.ord))
            holding = len(hits) if by_meaning else sum(not hit.outdated for hit in hits)
            if len(hits) == top < most and holding < asked.k:
                top = min(4 * top, most)
            elif len(hits) < asked.k and shape.near < o.candidates:
                shape = shape._replace(near=o.candidates)
            else:
                return hits

    def _shape(self, snapshot: IndexSnapshot, asked: _Asked, names: tuple[str, ...]) -> statement.Shape:
        o, near = self.options, self.options.candidates
        exact = snapshot.chunks < o.exact_below
        if asked.mode == "vector" and not asked.request.trace and not exact:
            each = CHUNKS_PER_DOCUMENT if asked.request.dedupe else CHUNKS_PER_HIT
            near = min(near, max(1, asked.k) * each)
        if asked.vector is not None and not exact:
            own = statement.of_documents(names)
            given = statement.values_of(asked.request.filter, own)
            exact = cache.is_narrow(self.database, self.tenant, snapshot, own, given, near)
        return statement.Shape(
            number=snapshot.index.id,
            dimensions=snapshot.index.dimensions,
            vector="" if asked.vector is None else "all" if exact else "index",
            keywords=asked.mode != "vector",
            near=near,
            matching=o.candidates,
            filter=names,
        )

    # -- the answer --------------------------------------------------------------------------------

    def _answer(self, found: Sequence[Hit], snapshot: IndexSnapshot, asked: _Asked) -> SearchResults:
        """What is shown; kept for level 2 if it is as good as it can be."""
        request, kept = asked.request, list(filter(_reaches, found))
        if request.trace and request.dedupe:
            kept = first_of_documents(kept)
        kept, level = self._reranked(kept, asked)
        if asked.mode != "vector":
            kept = apply_feedback(demote_outdated(kept, self.options.weights.outdated), asked.k, SPARE)
        answer = SearchResults(
            hits=kept[: asked.k],
            degradation_level=level,
            model=snapshot.index.model,
            partial=snapshot.partial
            and cache.partial_for(self.database, self.tenant, snapshot, request.filter),
        )
        if request.trace:
            return replace(answer, below=list(filterfalse(_reaches, found)), beyond=kept[asked.k :])
        if self.caches.answers and answer.hits and level == FULL:
            self.caches.answers.put(f"answer:{self.tenant}", self._key(request, snapshot), answer)
        return answer if request.explain else _unexplained(answer)

    def _reranked(self, hits: list[Hit], asked: _Asked) -> tuple[list[Hit], int]:
        """The best of a hybrid search in the reranker's order; as they were, with level 1, if it fails."""
        if not asked.reranks or not hits:
            return hits, asked.level
        first, rest = hits[: self.rerank.candidates], hits[self.rerank.candidates :]
        try:
            with self.watch("reranker"):
                reranker = self.reranker()
                if reranker is None:
                    return hits, asked.level
                texts = [hit.chunk.embedding_text for hit in first]
                return [*reranked(first, reranker.scores(asked.text, texts)), *rest], asked.level
        except Exception:  # noqa: BLE001 (a model may fail in any way, and a ranking without it is there)
            return hits, max(asked.level, UNRANKED)

    def _from_cache(self, request: SearchRequest) -> SearchResults | None:
        """The answer to the same question, if it was given a short while ago and nothing is known to have changed."""
        snapshot = cache.last_snapshot(self.database, self.tenant)
        if self.caches.answers is None or snapshot is None or request.trace:
            return None
        found = self.caches.answers.get(f"answer:{self.tenant}", self._key(request, snapshot))
        if found is None:
            return None
        found = replace(found, degradation_level=CACHED, from_cache=True)
        return found if request.explain else _unexplained(found)

    def _key(self, request: SearchRequest, snapshot: IndexSnapshot) -> str:
        """What makes two questions the same: words, filter and rights, index, data, and the way they are answered."""
        asked = replace(request, explain=False)
        return _hash(f"{asked!r} {snapshot.index.id} {snapshot.state} {self.options!r} {self.rerank!r}")


def _weights(w: Weights, mode: Mode) -> dict[str, float]:
    """Weights of the parts of a score, brought to a sum of 1; a search by meaning alone scores by the similarity."""
    if mode == "vector":
        w = Weights(vector=1.0, keyword=0.0, title=0.0, covered=0.0, centroid=0.0)
    meaning = 0.0 if mode == "keyword" else w.vector
    whole = meaning + w.keyword + w.title + w.covered or 1.0
    return {
        "of_meaning": meaning / whole,
        "of_words": w.keyword / whole,
        "of_title": w.title / whole,
        "of_all": w.covered / whole,
        "own": 1.0 - min(w.centroid, 1.0),
        "share": min(w.centroid, 1.0),
    }


def least_similarity(options: RetrievalOptions, model: str, wanted: float | None = None) -> float:
    """Of a hit that no word of the question brought."""
    if wanted is None:
        measured = MEASURED_THRESHOLDS.get(model_of(model), 0.0)
        wanted = measured if options.min_similarity == "auto" else options.min_similarity
    return wanted if options.max_distance is None else max(wanted, 1 - options.max_distance)


def _reaches(hit: Hit) -> bool:
    """Whether it is as similar as asked for, or holds a word of the question."""
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


def read_document(database: Database, tenant: UUID, wanted: Filter) -> Json | None:
    """The first document that a filter lets through, with its whole text; None if there is none.

    The columns of `_DOCUMENT_COLUMNS`, as the database gives them.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = statement.of_documents(statement.names_of(wanted))
    asked = _DOCUMENT.format(visible=statement.visible(names)) + " limit 1"
    rows = database.fetch(tenant, asked, statement.values_of(wanted, names))
    return dict(zip(_DOCUMENT_COLUMNS, rows[0], strict=True)) if rows else None


def indexed_since(database: Database, tenant: UUID, wanted: Filter, since: datetime, most: int) -> list[Json]:
    """Documents that a filter lets through and that were indexed since then, newest first.

    Each is `{"document_id", "title", "source", "kind", "last_indexed"}`.

    Raises:
        StoreUnavailable: the database does not answer.
    """
    names = statement.of_documents(statement.names_of(wanted))
    asked = f"""
        select d.id, d.title, s.name, d.kind, d.last_indexed from document d join source s on s.id = d.source_id
        where {statement.visible(names)} and d.last_indexed >= %(indexed_since)s
        order by d.last_indexed desc limit %(most)s"""
    values = {**statement.values_of(wanted, names), "indexed_since": since, "most": most}
    columns = ("document_id", "title", "source", "kind", "last_indexed")
    return [dict(zip(columns, row, strict=True)) for row in database.fetch(tenant, asked, values)]


# -- what moves hits after they were found ----------------------------------------------------------


def reranked(hits: Sequence[Hit], scores: Sequence[float]) -> list[Hit]:
    """The same in the order of a reranker's `scores`, one for each; equals keep their order.

    New scores lie between the best and the worst of the old, so that they stay comparable with those behind.

    Raises:
        ValueError: a score is missing or no number.
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
    return sorted(moved, key=_falling)


def demote_outdated(hits: Sequence[Hit], share: float) -> list[Hit]:
    """The same with documents that no longer hold brought down to `share` of their score."""
    return sorted(
        (
            hit.rescored(hit.score * share, "outdated_part") if hit.outdated and hit.score > 0.0 else hit
            for hit in hits
        ),
        key=_falling,
    )


def apply_feedback(hits: Sequence[Hit], k: int, spare: int) -> list[Hit]:
    """The same, moved by what people said of the first `k` and the `spare` behind them.

    What is marked as noise for this very question stays on the page if its score allows, but behind all others there,
    and scores no more than they do.
    """
    near = sorted(
        (
            hit.rescored(hit.score * hit.marks.factor, "feedback_part")
            if hit.marks and hit.score > 0.0
            else hit
            for hit in hits[: k + spare]
        ),
        key=_falling,
    )
    page = sorted(near[:k], key=_noise)
    least = min((hit.score for hit in page if not _noise(hit)), default=math.inf)
    page = [
        hit.rescored(least, "feedback_part") if _noise(hit) and hit.score > least else hit for hit in page
    ]
    return [*page, *near[k:], *hits[k + spare :]]


def first_of_documents(hits: Sequence[Hit]) -> list[Hit]:
    """The first hit of each document, in the order given."""
    first: dict[object, Hit] = {}
    for hit in hits:
        first.setdefault(hit.document.id, hit)
    return list(first.values())


def _falling(hit: Hit) -> float:
    return -hit.score


def _noise(hit: Hit) -> bool:
    return hit.marks is not None and hit.marks.here < 0
