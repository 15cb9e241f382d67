"""A YAML file as plain values with their lines, its variables replaced, and what is wrong with it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from pipeline.errors import ConfigurationError

MOST_BYTES = 1_000_000
MOST_VALUES = 50_000
"""Counted after aliases are followed, so that a few lines cannot become a gigabyte."""
MOST_LEVELS = 24

KeyPath = tuple[str | int, ...]
"""Keys and list positions from the root key `rag` (not included) to a value."""
Lookup = Callable[[str], str | None]
"""The value of a variable, None if it is not set; raises `VariableFault` if it cannot be read."""

_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset(_TAG + name for name in ("int", "float", "bool", "null"))
_SCALARS = _TYPED | {_TAG + name for name in ("str", "timestamp", "value")}
_TOKEN = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


class Location(NamedTuple):
    """Where a value was written."""

    file: str
    """The file as the caller named it, or the environment variable."""
    line: int = 0
    """From 1; 0 if there is no line."""
    column: int = 0
    """From 1; 0 if the line says enough."""

    def __str__(self) -> str:
        return ":".join([self.file, *(str(n) for n in (self.line, self.column) if n)])


_NOWHERE = Location("")


@dataclass(frozen=True, kw_only=True)
class SettingsProblem:
    """One thing to correct; never holds a secret."""

    at: Location = _NOWHERE
    key: str = ""
    """The key's path as written in YAML, such as `retrieval.topK`; empty for the whole file."""
    found: str
    allowed: str
    fix: str = ""
    unset: bool = False
    """A variable has no value: no problem of a source that is switched off."""

    def to_json(self) -> dict[str, str | int]:
        """`{"file", "line", "key", "found", "allowed", "fix"}`."""
        told = {"key": self.key, "found": self.found, "allowed": self.allowed, "fix": self.fix}
        return {"file": self.at.file, "line": self.at.line, **told}

    def __str__(self) -> str:
        key = f"{self.key}: " if self.key else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{self.at}: {key}found {self.found}, expected {self.allowed}{fix}"


class SettingsError(ConfigurationError):
    """The configuration has one or more problems; `problems` holds all of them."""

    def __init__(self, problems: Iterable[SettingsProblem]) -> None:
        self.problems = tuple(sorted(problems, key=lambda p: (p.at.file, p.at.line, p.key)))
        super().__init__("\n".join(str(p) for p in self.problems))


class VariableFault(ValueError):
    """Variables of one value that are not set, cannot be read or are written wrongly."""

    def __init__(self, *faults: SettingsProblem) -> None:
        super().__init__("; ".join(f.found for f in faults))
        self.faults = faults


class Variable(NamedTuple):
    """How a value that came out of variables was written."""

    origin: str
    """Such as `${TOP_K}`."""
    secret: bool
    """Something in it came from the environment and is not to be shown."""
    whole: bool
    """The plain value was one variable and nothing else."""


