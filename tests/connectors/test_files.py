"""Which files a source sees, and what becomes of those it cannot read."""

from __future__ import annotations

import codecs
import os
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from connectors import SourceOptions, open_source
from connectors.contents import CONTROLS, FileText, Unreadable, decode, read_file
from connectors.files import FileListing, FileTree, external_id
from connectors.paging import PAGE_CHARACTERS, Entry, pages_of, resume_key
from pipeline.documents import Document, Kind, Page, Problem, SourceType
from pipeline.errors import ConfigurationError, SourceDenied, SourceUnavailable

NOBODY = 65534


def write(root: Path, *names: str, text: str = "# Title\n\nSome text.\n") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def options(root: Path, *paths: str, exclude: tuple[str, ...] = (), max_bytes: int = 10_000) -> SourceOptions:
    return SourceOptions(
        name="files",
        type="markdown",
        root=root,
        paths=paths or ("**/*.md",),
        exclude=exclude,
        max_bytes=max_bytes,
    )


def listing(root: Path, *paths: str, exclude: tuple[str, ...] = ()) -> FileListing:
    return FileTree(options(root, *paths, exclude=exclude)).listing()


def names(found: FileListing) -> list[str]:
    return [file.external_id for file in found.files]


def walk(given: SourceOptions) -> tuple[dict[str, Document], dict[str, str], dict[str, str]]:
    """Documents, failures and skipped items of a walk, by external id."""
    pages: list[Page] = list(open_source(given).pages(None))
    return (
        {d.external_id: d for page in pages for d in page.documents},
        {p.external_id: p.reason for page in pages for p in page.failed},
        {p.external_id: p.reason for page in pages for p in page.skipped},
    )


