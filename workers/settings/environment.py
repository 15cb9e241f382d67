"""Overrides of the configuration file by environment variables and secret files."""

from __future__ import annotations

import base64
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic.alias_generators import to_camel

from pipeline.embedding.known_models import PROVIDER_FACTS
from workers.settings.embedding import EmbeddingModel, StoryEmbedding
from workers.settings.yamlfile import (
    ROOT,
    KeyPath,
    Location,
    Lookup,
    SettingsError,
    SettingsProblem,
    Tree,
    Variable,
)

CONFIG = "LARDER_CONFIG"
"""Variable that names the configuration file."""
WITHHELD = "LARDER_WITHHELD"
"""Variable that names, with commas, the variables of secrets that a process does not use and was not given."""


def is_supervised() -> bool:
    """Whether `larder up` started this process, or a fork of one."""
    return WITHHELD in os.environ


class Override(NamedTuple):
    """An environment variable and the key it overrides."""

    name: str
    key: str
    """Key in YAML spelling, without the root."""
    provider: str = ""
    """Provider for which alone it is read: the section names it at its public address and gives no key itself."""


OVERRIDES = (
    Override("LARDER_DATABASE_URL", "storage.database.url"),
    Override("LARDER_CONTROL_DATABASE_URL", "storage.database.controlUrl"),
    Override("LARDER_ADMIN_DATABASE_URL", "storage.database.adminUrl"),
    Override("LARDER_BROKER_URL", "storage.broker.url"),
    Override("LARDER_VALKEY_URL", "storage.broker.valkeyUrl"),
    Override("LARDER_EMBEDDING_API_KEY", "embedding.apiKey"),
    Override("LARDER_ENCRYPTION_KEYS", "security.encryptionKeys"),
    Override("LARDER_JWT_SECRET", "auth.secret"),
    Override("LARDER_JWKS_URL", "auth.jwksUrl"),
    Override("LARDER_JWKS_FILE", "auth.jwksFile"),
    Override("LARDER_TENANT", "tenant"),
    Override("LARDER_PROJECT", "project"),
    Override("LARDER_DATA", "storage.data"),
    Override("RAG_ENABLED", "enabled"),
    Override("RAG_PROVIDER", "provider"),
    Override("VECTOR_DB_PATH", "storage.local.path"),
    Override("VECTOR_COLLECTION", "storage.local.collection"),
    Override("PINECONE_API_KEY", "storage.cloud.apiKey"),
    Override("PINECONE_ENV", "storage.cloud.environment"),
    Override("PINECONE_INDEX", "storage.cloud.index"),
    Override("RAG_DEFAULT_TOP_K", "retrieval.topK"),
    Override("RAG_MAX_TOP_K", "retrieval.maxTopK"),
    Override("LOG_LEVEL", "monitoring.logging.level"),
    Override("EMBEDDING_MODEL", "embedding.model"),
    Override("RAG_EMBEDDING_MODEL", "stories.embedding.model"),
    Override("RAG_EMBEDDING_DIMENSIONS", "stories.embedding.dimensions"),
    Override("RAG_RETRIEVAL_K", "stories.retrievalK"),
    Override("RAG_SIMILARITY_THRESHOLD", "stories.similarityThreshold"),
    Override("RAG_MAX_EXAMPLES", "stories.maxExamples"),
    Override("RAG_MIN_STORIES", "stories.minStories"),
    Override("RAG_MIN_STORIES_FOR_RETRIEVAL", "stories.minStories"),
    *(
        Override(facts.variable, key, provider)
        for key in ("embedding.apiKey", "embedding.previous.apiKey", "stories.embedding.apiKey")
        for provider, facts in PROVIDER_FACTS.items()
        if facts.variable
    ),
)


def lookup(environ: Mapping[str, str]) -> Lookup:
    """Reader of a variable, or of the file that `NAME_FILE` names, as containers mount secrets.

    In the place of one that was withheld stands a random key, which each check of a secret takes and which opens
    nothing: the process loads the same file as those that have the secret.
    """
    withheld = environ.get(WITHHELD, "").split(",")

    def value(name: str) -> str | None:
        if name in withheld:
            return base64.urlsafe_b64encode(os.urandom(32)).decode()
        text, path = environ.get(name), environ.get(f"{name}_FILE")
        return _secret_file(name, path) if path and not text else text

    return value


