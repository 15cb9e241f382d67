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

from workers.settings.problems import Fault, KeyPath, spelled
from workers.settings.source_list import SOURCE_TYPES
from workers.settings.sources import SourceSettings
from workers.settings.values import Expected, OneOf, Section
from workers.settings.yamlfile import Substituted, Tree

_LONGEST = 60
_MISSING = object()


def explain(error: ValidationError, tree: Tree, model: type[Section]) -> None:
    """Add one problem per wrong key to the tree.

    Keys that already have a problem, such as a variable that is not set, get no second one.
    """
    known = {problem.key for problem in tree.problems}
    for detail in error.errors(include_url=False, include_input=False):
        path = written(detail["loc"], tree.data)
        if spelled(path) not in known:
            known.add(spelled(path))
            tree.complain(path, _fault(detail["type"], detail.get("ctx", {}), path, tree.data, model))


def _fault(kind: str, context: Mapping[str, Any], path: KeyPath, data: Any, model: type[Section]) -> Fault:
    section, field = locate(model, path, data)
    if kind == "extra_forbidden":
        return _unknown_key(str(path[-1]), section)
    expected = context.get("expected") or _wanted(path, field)
    found = _found(path, data, field) or context.get("found", "nothing")
    return Fault(found=found, allowed=expected, fix=context.get("fix", ""))


def _wanted(path: KeyPath, field: FieldInfo | None) -> str:
    if field is None:
        return "a mapping"
    item = isinstance(path[-1], int)
    return ("a mapping" if inner_section(field) else "text") if item else described(field)


def _unknown_key(key: str, section: type[Section]) -> Fault:
    allowed = [str(f.alias) for f in section.model_fields.values()]
    lowered = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(to_camel(key).lower(), lowered, n=1)
    fix = f"did you mean {lowered[near[0]]}?" if near else ""
    return Fault(found="an unknown key", allowed="one of " + ", ".join(allowed), fix=fix)


def written(loc: Iterable[int | str], data: Any) -> KeyPath:
    """The path of a validation error, with keys spelled as in the file."""
    path: list[int | str] = []
    for part in loc:
        if isinstance(data, dict):
            key = next((k for k in data if part in (k, to_camel(k))), part)
            path.append(key)
            data = data.get(str(key), _MISSING)
        elif isinstance(data, list) and isinstance(part, int):
            path.append(part)
            data = data[part] if part < len(data) else _MISSING
        # Anything else is a step inside a single value, such as an item of a text with commas.
    return tuple(path)


def locate(model: type[Section], path: KeyPath, data: Any) -> tuple[type[Section], FieldInfo | None]:
    """The section that holds the last key of a path, and that key's field if there is one."""
    section, field = model, None
    for depth, part in enumerate(path):
        data = _step(data, part)
        if isinstance(part, str):
            field = _field(section, part)
        if depth < len(path) - 1:
            section = _inner(field, data) or section
    return section, field


def _step(data: Any, part: int | str) -> Any:
    try:
        return data[part]
    except (KeyError, IndexError, TypeError):
        return None


def _field(section: type[Section], key: str) -> FieldInfo | None:
    fields = section.model_fields
    return next((f for name, f in fields.items() if key in (name, f.alias)), None)


def inner_section(field: FieldInfo) -> type[Section] | None:
    """The section a field holds, alone or in a list."""
    return next((t for t in types_of(field.annotation) if issubclass(t, Section)), None)


def _inner(field: FieldInfo | None, data: Any) -> type[Section] | None:
    """The section below a field; that of a source depends on its type."""
    inner = inner_section(field) if field else None
    if inner is SourceSettings and isinstance(data, dict):
        return SOURCE_TYPES.get(str(data.get("type")), inner)
    return inner


def types_of(annotation: Any) -> list[type]:
    """Every class an annotation mentions."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation]
    inside = [found for part in get_args(annotation) for found in types_of(part)]
    return inside or [NoneType]


def _found(path: KeyPath, data: Any, field: FieldInfo | None) -> str:
    """The value in words; empty if the file has none."""
    value = data
    for part in path:
        value = value.get(part, _MISSING) if isinstance(value, dict) else _step(value, part)
    if value is _MISSING:
        return ""
    if field is not None and SecretStr in types_of(field.annotation) and isinstance(value, str):
        return _unshown(value)
    return shown(value)


def _unshown(value: str) -> str:
    """What may be said of a secret: of an address its scheme, which tells the wrong service from a wrong address."""
    scheme = re.match(r"[a-z][a-z0-9+]{1,20}://", value)
    return f"{scheme[0]} and a rest that is not shown" if scheme else "a text that is not shown"


def shown(value: Any) -> str:
    """A value for a message: short, and without what came from the environment."""
    if isinstance(value, Substituted) and value.secret:
        return f"the value of {_shortened(value.origin)}"
    simple = {dict: "a mapping", list: "a list", NoneType: "nothing"}
    if type(value) in simple:
        return "an empty list" if value == [] else simple[type(value)]
    return str(value).lower() if isinstance(value, bool) else _shortened(repr(_open(value)))


def _open(value: Any) -> Any:
    """Without what stands before the @ of an address: there are keys that forget it may be a password."""
    return re.sub(r"//[^/\s]*@", "//***@", value) if isinstance(value, str) else value


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
