"""Mappings of the configuration as pydantic models, and the kinds of value their keys take."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit
from zoneinfo import ZoneInfo

import annotated_types
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from pipeline.documents import Mismatch as Mismatch  # noqa: PLC0414 - exported for modules that define sections
from pipeline.errors.http_rules import is_metadata_service

MASK = "***"


class ConfigSection(BaseModel):
    """A mapping of the configuration: frozen, camelCase in YAML (snake_case is read too), no other keys."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        hide_input_in_errors=True,
        allow_inf_nan=False,
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_is_defaults(cls, value: Any) -> Any:
        """A section whose lines are all commented out is read by YAML as nothing."""
        return {} if value is None else value


@dataclass(frozen=True)
class Expected:
    """Description of a kind of value, for messages and the configuration reference."""

    text: str


def refusal(expected: str, fix: str = "", actual: str = "nothing") -> PydanticCustomError:
    """The error of a value that is not as `expected`; `actual` describes the value of a key left out."""
    context = {"expected": expected, "fix": fix, "found": actual}
    return PydanticCustomError("larder", "expected {expected} {fix}", context)


def mismatched(mismatches: Iterable[Mismatch], section: ConfigSection | None = None) -> ValidationError:
    """One error for all mismatches, each at its key; `section` supplies the defaults of keys left out."""
    lines = []
    for m in mismatches:
        default = getattr(section, m.key, None)
        actual = "nothing" if default is None or default == {} else f"the default {default}"
        error = refusal(m.expected, m.fix, actual)
        lines.append(InitErrorDetails(type=error, loc=(to_camel(m.key),), input=None))
    return ValidationError.from_exception_data("section", lines, hide_input=True)


def refuse(section: ConfigSection, mismatches: Sequence[Mismatch]) -> None:
    """Report all mismatches of a section.

    Raises:
        ValidationError: there is at least one.
    """
    if mismatches:
        raise mismatched(mismatches, section)


@dataclass(frozen=True)
class OneOf:
    """Marks a text that must be one of `choices`; upper and lower case are equal."""

    choices: Iterable[str]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._choice, handler(source))

    def _choice(self, value: Any) -> str:
        if isinstance(value, str) and value.lower() in self.choices:
            return value.lower()
        raise refusal(self.text)

    @property
    def text(self) -> str:
        """Description of the choices, for a message."""
        return "one of " + ", ".join(self.choices)


def _no_flag(value: Any) -> Any:
    """YAML reads `yes` as true, which Python takes for the number 1."""
    if isinstance(value, bool):
        raise ValueError  # noqa: TRY004 (pydantic takes no TypeError)
    return value


def as_list(value: Any) -> Any:
    """Text with commas as a list, nothing as an empty list; everything else unchanged."""
    if value is None:
        return []
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _name(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", value):
        raise ValueError
    return value


def time_zone(value: str) -> str:
    """The value itself, if it names a time zone.

    Raises:
        ValueError: it does not.
    """
    try:
        ZoneInfo(value)
    except (OSError, KeyError):
        raise ValueError from None
    return value


_SIZES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _size(value: Any) -> int:
    match = re.fullmatch(r"(\d{1,12})([kmg]?)b?", str(value).strip().lower())
    if isinstance(value, bool) or not isinstance(value, str | int) or not match or not int(match[1]):
        raise ValueError
    return int(match[1]) * _SIZES[match[2]]


_DURATIONS = {"": 1, "s": 1, "m": 60, "h": 3600}


def _seconds(value: Any) -> float:
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)([smh]?)", str(value).strip().lower())
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or not match
        or not float(match[1])
    ):
        raise ValueError
    return float(match[1]) * _DURATIONS[match[2]]


def _web(value: str) -> str:
    url = urlsplit(value)
    if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
        raise ValueError
    return no_metadata_service(value.rstrip("/"))


_ODD = re.compile(r"[\\\s\x00-\x20\x7f]")
_METADATA_SERVICES = ("metadata", "metadata.google.internal")


def host_of(url: str) -> str:
    """The host of an address; numbers in the usual form, however they are written: 0x7f.1 is 127.0.0.1."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    with suppress(OSError, ValueError):
        host = socket.inet_ntoa(socket.inet_aton(host))
    with suppress(ValueError):
        address = ip_address(host)
        host = str(getattr(address, "ipv4_mapped", None) or address)
    return host


def no_metadata_service(url: str) -> str:
    """The address itself, unless it is a cloud's metadata service, which hands keys to any program on the machine.

    Raises:
        PydanticCustomError: it is.
    """
    if _ODD.search(url):
        raise refusal(
            "an address without blanks and backslashes", "not all programs read one to the same host"
        )
    host = host_of(url)
    if host in _METADATA_SERVICES or is_metadata_service(host):
        raise refusal("the address of a service", "this one hands out the keys of a cloud's machine")
    return url


def without_secrets(address: str) -> str:
    """A URL with password and option values masked; host and database stay, to help find errors."""
    url = urlsplit(address)
    user, at, host = url.netloc.rpartition("@")
    if ":" in user:
        user = f"{user.partition(':')[0]}:{MASK}"
    # Options such as sslpassword are secrets too, and there is no list of those that are.
    query = urlencode([(key, MASK) for key, _ in parse_qsl(url.query)], safe="*")
    return urlunsplit((url.scheme, f"{user}{at}{host}", url.path, query, ""))


Whole = Annotated[int, BeforeValidator(_no_flag), Expected("a whole number")]
Positive = Annotated[Whole, annotated_types.Ge(1)]
Number = Annotated[int | float, BeforeValidator(_no_flag), Expected("a number")]
Flag = Annotated[bool, Expected("true or false")]
Text = Annotated[str, annotated_types.MinLen(1), Expected("text")]
Texts = Annotated[
    tuple[Text, ...], BeforeValidator(as_list), Expected("a list of texts, or text with commas")
]
Name = Annotated[Text, AfterValidator(_name), Expected("a name of letters, digits and _ . -")]
Zone = Annotated[
    Text, AfterValidator(time_zone), Expected("the name of a time zone such as UTC or Europe/Berlin")
]
Size = Annotated[int, BeforeValidator(_size), Expected("a size such as 500k or 10m")]
Seconds = Annotated[float, BeforeValidator(_seconds), Expected("a time such as 60s or 5m")]
Folder = Annotated[Path, Expected("a path")]
WebUrl = Annotated[
    Text,
    AfterValidator(_web),
    PlainSerializer(without_secrets, when_used="json"),
    Expected("an address such as https://example.com without a password in it"),
]
Secret = Annotated[
    SecretStr,
    annotated_types.MinLen(1),
    PlainSerializer(lambda _: MASK, when_used="json"),
    Expected("a secret text"),
]


def secrets_in(value: object) -> Iterator[str]:
    """Every secret of a section and those below it."""
    if isinstance(value, SecretStr):
        yield value.get_secret_value()
    inner = (
        vars(value).values() if isinstance(value, BaseModel) else value if isinstance(value, tuple) else ()
    )
    for member in inner:
        yield from secrets_in(member)


def secret_value(secret: SecretStr | None) -> str:
    """The secret itself; empty if there is none."""
    return secret.get_secret_value() if secret else ""
