"""Files, pages and work items as teams have them: `tests/cases` says of each what must come out.

A case is a file and a line of its folder's `cases.yaml`; CONTRIBUTING tells which keys a line has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import pytest
import yaml

from connectors import open_source
from connectors.files.options import ENDINGS
from pipeline.database.engine import Database
from pipeline.documents import READING_NOTE, Document, Kind, Page
from pipeline.search import Retriever, SearchRequest
from tests.connectors.azure_devops import world as boards
from tests.connectors.confluence import world as wiki
from tests.connectors.folders import file_options
from tests.connectors.rest.recorded import recorded_source
from tests.fakes.azure_devops import FakeAzureDevOps
from tests.pipeline.source_ledger import SourceLedger

FOLDER = Path(__file__).parents[1] / "cases"
SERVICES = ("confluence", "azure_devops")
KEYS = frozenset(
    "at seen options title kind status superseded_by created updated tags level acl metadata holds lacks found_by note"  # noqa: SIM905 (a list of words)
    " refused skipped".split()
)


@dataclass(frozen=True, kw_only=True)
class Case:
    folder: str
    name: str
    """The file, with `#id` behind it for one of several documents."""
    expected: Mapping[str, Any]

    @property
    def file(self) -> Path:
        return FOLDER / self.folder / self.name.partition("#")[0]

    @property
    def id(self) -> str:
        return f"{self.folder}/{self.name}"


def listed_cases() -> list[Case]:
    cases = []
    for table in sorted(FOLDER.glob("*/cases.yaml")):
        entries = yaml.load(table.read_text(encoding="utf-8"), yaml.CSafeLoader)
        cases += [
            Case(folder=table.parent.name, name=name, expected=line or {}) for name, line in entries.items()
        ]
    return cases


CASES = listed_cases()


@dataclass(frozen=True, kw_only=True)
class Outcome:
    documents: Mapping[str, Document]
    failed: Mapping[str, str]
    skipped: Mapping[str, str]

    @classmethod
    def of(cls, pages: Iterator[Page]) -> Outcome:
        read = list(pages)
        return cls(
            documents={d.external_id: d for page in read for d in page.documents},
            failed={p.external_id: p.reason for page in read for p in page.failed},
            skipped={p.external_id: p.reason for page in read for p in page.skipped},
        )

    def document(self, name: str) -> Document:
        if "#" in name:
            return self.documents[name.partition("#")[2]]
        assert len(self.documents) == 1, (self.failed, self.skipped, list(self.documents))
        return next(iter(self.documents.values()))


@cache
def answers_read(file: Path) -> Outcome:
    with recorded_source(file) as (source, _):
        return Outcome.of(source.pages(None))


def read_file(case: Case) -> Outcome:
    """The file below a folder of its own, by the type of source that `larder ingest` takes for its ending."""
    expected = case.expected
    options = {"name": "case", **expected.get("options", {})}
    known = next((kind for kind, ends in ENDINGS.items() if case.file.name.lower().endswith(ends)), "text")
    options.setdefault("type", case.folder if case.folder == "pbi_json" else known)
    with TemporaryDirectory() as root:
        path = Path(root, expected.get("at", case.file.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(case.file.read_bytes())
        return Outcome.of(open_source(file_options(root=Path(root), paths=("**/*",), **options)).pages(None))


@cache
def served(folder: str) -> Mapping[str, Outcome]:
    """By file, what became of each page or work item of a service that has them all."""
    names = sorted({case.file for case in CASES if case.folder == folder})
    outcome, ids = (pages_read if folder == "confluence" else items_read)(names)
    return {
        name: Outcome(
            documents={i: d for i, d in outcome.documents.items() if i == item_id},
            failed={i: reason for i, reason in outcome.failed.items() if i == item_id},
            skipped={i: reason for i, reason in outcome.skipped.items() if i == item_id},
        )
        for name, item_id in ids.items()
    }


def pages_read(files: list[Path]) -> tuple[Outcome, dict[str, str]]:
    with wiki.confluence("cloud") as fake:
        fake.add_space("ENG")
        ids = {}
        for file in files:
            given = json.loads(file.read_text("utf-8")) if file.suffix == ".json" else {}
            body = given.get("body", file.read_text("utf-8"))
            labels = given.get("labels", ())
            ids[file.name] = fake.add_page("ENG", given.get("title", file.stem), body, labels=labels)
        fake.advance(minutes=30)
        return Outcome.of(wiki.source_for(fake).pages(None)), ids


def items_read(files: list[Path]) -> tuple[Outcome, dict[str, str]]:
    with FakeAzureDevOps(pat=boards.PAT) as fake:
        fake.add_project("Web")
        ids = {}
        for file in files:
            given = json.loads(file.read_text("utf-8"))
            fields = dict(given["fields"])
            kind = fields.pop("System.WorkItemType", "User Story")
            marked = [name for name, form in given.get("formats", {}).items() if form.lower() == "markdown"]
            item = fake.add_item(
                "Web", kind, fields.pop("System.Title", file.stem), markdown=marked, **fields
            )
            ids[file.name] = str(item)
        return Outcome.of(boards.source_for(fake).pages(None)), ids


@cache
def outcome_of(folder: str, name: str) -> Outcome:
    case = next(case for case in CASES if (case.folder, case.name) == (folder, name))
    if folder == "rest":
        return answers_read(case.file)
    return served(folder)[case.file.name] if folder in SERVICES else read_file(case)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_teams_have_is_read_as_they_meant_it(case: Case) -> None:
    expected, outcome = dict(case.expected), outcome_of(case.folder, case.name)
    assert KEYS.issuperset(expected), "a key that no case has"
    for key, problems in (("refused", outcome.failed), ("skipped", outcome.skipped)):
        if key in expected:
            assert any(str(expected[key]) in reason for reason in problems.values()), problems
    if expected.keys() & {"refused", "skipped"}:
        assert not outcome.documents or "#" in case.name
        return
    document = outcome.document(case.name)
    text = f"{document.title}\n{document.text}"
    assert [part for part in expected.get("holds", ()) if str(part) not in text] == [], text
    assert [part for part in expected.get("lacks", ()) if str(part) in text] == [], text
    shown = shown_facts(document)
    told = {key: expected[key] for key in expected.keys() & shown.keys()}
    told |= {key: str(day) for key, day in told.items() if key in ("created", "updated")}
    assert {key: shown[key] for key in told} == told
    for key, value in expected.get("metadata", {}).items():
        assert document.metadata.get(key) == value, document.metadata
    note = document.metadata.get(READING_NOTE, "")
    assert str(expected["note"]) in note if "note" in expected else not note, note


def shown_facts(document: Document) -> dict[str, Any]:
    """What a line may say of a document; days of its times."""
    metadata = document.metadata
    status = metadata.get("decision_status") if document.kind is Kind.DECISION else metadata.get("status")
    return {
        "title": document.title,
        "kind": str(document.kind),
        "status": status or "",
        "superseded_by": metadata.get("superseded_by", ""),
        "created": document.created_at and document.created_at.strftime("%Y-%m-%d"),
        "updated": document.updated_at and document.updated_at.strftime("%Y-%m-%d"),
        "tags": list(document.tags),
        "level": document.security_level,
        "acl": metadata.get("acl"),
    }


@pytest.fixture(scope="module")
def notes(shared_database: Database) -> SourceLedger:
    """A search index that holds the documents of all cases."""
    notes = SourceLedger(shared_database, uuid4(), uuid4())
    documents = []
    for case in CASES:
        if not case.expected.keys() & {"refused", "skipped"}:
            document = outcome_of(case.folder, case.name).document(case.name)
            documents.append(replace(document, external_id=case.id))
    notes.admit(*documents)
    notes.index()
    return notes


@pytest.mark.parametrize(
    ("case", "words"),
    [(case, words) for case in CASES for words in case.expected.get("found_by", ())],
    ids=lambda value: value.id if isinstance(value, Case) else None,
)
def test_its_words_find_it(notes: SourceLedger, case: Case, words: str) -> None:
    retriever = Retriever(notes.database, notes.tenant, lambda _index: notes.embedder)
    results = retriever.search(SearchRequest(text=str(words), mode="keyword", k=10))

    assert notes.id(case.id) in [hit.document.id for hit in results.hits], [
        hit.document.title for hit in results.hits
    ]


def test_there_are_as_many_cases_as_files() -> None:
    files = {path for path in FOLDER.glob("*/*") if path.name != "cases.yaml"}

    assert {case.file for case in CASES} == files
    assert len(CASES) >= 250
    assert sum(bool(case.expected.get("seen")) for case in CASES) >= 120
