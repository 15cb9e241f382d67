"""Cutting long texts: nothing lost, every part fits, cuts where they do least harm."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedding.calls import halves, split_text
from tests.complexity import assert_linear

PIECES = st.sampled_from(["word", " ", "\n", "\n\n", ". ", "é", "12-34", "x" * 30])


@given(st.lists(PIECES, max_size=120).map("".join), st.integers(1, 60))
def test_parts_fit_and_only_white_space_is_lost(text: str, most: int) -> None:
    parts = split_text(text, lambda part: len(part) / most)
    assert all(0 < len(part) <= most for part in parts) or not text
    assert "".join("".join(parts).split()) == "".join(text.split())
    at = 0
    for part in parts:
        at = text.index(part, at) + len(part)


@given(st.lists(PIECES, min_size=1, max_size=200).map("".join))
def test_parts_are_full(text: str) -> None:
    """Half-empty parts would cost calls: none can be joined with its neighbour's half."""
    parts = split_text(text, lambda part: len(part) / 40)
    assert len(parts) <= max(1, math.ceil(len(text) / (40 - 40 // 8)))


def test_a_text_that_fits_is_left_alone() -> None:
    assert split_text("one two", lambda text: len(text) / 7) == ["one two"]
    assert split_text("", lambda _text: 0.0) == []


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("a" * 35 + "\n\n\nb" + "c" * 40, "a" * 35 + "\n\n\n"),
        ("a" * 35 + "\n. b" + "c" * 40, "a" * 35 + "\n"),
        ("a" * 35 + ". b " + "c" * 40, "a" * 35 + ". "),
        ("a" * 36 + " " + "c" * 40, "a" * 36 + " "),
        ("a" * 36 + "/" + "c" * 40, "a" * 36 + "/"),
        ("a" * 80, "a" * 40),
    ],
    ids=["paragraph", "line", "sentence", "word", "sign", "anywhere"],
)
def test_a_cut_is_made_where_it_does_least_harm(text: str, first: str) -> None:
    assert split_text(text, lambda part: len(part) / 40)[0] == first


def test_a_character_that_does_not_fit_is_a_part_all_the_same() -> None:
    assert split_text("ab", lambda text: 5.0 if text else 0.0) == ["a", "b"]


def test_nothing_but_white_space_is_one_part() -> None:
    assert len(split_text(" " * 100, lambda text: len(text) / 9)) == 1


def test_the_work_grows_with_the_text_and_not_with_its_square() -> None:
    looked_at = 0

    def excess(text: str) -> float:
        nonlocal looked_at
        looked_at += len(text)
        return len(text) / 100

    assert len(split_text("some words and more. " * 20_000, excess)) > 4000
    assert looked_at < 10 * 420_000


def test_the_time_grows_with_the_text_and_no_faster() -> None:
    assert_linear(
        lambda n: "some words and more. " * n,
        20_000,
        lambda text: split_text(text, lambda part: len(part) / 100),
    )


@given(st.text(max_size=50))
def test_halves_are_smaller_and_hold_the_text(text: str) -> None:
    parts = halves(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert len(parts) <= 2
    assert len(parts) == 1 or all(len(part) < len(text) for part in parts)


def test_halves_are_about_equal() -> None:
    assert [len(part) for part in halves("x" * 100)] == [56, 44]
    assert halves("x") == ["x"]
    assert halves("ab") == ["a", "b"]
