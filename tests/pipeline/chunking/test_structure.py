"""The default strategy: sections, whole blocks, overlaps only inside a block, edits that stay local."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import open_chunker
from pipeline.documents import Chunk, Document, Kind, SourceType


def chunks_of(
    text: str, *, least: int = 100, most: int = 1000, overlap: int = 200, title: str = "Guide"
) -> list[Chunk]:
    document = Document(
        external_id="guide.md",
        title=title,
        text=text,
        source_type=SourceType.DOCUMENTATION,
        kind=Kind.REFERENCE,
    )
    options = ChunkingOptions(strategy="structure", min_size=least, max_size=most, overlap=overlap)
    return open_chunker(options).chunk(document)


def contents(text: str, *, least: int = 100, most: int = 1000, overlap: int = 200) -> list[str]:
    return [chunk.content for chunk in chunks_of(text, least=least, most=most, overlap=overlap)]


def prose(seed: int, size: int) -> str:
    """Sentences of about `size` characters without anything a scanner could take for Markdown."""
    rng = random.Random(seed)
    text = ""
    while len(text) < size:
        words = [
            rng.choice(["stock", "queue", "vector", "search", "index"]) for _ in range(rng.randint(4, 9))
        ]
        text += f"{' '.join(words).capitalize()} {seed}x{len(text)}. "
    return text.strip()


def test_each_section_has_its_chunk_its_heading_and_its_path() -> None:
    text = f"# Guide\n\n{prose(1, 200)}\n\n## Setup\n\n{prose(2, 200)}\n\n### Linux\n\n{prose(3, 200)}"
    chunks = chunks_of(text)
    assert [chunk.context for chunk in chunks] == ["Guide", "Guide > Setup", "Guide > Setup > Linux"]
    assert [chunk.content.split("\n")[0] for chunk in chunks] == ["# Guide", "## Setup", "### Linux"]
    assert [chunk.ord for chunk in chunks] == [0, 1, 2]
    assert "\n\n".join(chunk.content for chunk in chunks) == text


def test_a_first_heading_other_than_the_title_is_part_of_the_path() -> None:
    assert chunks_of("# Manual\n\ntext")[0].context == "Guide > Manual"
    assert chunks_of("# Manual\n\ntext", title="")[0].context == "Manual"


def test_blocks_of_a_section_are_packed_and_cut_between_blocks_without_overlap() -> None:
    parts = [prose(n, 300) for n in range(6)]
    found = contents("## A\n\n" + "\n\n".join(parts))
    assert all(len(content) > 600 for content in found[:-1])
    assert "\n\n".join(found) == "## A\n\n" + "\n\n".join(parts)


def test_a_long_section_repeats_its_path_in_every_chunk() -> None:
    chunks = chunks_of("## A\n\n" + "\n\n".join(prose(n, 600) for n in range(4)))
    assert len(chunks) == 4
    assert {chunk.context for chunk in chunks} == {"Guide > A"}


def test_tiny_sections_share_a_chunk_until_there_is_enough_text() -> None:
    found = contents("\n\n".join(f"## Part {n}\n\n{'word ' * 8}" for n in range(12)))
    assert 3 <= len(found) <= 5
    assert all(content.startswith("## Part") for content in found)


def test_a_tiny_section_goes_with_the_sibling_below_or_the_one_before() -> None:
    below = contents(f"## A\n\ntiny\n\n## B\n\n{prose(1, 300)}\n\n## C\n\n{prose(2, 300)}")
    assert [content.count("## ") for content in below] == [2, 1]
    before = contents(f"## A\n\n{prose(1, 300)}\n\n## B\n\n{prose(2, 300)}\n\n## C\n\ntiny")
    assert [content.count("## ") for content in before] == [1, 2]


def test_a_tiny_section_does_not_go_to_another_parent() -> None:
    found = contents(f"## A\n\n{prose(1, 300)}\n\n### A1\n\ntiny\n\n## B\n\n{prose(2, 300)}")
    assert [content.split("\n")[0] for content in found] == ["## A", "## B"]
    assert found[0].endswith("tiny")


def test_a_tiny_section_stays_alone_where_it_fits_nowhere() -> None:
    found = contents(f"## A\n\n{prose(1, 930)}\n\n## B\n\n{'tiny ' * 15}\n\n## C\n\n{prose(2, 930)}")
    assert [content.split("\n")[0] for content in found] == ["## A", "## B", "## C"]


def test_a_bare_heading_goes_with_the_text_below_however_long() -> None:
    chunks = chunks_of(f"# Guide\n\n## A\n\n{prose(1, 2500)}")
    assert chunks[0].content.startswith("# Guide\n\n## A\n\nS") or "## A\n\n" in chunks[0].content[:20]
    assert len(chunks[0].content) > 500
    assert {chunk.context for chunk in chunks} == {"Guide > A"}


def test_a_bare_heading_at_the_end_goes_with_the_text_above() -> None:
    assert len(contents(f"## A\n\n{prose(1, 300)}\n\n## To be written")) == 1


def test_a_heading_is_not_left_alone_by_a_paragraph_that_just_fits() -> None:
    found = contents(f"## {'Heading ' * 5}\n\n{prose(1, 960)[:990]}")
    assert len(found) == 2
    assert all(len(content) > 100 for content in found)


def test_code_that_fits_stays_whole_even_if_a_chunk_stays_short() -> None:
    code = "```python\n" + "value = 1\n\n" * 80 + "```"
    found = contents(f"## A\n\n{prose(1, 500)}\n\n{code}\n\n{prose(2, 300)}")
    assert code in found
    assert len(found) == 3


def test_longer_code_is_cut_at_line_ends_without_overlap() -> None:
    code = "```\n" + "".join(f"line_{n} = {n}\n" for n in range(300)) + "```"
    found = contents(code)
    assert "\n".join(found).replace("\n```\n```\n", "\n") == code
    assert all(900 < len(content) <= 1000 for content in found[:-1])


def test_code_of_exactly_the_limit_is_whole_and_one_more_is_not() -> None:
    assert len(contents("```\n" + "x" * 492 + "\n" + "y" * 499 + "\n```")) == 1
    assert len(contents("```\n" + "x" * 493 + "\n" + "y" * 499 + "\n```")) == 2


def test_a_line_of_code_too_long_for_a_chunk_is_cut_hard_with_the_exact_overlap() -> None:
    line = "".join(str(n % 10) for n in range(1500))
    found = contents(f"```\n{line}\n```")
    assert [len(content) for content in found[:1]] == [1000]
    assert found[1].startswith("```\n" + found[0].removesuffix("\n```")[-200:])


def test_a_long_line_of_code_is_cut_hard_even_between_words() -> None:
    found = contents("```\n" + "word " * 400 + "\n```")
    assert len(found[0]) == 1000
    assert found[1].startswith("```\n" + found[0].removesuffix("\n```")[-200:])


def test_a_long_table_is_cut_between_rows() -> None:
    rows = ["| name | value |", "|---|---|", *(f"| row {n} | {n * n} |" for n in range(200))]
    found = contents("\n".join(rows))
    assert [row for content in found for row in content.split("\n")[2:]] == rows[2:]
    assert all(content.startswith("\n".join(rows[:2])) for content in found)


def test_a_table_that_fits_stays_whole() -> None:
    table = "| name | value |\n|---|---|\n" + "\n".join(f"| row {n} | {n * n} |" for n in range(40))
    found = contents(f"{prose(1, 600)}\n\n{table}\n\n{prose(2, 600)}")
    assert table in found


@pytest.mark.req("001-019", "002-005")
def test_a_long_paragraph_is_cut_between_sentences_and_repeats_whole_ones() -> None:
    text = prose(1, 5000)
    found = contents(text)
    for before, after in pairwise(found):
        assert before.endswith(".")
        shared = next(n for n in range(200, 0, -1) if before.endswith(after[:n]))
        assert 50 < shared <= 200
        assert before[-shared - 2 : -shared] == ". "
        assert after[0].isupper()


def test_text_without_sentences_is_cut_between_words_and_repeats_whole_ones() -> None:
    words = [f"w{n}" for n in range(1000)]
    found = contents(" ".join(words))
    for before, after in pairwise(found):
        first = after.split()[0]
        place = before.split().index(first)
        shared = before.split()[place:]
        assert after.split()[: len(shared)] == shared
        assert 190 <= len(" ".join(shared)) <= 200


def test_text_without_blanks_is_cut_hard_and_repeats_exactly_the_overlap() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(2500))
    found = contents(text)
    assert found == [text[0:1000], text[800:1800], text[1600:2500]]


def test_the_last_piece_of_a_paragraph_is_no_crumb() -> None:
    text = "".join(chr(0x4E00 + n) for n in range(1010))
    found = contents(text)
    assert found[0] + found[1][200:] == text
    assert len(found[1]) == 300


def test_after_a_cut_paragraph_packing_goes_on() -> None:
    found = contents(f"{prose(1, 1300)}\n\nA short one.\n\nAnother short one.")
    assert len(found) == 2
    assert found[1].endswith("A short one.\n\nAnother short one.")


def test_a_list_item_and_its_children_stay_together() -> None:
    items = [f"- item {n}\n  - child {'x' * 150}\n\n    ```\n    code\n    ```" for n in range(12)]
    found = contents("\n".join(items))
    assert len(found) > 1
    assert all(content.startswith("- item") for content in found)
    assert all(any(item in content for content in found) for item in items)


def edited(sections: list[list[str]], section: int, paragraph: int, text: str) -> str:
    """A document of these paragraphs, with one of them replaced."""
    parts = []
    for n, paragraphs in enumerate(sections):
        body = [text if (n, m) == (section, paragraph) else p for m, p in enumerate(paragraphs)]
        parts.append(f"## Section {n}\n\n" + "\n\n".join(body))
    return "# Guide\n\n" + "\n\n".join(parts)


@given(data=st.data(), seed=st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_an_edit_changes_the_chunks_of_its_section_only(data: st.DataObject, seed: int) -> None:
    rng = random.Random(seed)
    sections = [
        [prose(seed + n * 9 + m, rng.randint(30, 450)) for m in range(rng.randint(1, 4))] for n in range(10)
    ]
    section = data.draw(st.integers(0, 9))
    paragraph = data.draw(st.integers(0, len(sections[section]) - 1))
    old = sections[section][paragraph]
    words = old.split()
    words[len(words) // 2] = data.draw(
        st.sampled_from(["changed", "something rather longer than before", "x"])
    )
    before = chunks_of(edited(sections, -1, -1, ""))
    after = chunks_of(edited(sections, section, paragraph, " ".join(words)))
    known = {chunk.hash for chunk in before}
    assert before != after
    assert sum(chunk.hash not in known for chunk in after) <= 3


@pytest.mark.parametrize("size", [300, 1500, 4000])
def test_a_section_that_grows_leaves_the_others_alone(size: int) -> None:
    sections = [[prose(n, 400), prose(n + 50, 700)] for n in range(10)]
    before = {chunk.hash for chunk in chunks_of(edited(sections, -1, -1, ""))}
    after = chunks_of(edited(sections, 4, 0, prose(99, size)))
    changed = [chunk for chunk in after if chunk.hash not in before]
    assert changed
    assert {chunk.context for chunk in changed} == {"Guide > Section 4"}
