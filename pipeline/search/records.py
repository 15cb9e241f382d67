"""Records of search: what is stored and whether it still holds, how to search, what is asked, what comes back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from pipeline.documents import DECISION_STATUSES, DEFAULT_LANGUAGE, Chunk, Json, Kind, SourceType
from pipeline.embedding import Vectors
from pipeline.embedding.known_models import model_of
from pipeline.search.feedback import Marks
from pipeline.search.question import Synonyms

Mode = Literal["hybrid", "vector", "keyword"]


@dataclass(frozen=True, kw_only=True)
class StoredDocument:
    """A document as it is indexed and as a hit shows it."""

    id: UUID
    version: int
    title: str
    source_type: SourceType
    kind: Kind
    source: str = ""
    """The configured source's name."""
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
    """Shape (len(chunks), dimensions), rows of length 1; None while there are none: then it is found by words alone."""


@dataclass(frozen=True, kw_only=True)
class Replaced:
    """What `replace` did to one document."""

    written: int
    kept: int
    removed: int


@dataclass(frozen=True, kw_only=True)
class Filter:
    """All conditions hold at once; an empty one asks nothing. Applied before ranking, in both arms."""

    source_types: tuple[SourceType, ...] = ()
    kinds: tuple[Kind, ...] = ()
    tags: tuple[str, ...] = ()
    """The document has every one of these."""
    since: datetime | None = None
    until: datetime | None = None
    """On `updated_at`, else `created_at`; `until` is exclusive."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    projects: tuple[UUID, ...] = ()
    """The document is of one of these."""
    exclude: tuple[UUID, ...] = ()
    """Documents left out, such as the query's own."""
    sources: tuple[str, ...] = ()
    """Names of configured sources; the document comes from one of them."""
    texts: tuple[tuple[str, str], ...] = ()
    """Metadata as a person writes it: the value in words, be it a text, a number or one of a list."""
    only: tuple[UUID, ...] = ()
    """No other documents than these."""
    security_levels: tuple[str, ...] = ()
    """The document's is one of these: what the caller may see."""
    readers: tuple[str, ...] = ()
    """Each layer of the document's `acl` names one of these; empty: whoever asks sees all."""


MEASURED_THRESHOLDS: Mapping[str, float] = {
    # 330 relevant pairs of the three open sets: the nearest chunk of 98 % lies at .378 or above (.295, .378 and
    # .415 set by set); measured with tests/benchmarks/quality.py --threshold, rounded down.
    "all-MiniLM-L6-v2": 0.37,
    "gemini-embedding-001": 0.70,
}
"""Model -> the least similarity that `auto` stands for; one that is not listed, such as hashing, has none."""

MEASURED_WEAK: dict[str, tuple[float, float]] = {
    # tests/benchmarks/quality.py --weak: 98 % of what is relevant lies above; docs/search.md has the table.
    "all-MiniLM-L6-v2": (0.39, 0.5),
    "hashing": (-1.0, 1.1),  # it counts words: without one, it is chance
}
"""Model -> likeness in meaning (0.7 of the chunk's, 0.3 of the document's) below which a hit is weak: one with some
words of the question, one with none. Of a model that is not listed no hit is."""
WEAK_COVERED = 0.63
"""`Explanation.covered` from which a hit has what was asked for, whatever it means."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """What each part adds to a hybrid score; the sum is brought to 1.

    Each part is between 0 and 1 by itself and not scaled among the candidates of a question, so the same two texts
    have the same score whatever else was found. Chosen by nDCG@10 on three open sets; docs/search.md has the figures
    and what each weight is worth on a set that had no part in choosing it.
    """

    vector: float = 0.6
    """Of the similarity in meaning."""
    keyword: float = 0.3
    """Of the rare words in common (`overlap` of `Explanation`)."""
    title: float = 0.25
    """Of those that stand in title or headings."""
    covered: float = 0.05
    """Of a question all of whose words are there."""
    centroid: float = 0.4
    """Share of the whole document in the similarity of meaning, 0 to 1; the rest is the chunk's own."""
    outdated: float = 0.75
    """Share of its score that a replaced decision or abandoned work keeps; 1 ranks it like any other."""


