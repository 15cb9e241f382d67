"""An agent's memory on the sample product: rules are stored by an action and found by another."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pipeline.actions import register_actions

RULES = {
    "R1": "A vessel deeper than the bar allows waits for the next tide gate.",
    "R2": "A booking may move until two hours before arrival; later the foreman is rung.",
    "R3": "Every position older than ten minutes is shown in grey on the map.",
}


def main() -> None:
    """Store the rules, ask one question, print what was found."""
    registry: dict[str, Callable[..., Any]] = {}
    register_actions(registry, SimpleNamespace(settings={"rag": {"embedding_provider": "minilm"}}))
    stored = registry["vector.store"]({}, list(RULES.values()), ids=list(RULES), collection="rules")
    question = "Why is the ship grey?"
    found = registry["vector.query"]({}, question, k=1, collection="rules")
    best = found["results"][0]
    print(f"stored {stored['stored']} rules")
    print(f"asked  {question}")
    print(f"found  {best['id']} {best['score']:.3f} {best['text']}")


if __name__ == "__main__":
    main()
