"""Whether embedding goes on, waits or is held, and what it used today: for the operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection

from pipeline.documents import Json
from pipeline.ledger import embedding_use, work
from workers.limits.tokens import Outlook
from workers.runtime import Runtime

FOREIGN = "workers that were started with another configuration meet this; restart them with the mended one"


def state(parts: Runtime, connection: Connection) -> Json:
    """The entry `embedding` of `larder status --json`; `state` is ok, waiting or held."""
    allowance = parts.allowance
    outlook = allowance.rate.look() if allowance.rate else Outlook()
    found: Json = {
        "state": "ok",
        "until": None,
        "error": None,
        "since": None,
        "fingerprint": allowance.fingerprint,
        "documents": 0,
        "failures": outlook.failures,
        **(_held(parts, connection) or _waiting(connection, outlook)),
        "today": embedding_use.usage_today(connection),
    }
    return found


def _held(parts: Runtime, connection: Connection) -> Json:
    terms = parts.allowance.terms
    hold = embedding_use.latest_hold(connection, terms.fingerprint, probe_seconds=terms.probe_seconds)
    if hold is None:
        return {}
    foreign = hold.fingerprint != terms.fingerprint
    return {
        "state": "held",
        "until": hold.probe_at.isoformat(),
        "error": f"{hold.error}; {FOREIGN}" if foreign else hold.error,
        "since": hold.since.isoformat(),
        "fingerprint": hold.fingerprint,
    }


def _waiting(connection: Connection, outlook: Outlook) -> Json:
    waiting = work.waiting(connection)
    if waiting is not None:
        return {
            "state": "waiting",
            "until": waiting.until.isoformat(),
            "error": waiting.reason,
            "documents": waiting.documents,
        }
    if outlook.closed_seconds > 0:
        until = datetime.now(UTC) + timedelta(seconds=outlook.closed_seconds)
        return {
            "state": "waiting",
            "until": until.isoformat(),
            "error": "the embedding provider is left alone until then",
        }
    return {}
