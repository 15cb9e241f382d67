"""From the file and the environment to settings, with all problems found at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

from pydantic import SecretStr, ValidationError

from pipeline.database.tenancy import project_id, tenant_id
from workers.settings.diagnosis import explain
from workers.settings.environment import CONFIG, lookup, override
from workers.settings.models import RagSettings
from workers.settings.problems import KeyPath, SettingsError
from workers.settings.services import OPTION_KEYS
from workers.settings.sources import FileSource
from workers.settings.yamlfile import Tree, read, typed

ROOT = "rag"
FILE = "larder.yaml"

UNUSED: Mapping[str, str] = MappingProxyType(
    {
        "storage.local": "Larder stores in PostgreSQL with pgvector",
        "storage.cloud": "Larder stores in PostgreSQL with pgvector",
        "embedding.cache.path": "the cache of vectors is a table of the database",
        "sources.*.loader": "the shape of backlog items is known",
        "sources.*.chunking.preserveFields": "the strategy pbi_aware keeps the parts of an item together",
        "sources.*.chunking.chunkByField": "the strategy pbi_aware keeps the parts of an item together",
    }
)
"""Keys of other tools that are accepted, left unread and reported in `Settings.notes`; `*` is any item."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything configured, read once at start."""

    rag: RagSettings
    path: Path | None
    """The file, absolute; None if there is none."""
    folder: Path
    """What relative paths of the configuration are relative to, absolute."""
    notes: tuple[str, ...] = ()
    """Warnings: keys that are not used."""

    @property
    def database_url(self) -> str | None:
        """PostgreSQL as the application role; None for the embedded server. Secret."""
        return _revealed(self.rag.storage.database.url)

    @property
    def control_database_url(self) -> str | None:
        """PostgreSQL as the pump's role; None if not configured. Secret."""
        return _revealed(self.rag.storage.database.control_url)

    @property
    def admin_database_url(self) -> str | None:
        """PostgreSQL as the owner of the tables; None if not configured. Secret."""
        return _revealed(self.rag.storage.database.admin_url)

    @property
    def broker_url(self) -> str | None:
        """Valkey or Redis; None for the embedded server. Secret."""
        return _revealed(self.rag.storage.broker.url)

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

    def root_of(self, source: FileSource) -> Path:
        """The folder a source's patterns start at, absolute."""
        return self.resolve(source.root)


def load(path: Path | None, environ: Mapping[str, str]) -> Settings:
    """The settings of `path`, else of the file LARDER_CONFIG names, else of ./larder.yaml, else the defaults.

    Raises:
        SettingsError: with everything that is wrong.
    """
    file = _file(path, environ)
    tree = read(file, root=ROOT, lookup=lookup(environ), unused=_unused) if file else Tree(file="defaults")
    override(tree, environ)
    _forgive_disabled(tree)
    _gather_options(tree)
    rag = _validated(tree)
    if rag is None or tree.problems:
        raise SettingsError(tree.problems)
    absolute = file.resolve() if file else None
    return Settings(
        rag=rag,
        path=absolute,
        folder=absolute.parent if absolute else Path.cwd(),
        notes=tuple(tree.notes),
    )


def _file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    named = path or (Path(environ[CONFIG]) if environ.get(CONFIG) else None)
    if named is not None:
        return named
    return Path(FILE) if Path(FILE).exists() else None


def _validated(tree: Tree) -> RagSettings | None:
    try:
        return RagSettings.model_validate(tree.data)
    except ValidationError as error:
        explain(error, tree, RagSettings)
        return None


def _forgive_disabled(tree: Tree) -> None:
    """A source that is switched off needs no values for its variables: such keys count as left out."""
    sources = tree.data.get("sources")
    for path, problems in tree.unset.items():
        item = _at(sources, path[1:2]) if path[:1] == ("sources",) else None
        if isinstance(item, dict) and typed(item.get("enabled")) is False:
            tree.problems = [problem for problem in tree.problems if problem not in problems]
            holder = _at(sources, path[1:-1])
            if isinstance(holder, dict):
                holder.pop(path[-1], None)


def _gather_options(tree: Tree) -> None:
    """Options of a Confluence source that stand one level higher go where they belong, with their lines."""
    sources = tree.data.get("sources")
    for index, item in enumerate(sources if isinstance(sources, list) else []):
        if isinstance(item, dict) and item.get("type") == "confluence":
            for key in _gathered(item):
                path = ("sources", index)
                tree.places[(*path, "syncOptions", key)] = tree.place((*path, key))


def _gathered(item: dict[str, Any]) -> list[str]:
    """Move a source's options into its syncOptions; returns which stood one level higher."""
    inner = item.get("syncOptions", item.get("sync_options"))
    if inner is not None and not isinstance(inner, dict):
        return []
    higher = [key for key in item if key in OPTION_KEYS and key not in (inner or {})]
    higher += ["timezone"] if typed(item.get("timezone")) == "auto" else []
    if higher:
        item.pop("sync_options", None)
        item["syncOptions"] = {**(inner or {}), **{key: item.pop(key) for key in higher}}
    return higher


def _at(data: Any, path: KeyPath) -> Any:
    """The value at a path; None if there is none."""
    for part in path:
        if isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        elif isinstance(data, dict):
            data = data.get(str(part))
        else:
            return None
    return data


def _unused(path: KeyPath) -> str:
    return UNUSED.get(".".join("*" if isinstance(part, int) else part for part in path), "")


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None
