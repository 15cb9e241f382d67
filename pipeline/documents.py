"""The words every room shares: Document, Page, Cursor, Source, Chunk."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from html import unescape
from ipaddress import ip_address
from socket import SOCK_STREAM, getaddrinfo
from typing import Any, Protocol
from unicodedata import normalize

Json = dict[str, Any]
"""A JSON object: what a cursor, a document's metadata and a message are made of."""

Cursor = Mapping[str, Any]
"""Where a source stopped: opaque JSON to all but that source; inclusive on restart."""


_BREAKS = re.compile("[\x0b\x0c\r\x1c-\x1f\x85\u2028\u2029]")
"""End a line on some screens, or begin it anew."""
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)
"""What drives a screen, is not seen, or turns the direction of what follows; line ends and tabs are none of these."""


def without_controls(text: str) -> str:
    """The text as it may be shown on a terminal or told to a model; a blank stands for an unusual line end."""
    return CONTROLS.sub("", _BREAKS.sub(" ", text))


_INVISIBLE = re.compile("[\u00ad\u2060\ufeff]|\u200b(?![\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])")
"""Soft hyphens and blanks of no width; scripts without blanks divide their words by U+200B."""


def composed(text: str) -> str:
    """The text in Unicode form NFC and without invisible characters, as documents and questions are compared."""
    return text if text.isascii() else normalize("NFC", _INVISIBLE.sub("", text))


def plain_key(key: Any) -> str:
    """A key without the difference of snake, kebab and camel case."""
    return str(key).replace("_", "").replace("-", "").replace(" ", "").lower()


def plain_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    """A mapping by `plain_key`; of two spellings of one key the first whose value is not empty."""
    plain: dict[str, Any] = {}
    for key, item in value.items():
        if plain.get(name := plain_key(key)) in (None, "", [], {}):
            plain[name] = item
    return plain


def plural(count: int, one: str, many: str = "") -> str:
    """A number and what it counts: `1 page`, `2 pages`; `many` is the plural where it is not `one` with an s."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def first_names(names: Sequence[object], most: int) -> str:
    """The first `most` names, divided by commas, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, names[:most])) + more


_IPV4_INSIDE = (bytes(12), bytes(10) + b"\xff\xff", bytes.fromhex("0064ff9b") + bytes(8))
"""How addresses of the sixth version begin whose last four bytes are one of the fourth: compatible, mapped, NAT64."""
_HANDS_OUT_KEYS = ("100.100.100.200", "168.63.129.16", "fd00:ec2::254")
"""Beside the link-local addresses."""


def is_metadata_service(address: str) -> bool:
    """True for an IP address by which a cloud gives the keys of a machine to any of its programs; names are none."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if found.packed[:12] in _IPV4_INSIDE:
        found = ip_address(found.packed[12:])
    return found.is_link_local or str(found) in _HANDS_OUT_KEYS


def resolves_to_metadata_service(host: str, port: int) -> bool:
    """True for a host that is such an address, by whatever name; a name that cannot be resolved is none."""
    with suppress(OSError, UnicodeError):
        return any(
            is_metadata_service(str(found[4][0])) for found in getaddrinfo(host, port, type=SOCK_STREAM)
        )
    return False


def web_address(url: str) -> str:
    """The address of a page as anybody may be told it; empty for a file's, which names folders of the machine."""
    return url if url.lower().startswith(("http://", "https://")) else ""


class SourceType(StrEnum):
    """Where a document comes from; the filter value `source_type`."""

    PBI = "pbi"
    DOCUMENTATION = "documentation"
    CONFLUENCE = "confluence"
    AZURE_DEVOPS = "azure_devops"
    TEXT = "text"

    @classmethod
    def parse(cls, text: str) -> SourceType:
        """The canonical value of `text`; accepts the aliases `markdown`, `azure` and `pbi_json`.

        Raises:
            ValueError: `text` is none of the known values; the message lists them.
        """
        known = {"markdown": cls.DOCUMENTATION, "azure": cls.AZURE_DEVOPS, "pbi_json": cls.PBI}
        name = text.strip().lower()
        if name in known:
            return known[name]
        try:
            return cls(name)
        except ValueError:
            allowed = ", ".join([*(t.value for t in cls), *known])
            raise ValueError(f"unknown source type {text!r}; known are {allowed}") from None


