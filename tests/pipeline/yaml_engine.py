"""A YAML engine as small as can be: nodes one after the other, `{{ state.x }}`, actions from a registry."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from pipeline.actions import register_actions

_TEMPLATE = re.compile(r"\{\{\s*state\.([\w.]+)\s*\}\}")
_VARIABLE = re.compile(r"\$\{(\w+)\}")


class Stopped(Exception):
    """A node answered with an error."""


class Engine:
    """Runs the agent of one file; what is in its registry is called as `action(state=..., **with)`."""

    def __init__(self, path: Path, environ: Mapping[str, str], *, enable_rag: bool = True) -> None:
        self.enable_rag = enable_rag
        self.registry: dict[str, Callable[..., Any]] = {"llm.call": _echo}
        self.actions = register_actions(self.registry, self)  # before the file is read, as engines do
        text = path.read_text(encoding="utf-8")
        agent = yaml.safe_load(_VARIABLE.sub(lambda found: environ.get(found[1], found[0]), text))
        self.settings: dict[str, Any] = agent["settings"]
        self.secrets: dict[str, str] = agent["secrets"]
        self.nodes: list[dict[str, Any]] = agent["nodes"]

    def run(
        self, state: dict[str, Any], *, first: str | None = None, last: str | None = None
    ) -> dict[str, Any]:
        """The state after the nodes from `first` to `last`."""
        names = [node["name"] for node in self.nodes]
        start, end = names.index(first or names[0]), names.index(last or names[-1])
        for node in self.nodes[start : end + 1]:
            answer = self.registry[node["uses"]](state=state, **_filled(node["with"], state))
            if answer.get("success") is False:
                raise Stopped(answer["error"])
            state = {**state, node["output"]: answer}
        return state


def _filled(value: Any, state: Mapping[str, Any]) -> Any:
    """A template that is all of a text gives the value itself, one inside a text its words."""
    if isinstance(value, dict):
        return {key: _filled(one, state) for key, one in value.items()}
    if isinstance(value, list):
        return [_filled(one, state) for one in value]
    if not isinstance(value, str):
        return value
    whole = _TEMPLATE.fullmatch(value)
    return (
        _look(whole[1], state) if whole else _TEMPLATE.sub(lambda found: str(_look(found[1], state)), value)
    )


def _look(path: str, state: Any) -> Any:
    for step in path.split("."):
        state = state[int(step)] if isinstance(state, list) else state[step]
    return state


def _echo(state: object, messages: list[dict[str, str]], **_more: object) -> dict[str, str]:
    """Stands for a language model: says what it was asked."""
    return {"content": "\n".join(message["content"] for message in messages)}
