"""What a server does instead of answering well, planned by the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Self

from tests.fakes.messages import Seen

SIGN_IN = """<!DOCTYPE html>
<html lang="en"><head><title>Sign in to your account</title></head>
<body><form action="/login" method="post"><input name="username"><input type="password"></form></body></html>
"""

GATEWAY = "<html><head><title>{code}</title></head><body><h1>{code} from the gateway</h1></body></html>"

FaultKind = Literal[
    "status", "reset", "reset_in_body", "cut_body", "truncated", "slow", "dripping", "headers"
]


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One misbehaviour; made by its class methods.

    `status`, `html`, `redirect` and `reset` come instead of the fake's answer (its `answer` is not called);
    the others spoil the answer that would have come.
    """

    kind: FaultKind
    code: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str = b""
    content_type: str = ""
    seconds: float = 0.0

    @classmethod
    def status(
        cls,
        code: int,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | str | None = None,
        content_type: str = "text/html",
    ) -> Self:
        """This status; without a body the HTML of a gateway."""
        text = GATEWAY.format(code=code) if body is None else body
        return cls(kind="status", code=code, headers=headers or {}, body=text, content_type=content_type)

    @classmethod
    def html(cls, code: int = 200, *, body: str = SIGN_IN) -> Self:
        """A sign-in page where JSON was wanted."""
        return cls(kind="status", code=code, body=body, content_type="text/html; charset=utf-8")

    @classmethod
    def redirect(cls, url: str, *, code: int = 302) -> Self:
        """Go there instead."""
        return cls(kind="status", code=code, headers={"Location": url})

    @classmethod
    def reset(cls) -> Self:
        """The connection is reset before a byte of the answer."""
        return cls(kind="reset")

    @classmethod
    def reset_in_body(cls) -> Self:
        """Status, headers and half of the body, then a reset."""
        return cls(kind="reset_in_body")

    @classmethod
    def cut_body(cls) -> Self:
        """Status, headers and half of the promised body, then an orderly end of the connection."""
        return cls(kind="cut_body")

    @classmethod
    def truncated(cls) -> Self:
        """Half of the body, with the length of that half in the header: only the JSON is broken."""
        return cls(kind="truncated")

    @classmethod
    def slow(cls, seconds: float) -> Self:
        """The good answer, after a pause."""
        return cls(kind="slow", seconds=seconds)

    @classmethod
    def dripping(cls, seconds: float) -> Self:
        """The good answer in twenty parts, spread over the time."""
        return cls(kind="dripping", seconds=seconds)

    @classmethod
    def with_headers(cls, headers: Mapping[str, str]) -> Self:
        """The good answer with more headers."""
        return cls(kind="headers", headers=headers)


@dataclass(kw_only=True)
class _Planned:
    fault: Fault
    when: Callable[[Seen], bool] | None
    left: int | None
    good_before: int


class FaultPlan:
    """Faults to come, in the order they were planned; the first that fits a request is used."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._planned: list[_Planned] = []

    def next(
        self,
        fault: Fault,
        *,
        when: Callable[[Seen], bool] | None = None,
        times: int | None = 1,
        after: int = 0,
    ) -> None:
        """Plan it for requests that `when` accepts (None: any): `times` of them (None: for ever).

        The first `after` fitting requests still get their good answer.
        """
        with self._lock:
            self._planned.append(_Planned(fault=fault, when=when, left=times, good_before=after))

    def clear(self) -> None:
        """Behave from now on."""
        with self._lock:
            self._planned.clear()

    @property
    def waiting(self) -> int:
        """Plans that are not used up; a test that ends with one left did not test it."""
        with self._lock:
            return len(self._planned)

    def take(self, seen: Seen) -> Fault | None:
        """The fault for this request, counted as used."""
        with self._lock:
            for planned in self._planned:
                if planned.when and not planned.when(seen):
                    continue
                if planned.good_before:
                    planned.good_before -= 1
                    continue
                if planned.left is not None:
                    planned.left -= 1
                    if planned.left == 0:
                        self._planned.remove(planned)
                return planned.fault
        return None
