"""The reference of all keys, made from the sections: `python -m tests.configuration_page` writes it to docs/."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from pathlib import Path

from connectors.documents.options import ServiceOptions
from connectors.files.options import FileOptions
from connectors.sections import ConfigSection
from workers.settings.diagnosis import described, inner_section
from workers.settings.environment import CONFIG, OVERRIDES
from workers.settings.loading import UNUSED
from workers.settings.models import Configuration, ConfigurationFile
from workers.settings.rendering import default_of, meanings, text_of
from workers.settings.sources import SOURCE_TYPES, SourceSettings
from workers.settings.stores import CloudStoreSettings, LocalStoreSettings
from workers.settings.yamlfile import ROOT

PAGE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
_PAGE_HEAD = """\
# Configuration

This page is generated from the sections in `workers/settings` and the `options.py` of each connector.
`larder config init --full` writes a commented file with every key, `larder config check` reports all mistakes of a
file at once with their lines, and `larder config show` prints the values in force with secrets masked.

## The file
"""


_ENVIRONMENT = """\
## Environment

These override the file; an empty one counts as not set, and `NAME_FILE` is read in its place if that is set.
The key of a provider itself, such as `HF_TOKEN`, is taken only where the file gives none and names no other address.
"""


def reference() -> str:
    """The page, from the sections as they are."""
    variables: dict[str, list[str]] = {CONFIG: []}
    for one in OVERRIDES:
        variables.setdefault(one.name, []).append(f"`{one.key}`")
    reasons: dict[str, list[str]] = {}
    for key, why in UNUSED.items():
        reasons.setdefault(why, []).append(f"`{key}`")
    parts = [
        _PAGE_HEAD,
        f"{inspect.getdoc(ConfigurationFile)}\n",
        _ENVIRONMENT,
        _table(("variable", "keys"), [(f"`{name}`", ", ".join(keys)) for name, keys in variables.items()]),
        "## Keys\n",
        *_section(Configuration, ROOT),
        f"### {ROOT}.sources\n\nA list; `type` decides which keys a source has ([sources](sources/README.md)).\n",
    ]
    parts += _source_sections()
    parts += [
        "## Accepted and not used\n",
        "Files written for other tools and earlier releases may hold these keys; Larder reports them and goes on.\n",
        _table(("keys", "why"), [(", ".join(keys), f"{why}.") for why, keys in reasons.items()]),
    ]
    return "\n".join(parts)


def _source_sections() -> Iterator[str]:
    """The keys that all sources have, those of all files and of all services, then those of each type alone."""
    names: dict[type[ConfigSection], list[str]] = {SourceSettings: [], FileOptions: [], ServiceOptions: []}
    for kind, section in SOURCE_TYPES.items():
        for one in (SourceSettings, FileOptions, ServiceOptions, section):
            if issubclass(section, one):
                names.setdefault(one, []).append(kind)
    known: set[tuple[str, ...]] = set()
    for keys_of, kinds in names.items():
        every = kinds == list(SOURCE_TYPES)
        label = "every type" if every else f"type {' or '.join(kinds)}"
        # Only these have sections that nothing else has, and that are empty by default.
        tables: set[type[ConfigSection]] | None = set() if keys_of is SOURCE_TYPES["rest"] else None
        yield from _section(keys_of, f"{ROOT}.sources of {label}", known, tables)


def _section(
    section: type[ConfigSection],
    name: str,
    known: set[tuple[str, ...]] | None = None,
    tables: set[type[ConfigSection]] | None = None,
) -> Iterator[str]:
    """The table of a section, without the rows in `known`, to which its own are added.

    Sections that are empty by default follow where `tables` has none of them yet.
    """
    yield f"### {name}\n\n{inspect.getdoc(section)}\n"
    rows = []
    below: list[str] = []
    for key, field in section.model_fields.items():
        inner, value = inner_section(field), default_of(field)
        default = f"`{text_of(value)}`"
        if field.is_required():
            default = "required"
        elif value is None:
            default = "none"
        elif isinstance(value, ConfigSection):
            default = f"see {name}.{field.alias}"
        meaning = " ".join(meanings(section)[key].split())
        row = (f"`{field.alias}`", described(field.annotation, field.metadata), default, meaning)
        identity = (row[0], row[1], "" if isinstance(value, ConfigSection) else default, meaning)
        if known is not None:
            if identity in known:
                continue
            known.add(identity)
        rows.append(row)
        has_keys = value is not None or inner in (LocalStoreSettings, CloudStoreSettings)
        if tables is not None:
            has_keys = inner not in tables
        if inner is not None and inner is not SourceSettings and has_keys:
            if tables is not None:
                tables.add(inner)
            below += _section(inner, f"{name}.{field.alias}", None, tables)
    yield _table(("key", "type", "default", "meaning"), rows)
    yield from below


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    cells = (" | ".join(cell.replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {line} |\n" for line in cells)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
