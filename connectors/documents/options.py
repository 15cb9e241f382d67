"""Options of every source: the keys of its section, and the context that the rest of the configuration adds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

import annotated_types
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
    Seconds,
    Secret,
    Text,
    Texts,
    as_list,
    mismatched,
    refusal,
)
from connectors.web.hooks import plain_ids
from pipeline.documents import LEVEL, LEVELS, Cursor, Document, Json, SourceType
from pipeline.errors import ConfigurationError, DocumentRejected

if TYPE_CHECKING:
    # The clients of services cost 30 MB and 0.25 s: they are imported only when such a source is opened.
    from connectors.web.limiter import RequestLimiter
    from connectors.web.session import Access


SHORTEST_SECRET = 16
LINKED_PATH = "linked_path"
"""Metadata key of a file found through a link: its real path below the root, for rules that name paths."""


class DecisionRules(ConfigSection):
    """Rules that make a document a decision; one match is enough, an empty list switches a rule off."""

    frontmatter_types: Texts = (
        "adr", "decision", "decision-record", "architecture-decision-record", "rfc",
    )  # fmt: skip
    """Values of `type` in the front matter; a date with a status such as accepted is enough as well."""
    paths: Texts = (
        "**/adr/**", "**/adrs/**", "**/*decisions/**", "**/*decision-record*/**", "**/rfcs/**", "**/*adr-[0-9]*",
    )  # fmt: skip
    """Patterns of paths. In a folder (`/**` at the end) a document needs a further sign of a record: a
    number, a status, a heading. A path without a pattern, such as docs/decision-log.md, is a decision
    whatever it is called; one with several entries, below headings or in a table, is a document for each."""
    tags: Texts = ("decision", "adr", "rfc")
    """Tags or labels of decisions."""
    headings: Texts = ("Decision", "Status")
    """Headings that a document must all have; those of MADR and Nygard are enough as well."""


KnownSourceType = Annotated[
    SourceType,
    BeforeValidator(lambda value: SourceType.parse(str(value))),
    Expected("one of " + ", ".join(SourceType)),
]


NAMES = "names"
KINDS = (*PERSONAL, NAMES)
USUAL = ("email", "iban", "card", "phone")
"""Kinds redacted by default; without network addresses, because most matches are versions, and without names."""


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
    """Security level of documents that match all its keys; of each list one entry is enough."""

    level: Level
    """Security level of matching documents."""
    labels: Texts = ()
    """Labels or tags, in any case."""
    tags: Texts = ()
    """Alias of labels."""
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
        """True if the document of this source matches every key of the rule."""
        metadata, title = document.metadata, document.title.casefold()
        labels = {str(label).casefold() for label in (*document.tags, *metadata.get("labels", ()))}
        above = [str(part).replace("/", "-") for part in (*metadata.get("breadcrumb", ()), document.title)]
        file_paths = (str(metadata[key]) for key in ("source_path", LINKED_PATH) if key in metadata)
        paths = ["/".join([str(metadata["space"]), *above])] if "space" in metadata else [*file_paths] or [""]
        area = f"{metadata.get('area', '')}\\".casefold()
        tests: tuple[tuple[Sequence[str], Callable[[str], bool]], ...] = (
            ((*self.labels, *self.tags), lambda label: label.casefold() in labels),
            (self.spaces, lambda space: space == metadata.get("space")),
            (self.area_paths, lambda top: area.startswith(top.rstrip("\\").casefold() + "\\")),
            (self.paths, lambda glob: any(map(include_pattern(glob).matches, paths))),
            (self.types, lambda kind: kind == document.source_type),
            (self.sources, lambda name: name == source),
            (
                (self.title_pattern,) if self.title_pattern else (),
                lambda glob: fnmatchcase(title, glob.casefold()),
            ),
        )
        return all(not required or any(map(holds, required)) for required, holds in tests)


class SourceMetadata(ConfigSection):
    """Fixed metadata of every document of a source; other keys of your own are allowed."""

    model_config = ConfigDict(extra="allow")

    source_type: KnownSourceType | None = Field(
        default=None,
        examples=["documentation"],
        description=f"What searches filter by: {', '.join(SourceType)}. Empty: that of the source's type.",
    )
    category: Text | None = Field(default=None, examples=["reference"])
    """A word of your own to filter by."""

    def fixed(self) -> dict[str, Any]:
        """Metadata for each document: the category and keys of your own."""
        return self.model_dump(mode="json", exclude={"source_type"}, exclude_none=True)


def _no_limiter() -> RequestLimiter:
    from connectors.web.limiter import LocalRequestLimiter

    return LocalRequestLimiter()


@dataclass(frozen=True, kw_only=True)
class SourceContext:
    """Settings of a source from outside of its section."""

    folder: Path = Path()
    """Folder that relative paths of the section start at."""
    closed: Path | None = None
    """Folder that is never read, whatever the patterns say, because it holds Larder's passwords."""
    decisions: DecisionRules = field(default_factory=DecisionRules)
    levels: Sequence[LevelRule] = ()
    """Rules of security levels; the first that fits counts."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata added to the fixed metadata of every document."""
    limiter: Callable[[], RequestLimiter] = _no_limiter
    """Factory of the limiter, called for services only."""
    max_pause: float = 0.0
    """Most seconds of pauses, in all, that a service may ask for before the read stops."""
    observe: Callable[[str, str], object] = lambda _kind, _text: None
    """Called with `request` and its method and address, and with `empty` and the key of a field without a value."""


