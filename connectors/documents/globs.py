"""Globs over relative paths, followed folder by folder so that a walk enters no folder in vain."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, reduce
from itertools import takewhile

from pipeline.errors import ConfigurationError

ANY_FOLDERS = "**"
Positions = frozenset[int]
"""How far into a pattern's parts a path has come; several at once because of `**`."""


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A parsed glob; `parts` are its path segments, `**` standing for any number of folders."""

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
    def start(self) -> Positions:
        """The positions at the root."""
        return self._settled({0})

    def advance(self, positions: Positions, name: str) -> Positions:
        """The positions after one more path segment; none if nothing below can match any more."""
        reached: set[int] = set()
        for at in positions:
            part = self.parts[at] if at < len(self.parts) else ""
            if part == ANY_FOLDERS:
                reached.add(at)
            elif part and (part == name or fnmatchcase(name, part)):
                reached.add(at + 1)
        return self._settled(reached)

    def ends(self, positions: Positions) -> bool:
        """True if the path that led to `positions` matches."""
        return len(self.parts) in positions

    def matches(self, relative: str) -> bool:
        """True if the whole relative path of a file matches."""
        return self.ends(reduce(self.advance, relative.split("/"), self.start))

    def _settled(self, reached: set[int]) -> Positions:
        """`**` may stand for no folder at all, so whoever stands before it stands behind it too."""
        return frozenset(reached | {at + 1 for at in reached if self.parts[at : at + 1] == (ANY_FOLDERS,)})


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


@dataclass(frozen=True, kw_only=True)
class Place:
    """One path of a walk, seen by all patterns."""

    included: tuple[int, ...] = ()
    """Indices of the include patterns that a file of this path matches."""
    excluded: bool = False
    """A file of this path is left out."""
    may_hold: bool = True
    """A folder of this path can hold something to read."""
    inside: tuple[Positions, ...]
    """For each include pattern."""
    outside: tuple[Positions, ...]
    """For each exclude pattern."""

    @property
    def wanted(self) -> bool:
        """True if a file of this path is to be read."""
        return bool(self.included) and not self.excluded


class Globs:
    """The include and exclude patterns of one source.

    Raises:
        ConfigurationError: there are none to include, or one is empty, absolute, or climbs out of the root.
    """

    def __init__(self, paths: Sequence[str], exclude: Sequence[str] = ()) -> None:
        if not paths:
            raise ConfigurationError("a file source has no paths", fix="give at least one glob under paths:")
        self.include = tuple(map(include_pattern, paths))
        self.exclude = tuple(map(exclude_pattern, exclude))

    def root(self) -> Place:
        """The place every walk starts from."""
        return Place(
            inside=tuple(p.start for p in self.include), outside=tuple(p.start for p in self.exclude)
        )

    def step(self, place: Place, name: str) -> Place:
        """The place of `name` inside the folder at `place`; excluded too if that one is."""
        name = unicodedata.normalize("NFC", name)
        inside = tuple(p.advance(at, name) for p, at in zip(self.include, place.inside, strict=True))
        outside = tuple(p.advance(at, name) for p, at in zip(self.exclude, place.outside, strict=True))
        ended = [p for p, at in zip(self.exclude, outside, strict=True) if p.ends(at)]
        deeper = any(at - {len(p.parts)} for p, at in zip(self.include, inside, strict=True))
        return Place(
            included=tuple(i for i, p in enumerate(self.include) if p.ends(inside[i])),
            excluded=not place.may_hold or any(not p.folders_only for p in ended),
            may_hold=place.may_hold and deeper and not ended,
            inside=inside,
            outside=outside,
        )

    def place_of(self, relative: str) -> Place:
        """The place of a whole relative path."""
        return reduce(self.step, relative.split("/"), self.root())


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
