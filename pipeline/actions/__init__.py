"""The actions of YAML engines: `embedding.create`, `vector.store`, `vector.query`; docs/actions.md is their guide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

from pipeline.actions.actions import Actions
from pipeline.actions.engine import EngineResources, enabled

__all__ = ["NAMES", "TASKS", "Actions", "register_actions", "unregister_actions"]

NAMES: Mapping[str, tuple[str, ...]] = {
    "embedding_create": ("embedding.create", "embedding_create", "actions.embedding_create"),
    "vector_store": ("vector.store", "vector_store", "actions.vector_store"),
    "vector_query": ("vector.query", "vector_query", "actions.vector_query"),
}
"""Method of `Actions` -> the names it is registered under: the one to use, then its aliases."""

TASKS: Mapping[str, str] = {f"larder.{names[0]}": method for method, names in NAMES.items()}
"""Task of a job -> the method of `Actions` that does it."""


def register_actions(registry: MutableMapping[str, Callable[..., Any]], engine: object) -> Actions:
    """Put the actions into an engine's registry under all their names; returns the Actions object.

    Of the engine, `settings["rag"]`, `secrets` and `enable_rag` are used, as attributes that may be absent. Nothing
    is read, opened or imported before the first call, so the engine may set them later. An engine with
    `enable_rag = False` gets no entries; if the flag falls later, the actions answer that they are switched off.
    For checkpoints, save its `get_state()` and pass that to `restore_state` later.
    """
    actions = Actions(EngineResources(engine))
    if enabled(engine):
        for method, names in NAMES.items():
            registry.update(dict.fromkeys(names, getattr(actions, method)))
    return actions


def unregister_actions(registry: MutableMapping[str, Callable[..., Any]]) -> None:
    """Remove the actions from a registry; entries of other code under the same names stay."""
    for names in NAMES.values():
        for name in names:
            if isinstance(getattr(registry.get(name), "__self__", None), Actions):
                del registry[name]
