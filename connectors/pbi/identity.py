"""Names of backlog items that share an id."""

from __future__ import annotations

import hashlib

from pipeline.documents.plain_text import plain_title


def title_key(title: str) -> str:
    """Hash of a title, equal for titles that differ in case and blanks only; short enough to be part of an id."""
    return hashlib.sha256(plain_title(title).encode()).hexdigest()[:8]


def item_name(pbi_id: str, title: str) -> str:
    """External id of a backlog item whose id alone is the external id of another item."""
    return f"{pbi_id}~{title_key(title)}"
