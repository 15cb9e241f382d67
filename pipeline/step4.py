"""Step 4 of the backlog pipeline: adds context from the team's documents to every scored PBI."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from pipeline.documents import Json
from pipeline.documents.plain_text import plain_keys
from pipeline.enrichment.context import EnrichedContext, static_context
from pipeline.enrichment.degradation import DISABLED, STATIC
from pipeline.errors import ConfigurationError, LarderError, RequestRejected

logger = logging.getLogger(__name__)

INPUTS: Mapping[str, str] = {"scored_pbis": "enriched_pbis", "scoredPBIs": "enrichedPBIs"}
"""Key that Step 3 writes -> key that Step 4 writes."""
_LIST = "scored_pbis"

OutcomeStatus = Literal["enriched", "legacy", "empty", "refused"]


class PbiEnricher(Protocol):
    """Source of the context of a PBI, such as `workers.client.Client`."""

    def enrich(self, pbi: Json, scores: Json) -> Json:
        """The context of one PBI; any error sends the PBI to the fallback."""


class LegacyEnrichment(Protocol):
    """The former enrichment, used when Larder is off or fails."""

    def enrich(self, scored_pbi: Json, context: Mapping[str, Any]) -> Json:
        """The context of one PBI."""


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of Step 4."""

    enabled: bool = True
    """The feature flag `rag_enrichment`, and the master switch."""
    rollout: float = 100.0
    """Per cent of all PBIs to enrich; the choice for a PBI is the same in every run."""
    tenant: str = "default"
    project: str = "default"
    """Project in an empty context whose PBI names none."""
    at_once: int = 8
    """PBIs enriched at the same time."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one PBI."""

    index: int
    id: str
    status: OutcomeStatus
    error: str = ""
    """Reason why it could not be enriched; else empty."""


