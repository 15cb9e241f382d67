"""Markdown files as documents: titles, front matter, times, links."""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors import SourceOptions, open_source
from connectors.front_matter import split_front_matter, tags_of
from connectors.headings import code_lines, headings_of, plain_text, title_of
from connectors.json_values import MAX_VALUES, clean_text, json_able, scalar_text
from connectors.times import parse_time
from pipeline.documents import Document, Kind, Problem, SourceType
from pipeline.errors import DocumentRejected


def read(root: Path, **changes: Any) -> tuple[dict[str, Document], dict[str, Problem], dict[str, Problem]]:
    given_options: dict[str, Any] = {"name": "docs", "type": "markdown", "root": root, "paths": ("**/*.md",)}
    pages = list(open_source(SourceOptions(**(given_options | changes))).pages(None))
    return (
        {d.external_id: d for page in pages for d in page.documents},
        {p.external_id: p for page in pages for p in page.failed},
        {p.external_id: p for page in pages for p in page.skipped},
    )


def document(root: Path, text: str, name: str = "note.md", **changes: Any) -> Document:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
    documents, failed, skipped = read(root, **changes)
    assert not failed, failed
    assert not skipped, skipped
    return documents[name]


def failure(root: Path, text: str) -> str:
    (root / "bad.md").write_text(text)
    (root / "good.md").write_text("# Good\n")
    documents, failed, _ = read(root)
    assert list(documents) == ["good.md"]
    assert set(failed) == {"bad.md"}
    return failed["bad.md"].reason


class TestDocument:
    @pytest.mark.req("001-015", "001-016", "002-003", "002-004")
    def test_everything_a_file_says_is_kept(self, tmp_path: Path) -> None:
        found = document(
            tmp_path,
            "---\ntitle: Retry policy\ntags: [queue, Resilience]\ncategory: guide\nauthor: Ada\n"
            "date: 2024-02-03\nupdated: 2024-05-06T07:08:09+02:00\nsecret: hidden\n---\n\n# Head\n\nBody.\n",
            name="docs/retry.md",
        )

        assert found.external_id == "docs/retry.md"
        assert found.title == "Retry policy"
        assert found.text == "# Head\n\nBody."
        assert found.tags == ("queue", "Resilience")
        assert found.source_type is SourceType.DOCUMENTATION
        assert found.kind is Kind.REFERENCE
        assert found.url == (tmp_path / "docs/retry.md").as_uri()
        assert found.metadata == {
            "title": "Retry policy",
            "tags": ["queue", "Resilience"],
            "category": "guide",
            "author": "Ada",
            "date": "2024-02-03",
            "updated": "2024-05-06T07:08:09+02:00",
            "source_path": "docs/retry.md",
        }
        assert found.created_at == datetime(2024, 2, 3, tzinfo=UTC)
        assert found.updated_at == datetime(2024, 5, 6, 5, 8, 9, tzinfo=UTC)

    @pytest.mark.req("001-065")
    def test_fixed_metadata_reaches_every_document_and_the_file_goes_first(self, tmp_path: Path) -> None:
        fixed = {"category": "reference", "team": "core", "source_path": "nonsense"}
        (tmp_path / "plain.md").write_text("# Plain\n")
        own = document(tmp_path, "---\ncategory: guide\n---\ntext", metadata=fixed)
        plain = read(tmp_path, metadata=fixed)[0]["plain.md"]

        assert own.metadata == {"category": "guide", "team": "core", "source_path": "note.md"}
        assert plain.metadata == {"category": "reference", "team": "core", "source_path": "plain.md"}

    @pytest.mark.req("001-050")
    def test_only_the_listed_fields_are_kept(self, tmp_path: Path) -> None:
        text = "---\ntitle: T\ntags: a\ncategory: c\nowner: me\nempty:\n---\ntext"

        found = document(tmp_path, text, frontmatter_fields=("owner", "empty", "absent"))

        assert found.metadata == {"owner": "me", "source_path": "note.md"}
        assert found.title == "T"
        assert found.tags == ("a",)

    def test_the_source_type_may_be_set(self, tmp_path: Path) -> None:
        found = document(tmp_path, "text", source_type=SourceType.PBI)

        assert found.source_type is SourceType.PBI
        assert found.kind is Kind.WORK

    def test_a_touched_file_has_the_same_hash(self, tmp_path: Path) -> None:
        before = document(tmp_path, "# One\n\ntext").content_hash
        os.utime(tmp_path / "note.md", (1_000_000, 1_000_000))

        after = read(tmp_path)[0]["note.md"]

        assert after.content_hash == before
        assert after.updated_at == datetime(1970, 1, 12, 13, 46, 40, tzinfo=UTC)

    def test_a_file_with_front_matter_only_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "head.md").write_text("---\ntitle: Only a head\n---\n\n")

        documents, failed, skipped = read(tmp_path)

        assert not documents
        assert not failed
        assert "no text" in skipped["head.md"].reason


