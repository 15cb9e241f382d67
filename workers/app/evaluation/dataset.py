"""A set of documents and judged questions: read from a folder, written into one, or built from what is indexed."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from itertools import islice, permutations
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, Field, StringConstraints, ValidationError, model_validator

from connectors.documents.values import parse_time
from pipeline.documents import Document, Json, Kind, SourceType
from pipeline.enrichment.text import single_line, truncated
from pipeline.errors import ConfigurationError
from pipeline.ledger.documents import corpus
from workers.runtime import Runtime

CORPUS, QUERIES, JUDGEMENTS, META = "corpus.jsonl", "queries.jsonl", "qrels.tsv", "meta.json"
CONTEXT = "context_judgements.tsv"
JUDGEMENTS_HEADER = ("query-id", "corpus-id", "score")
CONTEXT_HEADER = ("item", "section", "ref", "grade")
DOCUMENT_SECTIONS = ("similar_work", "past_decisions", "technical_docs", "likely_duplicates")
"""Sections of a Step 4 answer that list documents."""
SECTIONS = (*DOCUMENT_SECTIONS, "learnings", "suggestions", "risk_hints")
"""All sections that are judged, with those that list sentences."""
GRADES = {"0": 0, "1": 1, "2": 2}
"""Grades in the file: noise, related, useful."""
_FORM = f"a set is a folder with {CORPUS}, {QUERIES}, {JUDGEMENTS} and {META}; see docs/evaluation.md"
_CORRECT = "correct it, or take the line out"


@dataclass(frozen=True, kw_only=True)
class EvalDataset:
    """Documents, questions and judgements, in memory."""

    name: str
    documents: Sequence[Document]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, int]]
    """Question -> documents that answer it, with their grades; only questions that have one."""
    self_exclude: bool
    """True if questions are documents of the set, which they must not find."""
    projects: Mapping[str, str]
    """Document -> its project; only those that name one."""
    requests: Mapping[str, Json]
    """Question -> the same as a request of Step 4."""
    context: Mapping[str, Mapping[tuple[str, str], int]]
    """Question -> (section, ref) of a Step 4 answer -> grade; only questions that have one."""

    @cached_property
    def digest(self) -> str:
        """Hash that changes with any document."""
        whole = "".join(f"{d.external_id}\0{d.content_hash}\0" for d in self.documents)
        return hashlib.sha256(whole.encode()).hexdigest()[:12]


# Writing ------------------------------------------------------------------------------------------

_PLAIN = {"\\\\": "\\", "\\t": "\t", "\\n": "\n", "\\r": "\r"}
_ESCAPES = {ord(character): escaped for escaped, character in _PLAIN.items()}


def table_row(*cells: object) -> str:
    """A line of a table: what would end a cell or the line is escaped, as `read` undoes it."""
    return "\t".join(str(cell).translate(_ESCAPES) for cell in cells) + "\n"


def refuse_used(folder: Path) -> None:
    """Refuse a folder that is not new or empty, for a set to be written into.

    Raises:
        ConfigurationError: the folder is not empty, or no folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there and not empty", fix="name a new folder")


