"""The Markdown scanner: where blocks begin and end."""

from __future__ import annotations

import pytest

from pipeline.chunking.blocks import BlockKind, context_of, join_items, normalise, scan, split_sections

HEADING, CODE, TABLE = BlockKind.HEADING, BlockKind.CODE, BlockKind.TABLE
ITEM, QUOTE, PARAGRAPH = BlockKind.ITEM, BlockKind.QUOTE, BlockKind.PARAGRAPH


def shapes(text: str) -> list[tuple[BlockKind, str]]:
    return [(block.kind, block.text) for block in scan(text)]


@pytest.mark.parametrize(
    ("line", "level", "heading"),
    [
        ("# One", 1, "One"),
        ("###### Six", 6, "Six"),
        ("   ## Indented", 2, "Indented"),
        ("## Closed ##", 2, "Closed"),
        ("## Closed ##   ", 2, "Closed"),
        ("## C#", 2, "C#"),
        ("#\tTab", 1, "Tab"),
        ("##", 2, ""),
        ("# #", 1, ""),
        ("# " + "x" * 500, 1, "x" * 200),
    ],
)
def test_atx_headings(line: str, level: int, heading: str) -> None:
    block = scan(line)[0]
    assert (block.kind, block.level, block.heading) == (HEADING, level, heading)


@pytest.mark.parametrize(
    "line", ["####### seven", "#hash", "    # indented four", "\\# escaped", "text # no"]
)
def test_what_looks_like_a_heading_and_is_none(line: str) -> None:
    assert scan(line)[0].kind is PARAGRAPH


@pytest.mark.parametrize(("mark", "level"), [("===", 1), ("=", 1), ("---", 2), ("  ----", 2)])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("preserve", [False, True])
def test_setext_headings(mark: str, level: int, end: str, preserve: bool) -> None:
    blocks = scan(f"Above{end}{end}Title{end}{mark}{end}below", preserve=preserve)
    assert [block.kind for block in blocks] == [PARAGRAPH, HEADING, PARAGRAPH]
    assert (blocks[1].level, blocks[1].heading) == (level, "Title")


def test_a_rule_is_no_heading() -> None:
    assert [kind for kind, _ in shapes("a\n\n---\n\nb")] == [PARAGRAPH] * 3
    assert [kind for kind, _ in shapes("---\n---")] == [PARAGRAPH] * 2
    assert [kind for kind, _ in shapes("one\ntwo\n---")] == [PARAGRAPH] * 2
    assert [kind for kind, _ in shapes("- item\n---")] == [ITEM, PARAGRAPH]


@pytest.mark.parametrize(
    "code",
    [
        "```\na\n```",
        "```python\n# no heading\n\n\n| no | table |\n```",
        "~~~\n```\nstill code\n~~~",
        "````\n```\n````",
        "```\na\n`````",
        "   ```\na\n   ```",
        "```\nunclosed\n\n# code",
    ],
)
def test_fenced_code_is_one_block_as_it_is(code: str) -> None:
    assert shapes(f"above\n{code}") == [(PARAGRAPH, "above"), (CODE, code)]


def test_a_fence_ends_at_its_own_kind_of_mark() -> None:
    assert shapes("```\na\n~~~\n``\n```\nb") == [(CODE, "```\na\n~~~\n``\n```"), (PARAGRAPH, "b")]


def test_backticks_in_a_line_of_prose_open_nothing() -> None:
    assert shapes("``` a ``` b\n\n# c")[1] == (HEADING, "# c")


def test_a_fence_inside_an_item_ends_with_the_item() -> None:
    kinds = [kind for kind, _ in shapes("- item\n\n  ```\n  code\n\nplain\n\n# heading")]
    assert kinds == [ITEM, CODE, PARAGRAPH, HEADING]


