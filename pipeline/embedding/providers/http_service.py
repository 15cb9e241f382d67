"""Calls of an embedding service over HTTP: one address, limited time and size, and translation of error answers."""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pipeline.embedding.known_models import ProviderFacts
from pipeline.errors import (
    ConfigurationError,
    EmbedderRefused,
    EmbedderUnavailable,
    EmbeddingError,
    TextRejected,
    TextTooLong,
)
from pipeline.errors.http_rules import clamped, provider_pause

if TYPE_CHECKING:
    import httpx2

CONNECT_SECONDS = 10.0
MOST_BYTES = 256 * 1024 * 1024
"""Most bytes of one answer: the largest call, 2,048 texts of 3,072 numbers, is about 140 MB as JSON."""
_ERROR_BYTES = 64 * 1024
_LONGEST_WORDS = 2000
_OK = 200

Row = tuple[type[EmbeddingError], str, str]
"""Error class, description after the status, and advice."""
_PLACE = "check embedding.baseUrl: for many servers it ends with /v1, for Ollama it has no path"
_SHORTER = "the text is split and sent again"
LASTS = "it is tried again automatically; if it persists, check the service's own log"
_NO_MODEL = "check embedding.model, and whether this account or server has that model"
NO_PLACE: Row = (EmbedderRefused, "there is no embedding API at this address", _PLACE)
PLAN: Row = (
    EmbedderRefused,
    "the plan or the balance is used up",
    "check the plan and the balance of the account; nothing is embedded until then",
)
KEY: Row = (
    EmbedderRefused,
    "it does not accept the key",
    "check embedding.apiKey and the permissions of that key",
)
BAD_TEXT: Row = (TextRejected, "it refuses a text", "leave this text out, or use another model")
LATER: Row = (EmbedderUnavailable, "", LASTS)
TOO_MANY: Row = (
    EmbedderUnavailable,
    "too many requests",
    "it is tried again automatically; if it happens often, lower embedding.requestsPerMinute or tokensPerMinute",
)
_STATUS: Mapping[int, Row] = {
    **dict.fromkeys((400, 422), BAD_TEXT),
    **dict.fromkeys((401, 403), KEY),
    402: PLAN,
    **dict.fromkeys((408, 409, 425), LATER),
    413: (TextTooLong, "the call is too large", _SHORTER),
    429: TOO_MANY,
    501: NO_PLACE,
}
"""Status -> error, unless the answer's text is more specific; 5xx is temporary, others mean a wrong address."""

_LONG_WORDS = re.compile(
    r"context[ _]length|maximum context|too (long|large to process)|"
    r"must have less than [\d,]+ (tokens|characters)|exceeds? the (context|maximum)",
    re.IGNORECASE,
)
_MODEL_WORDS = re.compile(
    r"\W*((the |this )?model\b.{0,200}(not found|not exist|not support|not available|unknown)|"
    r"(unknown|invalid|no such) model\b)",
    re.IGNORECASE | re.DOTALL,
)
"""Matched at the beginning only: further on, an error may quote a document about models."""
_QUOTA_WORDS = re.compile(
    r"insufficient_quota|billing|exceeded your (current quota|monthly)|payment", re.IGNORECASE
)
_OUR_KEYS = frozenset({"dimensions", "model", "encoding_format", "truncate", "normalize", "user"})
"""Keys of the request other than the texts: an error there concerns every text."""
_PAGE = re.compile(rb"\s*(<!doctype\s+html|<html)\b", re.IGNORECASE)


_Client = TypeVar("_Client", bound=AbstractContextManager[Any])


