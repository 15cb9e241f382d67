"""Processes of `larder up` on this machine: whether they do what the file says, and are looked after."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from connectors import FileOptions
from workers.monitoring import liveness
from workers.settings import Settings
from workers.settings.environment import is_supervised
from workers.settings.rendering import file_digest, in_force, text_of

FIXED = (
    "storage.database.url",
    "storage.database.controlUrl",
    "storage.database.adminUrl",
    "storage.broker.url",
    "storage.broker.valkeyUrl",
)
"""Keys that only another start takes over: all processes must see the same servers at any time."""


def differing(settings: Settings, file: Mapping[str, str] | None = None) -> list[str]:
    """Differences between the file and what runs, a line for each key or new source; empty if nothing runs.

    `file` are the settings as `in_force` gives them, for callers that ask repeatedly.
    """
    state = liveness.read_state(settings.data) or {}
    runs, file = state.get("configuration"), file or in_force(settings)
    if "supervisor" not in liveness.living_processes(state) or not isinstance(runs, dict):
        return []
    keys = [
        k
        for k in {**runs, **file}
        if k not in {"file", "file_digest", "sources"} and runs.get(k) != file.get(k)
    ]
    sections = {".".join(key.split(".")[:2]) for key in runs}, {".".join(key.split(".")[:2]) for key in file}
    lines = {}
    for key in keys:
        section = ".".join(key.split(".")[:2])
        if key.startswith("sources.") and section not in sections[0] & sections[1]:
            lines[section] = f"{section}: {'new' if section in sections[1] else 'taken out'}"
        else:
            lines[key] = f"{key}: {file.get(key, 'nothing')} (running with {runs.get(key, 'nothing')})"
    return list({**lines, **({"secrets": "a password or key"} if "secrets" in keys else {})}.values())


def changed_since_start(settings: Settings) -> list[str]:
    """`differing`, unless the file is still the one that `larder up` has read: cheap enough to be asked often.

    The processes of `larder up` themselves have other variables than a terminal, and cannot tell.
    """
    runs = (liveness.read_state(settings.data) or {}).get("configuration")
    if is_supervised() or not isinstance(runs, dict):
        return []
    return [] if runs.get("file_digest") == file_digest(settings) else differing(settings)


def unwatched_processes(settings: Settings) -> list[str]:
    """Names of processes whose `larder up` was killed: nobody starts them again."""
    living = liveness.running(settings.data)
    return [] if "supervisor" in living else sorted(living.keys() - {"postgres", "valkey"})


def missing_folders(settings: Settings) -> dict[str, str]:
    """Source -> its folder that is not there, where `larder up` of this machine is to read it."""
    if "supervisor" not in liveness.running(settings.data):
        return {}
    sources = [one for one in settings.rag.sources if one.enabled and isinstance(one, FileOptions)]
    roots = ((one.name, settings.resolve(one.root), one.paths) for one in sources)
    folders = (
        (name, folder)
        for name, root, patterns in roots
        for folder in (root, *(root / _without_wildcards(pattern) for pattern in patterns))
    )
    return {name: str(folder) for name, folder in folders if not folder.exists()}


def _without_wildcards(pattern: str) -> Path:
    """The folder that a pattern names before its first wildcard, or the file."""
    return Path(*takewhile(lambda part: not set(part) & set("*?[{"), Path(pattern).parts))


def runs_tenant(settings: Settings) -> bool:
    """Whether `larder up` runs here as these settings say, and not for another tenant that a terminal has named."""
    state = liveness.read_state(settings.data) or {}
    runs = state.get("configuration")
    same = isinstance(runs, dict) and runs.get("tenant") == text_of(settings.tenant)
    return same and "supervisor" in liveness.living_processes(state) and not changed_since_start(settings)
