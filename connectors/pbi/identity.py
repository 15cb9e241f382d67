"""What a backlog item is called where others have its id."""

from __future__ import annotations

import hashlib

from pipeline.documents import plain_title


def title_key(title: str) -> str:
    """Equal for titles that differ in case and blanks alone; short enough to be part of an id."""
    return hashlib.sha256(plain_title(title).encode()).hexdigest()[:8]


def item_name(pbi_id: str, title: str) -> str:
    """The external id of a backlog item where another one is called by its id alone."""
    return f"{pbi_id}~{title_key(title)}"
