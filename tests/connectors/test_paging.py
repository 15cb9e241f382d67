"""Pages, cursors and the time a walk takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from connectors import open_source
from connectors.files.source import PAGE_CHARACTERS, pages_of, resume_key
from pipeline.documents import Document, Kind, Problem, SourceType
from tests.complexity import assert_linear
from tests.connectors.folders import options, walk, write


class TestPaging:
    def test_large_documents_make_small_pages(self) -> None:
        def document(n: int) -> Document:
            return Document(
                external_id=str(n),
                title="t",
                text="x" * (PAGE_CHARACTERS // 2),
                source_type=SourceType.TEXT,
                kind=Kind.REFERENCE,
            )

        pages = list(pages_of(document(n) for n in range(5)))

        assert [len(page.documents) for page in pages] == [2, 2, 1]
        assert [page.cursor for page in pages] == [{"after": "1"}, {"after": "3"}, {}]

    def test_exactly_one_full_page_is_the_last(self) -> None:
        pages = list(pages_of(Problem(external_id=f"{n:03d}", reason="x") for n in range(100)))

        assert [len(page.failed) for page in pages] == [100]
        assert pages[0].cursor == {}

    def test_nothing_is_one_empty_page(self) -> None:
        assert [page.cursor for page in pages_of([])] == [{}]

    @pytest.mark.parametrize("cursor", [None, {}, {"after": None}, {"after": 3}, {"before": "x"}])
    def test_a_cursor_that_says_nothing_starts_over(self, cursor: dict[str, object] | None) -> None:
        assert resume_key(cursor) == ""

    def test_a_cursor_behind_everything_gives_one_last_page(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")

        pages = list(open_source(options(tmp_path)).pages({"after": "zzz"}))

        assert [(page.documents, page.cursor) for page in pages] == [((), {})]

    def test_a_walk_goes_on_behind_its_cursor(self, tmp_path: Path) -> None:
        write(tmp_path, *(f"{n:03d}.md" for n in range(150)))
        pages = list(open_source(options(tmp_path)).pages(None))

        rest = list(open_source(options(tmp_path)).pages(pages[0].cursor))

        assert [d.external_id for d in rest[0].documents] == [f"{n:03d}.md" for n in range(100, 150)]

    def test_what_is_read_again_and_fails_is_not_gone(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        (tmp_path / "broken.md").write_bytes(b"binary\0")

        pages = list(open_source(options(tmp_path)).read(["a.md", "broken.md", "gone.md"]))

        assert [d.external_id for page in pages for d in page.documents] == ["a.md"]
        assert [p.external_id for page in pages for p in page.failed] == ["broken.md"]
        assert [name for page in pages for name in page.deleted] == ["gone.md"]

    def test_the_time_grows_with_the_files_and_no_faster(self, tmp_path: Path) -> None:
        def folder(files: int) -> Path:
            root = tmp_path / str(files)
            for n in range(files):
                write(
                    root, f"{n % 40}/{n}.md", text=f"---\ntitle: T{n}\ntags: [a]\n---\n\n# H\n\nSome text.\n"
                )
            return root

        def all_of_them(root: Path) -> None:
            documents, _, _ = walk(options(root))
            assert len(documents) == int(root.name)

        assert_linear(folder, 800, all_of_them)
