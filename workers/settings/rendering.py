"""Settings for people: a first file to edit, and the values in force."""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from pydantic.alias_generators import to_camel
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from connectors import SOURCES
from connectors.sections import ConfigSection, secrets_in
from workers.settings.diagnosis import inner_section
from workers.settings.environment import lookup
from workers.settings.loading import Settings
from workers.settings.models import Configuration, ConfigurationFile
from workers.settings.sources import SOURCE_TYPES, SourceSettings
from workers.settings.yamlfile import ROOT, SettingsError

_HEAD = """\
# Configuration of Larder. Every key is here with its default; a key left out has the same value.
# Values may name variables: ${NAME} or ${NAME:-default}. Secrets belong in variables, not in this file.
# Relative paths start at the folder of this file.
"""


_SHORT_HEAD = """\
# Configuration of Larder: name your sources, then `larder config check` and `larder up --detach`.
# Each key left out has its default: docs/configuration.md, or all of them in a file by `larder config init --full`.
# Values may name variables: ${NAME} or ${NAME:-default}. Secrets belong in variables, not in this file.
# Relative paths start at the folder of this file.
rag:
  # tenant: default
  # project: default
  # timezone: UTC
  # embedding: {provider: gemini, apiKey: '${GEMINI_API_KEY}'}   # else the model that is shipped, on this machine
  sources:
"""
_SHORT_SOURCES: tuple[Mapping[str, Any], ...] = (
    {"name": "notes", "type": "text", "paths": ["./notes/**/*.txt"], "watch": True},
    {"name": "records", "type": "json", "paths": ["./records/**/*.json"]},
)


class ServiceVariables(NamedTuple):
    """A service as the environment describes it."""

    section: Mapping[str, Any]
    """The source that its variables make; empty if they do not suffice."""
    set_: tuple[str, ...]
    """Names of the variables that are set."""
    reason: str
    """Reason why they do not suffice, for people; empty if they do."""


def services_of(environ: Mapping[str, str]) -> dict[str, ServiceVariables]:
    """Type of source -> its service, for services of which the environment sets a variable."""
    services: dict[str, ServiceVariables] = {}
    for kind, source in SOURCES.items():
        options = source.options
        names = _variables_set(options.variables, environ)
        if not names:
            continue
        keys: Collection[str] = next((s for s in options.required_variables if names.keys() >= set(s)), ())
        required = set().union(*options.required_variables)
        section = {key: f"${{{name}}}" for key, name in names.items() if key in keys or key not in required}
        reason = ""
        if not keys:
            lacking = [one[0] for key, one in options.variables.items() if key in required - names.keys()]
            reason = f"not set: {', '.join(lacking)}"
        else:
            reason = _refusal({"name": kind, "type": kind, **section}, environ)
        entry = {"name": options.example["name"], "type": kind, **section}
        if "updateSchedule" in options.example:
            entry["updateSchedule"] = options.example["updateSchedule"]
        services[kind] = ServiceVariables({} if reason else entry, tuple(names.values()), reason)
    return services


def _variables_set(variables: Mapping[str, Sequence[str]], environ: Mapping[str, str]) -> dict[str, str]:
    """Key -> the first of its variables that is set, for the keys of which one is."""
    names_set = {
        key: [name for name in names if environ.get(name) or environ.get(f"{name}_FILE")]
        for key, names in variables.items()
    }
    return {key: names[0] for key, names in names_set.items() if names}