class Kind(StrEnum):
    """What a document is good for; decides the section of a Step 4 answer."""

    WORK = "work"
    DECISION = "decision"
    REFERENCE = "reference"


DEFAULT_KIND: Mapping[SourceType, Kind] = {
    SourceType.PBI: Kind.WORK,
    SourceType.AZURE_DEVOPS: Kind.WORK,
    SourceType.CONFLUENCE: Kind.REFERENCE,
    SourceType.DOCUMENTATION: Kind.REFERENCE,
    SourceType.TEXT: Kind.REFERENCE,
}


LEVELS = ("public", "internal", "confidential", "restricted")
"""Security levels of documents, lowest first; whoever may see one may see those before it."""
LEVEL = "security_level"
"""Metadata in which a document itself asks for a level."""
ACL = "acl"
"""Metadata that say who may read a document: layers of readers, of each of which a caller must be one."""
ADMINS_ALONE = "permission:admin"
"""Reader in an `acl` that callers with the permission `admin` are: for documents whose rights could not be read."""
READING_NOTE = "reading_note"
"""Metadata of a document that was read in part: what could not be read, in a sentence."""


DECISION_STATUSES: Mapping[str, tuple[str, ...]] = {
    "superseded": (
        "superseded", "superceded", "superseeded", "superceeded", "supersceded", "replaced", "obsoleted", "ersetzt",
        "abgelöst", "überholt", "remplacé", "remplacée", "reemplazado", "reemplazada", "sustituido", "sustituida",
        "supersedido", "supersedida", "substituído", "substituída", "substituido", "substituida", "superado",
        "superada", "sostituito", "sostituita", "superato", "superata", "vervangen", "değiştirildi", "yerine geçti",
        "заменено", "заменён", "заменен", "заменена", "被取代", "已取代", "已被取代", "已替代", "已被替代", "置き換え",
        "置換済み", "代替済み",
    ),
    "rejected": (
        "rejected", "declined", "withdrawn", "abandoned", "abgelehnt", "verworfen", "zurückgezogen", "rejeté",
        "rejetée", "refusé", "refusée", "abandonné", "abandonnée", "rechazado", "rechazada", "descartado", "descartada",
        "retirado", "retirada", "rejeitado", "rejeitada", "recusado", "recusada", "rifiutato", "rifiutata", "respinto",
        "respinta", "afgewezen", "verworpen", "ingetrokken", "reddedildi", "geri çekildi", "kabul edilmedi",
        "onaylanmadı", "отклонено", "отклонён",
        "отклонен", "отклонена", "отозвано", "已拒绝", "拒绝", "已否决", "却下", "却下済み", "棄却",
    ),
    "deprecated": (
        "deprecated", "depreciated", "obsolete", "veraltet", "obsolète", "déprécié", "dépréciée", "obsoleto",
        "obsoleta", "deprecado", "deprecada", "descontinuado", "descontinuada", "depreciado", "depreciada",
        "deprecato", "deprecata", "verouderd", "kullanımdan kaldırıldı", "geçersiz", "устарело", "устарел", "устарела",
        "已弃用", "弃用", "已废弃", "废弃", "非推奨", "廃止",
    ),
    "proposed": (
        "proposed", "proposal", "draft", "draught", "review", "pending", "last call", "vorgeschlagen", "entwurf",
        "in prüfung", "proposé", "proposée", "brouillon", "en attente", "propuesto", "propuesta", "borrador",
        "pendiente", "en revisión", "en evaluación", "proposto", "proposta", "rascunho", "pendente", "em revisão",
        "em análise", "em avaliação", "bozza", "in revisione", "voorgesteld", "concept", "önerildi", "öneri",
        "önerilen", "taslak", "beklemede", "incelemede", "предложено", "предложен", "предложена", "черновик",
        "на рассмотрении", "提议", "已提议", "提案中", "提案", "草案", "草稿", "待定", "レビュー中", "検討中", "下書き",
    ),
    "implementing": ("implementing", "in implementation", "in umsetzung", "en implementación", "em implementação"),
    "implemented": (
        "implemented", "umgesetzt", "implementiert", "implémenté", "implémentée", "implementado", "implementada",
        "implementato", "implementata", "geïmplementeerd", "uygulandı", "реализовано", "реализован", "реализована",
        "已实施", "已实现", "実装済み",
    ),
    "accepted": (
        "accepted", "approved", "adopted", "agreed", "decided", "ratified", "angenommen", "beschlossen", "entschieden",
        "akzeptiert", "genehmigt", "accepté", "acceptée", "adopté", "adoptée", "approuvé", "approuvée", "validé",
        "validée", "aceptado", "aceptada", "aprobado", "aprobada", "adoptado", "adoptada", "aceito", "aceita",
        "aceite", "aprovado", "aprovada", "adotado", "adotada", "accettato", "accettata", "approvato", "approvata",
        "adottato", "adottata", "geaccepteerd", "aanvaard", "goedgekeurd", "kabul edildi", "kabul", "onaylandı",
        "принято", "принят", "принята", "утверждено", "утвержден", "утверждён", "одобрено", "已接受", "接受", "已采纳",
        "采纳", "已通过", "已批准", "承認済み", "承認", "採用", "採択", "決定済み",
    ),
}  # fmt: skip
"""`decision_status` of a decision's metadata -> words that say so; of several in one place the first row counts."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One page, work item, PBI or file as text."""

    external_id: str
    """Stable name inside its source: a path relative to the source's root, a page id, a PBI id."""
    title: str
    text: str
    """Markdown or plain text, without front matter."""
    source_type: SourceType
    kind: Kind
    url: str = ""
    """Where a person can open it; empty if there is no such place."""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON only. `source_path` is the file or address; `version` or `rev` the source's own version."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    security_level: str = "internal"
    """One of LEVELS."""
    fingerprint: str = ""
    """What the id walk shows of this item (version, place, labels); empty where a walk shows only ids."""

    @property
    def content_hash(self) -> str:
        """SHA-256 over all that search shows or filters by; times are left out (a touched file is no change).

        Line ends and trailing blanks are normalised first.
        """
        text = "\n".join(line.rstrip() for line in self.text.splitlines()).strip()
        rest = [self.source_type, self.kind, self.url, sorted(self.tags), self.metadata, self.security_level]
        parts = [self.title.strip(), text, json.dumps(rest, sort_keys=True, ensure_ascii=False, default=str)]
        return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One item that could not become a document, named so that a person finds it."""

    external_id: str
    reason: str
    """What was found and what to do, as a sentence; never the item's text."""
    url: str = ""
    because: str = "excluded"
    """The reason in a few words that name no item: what is left out on purpose is counted by it."""

    def to_json(self) -> Json:
        """`{"item", "reason", "url"}`."""
        return {"item": self.external_id, "reason": self.reason, "url": self.url}


