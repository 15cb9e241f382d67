"""Globs over relative paths, followed folder by folder so that a walk enters no folder in vain."""

from __future__ import annotations

import fnmatch
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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
        return not any(_wild(part) for part in self.parts)

    @property
    def prefix(self) -> str:
        """The folders before the first wildcard, as a relative path; the last part is never among them."""
        names: list[str] = []
        for part in self.parts[:-1]:
            if _wild(part):
                break
            names.append(part)
        return "/".join(names)

    @property
    def start(self) -> Positions:
        """The positions at the root."""
        return _settled(self.parts, {0})

    def advance(self, positions: Positions, name: str) -> Positions:
        """The positions after one more path segment; none if nothing below can match any more."""
        reached: set[int] = set()
        for at in positions:
            if at == len(self.parts):
                continue
            if self.parts[at] == ANY_FOLDERS:
                reached.add(at)
            elif _matches(self.parts[at], name):
                reached.add(at + 1)
        return _settled(self.parts, reached)

    def ends(self, positions: Positions) -> bool:
        """True if the path that led to `positions` matches."""
        return len(self.parts) in positions

    def matches(self, relative: str) -> bool:
        """True if the whole relative path of a file matches."""
        positions = self.start
        for name in relative.split("/"):
            positions = self.advance(positions, name)
        return self.ends(positions)


def include_pattern(text: str) -> Pattern:
    """A glob of `paths`.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    parts = _parts(text)
    if parts[-1] == ANY_FOLDERS:
        parts = (*parts, "*")
    return Pattern(text=text, parts=parts)


def exclude_pattern(text: str) -> Pattern:
    """A glob of `exclude`: without a slash it holds in every folder, as in an ignore file.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    parts = _parts(text)
    folders_only = text.endswith("/")
    if len(parts) == 1 and "/" not in text.rstrip("/"):
        parts = (ANY_FOLDERS, *parts)
    if len(parts) > 1 and parts[-1] == ANY_FOLDERS:
        return Pattern(text=text, parts=parts[:-1], folders_only=True)
    return Pattern(text=text, parts=parts, folders_only=folders_only)


@dataclass(frozen=True, kw_only=True)
class Place:
    """One path of a walk, seen by all patterns."""

    included: tuple[int, ...]
    """Indices of the include patterns that a file of this path matches."""
    excluded: bool
    """A file of this path is left out."""
    may_hold: bool
    """A folder of this path can hold something to read."""
    include_positions: tuple[Positions, ...]
    exclude_positions: tuple[Positions, ...]

    @property
    def wanted(self) -> bool:
        """True if a file of this path is to be read."""
        return bool(self.included) and not self.excluded


class Globs:
    """The include and exclude patterns of one source."""

    def __init__(self, paths: Sequence[str], exclude: Sequence[str] = ()) -> None:
        if not paths:
            raise ConfigurationError("a file source has no paths", fix="give at least one glob under paths:")
        self.include = tuple(include_pattern(text) for text in paths)
        self.exclude = tuple(exclude_pattern(text) for text in exclude)

    def root(self) -> Place:
        """The place every walk starts from."""
        starts = tuple(p.start for p in self.include)
        nothing = tuple(p.start for p in self.exclude)
        return Place(
            included=(), excluded=False, may_hold=True, include_positions=starts, exclude_positions=nothing
        )

    def step(self, place: Place, name: str) -> Place:
        """The place of `name` inside the folder at `place`."""
        name = unicodedata.normalize("NFC", name)
        inside = tuple(
            p.advance(at, name) for p, at in zip(self.include, place.include_positions, strict=True)
        )
        outside = tuple(
            p.advance(at, name) for p, at in zip(self.exclude, place.exclude_positions, strict=True)
        )
        ended = [p for p, at in zip(self.exclude, outside, strict=True) if p.ends(at)]
        deeper = any(at < len(p.parts) for p, ats in zip(self.include, inside, strict=True) for at in ats)
        return Place(
            included=tuple(i for i, p in enumerate(self.include) if p.ends(inside[i])),
            excluded=any(not p.folders_only for p in ended),
            may_hold=deeper and not ended,
            include_positions=inside,
            exclude_positions=outside,
        )

    def place_of(self, relative: str) -> Place:
        """The place of a whole relative path; excluded too if a folder above it is."""
        place, pruned = self.root(), False
        for name in relative.split("/"):
            pruned = pruned or not place.may_hold
            place = self.step(place, name)
        if not pruned:
            return place
        return Place(
            included=place.included,
            excluded=True,
            may_hold=False,
            include_positions=place.include_positions,
            exclude_positions=place.exclude_positions,
        )


def _parts(text: str) -> tuple[str, ...]:
    path = unicodedata.normalize("NFC", text.strip())
    if path.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:[\\/]", path):
        raise ConfigurationError(
            f"the glob {text!r} is absolute",
            fix="write it relative to the source's root, such as ./docs/**/*.md",
        )
    parts: list[str] = []
    for part in path.split("/"):
        if part in ("", ".") or (part == ANY_FOLDERS and parts[-1:] == [ANY_FOLDERS]):
            continue
        parts.append(part)
    if ".." in parts:
        raise ConfigurationError(
            f"the glob {text!r} leaves the source's root", fix="move the root up, or copy the files below it"
        )
    if not parts:
        raise ConfigurationError(
            f"the glob {text!r} names no file", fix="write a glob such as ./docs/**/*.md"
        )
    return tuple(parts)


def _settled(parts: tuple[str, ...], positions: set[int]) -> Positions:
    """`**` may stand for no folder at all, so whoever stands before it stands behind it too."""
    reached = set(positions)
    for at in positions:
        if at < len(parts) and parts[at] == ANY_FOLDERS:
            reached.add(at + 1)
    return frozenset(reached)


def _wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")


def _matches(part: str, name: str) -> bool:
    return part == name or (_wild(part) and _regex(part).match(name) is not None)


@lru_cache(maxsize=1024)
def _regex(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
