"""Records of search: documents and their validity, options, requests, hits and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal
from uuid import UUID

from pipeline.documents import DECISION_STATUSES, DEFAULT_LANGUAGE, Chunk, Json, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.embedding.known_models import model_of
from pipeline.ledger import ALL, All
from pipeline.search.feedback import Marks
from pipeline.search.question import Synonyms

Mode = Literal["hybrid", "vector", "keyword"]
Quantization = Literal["halfvec", "bit"]


@dataclass(frozen=True, kw_only=True)
class StoredDocument:
    """A document as it is indexed and shown with a hit."""

    id: UUID
    version: int
    title: str
    source_type: SourceType
    kind: Kind
    source: str = ""
    """Name of the configured source."""
    url: str = ""
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    project_id: UUID | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A document's complete new set of chunks."""

    document: StoredDocument
    chunks: Sequence[Chunk]
    vectors: Vectors | None
    """Shape (len(chunks), dimensions), rows of length 1; None without vectors: then only keywords find the document."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """Numbers of a document's chunks that `replace` wrote, left unchanged and removed."""

    written: int
    unchanged: int
    removed: int


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Conditions that all must hold, applied before ranking in both arms of a search.

    In the fields of `BOUNDS`, which limit what a caller may see, ALL means everything and an empty value nothing; in
    the others an empty value means no condition.
    """

    source_types: tuple[SourceType, ...] = ()
    kinds: tuple[Kind, ...] = ()
    tags: tuple[str, ...] = ()
    """Tags that the document has, all of them."""
    since: datetime | None = None
    until: datetime | None = None
    """Range of `updated_at`, else of `created_at`; `until` is exclusive."""
    metadata: tuple[tuple[str, Any], ...] = ()
    """Key and JSON value: the document's value, or one member of its list, is equal or is written the same."""
    projects: tuple[UUID, ...] | All = ALL
    """Projects, one of which the document belongs to."""
    exclude: tuple[UUID, ...] = ()
    """Documents to leave out, such as the backlog item itself."""
    sources: tuple[str, ...] = ()
    """Names of configured sources, one of which the document comes from."""
    only: tuple[UUID, ...] | All = ALL
    """Documents that may be found, and no others."""
    security_levels: tuple[str, ...] | All = ALL
    """Security levels that the caller may see."""
    readers: tuple[str, ...] | All = ALL
    """Names of the caller, one of which must be in each layer of the document's `acl`."""
    BOUNDS: ClassVar[frozenset[str]] = frozenset({"projects", "only", "security_levels", "readers"})
    """Fields whose empty value lets nothing through."""


MEASURED_THRESHOLDS: Mapping[str, float] = {
    # 330 relevant pairs of the three open sets: the nearest chunk of 98 % lies at .378 or above (.295, .378 and
    # .415 set by set); measured with tests/benchmarks/quality.py --threshold, rounded down.
    "all-MiniLM-L6-v2": 0.37,
    "gemini-embedding-001": 0.70,
}
"""Model -> minimum similarity for `auto`; unlisted models, such as hashing, have none."""

