"""Sets of judged questions as people save them: other encodings, lines twice, names that fit nothing."""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.documents import Document, Kind, SourceType
from pipeline.errors import ConfigurationError
from workers.app.evaluation.dataset import read

FILES = {
    "corpus.jsonl": '{"_id": "d1", "text": "kestrel"}\n{"_id": "d2", "text": "otter"}\n',
    "queries.jsonl": '{"_id": "q1", "text": "bird"}\n{"_id": "q2", "text": "swims"}\n',
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
    "meta.json": '{"self_exclude": true}',
}
RELEVANT = {"q1": {"d1": 1}, "q2": {"d2": 1}}


def write(folder: Path, **changed: bytes) -> Path:
    """The set; `corpus=b"..."` is another content of corpus.jsonl."""
    for name, content in FILES.items():
        (folder / name).write_bytes(changed.get(name.partition(".")[0], content.encode()))
    return folder


def test_what_windows_saves_is_read_as_it_is_meant(tmp_path: Path) -> None:
    saved = {n.partition(".")[0]: c.replace("\n", "\r\n").encode("utf-8-sig") for n, c in FILES.items()}
    judged = read(write(tmp_path, **saved))
    assert judged.relevant == RELEVANT
    assert [d.external_id for d in judged.documents] == ["d1", "d2"]
    assert judged.self_exclude
    # The mark must not end in the first column either, where no header line takes it.
    headless = codecs.BOM_UTF8 + b"q1\td1\t1\r\nq2\td2\t1\r\n"
    assert read(write(tmp_path, qrels=headless)).relevant == RELEVANT


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("corpus", FILES["corpus.jsonl"].encode() + "Köln".encode("latin-1"), "line 3 is no text in UTF-8"),
        ("queries", FILES["queries.jsonl"].encode("utf-16"), "line 1 is no text in UTF-8"),
        ("qrels", "q1\tdö\t1".encode("latin-1"), "line 1 is no text in UTF-8"),
        ("corpus", FILES["corpus.jsonl"].encode() * 2, "line 3: a line before it has the _id 'd1'"),
        ("queries", FILES["queries.jsonl"].encode() * 2, "line 3: a line before it has the _id 'q1'"),
        ("queries", b'{"_id": "q1", "text": " "}', "line 1: text: String should have at least 1 character"),
        ("qrels", b"h\th\th\nq1\td3\t1", "line 2 names the document 'd3', which corpus.jsonl does not hold"),
        ("corpus", b"[" * 100_000, "line 1 is no JSON object"),
        ("meta", b"[" * 100_000, "is no JSON object"),
        ("qrels", b"h\th\th\nq1\td1\t1\rq2\td2\t1\n", "line 2 is no question, document and whole"),
        ("qrels", b"q1\td1\tinf", "line 1 is no question, document and whole number"),
    ],
)
def test_what_would_spoil_the_figures_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(write(tmp_path, **{name: content}))
    assert said in caught.value.message
    assert str(tmp_path / name) in caught.value.message
    assert caught.value.fix


def test_a_document_that_is_called_wrong_need_not_be_there(tmp_path: Path) -> None:
    judged = read(write(tmp_path, qrels=b"q1\td1\t1\nq1\tgone\t0\nq2\td2\t1\n"))
    assert judged.relevant == RELEVANT


def test_a_folder_that_is_not_there_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere is not a folder"):
        read(tmp_path / "nowhere")