@contextmanager
def as_nobody() -> Iterator[None]:
    """Gives up root's rights for a moment: root may read everything."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach; those of tmp_path are root's alone."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        for path in sorted(folder.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755)


class TestGlobs:
    @pytest.mark.req("001-050")
    def test_the_documented_source_sees_what_it_should(self, tmp_path: Path) -> None:
        write(
            tmp_path, "README.md", "docs/a.md", "docs/x/y/b.md", "docs/x/README.md", "sub/README.md", "a.md"
        )
        write(tmp_path, "docs/node_modules/c.md", "docs/x/node_modules/p/d.md", "docs/CHANGELOG.md")
        write(tmp_path, "docs/x/CHANGELOG.md", "docs/.git/e.md", "docs/a.txt")

        found = listing(
            tmp_path,
            "./docs/**/*.md",
            "./README.md",
            exclude=("**/node_modules/**", "**/CHANGELOG.md", "**/.git/**"),
        )

        assert names(found) == ["README.md", "docs/a.md", "docs/x/README.md", "docs/x/y/b.md"]
        assert found.complete
        assert not found.failed

    @pytest.mark.parametrize(
        ("glob", "expected"),
        [
            ("*.md", ["a.md"]),
            ("**/*.md", ["a.md", "docs/b.md", "docs/deep/er/c.md"]),
            ("**", ["a.md", "docs/b.md", "docs/deep/d.txt", "docs/deep/er/c.md"]),
            ("docs/**", ["docs/b.md", "docs/deep/d.txt", "docs/deep/er/c.md"]),
            ("./docs//./*.md", ["docs/b.md"]),
            ("docs/*/*/*.md", ["docs/deep/er/c.md"]),
            ("docs/**/er/*.md", ["docs/deep/er/c.md"]),
            ("**/deep/**/*.md", ["docs/deep/er/c.md"]),
            ("docs/**/**/b.md", ["docs/b.md"]),
            ("docs/[ab].md", ["docs/b.md"]),
            ("docs/[!b].md", []),
            ("?.md", ["a.md"]),
            ("docs/b.md", ["docs/b.md"]),
            ("DOCS/*.md", []),
        ],
    )
    def test_a_glob_matches(self, tmp_path: Path, glob: str, expected: list[str]) -> None:
        write(tmp_path, "a.md", "docs/b.md", "docs/deep/er/c.md", "docs/deep/d.txt")

        assert names(listing(tmp_path, glob)) == expected

    @pytest.mark.parametrize(
        ("exclude", "expected"),
        [
            ("CHANGELOG.md", ["a.md", "docs/drafts/b.md"]),
            ("./CHANGELOG.md", ["a.md", "docs/CHANGELOG.md", "docs/drafts/b.md"]),
            ("drafts", ["CHANGELOG.md", "a.md", "docs/CHANGELOG.md"]),
            ("drafts/", ["CHANGELOG.md", "a.md", "docs/CHANGELOG.md"]),
            ("docs/**", ["CHANGELOG.md", "a.md"]),
            ("docs/*", ["CHANGELOG.md", "a.md"]),
            ("a.md/**", ["CHANGELOG.md", "a.md", "docs/CHANGELOG.md", "docs/drafts/b.md"]),
        ],
    )
    def test_an_exclusion_holds(self, tmp_path: Path, exclude: str, expected: list[str]) -> None:
        write(tmp_path, "a.md", "CHANGELOG.md", "docs/CHANGELOG.md", "docs/drafts/b.md")

        assert names(listing(tmp_path, exclude=(exclude,))) == expected

    @pytest.mark.parametrize(
        "glob", ["../x/*.md", "docs/../../x.md", "/etc/*.md", "~/x.md", "C:\\x.md", "", "./"]
    )
    @pytest.mark.parametrize("place", ["paths", "exclude"])
    def test_a_glob_that_leaves_the_root_is_refused(self, tmp_path: Path, glob: str, place: str) -> None:
        paths, exclude = ((glob,), ()) if place == "paths" else (("*.md",), (glob,))

        with pytest.raises(ConfigurationError) as caught:
            open_source(options(tmp_path, *paths, exclude=exclude))

        assert repr(glob) in caught.value.message
        assert caught.value.fix

    def test_a_source_without_paths_is_refused(self, tmp_path: Path) -> None:
        given = SourceOptions(name="none", type="markdown", root=tmp_path, paths=())

        with pytest.raises(ConfigurationError, match="no paths"):
            open_source(given)

    def test_folders_that_cannot_match_are_not_entered(self, open_folder: Path) -> None:
        write(open_folder, "docs/a.md", "docs/node_modules/b.md", "output/c.md")
        for closed in ("docs/node_modules", "output"):
            (open_folder / closed).chmod(0)

        with as_nobody():
            found = listing(open_folder, "./docs/**/*.md", "./README*.md", exclude=("**/node_modules/**",))

        assert names(found) == ["docs/a.md"]
        assert found.complete
        assert not found.failed

    def test_the_order_is_that_of_whole_paths(self, tmp_path: Path) -> None:
        write(tmp_path, "b/a.md", "b.md", "b-c/a.md", "a/z.md")

        assert names(listing(tmp_path)) == ["a/z.md", "b-c/a.md", "b.md", "b/a.md"]

    def test_a_glob_of_many_stars_costs_little(self, tmp_path: Path) -> None:
        write(tmp_path, "a" * 200 + ".txt", "/".join(["a"] * 60) + "/b.txt")
        start = time.perf_counter()

        found = listing(tmp_path, "*a*a*a*a*a*a*a*a*b", "**/a/**/a/**/a/**/a/**/a/**/c.md")

        assert names(found) == []
        assert time.perf_counter() - start < 1


class TestLinks:
    def test_a_link_inside_is_followed_to_a_file_no_glob_reaches(self, tmp_path: Path) -> None:
        write(tmp_path, "shared/x.md")
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs/x.md").symlink_to("../shared/x.md")

        assert names(listing(tmp_path, "docs/*.md")) == ["docs/x.md"]
        assert list(walk(options(tmp_path, "docs/*.md"))[0]) == ["docs/x.md"]

    def test_one_real_file_is_one_document_under_its_own_path(self, tmp_path: Path) -> None:
        write(tmp_path, "z/real.md")
        (tmp_path / "a.md").symlink_to("z/real.md")
        (tmp_path / "b.md").symlink_to("a.md")
        (tmp_path / "a-folder").symlink_to("z")

        found = listing(tmp_path)

        assert names(found) == ["z/real.md"]
        assert not found.failed

    def test_a_linked_folder_is_walked_once(self, tmp_path: Path) -> None:
        write(tmp_path, "hidden/p/a.md", "hidden/b.md")
        (tmp_path / "docs").mkdir()
        (tmp_path / "docs/one").symlink_to("../hidden")
        (tmp_path / "docs/two").symlink_to("../hidden")

        assert names(listing(tmp_path, "docs/**/*.md")) == ["docs/one/b.md", "docs/one/p/a.md"]

    def test_cycles_end(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/a.md", "docs/in/b.md")
        (tmp_path / "docs/in/up").symlink_to("..")
        (tmp_path / "docs/in/self").symlink_to(".")
        (tmp_path / "docs/in/top").symlink_to(tmp_path)

        found = listing(tmp_path)

        assert names(found) == ["docs/a.md", "docs/in/b.md"]
        assert not found.failed

    def test_two_folders_that_link_to_each_other_end(self, tmp_path: Path) -> None:
        write(tmp_path, "one/a.md", "two/b.md")
        (tmp_path / "one/two").symlink_to("../two")
        (tmp_path / "two/one").symlink_to("../one")

        assert names(listing(tmp_path)) == ["one/a.md", "two/b.md"]

    def test_links_that_lead_outside_are_named_and_never_read(self, tmp_path: Path) -> None:
        write(tmp_path, "outside/secret.md", "outside/deep/secret.md", "outside-too.md")
        root = tmp_path / "root"
        write(root, "a.md")
        (root / "file.md").symlink_to("../outside/secret.md")
        (root / "folder").symlink_to("../outside")
        (root / "picture.png").symlink_to("../outside/secret.md")

        documents, failed, _ = walk(options(root))

        assert list(documents) == ["a.md"]
        assert set(failed) == {"file.md", "folder"}
        assert all("outside the source's root" in reason for reason in failed.values())

    def test_a_sibling_whose_name_begins_like_the_root_is_outside(self, tmp_path: Path) -> None:
        write(tmp_path, "root-too/x.md")
        (tmp_path / "root").mkdir()
        (tmp_path / "root/x.md").symlink_to("../root-too/x.md")

        assert set(walk(options(tmp_path / "root"))[1]) == {"x.md"}

    def test_dangling_and_circular_links_are_named_and_kept(self, tmp_path: Path) -> None:
        (tmp_path / "gone.md").symlink_to("nowhere.md")
        (tmp_path / "loop.md").symlink_to("loop.md")

        found = listing(tmp_path)

        assert [problem.external_id for problem in found.failed] == ["gone.md", "loop.md"]
        assert found.present == {"gone.md", "loop.md"}
        assert found.complete

    def test_a_lost_link_that_may_have_been_a_folder_makes_the_listing_incomplete(
        self, tmp_path: Path
    ) -> None:
        write(tmp_path, "a.md")
        (tmp_path / "mounted").symlink_to("/nowhere/at/all")

        found = open_source(options(tmp_path)).ids()

        assert found.ids == {"a.md"}
        assert not found.complete

    def test_the_root_may_be_a_link(self, tmp_path: Path) -> None:
        write(tmp_path, "real/a.md")
        (tmp_path / "root").symlink_to("real")

        documents, failed, _ = walk(options(tmp_path / "root"))

        assert list(documents) == ["a.md"]
        assert not failed
        assert documents["a.md"].url == (tmp_path / "root/a.md").as_uri()


class TestSpecialFiles:
    def test_pipes_sockets_and_devices_are_named_and_not_opened(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        os.mkfifo(tmp_path / "pipe.md")
        (tmp_path / "null.md").symlink_to("/dev/null")
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s.md"))
            documents, failed, _ = walk(options(tmp_path))
            ids = open_source(options(tmp_path)).ids()

        assert list(documents) == ["a.md"]
        assert set(failed) == {"pipe.md", "null.md", "s.md"}
        assert "named pipe" in failed["pipe.md"]
        assert "socket" in failed["s.md"]
        assert ids.ids == {"a.md", "pipe.md", "null.md", "s.md"}
        assert ids.complete

    def test_a_link_to_a_pipe_is_not_opened(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link.md").symlink_to("pipe")

        assert "named pipe" in walk(options(tmp_path))[1]["link.md"]

    def test_a_folder_with_a_files_name_is_a_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "folder.md/a.md")

        documents, failed, _ = walk(options(tmp_path))

        assert list(documents) == ["folder.md/a.md"]
        assert not failed

    def test_a_pipe_put_in_a_files_place_is_not_waited_for(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        found = listing(tmp_path)
        (tmp_path / "a.md").unlink()
        os.mkfifo(tmp_path / "a.md")

        entry = read_file(found.files[0], found.root, options(tmp_path))

        assert isinstance(entry, Entry)
        assert entry.failed is not None
        assert "not a regular file" in entry.failed.reason

    def test_a_link_put_in_a_files_place_is_not_followed(self, tmp_path: Path) -> None:
        write(tmp_path, "root/a.md", "secret.md")
        found = listing(tmp_path / "root")
        (tmp_path / "root/a.md").unlink()
        (tmp_path / "root/a.md").symlink_to(tmp_path / "secret.md")

        entry = read_file(found.files[0], found.root, options(tmp_path / "root"))

        assert isinstance(entry, Entry)
        assert entry.failed is not None
        assert "became a link" in entry.failed.reason

    def test_a_folder_that_became_a_link_outside_is_not_followed(self, tmp_path: Path) -> None:
        write(tmp_path, "root/docs/a.md", "outside/a.md")
        found = listing(tmp_path / "root")
        (tmp_path / "root/docs").rename(tmp_path / "root/old")
        (tmp_path / "root/docs").symlink_to(tmp_path / "outside")

        entry = read_file(found.files[0], found.root, options(tmp_path / "root"))

        assert isinstance(entry, Entry)
        assert entry.failed is not None
        assert "outside" in entry.failed.reason

    def test_a_file_replaced_by_another_is_read(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        found = listing(tmp_path)
        write(tmp_path, "b.tmp", text="# New\n")
        (tmp_path / "b.tmp").replace(tmp_path / "a.md")

        read = read_file(found.files[0], found.root, options(tmp_path))

        assert isinstance(read, FileText)
        assert read.text == "# New\n"

    def test_a_file_that_vanished_is_simply_not_there(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", "b/c.md")
        found = listing(tmp_path)
        (tmp_path / "a.md").unlink()
        (tmp_path / "b/c.md").unlink()
        (tmp_path / "b").rmdir()
        (tmp_path / "b").write_text("a file now")

        assert [read_file(file, found.root, options(tmp_path)) for file in found.files] == [None, None]


class TestRights:
    def test_a_file_without_read_rights_fails_by_name_and_is_kept(self, open_folder: Path) -> None:
        write(open_folder, "a.md", "locked.md")
        (open_folder / "locked.md").chmod(0)

        with as_nobody():
            documents, failed, _ = walk(options(open_folder))
            ids = open_source(options(open_folder)).ids()
            findings = open_source(options(open_folder)).check()

        assert list(documents) == ["a.md"]
        assert "Permission denied" in failed["locked.md"]
        assert ids.ids == {"a.md", "locked.md"}
        assert ids.complete
        assert [f.subject for f in findings if not f.ok] == ["locked.md"]

    def test_a_folder_that_cannot_be_listed_makes_the_listing_incomplete(self, open_folder: Path) -> None:
        write(open_folder, "a.md", "locked/b.md")
        before = open_source(options(open_folder)).stamp()
        (open_folder / "locked").chmod(0)

        with as_nobody():
            documents, failed, _ = walk(options(open_folder))
            ids = open_source(options(open_folder)).ids()
            stamp = open_source(options(open_folder)).stamp()

        assert list(documents) == ["a.md"]
        assert "cannot be listed" in failed["locked"]
        assert ids.ids == {"a.md"}
        assert not ids.complete
        assert stamp != before

    def test_a_folder_that_can_be_listed_but_not_entered_keeps_its_files(self, open_folder: Path) -> None:
        write(open_folder, "half/b.md")
        (open_folder / "half").chmod(0o444)

        with as_nobody():
            _, failed, _ = walk(options(open_folder))
            ids = open_source(options(open_folder)).ids()

        assert "half/b.md" in failed
        assert "half/b.md" in ids.ids

    def test_a_root_without_rights_is_denied(self, open_folder: Path) -> None:
        write(open_folder, "root/a.md")
        (open_folder / "root").chmod(0)

        with as_nobody(), pytest.raises(SourceDenied):
            open_source(options(open_folder / "root")).ids()


class TestMissing:
    def test_a_missing_root_is_unavailable_never_empty(self, tmp_path: Path) -> None:
        source = open_source(options(tmp_path / "gone"))

        with pytest.raises(SourceUnavailable, match="gone"):
            source.ids()
        with pytest.raises(SourceUnavailable):
            list(source.pages(None))

    def test_a_root_that_is_a_file_is_a_wrong_configuration(self, tmp_path: Path) -> None:
        write(tmp_path, "root")

        with pytest.raises(ConfigurationError, match="not a folder"):
            open_source(options(tmp_path / "root")).stamp()

    def test_a_fixed_path_that_is_not_there_fails_with_a_fix(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", "sub/README.md")

        _, failed, _ = walk(options(tmp_path, "./README.md", "a.md"))
        ids = open_source(options(tmp_path, "./README.md", "a.md")).ids()

        assert "create it or take it out" in failed["README.md"]
        assert ids.ids == {"a.md"}
        assert ids.complete

    def test_a_fixed_path_that_is_excluded_is_no_problem(self, tmp_path: Path) -> None:
        assert not walk(options(tmp_path, "drafts/x.md", exclude=("drafts/**",)))[1]

    def test_a_fixed_path_that_is_a_folder_says_what_to_write(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/a.md")

        _, failed, _ = walk(options(tmp_path, "./docs"))

        assert "./docs/**/*.md" in failed["docs"]

    def test_a_folder_of_a_glob_that_is_not_there_deletes_nothing(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        given = options(tmp_path, "./docs/**/*.md", "a.md")

        documents, failed, skipped = walk(given)

        assert list(documents) == ["a.md"]
        assert not failed
        assert "no folder docs" in skipped["docs"]
        assert not open_source(given).ids().complete

    def test_check_tells_of_globs_without_files(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", "b.md")

        findings = open_source(options(tmp_path, "*.md", "*.markdown")).check()

        by_subject = {finding.subject: finding for finding in findings}
        assert by_subject["paths *.md"].ok
        assert by_subject["paths *.md"].detail == "matches 2 files"
        assert not by_subject["paths *.markdown"].ok
        assert by_subject["paths *.markdown"].fix
        assert findings[0].ok
        assert str(tmp_path) in findings[0].subject

    def test_check_does_not_drown_in_problems(self, tmp_path: Path) -> None:
        for n in range(50):
            (tmp_path / f"{n}.md").symlink_to("nowhere")

        findings = open_source(options(tmp_path)).check()

        assert len(findings) < 30
        assert "30 more" in findings[-1].detail


class TestContent:
    @pytest.mark.parametrize(
        ("data", "text", "encoding"),
        [
            ("Grüße 東京".encode(), "Grüße 東京", "utf-8"),
            (codecs.BOM_UTF8 + "Grüße".encode(), "Grüße", "utf-8"),
            ("Grüße".encode("utf-16"), "Grüße", "utf-16"),
            (codecs.BOM_UTF16_BE + "Grüße".encode("utf-16-be"), "Grüße", "utf-16"),
            ("Grüße".encode("utf-32"), "Grüße", "utf-32"),
            ("Déjà vu – naïve".encode("cp1252"), "Déjà vu – naïve", "windows-1252"),
            ("Déjà vu".encode("latin-1"), "Déjà vu", "windows-1252"),
            (b"a\r\nb\rc\n", "a\nb\nc\n", "utf-8"),
            (b"", "", "utf-8"),
        ],
    )
    def test_text_is_decoded(self, data: bytes, text: str, encoding: str) -> None:
        assert decode(data) == (text, encoding)

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b"abc\0def", "NUL character at byte 3"),
            (b"\x01\x02\x03\x04text", "control characters"),
            ("Grüße".encode("utf-16-le"), "NUL character"),
            (codecs.BOM_UTF16_LE + b"a", "not valid utf-16"),
            (codecs.BOM_UTF8 + b"ab\xff", "byte 5"),
            ("a\0b".encode("utf-16"), "NUL character"),
            (b"abc \x81 def", "not valid UTF-8 at byte 4"),
            ("é".encode("latin-1") + b" and a bell \x07 in a long enough text", "not valid UTF-8 at byte 0"),
        ],
    )
    def test_what_is_no_text_is_refused_with_its_place(self, data: bytes, said: str) -> None:
        with pytest.raises(Unreadable, match=said):
            decode(data)

    def test_tabs_and_escapes_are_no_control_characters(self) -> None:
        assert not set(CONTROLS) & set(b"\t\n\r\x1b")

    def test_bad_files_are_named_and_take_no_other_with_them(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", "z.md")
        write(tmp_path, "empty.md", text="")
        write(tmp_path, "blank.md", text=" \n\t\n\u200b\ufeff\n")
        write(tmp_path, "large.md", text="x" * 10_001)
        write(tmp_path, "limit.md", text="x" * 10_000)
        (tmp_path / "binary.md").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0")
        (tmp_path / "old.md").write_bytes("# Façade\n\nDéjà vu".encode("latin-1"))

        documents, failed, skipped = walk(options(tmp_path))

        assert list(documents) == ["a.md", "limit.md", "old.md", "z.md"]
        assert documents["old.md"].metadata["encoding"] == "windows-1252"
        assert documents["old.md"].title == "Façade"
        assert "encoding" not in documents["a.md"].metadata
        assert set(failed) == {"binary.md"}
        assert set(skipped) == {"empty.md", "blank.md", "large.md"}
        assert "10001" in skipped["large.md"]
        assert "10000" in skipped["large.md"]
        assert all(name in reason for name, reason in (failed | skipped).items())

    def test_what_may_come_back_is_kept_and_what_became_empty_is_not(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        write(tmp_path, "empty.md", text="")
        write(tmp_path, "newline.md", text="\n")
        write(tmp_path, "short.md", text="x")
        write(tmp_path, "large.md", text="x" * 10_001)
        (tmp_path / "binary.md").write_bytes(b"\0\0\0")

        ids = open_source(options(tmp_path)).ids()

        assert ids.ids == {"a.md", "short.md", "large.md", "binary.md"}
        assert ids.complete

    def test_messages_hold_no_text_of_the_file(self, tmp_path: Path) -> None:
        write(tmp_path, "front.md", text="---\nkey: [topsecret\n---\n\ntopsecret")
        (tmp_path / "binary.md").write_bytes(b"topsecret\0")

        _, failed, _ = walk(options(tmp_path))

        assert len(failed) == 2
        assert not any("topsecret" in reason for reason in failed.values())


class TestNames:
    def test_two_unicode_forms_of_a_name_are_one_id(self, tmp_path: Path) -> None:
        write(tmp_path, "cafe\u0301.md")

        found = listing(tmp_path, "caf\u00e9.md")

        assert names(found) == ["caf\u00e9.md"]
        documents, _, _ = walk(options(tmp_path))
        assert documents["caf\u00e9.md"].metadata["source_path"] == "caf\u00e9.md"

    def test_files_that_differ_in_unicode_form_only_are_reported(self, tmp_path: Path) -> None:
        write(tmp_path, "cafe\u0301.md", "caf\u00e9.md")

        documents, failed, _ = walk(options(tmp_path))

        assert list(documents) == ["caf\u00e9.md"]
        assert "Unicode form" in failed["caf\u00e9.md"]

    def test_a_name_that_is_no_utf8_is_escaped(self, tmp_path: Path) -> None:
        (tmp_path / os.fsdecode(b"caf\xe9.md")).write_text("# Title\n")

        documents, _, _ = walk(options(tmp_path))

        (name,) = documents
        assert name == "caf\\xe9.md"
        name.encode()
        documents[name].url.encode("ascii")
        assert documents[name].url.endswith("caf%E9.md")
        assert external_id("plain/x.md") == "plain/x.md"

    def test_urls_are_quoted(self, tmp_path: Path) -> None:
        write(tmp_path, "a b/c#d ü.md")
        given = SourceOptions(
            name="x", type="markdown", root=tmp_path, paths=("**",), base_url="https://git.example/tree/main/"
        )

        documents, _, _ = walk(given)

        assert documents["a b/c#d ü.md"].url == "https://git.example/tree/main/a%20b/c%23d%20%C3%BC.md"

    def test_a_deep_tree_is_walked(self, tmp_path: Path) -> None:
        name = "/".join(["d"] * 300) + "/a.md"
        write(tmp_path, name)

        assert names(listing(tmp_path)) == [name]


class TestStamp:
    def test_it_moves_with_an_edit_of_the_same_length(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", text="one")
        before = listing(tmp_path).stamp
        status = (tmp_path / "a.md").stat()
        write(tmp_path, "a.md", text="two")
        os.utime(tmp_path / "a.md", ns=(status.st_atime_ns, status.st_mtime_ns + 1))

        assert listing(tmp_path).stamp != before

    def test_it_moves_with_a_replacement_that_keeps_the_time(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md", text="one")
        status = (tmp_path / "a.md").stat()
        before = listing(tmp_path).stamp
        write(tmp_path, "b", text="two")
        os.utime(tmp_path / "b", ns=(status.st_atime_ns, status.st_mtime_ns))
        (tmp_path / "b").replace(tmp_path / "a.md")

        assert listing(tmp_path).stamp != before

    def test_files_that_do_not_match_do_not_move_it(self, tmp_path: Path) -> None:
        write(tmp_path, "a.md")
        before = listing(tmp_path).stamp
        write(tmp_path, "b.txt")

        assert listing(tmp_path).stamp == before


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

        pages = list(pages_of(Entry(key=str(n), document=document(n)) for n in range(5)))

        assert [len(page.documents) for page in pages] == [2, 2, 1]
        assert [page.cursor for page in pages] == [{"after": "1"}, {"after": "3"}, {}]

    def test_exactly_one_full_page_is_the_last(self) -> None:
        problem = Problem(external_id="x", reason="y")

        pages = list(pages_of(Entry(key=f"{n:03d}", failed=problem) for n in range(100)))

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

    def test_two_thousand_small_files_take_well_under_a_second(self, tmp_path: Path) -> None:
        for n in range(2000):
            write(
                tmp_path, f"{n % 40}/{n}.md", text=f"---\ntitle: T{n}\ntags: [a]\n---\n\n# H\n\nSome text.\n"
            )
        start = time.process_time()

        documents, _, _ = walk(options(tmp_path))

        assert len(documents) == 2000
        assert time.process_time() - start < 1.5, "of this process's own time; other load does not count"


def test_an_unknown_type_lists_the_known_ones(tmp_path: Path) -> None:
    given = SourceOptions(name="wiki", type="gopher", root=tmp_path, paths=("*",))

    with pytest.raises(ConfigurationError, match=r"'gopher'.*markdown, text, pbi_json, json"):
        open_source(given)
