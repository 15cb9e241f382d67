"""Glob patterns of paths, and their matching."""

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
    """A parsed glob; a segment `**` matches any number of folders.

    The ending, after the last dot, matches in any case: `*.md` matches `C.MD`.
    """

    text: str
    segments: tuple[str, ...]
    folders_only: bool = False
    """True if it matches folders with all their content, but no file of that name."""

    @property
    def fixed(self) -> bool:
        """True if the pattern names exactly one path."""
        return not any(map(_wild, self.segments))

    @property
    def prefix(self) -> str:
        """The folders before the first wildcard, as a relative path, without the last segment."""
        return "/".join(takewhile(lambda segment: not _wild(segment), self.segments[:-1]))

    @property
    def any_ending(self) -> bool:
        """True if the pattern fixes no file ending, such as `docs/**/*`."""
        return not self.segments[-1].rpartition(".")[2].strip("*?")

    def matches(self, relative: str) -> bool:
        """True if the whole relative path matches."""
        path = _with_small_ending(unicodedata.normalize("NFC", relative))
        return len(self.segments) in _reached(self._small_ending_segments, path)

    @cached_property
    def _small_ending_segments(self) -> tuple[str, ...]:
        return (*self.segments[:-1], _with_small_ending(self.segments[-1]))

    def may_match_below(self, folder: str) -> bool:
        """True if a path in that folder, or in one below it, may match."""
        reached = _reached(self.segments, unicodedata.normalize("NFC", folder))
        return not reached <= {len(self.segments)}


def _with_small_ending(path: str) -> str:
    name, dot, ending = path.rpartition(".")
    return f"{name}{dot}{ending.lower()}" if dot and "/" not in ending else path


@lru_cache(maxsize=4096)
def _reached(segments: tuple[str, ...], path: str) -> frozenset[int]:
    """Numbers of leading segments that can match the whole path; several because of `**`."""
    reached = {0}
    if path:
        folder, _, name = path.rpartition("/")
        reached = set()
        for at in _reached(segments, folder):
            segment = segments[at] if at < len(segments) else ""
            if segment == ANY_FOLDERS:
                reached.add(at)
            elif segment and (segment == name or fnmatchcase(name, segment)):
                reached.add(at + 1)
    # `**` may match no folder at all, so that it can be skipped.
    return frozenset(reached | {at + 1 for at in reached if segments[at : at + 1] == (ANY_FOLDERS,)})


@lru_cache(maxsize=256)
def include_pattern(text: str) -> Pattern:
    """Parse a glob of `paths`.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    segments = _segments(text)
    return Pattern(text=text, segments=(*segments, "*") if segments[-1] == ANY_FOLDERS else segments)


def exclude_pattern(text: str) -> Pattern:
    """Parse a glob of `exclude`; without a slash it matches in every folder, as in an ignore file.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    segments = _segments(text)
    if len(segments) == 1 and "/" not in text.rstrip("/"):
        segments = (ANY_FOLDERS, *segments)
    if len(segments) > 1 and segments[-1] == ANY_FOLDERS:
        return Pattern(text=text, segments=segments[:-1], folders_only=True)
    return Pattern(text=text, segments=segments, folders_only=text.endswith("/"))


_ENDINGS = (
    ".asm .bash .bat .c .cc .cjs .class .cmake .cpp .cs .css .cxx .dart .ex .exs .go .gradle .groovy .h .hh .hpp .hs "
    ".ipynb .java .jl .js .jsx .kt .less .lock .lua .map .mjs .mk .ml .php .pl .pm .ps1 .py .pyc .pyi .pyx .r .rb .rs "
    ".sass .scala .scss .sh .so .sql .svelte .svg .swift .tcl .tf .ts .tsx .vb .vue .zsh"
)
_PROGRAMS = tuple(_ENDINGS.split())
"""Endings of program files, which only a pattern with that ending reads."""


class Globs:
    """The include and exclude patterns of one source.

    Raises:
        ConfigurationError: one of them is empty, absolute, or climbs out of the root.
    """

    def __init__(self, paths: Sequence[str], exclude: Sequence[str]) -> None:
        self.include = tuple(map(include_pattern, paths))
        self.exclude = tuple(map(exclude_pattern, exclude))

    def included(self, file: str) -> tuple[int, ...]:
        """Indices of the include patterns that match a file; empty if it is excluded. Its folders are not checked."""
        if any(p.matches(file) and not p.folders_only for p in self.exclude):
            return ()
        program = file.lower().endswith(_PROGRAMS)
        patterns = enumerate(self.include)
        return tuple(index for index, p in patterns if not (program and p.any_ending) and p.matches(file))

    def may_hold(self, folder: str) -> bool:
        """True if a folder may hold files to read and is not excluded itself. Folders above it are not checked."""
        inside = any(p.may_match_below(folder) for p in self.include)
        return inside and not any(p.matches(folder) for p in self.exclude)

    def excludes(self, relative: str) -> bool:
        """True if a path, or a folder above it, is excluded."""
        paths = list(accumulate(relative.split("/"), "{}/{}".format))
        return any(p.matches(path) for p in self.exclude for path in paths)


def _segments(text: str) -> tuple[str, ...]:
    path = unicodedata.normalize("NFC", text.strip())
    if path.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:[\\/]", path):
        fix = "write it relative to the source's root, such as ./docs/**/*.md"
        raise ConfigurationError(f"the glob {text!r} is absolute", fix=fix)
    segments: list[str] = []
    for segment in path.split("/"):
        if segment not in ("", ".") and (segment != ANY_FOLDERS or segments[-1:] != [ANY_FOLDERS]):
            segments.append(segment)
    if ".." in segments:
        fix = "move the root up, or copy the files below it"
        raise ConfigurationError(f"the glob {text!r} leaves the source's root", fix=fix)
    if not segments:
        fix = "write a glob such as ./docs/**/*.md"
        raise ConfigurationError(f"the glob {text!r} names no file", fix=fix)
    return tuple(segments)


def _wild(segment: str) -> bool:
    return any(mark in segment for mark in "*?[")
