"""A request as a fake sees it, and the answer it gives."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import Message
from typing import Any


@dataclass(kw_only=True)
class Seen:
    """One request as it came in; `status` and `until` are filled when it is answered."""

    method: str
    path: str
    """Percent-decoded, without the query."""
    query: dict[str, list[str]]
    """Decoded; `+` is a blank here, as in every form decoder. Blank values are kept."""
    target: str
    """Path and query as sent."""
    headers: Message
    """`seen.headers.get("authorization", "")`: names in any case."""
    body: bytes
    at: float
    """time.monotonic()."""
    status: int = 0
    """0: no answer was given (reset, or still at work)."""
    until: float = 0.0

    def first(self, key: str, default: str = "") -> str:
        """The first value of a query key."""
        return self.query.get(key, [default])[0]

    @property
    def json(self) -> Any:
        """The request's body, parsed."""
        return json.loads(self.body)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What goes back; `json` if it is given, else `body`."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str = b""
    json: Any = None
    content_type: str = ""
    """Empty: application/json for `json`, text/plain for `body`, none for neither."""

    def content(self) -> bytes:
        """The body as sent."""
        if self.json is not None:
            return json.dumps(self.json).encode()
        return self.body.encode() if isinstance(self.body, str) else self.body

    def kind(self) -> str:
        """The value of Content-Type."""
        if self.content_type or not (self.json is not None or self.body):
            return self.content_type
        return "application/json;charset=UTF-8" if self.json is not None else "text/plain;charset=UTF-8"