MEASURED_WEAK: dict[str, tuple[float, float]] = {
    # tests/benchmarks/quality.py --weak: 98 % of the relevant hits lie above; docs/search.md has the table.
    "all-MiniLM-L6-v2": (0.39, 0.5),
    "hashing": (-1.0, 1.1),  # it counts words: without one, it is chance
}
"""Model -> similarity (0.7 of the chunk's, 0.3 of the document's) below which a hit is weak: for hits with some words
of the question, and for hits with none. With an unlisted model no hit is weak."""
WEAK_COVERED = 0.63
"""`Explanation.covered` from which a hit is never weak, whatever its similarity."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Weights of the parts of a hybrid score, scaled to a sum of 1.

    Each part is between 0 and 1 by itself and not scaled among the candidates of a query, so a pair of texts always has
    the same score. Chosen by nDCG@10 on three open sets; docs/search.md has the figures, and the effect of each weight
    on a set that was not used for the choice.
    """

    vector: float = 0.6
    """Weight of the vector similarity."""
    keyword: float = 0.3
    """Weight of the rare words in common (`overlap` of `Explanation`)."""
    title: float = 0.25
    """Weight of the rare words in common with title or headings."""
    covered: float = 0.05
    """Weight of a chunk that has all words of the query (`covered` of `Explanation`)."""
    centroid: float = 0.4
    """Share of the whole document's similarity in the vector similarity, 0 to 1; the rest is the chunk's."""
    outdated: float = 0.75
    """Share of the score that replaced decisions and abandoned work keep; 1 ranks them like other documents."""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """Defaults for search requests."""

    top_k: int = 5
    max_top_k: int = 50
    candidates: int = 100
    """Chunks taken from the vector search and from the keyword search each."""
    min_similarity: float | Literal["auto"] = "auto"
    max_distance: float | None = None
    """Maximum of 1 - similarity; the stricter of the two limits applies."""
    weights: Weights = field(default_factory=Weights)
    exact_below: int = 10_000
    synonyms: Synonyms = field(default_factory=Synonyms)
    languages: tuple[str, ...] = (DEFAULT_LANGUAGE,)
    """Languages of the documents; each word of a query is stemmed in all of them."""


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A query and its options."""

    text: str
    mode: Mode = "hybrid"
    k: int | None = None
    """Number of hits, limited by `max_top_k`; None: the configured number."""
    filter: Filter = field(default_factory=Filter)
    """Conditions of the request, and limits of what the caller may see."""
    explain: bool = False
    """Whether each hit explains its score."""
    trace: bool = False
    """Whether the result also has the candidates that are not hits; such a result is not cached."""
    min_similarity: float | None = None
    """Minimum similarity instead of the configured one."""
    dedupe: bool = True
    """One hit per document, its best chunk; False gives every chunk its own hit."""
    feedback_key: str = ""
    """Key of the question for feedback (`question.key_of`); empty: the key of its text."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Explanation of a hit's score, which is the sum of the parts unless those of keywords are left out (None)."""

    similarity: float | None
    """Cosine similarity of the chunk; None without a vector, and in a keyword search."""
    bm25: float | None
    centroid: float | None
    """Cosine similarity of the whole document."""
    overlap: float | None
    """Share of the query's rare words that the chunk has, 0 to 1."""
    title: float | None
    """Share of the query's rare words that title and headings have, 0 to 1."""
    covered: float | None
    """1 if the chunk has all words of the query, falling fast to 0 with missing ones."""
    vector_part: float
    keyword_part: float | None
    title_part: float | None
    covered_part: float | None
    min_similarity: float
    rerank: float | None = None
    """The reranker's score; None without reranking."""
    rerank_part: float = 0.0
    """Change of the score by the reranker, up or down."""
    outdated_part: float = 0.0
    """Change of the score of an outdated document, down."""
    feedback: float = 0.0
    """Shift by feedback in log-odds, as `Hit.feedback`."""
    feedback_part: float = 0.0
    """Change of the score by feedback, up or down."""
    feedback_why: str = ""
    """Description of the feedback, such as `marked useful for this question, +1.0`."""

    def weak(self, model: str) -> bool:
        """Whether the hit hardly answers: neither similar nor with the words; in a keyword search no hit is weak."""
        bounds = MEASURED_WEAK.get(model_of(model))
        if bounds is None or self.similarity is None or (self.covered or 0.0) >= WEAK_COVERED:
            return False
        whole = self.similarity if self.centroid is None else self.centroid
        return 0.7 * self.similarity + 0.3 * whole < bounds[self.bm25 == 0]

    def without_statistics(self) -> Explanation:
        """The explanation without values that reveal how rare a word is, for callers who may not see all documents."""
        return replace(
            self,
            bm25=None,
            overlap=None,
            title=None,
            covered=None,
            keyword_part=None,
            title_part=None,
            covered_part=None,
        )

    def to_json(self) -> Json:
        """The explanation under the names that commands and the API use."""
        return {_IN_JSON.get(name, name): value for name, value in vars(self).items()}


