"""WIQL as far as a reader of work items needs it: flat queries, with the service's own refusals."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from tests.fakes.azure_devops_errors import bad_query
from tests.fakes.azure_devops_fields import LONG_TEXT, Field

Row = Mapping[str, Any]
"""An item's fields by reference name, with System.Id and System.Rev."""
Match = Callable[[Row], bool]

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")|(?P<field>\[[^\]]*\])|(?P<sign><>|>=|<=|[=<>(),])"""
    r"""|(?P<number>[+-]?\s*\d+(?:\.\d+)?)|(?P<macro>@\w+)|(?P<word>[A-Za-z_][\w.]*))"""
)
_TIME = re.compile(r"\d[T ]\s*\d{1,2}:\d")
_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: bool(a == b),
    "<>": lambda a, b: bool(a != b),
    ">": lambda a, b: bool(a > b),
    ">=": lambda a, b: bool(a >= b),
    "<": lambda a, b: bool(a < b),
    "<=": lambda a, b: bool(a <= b),
}
LONGEST = 32_000


class UnknownWiql(Exception):
    """The real service knows it and this fake does not: whoever asks must learn of it at once."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a query means besides its text."""

    fields: Mapping[str, Field]
    areas: Collection[str]
    """Every area and iteration path there is, in lower case."""
    now: datetime
    zone: ZoneInfo
    """The account's: dates without a zone are read in it."""
    precise: bool
    """timePrecision=true was on the query string."""
    me: str
    project: str | None
    """@project: from the path."""


@dataclass(frozen=True, kw_only=True)
class Query:
    columns: tuple[Field, ...]
    match: Match
    order: tuple[tuple[Field, bool], ...]
    """With True for descending."""


