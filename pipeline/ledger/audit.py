"""The audit chain of a tenant: who changed what by hand; each entry holds the hash of the one before it."""

from __future__ import annotations

import json
from uuid import UUID

from sqlalchemy import Connection, text

from pipeline.documents import Json


def append(connection: Connection, tenant: UUID, action: str, subject: str, detail: Json, *, by: str) -> None:
    """Write an entry, in the transaction of the change itself."""
    connection.execute(
        text("select audit_append(:tenant, :actor, :action, :subject, cast(:detail as jsonb))"),
        {
            "tenant": tenant,
            "actor": by,
            "action": action,
            "subject": subject,
            "detail": json.dumps(detail),
        },
    )
