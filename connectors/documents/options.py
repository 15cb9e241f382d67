"""What every source is told: the keys of its section, and what the rest of the configuration adds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel

from connectors.documents.globs import include_pattern
from connectors.documents.redaction import PERSONAL
from connectors.documents.rights import reader_layers
from connectors.documents.values import json_able
from connectors.sections import (
    ConfigSection,
    Expected,
    Mismatch,
    Name,
    Number,
    OneOf,
    Positive,
    Text,
    Texts,
    as_list,
    mismatched,
    refusal,
)
from pipeline.documents import LEVEL, LEVELS, Cursor, Document, Json, SourceType
from pipeline.errors import ConfigurationError, DocumentRejected

if TYPE_CHECKING:
    # The clients of services cost 30 MB and a quarter of a second: only who opens such a source pays.
    from connectors.web.limiter import RequestLimiter
    from connectors.web.session import Access


LINKED_PATH = "linked_path"
"""Metadata of a file found through a link: where it lies itself, for rules that name paths."""


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
    number, a status, a heading. A path without a pattern, such as docs/decision-log.md, is a decision
    whatever it is called; one with several entries, below headings or in a table, is a document for each."""
    tags: Texts = ("decision", "adr", "rfc")
    """Tags or labels."""
    headings: Texts = ("Decision", "Status")
    """Headings a document has, all of them; those of MADR and Nygard will do as well."""


KnownSourceType = Annotated[
    SourceType,
    BeforeValidator(lambda value: SourceType.parse(str(value))),
    Expected("one of " + ", ".join(SourceType)),
]


NAMES = "names"
KINDS = (*PERSONAL, NAMES)
USUAL = ("email", "iban", "card", "phone")
"""Addresses of the network are left in, for most of what looks like one is a version; so are names."""


