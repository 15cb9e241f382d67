"""What is wrong with a configuration, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.errors import ConfigurationError

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the root key `rag` (not included) to a value."""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a value was written."""

    file: str
    """The file as the caller named it, or the environment variable."""
    line: int = 0
    """From 1; 0 if there is no line."""
    column: int = 0
    """From 1; 0 if the line says enough."""

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong with one value, before anyone knows where it stands."""

    found: str
    allowed: str
    fix: str = ""
    unset: bool = False
    """A variable has no value: no fault of a source that is switched off."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing to correct; never holds a secret."""

    file: str
    line: int
    column: int = 0
    key: str = ""
    """The key's path as written in YAML, such as `retrieval.topK`; empty for the whole file."""
    found: str
    allowed: str
    fix: str = ""

    @classmethod
    def at(cls, place: Place, path: KeyPath, fault: Fault) -> Problem:
        """The fault of the value at `path`, written at `place`."""
        return cls(
            file=place.file,
            line=place.line,
            column=place.column,
            key=spelled(path),
            found=fault.found,
            allowed=fault.allowed,
            fix=fault.fix,
        )

    def to_json(self) -> dict[str, str | int]:
        """`{"file", "line", "key", "found", "allowed", "fix"}`."""
        return {
            "file": self.file,
            "line": self.line,
            "key": self.key,
            "found": self.found,
            "allowed": self.allowed,
            "fix": self.fix,
        }

    def __str__(self) -> str:
        place = str(Place(file=self.file, line=self.line, column=self.column))
        key = f"{self.key}: " if self.key else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{place}: {key}found {self.found}, expected {self.allowed}{fix}"


class SettingsError(ConfigurationError):
    """The configuration has one or more problems; `problems` holds all of them."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems, key=lambda p: (p.file, p.line, p.key)))
        super().__init__("\n".join(str(p) for p in self.problems))


def spelled(path: Sequence[str | int]) -> str:
    """`("sources", 0, "paths")` as a person writes it: `sources[0].paths`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
