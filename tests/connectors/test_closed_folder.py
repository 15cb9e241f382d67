"""The folder that no source reads: Larder's own data folder, with its passwords, often lies below a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors.documents.globs import Globs
from connectors.files.walk import list_files
from pipeline.errors import ConfigurationError
from tests.connectors.folders import file_options


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("# Title")


def names(root: Path, closed: Path, *paths: str) -> list[str]:
    given = file_options(name="files", type="markdown", root=root, paths=paths or ("**/*.md",), closed=closed)
    return [file.external_id for file in list_files(given, Globs(given.paths, given.exclude)).files]


def test_it_is_not_read_whatever_the_globs_say(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "keep/state.md", "keep/deep/b.md", "keeper/c.md")
    paths = ("**/*.md", "./keep/state.md", "keep/**/*.md")
    assert names(tmp_path, tmp_path / "keep", *paths) == ["a.md", "keeper/c.md"]


def test_no_link_leads_into_it(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "keep/state.md")
    (tmp_path / "file.md").symlink_to("keep/state.md")
    (tmp_path / "folder").symlink_to("keep")
    assert names(tmp_path, tmp_path / "keep") == ["a.md"]


def test_it_may_be_named_by_a_link(tmp_path: Path) -> None:
    write(tmp_path, "a.md", "keep/state.md")
    (tmp_path / "other").symlink_to("keep")
    assert names(tmp_path, tmp_path / "other") == ["a.md"]


def test_a_root_inside_of_it_was_meant(tmp_path: Path) -> None:
    write(tmp_path, "docs/a.md")
    assert names(tmp_path / "docs", tmp_path) == ["a.md"]


def test_it_is_no_root(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds passwords"):
        names(tmp_path, tmp_path)
