"""A set of documents and judged questions: read from a folder, and written into one."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from connectors.documents.values import parse_time
from pipeline.documents import Document, Json, Kind, SourceType
from pipeline.enrichment.text import flat
from pipeline.errors import ConfigurationError

CORPUS, QUERIES, JUDGEMENTS, META = "corpus.jsonl", "queries.jsonl", "qrels.tsv", "meta.json"
CONTEXT = "context_judgements.tsv"
JUDGEMENTS_HEADER = ("query-id", "corpus-id", "score")
CONTEXT_HEADER = ("item", "section", "ref", "grade")
DOCUMENT_SECTIONS = ("similar_work", "past_decisions", "technical_docs", "likely_duplicates")
"""Parts of a Step 4 answer that list documents."""
SECTIONS = (*DOCUMENT_SECTIONS, "learnings", "suggestions", "risk_hints")
"""All parts that are judged, with those that list sentences."""
GRADES = {"0": 0, "1": 1, "2": 2}
"""Noise, related, useful."""
_FORM = f"a set is a folder with {CORPUS}, {QUERIES}, {JUDGEMENTS} and {META}; see docs/evaluation.md"


@dataclass(frozen=True, kw_only=True)
class EvalDataset:
    """Documents, questions and judgements, in memory."""

    name: str
    documents: Sequence[Document]
    queries: Mapping[str, str]
    relevant: Mapping[str, Mapping[str, float]]
    """Question -> documents that answer it, with their grades; only questions that have one."""
    self_exclude: bool
    """A question is a document of the set, which is not to be found."""
    projects: Mapping[str, str]
    """Document -> its project; only those that name one."""
    requests: Mapping[str, Json]
    """Question -> the same as a request of Step 4."""
    context: Mapping[str, Mapping[tuple[str, str], int]]
    """Question -> (section, ref) of a Step 4 answer -> grade; only questions that have one."""

    @cached_property
    def digest(self) -> str:
        """Changes when a document does."""
        whole = hashlib.sha256()
        for document in self.documents:
            whole.update(
                f"{document.external_id}\0{document.content_hash}\0".encode("utf-8", "surrogatepass")
            )
        return whole.hexdigest()[:12]


def refuse_used(folder: Path) -> None:
    """A set is written into a folder that is new or empty.

    Raises:
        ConfigurationError: the folder is not empty, or no folder.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there and not empty", fix="name a new folder")


_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_PLAIN = {escaped: character for character, escaped in _ESCAPES.items()}
_ESCAPED = re.compile(r"\\[\\tnr]")


def table_row(*cells: object) -> str:
    """A line of a table, without its end: what would end a cell or the line is escaped, as `read` undoes it."""
    return "\t".join("".join(_ESCAPES.get(c, c) for c in str(cell)) for cell in cells)


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
    lines = {
        CORPUS: (json.dumps(row, ensure_ascii=False) for row in plain),
        QUERIES: (json.dumps(row, ensure_ascii=False) for row in queries),
        JUDGEMENTS: (table_row(*row) for row in (JUDGEMENTS_HEADER, *relevant)),
        CONTEXT: (table_row(*row) for row in (CONTEXT_HEADER, *context)),
        META: iter([json.dumps({"self_exclude": True, **counts}, indent=1)]),
    }
    for name, rows in lines.items():
        with (folder / name).open("x", encoding="utf-8") as out:
            out.writelines(f"{row}\n" for row in rows)


def read(folder: Path, limit: int | None = None) -> EvalDataset:
    """The set in `folder`; `limit` keeps only the first questions, never fewer documents.

    Raises:
        ConfigurationError: it is no set; the message says which file and line.
    """
    _check_files(folder)
    rows = list(_rows(folder / CORPUS, ("_id",)))
    documents = list(map(_document, rows))
    asked = {str(row["_id"]): row for row in _rows(folder / QUERIES, ("_id", "text"))}
    queries = {query: str(row["text"]) for query, row in islice(asked.items(), limit)}
    excluded = _self_exclude(folder / META)
    known = frozenset(d.external_id for d in documents)
    context = _JudgementFile(folder / CONTEXT, known).context(asked) if (folder / CONTEXT).is_file() else {}
    made = EvalDataset(
        name=folder.resolve().name,
        documents=documents,
        queries=queries,
        relevant=_JudgementFile(folder / JUDGEMENTS, known).relevant(queries, excluded),
        self_exclude=excluded,
        projects={str(row["_id"]): row["project"] for row in rows if row.get("project")},
        requests={query: _request(asked[query], excluded) for query in queries},
        context={query: context[query] for query in queries if query in context},
    )
    for what, part in (("document", documents), ("question with a relevant document", made.relevant)):
        if not part:
            raise ConfigurationError(f"the set in {folder} has no {what}", fix=_FORM)
    return made