@dataclass(frozen=True, kw_only=True)
class Page:
    """One step of a sync: what was found, and the cursor to keep once it is stored."""

    cursor: Cursor
    documents: tuple[Document, ...] = ()
    failed: tuple[Problem, ...] = ()
    """Items that are there and could not be read: unreadable, binary, invalid JSON."""
    skipped: tuple[Problem, ...] = ()
    """Items left out on purpose: empty, larger than the limit."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> how many more items were seen and left out; their names are not told."""
    deleted: tuple[str, ...] = ()
    """External ids the source itself says are gone."""

    @property
    def noted(self) -> tuple[Problem, ...]:
        """What of its documents could not be read, of those that were read in part."""
        notes = ((d, d.metadata.get(READING_NOTE)) for d in self.documents)
        return tuple(
            Problem(external_id=d.external_id, reason=str(note), url=d.url) for d, note in notes if note
        )

    @property
    def all_left_out(self) -> Counter[str]:
        """What was left out on purpose, named or not, counted by reason."""
        return Counter(self.left_out) + Counter(problem.because for problem in self.skipped)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Every external id a source has right now, or one piece of them after the other."""

    ids: frozenset[str]
    complete: bool
    """Whether nothing is missing up to here: the end, or that of this piece, is proven."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints by external id; an item whose stored fingerprint differs is read again."""
    left_out: Mapping[str, int] | None = None
    """As of a page, of the whole source; None if the pages of a walk over all tell it."""
    cursor: Cursor = field(default_factory=dict)
    """Where the next piece begins; empty behind the last one."""

    @classmethod
    def merged(cls, pieces: Sequence[Listing]) -> Listing:
        """One listing with the ids of all pieces; complete if every piece is."""
        told = [piece.left_out for piece in pieces if piece.left_out is not None]
        return cls(
            ids=frozenset().union(*(piece.ids for piece in pieces)),
            complete=all(piece.complete for piece in pieces),
            versions={key: mark for piece in pieces for key, mark in piece.versions.items()},
            left_out=sum(map(Counter, told), Counter()) if told else None,
            cursor=pieces[-1].cursor,
        )


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A key of the configuration that is fine alone and wrong beside another."""

    key: str
    """In snake_case."""
    expected: str
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of `larder sources check`."""

    ok: bool
    subject: str
    detail: str
    fix: str = ""


