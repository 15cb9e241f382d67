"""A folder as sources that no configuration names, for `larder ingest`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.ledger import source_id
from workers.runtime import Configured, Runtime
from workers.settings import SOURCE_TYPES


def sources_of(parts: Runtime, folder: Path, suffixes: Mapping[str, tuple[str, ...]]) -> list[Configured]:
    """One source per type of file that is there, named after the folder; the same folder gives the same names."""
    present = {kind for kind, endings in suffixes.items() if _holds(folder, endings)}
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
                "exclude": ["**/node_modules/**", "**/.git/**"],
                "autoIndex": False,
            },
        )
        found.append(
            Configured(
                settings=section,
                id=source_id(parts.tenant, section.name),
                tenant_id=parts.tenant,
                project_id=parts.project,
                tenant=parts.settings.tenant,
                project=parts.settings.project,
            ),
        )
    return found


def _holds(folder: Path, endings: tuple[str, ...]) -> bool:
    return any(name.endswith(endings) for _, _, names in os.walk(folder) for name in names)
