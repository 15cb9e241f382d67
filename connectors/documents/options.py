"""What every source is told: the keys of its section, and what the rest of the configuration adds."""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property, lru_cache
from itertools import accumulate, takewhile
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

from connectors.documents.redaction import PERSONAL
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

ANY_FOLDERS = "**"


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A parsed glob; `parts` are its path segments, `**` standing for any number of folders.

    The ending of the last one, what follows its last dot, holds in any case: `*.md` takes `C.MD`.
    """

    text: str
    parts: tuple[str, ...]
    folders_only: bool = False
    """Holds for folders with all that is in them, not for a file of that name."""

    @property
    def fixed(self) -> bool:
        """True if the pattern names exactly one path."""
        return not any(map(_wild, self.parts))

    @property
    def prefix(self) -> str:
        """The folders before the first wildcard, as a relative path; the last part is never among them."""
        return "/".join(takewhile(lambda part: not _wild(part), self.parts[:-1]))

    @property
    def any_ending(self) -> bool:
        """True if it says of no file how its name ends: `docs/**/*`."""
        return not self.parts[-1].rpartition(".")[2].strip("*?")

    def matches(self, relative: str) -> bool:
        """True if the whole relative path matches."""
        parts = (*self.parts[:-1], _with_small_ending(self.parts[-1]))
        path = _with_small_ending(unicodedata.normalize("NFC", relative))
        return len(parts) in _reached(parts, path)

    def may_match_below(self, folder: str) -> bool:
        """True if something in that folder, or in one below it, may match."""
        reached = _reached(self.parts, unicodedata.normalize("NFC", folder))
        return not reached <= {len(self.parts)}


def _with_small_ending(path: str) -> str:
    name, dot, ending = path.rpartition(".")
    return f"{name}{dot}{ending.lower()}" if dot and "/" not in ending else path


@lru_cache(maxsize=4096)
def _reached(parts: tuple[str, ...], path: str) -> frozenset[int]:
    """How far into a pattern's parts a path has come; several places at once because of `**`."""
    reached = {0}
    if path:
        folder, _, name = path.rpartition("/")
        reached = set()
        for at in _reached(parts, folder):
            part = parts[at] if at < len(parts) else ""
            if part == ANY_FOLDERS:
                reached.add(at)
            elif part and (part == name or fnmatchcase(name, part)):
                reached.add(at + 1)
    # `**` may stand for no folder at all, so whoever stands before it stands behind it too.
    return frozenset(reached | {at + 1 for at in reached if parts[at : at + 1] == (ANY_FOLDERS,)})


@lru_cache(maxsize=256)
def include_pattern(text: str) -> Pattern:
    """A glob of `paths`.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    parts = _parts(text)
    return Pattern(text=text, parts=(*parts, "*") if parts[-1] == ANY_FOLDERS else parts)


def exclude_pattern(text: str) -> Pattern:
    """A glob of `exclude`: without a slash it holds in every folder, as in an ignore file.

    Raises:
        ConfigurationError: it is empty, absolute, or climbs out of the root.
    """
    parts = _parts(text)
    if len(parts) == 1 and "/" not in text.rstrip("/"):
        parts = (ANY_FOLDERS, *parts)
    if len(parts) > 1 and parts[-1] == ANY_FOLDERS:
        return Pattern(text=text, parts=parts[:-1], folders_only=True)
    return Pattern(text=text, parts=parts, folders_only=text.endswith("/"))


_ENDINGS = (
    ".asm .bash .bat .c .cc .cjs .class .cmake .cpp .cs .css .cxx .dart .ex .exs .go .gradle .groovy .h .hh .hpp .hs "
    ".ipynb .java .jl .js .jsx .kt .less .lock .lua .map .mjs .mk .ml .php .pl .pm .ps1 .py .pyc .pyi .pyx .r .rb .rs "
    ".sass .scala .scss .sh .so .sql .svelte .svg .swift .tcl .tf .ts .tsx .vb .vue .zsh"
)
_PROGRAMS = tuple(_ENDINGS.split())
"""Ends of files for machines, whose comments are no prose: read only by a pattern that names the ending."""


class Globs:
    """The include and exclude patterns of one source, asked about one path after the other of a walk.

    Raises:
        ConfigurationError: one of them is empty, absolute, or climbs out of the root.
    """

    def __init__(self, paths: Sequence[str], exclude: Sequence[str]) -> None:
        self.include = tuple(map(include_pattern, paths))
        self.exclude = tuple(map(exclude_pattern, exclude))

    def included(self, file: str) -> tuple[int, ...]:
        """Indices of the include patterns a file matches that lies in no excluded folder; none if it is excluded."""
        if any(p.matches(file) and not p.folders_only for p in self.exclude):
            return ()
        program = file.lower().endswith(_PROGRAMS)
        wanted = enumerate(self.include)
        return tuple(index for index, p in wanted if not (program and p.any_ending) and p.matches(file))

    def may_hold(self, folder: str) -> bool:
        """True if a folder that lies in no excluded one can hold something to read."""
        inside = any(p.may_match_below(folder) for p in self.include)
        return inside and not any(p.matches(folder) for p in self.exclude)

    def excludes(self, relative: str) -> bool:
        """True if a path or a folder it lies in is left out."""
        paths = list(accumulate(relative.split("/"), "{}/{}".format))
        return any(p.matches(path) for p in self.exclude for path in paths)


def _parts(text: str) -> tuple[str, ...]:
    path = unicodedata.normalize("NFC", text.strip())
    if path.startswith(("/", "~", "\\")) or re.match(r"[A-Za-z]:[\\/]", path):
        fix = "write it relative to the source's root, such as ./docs/**/*.md"
        raise ConfigurationError(f"the glob {text!r} is absolute", fix=fix)
    parts: list[str] = []
    for part in path.split("/"):
        if part not in ("", ".") and (part != ANY_FOLDERS or parts[-1:] != [ANY_FOLDERS]):
            parts.append(part)
    if ".." in parts:
        fix = "move the root up, or copy the files below it"
        raise ConfigurationError(f"the glob {text!r} leaves the source's root", fix=fix)
    if not parts:
        fix = "write a glob such as ./docs/**/*.md"
        raise ConfigurationError(f"the glob {text!r} names no file", fix=fix)
    return tuple(parts)


def _wild(part: str) -> bool:
    return any(mark in part for mark in "*?[")


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
        path = "/".join([str(told["space"]), *above]) if "space" in told else str(told.get("source_path", ""))
        area = f"{told.get('area', '')}\\".casefold()
        tests: tuple[tuple[Sequence[str], Callable[[str], bool]], ...] = (
            ((*self.labels, *self.tags), lambda label: label.casefold() in labels),
            (self.spaces, lambda space: space == told.get("space")),
            (self.area_paths, lambda top: area.startswith(top.rstrip("\\").casefold() + "\\")),
            (self.paths, lambda glob: include_pattern(glob).matches(path)),
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
        layers = [layer for acl in both for layer in (acl if isinstance(acl, list) else [[]])]
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

    def _hash_with(self, *parts: Any) -> str:
        """A short hash over these and over what becomes of any document: tells whether a cursor still holds."""
        made = [*parts, self.fixed_metadata, self.source_type, self.decisions.model_dump(), self.redact]
        made += [self.security_level, *(rule.model_dump() for rule in self._context.levels)]
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
