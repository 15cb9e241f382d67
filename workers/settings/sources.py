"""What Larder reads: one section per configured source."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import annotated_types
from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from pipeline.documents import SourceType
from workers.settings.chunking import ChunkingSettings
from workers.settings.values import (
    Cron,
    Expected,
    Flag,
    Folder,
    Language,
    Mismatch,
    Name,
    Section,
    Size,
    Text,
    Texts,
    WebUrl,
    Zone,
    refusal,
    refuse,
)
from workers.settings.yamlfile import plain


def _source_type(value: Any) -> SourceType:
    try:
        return SourceType.parse(str(value))
    except ValueError:
        raise refusal(_SOURCE_TYPES) from None


_SOURCE_TYPES = "one of " + ", ".join(SourceType)

KnownSourceType = Annotated[SourceType, BeforeValidator(_source_type), Expected(_SOURCE_TYPES)]


class SourceMetadata(Section):
    """Fixed facts that every document of a source carries; keys of your own are welcome."""

    model_config = ConfigDict(extra="allow")

    source_type: KnownSourceType | None = Field(
        default=None,
        examples=["documentation"],
        description=f"What searches filter by: {', '.join(SourceType)}. Empty: that of the source's type.",
    )
    category: Text | None = Field(default=None, examples=["reference"])
    """A word of your own to filter by."""

    @model_validator(mode="before")
    @classmethod
    def _free_values(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        known = {name for key, f in cls.model_fields.items() for name in (key, f.alias)}
        return {key: item if key in known else plain(item) for key, item in value.items()}

    def fixed(self) -> dict[str, Any]:
        """What goes into each document's metadata: the category and the keys of your own."""
        category = {} if self.category is None else {"category": self.category}
        return {**category, **(self.model_extra or {})}


class Extractor(Section):
    """A field of the backlog item that becomes metadata under another name."""

    field: Text
    """The item's field."""
    to: Text
    """Its name in the metadata."""


class PbiMetadata(SourceMetadata):
    """Fixed facts, and facts taken from each backlog item."""

    extractors: tuple[Extractor, ...] = (
        Extractor(field="id", to="pbi_id"),
        Extractor(field="created_at", to="timestamp"),
        Extractor(field="confidence_score", to="quality_score"),
    )
    """Fields of each item that become metadata."""


class SourceSettings(Section):
    """What every source has."""

    name: Name
    """How commands and reports call the source; unique."""
    type: Text
    """What kind of source it is."""
    enabled: Flag = True
    """false: never synced; what was indexed stays searchable."""
    auto_index: Flag = True
    """false: no sync on its own as soon as the source is new."""
    index_schedule: Cron | None = Field(default=None, examples=["0 */6 * * *"])
    """When to sync, in the source's time zone."""
    update_schedule: Cron | None = Field(default=None, examples=["0 2 * * *"])
    """The same as indexSchedule, which wins if both are there."""
    timezone: Zone | None = Field(default=None, examples=["Europe/Berlin"])
    """Empty: that of the file."""
    language: Language | None = Field(default=None, examples=["german"])
    """In which the words of this source are stemmed. Empty: that of the file."""
    metadata: SourceMetadata = SourceMetadata()
    """Fixed facts of every document of this source."""
    tenant: Text | None = None
    """Id or name. Empty: LARDER_TENANT, else the file's tenant."""
    project: Text | None = None
    """Id or name; `shared` is for all projects. Empty: LARDER_PROJECT, else the file's project."""
    chunking: ChunkingSettings | None = None
    """How this source's documents are cut, with all keys of the section chunking. A key left out has its
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

    @property
    def default_strategy(self) -> str | None:
        """The chunking strategy this type of source prefers over the global one."""
        return None


class FileSource(SourceSettings):
    """Files below a folder, found by patterns."""

    paths: Annotated[Texts, annotated_types.MinLen(1), Expected("a list of one pattern or more")]
    """Patterns of the files to read, below root; ** is any number of folders."""
    exclude: Texts = Field(default=(), examples=[["**/node_modules/**"]])
    """Patterns of files to leave out."""
    root: Folder = Path()
    """The folder the patterns start at and never leave."""
    base_url: WebUrl | None = Field(default=None, examples=["https://git.example.com/project/blob/main"])
    """Where people open these files; the path is appended. Empty: no links."""
    watch: Flag = False
    """Look for changed files every few seconds."""
    max_bytes: Size = Field(default="10m", validate_default=True)
    """Larger files are skipped and reported."""


class MarkdownSource(FileSource):
    """Markdown files with front matter."""

    frontmatter_fields: Texts = ("title", "tags", "category")
    """Fields of the front matter that are kept."""


class TextSource(FileSource):
    """Plain text files."""


class PbiJsonSource(FileSource):
    """Backlog items in JSON files."""

    metadata: PbiMetadata = PbiMetadata()
    """Fixed facts, and facts taken from each backlog item."""

    @property
    def default_strategy(self) -> str | None:
        """Items are cut along their own parts."""
        return "pbi_aware"
