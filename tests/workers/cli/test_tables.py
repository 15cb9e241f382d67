"""Tables on narrow screens: no letter is lost, no line is longer than the screen."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from pipeline.documents.plain_text import CONTROLS
from workers.cli.tables import (
    Screen,
    first_lines,
    progress_bars,
    progress_line,
    show_run,
    table,
    to_stdout_json,
    warn,
)

HEADS = ("source", "docs", "state", "error")


def drawn(rows: list[tuple[str, ...]], width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as taken:
        console.print(table(HEADS, rows, right={"docs"}))
    return [line.rstrip() for line in taken.get().splitlines()]


def test_what_fits_is_a_table() -> None:
    assert drawn([("wiki", "12", "ok", ""), ("a", "3", "held 4", "too many")], 40) == [
        "source docs state  error",
        "wiki     12 ok",
        "a         3 held 4 too many",
    ]


def test_a_screen_too_narrow_for_the_words_of_all_columns_shows_each_row_as_a_list() -> None:
    rows: list[tuple[str, ...]] = [("architecture", "12", "failing", "unreachable"), ("wiki", "3", "ok", "")]
    assert drawn(rows, 30) == [
        "architecture",
        "  docs: 12",
        "  state: failing",
        "  error: unreachable",
        "wiki",
        "  docs: 3",
        "  state: ok",
    ]


def test_a_list_that_begins_with_a_number_says_of_what() -> None:
    console = Console(width=24, color_system=None)
    with console.capture() as taken:
        console.print(table(("run", "source", "state"), [("16", "architecture", "finished")]))
    assert taken.get().splitlines() == ["run 16", "  source: architecture", "  state: finished"]


def test_words_are_broken_behind_their_marks() -> None:
    lines = drawn([("manuals-of-cmake-and-python", "12", "ok", "see ./docs/deep/down")], 34)
    assert [line.split()[0] for line in lines[1:]] == ["manuals-of-", "cmake-and-", "python"]
    assert [line.split()[-1] for line in lines[1:]] == ["./docs/", "deep/down", "python"]


def test_nothing_is_read_as_markup_and_colours_are_kept() -> None:
    assert drawn([("[red]a", "1", "[/b]", "")], 80)[1].split() == ["[red]a", "1", "[/b]"]
    console = Console(width=80, force_terminal=True, color_system="standard")
    with console.capture() as taken:
        console.print(table(HEADS[:2], [("a", Text("7", style="red"))]))
    assert "\x1b[31m7" in taken.get()


def test_a_list_is_no_longer_than_it_may_be_and_tells_what_is_left_out() -> None:
    assert first_lines(["a", "b", "c"], 3, "; see there") == ["a", "b", "c"]
    assert first_lines(["a", "b", "c", "d"], 3, "; see there") == ["a", "b", "... and 2 more; see there"]


EVIL = "\x1b]52;c;aGk=\x07ti\x9b2J\u202etle\r\u2066\x7f"
"""Writes the clipboard, wipes the screen, turns the line around, and goes back to its start."""


def test_no_text_drives_the_screen(capsys: pytest.CaptureFixture[str]) -> None:
    console = Screen(width=80, force_terminal=True, color_system="standard")
    console.print(EVIL, Text(EVIL, style="red"), table(("a", EVIL), [(EVIL, Text(EVIL, style="red"))]))
    with progress_bars(console) as bars:
        bars.add_task("x", total=1, note=EVIL)
    warn(EVIL)
    shown = capsys.readouterr()
    plain = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.out)  # colours, and what moves a bar
    assert not CONTROLS.search(plain.replace("\r", "")), repr(plain)
    assert "]52;c;aGk=" in plain, "what is left is seen to be odd"
    assert "]52;c;aGk=ti2Jtle" in shown.err
    assert not CONTROLS.search(shown.err)


def test_a_bar_begins_anew_with_another_run() -> None:
    clock = itertools.count(0.0)
    with progress_bars(Screen(force_terminal=True)) as bars:
        bars.get_time = lambda: next(clock)
        bar = bars.add_task("x", total=None, note="", run=0)
        for done in (1, 2, 3):
            show_run(bars, bar, 1, done, 7, "3 texts")
        assert "3 of 7, " in progress_line(bars.tasks[0]), "with its pace"
        show_run(bars, bar, 2, 0, None, "reading")
        assert (progress_line(bars.tasks[0]), bars.tasks[0].fields["note"]) == ("0", "reading")


def test_json_on_a_screen_is_the_same_data_and_drives_nothing() -> None:
    shown = to_stdout_json({"title": EVIL + "ä", EVIL: "\ud800"})
    assert json.loads(shown) == {"title": EVIL + "ä", EVIL: "\ud800"}
    assert not CONTROLS.search(shown)
    assert "ä" in shown


@given(
    st.lists(
        st.tuples(*(st.text("abcdefgh-", min_size=1, max_size=60) for _ in HEADS)), min_size=1, max_size=3
    ),
    st.integers(min_value=10, max_value=130),
)
def test_no_line_is_too_long_and_no_letter_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    lines = drawn(rows, width)
    assert max(len(line) for line in lines) <= width
    assert Counter("".join(map("".join, rows))) <= Counter("".join("".join(lines).split()))
