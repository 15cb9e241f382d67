"""What knows one kind of foreign system each; `open_source` picks by the configured type."""

from __future__ import annotations

from collections.abc import Callable

from connectors.json_files import JsonSource
from connectors.markdown import MarkdownSource
from connectors.options import DecisionRules, SourceOptions
from connectors.pbi_json import PbiJsonSource
from connectors.text import TextSource
from pipeline.documents import Source
from pipeline.errors import ConfigurationError

__all__ = ["SOURCES", "DecisionRules", "SourceOptions", "open_source"]

SOURCES: dict[str, Callable[[SourceOptions], Source]] = {
    "markdown": MarkdownSource,
    "text": TextSource,
    "pbi_json": PbiJsonSource,
    "json": JsonSource,
}


def open_source(options: SourceOptions) -> Source:
    """The source of one configured entry; nothing is read yet.

    Raises:
        ConfigurationError: the type is unknown, or a glob is wrong.
    """
    if options.type not in SOURCES:
        known = ", ".join(SOURCES)
        raise ConfigurationError(
            f"source {options.name} has the unknown type {options.type!r}", fix=f"known are {known}"
        )
    return SOURCES[options.type](options)
