"""How a PBI ended, and what was said of it, as the outputs of the pipeline tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from connectors import open_source
from pipeline.documents import Document
from pipeline.search.records import StoredDocument, outdated
from tests.connectors.folders import file_options


def read(root: Path, **said: Any) -> Document:
    """The document of one PBI."""
    (root / "pbis.json").write_text(json.dumps([{"id": "PBI-1", "title": "One", **said}]))
    source = open_source(file_options(name="runs", type="pbi_json", root=root, paths=("*.json",)))
    (found,) = (document for page in source.pages(None) for document in page.documents)
    return found


@pytest.mark.parametrize(
    ("said", "facts"),
    [
        ({"resolution": "Won't fix"}, {"resolution": "Won't fix"}),
        ({"resolvedReason": "Duplicate"}, {"resolution": "Duplicate"}),
        ({"outcome": "Delivered", "resolution": "Fixed"}, {"outcome": "Delivered", "resolution": "Fixed"}),
        ({"resolution": "Fixed by an index on the token"}, {}),
        ({"resolution": ["Fixed"], "outcome": ""}, {}),
    ],
)
@pytest.mark.req("001-087")
def test_a_short_resolution_is_a_fact_and_a_long_one_is_text_alone(
    tmp_path: Path, said: dict[str, Any], facts: dict[str, str]
) -> None:
    found = read(tmp_path, **said).metadata

    assert {name: found[name] for name in ("outcome", "resolution") if name in found} == facts


def test_work_resolved_as_wontfix_no_longer_stands_whatever_its_status(tmp_path: Path) -> None:
    found = read(tmp_path, status="Closed", resolution="Wontfix")

    said = outdated(
        StoredDocument(
            id=uuid4(),
            version=1,
            title=found.title,
            source_type=found.source_type,
            kind=found.kind,
            metadata=found.metadata,
        )
    )

    assert said == "closed without being done"


def test_outcome_resolution_and_closing_comment_are_sections(tmp_path: Path) -> None:
    text = read(tmp_path, outcome="Live.", resolution="An index.", closing_comment="Thanks to Ada.").text

    assert text.endswith(
        "## Outcome\n\nLive.\n\n## Resolution\n\nAn index.\n\n## Closing comment\n\nThanks to Ada."
    )


@pytest.mark.parametrize(
    ("comments", "text"),
    [
        ("Shipped.", "### Comment 1\n\nShipped."),
        (["First try.", "", None, "Shipped."], "### Comment 1\n\nFirst try.\n\n### Comment 2\n\nShipped."),
        (
            [
                {"author": "Bert", "createdAt": "2025-02-01T08:00:00Z", "text": "Shipped."},
                {"author": {"displayName": "Ada"}, "created": "2025-01-31T08:00:00Z", "body": "First try."},
            ],
            "### Ada, 2025-01-31\n\nFirst try.\n\n### Bert, 2025-02-01\n\nShipped.",
        ),
        (
            [{"author": "Bert", "date": "2025-02-01", "text": "Two."}, {"author": "Ada", "text": "One."}],
            "### Bert, 2025-02-01\n\nTwo.\n\n### Ada\n\nOne.",
        ),
        ([{"text": "## Facts\n\n#include"}], "### Comment 1\n\n##### Facts\n\n#include"),
    ],
)
def test_each_comment_has_a_heading_and_the_last_one_comes_last(
    tmp_path: Path, comments: Any, text: str
) -> None:
    assert read(tmp_path, comments=comments).text == f"# One\n\n## Comments\n\n{text}"


@pytest.mark.parametrize("comments", [None, [], "", [{}], [{"author": "Ada"}], [[]], {"n": {}}])
def test_no_comments_are_no_section(tmp_path: Path, comments: Any) -> None:
    assert read(tmp_path, comments=comments).text == "# One"
