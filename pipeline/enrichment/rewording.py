"""An extracted answer, worded by a model where that holds, and otherwise as it was."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import structlog

from pipeline.documents import Json
from pipeline.enrichment.request import EnrichmentRequest
from pipeline.enrichment.sentences import clipped
from pipeline.enrichment.support import objection, speaks_to_a_model
from pipeline.enrichment.wording import Draft, Worded, Wording
from pipeline.enrichment.words import flat
from pipeline.errors import LarderError

KINDS = ("acceptance_criterion", "decision")
"""Suggestions that quote somebody; the others are sentences of ours."""
MOST_DRAFTS = 40
"""Of one answer; what comes after them stays as it is."""


@dataclass(frozen=True, kw_only=True)
class RewordingOptions:
    """How much time a model gets, and when it is left alone."""

    seconds: float = 20.0
    """One call may take."""
    reserve: float = 2.0
    """Seconds before the deadline that are kept to hand the answer in."""
    least: float = 1.0
    """With fewer seconds left, a call is not worth its price."""
    failures: int = 3
    """So many in a row ..."""
    pause: float = 60.0
    """... and the model is left alone for so many seconds."""
    longest_pause: float = 3600.0
    """Also if the service asks for more."""


class Rewording:
    """Words the answers of one process; safe for many threads."""

    def __init__(
        self,
        wording: Wording | None,
        options: RewordingOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """Without a `wording`, every answer stays as it was extracted."""
        self.wording = wording
        self.options = options or RewordingOptions()
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._failed = 0
        self._paused_until = float("-inf")

    def reworded(self, answer: Json, request: Json, deadline: datetime | None = None) -> Json:
        """The answer of `EnrichedContext.to_json` to a request, with sentences of the model where they hold.

        The same entries with the same citations come back in any case; `generator` names who worded at least one
        sentence. There is one call, in the time left, and none of its failures gets out.
        """
        drafts = list(_drafts(answer))[:MOST_DRAFTS]
        seconds = self._seconds(deadline)
        if self.wording is None or not drafts or seconds is None or self._is_paused():
            return answer
        begun = self._clock()
        try:
            item = clipped(EnrichmentRequest.from_json(request).title)
            given = self.wording.words(item, drafts, seconds=seconds)
        except Exception as error:  # noqa: BLE001 (the answer is there already; its wording must not cost it)
            self._fail(error)
            return answer
        with self._lock:
            self._failed = 0
        taken, refused = _checked(drafts, given)
        _log().info(
            "answer worded",
            generator=self.wording.name,
            drafts=len(drafts),
            taken=len(taken),
            refused=dict(refused),
            seconds=round(self._clock() - begun, 2),
        )
        return {**_replaced(answer, taken), "generator": self.wording.name} if taken else answer

    def _seconds(self, deadline: datetime | None) -> float | None:
        """For the call; None if too little is left."""
        if deadline is None:
            return self.options.seconds
        left = (deadline - self._now()).total_seconds() - self.options.reserve
        return min(left, self.options.seconds) if left >= self.options.least else None

    def _is_paused(self) -> bool:
        with self._lock:
            return self._clock() < self._paused_until

    def _fail(self, error: Exception) -> None:
        """Count it; the model is left alone after some in a row, or when the service or its refusal says so."""
        ours = error if isinstance(error, LarderError) else None
        _log().warning(
            "no wording by the model, the extracted sentences stand",
            error=str(ours) if ours else type(error).__name__,
        )
        o = self.options
        with self._lock:
            self._failed += 1
            asked = ours.retry_after if ours and ours.retry_after is not None else 0.0
            hopeless = ours is not None and not ours.transient
            pause = o.pause if hopeless or self._failed >= o.failures else 0.0
            pause = min(max(pause, asked), o.longest_pause)
            if pause > 0:
                self._paused_until = self._clock() + pause
                _log().warning("the model is left alone", seconds=pause)


def _drafts(answer: Json) -> Iterator[Draft]:
    """The sentences of an answer that may be said otherwise."""
    cited = {c["n"]: c for c in answer.get("citations") or ()}
    for place, text, numbers in _sentences(answer):
        quoted = {n: str(cited[n]["quoted"]) for n in numbers if n in cited}
        if quoted and not speaks_to_a_model(text):
            yield Draft(key=place, text=text, title=str(cited[next(iter(quoted))]["title"]), cited=quoted)


def _sentences(answer: Json) -> Iterator[tuple[str, str, Sequence[int]]]:
    """Place, text and citations of each."""
    for n, item in enumerate(answer.get("similar_work") or ()):
        numbers = item.get("citations") or ()
        for m, (text, number) in enumerate(zip(item.get("learnings") or (), numbers, strict=False)):
            yield f"learning-{n}-{m}", str(text), (number,)
    for n, suggestion in enumerate(answer.get("suggestion_details") or ()):
        if suggestion.get("kind") in KINDS:
            yield f"suggestion-{n}", str(suggestion.get("text")), suggestion.get("citations") or ()


def _checked(drafts: Sequence[Draft], given: Sequence[Worded]) -> tuple[Mapping[str, str], Counter[str]]:
    """By place, the sentences that hold; and how many fell to which check."""
    known = {draft.key: draft for draft in drafts}
    taken: dict[str, str] = {}
    refused: Counter[str] = Counter()
    for worded in given:
        draft = known.pop(worded.key, None)
        text = flat(worded.text)
        why = objection(worded, draft) if draft else "id"
        if why:
            refused[why] += 1
        elif draft and text != draft.text:
            taken[worded.key] = text
    return taken, refused


def _replaced(answer: Json, taken: Mapping[str, str]) -> Json:
    """A copy of the answer with these sentences in their places."""

    def work(n: int, item: Mapping[str, Any]) -> Json:
        texts = item.get("learnings") or ()
        return {**item, "learnings": [taken.get(f"learning-{n}-{m}", text) for m, text in enumerate(texts)]}

    def suggestion(n: int, one: Mapping[str, Any]) -> Json:
        return {**one, "text": taken.get(f"suggestion-{n}", one.get("text"))}

    details = [suggestion(n, one) for n, one in enumerate(answer.get("suggestion_details") or ())]
    return {
        **answer,
        "similar_work": [work(n, item) for n, item in enumerate(answer.get("similar_work") or ())],
        "suggestions": [one.get("text") for one in details],
        "suggestion_details": details,
    }


def _log() -> Any:
    return structlog.get_logger(__name__)
