"""The reference of the HTTP API, made from its code: `python -m tests.api_page` writes it into docs/api.md."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fastapi.routing import APIRoute

from pipeline.access import READ
from pipeline.documents import Json
from workers.api import app as application
from workers.api import callers, enrichment, knowledge, stories
from workers.app.ingestion import upload
from workers.app.search import LONGEST_QUERY
from workers.runtime import Addresses, Runtime
from workers.settings import load
from workers.settings.api import ApiSettings

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = "## Reference\n"
"""Begins what is made; it ends with the page."""
_SERVERS = {
    "LARDER_DATABASE_URL": "postgresql://larder_app@127.0.0.1:1/larder",
    "LARDER_BROKER_URL": "redis://127.0.0.1:1/0",
    "LARDER_JWT_SECRET": "a-secret-of-the-page-of-32-bytes-and-more",
}


def reference() -> str:
    """The section, from the addresses as they are."""
    where = Addresses(database=_SERVERS["LARDER_DATABASE_URL"], broker=_SERVERS["LARDER_BROKER_URL"])
    made = application.create_app(Runtime(load(None, _SERVERS), where))
    told = made.openapi()
    needed = {
        (route.path_format, method): _permission(route)
        for module in (knowledge, enrichment, stories)
        for route in module.router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    parts = [
        HEAD,
        "Made from the code. `?` marks what may be left out; an answer has each of its fields.\n",
        _limits(),
    ]
    for path, operations in told["paths"].items():
        for method, operation in operations.items():
            permission = needed.get((path, method.upper()), "")
            parts += _operation(
                f"{method.upper()} {path}", operation, permission, told["components"]["schemas"]
            )
    return "\n".join(parts)


def _permission(route: APIRoute) -> str:
    """What the caller of a handler must be allowed; empty if it asks for no token."""
    todo = [route.dependant]
    while todo:
        one = todo.pop()
        if one.call is not None and "permission" in (found := inspect.getclosurevars(one.call).nonlocals):
            return str(found["permission"])
        if one.call is callers._waiter:
            return READ
        todo += one.dependencies
    return ""


def _limits() -> str:
    a = ApiSettings()
    rows = [
        ("body", f"{int(a.max_body):,} bytes", "`api.maxBody`", "413"),
        ("body without a right token", f"{application.UNPROVED_BYTES:,} bytes", "", "401"),
        ("until the next piece of a body", f"{application.BODY_SECONDS:g} s", "", "408"),
        ("requests of a user", f"{a.requests_per_minute} a minute", "`api.requestsPerMinute`", "429"),
        (
            "requests of a user under way",
            f"{a.at_once}",
            "`api.atOnce`",
            f"more wait {callers.QUEUE_SECONDS:g} s, then 429",
        ),
        ("requests of a user that wait so", f"{callers.MAX_WAITING}", "", "429"),
        ("`GET /api/v1/enrich/{id}` of a user under way", f"{callers.MAX_WAITING}", "", "429"),
        (
            "wrong tokens of an address",
            f"{a.wrong_tokens_per_minute} a minute",
            "`api.wrongTokensPerMinute`",
            "429",
        ),
        ("a question", f"{LONGEST_QUERY:,} characters", "", "422"),
        ("items of Step 4 in one request", f"{enrichment.MAX_ITEMS}", "", "422"),
        ("`Prefer: wait`", f"{enrichment.LONGEST_WAIT:g} s", "", "cut"),
        ("files or documents in one upload", f"{upload.MOST_FILES}", "", "422"),
        ("reading an upload", f"{upload.MOST_SECONDS:g} s", "", "422"),
    ]
    return "### Limits\n\n" + _table(("what", "at most", "key", "else"), rows)


def _operation(name: str, operation: Json, permission: str, schemas: Mapping[str, Json]) -> Iterator[str]:
    yield f"### `{name}`\n"
    sentence = " ".join(str(operation.get("description", operation["summary"])).split())
    yield f"{sentence} Needs {f'`{permission}`' if permission else 'no token'}.\n"
    rows: list[tuple[str, ...]] = [
        (
            f"`{one['name']}`{_optional(one.get('required', False))}",
            one["in"],
            _kind(one["schema"], schemas),
            _words(one),
        )
        for one in operation.get("parameters", ())
    ]
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        rows += [(key, media.rpartition("/")[2], *more) for key, *more in _fields(body["schema"], schemas)]
    if rows:
        yield _table(("request", "in", "takes", "says"), rows)
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            rows = [
                row
                for body in answer.get("content", {}).values()
                for row in _fields(body.get("schema", {}), schemas, answers=True)
            ]
            if rows:
                yield _table((f"answer {status}", "is", "says"), rows)


def _fields(
    schema: Json, schemas: Mapping[str, Json], *, answers: bool = False
) -> Iterator[tuple[str, str, str]]:
    """Name, kind and meaning of each field of a body, or of one member of a list of bodies."""
    found = _resolved(schema.get("items", schema), schemas)
    for name, one in found.get("properties", {}).items():
        yield (
            f"`{name}`{_optional(answers or name in found.get('required', ()))}",
            _kind(one, schemas),
            _words(one),
        )


def _optional(required: bool) -> str:
    return "" if required else "?"


def _resolved(schema: Json, schemas: Mapping[str, Json]) -> Json:
    return schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


_BOUNDS = {
    "minimum": "from {}", "maximum": "to {}", "exclusiveMinimum": "more than {}", "minLength": "{} characters or more",
    "maxLength": "{} characters at most", "minItems": "{} or more", "maxItems": "{} at most",
}  # fmt: skip


def _kind(schema: Json, schemas: Mapping[str, Json]) -> str:
    found = _resolved(schema, schemas)
    if choices := [one for one in found.get("anyOf", ()) if one.get("type") != "null"]:
        return " or ".join(dict.fromkeys(_kind(one, schemas) for one in choices))
    if "enum" in found or "const" in found:
        words = ", ".join(f"`{value}`" for value in found.get("enum", [found.get("const")]))
    elif found.get("type") == "array":
        words = f"list of {_kind(found.get('items') or found.get('prefixItems', [{}])[0], schemas)}"
    elif found.get("properties") and "$ref" in schema:
        inner = ", ".join(f"`{name}`" for name in found["properties"])
        words = f"object with {inner}"
    else:
        words = found.get("format") or found.get("type", "anything")
    bounds = ", ".join(text.format(f"{int(found[key]):,}") for key, text in _BOUNDS.items() if key in found)
    return f"{words}, {bounds}" if bounds else words


def _words(schema: Json) -> str:
    default = schema.get("default", schema.get("schema", {}).get("default"))
    told = [
        schema.get("description", ""),
        f"Default `{default}`." if default not in (None, "", [], {}) else "",
    ]
    return " ".join(filter(None, told)).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


if __name__ == "__main__":
    by_hand, _, _ = PAGE.read_text(encoding="utf-8").partition(HEAD)
    PAGE.write_text(by_hand + reference(), encoding="utf-8")
