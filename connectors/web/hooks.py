"""Webhooks of services: proof of the sender, the event's id, and the items that it names."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.documents import Json

MOST_IDS = 1000
"""The most items that one event may name."""
LONGEST_EVENT_ID = 200
SIGNATURES = (
    "x-hub-signature-256", "x-hub-signature", "x-notion-signature", "linear-signature", "x-redmine-signature-256",
)  # fmt: skip
"""Headers with the hexadecimal HMAC-SHA256 of the body: GitHub; Jira, Confluence and Bitbucket; Notion; Linear;
Redmine."""
TOKENS = ("x-gitlab-token", "x-larder-token")
"""Headers with the secret itself."""
EVENT_IDS = (
    "x-github-delivery", "x-atlassian-webhook-identifier", "webhook-id", "idempotency-key", "x-gitlab-event-uuid",
    "linear-delivery",
)  # fmt: skip
"""Headers with an id that is the same when an event is sent once more."""


def is_proved(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """True if whoever sent the event knows the secret; `headers` have names in small letters.

    The secret may sign the body (HMAC-SHA256), stand in a header, or be the password of basic authorization. A
    signature that is there decides alone.
    """
    key = secret.encode()
    for name in SIGNATURES:
        if signature := headers.get(name):
            digest = hmac.new(key, body, hashlib.sha256).hexdigest()
            return hmac.compare_digest(f"sha256={digest}".encode(), _with_method(signature))
    if "webhook-signature" in headers:
        return _is_signed_by_standard(secret, headers, body)
    secrets = [headers[name] for name in TOKENS if name in headers]
    scheme, _, value = headers.get("authorization", "").partition(" ")
    secrets += [value.strip()] if scheme.lower() == "bearer" else []
    secrets += [_password(value)] if scheme.lower() == "basic" else []
    return any(hmac.compare_digest(key, one.encode()) for one in secrets)


def _with_method(signature: str) -> bytes:
    text = signature.strip()
    return (text if "=" in text else f"sha256={text}").encode()


def _is_signed_by_standard(secret: str, headers: Mapping[str, str], body: bytes) -> bool:
    """Check the signature of Standard Webhooks 1.0, which GitLab sends: base64 over id, time and body."""
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error:
        key = secret.encode()
    head = f"{headers.get('webhook-id', '')}.{headers.get('webhook-timestamp', '')}."
    digest = base64.b64encode(hmac.new(key, head.encode() + body, hashlib.sha256).digest())
    signatures = (word.partition(",") for word in headers["webhook-signature"].split())
    return any(
        hmac.compare_digest(digest, text.encode()) for version, _, text in signatures if version == "v1"
    )


def _password(credentials: str) -> str:
    try:
        return base64.b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def event_id(headers: Mapping[str, str], event: Json) -> str:
    """The id of an event, the same when it is sent once more; empty if it has none."""
    named = next((headers[name] for name in EVENT_IDS if headers.get(name)), None)
    # Azure DevOps names its events in the body.
    return str(named or (event.get("id") if "eventType" in event else "") or "")[:LONGEST_EVENT_ID]


def plain_ids(event: Json) -> list[str]:
    """The items of an event of no service's own form: `{"ids": ["17", "18"]}`."""
    ids = event.get("ids")
    return texts_of(ids if isinstance(ids, list) else [])


def texts_of(values: list[Any]) -> list[str]:
    """The texts and whole numbers among the values, as texts, each once."""
    usable = (value for value in values if isinstance(value, str | int) and not isinstance(value, bool))
    return [*dict.fromkeys(text for value in usable if (text := str(value).strip()))][:MOST_IDS]


def members_of(event: Json, *names: str) -> Iterator[Json]:
    """The objects of these names in the event."""
    for name in names:
        member = event.get(name)
        if isinstance(member, dict):
            yield member
