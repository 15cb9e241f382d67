"""A YAML file as plain values with their lines, its variables replaced."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from workers.settings.problems import Fault, KeyPath, Place, Problem, SettingsError, spelled

MOST_BYTES = 1_000_000
MOST_VALUES = 50_000
"""Counted after aliases are followed, so that a few lines cannot become a gigabyte."""
MOST_LEVELS = 24

_SCALARS = frozenset(
    "tag:yaml.org,2002:" + name for name in ("str", "int", "float", "bool", "null", "timestamp", "value")
)
_COLLECTIONS = frozenset({"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"})


@dataclass(kw_only=True)
class Tree:
    """What a file says; paths begin behind the root key."""

    file: str
    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unset: dict[KeyPath, list[Problem]] = field(default_factory=dict)
    """Those of `problems` that are a variable without a value."""

    def place(self, path: KeyPath) -> Place:
        """Where the value at `path` was written, else what surrounds it, else the file."""
        for end in range(len(path), -1, -1):
            if path[:end] in self.places:
                return self.places[path[:end]]
        return Place(file=self.file)

    def complain(self, path: KeyPath, fault: Fault, place: Place | None = None) -> None:
        """Add a problem with the value at `path`."""
        problem = Problem.at(place or self.place(path), path, fault)
        self.problems.append(problem)
        if fault.unset:
            self.unset.setdefault(path, []).append(problem)


def read(path: Path, *, root: str, lookup: Lookup, unused: Callable[[KeyPath], str]) -> Tree:
    """The mapping under the key `root` of a file.

    Subtrees for which `unused` gives a reason are left out unread, with a note. Wrong variables and
    duplicate keys are collected in `problems`.

    Raises:
        SettingsError: the file cannot be read, is no YAML or has another root.
    """
    tree = Tree(file=str(path))
    node = _composed(_text(path), tree)
    walk = _Walk(tree, lookup, unused)
    walk.document(node, root)
    return tree


def _text(path: Path) -> str:
    def refused(found: str, allowed: str, line: int = 0) -> SettingsError:
        place = Place(file=str(path), line=line)
        return SettingsError([Problem.at(place, (), Fault(found=found, allowed=allowed))])

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
        mark = error.problem_mark or error.context_mark
        found = ", ".join(part for part in (error.context, error.problem) if part)
        place = Place(file=tree.file, line=mark.line + 1, column=mark.column + 1) if mark else None
        fault = Fault(found=f"broken YAML ({found})", allowed="valid YAML", fix=_hint(text, mark))
        tree.complain((), fault, place)
    except yaml.reader.ReaderError as error:
        place = Place(file=tree.file, line=text.count("\n", 0, error.position) + 1)
        found = f"a character YAML forbids (#x{ord(str(error.character)):04x})"
        tree.complain((), Fault(found=found, allowed="printable text"), place)
    except RecursionError:
        tree.complain((), Fault(found="lists or mappings nested too deeply", allowed=_LEVELS))
    if tree.problems:
        raise SettingsError(tree.problems)
    return node


def _hint(text: str, mark: yaml.Mark | None) -> str:
    lines = text.split("\n")
    line = lines[mark.line] if mark and mark.line < len(lines) else ""
    return "inside { } and [ ] a variable needs quotes" if "${" in line else ""


_LEVELS = f"at most {MOST_LEVELS} levels"


class _TooMuchError(Exception):
    """The walk is over: whatever follows is more of the same."""


class _Walk:
    """Builds values from nodes; every fault is noted and the walk goes on."""

    def __init__(self, tree: Tree, lookup: Lookup, unused: Callable[[KeyPath], str]) -> None:
        self.tree = tree
        self.lookup = lookup
        self.unused = unused
        self.left = MOST_VALUES
        self.builders: dict[type[yaml.Node], Callable[[Any, KeyPath], Any]] = {
            yaml.ScalarNode: self.scalar,
            yaml.SequenceNode: self.sequence,
            yaml.MappingNode: self.mapping,
        }

    def document(self, node: yaml.Node | None, root: str) -> None:
        """Fill the tree from the mapping under `root`."""
        wanted = f"one mapping under the key {root}"
        keys = [key.value for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        if not isinstance(node, yaml.MappingNode) or root not in keys:
            found = f"no root key {root}"
            place = self.at(node.value[0][0]) if isinstance(node, yaml.MappingNode) and keys else None
            self.tree.complain((), Fault(found=found, allowed=wanted), place)
            raise SettingsError(self.tree.problems)
        first = keys.index(root)
        for index, (key, value) in enumerate(node.value):
            if index == first:
                self.under_root(key, value, wanted)
            else:
                found = f"a second root key {root}" if key.value == root else "another root key"
                path = (str(key.value),) if isinstance(key, yaml.ScalarNode) else ()
                self.tree.complain(path, Fault(found=found, allowed=wanted), self.at(key))

    def under_root(self, key: yaml.Node, value: yaml.Node, wanted: str) -> None:
        """The root's own value: a mapping, or nothing, which means all defaults."""
        self.tree.places[()] = self.at(key)
        try:
            data = self.value(value, ())
        except _TooMuchError:
            return
        if data is None or isinstance(data, dict):
            self.tree.data = data or {}
        else:
            self.tree.complain((), Fault(found="no mapping", allowed=wanted))

    def at(self, node: yaml.Node) -> Place:
        """The line of a node."""
        return Place(file=self.tree.file, line=node.start_mark.line + 1)

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        """The node as a plain value."""
        self.left -= 1
        if self.left < 0 or len(path) > MOST_LEVELS:
            limit = _LEVELS if len(path) > MOST_LEVELS else f"at most {MOST_VALUES:,} values"
            self.tree.complain(path[:3], Fault(found="too much (aliases repeat their values)", allowed=limit))
            raise _TooMuchError
        allowed = _SCALARS if isinstance(node, yaml.ScalarNode) else _COLLECTIONS
        if node.tag not in allowed:
            self.tree.complain(path, Fault(found=f"the YAML tag {node.tag}", allowed="a value without a tag"))
            return None
        return self.builders[type(node)](node, path)

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        """A text, a number, true or false, or nothing."""
        text = str(node.value)
        if "${" not in text:
            return scalar(text, node.tag)
        try:
            return substitute(text, self.lookup, plain=node.style is None)
        except VariableFault as error:
            for fault in error.faults:
                self.tree.complain(path, fault, self.at(node))
        return None

    def sequence(self, node: yaml.SequenceNode, path: KeyPath) -> list[Any]:
        """A list; each item keeps its own line."""
        items = []
        for index, item in enumerate(node.value):
            self.tree.places[(*path, index)] = self.at(item)
            items.append(self.value(item, (*path, index)))
        return items

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        """A mapping with text keys, each of them once."""
        result: dict[str, Any] = {}
        for key, value in node.value:
            name = str(key.value) if isinstance(key, yaml.ScalarNode) else ""
            here = (*path, name)
            if self.refused(key, here):
                continue
            self.tree.places[here] = self.at(key)
            reason = self.unused(here)
            if reason:
                place = self.at(key)
                self.tree.notes.append(f"{place}: {spelled(here)}: not used: {reason}")
            else:
                result[name] = self.value(value, here)
        return result

    def refused(self, key: yaml.Node, path: KeyPath) -> bool:
        """Complain about a key that cannot be taken."""
        faults = (
            (
                not isinstance(key, yaml.ScalarNode),
                Fault(found="a key that is no text", allowed="a text key"),
            ),
            (
                key.tag == "tag:yaml.org,2002:merge",
                Fault(found="a merge key", allowed="the keys themselves", fix="repeat them here"),
            ),
            (
                path in self.tree.places,
                Fault(
                    found="the key a second time",
                    allowed="each key once",
                    fix=f"the first is on line {self.tree.place(path).line}",
                ),
            ),
        )
        for wrong, fault in faults:
            if wrong:
                self.tree.complain(path, fault, self.at(key))
                return True
        return False


