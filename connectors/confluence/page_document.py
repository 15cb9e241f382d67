"""A page with its comments as one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from connectors.confluence.addresses import PageLinks, address
from connectors.confluence.attachments import Annex
from connectors.confluence.discussion import discussion
from connectors.confluence.files import is_text_file
from connectors.confluence.fingerprints import page_fingerprint
from connectors.confluence.item import Item
from connectors.confluence.options import ConfluenceOptions
from connectors.documents.decisions import Evidence, kind_and_facts
from connectors.documents.headings import headings_of
from connectors.documents.redaction import redact
from connectors.documents.values import clean_text, json_able
from connectors.files.source import is_blank
from connectors.markup import to_markdown
from pipeline.documents import Document, SourceType

Layers = Sequence[Sequence[str]]


def page_document(
    options: ConfluenceOptions, base: str, item: Item, layers: Layers, annex: Annex
) -> Document | None:
    """The document; None if neither the page nor its comments say anything."""
    links = PageLinks(base, item)
    rendered = to_markdown(item.body or "", links)
    comments = discussion(annex.comments, links)
    text = redact(
        clean_text(
            "\n\n".join(part for part in (rendered.text, comments, _file_list(annex, options)) if part)
        )
    )
    if is_blank(text):
        return None
    source_type = options.source_type or SourceType.CONFLUENCE
    kind, facts = kind_and_facts(options.decisions, _evidence(item, redact(rendered.text)), source_type)
    url = address(base, item)
    return Document(
        external_id=item.id,
        title=redact(item.title) or f"Page {item.id}",
        text=text,
        source_type=source_type,
        kind=kind,
        url=url,
        tags=item.labels,
        metadata={
            **json_able(options.metadata),
            **place_metadata(item, layers),
            "labels": list(item.labels),
            **facts,
            **({"capped": True} if rendered.capped else {}),
            "source_path": url,
        },
        created_at=item.created,
        updated_at=item.changed,
        fingerprint=page_fingerprint(item, layers, annex),
    )


def place_metadata(item: Item, layers: Layers) -> dict[str, Any]:
    """Whose it is, where it stands, who may read it; `acl` only if not everybody in the space may."""
    found: Mapping[str, Any] = {
        "space": item.space_key,
        "space_name": item.space_name,
        "breadcrumb": [redact(title) for _, title in item.ancestors],
        "author": item.author,
        "version": item.version,
    }
    acl = {"acl": [list(layer) for layer in layers]} if layers else {}
    return {**found, **acl}


def _file_list(annex: Annex, options: ConfluenceOptions) -> str:
    """Files without a document of their own, by name."""
    names = [file.title for file in annex.files if not is_text_file(file, options)]
    return "\n".join(["## Attachments", "", *(f"- {name}" for name in names)]) if names else ""


def _evidence(item: Item, text: str) -> Evidence:
    titles = (title.replace("/", "-") for title in (*(title for _, title in item.ancestors), item.title))
    path = "/".join((item.space_key, *titles))
    return Evidence(
        path=path,
        text=text,
        front_matter={},
        tags=item.labels,
        headings=list(headings_of(text)),
    )
