"""Patterns of paths, and which files of a folder they name."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from itertools import accumulate, takewhile

from pipeline.errors import ConfigurationError

ANY_FOLDERS = "**"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A parsed glob; `parts` are its path segments, `**` standing for any number of folders.

    The ending of the last one, what follows its last dot, holds in any case: `*.md` takes `C.MD`.
    """

    text: str
    parts: tuple[str, ...]
    folders_only: bool = False
    """Holds for folders with all that is in them, not for a file of that name."""

    @property
    def fixed(self) -> bool:
        """True if the pattern names exactly one path."""
        return not any(map(_wild, self.parts))

    @property
    def prefix(self) -> str:
        """The folders before the first wildcard, as a relative path; the last part is never among them."""
        return "/".join(takewhile(lambda part: not _wild(part), self.parts[:-1]))

    @property
    def any_ending(self) -> bool:
        """True if it says of no file how its name ends: `docs/**/*`."""
        return not self.parts[-1].rpartition(".")[2].strip("*?")

    def matches(self, relative: str) -> bool:
        """True if the whole relative path matches."""
        path = _with_small_ending(unicodedata.normalize("NFC", relative))
        return len(self.parts) in _reached(self._small_ending_parts, path)

    @cached_property
    def _small_ending_parts(self) -> tuple[str, ...]:
        return (*self.parts[:-1], _with_small_ending(self.parts[-1]))

    def may_match_below(self, folder: str) -> bool:
        """True if something in that folder, or in one below it, may match."""
        reached = _reached(self.parts, unicodedata.normalize("NFC", folder))
        return not reached <= {len(self.parts)}


def _with_small_ending(path: str) -> str:
    name, dot, ending = path.rpartition(".")
    return f"{name}{dot}{ending.lower()}" if dot and "/" not in ending else path


@lru_cache(maxsize=4096)
def _reached(parts: tuple[str, ...], path: str) -> frozenset[int]:
    """How far into a pattern's parts a path has come; several places at once because of `**`."""
    reached = {0}
    if path:
        folder, _, name = path.rpartition("/")
        reached = set()
        for at in _reached(parts, folder):
            part = parts[at] if at < len(parts) else ""
            if part == ANY_FOLDERS:
                reached.add(at)
            elif part and (part == name or fnmatchcase(name, part)):
                reached.add(at + 1)
    # `**` may stand for no folder at all, so whoever stands before it stands behind it too.
    return frozenset(reached | {at + 1 for at in reached if parts[at : at + 1] == (ANY_FOLDERS,)})


@lru_cache(maxsize=256)
def include_pattern(text: str) -> Pattern:
    """A glob of `paths`.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    parts = _parts(text)
    return Pattern(text=text, parts=(*parts, "*") if parts[-1] == ANY_FOLDERS else parts)


def exclude_pattern(text: str) -> Pattern:
    """A glob of `exclude`: without a slash it holds in every folder, as in an ignore file.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    parts = _parts(text)
    if len(parts) == 1 and "/" not in text.rstrip("/"):
        parts = (ANY_FOLDERS, *parts)
    if len(parts) > 1 and parts[-1] == ANY_FOLDERS:
        return Pattern(text=text, parts=parts[:-1], folders_only=True)
    return Pattern(text=text, parts=parts, folders_only=text.endswith("/"))


_ENDINGS = (
    ".asm .bash .bat .c .cc .cjs .class .cmake .cpp .cs .css .cxx .dart .ex .exs .go .gradle .groovy .h .hh .hpp .hs "
    ".ipynb .java .jl .js .jsx .kt .less .lock .lua .map .mjs .mk .ml .php .pl .pm .ps1 .py .pyc .pyi .pyx .r .rb .rs "
    ".sass .scala .scss .sh .so .sql .svelte .svg .swift .tcl .tf .ts .tsx .vb .vue .zsh"
)
_PROGRAMS = tuple(_ENDINGS.split())
"""Ends of files for machines, whose comments are no prose: read only by a pattern that names the ending."""


class Globs:
    """The include and exclude patterns of one source, asked about one path after the other of a walk.

    Raises:
        ConfigurationError: one of them is empty, absolute, or climbs out of the root.
    """

    def __init__(self, paths: Sequence[str], exclude: Sequence[str]) -> None:
        self.include = tuple(map(include_pattern, paths))
        self.exclude = tuple(map(exclude_pattern, exclude))

    def included(self, file: str) -> tuple[int, ...]:
        """Indices of the include patterns a file matches that lies in no excluded folder; none if it is excluded."""
        if any(p.matches(file) and not p.folders_only for p in self.exclude):
            return ()
        program = file.lower().endswith(_PROGRAMS)
        wanted = enumerate(self.include)
        return tuple(index for index, p in wanted if not (program and p.any_ending) and p.matches(file))

    def may_hold(self, folder: str) -> bool:
        """True if a folder that lies in no excluded one can hold something to read."""
        inside = any(p.may_match_below(folder) for p in self.include)
        return inside and not any(p.matches(folder) for p in self.exclude)

    def excludes(self, relative: str) -> bool:
        """True if a path or a folder it lies in is left out."""
        paths = list(accumulate(relative.split("/"), "{}/{}".format))
        return any(p.matches(path) for p in self.exclude for path in paths)


def _parts(text: str) -> tuple[str, ...]:
    path = unicodedata.normalize("NFC", text.strip())
    if path.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:[\\/]", path):
        fix = "write it relative to the source's root, such as ./docs/**/*.md"
        raise ConfigurationError(f"the glob {text!r} is absolute", fix=fix)
    parts: list[str] = []
    for part in path.split("/"):
        if part not in ("", ".") and (part != ANY_FOLDERS or parts[-1:] != [ANY_FOLDERS]):
            parts.append(part)
    if ".." in parts:
        fix = "move the root up, or copy the files below it"
        raise ConfigurationError(f"the glob {text!r} leaves the source's root", fix=fix)
    if not parts:
        fix = "write a glob such as ./docs/**/*.md"
        raise ConfigurationError(f"the glob {text!r} names no file", fix=fix)
    return tuple(parts)


def _wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")
