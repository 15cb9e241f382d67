"""Markdown files as documents: what is kept, titles, times."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connectors.documents.headings import code_lines, headings_of, plain_text, title_of
from connectors.documents.values import parse_day, parse_time
from pipeline.documents import Kind, SourceType
from tests.complexity import assert_linear
from tests.connectors.notes import document, read


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

    def test_a_root_that_is_a_folder_of_records_tells(self, tmp_path: Path) -> None:
        (tmp_path / "docs/adr").mkdir(parents=True)
        assert document(tmp_path / "docs/adr", "# Rows\n\nx", name="0001-rows.md").kind is Kind.DECISION
        assert document(tmp_path / "docs", "# Rows\n\nx", name="0001-rows.md").kind is Kind.REFERENCE

    @pytest.mark.req("001-065")
    def test_fixed_metadata_reaches_every_document_and_the_file_goes_first(self, tmp_path: Path) -> None:
        fixed = {"category": "reference", "team": "core", "source_path": "nonsense"}
        (tmp_path / "plain.md").write_text("# Plain\n")
        own = document(tmp_path, "---\ncategory: guide\n---\ntext", metadata=fixed)
        plain = read(tmp_path, metadata=fixed)[0]["plain.md"]

        assert own.metadata == {"category": "guide", "team": "core", "source_path": "note.md"}
        assert plain.metadata == {"category": "reference", "team": "core", "source_path": "plain.md"}

    @pytest.mark.parametrize(
        ("head", "acl"),
        [
            ("", [["group:hr"]]),
            ("acl: [[user:ann], [group:board]]\n", [["group:hr"], ["user:ann"], ["group:board"]]),
            ("acl: []\n", [["group:hr"]]),
            ("acl: everybody\n", [["group:hr"], ["permission:admin"]]),
        ],
    )
    def test_a_file_narrows_the_readers_of_its_source(self, tmp_path: Path, head: str, acl: Any) -> None:
        fixed = {"acl": [["group:hr"]]}
        found = document(tmp_path, f"---\ntitle: T\n{head}---\ntext", metadata=fixed)

        assert found.metadata["acl"] == acl

    def test_a_file_may_name_its_readers(self, tmp_path: Path) -> None:
        found = document(tmp_path, "---\nacl: [[user:ann]]\n---\ntext", frontmatter_fields=())

        assert found.metadata["acl"] == [["user:ann"]]

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
            ("# Module: aws/redis\\_cache\\_cluster", "Module: aws/redis_cache_cluster"),
            ("# What `__main__` and `a\\_b` do", r"What __main__ and a\_b do"),
            ("- Feature: x\n\n## Summary\n\na\n\n## Motivation\n\nb", "note"),
            ("# Status\n\nAccepted\n\n# Context\n\na\n\n# Decision\n\nb", "note"),
            ("# Summary\n\na\n\n# Costs\n\nb", "Summary"),
            ("# Motivation\n\n## Context\n\na\n\n## Decision\n\nb", "Motivation"),
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
        assert code_lines("a\n```\n# b\nc") == [False, True, True, True]
        assert title_of(list(headings_of("```\n# b\n"))) == ""

    def test_inline_code_of_three_marks_opens_no_fence(self) -> None:
        assert title_of(list(headings_of("```x``` is code\n\n# Me"))) == "Me"

    @settings(max_examples=60, deadline=None)
    @given(st.text(alphabet="# \n`~-=ab[]()*_<!>|", max_size=200))
    def test_no_text_breaks_the_scan(self, text: str) -> None:
        lines = text.split("\n")
        assert len(code_lines(text)) == len(lines)
        for heading in headings_of(text):
            assert 1 <= heading.level <= 6
            assert 0 <= heading.line < len(lines)

    @pytest.mark.parametrize("piece", ["[", "![", "](", "*a", "_", "#", "`", "<!--", "[a](", "# [x", "[a]: "])
    def test_hostile_lines_cost_linear_time(self, tmp_path: Path, piece: str) -> None:
        assert_linear(
            lambda size: "# " + piece * (size // len(piece)), 150_000, lambda text: document(tmp_path, text)
        )


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

    @pytest.mark.parametrize(
        ("text", "day"),
        [
            ("2024-02-03", "2024-02-03"),
            ("2024-02-03T23:00:00Z", "2024-02-03"),
            ("on 2024/2/3", "2024-02-03"),
            ("Oct 4, 2023", "2023-10-04"),
            ("Sep 5th, 2023", "2023-09-05"),
            ("December 11 2025", "2025-12-11"),
            ("11-April-2023", "2023-04-11"),
            ("8 Jun 2024", "2024-06-08"),
            ("2019 Sep 04", "2019-09-04"),
            ("16. März 2024", "2024-03-16"),
            ("1er août 2024", "2024-08-01"),
            ("05.06.2024", "2024-06-05"),
            ("22-10-2024", "2024-10-22"),
            ("10/22/2024", "2024-10-22"),
            ("05/06/2024", ""),
            ("06/06/2024", "2024-06-06"),
            ("January, 2026", ""),
            ("2024-02-31", ""),
            ("4 Foo 2024", ""),
            ("", ""),
        ],
    )
    def test_a_day_is_read_in_any_usual_spelling(self, text: str, day: str) -> None:
        assert parse_day(text) == day
