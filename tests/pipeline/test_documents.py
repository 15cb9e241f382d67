"""The shared words: hashes that change when search would, and names that are understood."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import DEFAULT_KIND, Chunk, Document, Kind, Problem, SourceType
from pipeline.documents.plain_text import first_names, plural

PLAIN = Document(
    external_id="a",
    title="Title",
    text="One line.\n\nAnother line.",
    source_type=SourceType.TEXT,
    kind=Kind.REFERENCE,
    tags=("x", "y"),
    metadata={"b": 1, "a": [1, {"c": None}]},
)


@pytest.mark.req("002-011")
class TestTheContentHash:
    @pytest.mark.parametrize(
        "change",
        [
            {"text": "One line.\r\n\r\nAnother line."},
            {"text": "One line.  \n\t\nAnother line.\n\n"},
            {"title": " Title "},
            {"tags": ("y", "x")},
            {"metadata": {"a": [1, {"c": None}], "b": 1}},
            {"created_at": datetime(2026, 1, 1, tzinfo=UTC)},
            {"updated_at": datetime(2026, 1, 1, tzinfo=UTC)},
            {"external_id": "moved"},
        ],
    )
    def test_what_search_does_not_show_is_no_change(self, change: dict[str, Any]) -> None:
        assert replace(PLAIN, **change).content_hash == PLAIN.content_hash

    @pytest.mark.parametrize(
        "change",
        [
            {"text": "One line.\n\nAnother Line."},
            {"text": "One line.\nAnother line."},
            {"text": "  One line.\n\nAnother line."[1:] + " more"},
            {"title": "Titel"},
            {"tags": ("x",)},
            {"url": "https://example.org"},
            {"metadata": {"b": 2, "a": [1, {"c": None}]}},
            {"kind": Kind.DECISION},
            {"source_type": SourceType.PBI},
            {"security_level": "secret"},
        ],
    )
    def test_what_search_shows_or_filters_by_is_one(self, change: dict[str, Any]) -> None:
        assert replace(PLAIN, **change).content_hash != PLAIN.content_hash

    def test_title_and_text_do_not_run_into_each_other(self) -> None:
        assert (
            replace(PLAIN, title="ab", text="c").content_hash
            != replace(PLAIN, title="a", text="bc").content_hash
        )

    @given(st.text(alphabet=st.characters()), st.text(alphabet=st.characters()))
    def test_any_text_has_one_and_the_same(self, title: str, text: str) -> None:
        document = replace(PLAIN, title=title, text=text)
        assert document.content_hash == replace(document).content_hash
        assert len(document.content_hash) == 64

    def test_broken_characters_have_one_too(self) -> None:
        assert len(replace(PLAIN, text="\udc80\x00").content_hash) == 64


class TestChunks:
    def test_the_embedder_reads_the_context_first(self) -> None:
        assert Chunk(ord=0, content="text", context="Title > Part").embedding_text == "Title > Part\n\ntext"
        assert Chunk(ord=0, content="text").embedding_text == "text"

    def test_the_hash_is_that_of_what_the_embedder_reads(self) -> None:
        chunk = Chunk(ord=0, content="text", context="T")
        assert chunk.hash == replace(chunk, ord=9).hash
        assert chunk.hash != replace(chunk, context="U").hash
        assert chunk.hash != replace(chunk, content="texts").hash


class TestNames:
    @pytest.mark.parametrize(
        ("text", "meant"),
        [
            ("pbi", SourceType.PBI),
            ("pbi_json", SourceType.PBI),
            ("markdown", SourceType.DOCUMENTATION),
            ("azure", SourceType.AZURE_DEVOPS),
            (" Confluence ", SourceType.CONFLUENCE),
            ("TEXT", SourceType.TEXT),
        ],
    )
    def test_values_and_aliases_are_understood(self, text: str, meant: SourceType) -> None:
        assert SourceType.parse(text) is meant

    def test_an_unknown_one_is_refused_with_the_list(self) -> None:
        with pytest.raises(ValueError, match=r"'wiki'; known are pbi, .*markdown"):
            SourceType.parse("wiki")

    def test_every_type_has_a_kind(self) -> None:
        assert set(DEFAULT_KIND) == set(SourceType)
        assert DEFAULT_KIND[SourceType.PBI] is Kind.WORK
        assert DEFAULT_KIND[SourceType.CONFLUENCE] is Kind.REFERENCE


def test_a_problem_is_told_as_json() -> None:
    made = Problem(external_id="a.md", reason="it is binary", url="u")
    assert made.to_json() == {"item": "a.md", "reason": "it is binary", "url": "u"}


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        PLAIN.title = "other"  # type: ignore[misc]


def test_what_there_is_in_words() -> None:
    assert [first_names(range(n), 2) for n in (1, 2, 4)] == ["0", "0, 1", "0, 1 and 2 more"]
    assert [plural(n, "page") for n in (0, 1, 1_234_567)] == ["0 pages", "1 page", "1234567 pages"]
    assert [plural(n, "story", "stories") for n in (0, 1, 2)] == ["0 stories", "1 story", "2 stories"]
