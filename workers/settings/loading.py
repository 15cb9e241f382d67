"""From the file and the environment to settings, with all problems found at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from connectors import SourceContext
from connectors.sections import revealed
from pipeline.database.tenancy import project_id, tenant_id
from pipeline.languages import as_metadata
from workers.settings.diagnosis import explain
from workers.settings.environment import CONFIG, lookup, override
from workers.settings.models import Configuration
from workers.settings.sources import SourceSettings, is_off
from workers.settings.yamlfile import KeyPath, Tree, read, scalar

if TYPE_CHECKING:
    from connectors.web import RequestLimiter

ROOT = "rag"
FILE = "larder.yaml"

UNUSED: Mapping[str, str] = {
    "storage.local": "Larder stores in PostgreSQL with pgvector",
    "storage.cloud": "Larder stores in PostgreSQL with pgvector",
    "embedding.cache.path": "the cache of vectors is a table of the database",
    "sources.*.loader": "the shape of backlog items is known",
    "sources.*.metadata.extractors": "a backlog item always brings pbi_id, timestamp and quality_score",
    "sources.*.chunking.preserveFields": "the strategy pbi_aware keeps the parts of an item together",
    "sources.*.chunking.chunkByField": "the strategy pbi_aware keeps the parts of an item together",
}
"""Keys of other tools that are accepted, left unread and reported in `Settings.notes`; `*` is any item."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything configured, read once at start."""

    rag: Configuration
    path: Path | None
    """The file, absolute; None if there is none."""
    folder: Path
    """What relative paths of the configuration are relative to, absolute."""
    notes: tuple[str, ...] = ()
    """Warnings: keys that are not used."""

    @property
    def database_url(self) -> str | None:
        """PostgreSQL as the application role; None for the embedded server. Secret."""
        return revealed(self.rag.storage.database.url) or None

    @property
    def control_database_url(self) -> str | None:
        """PostgreSQL as the pump's role; None if not configured. Secret."""
        return revealed(self.rag.storage.database.control_url) or None

    @property
    def admin_database_url(self) -> str | None:
        """PostgreSQL as the owner of the tables; None if not configured. Secret."""
        return revealed(self.rag.storage.database.admin_url) or None

    @property
    def broker_url(self) -> str | None:
        """Valkey or Redis; None for the embedded server. Secret."""
        return revealed(self.rag.storage.broker.url) or None

    @property
    def tenant(self) -> str:
        """Id or name of the tenant of everything without its own; see `pipeline.database.tenancy`."""
        return self.rag.tenant

    @property
    def project(self) -> str:
        """Id or name of the project of everything without its own."""
        return self.rag.project

    @property
    def tenant_id(self) -> UUID:
        """The id of `tenant`."""
        return tenant_id(self.tenant)

    @property
    def project_id(self) -> UUID:
        """The id of `project`."""
        return project_id(self.tenant_id, self.project)

    @property
    def data(self) -> Path:
        """The folder of the embedded servers, absolute."""
        return self.resolve(self.rag.storage.data)

    def resolve(self, path: Path) -> Path:
        """A path of the configuration as an absolute one."""
        return self.folder / path.expanduser()

    def context_of(self, source: SourceSettings, limiter: Callable[[], RequestLimiter]) -> SourceContext:
        """What the connector of a source is told beside its section; `limiter` is asked for by services only."""
        return SourceContext(
            folder=self.folder,
            closed=self.data,
            decisions=self.rag.decisions,
            metadata=as_metadata(source.language or self.rag.language),
            limiter=limiter,
        )


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of `path`, else of the file LARDER_CONFIG names, else of ./larder.yaml, else the defaults.

    Raises:
        SettingsError: with everything that is wrong.
    """
    file = _file(path, environ)
    tree = read(file, root=ROOT, lookup=lookup(environ), unused=_unused) if file else Tree(file="defaults")
    override(tree, environ)
    sources = tree.data.get("sources")
    for index, source in enumerate(sources if isinstance(sources, list) else []):
        _type_free_values(tree, index, source)
        _forgive_disabled(tree, index, source)
    rag = _validated(tree)
    if rag is None or tree.problems:
        raise tree.error()
    if not rag.embedding.cache.enabled:
        key, why = "embedding.cache.enabled", "embedding hands vectors on through their cache"
        tree.notes.append(f"{tree.place(tuple(key.split('.')))}: {key}: not used: {why}")
    absolute = file.resolve() if file else None
    folder = absolute.parent if absolute else Path.cwd()
    return Settings(rag=rag, path=absolute, folder=folder, notes=tuple(tree.notes))


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = path or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    if named is not None:
        return named
    return Path(FILE) if Path(FILE).exists() else None


def _validated(tree: Tree) -> Configuration | None:
    try:
        return Configuration.model_validate(tree.data)
    except ValidationError as error:
        explain(error, tree, Configuration)
        return None


def _type_free_values(tree: Tree, index: int, source: Any) -> None:
    """Metadata of one's own has no type to ask for: what is one variable becomes what YAML would have read."""
    for path, variable in tree.variables.items():
        if path[:3] == ("sources", index, "metadata") and variable.whole:
            holder = _at(source, path[2:-1])
            if path[3] not in ("category", "sourceType", "source_type"):
                holder[path[-1]] = scalar(holder[path[-1]])


def _forgive_disabled(tree: Tree, index: int, source: Any) -> None:
    """A source that is switched off needs no values for its variables: such keys count as left out."""
    if not is_off(source):
        return
    for path in [p for p, found in tree.problems.items() if p[:2] == ("sources", index) and found[0].unset]:
        del tree.problems[path]
        holder = _at(source, path[2:-1])
        if isinstance(holder, dict):
            del holder[path[-1]]


def _at(data: Any, path: KeyPath) -> Any:
    """The value at a path that is there."""
    for part in path:
        data = data[part]
    return data


def _unused(path: KeyPath) -> str:
    return UNUSED.get(".".join("*" if isinstance(part, int) else to_camel(part) for part in path), "")