class PerProcess(Generic[_Client]):
    """A client that is opened at the first use and again after a fork, since processes must not share a connection.

    Safe to share between threads. The client is closed when this object is garbage-collected.
    """

    def __init__(self, connect: Callable[[], _Client]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._owner = 0
        self._client: _Client | None = None

    def get(self) -> _Client:
        """The client of this process."""
        with self._lock:
            if self._client is None or self._owner != os.getpid():
                self._client, self._owner = self._connect(), os.getpid()
                weakref.finalize(self, self._client.__exit__, None, None, None)
            return self._client


@dataclass(frozen=True, kw_only=True)
class HttpAnswer:
    """One answer with its body read."""

    status: int
    headers: Mapping[str, str]
    """Header names are case-insensitive."""
    content: bytes

    def json(self) -> Any:
        """The body as JSON; None if it is not JSON."""
        try:
            return json.loads(self.content)
        except (ValueError, RecursionError):
            return None

    @property
    def is_page(self) -> bool:
        """Whether the body is a web page, by header or by content."""
        return "html" in self.headers.get("content-type", "").lower() or bool(_PAGE.match(self.content))


class HttpService:
    """One embedding service; safe to share between threads, and to carry over a fork.

    `base_url` (empty: the provider's public one) is the only address that is contacted: redirects are not followed,
    and no proxy is used. A call may take `timeout` seconds in total. Without a key none is sent.
    """

    def __init__(
        self, provider: ProviderFacts, *, model: str, base_url: str = "", key: str = "", timeout: float = 30.0
    ) -> None:
        """Check the key; nothing is sent yet.

        Raises:
            ConfigurationError: the key has characters that no header can carry.
        """
        if not (key.isascii() and key.isprintable() and " " not in key):
            raise ConfigurationError(
                f"the key for {provider.title} has characters that no header can carry",
                fix="look for line breaks, blanks or typographic characters in embedding.apiKey",
            )
        self.model = model
        self.provider = provider
        self._base_url = base_url or provider.base_url
        self._client = PerProcess(lambda: _connect(key, timeout))

    def __str__(self) -> str:
        return f"{self.provider.title} at {self._base_url}"

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a request and return the JSON of the answer.

        Raises:
            EmbedderUnavailable: no complete answer came; other errors as in `checked_json`.
            EmbedderRefused: the address cannot be used.
        """
        from pipeline.embedding.http_client import FOREIGN, translated

        # Lone surrogates cannot be sent; they become `?`, as for the local embedder.
        content = json.dumps(body, ensure_ascii=False).encode("utf-8", "replace")
        try:
            url = f"{self._base_url.rstrip('/')}/{path}"
            with self._client.get().stream("POST", url, content=content) as response:
                good = response.status_code == _OK
                most = MOST_BYTES if good else _ERROR_BYTES
                read = bytearray()
                for piece in response.iter_bytes():
                    read += piece
                    if len(read) > most:
                        break
        except FOREIGN as error:
            raise translated(error, self) from None
        if good and len(read) > most:
            raise EmbedderRefused(
                f"{self} sent an answer larger than {most:,} bytes", fix="lower embedding.batchSize"
            )
        answer = HttpAnswer(status=response.status_code, headers=response.headers, content=bytes(read[:most]))
        return checked_json(answer, self)


def _connect(key: str, timeout: float) -> httpx2.Client:
    import httpx2

    from pipeline.embedding.http_client import DeadlineTransport

    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    return httpx2.Client(
        headers={**headers, "Authorization": f"Bearer {key}"} if key else headers,
        timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        transport=DeadlineTransport(),
        follow_redirects=False,
        # The environment could add proxies, and passwords from ~/.netrc.
        trust_env=False,
    )


def checked_json(answer: HttpAnswer, service: HttpService) -> Any:
    """The JSON of a successful answer.

    Raises:
        EmbedderUnavailable: a web page or broken JSON, 408, 429, 5xx.
        EmbedderRefused: key, model, plan or address are refused; a redirect.
        TextTooLong: one of the texts is too long, or all of them together.
        TextRejected: one of the texts is refused.
    """
    if answer.status != _OK:
        raise _refusal(answer, service)
    if answer.is_page:
        raise EmbedderUnavailable(f"{service} answered with a web page instead of JSON", fix=_PLACE)
    body = answer.json()
    if body is None:
        raise EmbedderUnavailable(f"{service} sent an answer that is not JSON", fix=LASTS)
    return body


def _refusal(answer: HttpAnswer, service: HttpService) -> EmbeddingError:
    """Our error for an answer with another status than 200.

    The body is `{"error": {"message", "type", "code", "param"}}`, `{"error": "text", "estimated_time"}`, or plain
    text. Its text is only matched and never shown, since it may quote documents and keys.
    """
    body = answer.json()
    outer = body if isinstance(body, dict) else {"error": body}
    error = outer.get("error", outer)
    if isinstance(error, dict):
        error_fields = {key: str(value) for key, value in error.items() if value}
    else:
        error_fields = {"message": str(error or answer.content.decode("utf-8", "replace"))}
    kind, problem, fix = _meaning(answer, error_fields, service)
    wait: Any = outer.get("estimated_time")
    timed = type(wait) in {int, float} and wait >= 0
    return kind(
        f"{service} answered {answer.status}"
        + (f": {problem.format(model=service.model)}" if problem else ""),
        fix=fix,
        retry_after=(clamped(float(wait)) if timed else provider_pause(answer.headers))
        if kind is EmbedderUnavailable
        else None,
    )


def _meaning(answer: HttpAnswer, error_fields: Mapping[str, str], service: HttpService) -> Row:
    """Our error by the account's state first, then by the text about the model, then by the status alone."""
    status, page, param = answer.status, answer.is_page, error_fields.get("param", "")
    words = error_fields.get("message", error_fields.get("detail", ""))[:_LONGEST_WORDS]
    code = f"{error_fields.get('code', '')} {error_fields.get('type', '')}"
    if status in {403, 429} and _QUOTA_WORDS.search(f"{code} {words}"):
        return PLAN  # waiting does not help
    if status not in {401, 402, 403, 429} and not page:
        if _LONG_WORDS.search(f"{code} {words}"):
            return TextTooLong, "a text is too long for {model}", _SHORTER
        if "model_not_found" in code or param == "model" or _MODEL_WORDS.match(words):
            install = service.provider.install.format(model=service.model)
            return EmbedderRefused, "it has no embedding model {model}", install or _NO_MODEL
        if param in _OUR_KEYS:
            problem = f"it does not accept {param} for {{model}}"
            return EmbedderRefused, problem, "check embedding.dimensions and embedding.model"
    if page and _STATUS.get(status) is BAD_TEXT:
        return NO_PLACE
    return _STATUS.get(status, LATER if status >= 500 else NO_PLACE)  # noqa: PLR2004 - an error of the server
