"""Conditions on metadata, such as `date_gte: "2024-01-01"`; read strictly, and nothing in them is evaluated."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from operator import ge, gt, le, lt
from typing import Any

from pipeline.errors import SearchError
from pipeline.ledger import storable

OPERATORS = ("eq", "ne", "gte", "gt", "lte", "lt", "in", "contains")
"""Suffixes of a key, each behind an underscore; a key without one asks for equality."""

_STRANGERS = ("nin", "not_in", "not_contains", "like", "regex", "startswith", "endswith", "exists", "between")
"""Suffixes of other stores' filters: read as part of a key they would find nothing without a word."""

_FORM = "write key: value, or one of " + ", ".join(f"key_{name}" for name in OPERATORS)


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One line of a filter."""

    key: str
    operator: str
    """One of OPERATORS."""
    value: Any
    """Text, number or truth value; a list of these for `in`."""


def parse(wanted: object) -> tuple[Condition, ...]:
    """The conditions of a filter, which all must hold; None asks nothing.

    A suffix is always an operator: a key that itself ends in one is asked for with `_eq` behind it, as in
    `logged_in_eq: true`. Dates, as YAML reads them, become text of the form 2024-01-31.

    Raises:
        SearchError: the filter is malformed; the message says what is allowed.
    """
    if wanted is None:
        return ()
    if not isinstance(wanted, Mapping):
        raise SearchError(f"the filter is a {type(wanted).__name__}", fix=f"give a mapping: {_FORM}")
    return tuple(_condition(key, value) for key, value in wanted.items())


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
    if any(key.endswith("_" + name) for name in _STRANGERS):
        raise SearchError(
            f"the filter's {key} ends in no operator of ours",
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
    """True if every condition holds. Values of another type than asked for do not match, except for `ne`."""
    return all(
        _CHECKS[one.operator](metadata[one.key], one.value) if one.key in metadata else one.operator == "ne"
        for one in conditions
    )


def _same(found: Any, wanted: Any) -> bool:
    """Equal as JSON: 1 is 1.0, but true is not 1, although Python says so."""
    return bool(found == wanted) and isinstance(found, bool) is isinstance(wanted, bool)


def _contains(found: Any, wanted: Any) -> bool:
    if isinstance(found, str):
        return isinstance(wanted, str) and wanted in found
    return isinstance(found, list | tuple) and any(_same(one, wanted) for one in found)


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def check(found: Any, wanted: Any) -> bool:
        kinds = [str if isinstance(one, str) else type(one) in (int, float) for one in (found, wanted)]
        return kinds in ([str, str], [True, True]) and compare(found, wanted)

    return check


_CHECKS: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": _same,
    "ne": lambda found, wanted: not _same(found, wanted),
    "gte": _ordered(ge),
    "gt": _ordered(gt),
    "lte": _ordered(le),
    "lt": _ordered(lt),
    "in": lambda found, wanted: any(_same(found, one) for one in wanted),
    "contains": _contains,
}
