"""The recursive and the fixed strategy, and the cutting they share with the others."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pipeline.chunking.splitting import (
    PROSE,
    ChunkingOptions,
    Piece,
    Ruler,
    Sentences,
    Separator,
    Tokens,
    Words,
    split_rows,
    split_windows,
)
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Chunk, Document, Kind, SourceType


def chunks_of(text: str, options: ChunkingOptions) -> list[Chunk]:
    document = Document(
        external_id="a.txt", title="Notes", text=text, source_type=SourceType.TEXT, kind=Kind.REFERENCE
    )
    return open_chunker(options).chunk(document)


RECURSIVE = ChunkingOptions(strategy="recursive", min_size=100, max_size=1000, overlap=200)
FIXED = ChunkingOptions(strategy="fixed", min_size=0, max_size=100, overlap=20)


@pytest.mark.req("002-005")
def test_recursive_cuts_between_paragraphs_first() -> None:
    paragraphs = [f"Paragraph {n}. " + "Some more of it. " * 15 for n in range(12)]
    chunks = chunks_of("\n\n".join(p.strip() for p in paragraphs), RECURSIVE)
    ends = {paragraph.strip()[-30:] for paragraph in paragraphs}
    assert len(chunks) >= 4
    assert all(chunk.content[-30:] in ends for chunk in chunks)
    assert all(500 < len(chunk.content) <= 1000 for chunk in chunks[:-1])


@pytest.mark.req("002-005")
def test_recursive_falls_back_to_sentences_then_characters() -> None:
    sentences = " ".join(f"Sentence number {n} is here." for n in range(100))
    assert all(chunk.content.endswith(".") for chunk in chunks_of(sentences, RECURSIVE))
    letters = "".join(chr(0x4E00 + n) for n in range(2500))
    assert [chunk.content for chunk in chunks_of(letters, RECURSIVE)] == [
        letters[0:1000],
        letters[800:1800],
        letters[1600:2500],
    ]


@pytest.mark.req("002-005")
def test_every_recursive_chunk_begins_inside_the_one_before() -> None:
    text = "\n\n".join(f"Line {n} a. Line {n} b. " + "filler " * 20 for n in range(40))
    chunks = chunks_of(text, RECURSIVE)
    for before, after in pairwise(chunks):
        shared = max((n for n in range(1, 201) if before.content.endswith(after.content[:n])), default=0)
        assert 0 < shared <= 200


def test_recursive_uses_the_given_separators() -> None:
    text = ";".join(f"part {n} of it" for n in range(60))
    options = ChunkingOptions(
        strategy="recursive", min_size=10, max_size=100, overlap=0, split_on=("", "\n", ";")
    )
    chunks = chunks_of(text, options)
    assert "".join(chunk.content for chunk in chunks) == text
    assert all(chunk.content.endswith(";") for chunk in chunks[:-1])


def test_recursive_passes_over_a_separator_that_would_leave_a_crumb() -> None:
    chunks = chunks_of("Title\n\n" + "Sentence here. " * 100, RECURSIVE)
    assert len(chunks[0].content) > 900


@pytest.mark.parametrize("strategy", ["recursive", "fixed"])
def test_the_title_is_the_context(strategy: str) -> None:
    chunks = chunks_of("# A\n\ntext", ChunkingOptions(strategy=strategy))
    assert [(chunk.content, chunk.context) for chunk in chunks] == [("# A\n\ntext", "Notes")]


def test_fixed_windows_have_exact_sizes_where_there_are_no_blanks() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(250))
    assert [chunk.content for chunk in chunks_of(text, FIXED)] == [text[:100], text[80:180], text[160:250]]


def test_fixed_cuts_at_a_blank_only_if_one_is_near() -> None:
    near = "x" * 85 + " " + "y" * 100
    far = "x" * 60 + " " + "y" * 150
    assert chunks_of(near, FIXED)[0].content == "x" * 85
    assert chunks_of(far, FIXED)[0].content == "x" * 60 + " " + "y" * 39


def test_a_hard_cut_repeats_exactly_the_overlap_even_if_a_word_begins_there() -> None:
    text = "x" * 60 + " " + "y" * 150
    options = ChunkingOptions(strategy="fixed", min_size=0, max_size=100, overlap=50)
    assert chunks_of(text, options)[1].content == text[50:150]


def test_fixed_pays_no_attention_to_sentences() -> None:
    text = "One sentence. " + "word " * 60
    assert len(chunks_of(text, FIXED)[0].content) > 90


def pieces(text: str, most: int, overlap: int, least: int = 0, first: int | None = None) -> list[Piece]:
    options = ChunkingOptions(min_size=least, max_size=most, overlap=overlap)
    return list(split_windows(text, options, Ruler(), PROSE, first=first))


def test_pieces_and_gaps_without_overlap_are_the_text() -> None:
    text = "One two.   Three four! \n Five six? Seven eight nine ten.  "
    assert "".join(piece.text + piece.gap for piece in pieces(text, 12, 0)) == text
    assert all(piece.text == piece.text.strip() for piece in pieces(text, 12, 0))


def test_the_indent_of_the_first_line_is_kept_unless_it_fills_a_chunk() -> None:
    assert pieces("  one two three", 10, 0)[0].text == "  one two"
    assert pieces(" " * 50 + "one two three", 10, 0)[0].text == "one two"


def test_the_first_piece_may_be_smaller() -> None:
    found = pieces("x" * 100, 40, 10, first=15)
    assert [len(piece.text) for piece in found] == [15, 40, 40, 35]


def test_a_sentence_end_early_in_the_window_is_not_worth_it() -> None:
    assert pieces("Hi. " + "word " * 20, 50, 0)[0].text.endswith("word")
    assert pieces("A sentence of more than half. And then it goes on", 40, 0)[0].text.endswith("half.")


def test_an_overlap_never_reaches_over_a_long_gap() -> None:
    found = pieces("aaa bbb" + " " * 500 + "ccc " * 20, 30, 10)
    assert found[0].text == "aaa bbb"
    assert found[1].text.startswith("ccc")


@pytest.mark.parametrize("quote", ['."', "!'", "?”)", "。", "。」"])
def test_closing_quotes_belong_to_their_sentence(quote: str) -> None:
    text = f"He said so{quote} Then he left the room"
    assert Sentences().last(text, 0, 30) == 10 + len(quote)
    assert Sentences().first(text, 1, 30) == 11 + len(quote)


def test_points_inside_words_end_no_sentence() -> None:
    assert Sentences().last("version 3.14 of a.b.c runs", 0, 20) is None
    assert Sentences().last("一二。三四", 0, 4) == 3


def test_a_sentence_or_word_that_starts_at_the_tail_counts() -> None:
    assert Sentences().first("One. Two. Three", 5, 12) == 5
    assert Words().first("one two three", 4, 9) == 4
    assert Words().first("one two three", 5, 10) == 8
    assert Words().first("one two three", 9, 12) is None


def test_word_ends() -> None:
    assert Words().last("one two three", 0, 7) == 7
    assert Words().last("one two three", 0, 8) == 7
    assert Words().last("one two three", 0, 6) == 3
    assert Words().last("one two three", 3, 6) is None
    assert Words().last("onetwothree", 0, 6) is None


def test_separators() -> None:
    comma = Separator(mark=", ")
    assert comma.last("a, b, c, d", 0, 5) == 5
    assert comma.last("a, b, c, d", 0, 4) == 2
    assert comma.last("a, b, c, d", 2, 4) is None
    assert comma.first("a, b, c, d", 3, 9) == 3
    assert comma.first("a, b, c, d", 4, 9) == 6
    assert Separator(mark="\n\n").last("a\n\nb", 0, 2) == 1


def test_rows_keep_their_blank_lines() -> None:
    text = "a  \n\n\n  b\r\nc"
    assert list(split_rows(text)) == [Piece("a", "  \n\n\n"), Piece("  b", "\r\n"), Piece("c", "")]


@pytest.mark.parametrize("room", [1, 7, 50, 400])
def test_token_pieces_fit_and_use_their_room(room: int) -> None:
    text = "some words of prose that go on " * 200
    tokens = Tokens(lambda piece: len(piece.split()))
    end = tokens.end_within(text, 5, room)
    start = tokens.start_within(text, len(text), room)
    for piece in (text[5:end], text[start:]):
        assert 0.9 * room - 1 <= tokens.size(piece) <= room
    assert tokens.end_within("abc", 0, 100) == 3
    assert tokens.start_within("abc", 3, 100) == 0


def test_a_piece_is_never_empty_even_without_room() -> None:
    tokens = Tokens(lambda piece: 10 * len(piece))
    assert tokens.end_within("abc", 1, 3) == 2
    assert tokens.start_within("abc", 2, 3) == 2
    assert Ruler().end_within("abc", 1, 0) == 2
