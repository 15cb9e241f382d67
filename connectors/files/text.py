"""Plain text files as documents."""

from __future__ import annotations

from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.json_values import json_able
from connectors.documents.options import SourceOptions
from connectors.files.contents import FileText
from connectors.files.markdown import file_metadata, file_title
from connectors.files.source import FileSource
from pipeline.documents import Document, SourceType

MAX_TITLE_LINE = 120


class TextSource(FileSource):
    """One document per text file; its external id is the path below the root."""

    def __init__(self, options: SourceOptions) -> None:
        super().__init__(options, extractor="text-2", convert=text_document)


def text_document(options: SourceOptions, file: FileText) -> Document:
    """The document of one file: the whole text as it is."""
    source_type = options.source_type or SourceType.TEXT
    evidence = Evidence(
        path=file.external_id, above=options.above, text=file.text, front_matter={}, tags=(), headings=()
    )
    kind, facts = kind_and_facts(options.decisions, evidence, source_type)
    return Document(
        external_id=file.external_id,
        title=first_line_title(file.text) or file_title(file),
        text=file.text,
        source_type=source_type,
        kind=kind,
        url=file.url,
        metadata={**json_able(options.metadata), **facts, **file_metadata(file)},
        created_at=file.modified,
        updated_at=file.modified,
    )


def first_line_title(text: str) -> str:
    """The first line with text, if it stands alone and is short enough for a title; else empty."""
    first, _, rest = text.strip().partition("\n")
    alone = not rest.split("\n", 1)[0].strip()
    return " ".join(first.split()) if alone and len(first.strip()) <= MAX_TITLE_LINE else ""
