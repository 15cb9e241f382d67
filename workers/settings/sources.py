"""Sources: one section per configured source, with the keys of its connector and those of all sources."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    ValidationError,
    create_model,
    model_validator,
)

from connectors import SOURCES, SourceOptions
from connectors.sections import Expected, Flag, Mismatch, Text, Zone, as_list, mismatched, refusal, refuse
from workers.settings.chunking import ChunkingSettings
from workers.settings.values import Cron, Language


class SourceSettings(SourceOptions):
    """Keys that every source has, whatever its type."""

    enabled: Flag = True
    """false: never synced; what was indexed stays searchable."""
    auto_index: Flag = True
    """false: no sync on its own as soon as the source is new."""
    index_schedule: Cron | None = Field(default=None, examples=["0 */6 * * *"])
    """When to sync, in the source's time zone. In a night in which the clock is changed a time that comes twice counts
    once, unless it is of every hour, and one that is left out counts as an hour later."""
    update_schedule: Cron | None = Field(default=None, examples=["0 2 * * *"])
    """Another name of indexSchedule, which wins if both are there."""
    timezone: Zone | None = Field(default=None, examples=["Europe/Berlin"])
    """Empty: that of the file."""
    language: Language | None = Field(default=None, examples=["german"])
    """Language by which the words of this source are stemmed. Empty: that of the file."""
    tenant: Text | None = None
    """Id or name. Empty: LARDER_TENANT, else the file's tenant."""
    project: Text | None = None
    """Id or name; `shared` is for all projects. Empty: LARDER_PROJECT, else the file's project."""
    chunking: ChunkingSettings | None = None
    """Chunking of this source's documents, with all keys of the section chunking. A key left out has its
    own default, not the value of the section chunking."""

    @property
    def schedule(self) -> str | None:
        """The cron text, whichever of its two names it was given."""
        return self.index_schedule or self.update_schedule

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        both = {self.index_schedule, self.update_schedule} - {None}
        if len(both) > 1:
            fix = "keep one of the two"
            refuse(self, [Mismatch(key="update_schedule", expected="the same as indexSchedule", fix=fix)])
        return self


class UnfinishedSource(SourceSettings):
    """A source that is switched off and lacks what it needs: kept by its name, otherwise unread."""

    model_config = ConfigDict(extra="ignore")


@cache
def _section(options: type[SourceOptions]) -> type[SourceSettings]:
    bases: tuple[Any, ...] = (options, SourceSettings)
    section: type[SourceSettings] = create_model(options.__name__, __base__=bases, __doc__=options.__doc__)
    return section


SOURCE_TYPES: Mapping[str, type[SourceSettings]] = {
    kind: _section(source.options) for kind, source in SOURCES.items()
}
"""The section of each type of source; each is the options of its connector as well."""


def _of_type(value: Any) -> SourceSettings:
    """The source's own section, chosen by its `type`."""
    if isinstance(value, SourceSettings):
        return value
    if not isinstance(value, dict):
        raise refusal("a source with at least name, type and paths")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in SOURCE_TYPES:
        raise mismatched([Mismatch(key="type", expected="one of " + ", ".join(SOURCE_TYPES))])
    try:
        return SOURCE_TYPES[kind].model_validate(value)
    except ValidationError as error:
        if is_off(value) and all(detail["type"] == "missing" for detail in error.errors()):
            return UnfinishedSource.model_validate(value)
        raise


def is_off(source: Any) -> bool:
    """True for a source, as the file has it, that is switched off."""
    return isinstance(source, dict) and str(source.get("enabled")).lower() in {"false", "no", "off", "0"}


Sources = Annotated[
    tuple[Annotated[SerializeAsAny[SourceSettings], BeforeValidator(_of_type)], ...],
    BeforeValidator(as_list),
    Expected("a list of sources"),
]
"""Sources of any type."""
