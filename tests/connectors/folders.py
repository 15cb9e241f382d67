"""Folders of files to read, and what a walk through them finds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from connectors import SOURCES, FileOptions, SourceContext, open_source
from connectors.documents.globs import Globs
from connectors.documents.options import SourceMetadata
from connectors.files.walk import FileListing, list_files
from pipeline.documents import Document, Page, SourceType

NOBODY = 65534


def write(root: Path, *names: str, text: str = "# Title\n\nSome text.\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def file_options(
    *, source_type: SourceType | None = None, closed: Path | None = None, **keys: Any
) -> FileOptions:
    """The options of a source of this type, as settings make them."""
    facts = {**keys.pop("metadata", {}), **({"source_type": source_type} if source_type else {})}
    made = SOURCES[keys["type"]].options(metadata=SourceMetadata(**facts), **keys)
    assert isinstance(made, FileOptions)
    return made.with_context(SourceContext(closed=closed))


def options(root: Path, *paths: str, exclude: tuple[str, ...] = (), max_bytes: int = 10_000) -> FileOptions:
    return file_options(
        name="files",
        type="markdown",
        root=root,
        paths=paths or ("**/*.md",),
        exclude=exclude,
        max_bytes=max_bytes,
    )


def listing(root: Path, *paths: str, exclude: tuple[str, ...] = ()) -> FileListing:
    given = options(root, *paths, exclude=exclude)
    return list_files(given, Globs(given.paths, given.exclude))


def names(found: FileListing) -> list[str]:
    return [file.external_id for file in found.files]


def walk(given: FileOptions) -> tuple[dict[str, Document], dict[str, str], dict[str, str]]:
    """Documents, failures and skipped items of a walk, by external id."""
    pages: list[Page] = list(open_source(given).pages(None))
    return (
        {d.external_id: d for page in pages for d in page.documents},
        {p.external_id: p.reason for page in pages for p in page.failed},
        {p.external_id: p.reason for page in pages for p in page.skipped},
    )


@contextmanager
def as_nobody() -> Iterator[None]:
    """Gives up root's rights for a moment: root may read everything."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)
