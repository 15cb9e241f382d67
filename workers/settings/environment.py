"""Which environment variables and secret files override the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.alias_generators import to_camel

from pipeline.embedding.known_models import KNOWN
from workers.settings.problems import Fault, KeyPath, Place
from workers.settings.yamlfile import Lookup, Substituted, Tree, VariableFault

MOST_SECRET_BYTES = 64_000

CONFIG = "LARDER_CONFIG"
"""Names the configuration file."""


@dataclass(frozen=True, kw_only=True)
class Variable:
    """An environment variable and the key it overrides."""

    name: str
    key: str
    """In YAML spelling, without the root."""
    meaning: str
    secret: bool = False
    folder: bool = False
    """A path relative to the current folder, as everywhere on a command line."""
    provider: str = ""
    """Read only where the section of `key` names this provider at its public address and gives no key itself."""


VARIABLES = (
    Variable(
        name="LARDER_DATABASE_URL",
        key="storage.database.url",
        meaning="PostgreSQL, application role.",
        secret=True,
    ),
    Variable(
        name="LARDER_CONTROL_DATABASE_URL",
        key="storage.database.controlUrl",
        meaning="PostgreSQL, role of the pump.",
        secret=True,
    ),
    Variable(
        name="LARDER_ADMIN_DATABASE_URL",
        key="storage.database.adminUrl",
        meaning="PostgreSQL, owner of the tables.",
        secret=True,
    ),
    Variable(name="LARDER_BROKER_URL", key="storage.broker.url", meaning="Valkey or Redis.", secret=True),
    Variable(
        name="LARDER_EMBEDDING_API_KEY",
        key="embedding.apiKey",
        meaning="Key of the embedding provider.",
        secret=True,
    ),
    Variable(name="LARDER_TENANT", key="tenant", meaning="Tenant, id or name."),
    Variable(
        name="LARDER_PROJECT", key="project", meaning="Project, id or name; that of requests of Step 4, too."
    ),
    Variable(name="LARDER_DATA", key="storage.data", meaning="Folder of the embedded servers.", folder=True),
    Variable(name="RAG_ENABLED", key="enabled", meaning="Master switch."),
    Variable(name="RAG_DEFAULT_TOP_K", key="retrieval.topK", meaning="Results of a search."),
    Variable(name="RAG_MAX_TOP_K", key="retrieval.maxTopK", meaning="Most results of a search."),
    Variable(name="LOG_LEVEL", key="monitoring.logging.level", meaning="Least important log lines to show."),
    Variable(name="EMBEDDING_MODEL", key="embedding.model", meaning="Name of the embedding model."),
    *(
        Variable(
            name=facts.variable,
            key=key,
            meaning=f"Key of the provider {name}, unless the file gives one or names another address.",
            secret=True,
            provider=name,
        )
        for key in ("embedding.apiKey", "embedding.previous.apiKey")
        for name, facts in KNOWN.items()
        if facts.variable
    ),
)


def lookup(environ: Mapping[str, str]) -> Lookup:
    """Reads a variable, or the file that `NAME_FILE` names, as containers mount secrets."""

    def value(name: str) -> str | None:
        if name in environ:
            return environ[name]
        path = environ.get(f"{name}_FILE")
        return _secret_file(name, path) if path else None

    return value


def _secret_file(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MOST_SECRET_BYTES + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
    else:
        if len(content) <= MOST_SECRET_BYTES:
            return text.rstrip("\r\n")
        reason = f"larger than {MOST_SECRET_BYTES:,} bytes"
    fault = Fault(
        found=f"a file in {name}_FILE that cannot be used ({reason})",
        allowed="a readable file with nothing but the value",
        fix=f"mount the file or set {name}",
    )
    raise VariableFault([fault])


def override(tree: Tree, environ: Mapping[str, str]) -> None:
    """Put the variables that are set into the tree, over what the file says; an empty one is not set."""
    read = lookup(environ)
    for variable in VARIABLES:
        path: KeyPath = tuple(variable.key.split("."))
        place = Place(file=variable.name)
        if variable.provider and not _wanted(tree, path, variable.provider):
            continue
        try:
            text = read(variable.name)
        except VariableFault as error:
            for fault in error.faults:
                tree.complain(path, fault, place)
            continue
        if text:
            text = str(Path(text).absolute()) if variable.folder else text
            value = Substituted(text, origin=variable.name, whole=True, secret=variable.secret)
            _put(tree, path, value, place)


def _wanted(tree: Tree, path: KeyPath, provider: str) -> bool:
    """Whether the section asks for a key of this provider: one for a public address is sent to no other."""
    section: Any = tree.data
    for part in path[:-1]:
        section = section.get(part) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or str(section.get("provider", "")).lower() != provider:
        return False
    return not any(section.get(_as_written(section, key)) for key in ("apiKey", "baseUrl"))


def _put(tree: Tree, path: KeyPath, value: Any, place: Place) -> None:
    section = tree.data
    for depth, part in enumerate(path[:-1]):
        key = _as_written(section, str(part))
        if section.get(key) is None:
            section[key] = {}
        if not isinstance(section[key], dict):
            return  # The file has something else here, which is a problem of its own.
        section = section[key]
        path = (*path[:depth], key, *path[depth + 1 :])
    key = _as_written(section, str(path[-1]))
    section[key] = value
    tree.places[(*path[:-1], key)] = place


def _as_written(section: Mapping[str, Any], key: str) -> str:
    """The spelling a mapping already uses for a key: camelCase or snake_case."""
    return next((k for k in section if to_camel(k) == key), key)
