"""Another search index beside the one that is read: begin it, and wait until it is full."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeline.chunking import STRATEGIES
from pipeline.documents import Json
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.known_models import KNOWN, vector_key
from pipeline.errors import ConfigurationError, EmbedderRefused, LarderError
from pipeline.ledger.search_indexes import WantedIndex, begin_index, made_with
from pipeline.search.chunk_store import SearchIndex, indexes
from workers.admin.index_switch import audit_index
from workers.admin.reindex_status import status
from workers.queue import dispatch
from workers.runtime import Runtime

POLL_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command asks for; what it leaves out is as configured."""

    provider: str | None = None
    model: str | None = None
    dimensions: int | None = None
    chunker: str | None = None


def begin(parts: Runtime, asked: Asked) -> Json:
    """Make an empty index beside the active one and have it filled; `{"begun", "index", "made_with"}`.

    Repeatable: an index that is being filled goes on; `begun` is False if the active one is made like that already.

    Raises:
        ConfigurationError: nothing is indexed yet, another one is being filled, or the wanted one is kept already.
        ModelMissing: the model's files are absent.
    """
    wanted = _wanted(parts, asked)
    with parts.database.control() as connection:
        found = {index.status: index for index in indexes(connection)}
    active = found.get("active")
    if active is None:
        raise ConfigurationError(
            "nothing is indexed yet", fix="larder index; it makes the first search index"
        )
    if wanted.fits(active):
        return {"begun": False, "index": active.id, "made_with": str(wanted)}
    kept = found.get("retired")
    if kept is not None and wanted.fits(kept):
        raise ConfigurationError(
            f"index {kept.id} is made with {wanted} and is kept up to date", fix="larder reindex rollback"
        )
    with parts.database.control() as connection:
        made = begin_index(connection, wanted, chunker=parts.rag.chunking.strategy)
    if not wanted.fits(made):
        raise ConfigurationError(
            f"index {made.id}, made with {made_with(made)}, is being filled",
            fix=f"larder reindex switch, or larder reindex drop {made.id} --yes",
        )
    if "building" not in found:
        audit_index(parts, "reindex", made)
    dispatch.send("larder.pump", expires=10)
    return {"begun": True, "index": made.id, "made_with": str(wanted)}


def _wanted(parts: Runtime, asked: Asked) -> WantedIndex:
    """What the command and the configuration ask for together, after its model was opened as a worker opens it."""
    if asked.chunker is not None and asked.chunker not in STRATEGIES:
        raise ConfigurationError(f"--chunker {asked.chunker!r}", fix=f"use one of {', '.join(STRATEGIES)}")
    strategy = asked.chunker or ""
    configured = parts.wanted_index
    if (asked.provider, asked.model, asked.dimensions) == (None, None, None):
        _ = parts.embedder
        return replace(configured, strategy=strategy)
    provider = asked.provider or configured.provider
    facts = KNOWN.get(provider)
    if facts is None:
        raise ConfigurationError(f"--provider {provider!r}", fix=f"use one of {', '.join(KNOWN)}")
    model = asked.model or (parts.rag.embedding.model if provider == configured.provider else "")
    dimensions = facts.dimensions_of(model, asked.dimensions)
    if dimensions is None:
        raise ConfigurationError(
            f"the length of the vectors of {model} is not known", fix="give --dimensions"
        )
    key = vector_key(EmbeddingOptions(provider=provider, model=model, dimensions=dimensions))
    wanted = WantedIndex(provider=provider, model=key, dimensions=dimensions, strategy=strategy)
    asked_for = SearchIndex(id=0, provider=provider, model=key, dimensions=dimensions, status="building")
    try:
        _ = parts.embedder_of(asked_for)
    except EmbedderRefused:
        # Its own words are about an index that exists; this one does not yet.
        raise ConfigurationError(
            f"the configuration does not say how to reach {key}",
            fix="describe it under embedding: provider, model, and its apiKey, baseUrl or modelPath; the model of "
            "the active index then goes under embedding.previous, unless it is minilm or hashing",
        ) from None
    return wanted


def wait(parts: Runtime, show: Callable[[Json], None]) -> Json:
    """Until the index that is being filled lacks nothing but what was given up on; returns its figures."""
    rung = 0.0
    while True:
        building: Json | None = next((i for i in status(parts)["indexes"] if i["status"] == "building"), None)
        if building is None:
            raise LarderError("no index is being filled any more", fix="see `larder reindex status`")
        show(building)
        if building["missing"] <= building["dead"]:
            return building
        if time.monotonic() - rung > 1:
            dispatch.send("larder.pump", expires=5)
            rung = time.monotonic()
        time.sleep(POLL_SECONDS)