_IN_JSON = {
    "similarity": "semantic_score",
    "bm25": "keyword_score",
    "centroid": "document_score",
    "overlap": "overlap_score",
    "title": "title_score",
    "covered": "covered_score",
    "rerank": "rerank_score",
    "outdated_part": "standing_part",
}


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One result: a chunk of a document."""

    document: StoredDocument
    chunk: Chunk
    score: float
    """In a vector search the cosine similarity, otherwise the weighted sum of the parts, 0 to 1."""
    explanation: Explanation | None = None
    outdated: str = ""
    """Why the document is outdated, such as `superseded by ADR-12`; empty if it is not."""
    marks: Marks | None = None
    """Feedback on the document; None if there is none, and in a vector search."""
    weak: bool = False
    """Whether the hit is among the nearest but hardly answers the question."""

    @property
    def feedback(self) -> float:
        """Shift by feedback in log-odds, from -3 to 1."""
        return self.marks.shift if self.marks else 0.0

    @property
    def id(self) -> str:
        """`document_id:ord`."""
        return f"{self.document.id}:{self.chunk.ord}"

    @classmethod
    def of_row(cls, row: dict[str, Any], least: float, model: str) -> Hit:
        """Create a hit from a row of `statement.search`."""
        row |= {"id": row["document_id"], "tags": tuple(row["tags"])}
        row |= {"source_type": SourceType(row["source_type"]), "kind": Kind(row["kind"])}
        document = StoredDocument(**{name: row[name] for name in StoredDocument.__dataclass_fields__})
        marks = Marks(*row["marks"]) if row["marks"] else None
        scores = {name: row[name] for name in Explanation.__dataclass_fields__ if name in row}
        scores |= {"title": row["title_overlap"], "min_similarity": least}
        if marks:
            scores |= {"feedback": marks.shift, "feedback_why": marks.why}
        explanation = Explanation(**scores)
        return cls(
            document=document,
            chunk=Chunk(ord=row["ord"], content=row["content"], context=row["context"]),
            score=row["score"],
            outdated=outdated(document),
            marks=marks,
            explanation=explanation,
            weak=explanation.weak(model),
        )

    def rescored(self, score: float, part: str, **parts: Any) -> Hit:
        """A copy with another score; its explanation names the difference as `part`."""
        e = self.explanation
        if e is not None:
            parts[part] = getattr(e, part) + score - self.score
            e = replace(e, **parts)
        return replace(self, score=score, explanation=e)


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Number of documents without vectors while documents are loaded."""

    without_vectors: int | None = None
    documents: int | None = None
    """Number of all documents; None for callers who may not see all."""

    def __str__(self) -> str:
        if self.documents is None:
            return "some documents have no vectors yet"
        return f"{self.without_vectors:,} of {self.documents:,} documents have no vectors yet"


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """Results of a search."""

    hits: Sequence[Hit] = ()
    degradation_level: int = 0
    model: str = ""
    """Model of the compared vectors; empty before the first document."""
    vector: Vectors | None = field(default=None, compare=False, repr=False)
    """The query's vector; None in a search by keywords."""
    below: Sequence[Hit] = ()
    """Candidates below the minimum similarity; only with `trace`."""
    beyond: Sequence[Hit] = ()
    """Candidates ranked after the last hit; only with `trace`."""
    store: str = ""
    """Name of the vector store that found the nearest chunks: pgvector or another one, `words` if none could; empty in
    a keyword search."""
    from_cache: bool = False
    """Whether the result comes from the cache of recent answers instead of the database."""
    partial: Partial | None = None
    """Documents without vectors; None if all have vectors."""

    @property
    def weak(self) -> bool:
        """Whether there are hits and all of them are weak."""
        return bool(self.hits) and all(hit.weak for hit in self.hits)


# -- validity of documents: replaced decisions, abandoned work, duplicates ----------------------------

