"""Chunks as sentences: lists, headings, overlap, abbreviations, cuts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.documents import Chunk
from pipeline.enrichment.text import (
    CUT,
    HEADINGS,
    QUOTED,
    Section,
    by_section,
    is_prose,
    section_of,
    sentences_of,
    shared_words,
    split_sentences,
    stems,
    truncated,
    without_marks,
)
from tests.complexity import assert_linear


def texts(*contents: str) -> list[str]:
    return [s.text for s in sentences_of([Chunk(ord=n, content=c) for n, c in enumerate(contents)])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Use e.g. Postgres 15.2 for that. Then stop.", ["Use e.g. Postgres 15.2 for that.", "Then stop."]),
        ("Das gilt z.B. Montags. Änderungen folgen.", ["Das gilt z.B. Montags.", "Änderungen folgen."]),
        ("See No. 7 of the list. 50 rows suffice.", ["See No. 7 of the list.", "50 rows suffice."]),
        ("He said “stop.” Nobody did.", ["He said “stop.”", "Nobody did."]),
        ("一つ。二つ。", ["一つ。", "二つ。"]),
        ("no end", ["no end"]),
        ("", []),
    ],
)
def test_a_paragraph_is_split_at_the_ends_of_its_sentences(text: str, expected: list[str]) -> None:
    assert list(split_sentences(text)) == expected


def test_a_hard_line_break_does_not_end_a_sentence_and_an_item_of_a_list_begins_one() -> None:
    assert texts("A line\nthat goes on\n- first\n  and more\n- [x] second\n1. third") == [
        "A line that goes on",
        "first and more",
        "second",
        "third",
    ]


def test_headings_rules_rows_and_code_are_no_sentences() -> None:
    found = texts(
        "# Title\n\n---\n\n```\n# comment\nrm -rf\n```\n\nWords.\n\n| a | b |\n|---|---|\n| c | d |"
    )
    assert found == ["Words."]


def test_what_is_quoted_goes_on_over_its_lines() -> None:
    found = texts(
        "They say:\n> Ask the owner of the gate\n> first. Then wait.\n>\n> A day is\n> enough.\n> - Or two\n> - Or more\n\nSo be it."
    )
    assert found == [
        "Ask the owner of the gate first.",
        "Then wait.",
        "A day is enough.",
        "Or two",
        "Or more",
        "So be it.",
    ]


def test_where_the_links_of_a_name_lead_is_no_sentence_and_a_footnote_is_one() -> None:
    found = texts(
        "# Why\n[why]: #why\n\nThe crews agreed [so][1] twice.\n[1]: https://x.example/a (A)\n\n[^1]: It was said twice.\n"
    )
    assert found == ["The crews agreed so twice.", "It was said twice."]


def test_code_that_was_cut_is_no_sentence_in_any_chunk() -> None:
    assert texts("One.\n\n```sh\nrun it", "then that", "```sh\nand more\n```\n\nTwo.") == ["One.", "Two."]
    chunks = [Chunk(ord=n, content=c) for n, c in ((0, "One.\n\n```\nrun it"), (5, "Words again."))]
    assert [s.text for s in sentences_of(chunks)] == ["One.", "Words again."]


@pytest.mark.parametrize(
    "text",
    [
        "2024-03-01 12:00:01,123 INFO server.Boot: started",
        "12:00:01 the server started",
        "at org.example.Main.run(Main.java:12)",
        "Caused by: java.io.IOException: broken pipe",
        "WARN org.example.Boot is slow",
        "| Status | Accepted |",
        "| inputs | Where they come from. Only valid for balancers of type application. | list(string) |",
        "https://example.org/a/b",
        "See also [the guide](a.md), [the manual](b.md) and https://example.org.",
        "For more information, see [this page](https://example.org).",
        "User Agent: Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101",
        "<td>Words of a</td><td>table of them</td>",
        "Version 2 (Mozilla/5.0 (X11; Linux) Gecko/20100101) it is.",
        "**Answering guidance.**",
        "Zm9v" * 60,
        "Steps to reproduce:",
        "**Notes:**",
        "N/A",
        "_No response_",
        "<describe what happens>",
        "<name>dfs.replication</name>",
        "<!-- left over -->",
        "As [your role] I want [your goal].",
        "$ make install and wait",
        "`larder sync --force`",
        "retries = 5",
        "run(export, mail);",
        "return the_value_of_it;",
        '{"key": "value", "more": 1}',
        "12 / 34 == 56",
        "~Generator.shuffle ~Generator.permutation ~Generator.choice",
        "",
    ],
)
def test_what_nobody_wrote_to_be_read_is_no_prose(text: str) -> None:
    assert not is_prose(text)
    assert texts(text) == []


def test_what_stands_around_no_prose_is_not_next_to_each_other() -> None:
    content = "One is here. See [two](a.md). Three is there. Four."
    found = sentences_of([Chunk(ord=0, content=f"{content}\n\nFive.")])
    assert [s.text for s in found] == ["One is here.", "Three is there.", "Four.", "Five."]
    one, three, four, five = [s.paragraph for s in found]
    assert one < three == four < five


@pytest.mark.parametrize(
    "text",
    [
        "Accepted",
        "Call {{mvn site}} first of all.",
        "**Decision: rejected.**",
        "設定" * 110,
        "Export by mail",
        "We use [Vault](https://vault.example) for secrets of the server.",
        "The error went away; nobody knows why.",
        "Status: accepted by all, see the minutes",
        "Run `larder sync` after each change.",
        "A java.io.IOException was thrown when the disk was full.",
        "Der Umlaut überlebt die Übertragung (UTF-8).",
        "設定を変更した。",
        "https://example.org shows a blank page.",
    ],
)
def test_what_somebody_wrote_is_prose(text: str) -> None:
    assert is_prose(text)
    assert len(texts(text)) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "We *use* **[Vault](https://v.io/a_(b))** for **all *the* secrets**.",
            "We use Vault for all the secrets.",
        ),
        (
            "It is _not_ __so easy__ with `a_b_c` and __init__.",
            "It is not so easy with `a_b_c` and __init__.",
        ),
        (
            "H<sub>2</sub>O in<br>the <a href='x'>tank</a> of the <div> element is a List<String>.",
            "H2O in the tank of the <div> element is a List<String>.",
        ),
        ("Read [it][1] or [that|https://a.b] at 2 * 3 * 4.", "Read it or that at 2 * 3 * 4."),
        ("The [OM]() stores what ![the picture](a.png) shows.", "The OM stores what the picture shows."),
        ('The H<sub>2</sub>O is<br>in <a href="x">the tank</a>.', "The H2O is in the tank."),
        ("The `<div>` element and a List<String> stay.", "The `<div>` element and a List<String> stay."),
        ("It was so,[^1] and is.[^note]", "It was so, and is."),
        (r"The module aws/redis\_cluster has `a\_b` now.", r"The module aws/redis_cluster has `a\_b` now."),
    ],
)
def test_links_emphasis_and_tags_are_read_as_their_words(text: str, said: str) -> None:
    assert without_marks(text) == said
    assert texts(f"## {text}\n\n{text}") == [said]


def test_an_anchor_behind_a_heading_is_no_part_of_it() -> None:
    (sentence,) = sentences_of([Chunk(ord=0, content="## Types {#types}\n\nThere are two of them.")])
    assert sentence.headings[-1] == "Types"


def test_a_sentence_knows_the_headings_above_it_across_chunks() -> None:
    chunks = [Chunk(ord=0, content="# Item\n\n## Outcome\n\nIt works."), Chunk(ord=1, content="It is fast.")]
    chunks.append(Chunk(ord=2, content="### Later\n\nStill."))
    chunks.append(Chunk(ord=3, content="## Notes\n\nIt rains."))
    found = sentences_of(list(reversed(chunks)))
    assert [s.headings for s in found] == [
        ("Item", "Outcome"),
        ("Item", "Outcome"),
        ("Item", "Outcome", "Later"),
        ("Item", "Notes"),
    ]
    assert [s.ord for s in found] == [0, 1, 2, 3]
    assert [s.text for s in by_section(found)[Section.OUTCOME]] == ["It works.", "It is fast.", "Still."]


def test_what_overlapping_chunks_repeat_is_there_once_and_whole() -> None:
    assert texts("One is here. Two is there.", "is there. Three.") == [
        "One is here.",
        "Two is there.",
        "Three.",
    ]
    assert texts("One. Two is", "Two is there.") == ["One.", "Two is there."]
    assert texts("One. Two.", "One. Two. Three.") == ["One.", "Two.", "Three."]
    assert texts("One. Two.", "Two. Three.") == ["One.", "Two.", "Three."]


def test_items_of_a_list_are_told_without_their_marks_and_boxes() -> None:
    found = sentences_of([Chunk(ord=0, content="- [x] a\n- [ ] b\n- [X] c\n- d\n\ne")])
    assert [(s.text, s.item) for s in found] == [
        ("a", True),
        ("b", True),
        ("c", True),
        ("d", True),
        ("e", False),
    ]


@pytest.mark.parametrize(
    ("heading", "part"),
    [
        ("Decision", Section.DECISION),
        ("3. Decision outcome:", Section.DECISION),
        ("**Entscheidung**", Section.DECISION),
        ("Critères d’acceptation", Section.CRITERIA),
        ("LESSONS LEARNED", Section.LESSONS),
        ("Decision drivers", Section.RATIONALE),
        ("Context and Problem Statement", Section.CONTEXT),
        ("Konsequenzen", Section.CONSEQUENCES),
        ("Decision/Consequence", Section.DECISION),
        ("Context & Motivation", Section.CONTEXT),
        ("Decision and log", None),
        ("Abstract", Section.SUMMARY),
        ("Decision log", None),
        ("", None),
    ],
)
def test_a_heading_announces_its_part_in_several_languages(heading: str, part: Section | None) -> None:
    assert section_of((heading,)) is part


def test_the_time_for_sentences_and_parts_grows_with_the_text_and_no_faster() -> None:
    assert_linear(lambda n: "A. " * n, 6_000, lambda text: list(split_sentences(text)))
    assert_linear(lambda n: f"a{'(' * n}b", 4_000, lambda heading: section_of((heading,)))


def test_no_heading_announces_two_parts() -> None:
    names = [name for names in HEADINGS.values() for name in names]
    assert len(names) == len(set(names))
    assert all(section_of((name.title(),)) is part for part, own in HEADINGS.items() for name in own)


def test_a_summary_is_that_of_the_part_above_it() -> None:
    assert section_of(("Decision", "Summary")) is Section.DECISION
    assert section_of(("Use one clock", "Summary", "Details")) is Section.SUMMARY
    (said,) = sentences_of([Chunk(ord=0, content="## Fix\n\nSummary: the clock was reset.")])
    assert by_section([said])[Section.RESOLUTION] == [said]


def test_words_of_any_item_are_no_reason_to_show_a_document() -> None:
    item, other = "Use one clock before each start", "Use one clock, and the other before you start"
    assert shared_words(item, "", other, "", among=stems(item)) == ["start", "clock"]


def test_the_nearest_telling_heading_counts_and_a_label_counts_more() -> None:
    found = sentences_of(
        [
            Chunk(
                ord=0,
                content="## Decision\n\n### Status\n\nOpen.\n\n### More\n\nWe wait.\n\n**Resolution:** none. Yet.",
            )
        ]
    )
    assert [s.text for s in by_section(found)[Section.STATUS]] == ["Open."]
    assert [s.text for s in by_section(found)[Section.DECISION]] == ["We wait."]
    assert [s.text for s in by_section(found)[Section.RESOLUTION]] == ["Resolution: none.", "Yet."]


def test_a_long_text_is_cut_at_a_sentence_or_a_word() -> None:
    sentence = "This sentence has about fifty characters in it now. "
    assert truncated(sentence * 9) == (sentence * 3).strip() + f" {CUT}"
    words = "word " * 100
    assert truncated(words) == ("word " * 39).strip() + f" {CUT}"
    assert truncated("short\n text") == "short text"


@given(st.text(alphabet="ab .!A\n", max_size=900), st.integers(20, 300))
def test_a_cut_text_is_a_beginning_and_never_too_long(text: str, length: int) -> None:
    cut = truncated(text, length)
    assert len(cut) <= length
    assert " ".join(text.split()).startswith(cut.removesuffix(CUT).rstrip())


def test_one_endless_word_is_cut_where_there_is_room() -> None:
    assert len(truncated("x" * 1000)) == QUOTED
