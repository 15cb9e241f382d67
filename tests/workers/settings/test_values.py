"""Single kinds of value: what each one takes, what it makes of it, and how messages name it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, SecretStr, TypeAdapter, ValidationError

from connectors.sections import (
    ConfigSection,
    Flag,
    Folder,
    Mismatch,
    Name,
    Number,
    OneOf,
    Secret,
    Size,
    Text,
    Texts,
    WebUrl,
    Whole,
    Zone,
    refuse,
)
from workers.settings.diagnosis import described, short_text
from workers.settings.values import BrokerUrl, Cron, DatabaseUrl
from workers.settings.yamlfile import Location, SettingsError, SettingsProblem, spelled

ADAPTERS: dict[str, TypeAdapter[Any]] = {
    "whole": TypeAdapter(Whole),
    "number": TypeAdapter(Number),
    "flag": TypeAdapter(Flag),
    "text": TypeAdapter(Text),
    "texts": TypeAdapter(Texts),
    "name": TypeAdapter(Name),
    "cron": TypeAdapter(Cron),
    "zone": TypeAdapter(Zone),
    "size": TypeAdapter(Size),
    "folder": TypeAdapter(Folder),
    "web": TypeAdapter(WebUrl),
    "secret": TypeAdapter(Secret),
    "database": TypeAdapter(DatabaseUrl),
    "broker": TypeAdapter(BrokerUrl),
}


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        ("whole", 5, 5),
        ("whole", "5", 5),
        ("number", 5, 5),
        ("number", "2.5", 2.5),
        ("flag", False, False),
        ("flag", "false", False),
        ("flag", "yes", True),
        ("text", "5", "5"),
        ("texts", "a, b,,c ", ("a", "b", "c")),
        ("texts", None, ()),
        ("texts", ["a, b"], ("a, b",)),
        ("texts", "a,b", ("a", "b")),
        ("name", "a.b-c_1", "a.b-c_1"),
        ("zone", "Europe/Berlin", "Europe/Berlin"),
        ("size", "2k", 2048),
        ("size", 7, 7),
        ("folder", "a/b", Path("a/b")),
        ("web", "https://example.com/x/", "https://example.com/x"),
    ],
)
def test_taken(kind: str, value: object, result: object) -> None:
    found = ADAPTERS[kind].validate_python(value)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("whole", [True, 5.5, None, "x", "true", "5.5", float("inf")]),
        ("number", [True, None, "x", "true"]),
        ("flag", [2, None, "maybe", ""]),
        ("text", ["", 5, True, None, ["a"]]),
        ("texts", [5, {"a": 1}, [5], [""], [["a"]]]),
        ("name", ["", "a b", "a/b", "ü", "a\n", 5]),
        ("cron", ["", "* * * *", "0 0 31 2 *", "x * * * *", "*/0 * * * *", "5-1-2 * * * *", 5, None]),
        ("zone", ["", "Mars", "../etc/passwd", "Europe", 1]),
        ("size", ["", "m", "0", 0, -1, "1.5m", "1t", True, 1.5, None, "9" * 20]),
        ("folder", [5, None, ["a"]]),
        ("web", ["", "example.com", "ftp://x", "https://", "https://u:p@h", "https://u@h", "http://[x", 5]),
        ("secret", ["", 5, None]),
        ("database", ["", "db", "mysql://h/x", "postgresql:", "postgresql://h:x/y", "host=h password=p"]),
        ("broker", ["", "localhost:6379", "http://h", "redis://h:port", "rediss://h/0?ssl_ca_cert=/ca.pem"]),
    ],
)
def test_refused(kind: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(ValidationError):
            ADAPTERS[kind].validate_python(value)


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("database", "postgresql://u:p@h:5432/d?sslmode=require"),
        ("database", "postgresql+psycopg://h/d"),
        ("database", "postgresql:///d?host=sockets"),
        ("database", "postgres://h/d"),
        ("broker", "redis://:p@h:6379/0"),
        ("broker", "rediss://h"),
        ("broker", "redis+socket:///run/valkey.sock"),
        ("broker", "redis+socket:///run/valkey.sock?virtual_host=2"),
        ("broker", "rediss://h/0?ssl_ca_certs=/ca.pem&ssl_cert_reqs=required&socket_timeout=3"),
    ],
)
def test_addresses_of_servers(kind: str, url: str) -> None:
    value = ADAPTERS[kind].validate_python(url)
    assert isinstance(value, SecretStr)
    assert value.get_secret_value() == url
    assert url not in repr(value)


@given(st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.lists(st.text()), st.floats()))
def test_no_value_of_any_kind_causes_anything_but_a_refusal(value: object) -> None:
    for adapter in ADAPTERS.values():
        try:
            adapter.validate_python(value)
        except ValidationError as error:
            assert error.errors()  # noqa: PT017


def test_an_unknown_option_of_a_broker_is_named_with_the_one_that_is_meant() -> None:
    with pytest.raises(ValidationError, match=r"'ssl_ca_cert' did you mean ssl_ca_certs"):
        ADAPTERS["broker"].validate_python("rediss://:p@h/0?ssl_ca_cert=/ca.pem")
    with pytest.raises(ValidationError, match="ssl_cert_reqs as required, optional or none"):
        ADAPTERS["broker"].validate_python("rediss://:p@h/0?ssl_cert_reqs=requird")
    for value in ("none", "CERT_REQUIRED"):
        ADAPTERS["broker"].validate_python(f"rediss://:p@h/0?ssl_cert_reqs={value}")


def test_one_of_ignores_case_and_names_what_is_known() -> None:
    known = TypeAdapter(Annotated[str, OneOf(("red", "green"))])
    assert known.validate_python("RED") == "red"
    for value in ("blue", "", 5, None, ["red"]):
        with pytest.raises(ValidationError, match="one of red, green"):
            known.validate_python(value)


class Pair(ConfigSection):
    low_end: Whole = Field(default=1, ge=0, le=9)
    high_end: Whole | None = Field(default=None, gt=0)
    share: Number = Field(default=0.5, ge=0, le=1)
    names: Texts = ()


class TestWords:
    """How messages and the documentation name kinds and values."""

    @pytest.mark.parametrize(
        ("key", "text"),
        [
            ("low_end", "a whole number from 0 to 9"),
            ("high_end", "a whole number, more than 0, or nothing"),
            ("share", "a number from 0 to 1"),
            ("names", "a list of texts, or text with commas"),
        ],
    )
    def test_of_kinds(self, key: str, text: str) -> None:
        field = Pair.model_fields[key]
        assert described(field.annotation, field.metadata) == text

    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("many", "'many'"),
            (5, "5"),
            (True, "true"),
            (None, "nothing"),
            ([], "an empty list"),
            ([1], "a list"),
            ({}, "a mapping"),
            ("x" * 100, "'" + "x" * 56 + "..."),
            ("https://u:p@h/x", "'https://***@h/x'"),
            ("line\nbreak", "'line\\nbreak'"),
        ],
    )
    def test_of_values(self, value: object, text: str) -> None:
        assert short_text(value) == text

    def test_of_paths(self) -> None:
        assert spelled(()) == ""
        assert spelled(("rag", "sources", 0, "paths", 1)) == "sources[0].paths[1]"

    def test_of_places(self) -> None:
        assert str(Location("a.yaml")) == "a.yaml"
        assert str(Location("a.yaml", 3)) == "a.yaml:3"
        assert str(Location("a.yaml", 3, 4)) == "a.yaml:3:4"


def test_mismatches_of_a_section_come_together_with_their_defaults() -> None:
    with pytest.raises(ValidationError) as caught:
        refuse(
            Pair(), [Mismatch(key="low_end", expected="x"), Mismatch(key="high_end", expected="y", fix="z")]
        )
    found = [(e["loc"], e["ctx"]) for e in caught.value.errors()]
    assert found == [
        (("lowEnd",), {"expected": "x", "fix": "", "found": "the default 1"}),
        (("highEnd",), {"expected": "y", "fix": "z", "found": "nothing"}),
    ]
    refuse(Pair(), [])


def test_problems_are_sorted_by_file_line_and_key() -> None:
    def problem(file: str, line: int, key: str) -> SettingsProblem:
        return SettingsProblem(at=Location(file, line), key=key, actual="a", allowed="b", fix="c")

    one, two, three = problem("a", 2, "x"), problem("a", 10, "a"), problem("a", 10, "b")
    error = SettingsError([three, one, two])
    assert error.problems == (one, two, three)
    assert str(error).splitlines()[0] == "a:2: x: found a, expected b; c"