class TestTitle:
    @pytest.mark.parametrize(
        ("text", "title"),
        [
            ("---\ntitle: Given\n---\n# Head", "Given"),
            ("---\ntitle: 42\n---\n# Head", "42"),
            ("---\ntitle: 2024-01-02\n---\n# Head", "2024-01-02"),
            ("---\ntitle: ''\n---\n# Head", "Head"),
            ("---\ntitle: [a]\n---\n# Head", "Head"),
            ("## Second\n\n# First", "First"),
            ("## Second\n\n### Third", "Second"),
            ("Underlined\n==========\n\ntext", "Underlined"),
            ("Lower\n-----\n\nUpper\n=====\n", "Upper"),
            ("```\n# not me\n```\n# Me", "Me"),
            ("~~~sh\n# not me\n```\n# nor me\n~~~\n# Me", "Me"),
            ("````\n```\n# not me\n````\n# Me", "Me"),
            ("<!-- note\n# not me\n-->\n# Me", "Me"),
            ("    # code\n\n# Me", "Me"),
            ("#hashtag\n\n# Me #", "Me"),
            ("# \n\n## Me", "Me"),
            ("# `code` and **bold** _x_ [link](a.md) snake_case", "code and bold x link snake_case"),
            ("- item\n---\n\n# Me", "Me"),
            ("| a | b |\n---\n# Me", "Me"),
            ("just text", "note"),
            ("   # Indented by three", "Indented by three"),
            ("# Grüße 東京", "Grüße 東京"),
        ],
    )
    def test_the_title_is(self, tmp_path: Path, text: str, title: str) -> None:
        assert document(tmp_path, text).title == title

    def test_a_file_name_with_dots_loses_only_its_suffix(self, tmp_path: Path) -> None:
        assert document(tmp_path, "text", name="v1.2.notes.md").title == "v1.2.notes"

    def test_a_title_is_never_endless(self) -> None:
        assert len(plain_text("x " * 5000)) <= 300

    def test_an_unclosed_fence_swallows_the_rest(self) -> None:
        assert code_lines(["a", "```", "# b", "c"]) == [False, True, True, True]
        assert title_of(list(headings_of("```\n# b\n"))) == ""

    def test_inline_code_of_three_marks_opens_no_fence(self) -> None:
        assert title_of(list(headings_of("```x``` is code\n\n# Me"))) == "Me"

    @settings(max_examples=60, deadline=None)
    @given(st.text(alphabet="# \n`~-=ab[]()*_<!>|", max_size=200))
    def test_no_text_breaks_the_scan(self, text: str) -> None:
        lines = text.split("\n")
        assert len(code_lines(lines)) == len(lines)
        for heading in headings_of(text):
            assert 1 <= heading.level <= 6
            assert 0 <= heading.line < len(lines)

    @pytest.mark.parametrize("piece", ["[", "![", "](", "*a", "_", "#", "`", "<!--", "[a](", "# [x", "[a]: "])
    def test_hostile_lines_cost_linear_time(self, tmp_path: Path, piece: str) -> None:
        text = "# " + piece * (600_000 // len(piece))
        start = time.process_time()

        document(tmp_path, text)

        assert time.process_time() - start < 5


class TestFrontMatter:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("---\ntitle: ok\nbad: [1, 2\n---\ntext", "line 4"),
            ("---\ntitle: 'x\n---\ntext", "line 3"),
            ("---\na: b: c\n---\ntext", "line 2"),
            ("---\n- a\n- b\n---\ntext", "line 1"),
            ("---\njust words\n---\ntext", "line 1"),
            ("---\ntitle: never closed\n\ntext", "line 1"),
            ("---\ntitle: !!python/object:os.system x\n---\ntext", "line 2"),
            ("---\ntitle: *nowhere\n---\ntext", "line 2"),
            ("---\na: 1\n\ttab: 2\n---\ntext", "line 3"),
            ("---\nx: " + "[" * 5000 + "\n---\ntext", "line"),
        ],
    )
    def test_a_broken_head_fails_with_file_and_line(self, tmp_path: Path, text: str, line: str) -> None:
        reason = failure(tmp_path, text)

        assert "bad.md" in reason
        assert line in reason

    @pytest.mark.parametrize(
        ("text", "body"),
        [
            ("---\n\nA ruler on top.\n\n---\n\nmore", "---\n\nA ruler on top.\n\n---\n\nmore"),
            ("---\n\nA: [ruler\n\n---\n\nmore", "---\n\nA: [ruler\n\n---\n\nmore"),
            ("---\nA lone ruler", "---\nA lone ruler"),
            ("----\na: b\n----\ntext", "----\na: b\n----\ntext"),
            ("text\n---\na: b\n---\n", "text\n---\na: b\n---\n"),
            ("---\n---\ntext", "text"),
            ("---\n\ntitle: x\n\n---\n\ntext", "text"),
            ("---  \ntitle: x\n---\t\n    code\n\n---\nend\n", "    code\n\n---\nend"),
            ("---\ntext: |\n  ---\n---\nbody", "body"),
        ],
    )
    def test_head_and_body_are_told_apart(self, text: str, body: str) -> None:
        assert split_front_matter(text, "x.md").body == body

    def test_an_impossible_date_stays_text(self, tmp_path: Path) -> None:
        found = document(tmp_path, "---\ndate: 2024-13-45\n---\ntext")

        assert found.metadata["date"] == "2024-13-45"
        assert found.created_at == found.updated_at

    def test_windows_line_ends_and_a_mark_make_no_difference(self, tmp_path: Path) -> None:
        (tmp_path / "note.md").write_bytes(b"\xef\xbb\xbf---\r\ntitle: T\r\n---\r\n\r\n# H\r\ntext\r\n")

        found = read(tmp_path)[0]["note.md"]

        assert found.title == "T"
        assert found.text == "# H\ntext"

    def test_odd_values_become_plain_json(self, tmp_path: Path) -> None:
        head = (
            "a: .nan\nb: .inf\nc: !!set {y, x}\nd: 2024-01-02 03:04:05\n1: one\n"
            'e: "nul\\0 and"\nf: !!binary aGVsbG8=\ng: {2: {x: 2024-01-02}}\nh: [[1], {}]\n'
        )
        fields = ("a", "b", "c", "d", "1", "e", "f", "g", "h")

        found = document(tmp_path, f"---\n{head}---\ntext", frontmatter_fields=fields).metadata

        assert json.loads(json.dumps(found, allow_nan=False)) == found
        assert "a" not in found or found["a"] is None
        assert found["c"] == ["x", "y"]
        assert found["d"] == "2024-01-02T03:04:05"
        assert found["1"] == "one"
        assert "\0" not in found["e"]
        found["e"].encode()
        assert found["g"] == {"2": {"x": "2024-01-02"}}
        assert found["h"] == [[1], {}]

    def test_references_that_multiply_stay_small(self, tmp_path: Path) -> None:
        lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 10)]
        head = "\n".join(lines)

        found = document(tmp_path, f"---\n{head}\n---\ntext", frontmatter_fields=("l9",))

        assert len(json.dumps(found.metadata)) < 20 * MAX_VALUES

    def test_a_value_that_holds_itself_ends(self, tmp_path: Path) -> None:
        found = document(tmp_path, "---\nloop: &a [x, *a]\n---\ntext", frontmatter_fields=("loop",))

        assert found.metadata["loop"][0] == "x"

    @pytest.mark.parametrize(
        ("value", "tags"),
        [
            (["a", "b", "a"], ("a", "b")),
            ("a, b ,,c", ("a", "b", "c")),
            ([1, 2.5, True, None, "x"], ("1", "2.5", "true", "x")),
            (["#a", " b ", ["nested"], {"k": "v"}], ("a", "b")),
            (7, ("7",)),
            (False, ("false",)),
            (None, ()),
            ({"a": 1}, ()),
            ("", ()),
        ],
    )
    def test_tags_are(self, value: Any, tags: tuple[str, ...]) -> None:
        assert tags_of(value) == tags

    def test_truth_values_among_tags_are_text(self, tmp_path: Path) -> None:
        found = document(tmp_path, "---\ntags: [on, no, 2024, 2024-01-02]\n---\ntext")

        assert found.tags == ("true", "false", "2024", "2024-01-02")
        assert found.metadata["tags"] == list(found.tags)

    def test_a_rejection_is_one_of_ours(self) -> None:
        with pytest.raises(DocumentRejected) as caught:
            split_front_matter("---\n[\n---\n", "x.md")

        assert caught.value.fix
        assert not caught.value.transient


