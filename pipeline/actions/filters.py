"""Conditions on metadata, such as `date_gte: "2024-01-01"`; read strictly, and nothing in them is evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from operator import ge, gt, le, lt
from typing import Any

from pipeline.documents.plain_text import json_type_name
from pipeline.errors import SearchError
from pipeline.ledger import storable

OPERATORS = ("eq", "ne", "gte", "gt", "lte", "lt", "in", "contains")
"""Suffixes of a key, each after an underscore; a key without one tests for equality."""

_UNSUPPORTED = (
    "nin",
    "not_in",
    "not_contains",
    "like",
    "regex",
    "startswith",
    "endswith",
    "exists",
    "between",
)
"""Operators of other stores' filters; refused, since as part of a key they would silently match nothing."""

_FORM = "write key: value, or one of " + ", ".join(f"key_{name}" for name in OPERATORS)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One line of a filter."""

    key: str
    operator: str
    """One of OPERATORS."""
    value: Any
    """Text, number or truth value; a list of these for `in`."""


def parse(conditions: object) -> tuple[Condition, ...]:
    """Read the conditions of a filter, all of which must hold; None has no conditions.

    A suffix is always an operator: for a key that itself ends in one, append `_eq`, as in
    `logged_in_eq: true`. Dates, as YAML reads them, become text of the form 2024-01-31.

    Raises:
        SearchError: the filter is malformed; the message says what is allowed.
    """
    if conditions is None:
        return ()
    if not isinstance(conditions, Mapping):
        raise SearchError(f"the filter is {json_type_name(conditions)}", fix=f"give a mapping: {_FORM}")
    return tuple(_condition(key, value) for key, value in conditions.items())


def _condition(key: object, value: object) -> Condition:
    if not isinstance(key, str) or not key.strip() or key.startswith("$"):
        raise SearchError(f"the filter has the key {key!r}", fix=_FORM)
    name, operator = _split(str(storable(key)))
    if operator == "in":
        if not isinstance(value, list | tuple):
            raise SearchError(
                f"the filter's {key} has no list", fix=f"give a list, or {key}_eq for metadata of that name"
            )
        return Condition(key=name, operator=operator, value=[_scalar(key, one) for one in value])
    plain = _scalar(key, value)
    if operator in {"gt", "gte", "lt", "lte"} and isinstance(plain, bool):
        raise SearchError(f"the filter's {key} compares with a truth value", fix="compare numbers or text")
    return Condition(key=name, operator=operator, value=plain)


def _split(key: str) -> tuple[str, str]:
    if any(key.endswith("_" + name) for name in _UNSUPPORTED):
        raise SearchError(
            f"the filter's {key} ends in an unknown operator",
            fix=f"{_FORM}; {key}_eq for metadata of that name",
        )
    for operator in OPERATORS:
        name = key.removesuffix("_" + operator)
        if name != key:
            if not name or name.endswith("_"):
                raise SearchError(f"the filter's {key} names no key before its operator", fix=_FORM)
            return name, operator
    return key, "eq"


def _scalar(key: str, value: object) -> str | int | float | bool:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        raise SearchError(f"the filter's {key} is no finite number", fix="give a finite number")
    if isinstance(value, str | int | float):
        return storable(value)  # type: ignore[no-any-return]
    raise SearchError(
        f"the filter's {key} has a {type(value).__name__} for a value",
        fix="give a text, a number or a truth value; only key_in takes a list",
    )


def matches(metadata: Mapping[str, Any], conditions: Sequence[Condition]) -> bool:
    """True if every condition holds; values of another type than expected do not match, except for `ne`."""
    return all(
        _CHECKS[one.operator](metadata[one.key], one.value) if one.key in metadata else one.operator == "ne"
        for one in conditions
    )


def _same(value: Any, expected: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1, although Python says so."""
    return bool(value == expected) and isinstance(value, bool) is isinstance(expected, bool)


def _contains(value: Any, expected: Any) -> bool:
    if isinstance(value, str):
        return isinstance(expected, str) and expected in value
    return isinstance(value, list | tuple) and any(_same(one, expected) for one in value)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def check(value: Any, expected: Any) -> bool:
        kinds = [str if isinstance(one, str) else type(one) in (int, float) for one in (value, expected)]
        return kinds in ([str, str], [True, True]) and compare(value, expected)

    return check


_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": _same,
    "ne": lambda value, expected: not _same(value, expected),
    "gte": _ordered(ge),
    "gt": _ordered(gt),
    "lte": _ordered(le),
    "lt": _ordered(lt),
    "in": lambda value, options: any(_same(value, one) for one in options),
    "contains": _contains,
}
