"""Tables on narrow screens: no name is cut, no line is longer than the screen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from workers.cli.tables import INDENT, Columns

HEADS = ("source", "docs", "state", "error")


def drawn(table: Columns, width: int) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as taken:
        console.print(table)
    return [line.rstrip() for line in taken.get().splitlines()]


def table(*rows: tuple[str, ...]) -> Columns:
    made = Columns(heads=HEADS, folded=frozenset({"error"}), right=frozenset({"docs"}))
    for row in rows:
        made.add(*row)
    return made


def test_what_fits_is_a_table() -> None:
    assert drawn(table(("wiki", "12", "ok", ""), ("a", "3", "held 4", "too many")), 40) == [
        "source docs state  error",
        "wiki     12 ok",
        "a         3 held 4 too many",
    ]


def test_what_does_not_fit_is_a_block_per_name() -> None:
    rows = table(
        ("a-name-that-is-longer-than-the-screen", "12", "held 4", "it has gone wrong"), ("b", "3", "ok", "")
    )
    assert drawn(rows, 30) == [
        "a-name-that-is-longer-than-the",
        "-screen",
        "  docs 12  state held 4",
        "  error it has gone wrong",
        "b",
        "  docs 3  state ok",
    ]


def test_nothing_is_read_as_markup() -> None:
    assert drawn(table(("[red]a", "1", "[/b]", "")), 80)[1].split() == ["[red]a", "1", "[/b]"]
    assert drawn(table(("[red]a", "1", "[/b]", "")), 12) == ["[red]a", "  docs 1", "  state [/b]"]


def test_colours_are_kept() -> None:
    made = Columns(heads=HEADS[:2])
    made.add("a", Text("7", style="red"))
    for width in (80, 8):
        console = Console(width=width, force_terminal=True, color_system="standard")
        with console.capture() as taken:
            console.print(made)
        assert "\x1b[31m7" in taken.get()


@given(
    st.lists(
        st.tuples(*(st.text("abcdefgh-", min_size=1, max_size=60) for _ in HEADS)), min_size=1, max_size=3
    ),
    st.integers(min_value=INDENT + 8, max_value=130),
)
def test_no_line_is_too_long_and_no_letter_is_lost(rows: list[tuple[str, ...]], width: int) -> None:
    lines = drawn(table(*rows), width)
    assert max(len(line) for line in lines) <= width
    told = sorted("".join("".join(lines).split()))
    given_ = sorted("".join("".join(row) for row in rows))
    heads = sorted("".join(HEADS)), sorted("".join(HEADS[1:]) * len(rows))
    assert told in [sorted(given_ + head) for head in heads]


@pytest.mark.parametrize("width", [40, 200])
def test_without_rows_there_is_nothing_wrong(width: int) -> None:
    assert len(drawn(table(), width)) <= 1
