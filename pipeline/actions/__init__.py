"""The actions of YAML engines: `embedding.create`, `vector.store`, `vector.query`; docs/actions.md is their guide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from pipeline.actions.actions import Actions
from pipeline.actions.engine import EngineParts, enabled

__all__ = ["NAMES", "Actions", "register_actions", "unregister_actions"]

NAMES: Mapping[str, tuple[str, ...]] = {
    "embedding_create": ("embedding.create", "embedding_create", "actions.embedding_create"),
    "vector_store": ("vector.store", "vector_store", "actions.vector_store"),
    "vector_query": ("vector.query", "vector_query", "actions.vector_query"),
}
"""Method of `Actions` -> the names it is registered under: the one to use, then its aliases."""


def register_actions(registry: MutableMapping[str, Callable[..., Any]], engine: object) -> Actions:
    """Put the actions into an engine's registry under all their names; returns what keeps their store.

    Of the engine, `settings["rag"]`, `secrets` and `enable_rag` are used, as attributes that may be absent. Nothing
    is read, opened or imported before the first call, so the engine may set them later. An engine with
    `enable_rag = False` gets no entries; if the flag falls later, the actions answer that they are switched off.
    For checkpoints, save `get_state()` of what comes back and give it to `restore_state` later.
    """
    made = Actions(EngineParts(engine))
    if enabled(engine):
        for method, names in NAMES.items():
            registry.update(dict.fromkeys(names, getattr(made, method)))
    return made


def unregister_actions(registry: MutableMapping[str, Callable[..., Any]]) -> None:
    """Take the actions out of a registry again; those of others under our names stay."""
    for names in NAMES.values():
        for name in names:
            if isinstance(getattr(registry.get(name), "__self__", None), Actions):
                del registry[name]
