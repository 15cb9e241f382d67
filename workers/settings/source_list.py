"""The list of sources: each in the section of its type, each name once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, ValidationError

from workers.settings.services import AzureDevOpsSource, ConfluenceSource
from workers.settings.sources import MarkdownSource, PbiJsonSource, SourceSettings, TextSource
from workers.settings.values import Expected, Mismatch, listed, mismatched, refusal
from workers.settings.yamlfile import typed


class UnfinishedSource(SourceSettings):
    """A source that is switched off and lacks what it needs: kept by its name, otherwise unread."""

    model_config = ConfigDict(extra="ignore")


SOURCE_TYPES: Mapping[str, type[SourceSettings]] = MappingProxyType(
    {
        "markdown": MarkdownSource,
        "text": TextSource,
        "pbi_json": PbiJsonSource,
        "json": PbiJsonSource,
        "confluence": ConfluenceSource,
        "azure_devops": AzureDevOpsSource,
    }
)
"""One line per type of source that this version reads."""


def _of_type(value: Any) -> SourceSettings:
    """The source's own section, chosen by its `type`."""
    if isinstance(value, SourceSettings):
        return value
    if isinstance(value, _Repeated):
        raise mismatched("source", [Mismatch(key="name", expected="a name that no other source has")])
    if not isinstance(value, dict):
        raise refusal("a source with at least name, type and paths")
    kind = value.get("type")
    if isinstance(kind, str) and kind in SOURCE_TYPES:
        try:
            return SOURCE_TYPES[kind].model_validate(value)
        except ValidationError as error:
            if typed(value.get("enabled")) is False and all(e["type"] == "missing" for e in error.errors()):
                return UnfinishedSource.model_validate(value)
            raise
    known = "one of " + ", ".join(SOURCE_TYPES)
    raise mismatched("source", [Mismatch(key="type", expected=known)])


@dataclass(frozen=True)
class _Repeated:
    """Stands for a source whose name an earlier one has."""


def _once(value: Any) -> Any:
    items = listed(value)
    if not isinstance(items, list | tuple):
        return items
    names = [item.get("name") if isinstance(item, dict) else getattr(item, "name", None) for item in items]
    first = {str(name): index for index, name in reversed(list(enumerate(names)))}
    return [
        item if name is None or first[str(name)] == index else _Repeated()
        for index, (item, name) in enumerate(zip(items, names, strict=True))
    ]


Sources = Annotated[
    tuple[Annotated[SourceSettings, BeforeValidator(_of_type)], ...],
    BeforeValidator(_once),
    Expected("a list of sources"),
]
"""Sources of any type, each with a name of its own."""