@dataclass(frozen=True, kw_only=True)
class RetrievalOptions:
    """How documents are found when a request says nothing else."""

    top_k: int = 5
    max_top_k: int = 50
    candidates: int = 100
    """Chunks taken from each of the two searches."""
    min_similarity: float | Literal["auto"] = "auto"
    max_distance: float | None = None
    """1 - similarity; the stricter of the two holds."""
    weights: Weights = field(default_factory=Weights)
    exact_below: int = 10_000
    synonyms: Synonyms = field(default_factory=Synonyms)
    languages: tuple[str, ...] = (DEFAULT_LANGUAGE,)
    """Of the documents; each word of a question is stemmed in all of them."""


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A question and how to answer it."""

    text: str
    mode: Mode = "hybrid"
    k: int | None = None
    """None: the configured number; more than the configured most is cut to that."""
    filter: Filter = field(default_factory=Filter)
    """What is asked for and what the caller may see."""
    explain: bool = False
    """Each hit tells what its score is made of."""
    trace: bool = False
    """The answer also holds what was found and not shown; it is not remembered."""
    min_similarity: float | None = None
    """Instead of the configured one."""
    dedupe: bool = True
    """One hit per document, its best chunk; False gives every chunk its own hit."""
    feedback_key: str = ""
    """Names the question where people mark documents for it (`feedback.key_of`); empty: its words do."""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What put a hit where it is; the parts add up to its score, unless those of words are left out (None)."""

    similarity: float | None
    """None if it has no vector yet, and in a search by words alone."""
    bm25: float | None
    centroid: float | None
    """Cosine similarity of the whole document."""
    overlap: float | None
    """How much of what is rare in the question the chunk says, 0 to 1."""
    title: float | None
    """The same of its title and headings."""
    covered: float | None
    """1 if the chunk holds all words of the question, falling fast to 0 with those it lacks."""
    vector_part: float
    keyword_part: float | None
    title_part: float | None
    covered_part: float | None
    min_similarity: float
    rerank: float | None = None
    """What the reranker made of it; None if it did not look."""
    rerank_part: float = 0.0
    """How much that moved the score, up or down."""
    outdated_part: float = 0.0
    """What a document loses that no longer holds."""
    feedback: float = 0.0
    """As `Hit.feedback`."""
    feedback_part: float = 0.0
    """How much that moved the score, up or down."""
    feedback_why: str = ""
    """The same in words: `marked useful for this question, +1.0`."""

    def weak(self, model: str) -> bool:
        """Whether it hardly answers: not close in meaning, and without the words; by words alone nothing is weak."""
        bounds = MEASURED_WEAK.get(model_of(model))
        if bounds is None or self.similarity is None or (self.covered or 0.0) >= WEAK_COVERED:
            return False
        whole = self.similarity if self.centroid is None else self.centroid
        return 0.7 * self.similarity + 0.3 * whole < bounds[self.bm25 == 0]

    def without_statistics(self) -> Explanation:
        """Without what tells how rare a word is in all documents; for who may not see them all."""
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
        """Under the names that commands and the API use."""
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
    """Vector: the cosine similarity. Else the weighted sum of the parts, 0 to 1."""
    explanation: Explanation | None = None
    outdated: str = ""
    """Why the document no longer holds, such as `superseded by ADR-12`; empty if it does."""
    marks: Marks | None = None
    """What people said of the document; None if nothing, and in a search by meaning alone."""
    weak: bool = False
    """It is among the nearest and hardly answers the question."""

    @property
    def feedback(self) -> float:
        """The same as a shift in log-odds, from -3 to 1."""
        return self.marks.shift if self.marks else 0.0

    @property
    def id(self) -> str:
        """`document_id:ord`."""
        return f"{self.document.id}:{self.chunk.ord}"

    @classmethod
    def of_row(cls, row: dict[str, Any], least: float, model: str) -> Hit:
        """A row of `statement.search`."""
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
        """The same with another score; its explanation tells the difference as `part`."""
        e = self.explanation
        if e is not None:
            parts[part] = getattr(e, part) + score - self.score
            e = replace(e, **parts)
        return replace(self, score=score, explanation=e)


@dataclass(frozen=True, kw_only=True)
class Partial:
    """While documents are loaded: how many are not found by meaning yet."""

    without_vectors: int | None = None
    documents: int | None = None
    """Of all; None for whoever may not see all."""

    def __str__(self) -> str:
        if self.documents is None:
            return "some documents have no vectors yet"
        return f"{self.without_vectors:,} of {self.documents:,} documents have no vectors yet"


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """The answer to a question."""

    hits: Sequence[Hit] = ()
    degradation_level: int = 0
    model: str = ""
    """Whose vectors were compared; empty before the first document."""
    below: Sequence[Hit] = ()
    """Found, but less similar than asked for; only if the request says `trace`."""
    beyond: Sequence[Hit] = ()
    """Good enough, but ranked after the last hit; only if the request says `trace`."""
    from_cache: bool = False
    """The database was not asked: the same question was answered a short while ago."""
    partial: Partial | None = None
    """None if every document is found by meaning, too."""

    @property
    def weak(self) -> bool:
        """Whether nothing close was found: each hit is weak."""
        return bool(self.hits) and all(hit.weak for hit in self.hits)


# -- whether a document still holds: replaced decisions, abandoned work, and what to say of them -------

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
"""Kind -> the metadata that tell, the surest first, and what their words mean."""
_DUPLICATE = "closed as a duplicate"


def outdated(document: StoredDocument) -> str:
    """Why it no longer holds, in a few words (`superseded by ADR-12`); empty if it does.

    A duplicate holds: it tells of the same thing as the item it repeats.
    """
    return "" if repeats(document) else _why(document) or ""


def repeats(document: StoredDocument) -> bool:
    """Whether it is a duplicate, be its master known or not."""
    return duplicate_of(document) is not None or _why(document) == _DUPLICATE


def duplicate_of(document: StoredDocument) -> str | None:
    """The item that this one repeats, as its source names it; None if it repeats none, or none is known."""
    master = document.metadata.get("duplicate_of") if document.kind is Kind.WORK else None
    return str(master).strip() or None if isinstance(master, str | int) else None


def validity_note(document: StoredDocument) -> str | None:
    """What a reader should know of how it stands: why it no longer holds, or `closed as duplicate of X`."""
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
        if isinstance(value, str) and (found := _meaning(value, words)):
            return found
    return None


def _meaning(value: str, words: Mapping[str, str]) -> str | None:
    """What a state says, be it written alone or behind the state it ended in: `Closed (won't fix)`."""
    letters = _NO_LETTERS.sub("", value.lower())
    if words is _WORK and _REPEATS.fullmatch(letters):
        return _DUPLICATE
    ended = _ENDED.match(letters)
    return words.get(letters) or (words.get(letters[ended.end() :]) if ended else None)


def age_days(document: StoredDocument, now: datetime | None = None) -> int | None:
    """Whole days since it was last changed, or made if that is all that is known."""
    moment = document.updated_at or document.created_at
    return None if moment is None else max(0, ((now or datetime.now(UTC)) - moment).days)