Lookup = Callable[[str], str | None]
"""The value of a variable, None if it is not set; raises `VariableFault` if it cannot be read."""

_TOKEN = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
_INSIDE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)
_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset({_TAG + name for name in ("int", "float", "bool", "null")})


class VariableFault(ValueError):
    """Variables of one value that are not set, cannot be read or are written wrongly."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(f.found for f in faults))
        self.faults = faults


class Substituted(str):
    """Text that came out of variables; it remembers how it was written."""

    __slots__ = ("origin", "secret", "whole")
    origin: str
    """The value as written, such as `${TOP_K}`."""
    whole: bool
    """The plain value was one variable and nothing else, so that `5` may become a number."""
    secret: bool
    """Something in it came from the environment and is not to be shown."""

    def __new__(cls, text: str, *, origin: str, whole: bool, secret: bool = True) -> Self:
        """Text with its origin; `secret` False lets messages show it."""
        value = super().__new__(cls, text)
        value.origin, value.whole, value.secret = origin, whole, secret
        return value


def substitute(text: str, lookup: Lookup, *, plain: bool = True) -> str:
    """`text` with its variables replaced; what they hold is not searched for variables again.

    `plain` False is a quoted value, which stays text. A text without variables comes back as it is.

    Raises:
        VariableFault: with every fault of this text.
    """
    if "${" not in text:
        return text
    faults: list[Fault] = []
    looked_up: list[bool] = []

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        try:
            value, from_outside = _value(match, lookup)
        except VariableFault as error:
            faults.extend(error.faults)
            return ""
        looked_up.append(from_outside)
        return value

    result = _TOKEN.sub(replaced, text)
    if faults:
        raise VariableFault(faults)
    if not looked_up:
        return result
    whole = plain and _TOKEN.fullmatch(text) is not None
    return Substituted(result, origin=text, whole=whole, secret=any(looked_up))


def _value(match: re.Match[str], lookup: Lookup) -> tuple[str, bool]:
    inside = _INSIDE.fullmatch(match[1] or "")
    if inside is None or "${" in (inside[2] or ""):
        # What stands in the braces may be a mistyped secret, so the message does not repeat it.
        fault = Fault(
            found="a '${' that begins no variable",
            allowed="${NAME} or ${NAME:-default}",
            fix="write $${ for a literal ${; variables do not nest",
        )
        raise VariableFault([fault])
    name, default = inside[1], inside[2]
    value = lookup(name)
    if value is None and default is None:
        fault = Fault(
            found=f"${{{name}}}, which is not set",
            allowed="a value",
            fix=f"set the variable {name} or write ${{{name}:-default}}",
            unset=True,
        )
        raise VariableFault([fault])
    # As in a shell, `:-` also replaces a variable that is set and empty.
    if default is not None and not value:
        return default, False
    return value or "", True


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


def typed(value: Any) -> Any:
    """A substituted value as YAML would have read it unquoted; everything else unchanged."""
    return scalar(str(value)) if isinstance(value, Substituted) and value.whole else value


def plain(value: Any) -> Any:
    """`value` with every substituted text inside typed: for free-form values."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    value = typed(value)
    return str(value) if isinstance(value, Substituted) else value
