"""Types that all rooms share: Document, Page, Cursor, Source, Chunk."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

Json = dict[str, Any]
"""A JSON object, such as a cursor, metadata or a message."""

Cursor = Mapping[str, Any]
"""Position from which a source's listing continues; JSON that only the source reads, inclusive on restart."""


class SourceType(StrEnum):
    """Kind of source of a document; value of the filter `source_type`."""

    PBI = "pbi"
    DOCUMENTATION = "documentation"
    CONFLUENCE = "confluence"
    AZURE_DEVOPS = "azure_devops"
    TEXT = "text"
    REST = "rest"

    @classmethod
    def parse(cls, text: str) -> SourceType:
        """The canonical value of `text`; accepts the aliases `markdown`, `azure` and `pbi_json`.

        Raises:
            ValueError: `text` is none of the known values; the message lists them.
        """
        aliases = {"markdown": cls.DOCUMENTATION, "azure": cls.AZURE_DEVOPS, "pbi_json": cls.PBI}
        name = text.strip().lower()
        if name in aliases:
            return aliases[name]
        try:
            return cls(name)
        except ValueError:
            allowed = ", ".join([*(t.value for t in cls), *aliases])
            raise ValueError(f"unknown source type {text!r}; known are {allowed}") from None


class Kind(StrEnum):
    """Role of a document; decides its section in a Step 4 answer."""

    WORK = "work"
    DECISION = "decision"
    REFERENCE = "reference"


DEFAULT_KIND: Mapping[SourceType, Kind] = {
    SourceType.PBI: Kind.WORK,
    SourceType.AZURE_DEVOPS: Kind.WORK,
    SourceType.CONFLUENCE: Kind.REFERENCE,
    SourceType.DOCUMENTATION: Kind.REFERENCE,
    SourceType.TEXT: Kind.REFERENCE,
    SourceType.REST: Kind.REFERENCE,
}