class TestFacts:
    """What a document and a question may hold besides their texts."""

    def test_they_are_those_of_a_connector(self, tmp_path: Path) -> None:
        row = {
            "_id": "d1",
            "title": "Kestrels",
            "text": "kestrel",
            "kind": "work",
            "source_type": "azure",
            "url": "https://boards.example/1",
            "tags": ["birds"],
            "metadata": {"story_points": 5, "status": "Closed"},
            "status": "Open",
            "resolution": "Duplicate",
            "duplicate_of": "d2",
            "decision_status": None,
            "created_at": "2025-01-01",
            "updated_at": "2025-02-01T10:00:00+02:00",
            "project": "aviary",
        }
        corpus = f"{json.dumps(row)}\n{FILES['corpus.jsonl'].splitlines()[1]}\n".encode()
        first, second = read(write(tmp_path, corpus=corpus)).documents
        assert first == Document(
            external_id="d1",
            title="Kestrels",
            text="kestrel",
            source_type=SourceType.AZURE_DEVOPS,
            kind=Kind.WORK,
            url="https://boards.example/1",
            tags=("birds",),
            metadata={
                "status": "Closed",
                "resolution": "Duplicate",
                "duplicate_of": "d2",
                "story_points": 5,
            },
            created_at=datetime(2025, 1, 1, tzinfo=UTC),
            updated_at=datetime(2025, 2, 1, 8, tzinfo=UTC),
        )
        assert second == Document(
            external_id="d2", title="", text="otter", source_type=SourceType.TEXT, kind=Kind.REFERENCE
        )
        assert read(tmp_path).projects == {"d1": "aviary"}

    @pytest.mark.parametrize(
        ("file", "key", "value"),
        [
            ("corpus", "kind", "secret"),
            ("corpus", "kind", ["secret"]),
            ("corpus", "source_type", "secret"),
            ("corpus", "source_type", 3),
            ("corpus", "url", {"secret": 1}),
            ("corpus", "tags", "secret"),
            ("corpus", "tags", [1]),
            ("corpus", "metadata", ["secret"]),
            ("corpus", "created_at", "secret"),
            ("corpus", "updated_at", [17]),
            ("corpus", "project", 1),
            ("corpus", "duplicate_of", 12),
            ("queries", "description", 1),
            ("queries", "acceptance_criteria", {"secret": 1}),
        ],
    )
    def test_a_wrong_type_is_named_by_its_line_and_not_quoted(
        self, tmp_path: Path, file: str, key: str, value: Any
    ) -> None:
        name = f"{file}.jsonl"
        rows = [json.loads(line) for line in FILES[name].splitlines()]
        rows[1][key] = value
        with pytest.raises(ConfigurationError, match=rf"{name}, line 2: {key}: Input should be ") as caught:
            read(write(tmp_path, **{file: "\n".join(map(json.dumps, rows)).encode()}))
        assert "secret" not in str(caught.value)

    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ({"text": " One\nTwo\nThree"}, ("One", "Two\nThree", [])),
            ({"text": "One\nTwo", "title": "One"}, ("One", "Two", [])),
            ({"text": "All of it", "title": "T", "description": "D"}, ("T", "D", [])),
            ({"text": "One", "acceptance_criteria": ["It flies"]}, ("One", "", ["It flies"])),
        ],
    )
    def test_a_question_is_an_item_with_title_and_description(
        self, tmp_path: Path, row: dict[str, Any], expected: tuple[Any, ...]
    ) -> None:
        asked = json.dumps({"_id": "q1", "project": "aviary", **row}).encode()
        found = read(write(tmp_path, queries=asked)).requests["q1"]
        pbi = found["pbi"]
        assert (pbi["title"], pbi["description"], pbi["acceptance_criteria"]) == expected
        assert (pbi["id"], found["project"]) == ("q1", "aviary")

    def test_only_a_question_that_is_a_document_has_its_id(self, tmp_path: Path) -> None:
        assert "id" not in read(write(tmp_path, meta=b"{}")).requests["q1"]["pbi"]


class TestContextJudgements:
    HEADER = "item\tsection\tref\tgrade\tshown\n"

    def read(self, folder: Path, lines: str) -> Mapping[str, Mapping[tuple[str, str], int]]:
        (write(folder) / "context_judgements.tsv").write_text(self.HEADER + lines)
        return read(folder).context

    def test_each_is_of_an_item_a_section_and_a_document_or_sentence(self, tmp_path: Path) -> None:
        lines = "q1\tsimilar_work\td1\t2\tKestrels\nq1\tlearnings\tTowers  are high.\t1\nq2\ttechnical_docs\tgone\t0\n"
        assert self.read(tmp_path, lines) == {
            "q1": {("similar_work", "d1"): 2, ("learnings", "Towers are high."): 1},
            "q2": {("technical_docs", "gone"): 0},
        }
        assert list(read(tmp_path, limit=1).context) == ["q1"]

    def test_a_line_that_waits_for_its_grade_is_none(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "q1\tsimilar_work\td1\t\tKestrels\n\nq2\tsuggestions\tDo it\n") == {}

    def test_without_the_file_there_are_none(self, tmp_path: Path) -> None:
        assert read(write(tmp_path)).context == {}

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("q9\tsimilar_work\td1\t2", "names no question of queries.jsonl"),
            ("q1\tsimilar\td1\t2", "is not item, section, ref, grade"),
            ("q1\tsimilar_work\td1\t3", "is not item, section, ref, grade"),
            ("q1\tsimilar_work\td1\t1.5", "is not item, section, ref, grade"),
            ("q1\tsimilar_work", "is not item, section, ref, grade"),
            ("q1\tsimilar_work\tgone\t1", "names the document 'gone'"),
            ("q1\tsimilar_work\td1\t2\nq1\tsimilar_work\td1\t1", "has another grade than a line before it"),
        ],
    )
    def test_a_wrong_line_is_named(self, tmp_path: Path, line: str, said: str) -> None:
        number = 2 + line.count("\n")
        with pytest.raises(ConfigurationError, match=rf"context_judgements\.tsv, line {number} {said}"):
            self.read(tmp_path, line)
