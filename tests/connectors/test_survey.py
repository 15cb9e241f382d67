"""What a folder holds, and sources for it that read each document once."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from connectors.documents.globs import Globs
from connectors.documents.options import DecisionRules
from connectors.files import contents
from connectors.files.contents import look_into
from connectors.files.options import FileOptions
from connectors.files.survey import Survey
from connectors.files.walk import list_files

TASK = "---\nid: task-1\ntitle: A task\nstatus: To Do\n---\nText\n"
TEXT = "# Kestrel\n\nA text.\n"
PBI = '{"pbis": [{"id": "PBI-1", "title": "Kestrel", "acceptance_criteria": ["a"]}]}'


def write(folder: Path, *names: str, text: str = TEXT) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def read_by(folder: Path) -> dict[str, list[str]]:
    """Source -> the files that it would read, which no other source reads."""
    survey = Survey(look_into(folder), DecisionRules())
    read: dict[str, list[str]] = {}
    for source in survey.sources:
        paths, exclude = tuple(source.section["paths"]), tuple(source.section.get("exclude", ()))
        options = FileOptions(name="x", type="markdown", root=folder, paths=paths, exclude=exclude)
        listing = list_files(options, Globs(paths, exclude))
        assert not listing.failed, source.section
        read[source.section["name"]] = [file.external_id for file in listing.files]
        assert sum(source.endings.values()) == len(listing.files), source.section
    counts = Counter(os.path.realpath(folder / name) for names in read.values() for name in names)
    assert set(counts.values()) <= {1}, counts
    return read


@pytest.mark.parametrize(
    ("ids", "identity"),
    [
        (("SHOP-12", "SHOP-13"), "id"),
        (("PBI-001", "PBI-002"), None),
        (("SHOP-12", "PBI-001"), None),
        (("SHOP-12", "7"), None),
    ],
)
def test_items_whose_ids_are_their_own_are_told_apart_by_them(
    tmp_path: Path, ids: tuple[str, ...], identity: str | None
) -> None:
    for one in ids:
        write(tmp_path, f"items/{one}.json", text=PBI.replace("PBI-1", one))
    (source,) = Survey(look_into(tmp_path), DecisionRules()).sources
    assert source.section.get("identity") == identity


def test_each_document_is_in_one_source(tmp_path: Path) -> None:
    write(tmp_path, *(f"docs/{n}.md" for n in range(6)), "docs/adr/0001-x.md", "docs/adr/readme.md")
    write(tmp_path, "README.md", "pkg/a/README.md", "pkg/b/docs/adr/0001-y.md", "notes/n.txt", "odd [x]/a.md")
    write(
        tmp_path,
        *(f"backlog/tasks/task-{n}.md" for n in range(3)),
        "backlog/decisions/decision-1 - z.md",
        text=TASK,
    )
    write(tmp_path, "backlog/docs/doc-1.md", "backlog/tasks/old/notes.md")
    write(tmp_path, "output/run-1/final-output.json", "output/run-2/final-output.json", text=PBI)
    read = read_by(tmp_path)
    assert read["decisions"] == [
        "backlog/decisions/decision-1 - z.md", "docs/adr/0001-x.md", "docs/adr/readme.md", "pkg/b/docs/adr/0001-y.md",
    ]  # fmt: skip
    assert read["backlog"] == [f"backlog/tasks/task-{n}.md" for n in range(3)]
    assert read["docs"] == [f"docs/{n}.md" for n in range(6)]
    assert read["pipeline_outputs"] == ["output/run-1/final-output.json", "output/run-2/final-output.json"]
    assert read["documents"] == [
        "README.md", "backlog/docs/doc-1.md", "backlog/tasks/old/notes.md", "odd [x]/a.md", "pkg/a/README.md",
    ]  # fmt: skip
    assert read["texts"] == ["notes/n.txt"]


def test_many_folders_of_records_become_few_patterns(tmp_path: Path) -> None:
    write(tmp_path, *(f"services/s{n}/adr/0001-x.md" for n in range(20)))
    survey = Survey(look_into(tmp_path), DecisionRules())
    assert survey.sources[0].section["paths"] == ["./services/*/adr/**/*.md"]
    assert len(read_by(tmp_path)["decisions"]) == 20


def test_what_is_no_document_of_the_team_is_left_out_and_named(tmp_path: Path) -> None:
    write(
        tmp_path,
        "a.md",
        ".github/b.md",
        "web/node_modules/c/d.md",
        "web/package.json",
        "web/dist/e.md",
        "dist/f.md",
    )
    write(
        tmp_path,
        "gone/g.md",
        "x/gen/h.md",
        "keep/i.md",
        "drafts/j.md",
        "requirements.txt",
        "t.html",
        "app.json",
    )
    write(tmp_path, ".gitignore", text="gone/\n/x/gen\nkeep/\n!keep/\n*.bak\ndrafts\n")
    write(tmp_path, "t.html", text="<p>{{ title }}</p>")
    write(tmp_path, "page.html", text="<h1>Kestrel</h1>")
    (tmp_path / "link.md").symlink_to(tmp_path / "dist/f.md")
    (tmp_path / "outside.md").symlink_to("/etc/hostname")
    (tmp_path / "loop").symlink_to(tmp_path)
    survey = Survey(look_into(tmp_path), DecisionRules())
    assert read_by(tmp_path) == {"documents": ["a.md", "dist/f.md", "keep/i.md", "page.html"]}
    assert {reason: one.examples for reason, one in survey.contents.left_out.items()} == {
        "hidden folders": [".github"],
        "links; their targets are read at their own paths": ["link.md", "loop", "outside.md"],
        "files for tools": ["requirements.txt", "web/package.json"],
        "folders that .gitignore names": ["drafts", "gone", "x/gen"],
        "folders of dependencies and tools": ["web/node_modules"],
        "folders of build results": ["web/dist"],
        "HTML templates that a program fills in": ["t.html"],
        "JSON without backlog items or texts": ["app.json"],
    }


def test_a_name_that_no_file_of_settings_can_hold_is_matched_all_the_same(tmp_path: Path) -> None:
    for n in range(5):
        write(tmp_path, f"${{HOME}}/{n}.md")
        write(tmp_path, os.fsdecode(b"caf\xe9") + f"/{n}.md")
    assert sorted(map(len, read_by(tmp_path).values())) == [5, 5]


def test_a_large_folder_is_given_up_in_time_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a/b.md")
    monkeypatch.setattr(contents, "LOOK_SECONDS", 0.0)
    assert look_into(tmp_path).complete is False


def test_twenty_thousand_files_take_seconds(tmp_path: Path) -> None:
    for folder in range(200):
        (tmp_path / f"top{folder % 20}/sub{folder}").mkdir(parents=True)
        for file in range(100):
            (tmp_path / f"top{folder % 20}/sub{folder}/{file}.{'md' if file % 3 else 'py'}").touch()
    begun = time.monotonic()
    survey = Survey(look_into(tmp_path), DecisionRules())
    assert time.monotonic() - begun < 5
    assert sum(sum(s.endings.values()) for s in survey.sources) == 200 * 66


def test_an_empty_folder_gives_no_source(tmp_path: Path) -> None:
    assert Survey(look_into(tmp_path), DecisionRules()).sources == []