class TestTimes:
    def test_without_front_matter_the_files_time_counts(self, tmp_path: Path) -> None:
        (tmp_path / "note.md").write_text("text")
        os.utime(tmp_path / "note.md", (1_700_000_000, 1_700_000_000))

        found = read(tmp_path)[0]["note.md"]

        assert found.created_at == found.updated_at == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("head", "created", "updated"),
        [
            ("created: 2020-01-01\ndate: 2021-01-01", "2020-01-01", "2023-11-14"),
            ("date: 2021-01-01", "2021-01-01", "2023-11-14"),
            ("updated: 2019-01-01", "2019-01-01", "2019-01-01"),
            ("date: 2030-01-01", "2030-01-01", "2030-01-01"),
            ("date: '2021-02-03T04:05:06Z'", "2021-02-03", "2023-11-14"),
            ("date: soon", "2023-11-14", "2023-11-14"),
        ],
    )
    def test_what_the_author_says_goes_first(
        self, tmp_path: Path, head: str, created: str, updated: str
    ) -> None:
        (tmp_path / "note.md").write_text(f"---\n{head}\n---\ntext")
        os.utime(tmp_path / "note.md", (1_700_000_000, 1_700_000_000))

        found = read(tmp_path)[0]["note.md"]

        assert found.created_at is not None
        assert found.updated_at is not None
        assert found.created_at.date().isoformat() == created
        assert found.updated_at.date().isoformat() == updated

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ("2024-01-02", "2024-01-02T00:00:00+00:00"),
            ("2024-01-02T03:04:05Z", "2024-01-02T03:04:05+00:00"),
            ("2024-01-02 03:04:05+05:00", "2024-01-01T22:04:05+00:00"),
            (1_700_000_000, "2023-11-14T22:13:20+00:00"),
            (1_700_000_000_000, "2023-11-14T22:13:20+00:00"),
            ("nonsense", None),
            ("", None),
            (True, None),
            (1e300, None),
            (float("nan"), None),
            ("0001-01-01T00:00:00+05:00", None),
            (None, None),
            ([], None),
        ],
    )
    def test_a_time_is_read(self, value: Any, expected: str | None) -> None:
        moment = parse_time(value)

        assert (moment.isoformat() if moment else None) == expected