def _refusal(section: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Reason why a source with these variables would be refused; no value is told."""
    read = lookup(environ)
    try:
        values = {k: read(v[2:-1]) if v.startswith("${") else v for k, v in section.items()}
        SOURCE_TYPES[str(section["type"])].model_validate(values)
    except SettingsError as error:
        return "; ".join(map(str, error.problems))
    except ValidationError as error:
        wrong = sorted(
            {to_camel(str(one["loc"][0])) for one in error.errors() if one["loc"]} & section.keys()
        )
        names = ", ".join(section[key][2:-1] for key in wrong) or "they"
        return (
            f"the value of {names} is refused; `larder config check` says why once the source is in the file"
        )
    return ""


def short_file(sources: Sequence[tuple[str, Mapping[str, Any]]] = (), root: str = "") -> str:
    """A `larder.yaml` to begin with.

    Args:
        sources: (a line of comment, section) of each source to write; other types follow as commented examples.
        root: the folder that patterns start at, if it is not the one of the file.
    """
    lines = [
        _SHORT_HEAD.rstrip("\n")
        + ("" if sources else " []   # in place of [], the examples below without their #")
    ]
    for comment, section in sources:
        located = {"root": root} if root and "paths" in section else {}
        lines += [f"    # {comment}", *_entry({**section, **located})]
    examples = [
        kind.options.example for name, kind in SOURCES.items() if kind.options.example.get("type") == name
    ]
    written = {section["type"] for _, section in sources}
    lines += ["    # Examples of other sources:"]
    for example in (*examples, *_SHORT_SOURCES):
        if example["type"] not in written:
            lines += [re.sub("^    ", "    # ", line) for line in _entry(example)]
    return "\n".join(lines) + "\n"


def _entry(section: Mapping[str, Any]) -> list[str]:
    text = yaml.safe_dump([dict(section)], sort_keys=False, allow_unicode=True, width=100)
    return textwrap.indent(text, "    ").rstrip("\n").split("\n")


def initial_file() -> str:
    """A commented `larder.yaml` with every key, its default and its meaning, and two example sources."""
    return _HEAD + "\n".join([f"{ROOT}:", *_keys(Configuration, {}, "  ")]) + "\n"


def effective(settings: Settings) -> dict[str, Any]:
    """The values in force as JSON in the shape of the file, with secrets masked."""
    return ConfigurationFile(rag=settings.rag).model_dump(mode="json", by_alias=True)


def in_force(settings: Settings) -> dict[str, str]:
    """Every key with dots -> its value as text, to compare two configurations; of all secrets together a hash."""
    values: dict[str, str] = {}

    def read(key: str, value: Any) -> None:
        sections = isinstance(value, list) and value and all(isinstance(one, dict) for one in value)
        inner = {str(one.get("name", n)): one for n, one in enumerate(value)} if sections else value
        if isinstance(inner, dict) and inner:
            for name, one in inner.items():
                read(f"{key}.{name}" if key else name, one)
        else:
            values[key] = text_of(value)

    read("", effective(settings)[ROOT])
    secrets = "\0".join(sorted(secrets_in(settings.rag)))
    digests = {"secrets": sha256(secrets.encode()).hexdigest(), "file_digest": file_digest(settings)}
    return values | {"storage.data": str(settings.data), **digests}


def file_digest(settings: Settings) -> str:
    """Hash of the text of the configuration file; empty if there is none."""
    with suppress(OSError):
        return sha256(settings.path.read_bytes()).hexdigest() if settings.path else ""
    return ""


def show(settings: Settings) -> str:
    """The values in force as YAML that can be loaded again, apart from masked secrets."""
    text = yaml.safe_dump(effective(settings), sort_keys=False, allow_unicode=True, width=100)
    return text.replace("${", "$${")


def text_of(value: Any) -> str:
    """A value as it stands behind a key, on one line."""
    plain = to_jsonable_python(value, by_alias=True, exclude_none=True)
    text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10_000)
    text = text.removesuffix("\n").removesuffix("\n...")
    # YAML would break the line inside a text with line breaks; JSON, which is YAML too, does not.
    return json.dumps(plain, ensure_ascii=False) if "\n" in text else text


def default_of(field: FieldInfo) -> Any:
    """A field's default as its author wrote it; None if it has none."""
    return None if field.is_required() else field.get_default(call_default_factory=True)


@cache
def meanings(section: type[ConfigSection]) -> Mapping[str, str]:
    """Field -> its meaning: its description, else the docstring below it, wherever it was inherited from.

    Read from the source files here: having pydantic read them would cost every command a fifth of a second.
    """
    texts: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        with suppress(OSError, TypeError):  # made without a source file, and without fields of its own
            lines = textwrap.dedent(inspect.getsource(kind)) if issubclass(kind, ConfigSection) else ""
            body = [statement for one in ast.parse(lines).body for statement in getattr(one, "body", ())]
            for key, text in pairwise(body):
                match key, text:
                    case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(
                        value=ast.Constant(value=str(docstring))
                    ):
                        texts[name] = inspect.cleandoc(docstring)
    return texts | {name: f.description for name, f in section.model_fields.items() if f.description}


def _keys(
    section: type[ConfigSection], values: Mapping[str, Any], indent: str, shown_before: Iterable[str] = ()
) -> Iterator[str]:
    """Every key with its meaning; those of `shown_before` only if they have a value."""
    for name, field in section.model_fields.items():
        key = str(field.alias)
        if name in shown_before and key not in values:
            continue
        yield from textwrap.wrap(
            meanings(section)[name], 100, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# "
        )
        inner, value = inner_section(field), values.get(key, default_of(field))
        if value is None:
            yield f"{indent}# {key}:" + (f" {text_of(field.examples[0])}" if field.examples else "")
        elif inner is None or isinstance(value, Mapping) or (value == () and inner is not SourceSettings):
            yield f"{indent}{key}: {text_of(value)}"
        else:
            yield f"{indent}{key}:"
            yield from _inside(inner, value, indent + "  ")


def _inside(section: type[ConfigSection], value: Any, indent: str) -> Iterator[str]:
    if section is SourceSettings:
        yield from _sources(indent)
    elif isinstance(value, tuple):
        yield from (f"{indent}- {text_of(item)}" for item in value)
    else:
        yield from _keys(section, {}, indent)


def _sources(indent: str) -> Iterator[str]:
    """An example of each type that has one; the first shows all keys, the others those that it has not."""
    shown_before: Iterable[str] = ()
    for kind, source in SOURCES.items():
        example = source.options.example
        if example.get("type") == kind:
            text = "\n".join(_keys(SOURCE_TYPES[kind], example, indent + "  ", shown_before))
            # The first line that is no comment carries the dash of the list.
            yield re.sub(r"^( *)  (?=\w)", r"\1- ", text, count=1, flags=re.MULTILINE)
            shown_before = shown_before or SOURCE_TYPES[kind].model_fields