def unused_secrets(process: str, variables: Mapping[str, Collection[str]]) -> set[str]:
    """Names in `Settings.variables` of secrets whose sections a process of `larder up` does not use.

    Addresses of servers are in none of them: they are told to each process as it may know them.
    """

    def uses(section: str) -> bool:
        if process == "flower":
            return section == "flower"
        without_tokens = process.startswith("worker-") and section != "auth"
        return section not in {"storage", "flower"} and (process == "api" or without_tokens)

    return {name for name, sections in variables.items() if sections and not any(map(uses, sections))}


def absolute_files(environ: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """The `NAME_FILE` of these names that are set, from the root: a process in another folder reads the same files."""
    paths = {key: environ.get(key) for key in (f"{name}_FILE" for name in names)}
    return {key: str(Path(path).absolute()) for key, path in paths.items() if path}


def _secret_file(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
    actual = f"{name}_FILE names {path!r}, which cannot be read ({reason})"
    allowed, fix = "a readable file with nothing but the value", f"mount the file or set {name}"
    raise SettingsError([SettingsProblem(actual=actual, allowed=allowed, fix=fix)])


def _section(tree: Tree, path: KeyPath, name: str) -> Any:
    """Section of the tree at `path`; sections that it lacks are made, as if the variable had written them."""
    section = tree.data
    for end, part in enumerate(path, start=1):
        if isinstance(section, dict) and section.get(part) is None:
            section[part] = {}
            tree.places.setdefault(path[:end], Location(name))
        section = section[part] if isinstance(section, dict) else None
    return section


def override(tree: Tree, environ: Mapping[str, str]) -> None:
    """Put the variables that are set into the tree, over what the file says; an empty one is not set."""
    read = lookup(environ)
    for name, key, provider in OVERRIDES:
        path = (ROOT, *key.split("."))
        if path[:-1] == _STORIES and provider:
            _share_address(tree)
        if provider and not _asked_for(tree, path[:-1], provider):
            continue
        if path[1] == "storage" and path[2] in _STORES and not _has_store(tree, path[2]):
            continue
        try:
            text = read(name)
        except SettingsError as error:
            tree.complain(path, *error.problems, at=Location(name))
            continue
        section = _section(tree, path[:-1], name) if text else None
        if text and isinstance(section, dict):  # anything else is a problem of its own
            written = next((k for k in section if to_camel(k) == path[-1]), path[-1])
            # A path is relative to the current folder, as everywhere on a command line.
            section[written] = str(Path(text).absolute()) if key in _PATHS else text
            tree.places[*path[:-1], written] = Location(name)
            tree.variables[*path[:-1], written] = Variable(name, secret=False, whole=True)


_PATHS = ("storage.data", "storage.local.path")
_STORES: Mapping[str, str] = {"local": "chroma faiss qdrant", "cloud": "pinecone"}
"""Section of a vector store -> types for whose variables alone it is made; Pinecone's go to no other service."""


def _has_store(tree: Tree, name: str) -> bool:
    """Whether the file has this vector store, or names one of its types as the provider."""
    section = tree.at((ROOT, "storage", name))
    kind = section.get("type") if isinstance(section, dict) else None
    provider = str(tree.at((ROOT, "provider"))).lower()
    types = _STORES[name].split()
    return str(kind).lower() in types if kind else isinstance(section, dict) or provider in types


def _asked_for(tree: Tree, path: KeyPath, provider: str) -> bool:
    """Whether the section asks for a key of this provider: one for a public address is sent to no other."""
    section, kind = tree.at(path), StoryEmbedding if path == _STORIES else EmbeddingModel
    return isinstance(section, dict) and kind.provider_of(section) == provider and not any(_address(section))


_STORIES: KeyPath = (ROOT, "stories", "embedding")


def _share_address(tree: Tree) -> None:
    """Give stories the address and key of the general section, if theirs has the same provider and names no other."""
    path = (ROOT, "embedding")
    stories, general = tree.at(_STORIES), tree.at(path)
    if not (isinstance(stories, dict) and isinstance(general, dict)) or any(_address(stories)):
        return
    if StoryEmbedding.provider_of(stories) == EmbeddingModel.provider_of(general):
        for key in _address(general):
            stories[key] = general[key]
            tree.places[*_STORIES, key] = tree.place((*path, key))
            if written := tree.variables.get((*path, key)):
                tree.variables[*_STORIES, key] = written


def _address(section: Mapping[str, Any]) -> list[str]:
    """Keys of a section that give address or key of its provider."""
    return [key for key, value in section.items() if value and to_camel(key) in ("apiKey", "baseUrl")]
