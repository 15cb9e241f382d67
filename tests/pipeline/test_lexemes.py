"""What the keyword index reads of a text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.search.words import searchable, searchable_with_length
from tests.complexity import assert_linear


def words(text: str) -> list[str]:
    return searchable(text).split()


@pytest.mark.req("001-093")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HADOOP-123", ["HADOOP", "123", "HADOOP123"]),
        ("src/main/File.java", ["src", "main", "File", "java", "srcmainFilejava"]),
        ("ns/tool_call.v2", ["ns", "tool", "call", "v2", "nstoolcallv2"]),
        ("10.0.0.1:8080", ["10", "0", "0", "1", "8080", "100018080"]),
        ("snake_case", ["snake", "case", "snakecase"]),
        ("one two", ["one", "two"]),
        ("end. Start", ["end", "Start"]),
        ("a--b", ["a", "b"]),
        ("-x- /y/", ["x", "y"]),
        ("größe-2 日本", ["größe", "2", "日本", "größe2"]),
    ],
)
def test_compounds_come_in_parts_and_once_more_whole(text: str, expected: list[str]) -> None:
    assert words(text) == expected


@pytest.mark.req("001-093")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HttpServer", {"HttpServer", "Http", "Server"}),
        ("nameNode", {"nameNode", "name", "Node"}),
        ("XMLHttpRequest", {"XMLHttpRequest", "XML", "Http", "Request"}),
        ("my_HttpServer", {"HttpServer", "Http", "Server"}),
        ("FSImage.v2", {"FSImage", "FS", "Image"}),
    ],
)
def test_camel_case_comes_whole_and_in_parts(text: str, expected: set[str]) -> None:
    assert expected <= set(words(text))


@pytest.mark.parametrize("word", ["HADOOP", "hadoop", "Hadoop", "v2", "K8s"])
def test_plain_words_stay_single(word: str) -> None:
    assert words(word) == [word]


def test_a_compound_that_comes_often_is_added_once() -> None:
    assert words("a-1 a-1 a-1") == ["a", "1", "a", "1", "a", "1", "a1"]


def test_very_long_identifiers_are_only_taken_apart() -> None:
    long = "a" * 50 + "-" + "b" * 50
    assert words(long) == ["a" * 50, "b" * 50]
    assert words("Aa" * 50) == ["Aa" * 50]


@pytest.mark.parametrize("text", ["", " ", "?!", "& | ! ( ) : * <->", "' \\ \"", "\x00", "\ud800", "___"])
def test_text_without_words_gives_nothing(text: str) -> None:
    assert searchable(text) == ""
    assert searchable_with_length(text)[1] == 0


@given(st.text(alphabet=st.characters(codec=None), max_size=200))
def test_only_letters_digits_and_blanks_come_out(text: str) -> None:
    made = searchable(text)
    assert all(c == " " or (c.isalnum() and c != "_") or c.isnumeric() for c in made)
    made.encode("utf-8")


@given(st.text(max_size=200))
def test_no_word_is_lost(text: str) -> None:
    plain = searchable(text.lower())
    again = searchable(plain)
    assert set(again.split()) == set(plain.split())


def test_lengths_are_words_as_written() -> None:
    assert searchable_with_length("HADOOP-123 fails, again!")[1] == 4
    assert searchable_with_length("HttpServer")[1] == 1


@pytest.mark.parametrize(
    ("head", "piece", "tail", "times"),
    [
        ("", "k", "", 200_000),
        ("", "aA", "", 100_000),
        ("a", "A", "é", 100_000),
        ("", "a-", "", 100_000),
        ("", "-", "", 200_000),
        ("", "a.b/c:d_e-", "", 20_000),
        ("", "Ab1", "", 60_000),
    ],
    ids=["one-word", "humps", "capitals", "compound", "marks", "mixed", "digits"],
)
def test_no_text_takes_long(head: str, piece: str, tail: str, times: int) -> None:
    """An expression that goes back and forth would take hours on these, and a search must not."""
    assert_linear(lambda n: head + piece * n + tail, times, searchable)


def test_words_are_letters_and_digits_of_any_script() -> None:
    signs = [chr(n) for n in (*range(0x3000), *range(0x3000, 0x110000, 61)) if not 0xD800 <= n < 0xE000]
    text = "".join(f"{sign}a " for sign in signs)
    assert searchable_with_length(text)[1] == len(re.findall(r"[^\W_]+", text))
    assert set(re.findall(r"[^\W_]+", text)) <= set(words(text))
