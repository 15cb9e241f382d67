"""The ledger: tenants, projects, sources, runs, documents, work items and dead letters, as they are in the database.

A message only says "look at document 7, version 3"; every function here may be called twice, late, or
at the same time as another call, and leaves the same rows. The caller owns the transaction.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from pipeline.errors import ConfigurationError, LarderError

NAMESPACE = UUID("6c1f6f0e-3d1b-5a3e-9d53-2b0a6f1a4f10")


class Stage(StrEnum):
    """The last step that the newest version of a document has passed."""

    FETCHED = "fetched"
    CHUNKED = "chunked"
    EMBEDDED = "embedded"
    DONE = "done"


class Lane(IntEnum):
    """Priority class of work items, and the priority of their messages: smaller numbers are sent first."""

    CHANGED = 0
    """Edits: documents that were indexed before and changed since, up to `due_work.SHORT_OF` of a source."""
    FEW = 3
    """Documents of a source with at most `due_work.SHORT_OF` to do, such as a small new one."""
    BULK = 6
    FILL = 9
    """Documents for a search index beside the one that is read."""


ACTIVE: Final = 0
"""Stands, as the number of an index in work items, for the one that is read, whichever that is."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Waiting times in seconds, and limits of counts, for work items."""

    resend: float = 240.0
    resend_fills: float = 240.0
    in_flight: int = 2000
    at_once: int = 500
    """Documents that a tick of the pump sends at most, so that none takes long."""
    batch: int = 32
    crashes: int = 3


@dataclass(frozen=True)
class Item:
    """A document and the version that a message is about."""

    document_id: UUID
    version: int

    def to_json(self) -> list[str | int]:
        """`[id, version]`."""
        return [str(self.document_id), self.version]


def source_id(tenant_id: UUID, name: str) -> UUID:
    """The id of a configured source: the same on every machine, so that doors need no look-up."""
    return uuid5(NAMESPACE, f"source:{tenant_id}:{name}")


def document_id(source: UUID, external_id: str) -> UUID:
    """The id of a document: the same from every process that admits it."""
    return uuid5(source, external_id)


def storable(value: Any, nul: str = "") -> Any:
    """`value` without NUL characters, lone surrogates and numbers that JSON lacks, at any depth of JSON."""
    if isinstance(value, str):
        return value.replace("\x00", nul).encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {storable(str(k), nul): storable(v, nul) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [storable(v, nul) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_NAMESPACE = UUID("5f0c2a76-3d0e-5b55-9a57-6c6172646572")
"""Must never change: a new value would give every named tenant a new id, without documents."""

SHARED = "default"
"""The project whose documents every request of the tenant finds; `shared` is another name for it."""
All = Literal["*"]
ALL: Final[All] = "*"
"""Stands for all there are of the tenant: projects, readers, security levels. An empty list of them is none."""

_CANONICAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def tenant_id(text: str) -> UUID:
    """The id of a tenant given as an id in the usual form with hyphens, or as a name.

    A name gives the same id on every machine; upper and lower case are different names.

    Raises:
        ConfigurationError: the text is empty.
    """
    return _id(text, prefix="tenant:")


def project_id(tenant: UUID, text: str) -> UUID:
    """The id of a project given as an id or as a name; the same name in two tenants is two projects.

    Raises:
        ConfigurationError: the text is empty.
    """
    return _id(SHARED if text.strip() == "shared" else text, prefix=f"project:{tenant}:")


def visible_projects(tenant: UUID, project: UUID, more: Iterable[str] = ()) -> tuple[UUID, ...] | All:
    """The projects that a request of `project` searches: that one, the shared one, and `more`.

    Raises:
        ConfigurationError: a name is empty.
    """
    names = set(more)
    if ALL in names:
        return ALL
    return tuple(sorted({project, *(project_id(tenant, name) for name in (SHARED, *names))}))


def _id(text: str, *, prefix: str) -> UUID:
    name = text.strip().encode(errors="replace").decode()
    if not name:
        kind = prefix.partition(":")[0]
        raise ConfigurationError(f"the {kind} is empty", fix=f"give the {kind}'s id or its name")
    # Only the form with hyphens: a project may well be called by 32 hexadecimal digits.
    return UUID(name) if _CANONICAL.fullmatch(name) else uuid5(_NAMESPACE, prefix + name)


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Exclusive right to documents, under one token."""

    tenant_id: UUID
    token: UUID

    def parameters(self, ids: Sequence[UUID], **more: Any) -> dict[str, Any]:
        """The parameters of a statement about these documents."""
        return {"token": self.token, "ids": list(ids), **more}


@contextmanager
def renewed(renew: Callable[[], object], *, lease: float, since: float | None = None) -> Iterator[None]:
    """Call `renew` from a thread as long as the block runs, each third of the lease that was taken at `since`.

    A call to another service may outlast the lease, and nobody else takes the work meanwhile; and a lease may be short,
    so that a dead worker is soon replaced. A `renew` that returns False is not called again: the lease is lost.
    """
    over = threading.Event()

    def keep() -> None:
        begun = (
            time.monotonic() if since is None else since
        )  # a slow database has used up a part of it already
        while not over.wait(max(0.0, begun + lease / 3 - time.monotonic())):
            begun = time.monotonic()
            with suppress(LarderError):
                if renew() is False:
                    return

    keeper = threading.Thread(target=keep, name="larder-lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join()
