"""Chunking time grows with the text and no faster, whatever the text."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import STRATEGIES, open_chunker
from pipeline.documents import Document, Kind, SourceType
from tests.complexity import assert_linear

HOSTILE: dict[str, tuple[Callable[[int], str], int]] = {
    "one huge line of words": (lambda n: "word " * n, 120_000),
    "one huge word": (lambda n: "A" * n, 1_600_000),
    "only newlines": (lambda n: "\n" * n + "x", 200_000),
    "blanks around words": (lambda n: (" " * n + "x") * 3, 400_000),
    "dots": (lambda n: "." * n + "'" * n + ".", 300_000),
    "backticks": (lambda n: "`" * n, 1_000_000),
    "backtick fences": (lambda n: "```\n" * n, 6_000),
    "unclosed fence": (lambda n: "```\n" + "x\n\n" * n, 16_000),
    "unclosed fence of blanks": (lambda n: "```\n" + "\n" * n + "x", 120_000),
    "pipes": (lambda n: "|" * n, 1_000_000),
    "table without end": (lambda n: "a|b\n-|-\n" + "a|b\n" * n, 12_000),
    "hashes": (lambda n: "#" * n, 1_000_000),
    "headings": (lambda n: "# a\n" * n, 4_000),
    "tiny sections": (lambda n: "## a\nb\n\n" * n, 2_000),
    "nested lists": (lambda n: "".join(f"{'  ' * (i % 100)}- a\n" for i in range(n)), 1_600),
    "one item with many children": (lambda n: "- a\n" + "  - b\n\n" * n, 3_000),
    "nested quotes": (lambda n: (">" * 2_000 + " a\n") * n, 400),
    "underlines": (lambda n: "a\n---\n" * n, 3_000),
    "separators": (lambda n: ". , " * n, 200_000),
}


def document(text: str) -> Document:
    return Document(
        external_id="a", title="Guide", text=text, source_type=SourceType.TEXT, kind=Kind.REFERENCE
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", HOSTILE)
def test_the_time_grows_with_the_text_and_no_faster(strategy: str, name: str) -> None:
    make, size = HOSTILE[name]
    chunker = open_chunker(ChunkingOptions(strategy=strategy))
    assert_linear(lambda n: document(make(n)), size, chunker.chunk)


@pytest.fixture(scope="module")
def guide() -> str:
    """Some 300,000 characters of sections as people write them."""
    rng = random.Random(7)
    words = ["alpha", "beta", "gamma", "delta", "release", "database", "über", "queue"]

    def prose(count: int) -> str:
        return " ".join(rng.choice(words) for _ in range(count)).capitalize() + "."

    return "".join(
        f"## Part {n}\n\n{prose(60)} {prose(120)}\n\n- {prose(8)}\n- {prose(9)}\n\n```\n{prose(30)}\n```\n\n"
        for n in range(200)
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_time_of_a_large_document_grows_with_its_size(strategy: str, guide: str) -> None:
    chunker = open_chunker(ChunkingOptions(strategy=strategy))
    assert_linear(lambda repeats: document(guide * repeats), 8, chunker.chunk)
