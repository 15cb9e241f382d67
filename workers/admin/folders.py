"""A folder as sources that no configuration names, for `larder ingest`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from workers.runtime import Runtime
from workers.settings import SOURCE_TYPES
from workers.sources import Configured, configured_source

_STRANGE = frozenset({"node_modules", ".git", ".venv"})
"""Folders of other people's files, wherever they lie."""


def sources_of(parts: Runtime, folder: Path, suffixes: Mapping[str, tuple[str, ...]]) -> list[Configured]:
    """One source per type of file that is there, named after the folder; the same folder gives the same names."""
    names = list(_names(folder, parts.settings.data.resolve()))
    present = {kind for kind, endings in suffixes.items() if any(n.endswith(endings) for n in names)}
    short = re.sub(r"[^A-Za-z0-9_.-]+", "-", folder.name).strip("-.") or "folder"
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:6]
    found = []
    for kind in sorted(present):
        section = SOURCE_TYPES[kind].model_validate(
            {
                "name": f"{short}-{mark}.{kind}",
                "type": kind,
                "root": str(folder),
                "paths": [f"**/*{ending}" for ending in suffixes[kind]],
                "exclude": [f"**/{name}/**" for name in sorted(_STRANGE)],
                "autoIndex": False,
            },
        )
        found.append(configured_source(parts.settings, section))
    return found


def _names(folder: Path, data: Path) -> Iterator[str]:
    """The names of all files that may be read: none of the data folder, where passwords lie."""
    for place, below, names in os.walk(folder):
        below[:] = [name for name in below if name not in _STRANGE and Path(place, name) != data]
        yield from names
