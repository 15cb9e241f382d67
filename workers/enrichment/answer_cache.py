"""The last answers of Step 4 that one process got, for when there are no others to be had."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self
from uuid import UUID

from pipeline.documents import Json
from pipeline.enrichment.degradation import DegradationLevel
from pipeline.ledger.jobs import submission_key
from pipeline.search.cache import MemoryCache

if TYPE_CHECKING:
    from workers.settings.models import ResultCacheSettings


class CachedAnswers:
    """Bounded, in the memory of the process that asked; texts of documents go nowhere else."""

    def __init__(
        self, *, entries: int = 100, seconds: float = 900, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`entries` answers are kept for at most `seconds` each."""
        self._kept = MemoryCache(entries=entries, seconds=seconds, clock=clock)

    @classmethod
    def of(cls, cache: ResultCacheSettings) -> Self:
        """As large and as long as the searches' own cache; nothing is kept where that is switched off."""
        return cls(entries=cache.max_entries if cache.enabled else 0, seconds=cache.ttl)

    def keep(self, project: UUID, request: Json, answer: Json) -> None:
        """Remember an answer, unless it was one of need itself."""
        level = answer.get("degradation_level", DegradationLevel.FULL_RAG)
        if isinstance(level, int) and level < DegradationLevel.CACHED_ONLY:
            self._kept.put(_SPACE, _key(project, request), json.dumps(answer).encode())

    def get(self, project: UUID, request: Json) -> Json | None:
        """The answer to the very same request, with level 2; None if it is not remembered."""
        kept = self._kept.get(_SPACE, _key(project, request))
        if kept is None:
            return None
        return {**json.loads(kept), "degradation_level": int(DegradationLevel.CACHED_ONLY)}


_SPACE = "answers"


def _key(project: UUID, request: Json) -> str:
    return submission_key(project, request).hex()
