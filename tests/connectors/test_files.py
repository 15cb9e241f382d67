"""Which files a walk finds: links, rights, missing ones, names, stamps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from connectors import open_source
from connectors.files.walk import external_id
from pipeline.errors import ConfigurationError, SourceDenied, SourceUnavailable
from tests.connectors.folders import as_nobody, file_options, listing, names, options, walk, write


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

    def test_a_cycle_gives_no_file_a_second_path(self, tmp_path: Path) -> None:
        write(tmp_path, "docs/a.md", "docs/in/a.md")
        (tmp_path / "docs/loop").symlink_to(".")

        assert names(listing(tmp_path, "docs/*/a.md")) == ["docs/in/a.md"]

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
        assert not skipped
        assert "no folder docs" in failed["docs"]
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
        given = file_options(
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
