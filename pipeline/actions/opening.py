"""Opens the collections that an engine's settings name."""

from __future__ import annotations

import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.actions.collections import CollectionStore
from pipeline.database.vector_stores import IMPLEMENTATIONS, StoreOptions
from pipeline.errors import ConfigurationError
from pipeline.ledger import tenant_id

if TYPE_CHECKING:
    from pipeline.actions.engine import EngineSettings
    from pipeline.actions.indexed_collections import KeptCollections


def opened_collections(settings: EngineSettings, key: str, closing: ExitStack) -> CollectionStore:
    """The collections of a tenant; `key` is that of the service, and `closing` gets what is to be closed.

    Raises:
        ConfigurationError: a setting, a secret or a package is missing or wrong.
        StoreUnavailable: the store does not answer.
    """
    if settings.vector_store == "pgvector":
        return _kept(settings, closing)
    options = _options(settings, key)
    try:
        from pipeline.actions.indexed_collections import IndexedCollections
        from pipeline.search.stores import open_store
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"{error.name} is not installed, which {settings.vector_store} needs", fix="install it"
        ) from error
    index = open_store(options)
    return IndexedCollections(_kept(settings, closing), index, tenant_id(settings.tenant))


def _kept(settings: EngineSettings, closing: ExitStack) -> KeptCollections:
    """Where texts and metadata lie: in PostgreSQL if its address is given, else in a file of the store's folder."""
    if not settings.database_url and settings.vector_store != "pgvector":
        from pipeline.actions.file_collections import FileCollections

        return FileCollections(_folder(settings) / f"texts-{tenant_id(settings.tenant)}.db")
    if not settings.database_url.startswith("postgresql"):
        raise ConfigurationError(
            f"vector_store {settings.vector_store} has no address of PostgreSQL",
            fix="put LARDER_DATABASE_URL, postgresql://user:password@host/larder, into the secrets",
        )
    from pipeline.actions.pgvector_collections import open_collections
    from pipeline.database.engine import Database

    with ExitStack() as opening:
        database = Database(settings.database_url)
        opening.callback(database.close)
        collections = open_collections(database, settings.tenant)
        closing.push(opening.pop_all())
    return collections


def _folder(settings: EngineSettings) -> Path:
    return Path(settings.chroma_path if settings.vector_store == "chroma" else settings.vector_path)


def _options(settings: EngineSettings, key: str) -> StoreOptions:
    kind = settings.vector_store
    if kind == "pinecone" and not key:
        raise ConfigurationError(
            "the API key of Pinecone is missing", fix="put PINECONE_API_KEY into the secrets of the engine"
        )
    if kind == "weaviate" and not settings.vector_url:
        raise ConfigurationError(
            "vector_store weaviate has no address", fix="write settings.rag.vector_url, http://host:8080"
        )
    implementation = IMPLEMENTATIONS[kind]
    if not re.fullmatch(implementation.name_pattern, settings.vector_index):
        raise ConfigurationError(
            f"settings.rag.vector_index is {settings.vector_index!r}",
            fix=f"give a name that {kind} takes: {implementation.name_words}",
        )
    return StoreOptions(
        kind,
        path=_folder(settings) / kind,
        url=settings.vector_url,
        grpc_url=settings.vector_grpc_url,
        api_key=key,
        collection=settings.vector_index,
        environment=settings.pinecone_environment,
        timeout=30.0,
    )
