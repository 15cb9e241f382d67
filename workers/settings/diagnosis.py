"""Problems a person can correct, made of the errors of validation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import SecretStr, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo

from connectors.sections import ConfigSection, Expected, OneOf
from workers.settings.sources import SOURCE_TYPES, SourceSettings
from workers.settings.yamlfile import KeyPath, SettingsProblem, Tree

_LONGEST = 60
_GROUPS = {group for source in SOURCE_TYPES.values() for group in source.groups}


def explain(error: ValidationError, tree: Tree, model: type[ConfigSection]) -> None:
    """Add one problem per wrong key to the tree.

    Keys that already have a problem, such as a variable that is not set, get no second one.
    """
    written = {_plain(path): path for path in tree.places}
    for detail in error.errors(include_url=False, include_input=False):
        loc, context = _plain(detail["loc"]), detail.get("ctx", {})
        end = next(end for end in range(len(loc), -1, -1) if loc[:end] in written or end == 0)
        path = written.get(loc[:end], ())
        if len(loc) > end and isinstance(tree.at(path), dict):
            # A key that is missing; what follows any other value are steps inside it.
            path = (*path, loc[end])
        if path in tree.problems:
            continue
        section, field = _located(loc, tree, model)
        if detail["type"] == "extra_forbidden":
            tree.complain(path, _unknown_key(str(path[-1]), section))
            continue
        words = described(field.annotation, field.metadata) if field else "a mapping"
        if field and path and isinstance(path[-1], int):
            words = "a mapping" if inner_section(field) else context.get("expected", "text")
        actual = _actual(path, tree, field) or context.get("found", "nothing")
        allowed = context["expected"] if detail["type"] == "larder" else words
        tree.complain(path, SettingsProblem(actual=actual, allowed=allowed, fix=context.get("fix", "")))


def is_secret(path: KeyPath, tree: Tree, model: type[ConfigSection]) -> bool:
    """Whether the value at `path` is never shown."""
    _, field = _located(_plain(path), tree, model)
    return field is not None and SecretStr in _types_of(field.annotation)


def _plain(path: Iterable[str | int]) -> KeyPath:
    """Keys in camelCase, and those of a source's groups beside the others, as validation has them."""
    keys = [to_camel(part) if isinstance(part, str) else part for part in path]
    return (*keys[:3], *keys[4:]) if len(keys) > 4 and keys[3] in _GROUPS else tuple(keys)  # noqa: PLR2004 (rag.sources[0].auth.x)


def _located(
    loc: KeyPath, tree: Tree, model: type[ConfigSection]
) -> tuple[type[ConfigSection], FieldInfo | None]:
    """The section that holds the last key of a path, and that key's field if there is one."""
    section, field = model, None
    for index, part in enumerate(loc):
        inner = inner_section(field) if field else model
        if isinstance(part, int) or inner is None:
            continue
        section = inner
        if inner is SourceSettings:
            section = SOURCE_TYPES.get(str(tree.at(loc[:index]).get("type")), inner)
        field = next((f for f in section.model_fields.values() if to_camel(str(f.alias)) == part), None)
    return section, field


def _unknown_key(key: str, section: type[ConfigSection]) -> SettingsProblem:
    allowed = [str(field.alias) for field in section.model_fields.values()]
    allowed += section.groups if issubclass(section, SourceSettings) else ()
    lowered = {name.lower(): name for name in allowed}
    near = difflib.get_close_matches(to_camel(key).lower(), lowered, n=1)
    fix = f"did you mean {lowered[near[0]]}?" if near else ""
    return SettingsProblem(actual="an unknown key", allowed="one of " + ", ".join(allowed), fix=fix)


def inner_section(field: FieldInfo) -> type[ConfigSection] | None:
    """The section a field holds, alone or in a list."""
    return next((t for t in _types_of(field.annotation) if issubclass(t, ConfigSection)), None)


def _types_of(annotation: Any) -> list[type]:
    """Every class an annotation mentions."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return [annotation]
    return [mentioned for part in get_args(annotation) for mentioned in _types_of(part)]


def _actual(path: KeyPath, tree: Tree, field: FieldInfo | None) -> str:
    """The value in words; empty if the file has none."""
    value = tree.at(path)
    if value is None:
        return ""
    variable = tree.variables.get(path)
    if value == "" and variable:
        return "an empty text (without quotes an empty variable leaves its key out)"
    if field is not None and SecretStr in _types_of(field.annotation) and isinstance(value, str):
        return _secret_in_words(value)
    return (
        f"the value of {_shortened(variable.origin)}" if variable and variable.secret else short_text(value)
    )


def _secret_in_words(value: str) -> str:
    """A secret without its text; of an address the scheme, which tells the wrong service from a wrong address."""
    scheme = re.match(r"[a-z][a-z0-9+]{1,20}://", value)
    if scheme:
        return f"{scheme[0]} and a rest that is not shown"
    return "a text that is not shown" if value else "an empty text"


def short_text(value: Any) -> str:
    """A value for a message: short, and without what stands before the @ of an address."""
    simple = {dict: "a mapping", list: "a list", NoneType: "nothing"}
    if type(value) in simple:
        return "an empty list" if value == [] else simple[type(value)]
    if isinstance(value, bool):
        return str(value).lower()
    # There are keys that forget it may be a password.
    if isinstance(value, str):
        value = re.sub(r"([?&][^=&\s]+=)[^&\s]+", r"\1***", re.sub(r"//[^/\s]*@", "//***@", value))
    return _shortened(repr(value))


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def described(annotation: Any, metadata: Sequence[Any]) -> str:
    """Values that a key takes, in words, such as `a whole number from 1 to 50`."""
    words = next((m.text for m in reversed(metadata) if isinstance(m, Expected | OneOf)), "")
    if words:
        return words + _bounds(metadata)
    origin, inside = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return described(inside[0], [*inside[1:], *metadata])
    if origin is Literal:
        return "one of " + ", ".join(inside)
    if origin in (Union, UnionType):
        alternatives = [described(part, metadata) for part in inside if part is not NoneType]
        return " or ".join(alternatives) + (", or nothing" if NoneType in inside else "")
    return "a list of mappings" if origin is tuple else "a mapping"


def _bounds(metadata: Sequence[Any]) -> str:
    words = {"ge": "{} or more", "gt": "more than {}", "le": "at most {}", "lt": "less than {}"}
    limits = {kind: getattr(m, kind) for m in metadata for kind in words if hasattr(m, kind)}
    texts = {kind: f"{n:g}" if isinstance(n, float) else str(n) for kind, n in limits.items()}
    if set(texts) == {"ge", "le"}:
        return f" from {texts['ge']} to {texts['le']}"
    return "".join(f", {words[kind].format(limit)}" for kind, limit in texts.items())