class Source(Protocol):
    """One configured place we read. Every implementation passes tests/contracts/test_source.py.

    Raises (all methods): errors of `pipeline.errors` only, already sorted into transient and permanent.
    """

    extractor: str
    """Name and version of the code that makes text, such as `markdown-1`; a new one re-reads everything."""
    walks_all: bool
    """True if `ids` costs no more than a look at each item, so that every sync ends with it (files)."""

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """What changed since the cursor (None: everything), in an order that survives a restart anywhere."""

    def ids(self, since: Cursor | None = None) -> Listing:
        """Everything that is there now, for finding what is gone.

        What takes many requests comes in pieces; `since` is the cursor of the piece before, in this process or another.
        """

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """These items as they are now, gone ones in `deleted`; called with what `ids` showed to differ."""

    def check(self) -> list[Finding]:
        """Can it be read? Each finding says what was tried, what came back, what to do."""

    def stamp(self) -> str | None:
        """Differs when something changed, at the cost of a directory listing; None if unknown."""

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> int | None:
        """Leave items with an unchanged fingerprint out of `pages`; returns their number, None if unsupported.

        Lists all items once; `ids` and `stamp` use that listing from then on. `fingerprints` are by external id.
        Called for sources that `walks_all` only.
        """


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a document with its place."""

    ord: int
    """0, 1, 2, ... without holes."""
    content: str
    """The document's own text."""
    context: str = ""
    """Title and heading path, `Title > Heading`; embedded and searched with the content, not part of it."""

    @property
    def embedding_text(self) -> str:
        """What the embedder reads."""
        return f"{self.context}\n\n{self.content}" if self.context else self.content

    @property
    def hash(self) -> str:
        """SHA-256 of `embedding_text`: key of the embedding cache, identity in the row diff."""
        return hashlib.sha256(self.embedding_text.encode("utf-8", "surrogatepass")).hexdigest()


_JSON_WORDS: Mapping[type, str] = {
    type(None): "null",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "an object",
}


def json_type_name(value: Any) -> str:
    """What a JSON value is, for a person: "a number"."""
    return _JSON_WORDS.get(type(value), type(value).__name__)


