"""Markdown files in a folder, as their source reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from connectors import open_source
from pipeline.documents import Document, Problem
from tests.connectors.folders import file_options


def read(root: Path, **changes: Any) -> tuple[dict[str, Document], dict[str, Problem], dict[str, Problem]]:
    given_options: dict[str, Any] = {"name": "docs", "type": "markdown", "root": root, "paths": ("**/*.md",)}
    pages = list(open_source(file_options(**(given_options | changes))).pages(None))
    return (
        {d.external_id: d for page in pages for d in page.documents},
        {p.external_id: p for page in pages for p in page.failed},
        {p.external_id: p for page in pages for p in page.skipped},
    )


def document(root: Path, text: str, name: str = "note.md", **changes: Any) -> Document:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    documents, failed, skipped = read(root, **changes)
    assert not failed, failed
    assert not skipped, skipped
    return documents[name]
