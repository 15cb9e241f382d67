"""Connectors, one package per kind of foreign system; `open_source` picks one by type and redacts its output."""

from __future__ import annotations

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.confluence.options import ConfluenceOptions
from connectors.documents.options import (
    NAMES,
    DecisionRules,
    SourceContext,
    SourceOptions,
)
from connectors.documents.redaction import redact
from connectors.documents.rights import canonical_rights
from connectors.files.options import FileOptions, MarkdownOptions, PbiOptions, TextOptions
from connectors.rest.options import RestOptions
from pipeline.documents import LEVEL, Cursor, Document, Page, Problem, Source
from pipeline.documents.plain_text import composed, without_controls
from pipeline.errors import ConfigurationError, DocumentRejected

__all__ = [
    "SOURCES",
    "DecisionRules",
    "FileOptions",
    "ProtectedSource",
    "SourceContext",
    "SourceOptions",
    "load",
    "open_source",
    "protected",
]


class SourceKind(NamedTuple):
    """A type of source."""

    options: type[SourceOptions]
    """Class of the source's section of the configuration."""
    connector: str
    """`module:class` of the connector, called with the options; imported on first use: service clients are large."""


SOURCES: Mapping[str, SourceKind] = {
    "markdown": SourceKind(MarkdownOptions, "connectors.files.markdown:MarkdownSource"),
    "text": SourceKind(TextOptions, "connectors.files.markdown:TextSource"),
    "pbi_json": SourceKind(PbiOptions, "connectors.pbi.sources:PbiJsonSource"),
    "json": SourceKind(PbiOptions, "connectors.pbi.sources:JsonSource"),
    "confluence": SourceKind(ConfluenceOptions, "connectors.confluence.source:ConfluenceSource"),
    "azure_devops": SourceKind(AzureDevOpsOptions, "connectors.azure_devops.source:AzureDevOpsSource"),
    "rest": SourceKind(RestOptions, "connectors.rest.source:RestSource"),
}


def open_source(options: SourceOptions) -> Source:
    """The source of one configured entry; nothing is read yet.

    Raises:
        ConfigurationError: the type is unknown, or an option has a wrong value.
    """
    if options.type not in SOURCES:
        type_names = ", ".join(SOURCES)
        raise ConfigurationError(
            f"source {options.name} has the unknown type {options.type!r}",
            fix=f"the known types are {type_names}",
        )
    return ProtectedSource(source_class(options.type)(options), options)


def source_class(kind: str) -> Any:
    """Connector class of a source type; imports the client library of its service."""
    return pkgutil.resolve_name(SOURCES[kind].connector)


# -- redaction and rights of every document, before it is stored -----------------------------------------

PEOPLE = ("author", "authors", "created_by", "assigned_to", "assignee", "deciders")
"""Metadata keys that hold names of people."""
AS_IT_IS: Mapping[str, Callable[[str], str]] = {"acl": str, "source_path": redact, "links": redact}
"""Metadata keys exempt from redaction of personal data: links and paths still lose secrets, `acl` nothing."""
SHORTEST_NAME, LONGEST_NAME, MOST_NAMES = 3, 80, 200
_HEADS = re.compile(
    # Lines in which connectors name the author of a comment or a change.
    r"^(?: *- \*\*|### )([^\n,*]{1,80}), \d{4}-\d\d-\d\d|^- (?:Created|Resolved|Closed) [\d-]{10} by ([^\n:]{1,80})",
    re.MULTILINE,
)


class ProtectedSource:
    """A source whose documents are redacted and get their security level, by the options."""

    def __init__(self, source: Source, options: SourceOptions) -> None:
        self._source = source
        self._options = options
        self.extractor, self.walks_all = source.extractor, source.walks_all
        self.ids, self.check, self.stamp = source.ids, source.check, source.stamp
        self.skip_unchanged = source.skip_unchanged

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages of the source since the cursor, with protected documents."""
        return map(self._page, self._source.pages(since))

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Pages with the documents of these ids, protected."""
        return map(self._page, self._source.read(ids))

    def _page(self, page: Page) -> Page:
        documents, failed = [], list(page.failed)
        for document in page.documents:
            try:
                documents.append(protected(document, self._options))
            except DocumentRejected as error:
                failed.append(Problem(external_id=document.external_id, reason=str(error), url=document.url))
        return replace(page, documents=tuple(documents), failed=tuple(failed))


def protected(document: Document, options: SourceOptions) -> Document:
    """The document redacted, with canonical rights and its security level; `acl` and addresses stay.

    Raises:
        DocumentRejected: its metadata name a security level that does not exist.
    """
    document = replace(document, metadata=canonical_rights(document.metadata))
    names = list(map(composed, names_in(document))) if NAMES in options.redact else []

    def clean(text: str) -> str:
        return redact(composed(text), kinds=options.redact, names=names)

    return replace(
        document,
        title=clean(without_controls(document.title)),
        text=clean(document.text),
        url=redact(document.url),
        tags=tuple(map(clean, document.tags)),
        metadata={k: _each(v, AS_IT_IS.get(k, clean)) for k, v in document.metadata.items() if k != LEVEL},
        security_level=options.level_of(document),
    )


def names_in(document: Document) -> list[str]:
    """Names of people in the metadata and in the heads of comments that connectors write."""
    texts: list[str] = []
    _each([document.metadata.get(key) for key in PEOPLE], texts.append)
    candidates = [name for text in texts for name in re.split(r"[,;<>]|\s(?:and|&)\s", text)]
    candidates += [name for groups in _HEADS.findall(document.text) for name in groups]
    names = dict.fromkeys(name.strip() for name in candidates)
    return [name for name in names if SHORTEST_NAME <= len(name) <= LONGEST_NAME][:MOST_NAMES]


def _each(value: Any, change: Callable[[str], object]) -> Any:
    """The value with `change` applied to every text in it; keys of mappings stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each(inner, change) for key, inner in value.items()}
    return [_each(inner, change) for inner in value] if isinstance(value, list | tuple) else value
