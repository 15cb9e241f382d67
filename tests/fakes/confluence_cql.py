"""The part of CQL that a reader needs, as strict as the service about fields, operators and dates."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from tests.fakes.confluence_index import Entry
from tests.fakes.confluence_records import number

Match = Callable[[Entry], bool]
Ancestors = Callable[[Entry], frozenset[str]]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<sign>>=|<=|!=|!~|[=~<>(),])|(?P<word>[^\s"'()=<>!~,]+))"""
)
_DATE = re.compile(r"(\d{4})[-/](\d{2})[-/](\d{2})(?: (\d{2}):(\d{2}))?")
_RESERVED = {"and", "or", "not", "in", "order", "by", "asc", "desc"}
_TYPES = {"page", "blogpost", "comment", "attachment", "space", "user", "folder", "whiteboard", "database"}
_EXACT = ("=", "!=")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SIGNS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("type", "space", "id", "content", "ancestor", "parent", "container"), _EXACT),
    **dict.fromkeys(("label", "creator"), _EXACT),
    "title": ("=", "!=", "~", "!~"),
    "text": ("~", "!~"),
    **dict.fromkeys(("lastmodified", "created"), tuple(_COMPARE)),
}
_ORDERS = ("lastmodified", "created", "title", "id")


class CqlError(Exception):
    """The service answers 400 to this query."""

    def __init__(self, message: str) -> None:
        super().__init__(f"Could not parse cql : {message}")


@dataclass(frozen=True, kw_only=True)
class Query:
    """A parsed query."""

    matches: Match
    order: tuple[tuple[str, bool], ...]
    """Field and whether it is descending; empty: by relevance, which is no order to rely on."""


def parse(text: str, *, zone: ZoneInfo, server: bool, ancestors: Ancestors) -> Query:
    """The query `text` of an account in `zone`.

    Raises:
        CqlError: unknown field or operator, bad date, `status` on a server, or simply not CQL.
    """
    return _Parser(text, zone, server, ancestors).query()


def sort_key(entry: Entry, order: tuple[tuple[str, bool], ...], tie: int) -> list[Any]:
    """Comparable and JSON; equal places are split by `tie`."""
    return [_signed(_ORDER_VALUES[name](entry), descending) for name, descending in order] + [tie]


def _signed(value: float | str, descending: bool) -> float | list[int]:
    if isinstance(value, str):
        codes = [-ord(c) if descending else ord(c) for c in value.lower()]
        return [*codes, 1 if descending else -(10**9)]  # "ab" before "abc", and after it when descending
    return -value if descending else value


_ORDER_VALUES: dict[str, Callable[[Entry], float | str]] = {
    "lastmodified": lambda e: e.when.timestamp(),
    "created": lambda e: e.created.timestamp(),
    "title": lambda e: e.title,
    "id": lambda e: float(number(e.id)),
}