def write(
    folder: Path,
    *,
    documents: Iterable[Json],
    queries: Iterable[Json],
    relevant: Iterable[Sequence[object]],
    context: Iterable[Sequence[object]],
    counts: Json,
) -> None:
    """Make a set of a folder that is new or empty, for this user only: it holds texts.

    Rows of `relevant` are question, document and grade, those of `context` as `CONTEXT_HEADER` says; `counts` go into
    meta.json. A question that is an indexed item has the id of its document, which is not to be found for it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    plain = ({k: v for k, v in row.items() if k not in ("id", "external_id", "source")} for row in documents)
    lines: dict[str, Iterable[str]] = {
        CORPUS: (json.dumps(row, ensure_ascii=False) + "\n" for row in plain),
        QUERIES: (json.dumps(row, ensure_ascii=False) + "\n" for row in queries),
        JUDGEMENTS: (table_row(*row) for row in (JUDGEMENTS_HEADER, *relevant)),
        CONTEXT: (table_row(*row) for row in (CONTEXT_HEADER, *context)),
        META: [json.dumps({"self_exclude": True, **counts}, indent=1)],
    }
    for name, rows in lines.items():
        with (folder / name).open("x", encoding="utf-8") as out:
            out.writelines(rows)


# Reading ------------------------------------------------------------------------------------------


def _source_type(value: Any) -> SourceType | None:
    try:
        return SourceType.parse(value)
    except (ValueError, AttributeError):
        return None


_Time = Annotated[datetime, BeforeValidator(parse_time)]
_FACTS = {"status", "resolution", "duplicate_of", "decision_status"}
"""Metadata that a document may have beside its `metadata`."""


class _Row(BaseModel):
    id: str = Field(alias="_id", coerce_numbers_to_str=True)
    title: str = ""
    project: str = ""

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, row: Any) -> Any:
        """Drop fields that are null: null stands for an absent value."""
        return {k: v for k, v in row.items() if v is not None} if isinstance(row, dict) else row


class _DocumentRow(_Row):
    text: str = ""
    source_type: Annotated[SourceType, BeforeValidator(_source_type)] = SourceType.TEXT
    kind: Kind = Kind.REFERENCE
    url: str = ""
    tags: tuple[str, ...] = ()
    metadata: Json = {}
    created_at: _Time | None = None
    updated_at: _Time | None = None
    status: str = ""
    resolution: str = ""
    duplicate_of: str = ""
    decision_status: str = ""

    def document(self) -> Document:
        facts = self.model_dump(include=_FACTS, exclude_defaults=True)
        plain = self.model_dump(exclude={"id", "project", "metadata", *_FACTS})
        return Document(external_id=self.id, **plain, metadata={**facts, **self.metadata})


class _QuestionRow(_Row):
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: str = ""
    acceptance_criteria: str | list[str] = []

    def request(self, *, excluded: bool) -> Json:
        """Request that the enrich worker is sent; the id keeps an item from finding itself."""
        title = self.title.strip() or self.text.partition("\n")[0].strip()
        pbi = {
            **({"id": self.id} if excluded else {}),
            "title": title,
            "description": self.description or self.text.removeprefix(title).strip(),
            "acceptance_criteria": self.acceptance_criteria,
        }
        # One that names no project is asked of all documents.
        return {"pbi": pbi, **({"project": self.project} if self.project else {"projects": ["*"]})}


class _Meta(BaseModel):
    self_exclude: bool = False


_Model = TypeVar("_Model", bound=BaseModel)
_RowModel = TypeVar("_RowModel", bound=_Row)


def read(folder: Path, limit: int | None = None) -> EvalDataset:
    """The set in `folder`; `limit` keeps only the first questions, never fewer documents.

    Raises:
        ConfigurationError: it is no set; the message says which file and line.
    """
    _refuse_incomplete(folder)
    rows, all_questions = _rows(folder / CORPUS, _DocumentRow), _rows(folder / QUERIES, _QuestionRow)
    questions = dict(islice(all_questions.items(), limit))
    meta = folder / META
    excluded = (
        meta.is_file()
        and _parsed(_Meta, meta.read_bytes().removeprefix(codecs.BOM_UTF8), str(meta)).self_exclude
    )
    context = _context(folder / CONTEXT, all_questions, rows) if (folder / CONTEXT).is_file() else {}
    dataset = EvalDataset(
        name=folder.resolve().name,
        documents=[row.document() for row in rows.values()],
        queries={query: row.text for query, row in questions.items()},
        relevant=_relevant(folder / JUDGEMENTS, questions, rows, excluded=excluded),
        self_exclude=excluded,
        projects={name: row.project for name, row in rows.items() if row.project},
        requests={query: row.request(excluded=excluded) for query, row in questions.items()},
        context={query: context[query] for query in questions if query in context},
    )
    for noun, part in (("document", rows), ("question with a relevant document", dataset.relevant)):
        if not part:
            raise ConfigurationError(f"the set in {folder} has no {noun}", fix=_FORM)
    return dataset


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """(place, line) of all that are not blank, with or without the mark that Windows puts first."""
    for number, line in enumerate(path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        place = f"{path}, line {number}"
        try:
            text = line.decode().rstrip("\r")
        except UnicodeDecodeError:
            raise ConfigurationError(f"{place} is no text in UTF-8", fix="save the file in UTF-8") from None
        if text.strip():
            yield place, text


def _refuse_incomplete(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder", fix=_FORM)
    absent = [name for name in (CORPUS, QUERIES, JUDGEMENTS) if not (folder / name).is_file()]
    if absent:
        raise ConfigurationError(f"{folder} has no {' and no '.join(absent)}", fix=_FORM)


def _parsed(model: type[_Model], text: str | bytes, place: str) -> _Model:
    """The object of that text; the error names the first wrong field, and never a value."""
    try:
        return model.model_validate_json(text)
    except ValidationError as error:
        wrong = error.errors(include_input=False)[0]
        detail = f": {wrong['loc'][0]}: {wrong['msg']}" if wrong["loc"] else " is no JSON object"
        raise ConfigurationError(place + detail, fix=f"correct it; {_FORM}") from None


def _rows(path: Path, model: type[_RowModel]) -> dict[str, _RowModel]:
    """The objects of a file, a line each, by their ids."""
    rows: dict[str, _RowModel] = {}
    for place, line in _lines(path):
        row = _parsed(model, line, place)
        if row.id in rows:
            raise ConfigurationError(
                f"{place}: a line before it has the _id {row.id!r}", fix="give each line an _id of its own"
            )
        rows[row.id] = row
    return rows


def _table(path: Path, questions: Container[str]) -> Iterator[tuple[str, list[str]]]:
    """(place, cells) of all lines but the header: a set without one must not lose what stands in its place."""
    for number, (place, line) in enumerate(_lines(path)):
        cells = [re.sub(r"\\[\\tnr]", lambda m: _PLAIN[m[0]], cell) for cell in line.split("\t")]
        if number or cells[0] in questions:
            yield place, cells


def _relevant(
    path: Path, questions: Container[str], documents: Container[str], *, excluded: bool
) -> dict[str, dict[str, int]]:
    """Question -> documents that answer it."""
    relevant: dict[str, dict[str, int]] = {}
    for place, cells in _table(path, questions):
        try:
            query, document, grade = cells[0], cells[1], int(cells[2])
        except (ValueError, IndexError):
            raise ConfigurationError(
                f"{place} is no question, document and whole number with tabs between them", fix=_FORM
            ) from None
        if query in questions and grade > 0 and not (excluded and query == document):
            _refuse_unknown(place, document, documents)
            relevant.setdefault(query, {})[document] = grade
    return relevant


def _context(
    path: Path, questions: Container[str], documents: Container[str]
) -> dict[str, dict[tuple[str, str], int]]:
    """Question -> (section, ref) -> grade; a line without a grade waits for somebody to judge it."""
    grades_by_item: dict[str, dict[tuple[str, str], int]] = {}
    for place, cells in _table(path, questions):
        item, section, ref, grade_text = (*(cell.strip() for cell in cells), "", "", "")[:4]
        if ref and not grade_text:
            continue
        if item not in questions:
            raise ConfigurationError(f"{place} names no question of {QUERIES}", fix=_CORRECT)
        if not all((section in SECTIONS, ref, grade_text in GRADES)):
            raise ConfigurationError(
                f"{place} is not {', '.join(CONTEXT_HEADER)} with tabs between them",
                fix=f"known sections are {', '.join(SECTIONS)}; grades are 0 noise, 1 related, 2 useful",
            )
        grade = GRADES[grade_text]
        if section in DOCUMENT_SECTIONS and grade:
            _refuse_unknown(place, ref, documents)
        if grades_by_item.setdefault(item, {}).setdefault((section, single_line(ref)), grade) != grade:
            raise ConfigurationError(
                f"{place} has another grade than a line before it", fix="leave one of them"
            )
    return grades_by_item


def _refuse_unknown(place: str, document: str, documents: Container[str]) -> None:
    """Refuse a document outside the set: no search finds it, and every figure would be too low."""
    if document not in documents:
        raise ConfigurationError(
            f"{place} names the document {truncated(document)!r}, which {CORPUS} does not hold", fix=_CORRECT
        )


RELATIONS = ("links", "dependencies", "related", "related_to", "relates_to", "related_ids", "related_work")
"""Metadata that name other work."""
REASONS = {
    "duplicates": (2, ("similar_work", "likely_duplicates")),
    "relations": (1, ("similar_work",)),
    "decisions": (2, ("past_decisions",)),
}
"""Reason why a question should find a document -> its grade, and the sections that should show it."""
LATER = re.compile(
    r"^## (?:links|details|history|comments|discussion|resolution|outcome|dependencies|closing comment|final summary"
    r"|implementation notes|lessons learned|retro\w*|post-?mortem)\b.*?(?=^## |\Z)",
    re.IGNORECASE | re.MULTILINE | re.DOTALL,
)
"""Sections that an item has only later, or that name what is to be found."""
_RELATED = re.compile(r"^- (?:Related|Predecessor|Successor): (.+)$", re.MULTILINE)
_TOKEN = re.compile(r"[^\s,;()\[\]<>{}\"'`|]+")


def build(runtime: Runtime, tenant: UUID, folder: Path) -> Json:
    """Write a set of the tenant's documents into `folder`, which then holds their texts, for this user only.

    Duplicates, relations and decisions say what should be found.

    Raises:
        ConfigurationError: the folder is not empty, or nothing indexed says what belongs together.
    """
    refuse_used(folder)
    with runtime.database.tenant(tenant) as connection:
        documents = list(corpus(connection))
    pairs = _pairs(documents)
    if not pairs:
        raise ConfigurationError(
            "nothing that is indexed names a duplicate, a related item, or an item in a decision",
            fix="make a set by hand: docs/evaluation.md",
        )
    queries = {query for query, _ in pairs}
    counts = {"documents": len(documents), "queries": len(queries), **Counter(pairs.values())}
    write(
        folder,
        documents=documents,
        queries=(_question(row) for row in documents if row["_id"] in queries),
        relevant=((*pair, REASONS[why][0]) for pair, why in pairs.items()),
        context=(
            (query, section, name, REASONS[why][0])
            for (query, name), why in pairs.items()
            for section in REASONS[why][1]
        ),
        counts=counts,
    )
    return counts


def _question(row: Json) -> Json:
    """The item as it was when it was new."""
    title, body = row["title"], LATER.sub("", row.get("text", "")).strip()
    text = f"{title}\n{body.removeprefix(f'# {title}').strip()}".strip()
    return {"_id": row["_id"], "text": text, "project": row["project"]}


def _pairs(documents: Sequence[Json]) -> dict[tuple[str, str], str]:
    """(question, document) -> why the one should find the other; the first reason holds."""
    work = [row for row in documents if row["kind"] == Kind.WORK]
    names = _Names(work)
    pairs = {pair: "duplicates" for group in _groups(work, names) for pair in permutations(group, 2)}
    for row in documents:
        ident, text = row["_id"], row.get("text", "")
        related = [row.get("metadata", {}).get(key) for key in RELATIONS]
        if row["kind"] == Kind.DECISION:
            for item in sorted(names.within([*related, row["title"], text], row["source"])):
                pairs.setdefault((item, ident), "decisions")
        elif row["kind"] == Kind.WORK:
            for item in sorted(names.within([*related, *_RELATED.findall(text)], row["source"]) - {ident}):
                pairs.setdefault((ident, item), "relations")
                pairs.setdefault((item, ident), "relations")
    return pairs


def _groups(work: Sequence[Json], names: _Names) -> list[list[str]]:
    """Items that are one another's duplicates, however many links lie between; a master need not be indexed."""
    groups: dict[str, set[str]] = {}
    for row in work:
        if master := str(row.get("metadata", {}).get("duplicate_of") or "").strip():
            key = names.find(master, row["source"]) or f"\0{master}"
            joined = groups.get(row["_id"], {row["_id"]}) | groups.get(key, {key})
            groups.update(dict.fromkeys(joined, joined))
    each = {id(group): group for group in groups.values()}.values()
    return [[row["_id"] for row in work if row["_id"] in group] for group in each]


