"""The head of a Markdown file, and foreign values made storable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from connectors.documents.values import MAX_VALUES, clean_text, json_able, scalar_text, tags_of
from connectors.files.front_matter import read_front_matter
from tests.connectors.notes import document, read


class TestFrontMatter:
    @pytest.mark.parametrize(
        ("text", "line"),
        [
            ("---\ntitle: ok\nbad: [1, 2\n---\ntext", "line 4"),
            ("---\ntitle: 'x\n---\ntext", "line 2"),
            ("---\ntitle: b: c\n---\ntext", "line 2"),
            ("---\ntitle: never closed\n\ntext", "line 1"),
            ("---\ntitle: !!python/object:os.system x\n---\ntext", "line 2"),
            ("---\ntitle: *nowhere\n---\ntext", "line 2"),
            ("---\ntitle: 1\n\ttab: 2\n---\ntext", "line 3"),
            ("---\ntitle: " + "[" * 5000 + "\n---\ntext", "line"),
            ("\n\n---\ntitle: ok\nbad: [1, 2\n---\ntext", "line 6"),
            ("+++\ntitle = x\n+++\ntext", "TOML at line 2"),
        ],
    )
    def test_a_broken_header_is_noted_with_its_line(self, tmp_path: Path, text: str, line: str) -> None:
        found = document(tmp_path, text)

        assert line in found.metadata["reading_note"]
        assert found.text == "text"

    @pytest.mark.parametrize(
        ("text", "body"),
        [
            ("---\n\nA ruler on top.\n\n---\n\nmore", "---\n\nA ruler on top.\n\n---\n\nmore"),
            ("---\n\nA: [ruler\n\n---\n\nmore", "---\n\nA: [ruler\n\n---\n\nmore"),
            ("---\nA lone ruler", "---\nA lone ruler"),
            ("---\njust words\n---\ntext", "---\njust words\n---\ntext"),
            ("---\n- a\n- b\n---\ntext", "---\n- a\n- b\n---\ntext"),
            ("---\nMind: the gap is wide today.\n---\ntext", "---\nMind: the gap is wide today.\n---\ntext"),
            ("---\nMind: the gap.\n\ntext", "---\nMind: the gap.\n\ntext"),
            ("----\na: b\n----\ntext", "----\na: b\n----\ntext"),
            ("text\n---\na: b\n---\n", "text\n---\na: b\n---\n"),
            ("---\n---\ntext", "text"),
            ("---\n\ntitle: x\n\n---\n\ntext", "text"),
            ("---  \ntitle: x\n---\t\n    code\n\n---\nend\n", "    code\n\n---\nend"),
            ("---\ntext: |\n  ---\n---\nbody", "body"),
        ],
    )
    def test_head_and_body_are_told_apart(self, text: str, body: str) -> None:
        assert read_front_matter(text).body == body

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
        assert found["a"] == ".nan"
        assert found["c"] == ["x", "y"]
        assert found["d"] == "2024-01-02 03:04:05"
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

    def test_values_among_tags_are_as_written(self, tmp_path: Path) -> None:
        found = document(tmp_path, "---\ntags: [on, no, 2024, 2024-01-02]\n---\ntext")

        assert found.tags == ("on", "no", "2024", "2024-01-02")
        assert found.metadata["tags"] == list(found.tags)


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
