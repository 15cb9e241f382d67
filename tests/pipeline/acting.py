"""An engine with nothing but settings, and the actions it registers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pipeline.actions import register_actions

SECRET = "sk-0123456789-secret"
TEXTS = ["the pilot waits for the tide", "two bollards hold the vessel", "the berth plan is printed"]
Registry = dict[str, Callable[..., Any]]


def engine(**rag: Any) -> SimpleNamespace:
    """An engine with nothing but what the actions look at."""
    settings = {"rag": {"embedding_provider": "hashing", "embedding_dimensions": 64, **rag}}
    return SimpleNamespace(settings=settings, secrets={"OPENAI_API_KEY": SECRET}, enable_rag=True)


def refused(answer: Any) -> str:
    """The sentence of an error, which is all there is."""
    assert set(answer) == {"error", "success"}
    assert answer["success"] is False
    return str(answer["error"])


def registry_of(engine: object) -> Registry:
    """What an engine finds in its registry after it has registered the actions."""
    made: Registry = {}
    register_actions(made, engine)
    return made
