"""One look into the store: the candidates ranked, and the texts of those that can come to be shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from uuid import UUID

from pipeline.database.engine import Database
from pipeline.embedding import Vectors
from pipeline.search import statements
from pipeline.search.arms import Ask, Place, scores, steps
from pipeline.search.chunk_store import SearchIndex, place_of
from pipeline.search.chunks import Filter, Mode, StoreQuery
from pipeline.search.filters import names_of
from pipeline.search.fusion import above_threshold, best_per_document, in_order
from pipeline.search.index_snapshot import Ground, name_of, width
from pipeline.search.question import ProcessedQuery
from pipeline.search.ranking import STANDING, rank
from pipeline.search.records import FULL, Hit, RetrievalOptions, SearchRequest
from pipeline.search.statements import Passing
from pipeline.search.texts import Blend, Ranked, Text, best_texts, nearest_few, nearest_texts, read
from pipeline.search.validity import standing

CHUNKS_PER_DOCUMENT = 4
"""Chunks looked at first for each document wanted, by meaning alone."""
SPARE = 5
"""Hits read beyond those wanted, in place of such as no longer hold or are marked as noise."""
CHUNKS_PER_HIT = 2
"""The same if each chunk is a hit: an index that goes on for a filter does not keep the order to the last."""


class Asked(NamedTuple):
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


class Found(NamedTuple):
    """What was found for a question, best first, each with its text."""

    kept: Sequence[Ranked]
    """Those that pass the threshold, the best of each document or all; the first of them if there are many."""
    least: float
    """The threshold."""
    nothing: bool = False
    """No arm found anything, as in an index that is no longer the active one."""
    below: Sequence[Ranked] = ()
    """Those that do not pass; only if the request says `trace`."""
    level: int = FULL
    hits: Sequence[Hit] | None = None
    """All there is to show, instead of `kept`."""
    state: str = ""
    """Of the data that this was found in, if the answer may be kept; empty if it is not known."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Looks for one tenant; each statement is a transaction of its own. Vectors come as `check_query` wants them."""

    database: Database
    tenant: UUID
    options: RetrievalOptions

    def ask(self) -> Ask:
        """A way to run the statements of a search."""
        return partial(self.database.ask, self.tenant, ef_search=steps(self.options.candidates))

    def _place(self, on: Ground, wanted: Filter, first: int) -> Place:
        """Where to search, and how, for the `first` nearest of the chunks that a filter lets through."""
        o = self.options
        passing: Passing = ""
        if on.counted.chunks >= o.exact_below:
            passing = width(self.database, self.tenant, on, wanted, candidates=o.candidates, first=first)
        return place_of(on.index, self.tenant, o.exact_below, if_active=True, passing=passing)

    def by_meaning(self, on: Ground, asked: Asked, vector: Vectors) -> Found:
        """The first by the vector arm alone, with their texts; for one way to ask."""
        return self._first_by_meaning(on, asked, vector) or self._all_by_meaning(on, asked, vector)

    def _first_by_meaning(self, on: Ground, asked: Asked, vector: Vectors) -> Found | None:
        """The same in the shortest way; None if that does not tell all, or more is asked for."""
        request, k = asked.request, asked.k
        if not k or asked.explain or on.counted.chunks < self.options.exact_below or names_of(request.filter):
            return None
        first = min(k * CHUNKS_PER_DOCUMENT if request.dedupe else k, self.options.candidates)
        index = on.index
        statement = statements.nearest_few(index.id, index.dimensions, first, k, dedupe=request.dedupe)
        found = nearest_few(self.ask(), statement, vector, partial(name_of, self.database, self.tenant, on))
        if len(found) < k:
            return None
        least = self.options.threshold(index.model, request.min_similarity)
        hits = [
            Hit(
                document=document,
                chunk=chunk,
                score=similarity,
                explanation=None,
                standing=standing(document),
                feedback=0.0,
            )
            for document, chunk, similarity in found
            if similarity >= least
        ]
        return Found((), least, hits=hits)

    def _all_by_meaning(self, on: Ground, asked: Asked, vector: Vectors) -> Found:
        request, k = asked.request, asked.k
        # Most documents have few chunks among the nearest, so a part of the candidates tells the first documents;
        # with a filter, each candidate that is not needed costs many steps of the index.
        enough = k * (CHUNKS_PER_DOCUMENT if request.dedupe else CHUNKS_PER_HIT)
        enough = min(enough, self.options.candidates)
        place = self._place(on, request.filter, enough)
        ask = self.ask()
        query = StoreQuery(
            text="",
            vector=vector,
            keywords=False,
            candidates=self.options.candidates,
            filter=request.filter,
            top=k,
        )
        for first in (enough, query.candidates):
            found = nearest_texts(
                ask, place, query, on.counted, first, dedupe=request.dedupe, whole=asked.explain
            )
            if len(found.chunks) >= k or 0 < found.rows < first:
                break
        least = self.options.threshold(on.index.model, request.min_similarity)
        kept = in_order([one for one in found.chunks if one.score >= least])
        return Found(kept=kept, least=least, nothing=not found.chunks)

    def by_sum(self, on: Ground, asked: Asked, vector: Vectors, *, state: bool = False) -> Found | None:
        """What `by_both` finds for one way to ask, ranked where it is found; None if it must be looked at more closely.

        A ranking made there spares the way of some hundred candidates, and one more for the texts of the best.
        """
        place = self._place(on, asked.request.filter, self.options.candidates)
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
            vector=w.vector,
            keyword=w.keyword,
            title=w.title,
            covered=w.covered,
            centroid=w.centroid,
            least=least,
        )
        best = best_texts(
            self.ask(),
            place,
            query,
            on.counted,
            blend,
            enough=max(1, asked.read_first),  # that it found something is to be seen
            asked=asked.request.question_key,
            dedupe=asked.request.dedupe,
            state=state,
        )
        if best is None:
            return None
        found = best.chunks
        # Documents that no longer hold are brought down later: there must be `k` that hold, if there are so many.
        if len(found) == query.top and list(map(STANDING, found)).count(None) < asked.k:
            return None
        return Found(kept=found, least=least, nothing=not found, state=best.state)

    def by_both(self, on: Ground, asked: Asked, vector: Vectors | None) -> Found:
        """A ranking of all that both arms find, and the texts that can come to be shown."""
        place = self._place(on, asked.request.filter, self.options.candidates)
        ask = self.ask()
        query = StoreQuery(
            text=asked.query.words,
            vector=vector,
            keywords=asked.mode != "vector",
            candidates=self.options.candidates,
            filter=asked.request.filter,
            languages=self.options.languages,
        )
        mode: Mode = "keyword" if vector is None else asked.mode
        ranked = rank(scores(ask, place, query, on.counted), self.options.weights, mode)
        least = self.options.threshold(on.index.model, asked.request.min_similarity)
        reaching = above_threshold(ranked, min_similarity=least)
        kept = best_per_document(reaching) if asked.request.dedupe else reaching
        if not asked.request.trace:
            return Found(kept=self._first(ask, on.index, kept, asked), least=least, nothing=not ranked)
        request = asked.request
        texts = read(ask, on.index.id, [r.place for r in ranked], request.filter, request.question_key)
        passed = {r.place for r in reaching}
        below = _with_texts([r for r in ranked if r.place not in passed], texts)
        return Found(kept=_with_texts(kept, texts), least=least, nothing=not ranked, below=below)

    def _first(self, ask: Ask, index: SearchIndex, ranked: Sequence[Ranked], asked: Asked) -> list[Ranked]:
        """Those that can come to be shown, which are a few of many.

        Documents that no longer hold are brought down later, so as many are read as it takes to have `k` that hold.
        """
        found: list[Ranked] = []
        request, first = asked.request, asked.read_first + SPARE
        at, holding, step = 0, 0, first
        while at < len(ranked) and (at < first or holding < asked.k):
            part = ranked[at : at + step]
            texts = read(ask, index.id, [r.place for r in part], request.filter, request.question_key)
            found += _with_texts(part, texts)
            holding += sum(text.standing is None for text in texts.values())
            at, step = at + step, 2 * step
        return found


def _with_texts(ranked: Sequence[Ranked], texts: Mapping[tuple[UUID, int], Text]) -> list[Ranked]:
    """Without any that is gone or hidden by now."""
    return [r._replace(text=texts[r.place]) for r in ranked if r.place in texts]
