"""The reference of all keys and variables, made from the sections themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pydantic.fields import FieldInfo

from workers.settings.diagnosis import described, inner_section
from workers.settings.environment import CONFIG, VARIABLES
from workers.settings.loading import FILE, ROOT, UNUSED
from workers.settings.models import RagSettings
from workers.settings.rendering import default_of, text_of
from workers.settings.source_list import SOURCE_TYPES
from workers.settings.sources import SourceSettings
from workers.settings.values import Section

_HEAD = f"""\
# Configuration

This page is generated from the sections in `workers/settings`. `larder config init` writes a commented
file with every key, `larder config check` reports all mistakes of a file at once with their lines, and
`larder config show` prints the values in force with secrets masked.

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
    parts = [_HEAD, *_environment(), "## Keys\n", *_section(RagSettings, ROOT), *_sources(), *_unused()]
    return "\n".join(parts)


def _environment() -> Iterator[str]:
    rows = [(f"`{v.name}`", f"`{v.key}`", v.meaning) for v in VARIABLES]
    yield "## Environment\n\nThese override the file; an empty one counts as not set.\n"
    yield _table(("variable", "key", "meaning"), [(f"`{CONFIG}`", "", "The configuration file."), *rows])


def _section(section: type[Section], name: str) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{section.__doc__}\n"
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
    return f"`{field.alias}`", described(field), default, str(field.description)


def _sources() -> Iterator[str]:
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