class _Parser:
    """Recursive descent: or, and, not, clause."""

    def __init__(self, text: str, zone: ZoneInfo, server: bool, ancestors: Ancestors) -> None:
        self._zone = zone
        self._server = server
        self._ancestors = ancestors
        self._tokens = _tokens(text)
        self._at = 0

    def query(self) -> Query:
        matches = self._any()
        order = self._order() if self._word("order") else ()
        if self._at < len(self._tokens):
            raise CqlError(f"unexpected '{self._tokens[self._at][1]}'")
        return Query(matches=matches, order=order)

    def _any(self) -> Match:
        parts = [self._all()]
        while self._word("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda entry: any(part(entry) for part in parts)

    def _all(self) -> Match:
        parts = [self._negation()]
        while self._word("and"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else lambda entry: all(part(entry) for part in parts)

    def _negation(self) -> Match:
        if self._word("not"):
            inner = self._negation()
            return lambda entry: not inner(entry)
        if self._sign("("):
            inner = self._any()
            self._expect(")")
            return inner
        return self._clause()

    def _clause(self) -> Match:
        kind, name = self._next()
        name = name.lower()
        if kind != "word" or name in _RESERVED:
            raise CqlError(f"expected a field and found '{name}'")
        if name == "status" and not self._server:
            values, negated = self._values("status", _EXACT)
            return lambda _entry: ("current" in values) != negated
        if name not in _SIGNS:
            raise CqlError(f"field '{name}' is not searchable")
        if name in ("lastmodified", "created"):
            return self._date_clause(name)
        if name in ("title", "text"):
            return self._text_clause(name)
        values, negated = self._values(name, _EXACT)
        return self._membership(name, values, negated)

    def _membership(self, name: str, values: frozenset[str], negated: bool) -> Match:
        if name == "type" and not values <= _TYPES:
            raise CqlError(f"unknown type in {sorted(values)}")
        if name == "creator":  # an account id on Cloud ends with the name
            values = frozenset(v.rsplit(":", 1)[-1] for v in values)
        value_of: dict[str, Callable[[Entry], frozenset[str]]] = {
            "type": lambda e: frozenset({e.kind}),
            "space": lambda e: frozenset({e.space}),
            "id": lambda e: frozenset({e.id}),
            "content": lambda e: frozenset({e.id}),
            "parent": lambda e: frozenset({e.parent or ""}) if e.container is None else frozenset(),
            "container": lambda e: frozenset({e.container or ""}),
            "ancestor": self._ancestors,
            "label": lambda e: e.labels,
            "creator": lambda e: frozenset({e.creator}),
        }
        values_of = value_of[name]
        return lambda entry: bool(values_of(entry) & values) != negated

    def _values(self, name: str, signs: tuple[str, ...]) -> tuple[frozenset[str], bool]:
        """What a clause names, and whether it is to be left out."""
        negated = self._word("not")
        if negated or self._peek("word", "in"):
            if not self._word("in"):
                raise CqlError("expected 'in' behind 'not'")
            self._expect("(")
            found = {self._value()}
            while self._sign(","):
                found.add(self._value())
            self._expect(")")
            return frozenset(found), negated
        kind, sign = self._next()
        if kind != "sign" or sign not in signs:
            raise CqlError(f"operator '{sign}' does not go with field '{name}'")
        return frozenset({self._value()}), sign == "!="

    def _text_clause(self, name: str) -> Match:
        if self._peek("word", "in") or self._peek("word", "not"):
            values, negated = self._values(name, ())
            return lambda entry: (entry.title in values) != negated
        kind, sign = self._next()
        if kind != "sign" or sign not in _SIGNS[name]:
            raise CqlError(f"operator '{sign}' does not go with field '{name}'")
        value = self._value()
        negated = sign.startswith("!")
        if sign.endswith("="):
            return lambda entry: (entry.title == value) != negated
        words = [word.rstrip("*") for word in value.lower().split()]
        return lambda entry: (
            all(
                word in (entry.title if name == "title" else f"{entry.title} {entry.text}").lower()
                for word in words
            )
            != negated
        )

    def _date_clause(self, name: str) -> Match:
        kind, sign = self._next()
        if kind != "sign" or sign not in _COMPARE:
            raise CqlError(f"operator '{sign}' does not go with field '{name}'")
        wanted = _instant(self._value(), self._zone)
        compare = _COMPARE[sign]
        # The index knows minutes only: with `>` the rest of the named minute is lost.
        if name == "created":
            return lambda entry: compare(entry.created.replace(second=0, microsecond=0), wanted)
        return lambda entry: compare(entry.when.replace(second=0, microsecond=0), wanted)

    def _order(self) -> tuple[tuple[str, bool], ...]:
        if not self._word("by"):
            raise CqlError("expected 'by' behind 'order'")
        found = [self._order_field()]
        while self._sign(","):
            found.append(self._order_field())
        return tuple(found)

    def _order_field(self) -> tuple[str, bool]:
        name = self._next()[1].lower()
        if name not in _ORDERS:
            raise CqlError(f"cannot order by '{name}'")
        descending = self._word("desc")
        if not descending:
            self._word("asc")
        return name, descending

    def _value(self) -> str:
        kind, text = self._next()
        if kind == "sign" or (kind == "word" and text.lower() in _RESERVED):
            raise CqlError(f"expected a value and found '{text}'")
        return re.sub(r"\\(.)", r"\1", text[1:-1]) if kind == "text" else text

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise CqlError("the query ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _peek(self, kind: str, text: str) -> bool:
        return self._at < len(self._tokens) and (
            self._tokens[self._at][0] == kind and self._tokens[self._at][1].lower() == text
        )

    def _word(self, text: str) -> bool:
        found = self._peek("word", text)
        self._at += found
        return found

    def _sign(self, text: str) -> bool:
        found = self._peek("sign", text)
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        if not self._sign(text):
            raise CqlError(f"expected '{text}'")


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise CqlError(f"cannot read from character {at}")
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


def _instant(text: str, zone: ZoneInfo) -> datetime:
    """A date literal, read in the zone of the account."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise CqlError(f"'{text}' is no date: yyyy-MM-dd, or yyyy-MM-dd HH:mm")
    try:
        year, month, day, hour, minute = (int(part or 0) for part in match.groups())
        return datetime(year, month, day, hour, minute, tzinfo=zone).astimezone(UTC)
    except ValueError as error:
        raise CqlError(f"'{text}' is no date: {error}") from error