class _Names:
    """Work items by the names that others call them: id and address."""

    def __init__(self, work: Sequence[Json]) -> None:
        self._ids: dict[str, list[tuple[str, str]]] = {}
        for row in work:
            called = {row["external_id"], str(row.get("metadata", {}).get("pbi_id", "")), row.get("url", "")}
            for name in called - {""}:
                self._ids.setdefault(name, []).append((row["source"], row["_id"]))

    def find(self, name: str, source: str) -> str | None:
        """The item of that name, the one of the same source if there are several; None if that leaves no one."""
        matching = self._ids.get(name.removeprefix("#"), [])
        candidates = [one for one in matching if one[0] == source] if len(matching) > 1 else matching
        return candidates[0][1] if len(candidates) == 1 else None

    def within(self, value: Any, source: str) -> set[str]:
        """Items that a value or its texts name; inside a text a bare number or word is none."""
        if isinstance(value, Mapping | list):
            values = value.values() if isinstance(value, Mapping) else value
            return set[str]().union(*(self.within(one, source) for one in values))
        whole = str(value or "").strip()
        items = {self.find(whole, source)}
        for token in _TOKEN.findall(whole):
            name = token.rstrip(".:!?*_")
            if any(c.isdigit() for c in name) and not name.isdigit():
                items.add(self.find(name, source))
        return {name for name in items if name}
