"""Making the vectors of texts that have none: each is embedded and paid for once, and kept before the next is made."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from pipeline.database.engine import Database
from pipeline.embedding import Embedder
from pipeline.embedding.budget import Budget
from pipeline.embedding.calls import TextsRejected, embed_checked
from pipeline.errors import LarderError, StoreHindered, StoreRejected, StoreUnavailable
from pipeline.ingest import work_in_progress
from pipeline.ledger import Item, embedding_use
from pipeline.ledger.leases import Lease, renewed

GIVE_BACK_SECONDS = 2.0
"""How long to leave a database alone that could not even take documents back."""
SHARED_SECONDS = 1.0
"""How long to leave a document alone of which somebody else is embedding a text: about one call."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Under which terms the embedder is asked."""

    provider: str = ""
    """Whom the use is counted for."""
    budget: Callable[[UUID], Budget] | None = None
    """The allowance of a tenant; None for a model that costs nothing: then nobody claims a text either, since making
    a vector twice is cheaper than asking."""
    fingerprint: str = ""
    """Names the configuration, for holds."""
    probe_seconds: float = 300.0
    """How often a configuration that was refused is tried again."""
    counted: Callable[[embedding_use.Meter, embedding_use.Used], None] = lambda _meter, _used: None
    """Told what each step used, after the ledger was."""


def missing(
    connection: Connection,
    claim: Lease,
    model: str,
    hashes: Collection[bytes],
    *,
    lease: float | None,
) -> tuple[set[bytes], set[bytes]]:
    """(those without a vector, those of them that are ours to embed); with a `lease` in seconds, texts are claimed."""
    wanted = work_in_progress.missing(connection, claim.tenant_id, model, list(hashes))
    if not wanted or lease is None:
        return wanted, wanted
    ours = embedding_use.claim_texts(connection, claim, model, wanted, lease=lease)
    # Looked at again: whoever had the others may have finished between the two statements.
    wanted = work_in_progress.missing(connection, claim.tenant_id, model, list(wanted))
    return wanted, ours & wanted


def embed_missing(
    database: Database,
    embedder: Embedder,
    tenant: UUID,
    model: str,
    texts: Mapping[bytes, str],
    *,
    tokens: int | None,
    seconds: float,
    renew: Callable[[Connection], None],
    lease: float,
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Call after call of at most `tokens`, until all texts are embedded or `seconds` are over.

    Of each call the hashes whose vectors are in the cache now, and those that were refused. `renew` keeps the `lease`,
    also while a call is under way that takes longer.

    Raises:
        LarderError: what the embedder raises; what was embedded before is kept.
    """
    started = time.monotonic()

    def keep() -> None:
        with database.tenant(tenant, durable=False) as connection:
            renew(connection)

    with renewed(keep, lease=lease):
        for part in _calls(embedder, texts, tokens):
            refused: tuple[int, ...] = ()
            try:
                vectors = embed_checked(embedder, [texts[h] for h in part])
            except TextsRejected as error:
                vectors, refused = error.vectors, error.indexes
            good = [n for n in range(len(part)) if n not in refused]
            kept = [part[n] for n in good]
            if kept:
                # Durable: these vectors may have cost money.
                with database.tenant(tenant) as connection:
                    work_in_progress.cache_vectors(connection, tenant, model, kept, vectors[good])
            yield kept, [part[n] for n in refused]
            if time.monotonic() - started > seconds:
                return


def _calls(embedder: Embedder, texts: Mapping[bytes, str], most: int | None) -> Iterator[list[bytes]]:
    """Hashes of the texts that go into one call."""
    part: list[bytes] = []
    tokens = 0
    for name, text in texts.items():
        more = embedder.count_tokens(text) if most else 0
        if part and (len(part) == embedder.limits.texts or tokens + more > (most or 0)):
            yield part
            part, tokens = [], 0
        part.append(name)
        tokens += more
    if part:
        yield part


def giving_back(lease: float) -> Retrying:
    """Tries to give claimed documents back: a claim that is left to end by itself counts as a crash."""
    return Retrying(
        retry=retry_if_exception_type(StoreUnavailable),
        wait=wait_fixed(GIVE_BACK_SECONDS),
        stop=stop_after_delay(lease / 2),
        reraise=True,
    )


def write_each(
    ids: Sequence[UUID],
    write: Callable[[Sequence[UUID]], list[Item]],
    fault: Callable[[Sequence[UUID], LarderError], None],
) -> list[Item]:
    """All in one transaction; if the database can or may not, each for itself, so that the others get in."""
    try:
        return write(ids) if ids else []
    except LarderError as error:
        if isinstance(error, (StoreRejected, StoreHindered)) and len(ids) > 1:
            return [item for i in ids for item in write_each([i], write, fault)]
        fault(ids, error)
        return []
