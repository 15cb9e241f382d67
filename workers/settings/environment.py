"""Which environment variables and secret files override the configuration file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from pipeline.embedding.known_models import KNOWN
from workers.settings.yamlfile import Location, Lookup, SettingsProblem, Tree, Variable, VariableFault

MOST_SECRET_BYTES = 64_000

CONFIG = "LARDER_CONFIG"
"""Names the configuration file."""


class Override(NamedTuple):
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


OVERRIDES = (
    Override("LARDER_DATABASE_URL", "storage.database.url", "PostgreSQL, application role.", secret=True),
    Override(
        "LARDER_CONTROL_DATABASE_URL",
        "storage.database.controlUrl",
        "PostgreSQL, role of the pump.",
        secret=True,
    ),
    Override(
        "LARDER_ADMIN_DATABASE_URL",
        "storage.database.adminUrl",
        "PostgreSQL, owner of the tables.",
        secret=True,
    ),
    Override("LARDER_BROKER_URL", "storage.broker.url", "Valkey or Redis.", secret=True),
    Override("LARDER_EMBEDDING_API_KEY", "embedding.apiKey", "Key of the embedding provider.", secret=True),
    Override("LARDER_TENANT", "tenant", "Tenant, id or name."),
    Override("LARDER_PROJECT", "project", "Project, id or name; that of requests of Step 4, too."),
    Override("LARDER_DATA", "storage.data", "Folder of the embedded servers.", folder=True),
    Override("RAG_ENABLED", "enabled", "Master switch."),
    Override("RAG_DEFAULT_TOP_K", "retrieval.topK", "Results of a search."),
    Override("RAG_MAX_TOP_K", "retrieval.maxTopK", "Most results of a search."),
    Override("LOG_LEVEL", "monitoring.logging.level", "Least important log lines to show."),
    Override("EMBEDDING_MODEL", "embedding.model", "Name of the embedding model."),
    *(
        Override(
            facts.variable,
            key,
            f"Key of the provider {name}, unless the file gives one or names another address.",
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
    found = f"a file in {name}_FILE that cannot be used ({reason})"
    allowed, fix = "a readable file with nothing but the value", f"mount the file or set {name}"
    raise VariableFault(SettingsProblem(found=found, allowed=allowed, fix=fix))


def override(tree: Tree, environ: Mapping[str, str]) -> None:
    """Put the variables that are set into the tree, over what the file says; an empty one is not set."""
    read = lookup(environ)
    for one in OVERRIDES:
        *above, key = one.key.split(".")
        if one.provider and not _wanted(tree.data, above, one.provider):
            continue
        try:
            text = read(one.name)
        except VariableFault as error:
            tree.complain(tuple(one.key.split(".")), *error.faults, at=Location(one.name))
            continue
        if text:
            _put(tree, above, key, str(Path(text).absolute()) if one.folder else text, one)


def _wanted(section: Any, above: list[str], provider: str) -> bool:
    """Whether the section asks for a key of this provider: one for a public address is sent to no other."""
    for part in above:
        section = section.get(part) if isinstance(section, Mapping) else None
    if not isinstance(section, Mapping) or str(section.get("provider", "")).lower() != provider:
        return False
    return not any(section.get(_as_written(section, key)) for key in ("apiKey", "baseUrl"))


def _put(tree: Tree, above: list[str], key: str, text: str, one: Override) -> None:
    section, path = tree.data, []
    for part in above:
        path.append(_as_written(section, part))
        if section.get(path[-1]) is None:
            section[path[-1]] = {}
        section = section[path[-1]]
        if not isinstance(section, dict):
            return  # The file has something else here, which is a problem of its own.
    path.append(_as_written(section, key))
    section[path[-1]] = text
    tree.places[tuple(path)] = Location(one.name)
    tree.variables[tuple(path)] = Variable(one.name, one.secret, whole=True)


def _as_written(section: Mapping[str, Any], key: str) -> str:
    """The spelling a mapping already uses for a key: camelCase or snake_case."""
    return next((k for k in section if to_camel(k) == key), key)