def parse(text: str, scope: Scope) -> Query:
    """The query, ready to run.

    Raises:
        Refusal: a 400 in the service's words.
        UnknownWiql: WIQL that this fake does not know (links, ASOF, EVER).
    """
    if len(text) > LONGEST:
        raise bad_query("TF401262: The query text is longer than 32000 characters.")
    return _Parser(_tokens(text), scope).query()


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise bad_query("TF51006: The query statement is not valid.", text[at : at + 20])
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
        at = match.end()
    return found


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]], scope: Scope) -> None:
        self._tokens = tokens
        self._scope = scope
        self._at = 0

    def query(self) -> Query:
        self._expect("select")
        columns = [self._field()]
        while self._take(","):
            columns.append(self._field())
        self._expect("from")
        if not self._take("workitems"):
            raise UnknownWiql(f"this fake answers flat queries only, not FROM {self._peek()[1]}")
        match: Match = self._either() if self._take("where") else lambda _row: True
        order: list[tuple[Field, bool]] = []
        if self._take("order"):
            self._expect("by")
            while not order or self._take(","):
                order.append((self._field(), self._direction()))
        if self._at < len(self._tokens):
            self._stop()
        return Query(columns=tuple(columns), match=match, order=tuple(order))

    # --- tokens

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _take(self, *words: str) -> bool:
        """All these words or signs in a row, in any case; or nothing is taken."""
        for n, word in enumerate(words):
            place = self._at + n
            if place >= len(self._tokens):
                return False
            kind, text = self._tokens[place]
            if kind not in ("word", "sign") or text.lower() != word:
                return False
        self._at += len(words)
        return True

    def _expect(self, word: str) -> None:
        if not self._take(word):
            self._stop(f"TF51006: The query statement is missing a {word.upper()} clause.")

    def _stop(self, message: str = "TF51011: Expecting end of string.") -> None:
        kind, text = self._peek()
        if kind == "word" and text.lower() in ("asof", "ever", "mode", "was"):
            raise UnknownWiql(f"this fake does not know {text}")
        raise bad_query(message, text)

    def _direction(self) -> bool:
        if self._take("desc"):
            return True
        self._take("asc")
        return False

    def _field(self) -> Field:
        kind, text = self._peek()
        self._at += 1
        if kind == "field":
            name = text[1:-1].strip().lower()
            for known in self._scope.fields.values():
                if name in (known.reference.lower(), known.name.lower()):
                    return known
        raise bad_query("TF51005: The query references a field that does not exist.", text)

    # --- conditions

    def _either(self) -> Match:
        parts = [self._all()]
        while self._take("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else lambda row: any(part(row) for part in parts)

    def _all(self) -> Match:
        parts = [self._one()]
        while self._take("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else lambda row: all(part(row) for part in parts)

    def _one(self) -> Match:
        if self._take("not"):
            inner = self._one()
            return lambda row: not inner(row)
        if self._take("("):
            inner = self._either()
            if not self._take(")"):
                self._stop("TF51008: Expecting closing parenthesis.")
            return inner
        if self._peek()[1].lower() == "ever":
            self._stop()
        return self._condition()

    def _condition(self) -> Match:
        start = self._at
        field = self._field()
        if self._take("is", "empty") or self._take("is", "not", "empty"):
            empty = self._tokens[self._at - 2][1].lower() == "is"
            return lambda row: (row.get(field.reference) is None) is empty
        negative = self._take("not")
        match = self._words(field) if self._peek()[0] == "word" else self._signs(field, start)
        return (lambda row: not match(row)) if negative else match

    def _words(self, field: Field) -> Match:
        if self._take("in"):
            return self._in(field)
        if self._take("under"):
            return self._under(field)
        if self._take("contains"):
            whole = self._take("words")
            return _contains(field, str(self._literal()), whole=whole)
        raise bad_query("TF51007: The operator is not known.", self._peek()[1])

    def _in(self, field: Field) -> Match:
        start = self._at
        if not self._take("("):
            self._stop("TF51008: Expecting opening parenthesis.")
        if field.type in ("integer", "double"):
            return self._in_numbers(field)
        tests = [self._compare(field, "=", start)]
        while self._take(","):
            tests.append(self._compare(field, "=", start))
        if not self._take(")"):
            self._stop("TF51008: Expecting closing parenthesis.")
        return lambda row: any(test(row) for test in tests)

    def _in_numbers(self, field: Field) -> Match:
        """As a set: long lists of ids over many items would take seconds otherwise."""
        wanted: set[object] = {self._literal()}
        while self._take(","):
            wanted.add(self._literal())
        if not self._take(")"):
            self._stop("TF51008: Expecting closing parenthesis.")
        numbers = frozenset(_number(value, f"[{field.reference}] IN") for value in wanted)
        return lambda row: row.get(field.reference) in numbers

    def _under(self, field: Field) -> Match:
        if field.type != "treePath":
            message = "TF51012: The UNDER operator can only be used with classification fields."
            raise bad_query(message, f"[{field.reference}]")
        root = self._path(field, str(self._literal()))
        return lambda row: (str(row.get(field.reference, "")).lower() + "\\").startswith(root + "\\")

    def _signs(self, field: Field, start: int) -> Match:
        kind, sign = self._peek()
        if kind != "sign" or sign not in _COMPARE:
            self._stop("TF51007: The operator is missing.")
        self._at += 1
        return self._compare(field, sign, start)

    def _compare(self, field: Field, sign: str, start: int) -> Match:
        if field.type in LONG_TEXT or field.type == "tags":
            raise bad_query(
                f"TF51010: The operator {sign} cannot be used with this field.", f"[{field.reference}]"
            )
        literal = self._literal()
        cause = " ".join(text for _, text in self._tokens[start : self._at])
        test = _COMPARE[sign]
        if field.type == "dateTime":
            return self._dates(field, test, literal, cause)
        if field.type in ("integer", "double"):
            return _numbers(field, sign, literal, cause)
        if field.type == "treePath" and sign in ("=", "<>"):
            literal = self._path(field, str(literal))
        wanted = str(literal).lower()
        if field.type == "identity":
            return lambda row: test(wanted in _names(row.get(field.reference)), True)
        return lambda row: test(str(row.get(field.reference, "")).lower(), wanted)

    def _path(self, field: Field, path: str) -> str:
        path = path.strip("\\").lower()
        if path not in self._scope.areas:
            kind = "area" if "Area" in field.reference else "iteration"
            raise bad_query(f"TF51011: The specified {kind} path does not exist.", f"'{path}'")
        return path

    def _literal(self) -> object:
        kind, text = self._peek()
        self._at += 1
        if kind == "text":
            return text[1:-1].replace(text[0] * 2, text[0])
        if kind == "number":
            return float(text.replace(" ", ""))
        if kind == "macro":
            return self._macro(text)
        if kind == "word" and text.lower() in ("true", "false"):
            return text.title()
        raise bad_query("TF51009: A value is expected.", text)

    def _macro(self, text: str) -> object:
        name = text.lower()
        if name == "@me":
            return self._scope.me
        if name == "@project":
            if self._scope.project is None:
                raise bad_query("TF51009: The macro @Project needs a project in the address.", text)
            return self._scope.project
        if name == "@today":
            day = self._scope.now.astimezone(self._scope.zone).date()
            if self._peek()[0] == "number":
                day += timedelta(days=float(str(self._literal())))
            return day
        raise bad_query("TF51009: The macro is not known.", text)

    def _dates(self, field: Field, test: Callable[[Any, Any], bool], literal: object, cause: str) -> Match:
        zone = self._scope.zone
        if not isinstance(literal, date) and _TIME.search(str(literal)) and not self._scope.precise:
            message = "You cannot supply a time with the date when running a query using date precision."
            raise bad_query(message, cause)
        wanted = read_date(literal, zone, cause)
        if self._scope.precise:
            return lambda row: row.get(field.reference) is not None and test(row[field.reference], wanted)
        day = wanted.astimezone(zone).date()

        def same_day(row: Row) -> bool:
            value = row.get(field.reference)
            return value is not None and test(value.astimezone(zone).date(), day)

        return same_day


def read_date(literal: object, zone: ZoneInfo, cause: str) -> datetime:
    """A literal as a moment: with Z or an offset as it says, else in the account's zone."""
    if isinstance(literal, date):
        return datetime(literal.year, literal.month, literal.day, tzinfo=zone)
    text = str(literal).strip().replace("/", "-")
    american = re.fullmatch(r"(\d{1,2})-(\d{1,2})-(\d{4})(.*)", text)
    if american:
        text = f"{american[3]}-{int(american[1]):02d}-{int(american[2]):02d}{american[4]}"
    text = re.sub(r"(\.\d{1,7})", lambda m: m[1][:7].ljust(7, "0"), text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise bad_query("TF51009: The date is not valid.", cause) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)


def _numbers(field: Field, sign: str, literal: object, cause: str) -> Match:
    wanted = _number(literal, cause)
    test = _COMPARE[sign]
    reference = field.reference
    if sign == "<>":
        return lambda row: row.get(reference) != wanted
    return lambda row: row.get(reference) is not None and test(row[reference], wanted)


def _number(literal: object, cause: str) -> float:
    try:
        return float(str(literal))
    except ValueError:
        raise bad_query("TF51009: A number is expected.", cause) from None


def _names(person: object) -> tuple[str, ...]:
    """What a person may be called in a query: name, mail, both; nobody is the empty text."""
    text = str(person or "").lower()
    name, _, mail = text.partition("<")
    return (text, name.strip(), mail.rstrip("> "))


def _contains(field: Field, text: str, *, whole: bool) -> Match:
    wanted, reference = text.lower(), field.reference
    if field.type == "tags":  # a tag is found by its whole name
        return lambda row: wanted in [t.strip().lower() for t in str(row.get(reference, "")).split(";")]
    if field.type in ("integer", "double", "dateTime", "treePath", "boolean"):
        raise bad_query("TF51010: The operator CONTAINS cannot be used with this field.", f"[{reference}]")
    if whole:
        words = [re.compile(rf"\b{re.escape(word)}\b") for word in wanted.split()]
        return lambda row: all(word.search(str(row.get(reference, "")).lower()) for word in words)
    return lambda row: wanted in str(row.get(reference, "")).lower()
