"""Files that are as they were noted are not opened; whatever may make another document of one has it read again."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from connectors import DecisionRules, SourceContext, open_source
from connectors.documents.options import LevelRule
from connectors.files import walk
from connectors.files.source import FileSource
from pipeline.documents import Document, Page
from tests.connectors.folders import file_options

ROUGH = 0.02
"""As roughly as the file systems of these tests tell times."""
TEXT = "# Berths\n\nSee [other](other.md) and ![quay](pics/quay.png).\n"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of three documents, changed long enough ago."""
    monkeypatch.setattr(walk, "ROUGH_SECONDS", ROUGH)
    folder = tmp_path / "root"
    (folder / "pics").mkdir(parents=True)
    (folder / "berths.md").write_text(TEXT)
    (folder / "deep.md").write_text("# Depths\n\nNine metres.\n")
    (folder / "wide.md").write_text("# Widths\n\nFive metres.\n")
    time.sleep(2 * ROUGH)
    return folder


def pages(root: Path, known: dict[str, str] | None = None, **keys: Any) -> list[Page]:
    """What a walk brings; of what differs from these fingerprints, if they are given."""
    context = keys.pop("context", SourceContext())
    options = file_options(name="files", type="markdown", root=root, paths=("**/*.md",), **keys)
    source = open_source(options.with_context(context))
    if known is not None:
        assert source.skip_unchanged(known) is not None
    return list(source.pages(None))


def documents(found: list[Page]) -> dict[str, Document]:
    return {d.external_id: d for page in found for d in page.documents}


def noted(root: Path, **keys: Any) -> dict[str, str]:
    """The fingerprints of all documents."""
    return {i: d.fingerprint for i, d in documents(pages(root, **keys)).items()}


def read_again(root: Path, known: dict[str, str], **keys: Any) -> set[str]:
    """What is read again of a folder of which these fingerprints were noted."""
    found = pages(root, known, **keys)
    problems = {problem.external_id for page in found for problem in (*page.failed, *page.skipped)}
    return problems | documents(found).keys()


def test_what_is_as_it_was_noted_is_not_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = noted(root)
    assert all(known.values())
    (root / "deep.md").write_text("# Depths\n\nTen metres.\n")
    opened: list[str] = []
    read = walk._read

    def noting(file: walk.FoundFile, *more: Any) -> Any:
        opened.append(file.external_id)
        return read(file, *more)

    monkeypatch.setattr(walk, "_read", noting)
    source = open_source(file_options(name="files", type="markdown", root=root, paths=("**/*.md",)))
    assert source.skip_unchanged(known) == 2
    assert list(documents(list(source.pages(None)))) == ["deep.md"]
    assert source.ids().ids == known.keys()
    assert set(opened) == {"deep.md"}


def rewritten(root: Path) -> None:
    """Another text of the same length, under the same time."""
    path = root / "deep.md"
    before = path.stat()
    path.write_text(path.read_text().replace("Nine", "Four"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(root: Path) -> None:
    """Another file of the same length and time, as a tool leaves it that writes beside and renames."""
    shutil.copy2(root / "deep.md", root / "beside")
    rewritten(root)
    (root / "deep.md").rename(root / "beside.old")
    (root / "beside").rename(root / "deep.md")


def renamed_over(root: Path) -> None:
    (root / "wide.md").rename(root / "deep.md")


def linked(root: Path) -> None:
    """The same file, found through a link: its own place decides about its level."""
    (root / "kept").mkdir()
    (root / "deep.md").rename(root / "kept" / "deep.markdown")
    (root / "deep.md").symlink_to("kept/deep.markdown")


@pytest.mark.parametrize("change", [rewritten, replaced, renamed_over, linked])
def test_a_file_that_may_hold_something_else_is_read_again(
    root: Path, change: Callable[[Path], None]
) -> None:
    known = noted(root)
    change(root)
    assert "deep.md" in read_again(root, known)
    assert "berths.md" not in read_again(root, known)


def test_a_touched_file_is_read_once_more(root: Path) -> None:
    known = noted(root)
    (root / "deep.md").touch()
    assert read_again(root, known) == {"deep.md"}
    time.sleep(2 * ROUGH)
    assert read_again(root, noted(root)) == set()


@pytest.mark.parametrize("name", ["other.md", "pics/quay.png"])
def test_a_document_is_read_again_when_what_it_links_to_comes_or_goes(root: Path, name: str) -> None:
    known = noted(root)
    (root / name).write_text("# There\n")
    time.sleep(2 * ROUGH)
    assert read_again(root, known) - {name} == {"berths.md"}
    assert documents(pages(root))["berths.md"].metadata["links"] == [name]
    known = noted(root)
    (root / name).unlink()
    assert read_again(root, known) - {name} == {"berths.md"}


EVERY = {"berths.md", "deep.md", "wide.md"}


@pytest.mark.parametrize(
    "keys",
    [
        {"base_url": "https://wiki.example"},
        {"kind": "work"},
        {"redact": ("email",)},
        {"security_level": "confidential"},
        {"metadata": {"category": "harbour"}},
        {"frontmatter_fields": ("owner",)},
        {"context": SourceContext(levels=[LevelRule(level="restricted", tags=("secret",))])},
        {"context": SourceContext(decisions=DecisionRules(tags=("ruling",)))},
        {"context": SourceContext(metadata={"search_language": "german"})},
    ],
)
def test_other_options_read_every_file_again(root: Path, keys: dict[str, Any]) -> None:
    assert read_again(root, noted(root), **keys) == EVERY


def test_so_does_another_place(root: Path) -> None:
    known = noted(root)
    assert read_again(root.rename(root.parent / "moved"), known) == EVERY


def test_so_does_another_extractor(root: Path) -> None:
    known = noted(root)
    options = file_options(name="files", type="markdown", root=root, paths=("**/*.md",))
    for extractor, skipped in ((open_source(options).extractor, 3), ("markdown-0", 0)):
        source = FileSource(options, extractor=extractor, convert=lambda _: None)
        assert source.skip_unchanged(known) == skipped


@pytest.mark.parametrize("seconds", [0.0, 5.0, 1e6])
def test_a_file_changed_just_now_or_in_the_future_is_not_trusted(
    root: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """Where times are told roughly another edit may leave no trace; what a wrong clock wrote is never sure."""
    monkeypatch.setattr(walk, "ROUGH_SECONDS", 2.0)
    at = time.time() + seconds
    os.utime(root / "deep.md", (at, at))
    assert noted(root)["deep.md"] == ""
    assert "deep.md" in read_again(root, noted(root))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "skipped"),
        (b" \n" * 100, "skipped"),
        (b"\x00\x01\x02", "failed"),
        (b"---\nsecurity_level: none such\n---\n\nText.\n", "failed"),
        (b"---\ntitle: [\n---\n\nText.\n", "reading_notes"),
    ],
)
def test_what_was_wrong_with_a_file_is_told_again(root: Path, content: bytes, told: str) -> None:
    (root / "deep.md").write_bytes(content)
    time.sleep(2 * ROUGH)
    for _ in range(2):
        found = pages(root, noted(root))
        assert [p.external_id for page in found for p in getattr(page, told)] == ["deep.md"]


def test_sources_of_several_items_a_file_read_all(tmp_path: Path) -> None:
    for kind in ("json", "pbi_json"):
        source = open_source(file_options(name="items", type=kind, root=tmp_path, paths=("*.json",)))
        assert source.skip_unchanged({}) is None