DEFAULT = "english"

LANGUAGES = (
    "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german", "greek",
    "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian", "portuguese",
    "romanian", "russian", "serbian", "simple", "spanish", "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
"""Those of PostgreSQL 15, the oldest one that is supported; `simple` is none at all: words stay as they are."""

KEY = "search_language"
"""Metadata of a document that was stemmed in another language than the default."""


def language_metadata(language: str) -> dict[str, str]:
    """What the metadata of a document in this language have to say: nothing if it is the default."""
    return {} if language == DEFAULT else {KEY: language}


def language_of(metadata: Mapping[str, Any]) -> str:
    """The language in which the words of a document with these metadata are stemmed; the default if none is known."""
    named = metadata.get(KEY)
    return named if isinstance(named, str) and named in LANGUAGES else DEFAULT


# -- words of headings and titles ----------------------------------------------------------------

MAX_TITLE = 300
_TARGET = (
    r"""\([^()\s]{0,1000}(?:\([^()\s]{0,300}\)[^()\s]{0,300})?(?:\s{1,5}["'][^"'()]{0,300}["'])?\)"""
    r"|\[[^\[\]]{0,100}\]"
)
_IMAGE = re.compile(rf"!\[([^\[\]]{{0,300}})\](?:{_TARGET})")
LINK = re.compile(rf"\[([^\[\]]{{0,300}})\](?:{_TARGET})")
"""Its words are the first group."""
LINK_OR_BRACKETS = re.compile(rf"!?{LINK.pattern}?")
_NAMELESS = frozenset({"", "logo", "banner", "header", "icon", "image", "img", "cover", "screenshot"})
"""What a picture is, and not what it shows."""
_MARKS = re.compile(
    r"`(?P<code>[^`]+)`|\\(?P<sign>[!-/:-@\[-`{-~])|\*{2,3}|_{2,3}|(?<!\w)[*_](?=\w)|(?<=\w)[*_](?!\w)|`"
    r"|(?<![\w:]):(?:\w[\w+-]{1,50}|[+-]1):(?![\w:])"
)


def plain_words(text: str, *, link: re.Pattern[str] = LINK) -> str:
    """One line of Markdown without its marks, pictures and codes of emoji, at most MAX_TITLE characters.

    A picture's text stands for a line that has no other.
    """
    words = _without_marks(_IMAGE.sub(" ", text), link) if "![" in text else ""
    if words:
        return words
    shown = _IMAGE.sub(lambda image: "" if image[1].strip().lower() in _NAMELESS else f" {image[1]} ", text)
    return _without_marks(shown, link)


def _without_marks(text: str, link: re.Pattern[str]) -> str:
    shown = _MARKS.sub(r"\g<code>\g<sign>", link.sub(r"\1", text))
    return " ".join(unescape(shown).split())[:MAX_TITLE].rstrip()


# Titles of backlog items --------------------------------------------------------------------------

NEARLY_SAME = 0.85
_STORY = re.compile(r"^as an? [^,]{1,100}?,? i (?:want|need|would like) (?:to )?")


def plain_title(title: str) -> str:
    """The title without differences of case and blanks."""
    return " ".join(title.casefold().split())


@lru_cache(maxsize=10_000)
def _title_words(title: str) -> frozenset[str]:
    """Beginnings of its words, without "As a ..., I want to": by the rest items are told apart."""
    return frozenset(re.findall(r"\b\w{1,5}", _STORY.sub("", plain_title(title))))


def is_same_title(one: str, other: str) -> bool:
    """True for titles of one backlog item, which may be reworded a little.

    They have the same numbers, and NEARLY_SAME of their letters stand in words of both.
    """
    words, others = _title_words(one), _title_words(other)
    shared, total = 2 * sum(map(len, words & others)), sum(map(len, words)) + sum(map(len, others))
    return one == other or (shared >= NEARLY_SAME * total > 0 and not any(map(str.isdecimal, words ^ others)))
