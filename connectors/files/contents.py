"""Listing of the documents below a folder by their names, without dependencies, build results and secrets."""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from connectors.documents.globs import Pattern, exclude_pattern
from connectors.files.options import ENDINGS
from pipeline.errors import ConfigurationError

LOOK_SECONDS = 10.0
"""Most seconds for listing folders; an incomplete listing says so."""
DEPENDENCIES = (
    "node_modules", "bower_components", "venv", "site-packages", "__pycache__", "vendor", "third_party", "htmlcov",
    "__snapshots__", "__fixtures__", "testdata",
)  # fmt: skip
"""Folders of third-party files and of the files of tools, at any depth."""
NO_DOCUMENTS = (
    "package.json", "package-lock.json", "npm-shrinkwrap.json", "composer.json", "tsconfig*.json", "*.min.html",
    "CMakeLists.txt", "requirements*.txt", "constraints*.txt", "robots.txt", "SOURCES.txt",
    "passwords.*", "secrets.*", "credentials.*", "token.txt", "tokens.txt", "id_rsa*", "id_ed25519*",
    "*recovery-codes*", "unseal-keys*", "service-account*.json", "client_secret*.json", "*.tfstate.json",
)  # fmt: skip
"""Files of tools, passwords and keys that have the endings of documents."""
_BUILT = frozenset({"build", "dist", "target", "out", "_build", "_site", "coverage"})
"""Folders of build results, if one of `_BUILD_FILES` is beside them."""
_BUILD_FILES = (
    "package.json", "Cargo.toml", "pom.xml", "build.gradle", "build.gradle.kts", "setup.py", "pyproject.toml",
    "CMakeLists.txt", "Makefile", "go.mod", "conf.py", "_config.yml",
)  # fmt: skip
EXCLUDED: tuple[str, ...] = (".*", *(f"**/{name}/**" for name in DEPENDENCIES), *NO_DOCUMENTS)
"""Patterns of files and folders that are left out everywhere."""
_NO_DOCUMENT = re.compile("|".join(map(fnmatch.translate, NO_DOCUMENTS)))
_IGNORING = re.compile(r"[^#!\\][^\\]*")
"""A line of a .gitignore that ignores paths, without an escape."""
_WILD = re.compile(r"[*?\[]")
_MOST_NAMED = 5
_MOST_BYTES = 100_000


@dataclass(kw_only=True)
class LeftOut:
    """Files or folders left out for one reason."""

    count: int = 0
    examples: list[str] = field(default_factory=list)
    """First paths, at most five."""

    def add(self, path: str) -> None:
        """Count a path."""
        self.count += 1
        if len(self.examples) < _MOST_NAMED:
            self.examples.append(path)


@dataclass(frozen=True, kw_only=True)
class FolderContents:
    """The documents of a folder, chosen by name without opening them."""

    root: Path
    files: Mapping[str, Mapping[str, Sequence[str]]]
    """Type of source -> folder relative to the root, with slashes, empty for the root -> names of files."""
    exclude: tuple[str, ...]
    """Patterns, beyond `EXCLUDED`, of the files and folders left out."""
    links: Mapping[str, str]
    """Pattern of a link to a folder or document -> folder of its target relative to the root, or `..` if outside."""
    left_out: dict[str, LeftOut]
    """Reason -> files and folders left out for it."""
    other_endings: Counter[str]
    """Ending -> number of files that are no documents; `no ending` for names without one."""
    complete: bool
    """False if `LOOK_SECONDS` passed before every folder was listed."""


class _IgnoreFile:
    """The lines of a .gitignore as patterns of `exclude`, without those that a line with `!` may revoke."""

    def __init__(self, folder: str, path: str) -> None:
        self._patterns: dict[str, list[Pattern]] = defaultdict(list)
        """Patterns by the last name in them; those with wildcards under an empty key."""
        lines: list[str] = []
        with suppress(OSError), open(path, "rb") as stream:  # noqa: PTH123 (strings as in the walk)
            lines = [line.strip() for line in stream.read(_MOST_BYTES).decode("utf-8", "ignore").splitlines()]
        taken_back = {key for line in lines if line.startswith("!") for key in ("", _last_name(line[1:]))}
        base = f"./{glob_of(folder)}/" if folder else "./"
        for line in lines:
            key = "" if _WILD.search(line) else _last_name(line)
            if _IGNORING.fullmatch(line) and key not in taken_back:
                start = base if "/" in line.rstrip("/") else f"{base}**/" * bool(folder)
                with suppress(ConfigurationError):
                    self._patterns[key].append(exclude_pattern(start + line.lstrip("/")))

    def pattern(self, relative: str, name: str, *, folder: bool) -> str:
        """The pattern that ignores this path; empty if none does."""
        candidates = (*self._patterns.get(name, ()), *self._patterns.get("", ()))
        fitting = (p.text for p in candidates if (folder or not p.folders_only) and p.matches(relative))
        return next(fitting, "")


def _last_name(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2]


def glob_of(path: str) -> str:
    """A pattern that matches exactly this path."""
    # A byte that is no UTF-8 cannot be written into the configuration, and `${` would start a variable.
    return re.sub(r"[\udc80-\udcff]|\$(?=\{)", "?", re.sub(r"([*?\[])", r"[\1]", path))


