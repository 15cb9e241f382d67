"""The kinds of value that only keys outside of sources take."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from difflib import get_close_matches
from inspect import signature
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl, urlsplit

import annotated_types
from croniter import CroniterBadCronError, CroniterBadDateError, croniter
from pydantic import AfterValidator, BeforeValidator, PlainSerializer, SecretStr

from connectors.sections import Expected, Number, OneOf, Text, Whole, refusal, without_secrets
from pipeline.documents import LANGUAGES


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


def _separators(value: Any) -> Any:
    # Single quotes in YAML keep '\n' as two characters; whoever writes it means a line break.
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        return items
    return [s.replace("\\n", "\n").replace("\\t", "\t") if isinstance(s, str) else s for s in items]


def _scheme(*allowed: str) -> AfterValidator:
    def checked(value: SecretStr) -> SecretStr:
        url = urlsplit(value.get_secret_value())
        _ = url.port
        if url.scheme not in allowed or not (url.netloc or url.path or url.query):
            raise ValueError
        return value

    return AfterValidator(checked)


def _known_options(value: SecretStr) -> SecretStr:
    """Refuse options that no client of Redis knows: each fails at them with a traceback, and only when it connects."""
    url = urlsplit(value.get_secret_value())
    names = [name for name, _ in parse_qsl(url.query, keep_blank_values=True)]
    if names and url.scheme.startswith("redis"):
        from redis import connection

        clients = (
            getattr(connection, name) for name in ("AbstractConnection", "Connection", "SSLConnection")
        )
        supported = {
            "virtual_host",
            "max_connections",
            *(name for c in clients for name in signature(c).parameters),
        }
        if unknown := next((name for name in names if name not in supported), None):
            near = next(iter(get_close_matches(unknown, supported, 1)), "db")
            raise refusal(f"an address without the option {unknown!r}", f"did you mean {near}?")
        check = dict(parse_qsl(url.query)).get("ssl_cert_reqs", "required").removeprefix("CERT_").lower()
        if check not in {"required", "optional", "none"}:
            raise refusal(
                "an address with ssl_cert_reqs as required, optional or none", "leave it out: required"
            )
    return value


_Masked = PlainSerializer(lambda secret: without_secrets(secret.get_secret_value()), when_used="json")
Separators = Annotated[
    tuple[Text, ...], BeforeValidator(_separators), annotated_types.MinLen(1), Expected("a list of texts")
]
Cron = Annotated[Text, AfterValidator(_cron), Expected("a cron text such as '0 2 * * *'")]
Language = Annotated[str, OneOf(LANGUAGES)]
Similarity = Annotated[
    Literal["auto"] | Annotated[Number, annotated_types.Interval(ge=0, le=1)],
    Expected("auto, or a number from 0 to 1"),
]
Processes = Annotated[
    Literal["auto"] | Annotated[Whole, annotated_types.Interval(ge=1, le=256)],
    Expected("auto, or a whole number from 1 to 256"),
]
DatabaseUrl = Annotated[
    SecretStr,
    _Masked,
    _scheme("postgresql", "postgres", "postgresql+psycopg"),
    Expected("a URL such as postgresql://USER:PASSWORD@HOST:5432/larder"),
]
ValkeyUrl = Annotated[
    SecretStr,
    _Masked,
    _scheme("redis", "rediss", "redis+socket"),
    AfterValidator(_known_options),
    Expected("a URL such as redis://:PASSWORD@HOST:6379/0"),
]
BrokerUrl = Annotated[
    SecretStr,
    _Masked,
    _scheme("redis", "rediss", "redis+socket", "amqp", "amqps"),
    AfterValidator(_known_options),
    Expected("a URL such as redis://:PASSWORD@HOST:6379/0, or amqp://USER:PASSWORD@HOST:5672/VHOST"),
]
