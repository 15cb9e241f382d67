"""Plain text files as documents."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectors import open_source
from connectors.files.markdown import first_line_title
from pipeline.documents import Document, Kind, Page, SourceType
from tests.connectors.folders import file_options


def source(root: Path, source_type: SourceType | None = None) -> list[Page]:
    options = file_options(
        name="notes",
        type="text",
        root=root,
        paths=("notes/**/*.txt",),
        metadata={"category": "notes"},
        source_type=source_type,
    )
    return list(open_source(options).pages(None))


def only(root: Path, text: str) -> Document:
    (root / "notes").mkdir(exist_ok=True)
    (root / "notes/standup log.txt").write_text(text)
    ((document,),) = [page.documents for page in source(root)]
    return document


@pytest.mark.req("002-003", "002-004", "001-065")
def test_a_text_file_is_one_document(tmp_path: Path) -> None:
    text = "Standup of Monday\n\nWe agreed on X.\n---\ntitle: not front matter\n---\n"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/standup log.txt").write_text(text)
    os.utime(tmp_path / "notes/standup log.txt", (1_700_000_000, 1_700_000_000))

    ((document,),) = [page.documents for page in source(tmp_path)]

    assert document.external_id == "notes/standup log.txt"
    assert document.title == "Standup of Monday"
    assert document.text == text
    assert document.source_type is SourceType.TEXT
    assert document.kind is Kind.REFERENCE
    assert document.metadata == {"category": "notes", "source_path": "notes/standup log.txt"}
    assert document.tags == ()
    assert document.url.endswith("/notes/standup%20log.txt")
    assert document.created_at == document.updated_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("One line", "One line"),
        ("One line\n", "One line"),
        ("\n\n  One   line \n\nmore", "One line"),
        ("One line\n   \nmore", "One line"),
        ("A paragraph\nthat goes on", ""),
        ("x" * 120, "x" * 120),
        ("x" * 121, ""),
    ],
)
def test_a_first_line_that_stands_alone_is_the_title(text: str, title: str) -> None:
    assert first_line_title(text) == title


def test_without_such_a_line_the_file_name_is_the_title(tmp_path: Path) -> None:
    assert only(tmp_path, "A paragraph\nthat goes on").title == "standup log"


def test_front_matter_is_text_here(tmp_path: Path) -> None:
    assert only(tmp_path, "---\n[broken\n---\n").text == "---\n[broken\n---\n"


def test_a_decision_is_known_by_its_path(tmp_path: Path) -> None:
    (tmp_path / "notes/decisions").mkdir(parents=True)
    (tmp_path / "notes/decisions/7.txt").write_text("Use Valkey\n\nStatus: accepted\nDate: 2024-02-03\n")

    ((document,),) = [page.documents for page in source(tmp_path)]

    assert document.kind is Kind.DECISION
    assert document.metadata["decision_status"] == "accepted"
    assert document.metadata["decided_at"] == "2024-02-03"


def test_the_source_type_may_be_set(tmp_path: Path) -> None:
    only(tmp_path, "text")

    ((document,),) = [page.documents for page in source(tmp_path, SourceType.DOCUMENTATION)]

    assert document.source_type is SourceType.DOCUMENTATION


def test_bad_files_are_named(tmp_path: Path) -> None:
    only(tmp_path, "good")
    (tmp_path / "notes/binary.txt").write_bytes(b"\x00\x01")
    (tmp_path / "notes/empty.txt").touch()
    (tmp_path / "notes/other.md").write_text("not matched")

    (page,) = source(tmp_path)

    assert [d.external_id for d in page.documents] == ["notes/standup log.txt"]
    assert [p.external_id for p in page.failed] == ["notes/binary.txt"]
    assert [p.external_id for p in page.skipped] == ["notes/empty.txt"]


@pytest.mark.parametrize("kind", ["text", "markdown"])
def test_a_file_of_backlog_items_is_no_text(tmp_path: Path, kind: str) -> None:
    """As one text it would be like each of its items, and Step 4 would tell people to link it."""
    item = '{"id": "PBI-1", "title": "Kestrel", "acceptance_criteria": ["a"]}'
    (tmp_path / "step-3.JSON").write_text(f'{{"step": 3, "runId": "r", "scored_pbis": [{item}]}}')
    (tmp_path / "items.json").write_text(f'{{"pbis": [{item}]}}')
    (tmp_path / "other.json").write_text('{"text": "A kestrel."}')
    (tmp_path / "broken.json").write_text('{"pbis": [')
    options = file_options(name="notes", type=kind, root=tmp_path, paths=("*.json", "*.JSON"))
    (page,) = open_source(options).pages(None)
    assert [one.external_id for one in page.documents] == ["broken.json", "other.json"]
    assert [one.external_id for one in page.failed] == ["items.json", "step-3.JSON"]
    for one in page.failed:
        assert "holds backlog items, not text" in one.reason
        assert "source of type pbi_json" in one.reason
