"""What knows one kind of foreign system each; `open_source` picks by the configured type."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from connectors.documents.options import DecisionRules, SourceOptions
from connectors.files.markdown import MarkdownSource, TextSource
from connectors.pbi.sources import JsonSource, PbiJsonSource
from pipeline.documents import Source
from pipeline.errors import ConfigurationError

if TYPE_CHECKING:
    from connectors.azure_devops import AzureDevOpsOptions
    from connectors.confluence import ConfluenceOptions

__all__ = ["SOURCES", "DecisionRules", "Options", "SourceOptions", "open_source"]


class Options(Protocol):
    """What a connector is told; each has a record of its own."""

    @property
    def name(self) -> str:
        """The source's."""
        ...

    @property
    def type(self) -> str:
        """A key of SOURCES."""
        ...


# The clients of the services cost 30 MB and a quarter of a second: only who opens such a source pays.


def _confluence(options: ConfluenceOptions) -> Source:
    from connectors.confluence import ConfluenceSource

    return ConfluenceSource(options)


def _azure_devops(options: AzureDevOpsOptions) -> Source:
    from connectors.azure_devops import AzureDevOpsSource

    return AzureDevOpsSource(options)


SOURCES: dict[str, Callable[[Any], Source]] = {
    "markdown": MarkdownSource,
    "text": TextSource,
    "pbi_json": PbiJsonSource,
    "json": JsonSource,
    "confluence": _confluence,
    "azure_devops": _azure_devops,
}


def open_source(options: Options) -> Source:
    """The source of one configured entry; nothing is read yet.

    Raises:
        ConfigurationError: the type is unknown, or what it is told is wrong.
    """
    if options.type not in SOURCES:
        known = ", ".join(SOURCES)
        raise ConfigurationError(
            f"source {options.name} has the unknown type {options.type!r}", fix=f"known are {known}"
        )
    return SOURCES[options.type](options)