def _kinds(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return () if value is False else USUAL
    return as_list(value)


Redacted = Annotated[
    tuple[Annotated[str, OneOf(KINDS)], ...],
    BeforeValidator(_kinds),
    Expected(f"true, false or a list of {', '.join(KINDS)}"),
]


def _glob(text: str) -> str:
    try:
        return include_pattern(text).text
    except ConfigurationError as error:
        raise refusal("a pattern such as hr/** relative to a source's root", f"; {error}") from None


Level = Annotated[str, OneOf(LEVELS)]


class LevelRule(ConfigSection):
    """Documents for which all of its keys hold get its level; of each list one entry is enough."""

    level: Level
    """Their security level."""
    labels: Texts = ()
    """Labels or tags, in any case."""
    tags: Texts = ()
    """The same as labels."""
    spaces: Texts = ()
    """Keys of spaces of Confluence."""
    area_paths: Texts = ()
    """Area paths of Azure DevOps, with all below them."""
    paths: Annotated[
        tuple[Annotated[Text, AfterValidator(_glob)], ...],
        BeforeValidator(as_list),
        Expected("a list of patterns"),
    ] = ()
    """Patterns of paths; a page of Confluence has the path space/page above/title."""
    types: Annotated[
        tuple[KnownSourceType, ...], BeforeValidator(as_list), Expected("a list of source types")
    ] = ()
    """Types of documents, as searches filter by them."""
    sources: Texts = ()
    """Names of sources."""
    title_pattern: Text | None = None
    """A title with `*` for any text, in any case."""

    def fits(self, document: Document, source: str) -> bool:
        """True if all that the rule names holds for this document of a source."""
        told, title = document.metadata, document.title.casefold()
        labels = {str(label).casefold() for label in (*document.tags, *told.get("labels", ()))}
        above = [str(part).replace("/", "-") for part in (*told.get("breadcrumb", ()), document.title)]
        own = (str(told[key]) for key in ("source_path", LINKED_PATH) if key in told)
        paths = ["/".join([str(told["space"]), *above])] if "space" in told else [*own] or [""]
        area = f"{told.get('area', '')}\\".casefold()
        tests: tuple[tuple[Sequence[str], Callable[[str], bool]], ...] = (
            ((*self.labels, *self.tags), lambda label: label.casefold() in labels),
            (self.spaces, lambda space: space == told.get("space")),
            (self.area_paths, lambda top: area.startswith(top.rstrip("\\").casefold() + "\\")),
            (self.paths, lambda glob: any(map(include_pattern(glob).matches, paths))),
            (self.types, lambda kind: kind == document.source_type),
            (self.sources, lambda name: name == source),
            (
                (self.title_pattern,) if self.title_pattern else (),
                lambda glob: fnmatchcase(title, glob.casefold()),
            ),
        )
        return all(not wanted or any(map(holds, wanted)) for wanted, holds in tests)


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
    levels: Sequence[LevelRule] = ()
    """Which documents have which security level; the first that fits."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Added to the fixed metadata of every document."""
    limiter: Callable[[], RequestLimiter] = _no_limiter
    """Asked for by services only."""
    max_pause: float = 0.0
    """Seconds of pauses a service may ask for in all before its reader goes away."""


class SourceOptions(ConfigSection):
    """What every source is told."""

    name: Name
    """How commands and reports call the source; unique."""
    type: Text
    """What kind of source it is."""
    metadata: SourceMetadata = SourceMetadata()
    """Fixed facts of every document of this source."""
    security_level: Level | None = None
    """Of documents that no rule of rag.security.levels fits. Empty: internal."""
    redact: Redacted = USUAL
    """Personal data that are taken out before anything is stored: email, iban, card, phone, ip, and names (of the
    authors and assignees that the source tells). true: the first four; false: none. Secrets always are."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Keys of a source as `larder config init` shows it; none: it is not shown."""
    variables: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Key of a service -> usual names of the environment variable that holds its value, the surest first."""
    required_variables: ClassVar[Sequence[Sequence[str]]] = ()
    """Sets of these keys; one whole set is enough for a source that can be read."""
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

    def with_context(self, context: SourceContext) -> Self:
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

    def metadata_of(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Of a document that says this of itself; it goes first, but its readers pass the source's `acl` as well."""
        fixed = self.fixed_metadata
        both = [fixed["acl"], own["acl"]] if "acl" in fixed and "acl" in own else []
        layers = [layer for acl in both for layer in reader_layers(acl)]
        return {**fixed, **own, **({"acl": layers} if both else {})}

    @property
    def decisions(self) -> DecisionRules:
        """What makes a document a decision."""
        return self._context.decisions

    def level_of(self, document: Document) -> str:
        """The security level of a document of this source; it may ask for a higher one than it would have.

        Raises:
            DocumentRejected: it asks for one that does not exist.
        """
        fitting = (rule.level for rule in self._context.levels if rule.fits(document, self.name))
        level = next(fitting, self.security_level or "internal")
        asked = str(document.metadata.get(LEVEL, level)).strip().lower()
        if asked not in LEVELS:
            found = f"{document.external_id}: its {LEVEL} is none that exists"
            raise DocumentRejected(found, fix=f"write one of {', '.join(LEVELS)}")
        return max(level, asked, key=LEVELS.index)

    def _hash_with(self, *parts: Any) -> str:
        """A short hash over these and over what becomes of any document: tells whether what was noted still holds."""
        made = [*parts, self.fixed_metadata, self.source_type, self.decisions.model_dump(), self.redact]
        made += [self.security_level, *(rule.model_dump() for rule in self._context.levels)]
        text = json.dumps(made, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class ServiceOptions(SourceOptions):
    """What every service is told."""

    max_concurrency: Positive = 4
    """Requests at once to the service's host, over all workers."""
    requests_per_minute: Positive | None = Field(default=None, examples=[300])
    """Requests a minute to the service's host, over all workers, at most 30 of them one right after the other. Empty:
    only what the service says."""
    connect_timeout: Number = Field(default=10, gt=0)
    """Seconds to wait for a connection."""
    read_timeout: Number = Field(default=60, gt=0)
    """Seconds to wait for the next part of an answer."""

    groups: ClassVar[tuple[str, ...]] = ("auth",)
    product: ClassVar[str]
    """The service's name in messages."""

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
            max_pause=self._context.max_pause,
            product=self.product,
        )


Record = TypeVar("Record")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Making one takes a millisecond, and each page of a walk has a cursor."""


def read_cursor(kind: type[Record], stored: Cursor | None, selection: str) -> Record | None:
    """The record a stored cursor holds; None if there is none, it is broken, or it is of another selection.

    `selection` is a hash over the options that decide what is read: after a change of them a source starts over.
    """
    if not stored or stored.get("selection") != selection:
        return None
    try:
        found: Record = _adapter(kind).validate_python(dict(stored))
    except ValidationError:
        return None
    return found


def cursor_json(record: Any) -> Json:
    """What `read_cursor` reads; fields with their default value are left out."""
    found: Json = _adapter(type(record)).dump_python(record, mode="json", exclude_defaults=True)
    return found