def test_a_deep_fence_is_code_in_a_list_and_text_elsewhere() -> None:
    assert [kind for kind, _ in shapes("1. a\n\n       ```\n       # x\n       ```")] == [ITEM, CODE]
    assert [kind for kind, _ in shapes("a\n\n    ```\n\n# x")] == [PARAGRAPH, PARAGRAPH, HEADING]


def test_blanks_inside_code_stay_and_outside_go() -> None:
    text = "a  \n\n\n\nb\n\n```\nx  \n\n\n\ny\n```  \n\n\n\nc"
    assert normalise(text) == "a\n\nb\n\n```\nx  \n\n\n\ny\n```\n\nc\n"


@pytest.mark.parametrize("text", ["a  \r\n\r\n\r\n b\r", "\n\n\na", "```\n\n\n", "\n", "- a\n\n\n  b  \n"])
def test_preserved_text_is_every_character(text: str) -> None:
    assert normalise(text, preserve=True) == text


def test_tables() -> None:
    with_bars = "| a | b |\n|---|---|\n| 1 | 2 |"
    without = "a | b\n:-- | --:\n1 | 2"
    assert shapes(f"above\n{with_bars}\nbelow") == [
        (PARAGRAPH, "above"),
        (TABLE, with_bars),
        (PARAGRAPH, "below"),
    ]
    assert shapes(f"above\n{without}\n\nbelow") == [
        (PARAGRAPH, "above"),
        (TABLE, without),
        (PARAGRAPH, "below"),
    ]
    assert shapes("a | b is no table") == [(PARAGRAPH, "a | b is no table")]
    assert shapes("- a | b") == [(ITEM, "- a | b")]


def test_quotes_and_items() -> None:
    text = "> one\n> > two\nlazy\n\n- a\n  goes on\n* b\n10) c"
    assert shapes(text) == [
        (QUOTE, "> one\n> > two\nlazy"),
        (ITEM, "- a\n  goes on"),
        (ITEM, "* b"),
        (ITEM, "10) c"),
    ]


def test_an_item_takes_what_is_indented_below_it() -> None:
    first = "- a\n  - b\n\n    text\n\n  ```\n  code\n  ```"
    blocks = list(join_items(scan(f"{first}\n- c\n\nplain\n\n  more")))
    assert [block.text for block in blocks] == [first, "- c", "plain", "  more"]
    assert [part.kind for part in blocks[0].members] == [ITEM, ITEM, PARAGRAPH, CODE]
    assert "".join(part.text + part.gap for part in blocks[0].members) == first + "\n"


def test_a_heading_never_joins_an_item() -> None:
    assert [block.kind for block in join_items(scan("- a\n\n  # b"))] == [ITEM, HEADING]


def test_sections_carry_the_path_of_headings_above_them() -> None:
    text = "intro\n\n# A\n\na\n\n## B\n\nb\n\n### C\n\n## D\n\n# E"
    sections = list(split_sections(scan(text)))
    assert [section.path for section in sections] == [
        (),
        ("A",),
        ("A", "B"),
        ("A", "B", "C"),
        ("A", "D"),
        ("E",),
    ]
    assert [section.bare for section in sections] == [False, False, False, True, True, True]


@pytest.mark.parametrize(
    ("title", "path", "context"),
    [
        ("Guide", (), "Guide"),
        ("Guide", ("Setup", "Linux"), "Guide > Setup > Linux"),
        ("Guide", ("guide", "Setup"), "Guide > Setup"),
        ("", ("Setup",), "Setup"),
        ("", (), ""),
        ("A\n  title", ("", "B\u2028C"), "A title > B C"),
        ("t" * 300, ("Setup",), "t" * 100 + " > Setup"),
        ("t" * 300, ("a" * 60, "b" * 60, "c" * 60), "t" * 100 + " > " + "c" * 60),
        ("t" * 300, ("a" * 200,), "t" * 100 + " > " + "a" * 97),
    ],
)
def test_contexts(title: str, path: tuple[str, ...], context: str) -> None:
    assert context_of(title, path) == context
    assert len(context) <= 200