class EnrichContextStep:
    """Adds `enriched_pbis` to the context of a pipeline run."""

    def __init__(
        self,
        enricher: PbiEnricher | None,
        options: StepOptions | None = None,
        *,
        fallback: LegacyEnrichment | None = None,
        metrics: Any = None,
        on_outcome: Callable[[Outcome], None] | None = None,
    ) -> None:
        """`metrics` has `record_fallback()` or `recordFallback()`, or is a callable; it is called at each fallback.

        `on_outcome` is called for every PBI when it is done, in no fixed order, from the calling thread.
        """
        self.enricher = enricher
        self.options = options or StepOptions()
        self.fallback = fallback
        self.metrics = metrics
        self.on_outcome = on_outcome

    def initialize(self) -> None:
        """Log whether PBIs will be enriched or sent to the fallback."""
        on = self.enricher is not None and self.options.enabled
        logger.info(
            "RAG service initialized successfully"
            if on
            else "RAG service disabled, using fallback enrichment"
        )

    def execute(self, context: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Enrich all of `scored_pbis.scored_pbis[]`; returns the same object with `enriched_pbis` set.

        A PBI that cannot be enriched goes to the fallback; without a fallback its context is empty, with a degradation
        level that says so. An invalid PBI, without title and description or with a field of the wrong type, gets a
        context with `error` and level 0, since the service is not degraded. No PBI affects another.

        Raises:
            ConfigurationError: there are no scored PBIs in `context`; the message names the field.
        """
        source, items = scored_of(context)
        pool = ThreadPoolExecutor(max_workers=max(1, self.options.at_once), thread_name_prefix="step4")
        try:
            running = [pool.submit(self._one, n, item, context) for n, item in enumerate(items)]
            for future in as_completed(running):
                if self.on_outcome is not None:
                    self.on_outcome(future.result()[1])
        finally:
            # After an interrupt, neither running nor queued requests are waited for.
            pool.shutdown(wait=False, cancel_futures=True)
        context[INPUTS[source]] = {
            "enriched_pbis": [
                {**item, "scores": item.get("scores") or {}, "context": future.result()[0]}
                for item, future in zip(items, running, strict=True)
            ]
        }
        return context

    def _one(self, index: int, item: Json, context: Mapping[str, Any]) -> tuple[Json, Outcome]:
        name = pbi_id(item["pbi"])
        if (
            self.enricher is None
            or not self.options.enabled
            or not in_rollout(self.options.tenant, name, self.options.rollout)
        ):
            return self._legacy(index, name, item, context, "")
        try:
            context_json = dict(self.enricher.enrich(_pbi(item), item.get("scores") or {}))
        except CancelledError:
            raise  # the caller gave up on all PBIs
        except Exception as error:  # noqa: BLE001 (one PBI must not stop the others)
            reason = _reason(error)
            if isinstance(error, RequestRejected) and self.fallback is None:
                refused = {**self._empty(item, EnrichedContext()), "error": reason}
                return refused, Outcome(index=index, id=name, status="refused", error=reason)
            logger.warning("RAG enrichment failed, using fallback enrichment: %s", reason)
            named = (getattr(self.metrics, name, None) for name in ("record_fallback", "recordFallback"))
            next(filter(callable, (*named, self.metrics)), lambda: None)()
            return self._legacy(index, name, item, context, reason)
        return context_json, Outcome(index=index, id=name, status="enriched")

    def _legacy(
        self, index: int, name: str, item: Json, context: Mapping[str, Any], reason: str
    ) -> tuple[Json, Outcome]:
        if self.fallback is not None:
            try:
                context_json = dict(self.fallback.enrich(item, context))
                return context_json, Outcome(index=index, id=name, status="legacy", error=reason)
            except Exception as error:  # noqa: BLE001 (neither must its fallback)
                also = f"the fallback failed, too: {_reason(error)}"
                reason = f"{reason}; {also}" if reason else also
                logger.warning("%s", also)
        context_json = self._empty(item, static_context(STATIC if reason else DISABLED))
        return context_json, Outcome(index=index, id=name, status="empty", error=reason)

    def _empty(self, item: Json, answer: EnrichedContext) -> Json:
        return replace(answer, project=project_of(item) or self.options.project).to_json()


def project_of(item: Json) -> str:
    """The project that a scored PBI names; empty if none."""
    named = plain_keys(_pbi(item)).get("project")
    return named.strip() if isinstance(named, str) else ""


def _pbi(item: Json) -> Json:
    """The PBI, with the project given beside it."""
    pbi: Json = item["pbi"]
    return {**pbi, "project": item["project"]} if item.get("project") else pbi


def scored_of(context: Mapping[str, Any]) -> tuple[str, list[Json]]:
    """The input key and its scored PBIs; a bare PBI counts as one without scores.

    Raises:
        ConfigurationError: no scored PBIs, or a field of the wrong type; the message names the field.
    """
    source = next((key for key in INPUTS if context.get(key) is not None), None)
    fix = 'Step 3 writes {"scored_pbis": {"scored_pbis": [{"pbi": ..., "scores": ...}]}}'
    if source is None:
        raise ConfigurationError("the context has no scored_pbis", fix=fix)
    value = context[source]
    items = value.get(_LIST) if isinstance(value, Mapping) else value
    if not isinstance(items, Sequence) or isinstance(items, str | bytes):
        raise ConfigurationError(f"{source}.{_LIST} is no list", fix=fix)
    scored = []
    for n, item in enumerate(items):
        field = f"{source}.{_LIST}[{n}]"
        if not isinstance(item, Mapping):
            raise ConfigurationError(f"{field} is no object", fix=fix)
        if not isinstance(item.get("pbi", item), Mapping):
            raise ConfigurationError(f"{field}.pbi is no object", fix=fix)
        scored.append(dict(item) if "pbi" in item else {"pbi": dict(item), "scores": {}})
    return source, scored


def pbi_id(pbi: Mapping[str, Any]) -> str:
    """The id of a PBI; without one, a hash that is stable between runs."""
    for key in ("id", "pbi_id", "pbiId"):
        if pbi.get(key) not in (None, ""):
            return str(pbi[key])
    whole = json.dumps(pbi, sort_keys=True, default=str)
    return f"pbi-{hashlib.sha256(whole.encode('utf-8', 'replace')).hexdigest()[:12]}"


def in_rollout(tenant: str, pbi: str, percentage: float) -> bool:
    """True if this PBI is among the first `percentage` per cent; a higher percentage only adds PBIs."""
    digest = hashlib.sha256(f"{tenant}\x00{pbi}".encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8]) / 2**64 * 100 < percentage


def _reason(error: Exception) -> str:
    # A foreign error's message may quote its input.
    return str(error) if isinstance(error, LarderError) else type(error).__name__
