"""A YAML file as plain values with their lines, its variables replaced, and what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from connectors.documents.values import BoundedLoader
from pipeline.errors import ConfigurationError

MOST_VALUES = 50_000
"""Most values of a file, counted after aliases are followed, so that a few lines cannot become a gigabyte."""
MOST_LEVELS = 24

ROOT = "rag"
KeyPath = tuple[str | int, ...]
"""Keys and list positions from the file's root to a value."""
Lookup = Callable[[str], str | None]
"""The value of a variable, None if it is not set; raises `SettingsError` if it cannot be read."""

_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset(_TAG + name for name in ("int", "float", "bool", "null"))
_SCALARS = _TYPED | {_TAG + name for name in ("str", "timestamp", "value")}
_TOKEN = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-((?:(?!\$\{)[^}])*))?\})?")


class Location(NamedTuple):
    """Place where a value was written."""

    file: str
    """The file as the caller named it, or the environment variable."""
    line: int = 0
    """Line from 1; 0 if there is none."""
    column: int = 0
    """Column from 1; 0 if the line says enough."""

    def __str__(self) -> str:
        return ":".join(str(part) for part in self if part)


_NOWHERE = Location("")


@dataclass(frozen=True, kw_only=True)
class SettingsProblem:
    """A problem to correct; never holds a secret."""

    at: Location = _NOWHERE
    key: str = ""
    """The key's path as written in YAML, such as `retrieval.topK`; empty for the whole file."""
    actual: str
    allowed: str
    fix: str = ""
    unset: bool = False
    """True for a variable without a value: no problem of a source that is switched off."""

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.at}: {key}found {self.actual}, expected {self.allowed}{fix}"


class SettingsError(ConfigurationError):
    """The configuration has one or more problems; `problems` holds all of them."""

    def __init__(self, problems: Iterable[SettingsProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (p.at.file, p.at.line, p.key)))
        super().__init__("\n".join(str(p) for p in self.problems))


class Variable(NamedTuple):
    """Spelling of a value that came out of variables."""

    origin: str
    """Text as written, such as `${TOP_K}`."""
    secret: bool
    """True if a part of it came from the environment and is not to be shown."""
    whole: bool
    """True if the plain value was one variable and nothing else."""


