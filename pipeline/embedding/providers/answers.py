"""What the answer of an embedding service means: JSON to read, or one of our errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.errors import EmbedderRefused, EmbedderUnavailable, LarderError, TextRejected, TextTooLong
from pipeline.retry_after import bounded, wait_of

KEY = "check embedding.apiKey, and what that key may do"
PLAN = "look at the plan and the balance of that account; nothing is embedded until then"
MODEL = "check embedding.model, and whether this account or server has that model"
PLACE = "check embedding.baseUrl: many servers want /v1 at its end"
LATER = (
    "it is tried again by itself; if it happens often, lower embedding.requestsPerMinute or tokensPerMinute"
)
LASTS = "it is tried again by itself; if it lasts, look at the service's own log"
SHORTER = "the text is cut and sent again"

_LONGEST_WORDS = 2000
_TOO_LONG = re.compile(
    r"context[ _]length|maximum context|too (long|large to process)|"
    r"must have less than [\d,]+ (tokens|characters)|exceeds? the (context|maximum)",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"\W*((the |this )?model\b.{0,200}(not found|not exist|not support|not available|unknown)|"
    r"(unknown|invalid|no such) model\b)",
    re.IGNORECASE | re.DOTALL,
)
"""At the beginning only: further on, an error may quote a document that speaks of models."""
_QUOTA = re.compile(
    r"insufficient_quota|billing|exceeded your (current quota|monthly)|payment", re.IGNORECASE
)
_OUR_WORDS = frozenset({"dimensions", "model", "encoding_format", "truncate", "normalize", "user"})
"""Names of the request's keys other than the texts: what is wrong there is wrong for every text."""
_PAGE = re.compile(rb"\s*(<!doctype\s+html|<html)\b", re.IGNORECASE)


class Named(Protocol):
    """Who answered."""

    @property
    def model(self) -> str:
        """The model that was asked."""
        ...


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer with its body read."""

    status: int
    headers: Mapping[str, str]
    """Finds names in any case."""
    content: bytes

    def json(self) -> Any:
        """The body as JSON; None if it is none."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None

    @property
    def is_page(self) -> bool:
        """Whether the body is a web page, whatever the header calls it."""
        return "html" in self.headers.get("content-type", "").lower() or bool(_PAGE.match(self.content))


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """What an error answer says, for deciding only: its words may quote texts and keys and are never shown."""

    words: str = ""
    code: str = ""
    param: str = ""
    wait: float | None = None

    @classmethod
    def of(cls, answer: Answer) -> Complaint:
        """`{"error": {"message", "type", "code", "param"}}`, `{"error": "text", "estimated_time"}`, or plain text."""
        body = answer.json()
        error = body.get("error", body) if isinstance(body, dict) else body
        if isinstance(error, dict):
            words = str(error.get("message") or error.get("detail") or "")
            code = f"{error.get('code') or ''} {error.get('type') or ''}"
            param = str(error.get("param") or "")
        else:
            words, code, param = str(error or answer.content.decode("utf-8", "replace")), "", ""
        waiting = body.get("estimated_time") if isinstance(body, dict) else None
        seconds = isinstance(waiting, int | float) and not isinstance(waiting, bool) and waiting >= 0
        return cls(
            words=words[:_LONGEST_WORDS],
            code=code,
            param=param,
            wait=bounded(float(waiting)) if seconds and waiting is not None else None,
        )


def judge(answer: Answer, service: Named) -> Any:
    """The JSON of a good answer.

    Raises:
        EmbedderUnavailable: a web page or broken JSON, 408, 429, 5xx.
        EmbedderRefused: key, model, plan or address are refused; a redirect.
        TextTooLong: one of the texts is too long, or all of them together.
        TextRejected: one of the texts is refused.
    """
    if answer.status == 200:  # noqa: PLR2004 - OK
        return _read(answer, service)
    raise _error(answer, service)


def _read(answer: Answer, service: Named) -> Any:
    if answer.is_page:
        raise EmbedderUnavailable(f"{service} answered with a web page instead of JSON", fix=PLACE)
    body = answer.json()
    if body is None:
        raise EmbedderUnavailable(f"{service} sent an answer that is no JSON", fix=LASTS)
    return body


@dataclass(frozen=True, kw_only=True)
class _Bad:
    """An answer with any status but 200."""

    answer: Answer
    complaint: Complaint
    service: Named

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def said(self) -> str:
        return f"{self.service} answered {self.status}"


def _error(answer: Answer, service: Named) -> LarderError:
    """Our error for an answer with any other status."""
    bad = _Bad(answer=answer, complaint=Complaint.of(answer), service=service)
    for question in (_about_plan, _about_key, _about_model, _about_text, _about_moment):
        found = question(bad)
        if found is not None:
            return found
    return EmbedderRefused(f"{bad.said}: this is no place that makes embeddings", fix=PLACE)


def _about_plan(bad: _Bad) -> LarderError | None:
    """The plan, or the balance: waiting does not mend it."""
    quota = bad.status in {403, 429} and _QUOTA.search(f"{bad.complaint.code} {bad.complaint.words}")
    if bad.status == 402 or quota:  # noqa: PLR2004 - Payment Required
        return EmbedderRefused(f"{bad.said}: the plan or the balance is used up", fix=PLAN)
    return None


def _about_key(bad: _Bad) -> LarderError | None:
    if bad.status in {401, 403}:
        return EmbedderRefused(f"{bad.said}: it does not accept the key", fix=KEY)
    return None


def _about_model(bad: _Bad) -> LarderError | None:
    """What is wrong for every text alike."""
    model, complaint = bad.service.model, bad.complaint
    if bad.status == 429 or bad.answer.is_page:  # noqa: PLR2004 - Too Many Requests: of whatever it speaks
        return None
    if _TOO_LONG.search(f"{complaint.code} {complaint.words}"):
        return TextTooLong(f"{bad.said}: a text is too long for {model}", fix=SHORTER)
    if "model_not_found" in complaint.code or complaint.param == "model" or _NO_MODEL.match(complaint.words):
        return EmbedderRefused(f"{bad.said}: it has no embedding model {model}", fix=MODEL)
    if complaint.param in _OUR_WORDS:
        fix = "check embedding.dimensions and embedding.model"
        return EmbedderRefused(f"{bad.said}: it does not take {complaint.param} for {model}", fix=fix)
    return None


def _about_text(bad: _Bad) -> LarderError | None:
    if bad.status in {400, 422} and not bad.answer.is_page:
        fix = "leave this text out, or use another model"
        return TextRejected(f"{bad.said}: it refuses a text", fix=fix)
    if bad.status == 413:  # noqa: PLR2004 - Content Too Large
        return TextTooLong(f"{bad.said}: the call is too large", fix=SHORTER)
    return None


def _about_moment(bad: _Bad) -> LarderError | None:
    """What may work later."""
    wait = bad.complaint.wait if bad.complaint.wait is not None else wait_of(bad.answer.headers)
    if bad.status == 429:  # noqa: PLR2004 - Too Many Requests
        return EmbedderUnavailable(f"{bad.said}: too many requests", fix=LATER, retry_after=wait)
    if bad.status in {408, 409, 425} or (bad.status >= 500 and bad.status != 501):  # noqa: PLR2004
        return EmbedderUnavailable(bad.said, fix=LASTS, retry_after=wait)
    return None
