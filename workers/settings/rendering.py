"""Settings for people: a first file to edit, the values in force, and the reference of all keys."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import yaml
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from connectors import SOURCES
from connectors.sections import ConfigSection
from workers.settings.diagnosis import described, inner_section
from workers.settings.environment import CONFIG, OVERRIDES
from workers.settings.loading import FILE, ROOT, UNUSED, Settings
from workers.settings.models import Configuration
from workers.settings.sources import SOURCE_TYPES, SourceSettings

_HEAD = """\
# Configuration of Larder. Every key is here with its default; a key left out has the same value.
# Values may name variables: ${NAME} or ${NAME:-default}. Secrets belong in variables, not in this file.
# Relative paths start at the folder of this file.
"""


def initial_file() -> str:
    """A commented `larder.yaml` with every key, its default and its meaning, and two example sources."""
    return _HEAD + "\n".join([f"{ROOT}:", *_keys(Configuration, {}, "  ")]) + "\n"


def effective(settings: Settings) -> dict[str, Any]:
    """The values in force as JSON in the shape of the file, with secrets masked."""
    return {ROOT: _json(settings.rag)}


def show(settings: Settings) -> str:
    """The values in force as YAML that can be loaded again, apart from masked secrets."""
    text = yaml.safe_dump(effective(settings), sort_keys=False, allow_unicode=True, width=100)
    return text.replace("${", "$${")


_json = partial(to_jsonable_python, by_alias=True)


def text_of(value: Any) -> str:
    """A value as it stands behind a key, on one line."""
    plain = _json(value)
    text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10_000)
    text = text.removesuffix("\n").removesuffix("\n...")
    # YAML would break the line inside a text with line breaks; JSON, which is YAML too, does not.
    return json.dumps(plain, ensure_ascii=False) if "\n" in text else text


def default_of(field: FieldInfo) -> Any:
    """A field's default as its author wrote it; None if it has none."""
    return None if field.is_required() else field.get_default(call_default_factory=True)


def _keys(
    section: type[ConfigSection], given: Mapping[str, Any], indent: str, known: Iterable[str] = ()
) -> Iterator[str]:
    """Every key with its meaning; those of `known` only if they are given."""
    for name, field in section.model_fields.items():
        key = str(field.alias)
        if name in known and key not in given:
            continue
        yield from textwrap.wrap(
            str(field.description), 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        inner = inner_section(field)
        if key == "sources":
            yield f"{indent}{key}:"
            yield from _sources(indent + "  ")
        elif inner is not None and isinstance(default_of(field), ConfigSection):
            yield f"{indent}{key}:"
            yield from _keys(inner, given, indent + "  ")
        elif inner is not None and default_of(field):
            yield f"{indent}{key}:"
            yield from (f"{indent}  - {text_of(item)}" for item in default_of(field))
        else:
            yield indent + _line(key, field, given)


def _line(key: str, field: FieldInfo, given: Mapping[str, Any]) -> str:
    value = given.get(key, default_of(field))
    if value is not None:
        return f"{key}: {text_of(value)}"
    example = f" {text_of(field.examples[0])}" if field.examples else ""
    return f"# {key}:{example}"


def _sources(indent: str) -> Iterator[str]:
    """An example of each type that has one; the first shows all keys, the others those that it has not."""
    known: Mapping[str, FieldInfo] = {}
    for kind, source in SOURCES.items():
        given = source.options.example
        if given.get("type") == kind:
            yield from _item(_keys(SOURCE_TYPES[kind], given, indent + "  ", known), indent)
            known = known or SOURCE_TYPES[kind].model_fields


def _item(lines: Iterator[str], indent: str) -> Iterator[str]:
    """The lines of one list item: the first one that is no comment carries the dash."""
    dashed = False
    for line in lines:
        if dashed or line.lstrip().startswith("#"):
            yield line
        else:
            yield f"{indent}- {line.lstrip()}"
            dashed = True


_PAGE_HEAD = f"""\
# Configuration

This page is generated from the sections in `workers/settings` and the `options.py` of each connector.
`larder config init` writes a commented file with every key, `larder config check` reports all mistakes of a file at
once with their lines, and `larder config show` prints the values in force with secrets masked.

## The file

One YAML file with the root key `{ROOT}`. It is the file given with `--config`, else the one `{CONFIG}` names,
else `./{FILE}`; without a file all defaults hold. Relative paths start at the folder of the file. Keys are
written in camelCase; snake_case is read too. An unknown key, a key written twice or a value of the wrong
type is an error.

## Variables in values

| written | becomes |
|---|---|
| `${{NAME}}` | the value of the variable; an error if it is not set |
| `${{NAME:-default}}` | the default if the variable is not set or empty |
| `$${{` | `${{` as text |

Variables are replaced after the YAML is read, so a value may hold any character. A value that is one variable
and nothing else gets the type its key asks for (`false`, `5`), becomes a list at its commas where a list is
asked for, and counts as left out if it is empty. What a variable holds is not searched for variables. Where
`NAME` is not set and `NAME_FILE` names a file, the value is read from that file, as containers mount secrets.
"""

_ORDER = """\
These must be in order, or the file is refused: `leaseSeconds / 3` (how often a lease is renewed) <
`leaseSeconds` < `resendSeconds` < `visibilityTimeout`, and `softTimeLimit` < `timeLimit` <
`visibilityTimeout`.
"""


def reference() -> str:
    """`docs/configuration.md`."""
    parts = [
        _PAGE_HEAD,
        *_environment(),
        "## Keys\n",
        *_section(Configuration, ROOT),
        *_source_tables(),
        *_unused(),
    ]
    return "\n".join(parts)


def _environment() -> Iterator[str]:
    rows = [(f"`{v.name}`", f"`{v.key}`", v.meaning) for v in OVERRIDES]
    yield "## Environment\n\nThese override the file; an empty one counts as not set.\n"
    yield _table(("variable", "key", "meaning"), [(f"`{CONFIG}`", "", "The configuration file."), *rows])


def _section(section: type[ConfigSection], name: str) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{inspect.getdoc(section)}\n"
    if name == f"{ROOT}.queue":
        yield _ORDER
    fields = section.model_fields.values()
    yield _table(("key", "type", "default", "meaning"), [_row(f, name) for f in fields])
    for field in fields:
        inner = inner_section(field)
        if inner is not None and not issubclass(inner, SourceSettings) and default_of(field) is not None:
            yield from _section(inner, f"{name}.{field.alias}")


def _row(field: FieldInfo, name: str) -> tuple[str, str, str, str]:
    inner = inner_section(field)
    whole = inner is not None and not isinstance(default_of(field), tuple)
    if field.is_required():
        default = "required"
    elif default_of(field) is None:
        default = "none"
    else:
        default = f"see {name}.{field.alias}" if whole else f"`{text_of(default_of(field))}`"
    return f"`{field.alias}`", described(field), default, " ".join(str(field.description).split())


def _source_tables() -> Iterator[str]:
    yield f"### {ROOT}.sources\n"
    yield "A list; `type` decides which keys a source has.\n"
    names: dict[type[SourceSettings], list[str]] = {}
    for kind, section in SOURCE_TYPES.items():
        names.setdefault(section, []).append(kind)
    for section, kinds in names.items():
        yield from _section(section, f"{ROOT}.sources of type {' or '.join(kinds)}")


def _unused() -> Iterator[str]:
    yield "## Accepted and not used\n"
    yield "Files written for other tools may hold these keys; Larder reports them and goes on.\n"
    yield _table(("key", "why"), [(f"`{key}`", f"{why}.") for key, why in UNUSED.items()])


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    cells = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in cells)
