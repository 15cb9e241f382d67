"""From the errors of validation to problems a person can correct."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from connectors.sections import ConfigSection, Expected, OneOf
from workers.settings.sources import SOURCE_TYPES, SourceSettings
from workers.settings.yamlfile import KeyPath, SettingsProblem, Tree

_LONGEST = 60
_MISSING = object()


def explain(error: ValidationError, tree: Tree, model: type[ConfigSection]) -> None:
    """Add one problem per wrong key to the tree.

    Keys that already have a problem, such as a variable that is not set, get no second one.
    """
    for detail in error.errors(include_url=False, include_input=False):
        path = written(detail["loc"], tree.data)
        if path not in tree.problems:
            tree.complain(path, _problem(detail["type"], detail.get("ctx", {}), path, tree, model))


def _problem(
    kind: str, context: Mapping[str, Any], path: KeyPath, tree: Tree, model: type[ConfigSection]
) -> SettingsProblem:
    section, field = locate(model, path, tree.data)
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), section)
    words = "a mapping" if field is None else described(field)
    if field and isinstance(path[-1], int):
        words = "a mapping" if inner_section(field) else "text"
    found = _found(path, tree, field) or context.get("found", "nothing")
    expected = context["expected"] if kind == "larder" else words
    return SettingsProblem(found=found, allowed=expected, fix=context.get("fix", ""))


def _unknown_key(key: str, section: type[ConfigSection]) -> SettingsProblem:
    allowed = [*(str(f.alias) for f in section.model_fields.values()), *_groups(section)]
    lowered = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(to_camel(key).lower(), lowered, n=1)
    fix = f"did you mean {lowered[near[0]]}?" if near else ""
    return SettingsProblem(found="an unknown key", allowed="one of " + ", ".join(allowed), fix=fix)


def _groups(section: type[ConfigSection]) -> tuple[str, ...]:
    return section.groups if issubclass(section, SourceSettings) else ()


def written(loc: Iterable[int | str], data: Any) -> KeyPath:
    """The path of a validation error, with keys spelled and grouped as in the file."""
    path: list[int | str] = []
    for part in loc:
        if isinstance(data, dict):
            group = next((g for g, inner in _inside(data) if part in _spellings(inner)), None)
            if group is not None and part not in _spellings(data):
                path.append(group)
                data = data[group]
            key = _spellings(data).get(str(part), part)
            path.append(key)
            data = data.get(str(key), _MISSING)
        elif isinstance(data, list) and isinstance(part, int):
            path.append(part)
            data = data[part] if part < len(data) else _MISSING
        # Anything else is a step inside a single value, such as an item of a text with commas.
    return tuple(path)


def _spellings(data: Mapping[Any, Any]) -> dict[str, str]:
    """Keys by their camelCase, and by themselves."""
    return {to_camel(str(key)): str(key) for key in data} | {str(key): str(key) for key in data}


def _inside(source: Mapping[Any, Any]) -> Iterable[tuple[str, Mapping[Any, Any]]]:
    """The groups of a source, whose keys are read as if they stood beside them."""
    groups = _groups(SOURCE_TYPES.get(str(source.get("type")), ConfigSection))
    return [(k, v) for k, v in source.items() if to_camel(str(k)) in groups and isinstance(v, dict)]


def locate(
    model: type[ConfigSection], path: KeyPath, data: Any
) -> tuple[type[ConfigSection], FieldInfo | None]:
    """The section that holds the last key of a path, and that key's field if there is one."""
    section, field = model, None
    for part in path:
        inner = inner_section(field) if field else None
        if inner and not isinstance(data, list):
            of_type = SOURCE_TYPES.get(str(_step(data, "type"))) if inner is SourceSettings else None
            section = of_type or inner
        data = _step(data, part)
        if isinstance(part, str):
            fields = section.model_fields
            field = next((f for name, f in fields.items() if part in (name, f.alias)), None)
    return section, field


def _step(data: Any, part: int | str) -> Any:
    try:
        return data[part]
    except (KeyError, IndexError, TypeError):
        return _MISSING


def inner_section(field: FieldInfo) -> type[ConfigSection] | None:
    """The section a field holds, alone or in a list."""
    return next((t for t in types_of(field.annotation) if issubclass(t, ConfigSection)), None)


def types_of(annotation: Any) -> list[type]:
    """Every class an annotation mentions."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation]
    inside = [found for part in get_args(annotation) for found in types_of(part)]
    return inside or [NoneType]


def _found(path: KeyPath, tree: Tree, field: FieldInfo | None) -> str:
    """The value in words; empty if the file has none."""
    value: Any = tree.data
    for part in path:
        value = _step(value, part)
    if value is _MISSING:
        return ""
    variable = tree.variables.get(path)
    if field is not None and SecretStr in types_of(field.annotation) and isinstance(value, str):
        # Of an address its scheme, which tells the wrong service from a wrong address.
        scheme = re.match(r"[a-z][a-z0-9+]{1,20}://", value)
        return f"{scheme[0]} and a rest that is not shown" if scheme else "a text that is not shown"
    if variable and variable.secret:
        return f"the value of {_shortened(variable.origin)}"
    return shown(value)


def shown(value: Any) -> str:
    """A value for a message: short, and without what stands before the @ of an address."""
    simple = {dict: "a mapping", list: "a list", NoneType: "nothing"}
    if type(value) in simple:
        return "an empty list" if value == [] else simple[type(value)]
    if isinstance(value, bool):
        return str(value).lower()
    # There are keys that forget it may be a password.
    return _shortened(repr(re.sub(r"//[^/\s]*@", "//***@", value) if isinstance(value, str) else value))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def described(field: FieldInfo) -> str:
    """What a key takes, such as `a whole number from 1 to 50`."""
    return _described(field.annotation, field.metadata)


def _described(annotation: Any, metadata: Iterable[Any]) -> str:
    metadata = list(metadata)
    words = next((m.text for m in reversed(metadata) if isinstance(m, Expected | OneOf)), "")
    if words:
        return words + _bounds(metadata)
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _described(inner, [*more, *metadata])
    if get_origin(annotation) in (Union, UnionType):
        parts = [_described(a, metadata) for a in get_args(annotation) if a is not NoneType]
        return " or ".join(parts) + (", or nothing" if NoneType in get_args(annotation) else "")
    return "a list of mappings" if get_origin(annotation) is tuple else "a mapping"


def _bounds(metadata: Iterable[Any]) -> str:
    words = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
    limits = {kind: getattr(m, kind) for m in metadata for kind in words if hasattr(m, kind)}
    if set(limits) == {"ge", "le"}:
        return f" from {_number(limits['ge'])} to {_number(limits['le'])}"
    return "".join(f", {words[kind].format(_number(limit))}" for kind, limit in limits.items())


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
