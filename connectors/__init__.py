"""What knows one kind of foreign system each; `open_source` picks by the configured type."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from typing import Any, NamedTuple

from connectors.azure_devops.options import AzureDevOpsOptions
from connectors.confluence.options import ConfluenceOptions
from connectors.documents.options import DecisionRules, SourceContext, SourceOptions
from connectors.documents.protection import ProtectedSource
from connectors.files.options import FileOptions, MarkdownOptions, PbiOptions, TextOptions
from pipeline.documents import Source
from pipeline.errors import ConfigurationError

__all__ = ["SOURCES", "DecisionRules", "FileOptions", "SourceContext", "SourceOptions", "load", "open_source"]


class SourceKind(NamedTuple):
    """A type of source."""

    options: type[SourceOptions]
    """Its section of the configuration."""
    connector: str
    """Where its class is, which takes the options; loaded on first use, for clients of services are large."""


SOURCES: Mapping[str, SourceKind] = {
    "markdown": SourceKind(MarkdownOptions, "connectors.files.markdown:MarkdownSource"),
    "text": SourceKind(TextOptions, "connectors.files.markdown:TextSource"),
    "pbi_json": SourceKind(PbiOptions, "connectors.pbi.sources:PbiJsonSource"),
    "json": SourceKind(PbiOptions, "connectors.pbi.sources:JsonSource"),
    "confluence": SourceKind(ConfluenceOptions, "connectors.confluence.source:ConfluenceSource"),
    "azure_devops": SourceKind(AzureDevOpsOptions, "connectors.azure_devops.source:AzureDevOpsSource"),
}


def open_source(options: SourceOptions) -> Source:
    """The source of one configured entry; nothing is read yet.

    Raises:
        ConfigurationError: the type is unknown, or what it is told is wrong.
    """
    if options.type not in SOURCES:
        known = ", ".join(SOURCES)
        raise ConfigurationError(
            f"source {options.name} has the unknown type {options.type!r}", fix=f"known are {known}"
        )
    return ProtectedSource(load(options.type)(options), options)


def load(kind: str) -> Any:
    """The class of a type of source, imported with the client of its service."""
    return pkgutil.resolve_name(SOURCES[kind].connector)
