"""The worlds that Step 4 is measured on are whole: a wrong name in a table would count as nothing, in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from workers.app.evaluation.dataset import DOCUMENT_SECTIONS, SECTIONS

WORLDS = sorted(path.parent for path in (Path(__file__).parent / "worlds").glob("*/world.yaml"))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def rows(path: Path) -> list[tuple[str, ...]]:
    """All lines but the header."""
    header, *others = (tuple(line.split("\t")) for line in lines(path))
    assert header == ("item", "section", "ref", "grade")
    return others


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_its_tables_name_items_sections_and_grades(world: Path) -> None:
    about = yaml.safe_load((world / "world.yaml").read_text(encoding="utf-8"))
    assert about.keys() >= {"repository", "commit", "licence", "sources"}
    items = [json.loads(line)["_id"] for line in lines(world / "items.jsonl")]
    assert len(set(items)) == len(items) >= 10
    for name, sections, grades in (
        ("expected.tsv", DOCUMENT_SECTIONS, "12"),
        ("judgements.tsv", SECTIONS, "012"),
    ):
        table = rows(world / name)
        assert [row for row in table if len(row) != 4 or row[0] not in items] == []
        assert [row for row in table if row[1] not in sections or row[3] not in tuple(grades)] == []
        assert len({row[:3] for row in table}) == len(table)
    expected = {row[0] for row in rows(world / "expected.tsv")}
    assert 1 <= len(set(items) - expected) <= 2, "items that nothing helps"