@dataclass(kw_only=True)
class Tree:
    """What a file says; paths begin behind the root key."""

    file: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Location] = field(default_factory=dict)
    variables: dict[KeyPath, Variable] = field(default_factory=dict)
    problems: dict[KeyPath, list[SettingsProblem]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def place(self, path: KeyPath) -> Location:
        """Where the value at `path` was written, else what surrounds it, else the file."""
        surrounding = (path[:end] for end in range(len(path), -1, -1))
        return next((self.places[p] for p in surrounding if p in self.places), Location(self.file))

    def complain(self, path: KeyPath, *faults: SettingsProblem, at: Location | None = None) -> None:
        """Add problems with the value at `path`."""
        where = at or self.place(path)
        found = [replace(fault, at=where, key=spelled(path)) for fault in faults]
        self.problems.setdefault(path, []).extend(found)

    def error(self) -> SettingsError:
        """All problems as an error."""
        return SettingsError(problem for found in self.problems.values() for problem in found)


def spelled(path: Sequence[str | int]) -> str:
    """`("sources", 0, "paths")` as a person writes it: `sources[0].paths`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def substitute(text: str, lookup: Lookup, *, plain: bool = True) -> tuple[str, Variable | None]:
    """`text` with its variables replaced, and how it was written; None if it has no variables.

    What variables hold is not searched for variables again. `plain` False is a quoted value.

    Raises:
        VariableFault: with every fault of this text.
    """
    faults: list[SettingsProblem] = []
    looked_up: list[bool] = []

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        try:
            value, from_outside = _value(match[1] or "", lookup)
        except VariableFault as error:
            faults.extend(error.faults)
            return ""
        looked_up.append(from_outside)
        return value

    result = _TOKEN.sub(replaced, text)
    if faults:
        raise VariableFault(*faults)
    whole = plain and _TOKEN.fullmatch(text) is not None
    return result, Variable(text, any(looked_up), whole) if looked_up else None


def _value(written: str, lookup: Lookup) -> tuple[str, bool]:
    """The value of `NAME` or `NAME:-default`, and whether it came from outside."""
    inside = _INSIDE.fullmatch(written)
    if inside is None or "${" in (inside[2] or ""):
        # What stands in the braces may be a mistyped secret, so the message does not repeat it.
        found, fix = "a '${' that begins no variable", "write $${ for a literal ${; variables do not nest"
        raise VariableFault(SettingsProblem(found=found, allowed="${NAME} or ${NAME:-default}", fix=fix))
    name, default = inside[1], inside[2]
    value = lookup(name)
    if value is None and default is None:
        found, fix = (
            f"${{{name}}}, which is not set",
            f"set the variable {name} or write ${{{name}:-default}}",
        )
        raise VariableFault(SettingsProblem(found=found, allowed="a value", fix=fix, unset=True))
    # As in a shell, `:-` also replaces a variable that is set and empty.
    return (default, False) if default is not None and not value else (value or "", True)


def scalar(text: str, tag: str | None = None) -> Any:
    """What YAML makes of an unquoted text: a number, true or false, nothing, or the text.

    Dates stay text, and so do infinity and NaN: neither has a place in JSON.
    """
    if tag is None:
        tag = yaml.SafeLoader("").resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag not in _TYPED:
        return text
    try:
        value = yaml.constructor.SafeConstructor().construct_object(yaml.ScalarNode(tag, text))
    except (ValueError, yaml.YAMLError):
        return text
    return text if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path, *, root: str, lookup: Lookup, unused: Callable[[KeyPath], str]) -> Tree:
    """The mapping under the key `root` of a file.

    Subtrees for which `unused` gives a reason are left out unread, with a note. Wrong variables and
    duplicate keys are collected in `problems`.

    Raises:
        SettingsError: the file cannot be read, is no YAML or has another root.
    """
    tree = Tree(file=str(path))
    _Reader(tree, lookup, unused).document(_composed(_text(path), tree), root)
    return tree


def _text(path: Path) -> str:
    def refused(found: str, allowed: str, line: int = 0) -> SettingsError:
        return SettingsError([SettingsProblem(at=Location(str(path), line), found=found, allowed=allowed)])

    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise refused("no such file", "a configuration file; `larder config init` writes one") from None
    except OSError as error:
        raise refused(f"a file that cannot be read ({error.strerror})", "a readable file") from None
    if len(content) > MOST_BYTES:
        raise refused(f"more than {MOST_BYTES:,} bytes", "a smaller file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise refused("bytes that are not UTF-8", "text in UTF-8", line) from None


def _composed(text: str, tree: Tree) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        found = ", ".join(part for part in (error.context, error.problem) if part)
        at = Location(tree.file, mark.line + 1, mark.column + 1) if mark else None
        line = (text.split("\n")[mark.line : mark.line + 1] or [""])[0] if mark else ""
        fix = "inside { } and [ ] a variable needs quotes" if "${" in line else ""
        tree.complain(
            (), SettingsProblem(found=f"broken YAML ({found})", allowed="valid YAML", fix=fix), at=at
        )
    except yaml.reader.ReaderError as error:
        at = Location(tree.file, text.count("\n", 0, error.position) + 1)
        found = f"a character YAML forbids (#x{ord(str(error.character)):04x})"
        tree.complain((), SettingsProblem(found=found, allowed="printable text"), at=at)
    except RecursionError:
        tree.complain((), SettingsProblem(found="lists or mappings nested too deeply", allowed=_LEVELS))
    if tree.problems:
        raise tree.error()
    return node


_LEVELS = f"at most {MOST_LEVELS} levels"


class _TooMuchError(Exception):
    """The walk is over: whatever follows is more of the same."""


class _Reader:
    """Builds values from nodes; every fault is noted and the walk goes on."""

    def __init__(self, tree: Tree, lookup: Lookup, unused: Callable[[KeyPath], str]) -> None:
        self.tree = tree
        self.lookup = lookup
        self.unused = unused
        self.left = MOST_VALUES

    def complain(
        self, path: KeyPath, found: str, allowed: str, fix: str = "", *, at: yaml.Node | None
    ) -> None:
        """Add a problem with the value at `path`, written at a node."""
        problem = SettingsProblem(found=found, allowed=allowed, fix=fix)
        self.tree.complain(path, problem, at=self.line_of(at) if at else None)

    def line_of(self, node: yaml.Node) -> Location:
        """Where a node begins."""
        return Location(self.tree.file, node.start_mark.line + 1)

    def document(self, node: yaml.Node | None, root: str) -> None:
        """Fill the tree from the mapping under `root`."""
        wanted = f"one mapping under the key {root}"
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        if root not in [key.value for key, _ in pairs]:
            self.complain((), f"no root key {root}", wanted, at=pairs[0][0] if pairs else None)
            raise self.tree.error()
        seen = False
        for key, value in pairs:
            if key.value == root and not seen:
                seen = True
                self.under_root(key, value, wanted)
            else:
                found = f"a second root key {root}" if key.value == root else "another root key"
                path = (str(key.value),) if isinstance(key, yaml.ScalarNode) else ()
                self.complain(path, found, wanted, at=key)

    def under_root(self, key: yaml.Node, value: yaml.Node, wanted: str) -> None:
        """The root's own value: a mapping, or nothing, which means all defaults."""
        self.tree.places[()] = self.line_of(key)
        try:
            data = self.value(value, ())
        except _TooMuchError:
            return
        if data is None or isinstance(data, dict):
            self.tree.data = data or {}
        else:
            self.complain((), "no mapping", wanted, at=key)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The node as a plain value."""
        self.count(path)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.item(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALARS:
            return self.scalar(node, path)
        self.complain(path, f"the YAML tag {node.tag}", "a value without a tag", at=None)
        return None

    def count(self, path: KeyPath) -> None:
        """Count one more value, and end the walk at one too many or too deep."""
        self.left -= 1
        if self.left < 0 or len(path) > MOST_LEVELS:
            limit = _LEVELS if len(path) > MOST_LEVELS else f"at most {MOST_VALUES:,} values"
            self.complain(path[:3], "too much (aliases repeat their values)", limit, at=None)
            raise _TooMuchError

    def item(self, node: yaml.Node, path: KeyPath) -> Any:
        """One of a list; each keeps its own line."""
        self.tree.places[path] = self.line_of(node)
        return self.value(node, path)

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """A text, a number, true or false, or nothing."""
        text = str(node.value)
        if "${" not in text:
            return scalar(text, node.tag)
        try:
            result, variable = substitute(text, self.lookup, plain=node.style is None)
        except VariableFault as error:
            self.tree.complain(path, *error.faults, at=self.line_of(node))
            return None
        if variable:
            self.tree.variables[path] = variable
        return result

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """A mapping with text keys, each of them once. A key that is one empty variable is a key left out."""
        result: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            here = (*path, name)
            if self.refused(key, here):
                continue
            self.tree.places[here] = self.line_of(key)
            if reason := self.unused(here):
                self.tree.notes.append(f"{self.line_of(key)}: {spelled(here)}: not used: {reason}")
                continue
            found = self.value(value, here)
            variable = self.tree.variables.get(here)
            if found or not (variable and variable.whole):
                result[name] = found
        return result

    def refused(self, key: yaml.Node, path: KeyPath) -> bool:
        """Complain about a key that cannot be taken."""
        if not isinstance(key, yaml.ScalarNode):
            self.complain(path, "a key that is no text", "a text key", at=key)
        elif key.tag == _TAG + "merge":
            self.complain(path, "a merge key", "the keys themselves", "repeat them here", at=key)
        elif path in self.tree.places:
            fix = f"the first is on line {self.tree.place(path).line}"
            self.complain(path, "the key a second time", "each key once", fix, at=key)
        else:
            return False
        return True
