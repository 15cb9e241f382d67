"""What the steps of a document have in common: what they leave to send, and what an error means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

from pipeline.errors import LarderError
from pipeline.ledger import Item, Stage


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What an error means for the documents that met it."""

    delay: float
    """Seconds until the next try."""
    dead: bool
    """True: no further try."""


class Decide(Protocol):
    """`workers.queue.retry.decide`: a pure question, error and number of tries in, decision out."""

    def __call__(self, error: LarderError, attempts: int) -> Decision:
        """The decision for the `attempts`-th try that failed, or the `attempts`-th wait."""
        ...


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a step leaves to send: documents ready for the next stage, and some to look at once more."""

    ready: list[Item] = field(default_factory=list)
    stage: Stage = Stage.DONE
    again: list[Item] = field(default_factory=list)
    again_stage: Stage = Stage.DONE
    sizes: dict[UUID, int] = field(default_factory=dict)
    """Chunks per document, for cutting messages of even weight."""
