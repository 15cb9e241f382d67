"""The kinds of value a key may take, each with the words that describe it to a person."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo

import annotated_types
from croniter import CroniterBadCronError, CroniterBadDateError, croniter
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SecretStr,
    Strict,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

from pipeline.languages import LANGUAGES
from workers.settings.yamlfile import Substituted, typed


class Section(BaseModel):
    """A mapping of the configuration: frozen, camelCase in YAML (snake_case is read too), no other keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_defaults(cls, value: Any) -> Any:
        return without_empty(value)


def without_empty(value: Any) -> Any:
    """A section as written, without what only looks written.

    A section whose lines are all commented out is read by YAML as nothing, and a key that is one empty variable
    is a key left out: both mean the default.
    """
    if not isinstance(value, dict):
        return {} if value is None else value
    return {k: v for k, v in value.items() if not (isinstance(v, Substituted) and v.whole and not v)}


@dataclass(frozen=True)
class Expected:
    """How messages and the documentation name a kind of value."""

    text: str


def refusal(expected: str, fix: str = "", found: str = "nothing") -> PydanticCustomError:
    """The error of a value that is not what `expected` says; `found` speaks for a key left out."""
    context = {"expected": expected, "fix": fix, "found": found}
    return PydanticCustomError("larder", "expected {expected} {fix}", context)


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A key that is fine alone and wrong beside another; `key` in snake_case."""

    key: str
    expected: str
    fix: str = ""


def mismatched(title: str, mismatches: Iterable[Mismatch], section: Section | None = None) -> ValidationError:
    """The error of all mismatches, each at its key; `section` tells the defaults of keys left out."""
    lines = [
        InitErrorDetails(
            type=refusal(m.expected, m.fix, _default(section, m.key)), loc=(to_camel(m.key),), input=None
        )
        for m in mismatches
    ]
    return ValidationError.from_exception_data(title, lines, hide_input=True)


def refuse(section: Section, mismatches: Sequence[Mismatch]) -> None:
    """Report all mismatches of a section.

    Raises:
        ValidationError: there is at least one.
    """
    if mismatches:
        raise mismatched(type(section).__name__, mismatches, section)


def _default(section: Section | None, key: str) -> str:
    value = getattr(section, key, None)
    return "nothing" if value is None else f"the default {value}"


@dataclass(frozen=True)
class OneOf:
    """The value is a key of a table or a member of a list."""

    known: Iterable[str]

    def __call__(self, value: Any) -> str:
        """The value, if it is known; upper and lower case are alike."""
        if isinstance(value, str) and value.lower() in self.known:
            return value.lower()
        raise refusal(self.text)

    @property
    def text(self) -> str:
        """The words for a message."""
        return "one of " + ", ".join(self.known)


def _cron(value: str) -> str:
    fix = "minute, hour, day of month, month, day of week"
    expected = "a cron text of five fields such as '0 2 * * *'"
    if len(value.split()) != 5 or re.search(r"(?<![a-z])[hr](?![a-z])", value.lower()):  # noqa: PLR2004
        raise refusal(expected, fix)
    try:
        # The first date is fixed so that a file is right or wrong on every day of the year.
        croniter(value, datetime(2024, 1, 1, tzinfo=UTC)).get_next()
    except CroniterBadDateError:
        raise refusal("a cron text with a date that comes", "that day never comes") from None
    except (CroniterBadCronError, ValueError, KeyError, IndexError):
        raise refusal(expected, fix) from None
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise refusal(_NAME)
    return value


def zone(value: str) -> str:
    """The name of a time zone, if it is one."""
    try:
        ZoneInfo(value)
    except (ValueError, OSError, KeyError):
        raise refusal(_ZONE) from None
    return value


_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}
_SIZE = "a size such as 500k or 10m"


def _size(value: Any) -> int:
    value = typed(value)
    found = re.fullmatch(r"(\d{1,12})([kmg]?)b?", str(value).strip().lower())
    if isinstance(value, bool) or not isinstance(value, str | int) or not found or not int(found[1]):
        raise refusal(_SIZE)
    return int(found[1]) * _SIZES[found[2]]


def listed(value: Any) -> Any:
    """Text with commas as a list, nothing as an empty list; everything else unchanged."""
    if value is None:
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _similarity(value: Any) -> float | str:
    value = typed(value)
    if value == "auto":
        return "auto"
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise refusal(_SIMILARITY)
    return float(value)


def _separators(value: Any) -> Any:
    # Single quotes in YAML keep '\n' as two characters; whoever writes it means a line break.
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return items
    return [s.replace("\\n", "\n").replace("\\t", "\t") if isinstance(s, str) else s for s in items]


@dataclass(frozen=True)
class _Scheme:
    allowed: tuple[str, ...]
    expected: str

    def __call__(self, value: SecretStr) -> SecretStr:
        try:
            url = urlsplit(value.get_secret_value())
            _ = url.port
        except ValueError:
            raise refusal(self.expected) from None
        if url.scheme not in self.allowed or not (url.netloc or url.path or url.query):
            raise refusal(self.expected)
        return value


def _web(value: str) -> str:
    try:
        url = urlsplit(value)
    except ValueError:
        raise refusal(_WEB) from None
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise refusal(_WEB)
    return value.rstrip("/")


_NAME = "a name of letters, digits and _ . -"
_ZONE = "the name of a time zone such as UTC or Europe/Berlin"
_SIMILARITY = "auto, or a number from 0 to 1"
_WEB = "an address such as https://example.com without a password in it"
_DATABASE = "a URL such as postgresql://USER:PASSWORD@HOST:5432/larder"
_BROKER = "a URL such as redis://:PASSWORD@HOST:6379/0"

Whole = Annotated[int, Strict(), BeforeValidator(typed), Expected("a whole number")]
Number = Annotated[float, Strict(), BeforeValidator(typed), Expected("a number")]
Flag = Annotated[bool, Strict(), BeforeValidator(typed), Expected("true or false")]
Text = Annotated[str, annotated_types.MinLen(1), AfterValidator(str), Expected("text")]
Texts = Annotated[tuple[Text, ...], BeforeValidator(listed), Expected("a list of texts, or text with commas")]
Separators = Annotated[
    tuple[Text, ...], BeforeValidator(_separators), annotated_types.MinLen(1), Expected("a list of texts")
]
Name = Annotated[
    Text,
    AfterValidator(_name),
    Expected(_NAME),
]
Cron = Annotated[Text, AfterValidator(_cron), Expected("a cron text such as '0 2 * * *'")]
Zone = Annotated[Text, AfterValidator(zone), Expected(_ZONE)]
Size = Annotated[int, BeforeValidator(_size), Expected(_SIZE)]
Language = Annotated[str, BeforeValidator(OneOf(LANGUAGES)), OneOf(LANGUAGES)]
Similarity = Annotated[float | Literal["auto"], BeforeValidator(_similarity), Expected(_SIMILARITY)]
Folder = Annotated[Path, Expected("a path")]
WebUrl = Annotated[Text, AfterValidator(_web), Expected(_WEB)]
Secret = Annotated[SecretStr, annotated_types.MinLen(1), Expected("a secret text")]
DatabaseUrl = Annotated[
    SecretStr,
    AfterValidator(_Scheme(("postgresql", "postgres", "postgresql+psycopg"), _DATABASE)),
    Expected(_DATABASE),
]
BrokerUrl = Annotated[
    SecretStr, AfterValidator(_Scheme(("redis", "rediss", "redis+socket"), _BROKER)), Expected(_BROKER)
]
