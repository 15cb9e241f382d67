"""The part of a chunk that a person should see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.enrichment.text import Passage, passage

LONG = "Filler words stand here. " * 40 + "The kestrel nests in towers. " + "More filler follows. " * 40


def marked(found: Passage) -> list[str]:
    return [found.text[start:end] for start, end in found.marks]


def test_a_short_text_comes_whole_on_one_line() -> None:
    found = passage("The kestrel\n\n  nests\tin towers.", "kestrel towers", length=200)
    assert found.text == "The kestrel nests in towers."
    assert marked(found) == ["kestrel", "towers"]


def test_a_long_text_is_cut_to_where_the_words_stand() -> None:
    found = passage(LONG, "where do kestrels nest in a tower?", length=120)
    assert "The kestrel nests in towers." in found.text
    assert found.text.startswith("... ")
    assert found.text.endswith(" ...")
    assert marked(found) == ["kestrel", "nests", "towers"]


def test_different_words_beat_one_word_often() -> None:
    text = "kestrel " * 20 + "x " * 100 + "kestrel and otter and kiln" + " y" * 100
    assert "kestrel and otter and kiln" in passage(text, "kestrel otter kiln", length=80).text


@pytest.mark.parametrize(
    ("question", "text", "words"),
    [
        ("retries", "a retry", ["retry"]),
        ("running", "it runs", []),
        ("indexing", "the index indexes", ["index", "indexes"]),
        ("HADOOP-123", "see hadoop-123", ["hadoop", "123"]),
        ("a is the of", "a is the of", []),
        ("what does it do", "what does it do", []),
        ("k8s", "on K8S today", ["K8S"]),
        ("größe", "Die Größe", ["Größe"]),
    ],
)
def test_usual_forms_of_a_word_are_marked(question: str, text: str, words: list[str]) -> None:
    assert marked(passage(text, question, length=200)) == words


def test_links_are_shown_by_their_words_and_calls_as_they_stand() -> None:
    text = "See [the nests](/kestrel/nests.md#top), `fill(value[, offset])` and handlers[name](event)."
    found = passage(text, "kestrel nests", length=200)
    assert found.text == "See the nests, `fill(value[, offset])` and handlers[name](event)."
    assert marked(found) == ["nests"]


def test_without_the_words_the_beginning_is_shown() -> None:
    found = passage(LONG, "zebra", length=60)
    assert found.text.startswith("Filler words stand here.")
    assert found.marks == []


def test_one_endless_word_is_cut() -> None:
    found = passage("x" * 1000, "y", length=50)
    assert found.text.endswith(" ...")
    assert len(found.text) <= 50


@given(st.text(max_size=600), st.text(max_size=60), st.integers(min_value=20, max_value=300))
def test_it_is_never_too_long_and_marks_lie_inside(content: str, question: str, length: int) -> None:
    found = passage(content, question, length=length)
    assert len(found.text) <= length
    assert "\n" not in found.text
    last = 0
    for start, end in found.marks:
        assert last <= start < end <= len(found.text)
        last = end


@given(
    st.lists(st.sampled_from(["kestrel", "otter", "x", "filler", "word"]), min_size=1, max_size=200),
    st.integers(min_value=30, max_value=120),
)
def test_a_word_of_the_question_is_in_sight_if_it_is_there(words: list[str], length: int) -> None:
    found = passage(" ".join(words), "kestrel", length=length)
    assert bool(found.marks) == ("kestrel" in words)
    assert set(marked(found)) <= {"kestrel"}


def test_comments_and_marks_are_not_shown() -> None:
    text = "[adding]: #adding\n<!-- hidden - note -->\n.. _adding:\n\nAdd\n===\n\n.. note::\n   Use :cmake:command:`add_x` now -- or later.\n"
    found = passage(text, "use add_x", length=200)
    assert found.text == "Add Use `add_x` now -- or later."
    assert [found.text[start:end] for start, end in found.marks][:2] == ["Add", "Use"]


def test_marks_of_emphasis_and_code_and_backslashes_are_not_shown_and_code_is_as_it_is() -> None:
    text = "**DEPENDS** *may* name \\<files>\\_ or `a\\*b`:\n\n```cmake\n# set **x**\nfile(\\*_one_)\n```\n\nOr __not at all__.\n"
    found = passage(text, "depends files", length=200)
    assert found.text == "DEPENDS may name <files>_ or `a\\*b`: # set **x** file(\\*_one_) Or not at all."
    assert marked(found) == ["DEPENDS", "files", "file"]
