"""Which paths the globs of a source match."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from connectors import open_source
from connectors.documents.globs import include_pattern
from connectors.files.options import TextOptions
from pipeline.errors import ConfigurationError
from tests.connectors.folders import as_nobody, file_options, listing, names, options, write


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
        ("glob", "expected"),
        [("**/*", ["a.txt", "x/READ.ME"]), ("x/*.*", ["x/READ.ME"]), ("**/*.[pj][ys]", ["x/b.py", "x/c.js"])],
    )
    def test_programs_are_read_where_their_ending_is_named(
        self, tmp_path: Path, glob: str, expected: list[str]
    ) -> None:
        write(tmp_path, "a.txt", "x/b.py", "x/c.js", "x/READ.ME", "yarn.lock")

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
        "glob", ["../x/*.md", "docs/../../x.md", "/etc/*.md", "~/x.md", "C:\\x.md", "./"]
    )
    @pytest.mark.parametrize("place", ["paths", "exclude"])
    def test_a_glob_that_leaves_the_root_is_refused(self, tmp_path: Path, glob: str, place: str) -> None:
        paths, exclude = ((glob,), ()) if place == "paths" else (("*.md",), (glob,))

        with pytest.raises(ConfigurationError) as caught:
            open_source(options(tmp_path, *paths, exclude=exclude))

        assert repr(glob) in caught.value.message
        assert caught.value.fix

    def test_a_source_without_paths_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match="paths"):
            file_options(name="none", type="markdown", root=tmp_path, paths=())

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
        """One that tries every place for every star would not be done when the test is given up."""
        write(tmp_path, "a" * 200 + ".txt", "/".join(["a"] * 60) + "/b.txt")

        found = listing(tmp_path, "*a*a*a*a*a*a*a*a*b", "**/a/**/a/**/a/**/a/**/a/**/c.md")

        assert names(found) == []


def test_an_unknown_type_lists_the_known_ones(tmp_path: Path) -> None:
    given = TextOptions(name="wiki", type="gopher", root=tmp_path, paths=("*",))

    with pytest.raises(ConfigurationError, match=r"'gopher'.*markdown, text, pbi_json, json"):
        open_source(given)


def test_a_file_named_far_below_an_excluded_folder_is_not_missed(tmp_path: Path) -> None:
    write(tmp_path, "a.md")

    found = listing(tmp_path, "*.md", "old/deep/down/b.md", exclude=("old/**",))

    assert names(found) == ["a.md"]
    assert not found.failed


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("**/*.md", "docs/C.MD", True),
        ("*.MD", "c.md", True),
        ("HANDBOOK.pdf", "HANDBOOK.PDF", True),
        ("handbook.pdf", "HANDBOOK.PDF", False),
        ("Docs/**/*.md", "docs/a.md", False),
        ("**/*", "docs/A.MD", True),
        ("*.md", "C.MDX", False),
    ],
)
def test_an_ending_holds_in_any_case_and_a_name_does_not(glob: str, path: str, matches: bool) -> None:
    assert include_pattern(glob).matches(path) is matches
