"""The semantic strategy: a chunk for every paragraph."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Chunk, Document, Kind, SourceType


def chunks_of(text: str, *, preserve: bool = False) -> list[Chunk]:
    document = Document(
        external_id="a.md", title="Guide", text=text, source_type=SourceType.TEXT, kind=Kind.REFERENCE
    )
    options = ChunkingOptions(
        strategy="semantic", min_size=100, max_size=500, overlap=50, preserve_whitespace=preserve
    )
    return open_chunker(options).chunk(document)


@pytest.mark.req("001-130")
def test_three_short_paragraphs_are_three_chunks() -> None:
    chunks = chunks_of("Paragraph 1\n\nParagraph 2\n\nParagraph 3")
    assert len(chunks) == 3
    assert "Paragraph 1" in chunks[0].content
    assert chunks[0].ord == 0
    assert [chunk.content for chunk in chunks] == ["Paragraph 1", "Paragraph 2", "Paragraph 3"]


@pytest.mark.req("001-131")
def test_six_hundred_letters_are_cut_with_an_overlap_of_fifty() -> None:
    chunks = chunks_of("A" * 600)
    assert [len(chunk.content) for chunk in chunks] == [500, 150]
    assert chunks[0].content[-50:] in chunks[1].content


@pytest.mark.req("001-018", "001-131")
def test_the_last_fifty_characters_open_the_next_chunk() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(1400))
    chunks = chunks_of(text)
    assert [chunk.content for chunk in chunks] == [text[:500], text[450:950], text[900:1400]]


@pytest.mark.req("001-019")
def test_headings_go_with_the_paragraph_below_and_into_the_context() -> None:
    chunks = chunks_of("# Guide\n\n## Setup\n\nFirst.\n\nSecond.\n\n## Use\nThird.")
    assert [chunk.content for chunk in chunks] == [
        "# Guide\n\n## Setup\n\nFirst.",
        "Second.",
        "## Use\nThird.",
    ]
    assert [chunk.context for chunk in chunks] == ["Guide > Setup", "Guide > Setup", "Guide > Use"]


def test_a_heading_below_a_paragraph_without_a_blank_line_starts_a_chunk() -> None:
    assert [chunk.content for chunk in chunks_of("One.\n# Two\nThree.")] == ["One.", "# Two\nThree."]


def test_headings_with_nothing_below_are_kept() -> None:
    assert [chunk.content for chunk in chunks_of("One.\n\n# Two\n\n# Three")] == ["One.", "# Two\n\n# Three"]


@pytest.mark.req("001-019")
def test_code_with_blank_lines_is_one_chunk() -> None:
    code = "```python\na = 1\n\n\nb = 2\n\n# c\n```"
    assert [chunk.content for chunk in chunks_of(f"Before.\n\n{code}\n\nAfter.")] == [
        "Before.",
        code,
        "After.",
    ]


def test_code_right_below_its_paragraph_stays_whole_if_both_do_not_fit() -> None:
    code = "```\n" + "x = 1\n" * 60 + "```"
    chunks = chunks_of("Sentence number one. " * 12 + f"\n{code}\n")
    assert len(chunks) == 2
    assert chunks[1].content == code


def test_lines_of_one_paragraph_and_its_list_stay_together() -> None:
    text = "One\ntwo:\n- three\n- four"
    assert [chunk.content for chunk in chunks_of(f"{text}\n\nFive")] == [text, "Five"]


@pytest.mark.req("001-094")
def test_a_long_paragraph_is_cut_between_sentences_with_an_overlap() -> None:
    text = " ".join(f"This is sentence {n}." for n in range(100))
    chunks = chunks_of(text)
    assert len(chunks) > 3
    for before, after in pairwise(chunks):
        first = after.content.split(". ")[0]
        assert before.content.endswith(".")
        assert f"{first}. " in before.content
        assert after.content.startswith("This is")


def test_a_cut_never_leaves_a_crumb_of_new_text() -> None:
    for size in range(501, 620):
        text = "".join(chr(0x4E00 + n) for n in range(size))
        chunks = chunks_of(text)
        assert len(chunks) == 2
        assert len(chunks[1].content) - 50 >= 100


def test_short_paragraphs_are_not_merged_with_a_cut_one() -> None:
    chunks = chunks_of("Short.\n\n" + "word " * 150 + "\n\nShort too.")
    assert chunks[0].content == "Short."
    assert chunks[-1].content == "Short too."


def test_preserved_blanks_stay_at_the_end_of_their_paragraph() -> None:
    text = "\n\nOne  \n\n\n\nTwo\n"
    assert [chunk.content for chunk in chunks_of(text, preserve=True)] == ["One  \n\n\n\n", "Two\n"]
