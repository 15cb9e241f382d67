"""Markdown files as documents, with their front matter."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.front_matter import FrontMatter, split_front_matter, tags_of
from connectors.documents.headings import Heading, headings_of, plain_text, title_of
from connectors.documents.json_values import json_able, scalar_text
from connectors.documents.options import SourceOptions
from connectors.documents.times import parse_time
from connectors.files.contents import FileText
from connectors.files.links import resolve_links
from connectors.files.source import FileSource
from pipeline.documents import Document, SourceType

ALWAYS_KEPT = ("author", "date", "created", "updated")


class MarkdownSource(FileSource):
    """One document per Markdown file; its external id is the path below the root."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options, extractor="markdown-2", convert=markdown_document)


def markdown_document(options: SourceOptions, file: FileText) -> Document | None:
    """The document of one file; None if there is no text below the front matter.

    Raises:
        DocumentRejected: the front matter is broken.
    """
    front = split_front_matter(file.text, file.external_id)
    if not front.body.strip():
        return None
    headings = list(headings_of(front.body))
    tags = tags_of(front.values.get("tags"))
    source_type = options.source_type or SourceType.DOCUMENTATION
    evidence = Evidence(
        path=file.external_id,
        above=options.above,
        text=front.body,
        front_matter=front.values,
        tags=tags,
        headings=headings,
    )
    kind, facts = kind_and_facts(options.decisions, evidence, source_type)
    linked = resolve_links(front.body, file.relative, options)
    created, updated = _times(front.values, file.modified)
    return Document(
        external_id=file.external_id,
        title=_title(front, headings, file),
        text=linked.text,
        source_type=source_type,
        kind=kind,
        url=file.url,
        tags=tags,
        metadata={
            **json_able(options.metadata),
            **_kept(options, front.values, tags),
            **facts,
            **({"links": list(linked.links)} if linked.links else {}),
            **file_metadata(file),
        },
        created_at=created,
        updated_at=updated,
    )


def file_metadata(file: FileText) -> dict[str, str]:
    """`source_path`, and `encoding` if it is not UTF-8."""
    encoding = {} if file.encoding == "utf-8" else {"encoding": file.encoding}
    return {"source_path": file.external_id, **encoding}


def file_title(file: FileText) -> str:
    """The file's name without its suffix."""
    return PurePosixPath(file.external_id).stem


def _title(front: FrontMatter, headings: list[Heading], file: FileText) -> str:
    given = plain_text(scalar_text(front.values.get("title")))
    return given or title_of(headings) or file_title(file)


def _kept(options: SourceOptions, values: Mapping[str, Any], tags: tuple[str, ...]) -> dict[str, Any]:
    names = dict.fromkeys((*options.frontmatter_fields, *ALWAYS_KEPT))
    kept = {name: json_able(values[name]) for name in names if values.get(name) is not None}
    return {**kept, "tags": list(tags)} if "tags" in kept else kept


def _times(values: Mapping[str, Any], modified: datetime | None) -> tuple[datetime | None, datetime | None]:
    """Created and updated: what the author says, else the file's time, never created after updated."""
    updated = parse_time(values.get("updated")) or modified
    created = parse_time(values.get("created")) or parse_time(values.get("date")) or modified
    if created and updated and created > updated:
        created, updated = (updated, updated) if created == modified else (created, created)
    return created, updated