class SourceOptions(ConfigSection):
    """Options of every source."""

    name: Name
    """Name of the source in commands and reports; unique."""
    type: Text
    """Type of the source."""
    metadata: SourceMetadata = SourceMetadata()
    """Fixed metadata of every document of this source."""
    security_level: Level | None = None
    """Security level of documents that no rule of rag.security.levels fits. Empty: internal."""
    redact: Redacted = USUAL
    """Personal data redacted before a document is stored: email, iban, card, phone, ip, and names (of authors and
    assignees that the source states). true: the first four; false: none. Secrets are always redacted."""

    example: ClassVar[Mapping[str, Any]] = {}
    """Keys of the source that `larder config init` shows as an example; empty: none is shown."""
    variables: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Key of a service -> usual environment variables of its value, the most reliable first."""
    required_variables: ClassVar[Sequence[Sequence[str]]] = ()
    """Sets of keys of `variables`; one complete set is enough to read the source."""
    strategy: ClassVar[str | None] = None
    """The chunking strategy this type of source prefers over the global one."""
    groups: ClassVar[tuple[str, ...]] = ()
    """Keys whose mappings may also be written one level higher, such as `auth`."""
    _context: SourceContext = PrivateAttr(default_factory=SourceContext)

    @model_validator(mode="before")
    @classmethod
    def _ungrouped(cls, value: Any) -> Any:
        """The section with the keys of all groups one level higher; a key in both places is refused."""
        section = value if isinstance(value, dict) else {}
        for key in [key for key in section if to_camel(str(key)) in cls.groups]:
            group, inner = str(key), value[key] or {}
            if not isinstance(inner, dict):
                raise mismatched([Mismatch(key=group, expected="a mapping")])
            if twice := [key for key in inner if key in value]:
                fix = f"it is in {group} and beside it"
                raise mismatched([Mismatch(key=key, expected="each key once", fix=fix) for key in twice])
            value = {key: item for key, item in value.items() if key != group} | inner
        return value

    def with_context(self, context: SourceContext) -> Self:
        """A copy of the options with this context."""
        copy = self.model_copy()
        copy._context = context  # noqa: SLF001 (of this class)
        return copy

    @property
    def place(self) -> str:
        """Folder or address that is read, for messages."""
        return ""

    @property
    def source_type(self) -> SourceType | None:
        """Source type that replaces the connector's; None keeps it."""
        return self.metadata.source_type

    @property
    def fixed_metadata(self) -> dict[str, Any]:
        """Metadata of every document, which the document's own metadata override."""
        fixed: dict[str, Any] = json_able({**self.metadata.fixed(), **self._context.metadata})
        return fixed

    def metadata_of(self, document_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Metadata of a document: its own override the fixed ones, but readers must pass both lists of `acl`."""
        fixed = self.fixed_metadata
        acls = (
            [fixed["acl"], document_metadata["acl"]] if "acl" in fixed and "acl" in document_metadata else []
        )
        layers = [layer for acl in acls for layer in reader_layers(acl)]
        return {**fixed, **document_metadata, **({"acl": layers} if acls else {})}

    def observe(self, kind: str, text: str) -> None:
        """Report to whoever looks on while the source is tried."""
        self._context.observe(kind, text)

    @property
    def decisions(self) -> DecisionRules:
        """Rules that make a document a decision."""
        return self._context.decisions

    def level_of(self, document: Document) -> str:
        """Security level of a document of this source: by the rules, or a higher one from its metadata.

        Raises:
            DocumentRejected: its metadata name an unknown level.
        """
        fitting = (rule.level for rule in self._context.levels if rule.fits(document, self.name))
        level = next(fitting, self.security_level or "internal")
        stated_level = str(document.metadata.get(LEVEL, level)).strip().lower()
        if stated_level not in LEVELS:
            message = f"{document.external_id}: its {LEVEL} is unknown"
            raise DocumentRejected(message, fix=f"write one of {', '.join(LEVELS)}")
        return max(level, stated_level, key=LEVELS.index)

    def _hash_with(self, *inputs: Any) -> str:
        """A short hash over `inputs` and all options that shape documents; another one makes stored results stale."""
        hashed = [*inputs, self.fixed_metadata, self.source_type, self.decisions.model_dump(), self.redact]
        hashed += [self.security_level, *(rule.model_dump() for rule in self._context.levels)]
        text = json.dumps(hashed, sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


class HookOptions(ConfigSection):
    """What proves the events that a service sends to POST /api/v1/hooks/NAME (docs/webhooks.md)."""

    secret: Annotated[
        Secret, annotated_types.MinLen(SHORTEST_SECRET), Expected("a secret of 16 letters or more")
    ] = Field(examples=["${WIKI_HOOK_SECRET}"])
    """Signs the body, or is sent as a token or as the password of basic authorization."""


class ServiceOptions(SourceOptions):
    """Options of every service."""

    hook: HookOptions | None = None
    """What changes is read as soon as the service tells of it. Empty: no events are taken."""
    poll: Seconds | None = Field(default=None, examples=["60s"])
    """Time after which changes are looked for again, besides the schedule, where no event can be received."""

    max_concurrency: Positive = 4
    """Most concurrent requests to the service's host, over all workers."""
    requests_per_minute: Positive | None = Field(default=None, examples=[300])
    """Most requests a minute to the service's host, over all workers, at most 30 of them in a burst. Empty:
    only limits of the service."""
    connect_timeout: Number = Field(default=10, gt=0)
    """Seconds to wait for a connection."""
    read_timeout: Number = Field(default=60, gt=0)
    """Seconds to wait for the next part of an answer."""

    groups: ClassVar[tuple[str, ...]] = ("auth",)
    hook_steps: ClassVar[tuple[str, ...]] = (
        "have the service send a POST for each change, with the secret in the header X-Larder-Token",
        'the body names what changed: {"ids": ["ID"]}',
    )
    """Steps that have the service send its events, in its own words."""
    product: ClassVar[str]
    """The service's name in messages."""

    @property
    def event_steps(self) -> tuple[str, ...]:
        """Steps that have the service of this section send its events."""
        return self.hook_steps

    def hinted_ids(self, event: Json) -> list[str]:
        """External ids of the items that an event of the service names; empty if it names none."""
        return plain_ids(event)

    @cached_property
    def access(self) -> Access:
        """Address of the service, with the limits and timeouts of requests."""
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
            on_request=lambda method, url: self._context.observe("request", f"{method} {url}"),
        )


Record = TypeVar("Record")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Adapter of a type, cached: building one takes a millisecond, and each page of a walk has a cursor."""


def read_cursor(kind: type[Record], stored: Cursor | None, selection: str) -> Record | None:
    """Parse a stored cursor; None if there is none, it is broken, or it is of another selection.

    `selection` is a hash over the options that decide what is read: after a change of them a source starts over.
    """
    if not stored or stored.get("selection") != selection:
        return None
    try:
        record: Record = _adapter(kind).validate_python(dict(stored))
    except ValidationError:
        return None
    return record


def cursor_json(record: Any) -> Json:
    """The cursor of a record, as `read_cursor` reads it; fields with their default value are left out."""
    stored: Json = _adapter(type(record)).dump_python(record, mode="json", exclude_defaults=True)
    return stored
