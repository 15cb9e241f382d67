"""JSON files of any shape as documents."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from connectors import open_source
from connectors.documents.values import json_text
from pipeline.documents import Document, Kind, Page, Problem, SourceType
from tests.connectors.folders import file_options

PBI = {"id": "PBI-1", "title": "A story", "acceptance_criteria": ["it works"]}


def source(root: Path, **changes: Any) -> Any:
    options: dict[str, Any] = {"name": "any", "type": "json", "root": root, "paths": ("**/*.json",)}
    return open_source(file_options(**(options | changes)))


def write(root: Path, name: str, data: Any) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(data if isinstance(data, str) else json.dumps(data))


def read(root: Path, **changes: Any) -> tuple[dict[str, Document], dict[str, Problem], dict[str, Problem]]:
    pages: list[Page] = list(source(root, **changes).pages(None))
    return (
        {d.external_id: d for page in pages for d in page.documents},
        {p.external_id: p for page in pages for p in page.failed},
        {p.external_id: p for page in pages for p in page.skipped},
    )


class TestDocument:
    @pytest.mark.req("002-003", "002-004")
    def test_an_object_is_one_document(self, tmp_path: Path) -> None:
        data = {
            "title": "Service catalogue",
            "category": "operations",
            "tags": ["ops", 7],
            "createdAt": "2024-01-02T03:04:05Z",
            "owner": "Ada",
            "limits": {"requests": 100, "burst": None, "open": True},
        }
        write(tmp_path, "docs/catalogue.json", data)

        found = read(tmp_path, metadata={"category": "reference", "team": "core"})[0]["docs/catalogue.json"]

        assert found.title == "Service catalogue"
        assert found.source_type is SourceType.DOCUMENTATION
        assert found.kind is Kind.REFERENCE
        assert found.tags == ("ops", "7")
        assert found.created_at == datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert found.metadata == {
            "category": "operations",
            "team": "core",
            "source_path": "docs/catalogue.json",
        }
        assert "owner: Ada" in found.text
        assert "## limits\n\nrequests: 100\nopen: true" in found.text

    def test_without_a_title_the_file_name_is_one(self, tmp_path: Path) -> None:
        write(tmp_path, "a.json", {"name": "By name"})
        write(tmp_path, "b.json", {"title": ["no", "text"], "x": 1})
        write(tmp_path, "c.json", [1, 2])

        documents, _, _ = read(tmp_path)

        assert [document.title for document in documents.values()] == ["By name", "b", "c"]

    def test_a_decision_is_known(self, tmp_path: Path) -> None:
        write(tmp_path, "x.json", {"type": "adr", "title": "Use Valkey", "status": "superseded by ADR-7"})

        found = read(tmp_path)[0]["x.json"]

        assert found.kind is Kind.DECISION
        assert found.metadata["decision_status"] == "superseded"
        assert found.metadata["superseded_by"] == "ADR-7"

    @pytest.mark.parametrize("data", [{}, [], None, "", {"a": None, "b": [], "c": {"d": ""}}])
    def test_a_file_that_says_nothing_is_left_out(self, tmp_path: Path, data: Any) -> None:
        write(tmp_path, "x.json", data)

        documents, failed, skipped = read(tmp_path)

        assert not documents
        assert not failed
        assert "no text" in skipped["x.json"].reason


class TestText:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            ("words", "words"),
            (42, "42"),
            (True, "true"),
            ([1, "two", None], "- 1\n- two"),
            ({"a": 1, "b": "x"}, "a: 1\nb: x"),
            ({"list": ["x", "y"]}, "## list\n\n- x\n- y"),
            ({"a": {"b": {"c": 1}}}, "## a\n\n\n### b\n\nc: 1"),
            ([{"a": 1, "b": 2}, {"a": 3}], "- a: 1\n  b: 2\n- a: 3"),
            ({"b": {"c": 1}, "a": 2}, "a: 2\n\n## b\n\nc: 1"),
            ([{"a": [1, 2]}], "- a:\n    - 1\n    - 2"),
            ({"a\nb": "x"}, "a b: x"),
        ],
    )
    def test_a_value_reads_as(self, value: Any, text: str) -> None:
        assert json_text(value) == text

    def test_every_scalar_is_in_the_text_however_deep(self) -> None:
        value: Any = "bottom"
        for n in range(60):
            value = {f"k{n}": value, f"s{n}": f"side{n}"} if n % 3 else [value, f"side{n}"]

        text = json_text(value)

        assert all(word in text for word in ["bottom", *(f"side{n}" for n in range(60))])
        assert max(len(line) - len(line.lstrip()) for line in text.split("\n")) < 60

    def test_the_text_is_storable(self) -> None:
        deep: Any = "nul\0 half \ud83d"
        for _ in range(40):
            deep = [deep]

        for value in ("nul\0 half \ud83d", {"nul\0 \ud83d": 1}, deep):
            assert "\0" not in json_text(value)
            json_text(value).encode()


class TestPbis:
    @pytest.mark.req("002-003", "001-066")
    def test_files_of_pbis_give_one_document_each(self, tmp_path: Path) -> None:
        write(tmp_path, "run-2025-01-10/final-output.json", {"pbis": [PBI, {**PBI, "id": "PBI-2"}]})
        write(tmp_path, "run-2025-01-11/final-output.json", {"pbis": [{**PBI, "title": "Newer"}]})
        write(tmp_path, "notes.json", {"title": "A note", "text": "x"})

        documents, failed, skipped = read(tmp_path, source_type=SourceType.TEXT)

        assert set(documents) == {"PBI-1", "PBI-2", "notes.json"}
        assert documents["PBI-1"].title == "Newer"
        assert documents["PBI-1"].source_type is SourceType.PBI
        assert documents["PBI-1"].kind is Kind.WORK
        assert documents["notes.json"].source_type is SourceType.TEXT
        assert not failed
        assert not skipped
        listing = source(tmp_path).ids()
        assert listing.ids == set(documents)
        assert listing.complete

    def test_a_list_of_other_things_is_no_list_of_pbis(self, tmp_path: Path) -> None:
        write(tmp_path, "people.json", [{"title": "Dr", "name": "Ada"}])

        assert list(read(tmp_path)[0]) == ["people.json"]


class TestBadFiles:
    def test_broken_files_are_named_and_kept(self, tmp_path: Path) -> None:
        write(tmp_path, "a.json", {"x": 1})
        write(tmp_path, "broken.json", '{"x": ')
        write(tmp_path, "deep.json", "[" * 100_000)
        write(tmp_path, "empty.json", "")
        write(tmp_path, "large.json", json.dumps("x" * 2000))
        (tmp_path / "binary.json").write_bytes(b"\0\0")

        documents, failed, skipped = read(tmp_path, max_bytes=150_000)
        listing = source(tmp_path, max_bytes=150_000).ids()

        assert list(documents) == ["a.json", "large.json"]
        assert set(failed) == {"broken.json", "deep.json", "binary.json"}
        assert "line 1, column 7" in failed["broken.json"].reason
        assert set(skipped) == {"empty.json"}
        assert listing.ids == {"a.json", "large.json", "broken.json", "deep.json", "binary.json"}
        assert not listing.complete

    def test_what_is_there_and_no_file_keeps_its_id(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe.json")

        assert set(read(tmp_path)[1]) == {"pipe.json"}
        assert source(tmp_path).ids().ids == {"pipe.json"}

    def test_the_limit_holds(self, tmp_path: Path) -> None:
        write(tmp_path, "large.json", json.dumps("x" * 2000))

        assert "limit is 1000" in read(tmp_path, max_bytes=1000)[2]["large.json"].reason

    def test_a_file_broken_for_long_lets_pbis_be_deleted(self, tmp_path: Path) -> None:
        write(tmp_path, "broken.json", '{"x": ')
        os.utime(tmp_path / "broken.json", (time.time() - 7200, time.time() - 7200))

        listing = source(tmp_path).ids()

        assert listing.complete
        assert listing.ids == {"broken.json"}

    def test_json_as_deep_as_the_parser_allows_is_shown_or_refused(self, tmp_path: Path) -> None:
        for depth in (100, 400, 800, 950):
            write(tmp_path, f"{depth}.json", "[" * depth + "7" + "]" * depth)

        documents, failed, _ = read(tmp_path)

        assert set(documents) | set(failed) == {"100.json", "400.json", "800.json", "950.json"}
        assert "100.json" in documents
        assert all("7" in document.text for document in documents.values())