LEVELS = ("public", "internal", "confidential", "restricted")
"""Security levels of documents, lowest first; each includes the lower ones."""
LEVEL = "security_level"
"""Metadata in which a document sets its own level."""
ACL = "acl"
"""Metadata with the ACL of a document: layers of readers; a caller must be in each layer."""
ADMINS_ALONE = "permission:admin"
"""Reader in an `acl` that matches callers with the permission `admin`; for documents with unreadable rights."""
READING_NOTE = "reading_note"
"""Metadata of a document that was read in part: a sentence on what could not be read."""


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
"""`decision_status` of a decision -> its words; if words of several rows occur, the first row counts."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """One page, backlog item or file as text."""

    external_id: str
    """Stable name inside its source: a path relative to the source's root, a page id, a PBI id."""
    title: str
    text: str
    """Markdown or plain text, without front matter."""
    source_type: SourceType
    kind: Kind
    url: str = ""
    """Address where a person can open it; empty if there is none."""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """JSON only. `source_path` is the file or address; `version` or `rev` the source's own version."""
    created_at: datetime | None = None
    updated_at: datetime | None = None
    security_level: str = "internal"
    """One of LEVELS."""
    fingerprint: str = ""
    """Version, location and labels of this item as a walk shows them; empty if a walk shows only ids."""

    @property
    def content_hash(self) -> str:
        """SHA-256 of all fields that search shows or filters by, with line ends and trailing blanks normalised.

        Times are left out, since touching a file is no change.
        """
        text = "\n".join(line.rstrip() for line in self.text.splitlines()).strip()
        rest = [self.source_type, self.kind, self.url, sorted(self.tags), self.metadata, self.security_level]
        fields = [self.title.strip(), text, json.dumps(rest, sort_keys=True, ensure_ascii=False, default=str)]
        return hashlib.sha256("\0".join(fields).encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Problem:
    """An item that was not read, or read in part, with the reason."""

    external_id: str
    reason: str
    """A sentence on the problem and what to do; never the item's text."""
    url: str = ""
    because: str = "excluded"
    """The reason in a few words without the item's name; excluded items are counted by it."""

    def to_json(self) -> Json:
        """`{"item", "reason", "url"}`."""
        return {"item": self.external_id, "reason": self.reason, "url": self.url}


@dataclass(frozen=True, kw_only=True)
class Page:
    """One answer of a source's listing: its items, and the cursor to store with them."""

    cursor: Cursor
    documents: tuple[Document, ...] = ()
    failed: tuple[Problem, ...] = ()
    """Failures: items that exist and could not be read, as binary files and invalid JSON."""
    skipped: tuple[Problem, ...] = ()
    """Excluded items that are listed by name: empty, larger than the limit."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Reason -> number of further excluded items, whose names are not listed."""
    deleted: tuple[str, ...] = ()
    """External ids that the source reports as deleted."""

    @property
    def reading_notes(self) -> tuple[Problem, ...]:
        """Reading notes of the documents that were read in part."""
        notes = ((d, d.metadata.get(READING_NOTE)) for d in self.documents)
        return tuple(
            Problem(external_id=d.external_id, reason=str(note), url=d.url) for d, note in notes if note
        )

    @property
    def all_left_out(self) -> Counter[str]:
        """Excluded items by reason, listed by name or not."""
        return Counter(self.left_out) + Counter(problem.because for problem in self.skipped)


@dataclass(frozen=True, kw_only=True)
class Listing:
    """All current external ids of a source, or one piece of them."""

    ids: frozenset[str]
    complete: bool
    """True if this piece is known to lack no id."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints by external id; an item whose stored fingerprint differs is read again."""
    left_out: Mapping[str, int] | None = None
    """Reason -> number of excluded items of the whole source; None if the pages of a full listing have them."""
    cursor: Cursor = field(default_factory=dict)
    """Cursor of the next piece; empty after the last one."""

    @classmethod
    def merged(cls, pieces: Sequence[Listing]) -> Listing:
        """Merge pieces into one listing, complete if every piece is."""
        counts = [piece.left_out for piece in pieces if piece.left_out is not None]
        return cls(
            ids=frozenset().union(*(piece.ids for piece in pieces)),
            complete=all(piece.complete for piece in pieces),
            versions={key: mark for piece in pieces for key, mark in piece.versions.items()},
            left_out=sum(map(Counter, counts), Counter()) if counts else None,
            cursor=pieces[-1].cursor,
        )


@dataclass(frozen=True, kw_only=True)
class Mismatch:
    """A configuration key that conflicts with another."""

    key: str
    """Name of the key in snake_case."""
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
    """A configured source. Every implementation passes tests/contracts/test_source.py.

    Raises (all methods): errors of `pipeline.errors` only, already sorted into transient and permanent.
    """

    extractor: str
    """Name and version of the text extraction, such as `markdown-1`; a new one reads everything again."""
    walks_all: bool
    """True without a change feed, as for files: every sync lists all items and finds deletions by comparison."""

    def pages(self, since: Cursor | None) -> Iterator[Page]:
        """Pages of all changes since the cursor (None: everything), in an order that is stable over restarts."""

    def ids(self, since: Cursor | None = None) -> Listing:
        """A walk: all current ids, to find deletions.

        Large sources return pieces; `since` is the cursor of the piece before, which may come from another process.
        """

    def read(self, ids: Sequence[str]) -> Iterator[Page]:
        """Read these items, which a walk showed to differ; deleted ones are in `deleted`."""

    def check(self) -> list[Finding]:
        """Check access; each finding says what was tried, the result, and what to do."""

    def stamp(self) -> str | None:
        """A value that changes with the source, at the cost of a directory listing; None if unsupported."""

    def skip_unchanged(self, fingerprints: Mapping[str, str]) -> int | None:
        """Leave items with an unchanged fingerprint out of `pages`; returns their number, None if unsupported.

        Lists all items once; `ids` and `stamp` use that listing from then on. `fingerprints` are by external id.
        Called for sources that `walks_all` only.
        """


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A piece of a document that is embedded and searched."""

    ord: int
    """Position in the document: 0, 1, 2, ... without gaps."""
    content: str
    """The document's own text."""
    context: str = ""
    """Title and heading path, `Title > Heading`, embedded and searched with the content."""

    @property
    def embedding_text(self) -> str:
        """The text to embed: context and content."""
        return f"{self.context}\n\n{self.content}" if self.context else self.content

    @property
    def hash(self) -> str:
        """SHA-256 of `embedding_text`: key of the embedding cache, and identity when versions are compared."""
        return hashlib.sha256(self.embedding_text.encode("utf-8", "surrogatepass")).hexdigest()


DEFAULT_LANGUAGE = "english"

LANGUAGES = (
    "arabic", "armenian", "basque", "catalan", "danish", "dutch", "english", "finnish", "french", "german", "greek",
    "hindi", "hungarian", "indonesian", "irish", "italian", "lithuanian", "nepali", "norwegian", "portuguese",
    "romanian", "russian", "serbian", "simple", "spanish", "swedish", "tamil", "turkish", "yiddish",
)  # fmt: skip
"""Text search languages of PostgreSQL 15, the oldest supported version; `simple` does not stem."""

LANGUAGE_KEY = "search_language"
"""Metadata with the search language of a document, if it is not the default."""


def language_metadata(language: str) -> dict[str, str]:
    """Metadata for a document in this language; empty for the default."""
    return {} if language == DEFAULT_LANGUAGE else {LANGUAGE_KEY: language}


def language_of(metadata: Mapping[str, Any]) -> str:
    """Search language of a document with these metadata; the default if missing or unknown."""
    named = metadata.get(LANGUAGE_KEY)
    return named if isinstance(named, str) and named in LANGUAGES else DEFAULT_LANGUAGE
