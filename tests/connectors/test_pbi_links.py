"""Where a PBI stands, and which one it repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.documents import Document
from tests.connectors.outputs import ONE, TWO, read, write

JIRA = {"name": "Duplicate", "inward": "is duplicated by", "outward": "duplicates"}
BUGZILLA = "*** This bug has been marked as a duplicate of 123 ***"


def one(root: Path, **said: Any) -> Document:
    write(root, "run-2025-01-10/final-output.json", {"pbis": [{**ONE, **said}, TWO]})
    return read(root)[0]["PBI-1"]


@pytest.mark.parametrize(
    ("said", "url"),
    [
        ({"url": "https://boards.example/1"}, "https://boards.example/1"),
        (
            {"self": "https://api.example/1", "html_url": "https://boards.example/1"},
            "https://boards.example/1",
        ),
        ({"webUrl": "http://boards.example/1?token=abc123secret"}, "http://boards.example/1?token=REDACTED"),
        ({"url": "javascript:alert(1)", "link": "https://boards.example/2"}, "https://boards.example/2"),
    ],
)
def test_a_pbi_links_to_its_own_page(tmp_path: Path, said: dict[str, Any], url: str) -> None:
    assert one(tmp_path, **said).url == url


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"url": "javascript:alert(1)"},
        {"url": "file:///etc/passwd"},
        {"url": "ftp://boards.example/1"},
        {"link": "PBI-1"},
        {"url": "https://"},
        {"url": "https://[broken"},
        {"self": 3, "link": ["https://boards.example"]},
    ],
)
def test_without_a_page_the_link_names_the_file_and_the_pbi(tmp_path: Path, said: dict[str, Any]) -> None:
    path = (tmp_path / "output/run-2025-01-10/final-output.json").as_uri()

    assert one(tmp_path, **said).url == f"{path}#PBI-1"
    assert read(tmp_path)[0]["PBI-2"].url == f"{path}#PBI-2"


def test_the_id_in_a_link_is_encoded(tmp_path: Path) -> None:
    write(tmp_path, "run-2025-01-10/final-output.json", {"pbis": [{"id": "a b/#1?", "title": "x"}]})

    assert read(tmp_path)[0]["a b/#1?"].url.endswith("final-output.json#a%20b%2F%231%3F")


@pytest.mark.parametrize(
    ("said", "master"),
    [
        ({"duplicate_of": "PBI-9"}, "PBI-9"),
        ({"duplicateOf": {"id": "PBI-9", "title": "x"}}, "PBI-9"),
        ({"dup_of": 9}, "9"),
        ({"duplicate_id": "#9"}, "9"),
        ({"duplicates": "PBI-9: The other one"}, "PBI-9"),
        ({"master": "PBI-9"}, "PBI-9"),
        ({"duplicate_of": "https://boards.example/browse/PBI-9"}, "PBI-9"),
        ({"status": "Closed as duplicate", "duplicates": ["PBI-9"]}, "PBI-9"),
        (
            {"links": [{"type": "relates", "target": "PBI-8"}, {"type": "duplicate_of", "target": "PBI-9"}]},
            "PBI-9",
        ),
        ({"relations": {"duplicates": ["PBI-9"]}}, "PBI-9"),
        ({"issuelinks": [{"type": JIRA, "outwardIssue": {"key": "PBI-9"}}]}, "PBI-9"),
        (
            {
                "relations": [
                    {"rel": "System.LinkTypes.Duplicate-Reverse", "url": "https://x.example/workItems/9"}
                ]
            },
            "9",
        ),
        ({"resolution": "Duplicate", "links": [{"type": "Duplicate", "target": "PBI-9"}]}, "PBI-9"),
        ({"resolution": "Duplicate of PBI-9"}, "PBI-9"),
        ({"status": "Closed", "closing_comment": "Closed as duplicate of PBI-9."}, "PBI-9"),
        ({"comments": [{"text": "Nice."}, {"text": BUGZILLA}]}, "123"),
        ({"comments": ["Thanks. Closing this as a duplicate of [PBI-9](x)"]}, "PBI-9"),
        ({"comments": ["This is a duplicate of issue #9", "This is a duplicate of #10"]}, "10"),
    ],
)
def test_the_item_that_is_repeated_is_named(tmp_path: Path, said: dict[str, Any], master: str) -> None:
    assert one(tmp_path, **said).metadata["duplicate_of"] == master


@pytest.mark.parametrize(
    "said",
    [
        {"duplicate_of": "PBI-1"},
        {"duplicate_of": None, "master": True},
        {"master": "main"},
        {"duplicates": ["PBI-8", "PBI-9"]},
        {"duplicates": 3},
        {"links": [{"type": "duplicated_by", "target": "PBI-9"}, {"type": "Duplicate", "target": "PBI-9"}]},
        {"issuelinks": [{"type": JIRA, "inwardIssue": {"key": "PBI-9"}}]},
        {
            "relations": [
                {"rel": "System.LinkTypes.Duplicate-Forward", "url": "https://x.example/workItems/9"}
            ]
        },
        {"comments": ["This is not a duplicate of PBI-9", "PBI-8 was closed as duplicate of PBI-9"]},
        {"comments": ["*** Bug 9 has been marked as a duplicate of this bug. ***"]},
        {"status": "reopened", "comments": [BUGZILLA]},
        {"resolution": "Fixed", "comments": [BUGZILLA]},
        {"resolution": "Removed duplicate rows", "links": [{"type": "Duplicate", "target": "PBI-9"}]},
    ],
)
def test_what_does_not_repeat_another_item_names_none(tmp_path: Path, said: dict[str, Any]) -> None:
    assert "duplicate_of" not in one(tmp_path, **said).metadata