_NO_LETTERS = re.compile(r"[\W\d_]+")
_ENDED = re.compile(r"(?:closed|resolved|done)(?:as)?")
_REPEATS = re.compile(r"(?:closed|resolved|done)?(?:asan?|as|an?)?dup(?:e|licated?)?(?:of.*)?")

# Words as they are written in trackers and front matter, letters only.
_DECISIONS: Mapping[str, str] = {
    _NO_LETTERS.sub("", word): status
    for status in ("superseded", "rejected", "deprecated")
    for word in DECISION_STATUSES[status]
}
_ENDS: Mapping[str, str] = {
    "closed without being done": "wontfix wontdo willnotfix notplanned abandoned cancelled canceled cut",
    "removed from the backlog": "removed",
    "rejected": "rejected declined",
    "closed as invalid": "invalid notabug",
    "closed as designed": "asdesigned bydesign",
    "closed, could not be reproduced": "cannotreproduce couldnotreproduce notreproducible worksforme",
    "closed as obsolete": "obsolete",
    "superseded": "superseded",
}
_WORK = {word: end for end, words in _ENDS.items() for word in words.split()}
_PAGES: Mapping[str, str] = {**_DECISIONS, "archived": "archived", "outdated": "deprecated"}

_WORDS: Mapping[Kind, tuple[tuple[str, ...], Mapping[str, str]]] = {
    Kind.DECISION: (("decision_status",), _DECISIONS),
    Kind.WORK: (("resolution", "outcome", "reason", "status", "state"), _WORK),
    Kind.REFERENCE: (("decision_status", "status"), _PAGES),
}
"""Kind -> metadata keys for the validity, the most reliable first, and the meanings of their values."""
_DUPLICATE = "closed as a duplicate"


def outdated(document: StoredDocument) -> str:
    """Short reason why the document is outdated (`superseded by ADR-12`); empty if it is not.

    A duplicate is not outdated, since it describes the same as the item it repeats.
    """
    return "" if repeats(document) else _why(document) or ""


def repeats(document: StoredDocument) -> bool:
    """Whether the document is a duplicate, even if the original is unknown."""
    return duplicate_of(document) is not None or _why(document) == _DUPLICATE


def duplicate_of(document: StoredDocument) -> str | None:
    """Id of the item that this one duplicates, as its source names it; None if there is none or it is unknown."""
    master = document.metadata.get("duplicate_of") if document.kind is Kind.WORK else None
    return str(master).strip() or None if isinstance(master, str | int) else None


def validity_note(document: StoredDocument) -> str | None:
    """Note on the document's validity for readers: why it is outdated, or `closed as duplicate of X`."""
    why, master = _why(document), duplicate_of(document)
    if master is None:
        return why
    state = str(document.metadata.get("status") or document.metadata.get("state") or "")
    ended = why or _ENDED.match(_NO_LETTERS.sub("", state.lower()))
    return f"closed as duplicate of {master}" if ended else f"duplicate of {master}"


def _why(document: StoredDocument) -> str | None:
    keys, words = _WORDS[document.kind]
    successor = str(document.metadata.get("superseded_by") or "").strip()
    if successor and document.kind is not Kind.WORK:
        return f"superseded by {successor}"
    for key in keys:
        value = document.metadata.get(key)
        if isinstance(value, str) and (meaning := _meaning(value, words)):
            return meaning
    return None


def _meaning(value: str, words: Mapping[str, str]) -> str | None:
    """Meaning of a state, alone or after the final state as in `Closed (won't fix)`."""
    letters = _NO_LETTERS.sub("", value.lower())
    if words is _WORK and _REPEATS.fullmatch(letters):
        return _DUPLICATE
    ended = _ENDED.match(letters)
    return words.get(letters) or (words.get(letters[ended.end() :]) if ended else None)


def age_days(document: StoredDocument, now: datetime | None = None) -> int | None:
    """Whole days since the document was last changed, or created if no change is known; None if neither is."""
    moment = document.updated_at or document.created_at
    return None if moment is None else max(0, ((now or datetime.now(UTC)) - moment).days)
