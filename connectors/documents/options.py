"""What every source is told: the keys of its section, and what the rest of the configuration adds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, ConfigDict, Field, PrivateAttr, model_validator
from pydantic.alias_generators import to_camel

from connectors.documents.values import json_able
from connectors.sections import (
    ConfigSection,
    Expected,
    Mismatch,
    Name,
    Number,
    Positive,
    Text,
    Texts,
    mismatched,
)
from pipeline.documents import SourceType

if TYPE_CHECKING:
    # The clients of services cost 30 MB and a quarter of a second: only who opens such a source pays.
    from connectors.web.limiter import RequestLimiter
    from connectors.web.session import Access


class DecisionRules(ConfigSection):
    """Which documents are decisions; one match is enough, an empty list switches a rule off."""

    frontmatter_types: Texts = (
        "adr", "decision", "decision-record", "architecture-decision-record", "rfc",
    )  # fmt: skip
    """Values of `type` in the front matter; a date with a status such as accepted will do as well."""
    paths: Texts = (
        "**/adr/**", "**/adrs/**", "**/*decisions/**", "**/*decision-record*/**", "**/rfcs/**", "**/*adr-[0-9]*",
    )  # fmt: skip
    """Patterns of paths. In a folder (`/**` at the end) a document needs a further sign of a record: a
    number, a status, a heading."""
    tags: Texts = ("decision", "adr", "rfc")
    """Tags or labels."""
    headings: Texts = ("Decision", "Status")
    """Headings a document has, all of them; those of MADR and Nygard will do as well."""


KnownSourceType = Annotated[
    SourceType,
    BeforeValidator(lambda value: SourceType.parse(str(value))),
    Expected("one of " + ", ".join(SourceType)),
]


class SourceMetadata(ConfigSection):
    """Fixed facts that every document of a source carries; keys of your own are welcome."""

    model_config = ConfigDict(extra="allow")

    source_type: KnownSourceType | None = Field(
        default=None,
        examples=["documentation"],
        description=f"What searches filter by: {', '.join(SourceType)}. Empty: that of the source's type.",
    )
    category: Text | None = Field(default=None, examples=["reference"])
    """A word of your own to filter by."""

    def fixed(self) -> dict[str, Any]:
        """What goes into each document's metadata: the category and the keys of your own."""
        return self.model_dump(mode="json", exclude={"source_type"}, exclude_none=True)


def _no_limiter() -> RequestLimiter:
    from connectors.web.limiter import LocalRequestLimiter

    return LocalRequestLimiter()


@dataclass(frozen=True, kw_only=True)
class SourceContext:
    """What the configuration says of a source outside of its section."""

    folder: Path = Path()
    """What relative paths of the section are relative to."""
    closed: Path | None = None
    """A folder that is never read, whatever the patterns say: where passwords of ours lie."""
    decisions: DecisionRules = field(default_factory=DecisionRules)
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Added to the fixed metadata of every document."""
    limiter: Callable[[], RequestLimiter] = _no_limiter
    """Asked for by services only."""
    patience: float = 0.0
    """Seconds of pauses a service may ask for in all before its reader goes away."""


class SourceOptions(ConfigSection):
    """What every source is told."""

    name: Name
    """How commands and reports call the source; unique."""
    type: Text
    """What kind of source it is."""
    metadata: SourceMetadata = SourceMetadata()
    """Fixed facts of every document of this source."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Keys of a source as `larder config init` shows it; none: it is not shown."""
    strategy: ClassVar[str | None] = None
    """The chunking strategy this type of source prefers over the global one."""
    groups: ClassVar[tuple[str, ...]] = ()
    """Keys whose own keys mean the same one level higher, such as `auth`."""
    _context: SourceContext = PrivateAttr(default_factory=SourceContext)

    @model_validator(mode="before")
    @classmethod
    def _ungrouped(cls, value: Any) -> Any:
        """The keys of all groups beside the others; one that stands in both places is refused."""
        given = value if isinstance(value, dict) else {}
        for key in [key for key in given if to_camel(str(key)) in cls.groups]:
            group, inner = str(key), value[key] or {}
            if not isinstance(inner, dict):
                raise mismatched([Mismatch(key=group, expected="a mapping")])
            if twice := [key for key in inner if key in value]:
                fix = f"it stands beside {group} as well"
                raise mismatched([Mismatch(key=key, expected="each key once", fix=fix) for key in twice])
            value = {key: item for key, item in value.items() if key != group} | inner
        return value

    def within(self, context: SourceContext) -> Self:
        """The same, told what the rest of the configuration says."""
        told = self.model_copy()
        told._context = context  # noqa: SLF001 (a copy of our own)
        return told

    @property
    def place(self) -> str:
        """The folder or the address that is read, for people."""
        return ""

    @property
    def source_type(self) -> SourceType | None:
        """Replaces the connector's own source type."""
        return self.metadata.source_type

    @property
    def fixed_metadata(self) -> dict[str, Any]:
        """Of every document; what a document says of itself goes first."""
        fixed: dict[str, Any] = json_able({**self.metadata.fixed(), **self._context.metadata})
        return fixed

    @property
    def decisions(self) -> DecisionRules:
        """What makes a document a decision."""
        return self._context.decisions


class ServiceOptions(SourceOptions):
    """What every service is told."""

    max_concurrency: Positive = 4
    """Requests at once to the service's host, over all workers."""
    requests_per_minute: Positive | None = Field(default=None, examples=[300])
    """Requests a minute to the service's host, over all workers. Empty: only what the service says."""
    connect_timeout: Number = Field(default=10, gt=0)
    """Seconds to wait for a connection."""
    read_timeout: Number = Field(default=60, gt=0)
    """Seconds to wait for the next part of an answer."""

    groups: ClassVar[tuple[str, ...]] = ("auth",)
    product: ClassVar[str]
    """The service's name in messages."""

    def _hash_with(self, *parts: Any) -> str:
        """A short hash over these and over what becomes of any document: tells whether a cursor still holds."""
        made = [*parts, self.fixed_metadata, self.source_type, self.decisions.model_dump()]
        text = json.dumps(made, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    @cached_property
    def access(self) -> Access:
        """Where the service is, and how gently it is asked."""
        from connectors.web.limiter import RequestLimits
        from connectors.web.session import Access

        return Access(
            base_url=self.place,
            limiter=self._context.limiter(),
            limits=RequestLimits(per_minute=self.requests_per_minute, at_once=self.max_concurrency),
            connect_timeout=self.connect_timeout,
            read_timeout=self.read_timeout,
            patience=self._context.patience,
            product=self.product,
        )
