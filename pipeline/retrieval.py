"""From a question to the best documents: two searches, one ranking, a threshold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast
from uuid import UUID

from pipeline.database import Database
from pipeline.documents import Chunk, Json
from pipeline.embedding import Embedder, Vectors
from pipeline.errors import EmbeddingError
from pipeline.fusion import (
    Fused,
    FusionWeights,
    above_threshold,
    best_per_document,
    fuse,
    in_order,
    scaled,
)
from pipeline.ledger.storable import clean
from pipeline.stores import Candidate, Filter, Mode, StoredDocument, StoreQuery, statistics
from pipeline.stores.pgvector import PgVectorStore, SearchIndex, active_index
from pipeline.stores.pgvector_query import LedgerCandidate

MEASURED_THRESHOLDS: Mapping[str, float] = {
    # 330 relevant pairs of the three open sets: the nearest chunk of 98 % lies at .378 or above (.295, .378 and
    # .415 set by set); measured with tests/benchmarks/quality.py --threshold, rounded down.
    "all-MiniLM-L6-v2": 0.37,
    "gemini-embedding-001": 0.70,
}
"""Model -> the least similarity that `auto` stands for; one that is not listed, such as hashing, has none."""

FULL, KEYWORD_ONLY = 0, 3
"""Degradation levels that a search can have by itself."""


@dataclass(frozen=True, kw_only=True)
class Weights(FusionWeights):
    """What each part adds to a hybrid score; the sum is brought to 1.

    Title and centroid were chosen by nDCG@10 on three open sets (two of duplicate work items, one of questions to
    long pages; tests/benchmarks/quality.py): 70/30 alone .617/.727/.545, with a title of 0.2 and a centroid of 0.3
    .647/.740/.593; a title of 0.4 helps short work items a little more and costs .03 on long pages.
    """

    title: float = 0.2
    """Of the words in common with title and headings."""
    centroid: float = 0.3
    """Share of the whole document in the likeness of meaning, 0 to 1; the rest is the chunk's own."""
    rare: float = 1.0
    """Of the question's rarest words that a chunk holds, by their share of the question's weight.

    70/30 alone cannot tell a chunk that has the very words from one that merely sounds alike: of 40 phrases of
    seven words lifted from 113 made-up pages the right page came first for 22, with this for all 40; and nDCG@10
    on the open sets rose or stayed (seamonkey .740 to .754, k8s .593 both).
    """


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """How documents are found when a request says nothing else."""

    top_k: int = 5
    max_top_k: int = 50
    candidates: int = 100
    """Chunks taken from each of the two searches."""
    min_similarity: float | Literal["auto"] = "auto"
    max_distance: float | None = None
    """1 - similarity; the stricter of the two holds."""
    weights: Weights = field(default_factory=Weights)
    exact_below: int = 10_000

    def threshold(self, model: str, wanted: float | None = None) -> float:
        """The least similarity of a hit that no word of the question brought."""
        if wanted is None:
            measured = MEASURED_THRESHOLDS.get(model, 0.0)
            wanted = measured if self.min_similarity == "auto" else self.min_similarity
        return wanted if self.max_distance is None else max(wanted, 1 - self.max_distance)


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A question and how to answer it."""

    text: str
    mode: Mode = "hybrid"
    k: int | None = None
    """None: the configured number; more than the configured most is cut to that."""
    filter: Filter = field(default_factory=Filter)
    explain: bool = False
    min_similarity: float | None = None
    """Instead of the configured one."""
    dedupe: bool = True
    """One hit per document, its best chunk; False gives every chunk its own hit."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What put a hit where it is; the four parts add up to its score."""

    similarity: float | None
    bm25: float | None
    title_bm25: float | None
    centroid: float | None
    """Cosine similarity of the whole document."""
    rare: float
    """Share of the question's weight in its rarest words, as far as they are here."""
    vector_part: float
    keyword_part: float
    title_part: float
    rare_part: float
    min_similarity: float

    def to_json(self) -> Json:
        """Raw scores first, then their parts of the score."""
        return {
            "semantic_score": self.similarity,
            "keyword_score": self.bm25,
            "title_score": self.title_bm25,
            "document_score": self.centroid,
            "vector_part": self.vector_part,
            "keyword_part": self.keyword_part,
            "rare_share": self.rare,
            "title_part": self.title_part,
            "rare_part": self.rare_part,
            "min_similarity": self.min_similarity,
        }


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One result: a chunk of a document."""

    document: StoredDocument
    chunk: Chunk
    score: float
    """Hybrid and keyword: 0 to 1 among the candidates of this question. Vector: the cosine similarity."""
    explanation: Explanation | None = None

    @property
    def id(self) -> str:
        """`document_id:ord`."""
        return f"{self.document.id}:{self.chunk.ord}"


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """The answer to a question."""

    hits: Sequence[Hit] = ()
    degradation_level: int = FULL
    model: str = ""
    """Whose vectors were compared; empty before the first document."""
    below: Sequence[Hit] = ()
    """Found, but less similar than asked for; only if the request says `explain`."""
    beyond: Sequence[Hit] = ()
    """Good enough, but ranked after the last hit; only if the request says `explain`."""


@dataclass(frozen=True, kw_only=True)
class Ranked(Fused):
    """A candidate in the final order; the score is the sum of the four parts."""

    title_part: float = 0.0
    rare_part: float = 0.0


class Retriever:
    """Searches one tenant's documents."""

    def __init__(
        self,
        database: Database,
        tenant: UUID,
        embedder_of: Callable[[SearchIndex], Embedder],
        options: RetrievalOptions | None = None,
    ) -> None:
        self.database = database
        self.tenant = tenant
        self.embedder_of = embedder_of
        self.options = options or RetrievalOptions()

    def search(self, request: SearchRequest) -> SearchResults:
        """The best documents for a question; nothing if it is blank or nothing is indexed yet.

        A hybrid search whose embedder fails is answered by keywords alone, with degradation level 3.

        Raises:
            StoreUnavailable: the database does not answer.
            EmbeddingError: mode `vector`, and the embedder fails.
        """
        with self.database.tenant(self.tenant) as connection:
            index = active_index(connection)
        question = str(clean(request.text.replace("\x00", " ")))
        if index is None or not question.strip():
            return SearchResults(model=index.model if index else "")
        vector, level = self._vector(index, question, request.mode)
        found = self._candidates(index, question, vector, request)
        while isinstance(found, SearchIndex):
            # Another index was made active while the question was embedded.
            index = found
            vector, level = self._vector(index, question, request.mode)
            found = self._candidates(index, question, vector, request)
        mode: Mode = "keyword" if vector is None else request.mode
        return self._answer(rank(found, self.options.weights, mode), index, level, request)

    def _vector(self, index: SearchIndex, question: str, mode: Mode) -> tuple[Vectors | None, int]:
        """The question's vector, made outside of any transaction; and the degradation level."""
        if mode == "keyword":
            return None, FULL
        try:
            return self.embedder_of(index).embed_query(question), FULL
        except EmbeddingError:
            if mode == "vector":
                raise
            return None, KEYWORD_ONLY

    def _candidates(
        self, index: SearchIndex, question: str, vector: Vectors | None, request: SearchRequest
    ) -> list[LedgerCandidate] | SearchIndex:
        """Both arms; or the index that is active by now, if it is another one."""
        with self.database.tenant(self.tenant) as connection:
            now = active_index(connection)
            if now is not None and now.id != index.id:
                return now
            statistics.ensure(connection, self.tenant, index.id)
            store = PgVectorStore(connection, index, self.tenant, exact_below=self.options.exact_below)
            return store.scored(
                StoreQuery(
                    text=question,
                    vector=vector,
                    keywords=request.mode != "vector",
                    candidates=self.options.candidates,
                    filter=request.filter,
                )
            )

    def _answer(
        self, ranked: list[Ranked], index: SearchIndex, level: int, request: SearchRequest
    ) -> SearchResults:
        least = self.options.threshold(index.model, request.min_similarity)
        reaching = cast("list[Ranked]", above_threshold(ranked, min_similarity=least))
        kept = reaching
        if request.dedupe:
            kept = cast("list[Ranked]", best_per_document(reaching))
        k = max(0, min(self.options.top_k if request.k is None else request.k, self.options.max_top_k))
        hits = [_hit(r, least, explain=request.explain) for r in kept]
        passed = {id(r) for r in reaching}
        below = [_hit(r, least, explain=True) for r in ranked if request.explain and id(r) not in passed]
        return SearchResults(
            hits=hits[:k],
            degradation_level=level,
            model=index.model,
            below=below,
            beyond=hits[k:] if request.explain else (),
        )


