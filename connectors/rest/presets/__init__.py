"""Presets of known services: YAML files with the keys of a source, for which a section gives what is its own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml
from pydantic.alias_generators import to_camel

SUFFIX = ".yaml"


@cache
def preset_names() -> tuple[str, ...]:
    """Names of all presets, sorted."""
    names = (entry.name for entry in files(__package__).iterdir())
    return tuple(sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX)))


@cache
def preset(name: str) -> Mapping[str, Any]:
    """Content of a preset: `about`, `values` with a line on each, and the keys of the section below `source`."""
    text = files(__package__).joinpath(name + SUFFIX).read_text(encoding="utf-8")
    content: dict[str, Any] = yaml.safe_load(text)
    if "extends" in content:
        return merged(preset(content["extends"]), content)
    return content


def with_preset(name: str, section: Mapping[str, Any]) -> dict[str, Any]:
    """A section with the keys of a preset where it has none of its own; mappings are merged, lists are replaced."""
    plain = {to_camel(str(key)).rstrip("_"): value for key, value in section.items()}
    # How events are read matters only where the section has a secret that proves them.
    without_events = {} if plain.get("hook") else {"hook": None}
    return merged(preset(name)["source"], {**plain, **without_events})


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both mappings as one, at each level; values of `above` win, and nothing (null) takes a key out."""
    result = dict(below)
    for key, value in above.items():
        inner = result.get(key)
        is_mapping = isinstance(inner, Mapping) and isinstance(value, Mapping)
        result[key] = merged(inner, value) if is_mapping and inner is not None else value
    return {key: value for key, value in result.items() if value is not None}
