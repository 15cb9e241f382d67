"""JSON is taken only when its type and shape are right."""

from __future__ import annotations

from typing import Any

import pytest
import requests

from connectors.web.answers import json_of, results_of
from pipeline.errors import SourceUnavailable


def response(body: bytes, kind: str | None = "application/json; charset=utf-8") -> requests.Response:
    made = requests.Response()
    made.status_code = 200
    made._content = body
    if kind is not None:
        made.headers["Content-Type"] = kind
    return made


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"a": 1}', "application/json"),
        (b'\xef\xbb\xbf {"a": 1}', "application/json;charset=UTF-8"),
        (b'{"a": 1}', "application/problem+json"),
        (b'{"a": 1}', None),
        (b'{"a": 1}', "text/json"),
    ],
)
def test_json_of_every_make(body: bytes, kind: str | None) -> None:
    assert json_of(response(body, kind), product="Confluence") == {"a": 1}


def test_letters_are_read_as_utf8() -> None:
    assert json_of(response(b'{"a": "\xc3\xa9"}'), product="x") == {"a": "é"}


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "application/json"),
        (b"  ", None),
        (b'{"a": 1', "application/json"),
        (b'{"secret": "\xff"}', "application/json"),
        (b"[" * 200_000, "application/json"),
        (b"[1]", "application/json"),
        (b"null", "application/json"),
        (b'"text"', "application/json"),
        (b"<html>secret</html>", "text/html"),
        (b"<!DOCTYPE html><html>", None),
        (b'{"secret": 1}', "text/plain"),
        (b'{"secret": 1}', "x/<secret>"),
    ],
)
def test_everything_else_is_an_error_that_tells_nothing_of_the_body(body: bytes, kind: str | None) -> None:
    with pytest.raises(SourceUnavailable) as caught:
        json_of(response(body, kind), product="Confluence")
    assert caught.value.fix
    assert "secret" not in f"{caught.value}{caught.value.__cause__!r}"


def test_results_are_a_list_of_objects_or_an_error() -> None:
    assert results_of({"results": []}, "x") == []
    assert results_of({"results": [{"id": 1}]}, "x") == [{"id": 1}]
    wrongs: list[dict[str, Any]] = [
        {},
        {"results": None},
        {"results": {}},
        {"results": "ab"},
        {"results": [None]},
        {"results": ["a"]},
    ]
    for wrong in wrongs:
        with pytest.raises(SourceUnavailable, match="results"):
            results_of(wrong, "Confluence")
