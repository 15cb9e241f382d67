"""Variables in scalar values: `${NAME}`, `${NAME:-default}`, and `$${` for a literal `${`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Self

import yaml

from workers.settings.problems import Fault

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