def rank(candidates: Sequence[LedgerCandidate], weights: Weights, mode: Mode) -> list[Ranked]:
    """The candidates in their final order; title and whole document count in a hybrid search only."""
    if mode != "hybrid":
        return [Ranked(**vars(fused)) for fused in fuse(candidates, weights, mode)]
    whole = weights.vector + weights.keyword + weights.title + weights.rare or 1.0
    titles = scaled([c.title for c in candidates])
    own = {_place(c): (c, weights.title * title) for c, title in zip(candidates, titles, strict=True)}
    ranked = []
    for fused in fuse([_with_document(c, weights.centroid) for c in candidates], weights, mode):
        candidate, title_part = own[_place(fused.candidate)]
        rare_part = weights.rare * candidate.rare
        ranked.append(
            Ranked(
                candidate=candidate,
                score=(fused.score + title_part + rare_part) / whole,
                vector_part=fused.vector_part / whole,
                keyword_part=fused.keyword_part / whole,
                title_part=title_part / whole,
                rare_part=rare_part / whole,
            )
        )
    return cast("list[Ranked]", in_order(ranked))


def _with_document(candidate: LedgerCandidate, share: float) -> LedgerCandidate:
    """The candidate with the likeness of its document mixed into its own, where that is known."""
    if candidate.similarity is None or candidate.centroid is None:
        return candidate
    share = min(share, 1.0)
    return replace(candidate, similarity=(1 - share) * candidate.similarity + share * candidate.centroid)


def _place(candidate: Candidate) -> tuple[UUID, int]:
    return candidate.document.id, candidate.chunk.ord


def _hit(ranked: Ranked, least: float, *, explain: bool) -> Hit:
    candidate = cast("LedgerCandidate", ranked.candidate)
    explanation = Explanation(
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
    )
    return Hit(
        document=candidate.document,
        chunk=candidate.chunk,
        score=ranked.score,
        explanation=explanation if explain else None,
    )
