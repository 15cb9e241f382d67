"""One look into the store: the candidates ranked, and the texts of those that can come to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from pipeline.database import Database
from pipeline.embedding import Vectors
from pipeline.fusion import above_threshold, best_per_document, in_order
from pipeline.queries import ProcessedQuery
from pipeline.retrieval.ground import Ground
from pipeline.retrieval.ranking import Ranked, merged, rank
from pipeline.retrieval.records import FULL, RetrievalOptions, SearchRequest
from pipeline.standing import standing
from pipeline.stores import Mode, StoreQuery
from pipeline.stores.pgvector import SearchIndex, check_query, place_of
from pipeline.stores.pgvector_query import Ask, scores, steps
from pipeline.stores.pgvector_texts import Blend, Text, best_texts, nearest_texts, read

CHUNKS_PER_DOCUMENT = 4
"""Chunks looked at first for each document wanted, by meaning alone."""
SPARE = 5
"""Hits read beyond those wanted, in place of such as no longer hold."""
CHUNKS_PER_HIT = 2
"""The same if each chunk is a hit: an index that goes on for a filter does not keep the order to the last."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A question with all that its answer depends on."""

    request: SearchRequest
    query: ProcessedQuery
    mode: Mode
    level: int
    k: int
    """How many hits may come back."""
    read_first: int
    """How many texts are read at least."""
    explain: bool = False
    """Whether the hits tell what their scores are made of."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found for a question, best first."""

    ranked: Sequence[Ranked]
    reaching: Sequence[Ranked]
    """Those that pass the threshold."""
    kept: Sequence[Ranked]
    """Of these the best of each document, or all."""
    least: float
    level: int = FULL
    texts: Mapping[tuple[UUID, int], Text] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Look:
    """Looks for one tenant; each statement is a transaction of its own."""

    database: Database
    tenant: UUID
    options: RetrievalOptions

    def ask(self) -> Ask:
        """A way to run the statements of a search."""
        return partial(self.database.ask, self.tenant, ef_search=steps(self.options.candidates))

    def by_meaning(self, on: Ground, asked: Asked, vectors: Sequence[Vectors | None]) -> Found:
        """The first by the vector arm alone, with their texts; for one way to ask."""
        (vector,), request, k = vectors, asked.request, asked.k
        check_query(vector, on.index.dimensions)
        place = place_of(on.index, self.tenant, self.options.exact_below, if_active=True)
        ask = self.ask()
        query = StoreQuery(
            text="",
            vector=vector,
            keywords=False,
            candidates=self.options.candidates,
            filter=request.filter,
            top=k,
        )
        # Most documents have few chunks among the nearest, so a part of the candidates tells the first documents;
        # with a filter, each candidate that is not needed costs many steps of the index.
        enough = k * (CHUNKS_PER_DOCUMENT if request.dedupe else CHUNKS_PER_HIT)
        # Few documents are hidden, so it is asked at first only of those that come to be shown.
        for first, seen in ((min(enough, query.candidates), False), (query.candidates, True)):
            found = nearest_texts(
                ask, place, query, on.counted, first, dedupe=request.dedupe, whole=asked.explain, seen=seen
            )
            if len(found.chunks) >= k or 0 < found.rows < first:
                break
        least = self.options.threshold(on.index.model, request.min_similarity)
        ranked = in_order([Ranked(c, s, s, 0.0) for c in found.chunks if (s := c.similarity or 0.0) >= least])
        return Found(ranked=ranked, reaching=ranked, kept=ranked, least=least, texts=found.texts)

    def by_sum(self, on: Ground, asked: Asked, vector: Vectors) -> Found | None:
        """What `by_both` finds for one way to ask, ranked where it is found; None if it must be looked at more closely.

        A ranking made there spares the way of some hundred candidates, and one more for the texts of the best.
        """
        check_query(vector, on.index.dimensions)
        place = place_of(on.index, self.tenant, self.options.exact_below, if_active=True)
        w, least = self.options.weights, self.options.threshold(on.index.model, asked.request.min_similarity)
        query = StoreQuery(
            text=asked.query.words,
            vector=vector,
            candidates=self.options.candidates,
            filter=asked.request.filter,
            languages=self.options.languages,
            top=asked.read_first + SPARE,
        )
        blend = Blend(
            vector=w.vector, keyword=w.keyword, title=w.title, rare=w.rare, centroid=w.centroid, least=least
        )
        found = best_texts(self.ask(), place, query, on.counted, blend, dedupe=asked.request.dedupe)
        if found is None:
            return None
        ranked, texts = in_order([Ranked(*one) for one in found[0]]), found[1]
        # Documents that no longer hold are brought down later: there must be `k` that hold, if there are so many.
        holding = sum(standing(text.document) is None for text in texts.values())
        if holding < asked.k and len(ranked) == query.top:
            return None
        return Found(ranked=ranked, reaching=ranked, kept=ranked, least=least, texts=texts)

    def by_both(self, on: Ground, asked: Asked, vectors: Sequence[Vectors | None]) -> Found:
        """A ranking of all that both arms find for each way to ask, and the texts that can come to be shown."""
        place = place_of(on.index, self.tenant, self.options.exact_below, if_active=True)
        ask = self.ask()
        rankings = []
        for way, vector in zip(asked.query.variants, vectors, strict=True):
            check_query(vector, on.index.dimensions)
            query = StoreQuery(
                text=asked.query.words if way == asked.query.text else way,
                vector=vector,
                keywords=asked.mode != "vector",
                candidates=self.options.candidates,
                filter=asked.request.filter,
                languages=self.options.languages,
            )
            found = scores(ask, place, query, on.counted)
            mode: Mode = "keyword" if vector is None else asked.mode
            rankings.append(rank(found, self.options.weights, mode, self.options.fusion))
        found_ = self._passing(merged(rankings), on, asked)
        return replace(found_, texts=self._texts(ask, on.index, found_, asked))

    def _passing(
        self,
        ranked: list[Ranked],
        on: Ground,
        asked: Asked,
    ) -> Found:
        least = self.options.threshold(on.index.model, asked.request.min_similarity)
        reaching = above_threshold(ranked, min_similarity=least)
        kept = best_per_document(reaching) if asked.request.dedupe else reaching
        return Found(ranked=ranked, reaching=reaching, kept=kept, least=least)

    def _texts(
        self, ask: Ask, index: SearchIndex, found: Found, asked: Asked
    ) -> Mapping[tuple[UUID, int], Text]:
        """The texts of those that can come to be shown, which are a few of many.

        Documents that no longer hold are brought down later, so as many are read as it takes to have `k` that hold.
        """
        condition = asked.request.filter
        if asked.request.trace:
            return read(ask, index.id, [r.place for r in found.ranked], condition)
        texts: dict[tuple[UUID, int], Text] = {}
        at, holding, step = 0, 0, asked.read_first
        while at < len(found.kept) and (at < asked.read_first or holding < asked.k):
            more = read(ask, index.id, [r.place for r in found.kept[at : at + step]], condition)
            texts |= more
            holding += sum(standing(m.document) is None for m in more.values())
            at, step = at + step, 2 * step
        return texts
