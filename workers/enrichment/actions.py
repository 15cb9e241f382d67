"""The actions of YAML engines as the workers do them: with the configured model, on the tenant's own collections."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from pipeline.actions import Actions
from pipeline.actions.collections import CollectionStore
from pipeline.documents import Json
from pipeline.errors import ConfigurationError
from workers.enrichment import job
from workers.runtime import Runtime

if TYPE_CHECKING:
    from pipeline.embedding import Embedder


class WorkerParts:
    """One tenant's parts, for `Actions`: its collections lie in PostgreSQL."""

    def __init__(self, parts: Runtime, tenant: UUID) -> None:
        self._parts = parts
        self._tenant = tenant

    def check(self, group: str) -> None:
        """Nothing, if this installation answers at all; which groups a workflow may use is its engine's affair.

        Raises:
            ConfigurationError: it is switched off.
        """
        if not self._parts.rag.enabled:
            raise ConfigurationError(
                f"the workers do not serve {group}.*: Larder is switched off", fix="set rag.enabled to true"
            )

    def embedder(self, model: str | None, dimensions: int | None) -> Embedder:
        """The workers' model, loaded already; another one cannot be asked for from outside.

        Raises:
            ConfigurationError: another model or length was asked for.
        """
        ours = self._parts.embedder
        if (model or ours.model, dimensions or ours.dimensions) != (ours.model, ours.dimensions):
            raise ConfigurationError(
                f"the workers embed with {ours.model} of {ours.dimensions} dimensions and nothing else",
                fix="leave model and dimensions out",
            )
        return ours

    def store(self) -> CollectionStore:
        """The tenant's collections."""
        from pipeline.actions.collections.pgvector import PgCollections

        return PgCollections(self._parts.database, self._tenant)

    def shown(self, message: str) -> str:
        """`message`, which is one of ours and holds no secret."""
        return message

    def close(self) -> None:
        """The connections are the worker's and stay open."""


def run(parts: Runtime, tenant: UUID, job_id: UUID, method: str) -> None:
    """Answer the remote call of an action, if it still waits for that; never raises for the call's own sake."""

    def act(arguments: Json) -> Json:
        answer: Json = getattr(Actions(WorkerParts(parts, tenant)), method)({}, **arguments)
        return answer

    job.run(parts, tenant, job_id, act)
