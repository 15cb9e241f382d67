"""TypeScript declarations of what a JSON Schema defines."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from typing import Any

Json = dict[str, Any]
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def declarations(schema: Json) -> str:
    """One interface for each definition."""
    lines = ["// Made from step4.schema.json by tests/typescript.py."]
    for name, one in schema["$defs"].items():
        lines += ["", *_comment(one), f"export interface {name} {_body(one)}"]
    return "\n".join(lines) + "\n"


def _body(one: Json) -> str:
    lines = ["{"]
    for name, inner in one["properties"].items():
        mark = "" if name in one["required"] else "?"
        member = [*_comment(inner), f"{name}{mark}: {_type(inner)};"]
        lines += textwrap.indent("\n".join(member), "  ").split("\n")
    # Additions may come to most objects, and nobody reads them: an index for those would let a misspelled key pass.
    if isinstance(more := one["additionalProperties"], dict):
        lines += [f"  {line}" for line in [*_comment(more), "[key: string]: unknown;"]]
    return "\n".join([*lines, "}"])


def _type(one: Json) -> str:
    if "$ref" in one:
        return str(one["$ref"].rpartition("/")[2])
    if "enum" in one:
        return " | ".join(json.dumps(value) for value in one["enum"])
    if "anyOf" in one:
        return " | ".join(_type(inner) for inner in one["anyOf"])
    names = one["type"] if isinstance(one["type"], list) else [one["type"]]
    return " | ".join(_named(name, one) for name in names)


def _named(name: str, one: Json) -> str:
    if name == "array":
        inner = _type(one["items"]) if "items" in one else "unknown"
        return f"({inner})[]" if "|" in inner else f"{inner}[]"
    if name == "object":
        return _body(one) if "properties" in one else "{ [key: string]: unknown }"
    return PLAIN[name]


def _comment(one: Json) -> Iterator[str]:
    if text := one.get("description"):
        yield f"/** {' '.join(text.split())} */"