def _check_files(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder", fix=_FORM)
    absent = [name for name in (CORPUS, QUERIES, JUDGEMENTS) if not (folder / name).is_file()]
    if absent:
        raise ConfigurationError(f"{folder} has no {' and no '.join(absent)}", fix=_FORM)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a text file, with or without the mark that Windows puts first."""
    with path.open("rb") as handle:
        for number, line in enumerate(handle, 1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                raise ConfigurationError(
                    f"{path}, line {number} is no text in UTF-8", fix="save the file in UTF-8"
                ) from None


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _is_source_type(value: Any) -> bool:
    try:
        return bool(SourceType.parse(value))
    except (ValueError, AttributeError):
        return False


_FACTS = ("status", "resolution", "duplicate_of", "decision_status")
"""Metadata that a document may have beside its `metadata`."""
_TEXT = (lambda value: isinstance(value, str), "a text")
_TIME = (lambda value: isinstance(value, str) and parse_time(value), "a time such as 2026-01-31T08:00:00Z")
_FIELDS: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "kind": (lambda value: value in list(Kind), f"one of {', '.join(Kind)}"),
    "source_type": (_is_source_type, f"one of {', '.join(SourceType)}"),
    "tags": (_are_texts, "a list of texts"),
    "metadata": (lambda value: isinstance(value, dict), "an object"),
    **dict.fromkeys(("created_at", "updated_at"), _TIME),
    "acceptance_criteria": (
        lambda value: isinstance(value, str) or _are_texts(value),
        "a text or a list of texts",
    ),
    **dict.fromkeys(("url", "project", "description", *_FACTS), _TEXT),
}
"""What a document or a question may hold besides its text; null stands for nothing."""


def _document(row: Json) -> Document:
    facts = {key: row[key] for key in _FACTS if row.get(key)}
    return Document(
        external_id=str(row["_id"]),
        title=str(row.get("title") or ""),
        text=str(row.get("text") or ""),
        source_type=SourceType.parse(row.get("source_type") or SourceType.TEXT),
        kind=Kind(row.get("kind") or Kind.REFERENCE),
        url=row.get("url") or "",
        tags=tuple(row.get("tags") or ()),
        metadata={**facts, **(row.get("metadata") or {})},
        created_at=parse_time(row.get("created_at")),
        updated_at=parse_time(row.get("updated_at")),
    )


def _request(row: Json, excluded: bool) -> Json:
    """What the enrich worker is sent for a question; the id is what keeps an item from finding itself."""
    whole = str(row["text"]).strip()
    title = str(row.get("title") or whole.partition("\n")[0]).strip()
    pbi = {
        **({"id": str(row["_id"])} if excluded else {}),
        "title": title,
        "description": row.get("description") or whole.removeprefix(title).strip(),
        "acceptance_criteria": row.get("acceptance_criteria") or [],
    }
    # One that names no project is asked of all documents.
    return {"pbi": pbi, **({"project": row["project"]} if row.get("project") else {"projects": ["*"]})}


def _rows(path: Path, keys: Sequence[str]) -> Iterator[Json]:
    """The objects of a file, a line each; every `_id` once, and a text that is asked for is not blank."""
    seen: dict[str, int] = {}
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        row = _object(line)
        if row is None or any(key not in row for key in keys):
            raise ConfigurationError(
                f"{path}, line {number} is no JSON object with {' and '.join(keys)}", fix=_FORM
            )
        if "text" in keys and not str(row["text"]).strip():
            raise ConfigurationError(f"{path}, line {number} has an empty text", fix="take the line out")
        _check_fields(row, f"{path}, line {number}")
        first = seen.setdefault(str(row["_id"]), number)
        if first != number:
            raise ConfigurationError(
                f"{path}, line {number} has the _id {str(row['_id'])!r} of line {first}",
                fix="give each line an _id of its own",
            )
        yield row


def _check_fields(row: Json, place: str) -> None:
    """Refuse what is given beside the text and is not as `_FIELDS` wants it."""
    for key, (fits, wanted) in _FIELDS.items():
        if row.get(key) is not None and not fits(row[key]):
            raise ConfigurationError(f"{place}: {key} is not {wanted}", fix="correct it, or take it out")


def _object(line: str) -> Json | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


@dataclass(frozen=True)
class _JudgementFile:
    path: Path
    documents: frozenset[str]
    """External ids of the set."""

    def relevant(self, queries: Mapping[str, str], excluded: bool) -> dict[str, dict[str, float]]:
        """Question -> documents that answer it, in the order of the questions."""
        found: dict[str, dict[str, float]] = {}
        for number, row in self._rows():
            # A set without the header line must not lose the answer that stands in its place.
            if number == 1 and row[0] not in queries:
                continue
            score = _score(row)
            if score is None:
                raise self._wrong(number, "is no question, document and number with tabs between them", _FORM)
            if row[0] in queries and score > 0 and not (excluded and row[0] == row[1]):
                self._check(number, row[1])
                found.setdefault(row[0], {})[row[1]] = score
        return {query: found[query] for query in queries if query in found}

    def context(self, queries: Container[str]) -> dict[str, dict[tuple[str, str], int]]:
        """Question -> (section, ref) -> grade; a line without a grade waits for somebody to judge it."""
        found: dict[str, dict[tuple[str, str], int]] = {}
        for number, item, section, ref, grade in self._graded():
            if item not in queries:
                raise self._wrong(
                    number, f"names no question of {QUERIES}", "correct it, or take the line out"
                )
            if section not in SECTIONS or not ref or grade not in GRADES:
                fix = f"known sections are {', '.join(SECTIONS)}; grades are 0 noise, 1 related, 2 useful"
                raise self._wrong(number, f"is not {', '.join(CONTEXT_HEADER)} with tabs between them", fix)
            if section in DOCUMENT_SECTIONS and GRADES[grade]:
                self._check(number, ref)
            if found.setdefault(item, {}).setdefault((section, flat(ref)), GRADES[grade]) != GRADES[grade]:
                raise self._wrong(number, "has another grade than a line before it", "leave one of them")
        return found

    def _graded(self) -> Iterator[tuple[int, str, str, str, str]]:
        """Number, item, section, ref and grade of the lines that are no header and do not wait for a grade."""
        for number, row in self._rows():
            item, section, ref, grade = (*(cell.strip() for cell in row), "", "", "", "")[:4]
            if (number == 1 and item == CONTEXT_HEADER[0]) or (ref and not grade):
                continue
            yield number, item, section, ref, grade

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Number and cells of the lines that are not empty."""
        rows = csv.reader(_lines(self.path), delimiter="\t", quoting=csv.QUOTE_NONE)
        number = 0
        try:
            for number, row in enumerate(rows, 1):
                if row:
                    yield number, [_ESCAPED.sub(lambda m: _PLAIN[m[0]], cell) for cell in row]
        except csv.Error:
            raise self._wrong(
                number + 1, "is no row of a table", "end lines as Unix or Windows does, and cut long cells"
            ) from None

    def _check(self, number: int, document: str) -> None:
        """A document that is not there can never be found: every figure would be too low."""
        if document not in self.documents:
            raise self._wrong(
                number,
                f"names the document {document!r}, which {CORPUS} does not hold",
                "add the document, or take the line out",
            )

    def _wrong(self, number: int, what: str, fix: str) -> ConfigurationError:
        return ConfigurationError(f"{self.path}, line {number} {what}", fix=fix)


def _score(row: Sequence[str]) -> float | None:
    """How relevant a judgement calls its document; None if it is none."""
    if len(row) < 2:  # noqa: PLR2004 - question and document
        return None
    try:
        score = float(row[2]) if len(row) > 2 else 1.0  # noqa: PLR2004 - the third column
    except ValueError:
        return None
    return score if math.isfinite(score) else None


def _self_exclude(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        return bool(json.loads(path.read_text(encoding="utf-8-sig")).get("self_exclude"))
    except (ValueError, AttributeError, RecursionError):
        raise ConfigurationError(f"{path} is no JSON object", fix=_FORM) from None
