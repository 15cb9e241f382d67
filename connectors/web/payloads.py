"""JSON out of an answer, with its shape proven."""

from __future__ import annotations

import json
from typing import Any

import requests

from connectors.web.answers import NO_API, is_html
from connectors.web.faults import LASTS
from pipeline.errors import SourceUnavailable

SHAPES = {dict: "an object", list: "a list", str: "a text", int: "a number"}


def json_of(response: requests.Response, *, product: str, want: type = dict) -> Any:
    """The answer's JSON, which is a `want`; the status is not looked at.

    Raises:
        SourceUnavailable: it is empty, broken off, of another type or of another shape.
    """
    kind = response.headers.get("Content-Type", "").split(";")[0].strip().lower()
    if is_html(response) or (kind and "json" not in kind):
        shown = (
            kind if kind.replace("/", "").replace("-", "").replace("+", "").isalnum() else "something else"
        )
        raise SourceUnavailable(f"{product} answered {shown} where JSON was wanted", fix=NO_API)
    if not response.content.strip():
        raise SourceUnavailable(f"{product} gave an empty answer where JSON was wanted", fix=LASTS)
    try:
        payload = json.loads(response.content.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        # No cause: it would hold the text.
        raise SourceUnavailable(f"{product} gave broken JSON", fix=LASTS) from None
    if not isinstance(payload, want):
        raise SourceUnavailable(
            f"{product} gave JSON that is not {SHAPES.get(want, want.__name__)}", fix=LASTS
        )
    return payload


def results_of(payload: dict[str, Any], key: str, product: str) -> list[dict[str, Any]]:
    """The list of objects under `key`; what is missing is not taken for empty.

    Raises:
        SourceUnavailable: there is no such list, or it holds something other than objects.
    """
    found = payload.get(key)
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise SourceUnavailable(f"{product} gave an answer without a list of {key}", fix=LASTS)
    return found