def look_into(root: Path, closed: Path | None = None) -> FolderContents:
    """List the documents below `root`, except in folders of dependencies, tools, hidden, ignored or `closed` ones."""
    return _Look(str(root), str(closed or "")).contents()


class _Look:
    def __init__(self, root: str, closed: str) -> None:
        self._root = os.path.realpath(root)
        self._closed = closed
        self._files: dict[str, dict[str, list[str]]] = {kind: defaultdict(list) for kind in ENDINGS}
        self._exclude: dict[str, None] = {}
        self._links: dict[str, str] = {}
        self._left_out: dict[str, LeftOut] = defaultdict(LeftOut)
        self._other_endings: Counter[str] = Counter()
        self._folders: list[tuple[str, tuple[_IgnoreFile, ...]]] = [("", ())]

    def contents(self) -> FolderContents:
        until = time.monotonic() + LOOK_SECONDS
        while self._folders and time.monotonic() < until:
            self._list(*self._folders.pop())
        return FolderContents(
            root=Path(self._root),
            files=self._files,
            exclude=tuple(self._exclude),
            links=self._links,
            left_out=self._left_out,
            other_endings=self._other_endings,
            complete=not self._folders,
        )

    def _list(self, folder: str, ignored: tuple[_IgnoreFile, ...]) -> None:
        try:
            with os.scandir(f"{self._root}/{folder}") as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError:
            self._left_out["folders that cannot be listed"].add(folder or ".")
            return
        names = {entry.name for entry in entries}
        if ".gitignore" in names:
            ignored = (*ignored, _IgnoreFile(folder, f"{self._root}/{folder}/.gitignore"))
        builds = not names.isdisjoint(_BUILD_FILES)
        for entry in entries:
            relative = f"{folder}/{entry.name}".lstrip("/")
            with suppress(OSError):  # gone since the folder was listed
                if entry.is_symlink():
                    self._leave_link(relative, entry)
                elif entry.is_dir(follow_symlinks=False):
                    self._take_folder(relative, entry.name, ignored, builds=builds)
                elif entry.is_file(follow_symlinks=False):
                    self._take(folder, relative, entry.name, ignored)

    def _leave_link(self, relative: str, entry: os.DirEntry[str]) -> None:
        folder = entry.is_dir()
        if entry.name[0] != "." and (folder or kind_of(entry.name)):
            self._left_out["links; their targets are read at their own paths"].add(relative)
            real = os.path.realpath(entry.path)
            target = os.path.relpath(real if folder else os.path.dirname(real), self._root)  # noqa: PTH120
            outside = target.split("/")[0] == ".."
            self._links[f"./{glob_of(relative)}{'/' * folder}"] = ".." if outside else target.lstrip(".")

    def _take_folder(
        self, relative: str, name: str, ignored: tuple[_IgnoreFile, ...], *, builds: bool
    ) -> None:
        if name in DEPENDENCIES:
            self._left_out["folders of dependencies and tools"].add(relative)
            self._exclude[f"**/{name}/**"] = None
        elif name.startswith(".") and name != ".backlog":
            self._left_out["hidden folders"].add(relative)
        elif builds and name in _BUILT:
            self._left_out["folders of build results"].add(relative)
            self._exclude[f"./{glob_of(relative)}/**"] = None
        elif pattern := _ignoring(ignored, relative, name, folder=True):
            self._left_out["folders that .gitignore names"].add(relative)
            anchored = pattern.rstrip("/")
            self._exclude[f"{anchored if '/' in anchored else f'**/{anchored}'}/**"] = None
        elif f"{self._root}/{relative}" != self._closed:
            self._folders.append((relative, ignored))

    def _take(self, folder: str, relative: str, name: str, ignored: Sequence[_IgnoreFile]) -> None:
        kind = kind_of(name)
        if not kind:
            self._other_endings[ending_of(name) or "no ending"] += 1
        elif name.startswith("."):
            self._left_out["hidden files"].add(relative)
        elif _NO_DOCUMENT.match(name):
            self._left_out["files for tools"].add(relative)
            self._exclude |= dict.fromkeys(glob for glob in NO_DOCUMENTS if fnmatch.fnmatchcase(name, glob))
        elif pattern := _ignoring(ignored, relative, name, folder=False):
            self._left_out["files that .gitignore names"].add(relative)
            self._exclude[pattern] = None
        else:
            self._files[kind][folder].append(name)


def _ignoring(ignored: Sequence[_IgnoreFile], relative: str, name: str, *, folder: bool) -> str:
    return next(
        filter(None, (ignore_file.pattern(relative, name, folder=folder) for ignore_file in ignored)), ""
    )


def kind_of(name: str) -> str:
    """Type of the source that reads files of this name; empty if none does."""
    ending = ending_of(name)
    return next((kind for kind, endings in ENDINGS.items() if ending in endings), "")


def ending_of(name: str) -> str:
    """Ending of a file name with its dot, in lower case; empty if it has none."""
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 (no Path object for each of 100,000 names)