class TestLinks:
    @pytest.fixture
    def linked(self, tmp_path: Path) -> Path:
        for name in ("README.md", "docs/other.md", "docs/deep/a b.md", "docs/pic.png"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("# X\n")
        (tmp_path.parent / f"{tmp_path.name}-outside.md").write_text("# Outside\n")
        return tmp_path

    TEXT = (
        '# Me\n\nSee [other](other.md#part "Title"), [top](../README.md?x=1), [root](/docs/other.md),\n'
        "![pic](pic.png), [space](deep/a%20b.md), [angle](<deep/a b.md>), [`code`](other.md)\n"
        "[ref]: ../README.md\n\n"
        "[web](https://e.example/other.md) [mail](mailto:a@b.example) [anchor](#part) [proto](//e.example/x.md)\n"
        "[lost](nowhere.md) [folder](deep) [nul](a%00.md) `[code](other.md)`\n\n```\n[fence](other.md)\n```\n"
    )

    def test_without_a_base_url_the_text_stays_and_the_links_are_listed(self, linked: Path) -> None:
        outside = f"[out](../../{linked.name}-outside.md)"

        found = document(linked, self.TEXT + outside, name="docs/me.md")

        assert found.text == (self.TEXT + outside).strip("\n")
        assert found.metadata["links"] == ["README.md", "docs/deep/a b.md", "docs/other.md", "docs/pic.png"]

    def test_with_a_base_url_they_lead_to_the_linked_documents(self, linked: Path) -> None:
        found = document(linked, self.TEXT, name="docs/me.md", base_url="https://g.example/w")

        assert '[other](https://g.example/w/docs/other.md#part "Title")' in found.text
        assert "[top](https://g.example/w/README.md?x=1)" in found.text
        assert "[root](https://g.example/w/docs/other.md)" in found.text
        assert "![pic](https://g.example/w/docs/pic.png)" in found.text
        assert "[space](https://g.example/w/docs/deep/a%20b.md)" in found.text
        assert "[angle](https://g.example/w/docs/deep/a%20b.md)" in found.text
        assert "[`code`](https://g.example/w/docs/other.md)" in found.text
        assert "[ref]: https://g.example/w/README.md" in found.text
        for left in ("`[code](other.md)`", "[fence](other.md)", "[lost](nowhere.md)", "[anchor](#part)"):
            assert left in found.text
        assert found.url == "https://g.example/w/docs/me.md"

    def test_a_hundred_links_are_enough(self, tmp_path: Path) -> None:
        for n in range(120):
            (tmp_path / f"{n}.md").write_text("# X\n")
        text = "\n".join(f"[x]({n}.md)" for n in range(120))

        assert len(document(tmp_path, text).metadata["links"]) == 100

    def test_a_text_without_links_has_no_such_key(self, tmp_path: Path) -> None:
        assert "links" not in document(tmp_path, "# No [links] here").metadata


class TestValues:
    def test_text_is_made_storable(self) -> None:
        assert clean_text("a\0b") == "ab"
        assert clean_text("\ud83d\ude00") == "\U0001f600"
        clean_text("lone \ud83d").encode()

    def test_depth_is_cut(self) -> None:
        value: Any = "end"
        for _ in range(500):
            value = [value]

        assert len(json.dumps(json_able(value))) < 100

    @pytest.mark.parametrize(
        ("value", "text"), [(True, "true"), (1.5, "1.5"), (None, ""), ([1], ""), ({}, ""), (" x ", "x")]
    )
    def test_a_scalar_as_text(self, value: Any, text: str) -> None:
        assert scalar_text(value) == text
