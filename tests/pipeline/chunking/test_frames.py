"""What a cut between two lines repeats: the head of a table, the marks around code."""

from __future__ import annotations

import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Document, Kind, SourceType

HEAD = "| Port | Owner |\n|---|---|"
WIDE = "| Port   | Owner     |\n|--------|-----------|"
ROWS = [f"| {port} | team {port} |" for port in range(8000, 8040)]
FRAMING = ["structure", "semantic", "pbi_aware"]


def contents(text: str, strategy: str = "structure", *, most: int = 200, preserve: bool = False) -> list[str]:
    document = Document(
        external_id="a.md", title="T", text=text, source_type=SourceType.DOCUMENTATION, kind=Kind.REFERENCE
    )
    options = ChunkingOptions(
        strategy=strategy, max_size=most, min_size=20, overlap=30, preserve_whitespace=preserve
    )
    return [chunk.content for chunk in open_chunker(options).chunk(document)]


@pytest.mark.parametrize("strategy", FRAMING)
def test_each_piece_of_a_table_has_its_head(strategy: str) -> None:
    pieces = contents("\n".join([HEAD, *ROWS]), strategy)

    assert len(pieces) > 3
    assert all(piece.startswith(f"{HEAD}\n| 80") for piece in pieces)
    assert [row for piece in pieces for row in piece.split("\n")[2:]] == ROWS
    assert max(map(len, pieces)) <= 200


def test_a_head_is_repeated_without_what_makes_its_columns_wide() -> None:
    first, *others = contents("\n".join([WIDE, *ROWS]))

    assert first.startswith(WIDE)
    assert all(piece.startswith(f"{HEAD}\n| 80") for piece in others)


def test_a_row_that_is_too_long_is_cut_below_the_head() -> None:
    row = f"| 1 | {'word ' * 100}|"
    pieces = contents(f"{HEAD}\n{row}\n{ROWS[0]}")

    assert all(piece.startswith(HEAD) for piece in pieces)
    assert pieces[-1].endswith(ROWS[0])
    assert max(map(len, pieces)) <= 200


def test_a_head_that_fills_half_a_chunk_is_not_repeated() -> None:
    pieces = contents("\n".join([HEAD, *ROWS]), most=50)

    assert sum(piece.startswith("| Port") for piece in pieces) == 1


def test_rows_without_a_head_repeat_nothing() -> None:
    pieces = contents("\n".join(ROWS))

    assert "\n".join(pieces) == "\n".join(ROWS)


@pytest.mark.parametrize("strategy", FRAMING)
@pytest.mark.parametrize(
    ("opening", "closing", "before"),
    [
        ("```python", "```", ""),
        ("~~~~ sh", "~~~~", ""),
        ("````md title=x", "````", ""),
        ("   ```js", "   ```", "- item\n\n"),
        ("> ```yaml", "> ```", ""),
    ],
)
def test_each_piece_of_code_opens_and_closes_it(
    strategy: str, opening: str, closing: str, before: str
) -> None:
    start = opening[: len(opening) - len(opening.lstrip(" >"))]
    lines = [f"{start}value_{number} = {number}" for number in range(40)]
    pieces = contents(f"{before}{opening}\n" + "\n".join(lines) + f"\n{closing}\n\nAfter.", strategy)
    code = [piece for piece in pieces if "value_" in piece]

    assert len(code) > 2
    for piece in code:
        shown = piece.split("\n")
        assert shown.count(opening) == 1
        assert shown.count(closing) == 1
    assert [line for piece in code for line in piece.split("\n") if "value_" in line] == lines
    assert max(map(len, pieces)) <= 200


def test_code_that_begins_on_the_line_of_its_item_goes_on_below_it() -> None:
    lines = "\n".join(f"  line {number} of the code" for number in range(30))
    pieces = contents(f"- ```sh\n{lines}\n  ```")

    assert pieces[0].startswith("- ```sh\n")
    assert all(piece.startswith("  ```sh\n") for piece in pieces[1:])
    assert all(piece.endswith("\n  ```") for piece in pieces)


def test_a_line_of_code_that_is_too_long_is_cut_within_its_marks() -> None:
    pieces = contents("```json\n" + "x" * 900 + "\n```")

    assert len(pieces) > 4
    assert all(piece.startswith("```json\nx") and piece.endswith("x\n```") for piece in pieces)
    assert max(map(len, pieces)) <= 200


def test_code_that_nobody_closed_is_closed_where_it_is_cut() -> None:
    pieces = contents("```\n" + "\n".join(f"line {number}" for number in range(60)))

    assert all(piece.startswith("```\n") for piece in pieces)
    assert all(piece.endswith("\n```") for piece in pieces[:-1])


def test_text_that_stays_as_it_is_gets_nothing_twice() -> None:
    text = "\n".join([HEAD, *ROWS])

    assert squeezed(contents(text, preserve=True)) == squeezed([text])


def squeezed(pieces: list[str]) -> str:
    return "".join("".join(pieces).split())


def test_words_of_a_heading_are_its_context() -> None:
    document = Document(
        external_id="a.md",
        title="Guide",
        text="## :wrench: **Set up** the [tool](a.md) `x_y` ![](b.png)\n\nText.",
        source_type=SourceType.DOCUMENTATION,
        kind=Kind.REFERENCE,
    )

    assert open_chunker(ChunkingOptions()).chunk(document)[0].context == "Guide > Set up the tool x_y"