@dataclass(kw_only=True)
class Tree:
    """Content of a file: values, places, variables, problems."""

    file: str
    data: Any = field(default_factory=dict)
    places: dict[KeyPath, Location] = field(default_factory=dict)
    variables: dict[KeyPath, Variable] = field(default_factory=dict)
    problems: dict[KeyPath, list[SettingsProblem]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def at(self, path: KeyPath) -> Any:
        """The value at `path`; None if there is none."""
        value = self.data
        for part in path:
            try:
                value = value[part]
            except (LookupError, TypeError):
                return None
        return value

    def place(self, path: KeyPath) -> Location:
        """Place where the value at `path` was written, else what surrounds it, else the file."""
        surrounding = (path[:end] for end in range(len(path), -1, -1))
        return next((self.places[p] for p in surrounding if p in self.places), Location(self.file))

    def complain(self, path: KeyPath, *faults: SettingsProblem, at: Location | None = None) -> None:
        """Add problems with the value at `path`."""
        placed = [replace(fault, at=at or self.place(path), key=spelled(path)) for fault in faults]
        self.problems.setdefault(path, []).extend(placed)


def spelled(path: Sequence[str | int]) -> str:
    """`("rag", "sources", 0, "paths")` as a person writes it: `sources[0].paths`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(f".{ROOT}.").removeprefix(".")


def names_in(origin: str) -> list[str]:
    """The variables of `Variable.origin`, which one that overrides the file is itself."""
    return [match[1] for match in _TOKEN.finditer(origin) if match[1]] or [origin]


def substitute(text: str, lookup: Lookup, *, plain: bool = True) -> tuple[str, Variable | None]:
    """`text` with its variables replaced, and how it was written; None if it has no variables.

    What variables hold is not searched for variables again. `plain` False is a quoted value.

    Raises:
        SettingsError: with every fault of this text.
    """
    faults: list[SettingsProblem] = []
    looked_up: list[bool] = []

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match.groups()
        if name is None:
            # The text in the braces may be a mistyped secret, so the message does not repeat it.
            actual, fix = (
                "a '${' that begins no variable",
                "write $${ for a literal ${; variables do not nest",
            )
            faults.append(SettingsProblem(actual=actual, allowed="${NAME} or ${NAME:-default}", fix=fix))
            return ""
        try:
            value = lookup(name)
        except SettingsError as error:
            faults.extend(error.problems)
            return ""
        if value is None and default is None:
            fix = f"set the variable {name} or write ${{{name}:-default}}"
            actual = f"${{{name}}}, which is not set"
            faults.append(SettingsProblem(actual=actual, allowed="a value", fix=fix, unset=True))
        # Like in a shell, `:-` also replaces a variable that is set and empty.
        looked_up.append(bool(value) or default is None)
        return value or default or ""

    result = _TOKEN.sub(replaced, text)
    if faults:
        raise SettingsError(faults)
    whole = plain and _TOKEN.fullmatch(text) is not None
    return result, Variable(text, any(looked_up), whole) if looked_up else None


def read(path: Path, *, lookup: Lookup, unused: Callable[[KeyPath], str]) -> Tree:
    """Read a file into a tree.

    Subtrees for which `unused` gives a reason are left out unread, with a note. Wrong variables and
    duplicate keys are collected in `problems`.

    Raises:
        SettingsError: the file cannot be read, or is no YAML.
    """
    tree = Tree(file=str(path))
    text = ""
    try:
        text = path.read_text(encoding="utf-8-sig")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            tree.data = _Reader(tree, lookup, unused).value(node, ())
    except OSError as error:
        actual = f"a file that cannot be read ({error.strerror})"
        raise _refused(path, actual, "a configuration file; `larder config init` writes one") from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise _refused(path, "bytes that are not UTF-8", "text in UTF-8", line) from None
    except yaml.MarkedYAMLError as error:
        line, column = (mark.line, mark.column) if (mark := error.problem_mark) else (0, 0)
        actual = ", ".join(part for part in (error.context, error.problem) if part)
        fix = "inside { } and [ ] a variable needs quotes" if "${" in text.split("\n")[line] else ""
        raise _refused(path, f"broken YAML ({actual})", "valid YAML", line + 1, column + 1, fix) from None
    except yaml.reader.ReaderError as error:
        actual = f"a character YAML forbids (#x{ord(str(error.character)):04x})"
        raise _refused(path, actual, "printable text", text.count("\n", 0, error.position) + 1) from None
    except RecursionError:
        actual = "lists or mappings nested too deeply, or too much (aliases repeat their values)"
        allowed = f"at most {MOST_LEVELS} levels and {MOST_VALUES:,} values"
        raise _refused(path, actual, allowed) from None
    return tree


def _refused(
    path: Path, actual: str, allowed: str, line: int = 0, column: int = 0, fix: str = ""
) -> SettingsError:
    at = Location(str(path), line, column)
    return SettingsError([SettingsProblem(at=at, actual=actual, allowed=allowed, fix=fix)])


@dataclass
class _Reader:
    """Builds values from nodes; every fault is noted and the walk goes on."""

    tree: Tree
    lookup: Lookup
    unused: Callable[[KeyPath], str]
    values_left: int = MOST_VALUES

    def line_of(self, node: yaml.Node) -> Location:
        """Place where a node begins."""
        return Location(self.tree.file, node.start_mark.line + 1)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The node as a plain value."""
        self.values_left -= 1
        if self.values_left < 0 or len(path) > MOST_LEVELS:
            raise RecursionError  # whatever follows is more of the same
        self.tree.places.setdefault(path, self.line_of(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self.scalar(node, path)
        fault = SettingsProblem(actual=f"the YAML tag {node.tag}", allowed="a value without a tag")
        self.tree.complain(path, fault)
        return None

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """A text, a number, true or false, or nothing.

        Dates stay text, and so do infinity and NaN: neither has a place in JSON.
        """
        text = str(node.value)
        if "${" in text:
            try:
                text, variable = substitute(text, self.lookup, plain=node.style is None)
            except SettingsError as error:
                self.tree.complain(path, *error.problems, at=self.line_of(node))
                return None
            if variable:
                self.tree.variables[path] = variable
        elif node.tag in _TYPED:
            with suppress(ValueError, yaml.YAMLError):
                value = BoundedLoader("").construct_object(node)
                if not isinstance(value, float) or math.isfinite(value):
                    return value
        return text

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """A mapping with text keys, each of them once. A key that is one empty variable is a key left out."""
        result: dict[str, Any] = {}
        for key, value in node.value:
            wrong = None
            key_path = (*path, str(key.value) if isinstance(key, yaml.ScalarNode) else "")
            if not isinstance(key, yaml.ScalarNode) or key.tag == _TAG + "merge":
                actual = "a key that is no text, or a merge key"
                wrong = SettingsProblem(actual=actual, allowed="a text key", fix="repeat merged keys here")
            elif key_path in self.tree.places:
                fix = f"the first is on line {self.tree.place(key_path).line}"
                wrong = SettingsProblem(actual="the key a second time", allowed="each key once", fix=fix)
            if wrong:
                self.tree.complain(key_path, wrong, at=self.line_of(key))
                continue
            self.tree.places[key_path] = self.line_of(key)
            if reason := self.unused(key_path):
                self.tree.notes.append(f"{self.line_of(key)}: {spelled(key_path)}: not used: {reason}")
                continue
            plain = self.value(value, key_path)
            if plain or not getattr(self.tree.variables.get(key_path), "whole", False):
                result[str(key.value)] = plain
        return result
