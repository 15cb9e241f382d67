"""Chunking time grows with the text and no faster, whatever the text."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from time import process_time

import pytest

from pipeline.chunking import STRATEGIES, ChunkingOptions, open_chunker
from pipeline.documents import Document, Kind, SourceType

HOSTILE: dict[str, tuple[Callable[[int], str], int]] = {
    "one huge line of words": (lambda n: "word " * n, 60_000),
    "one huge word": (lambda n: "A" * n, 800_000),
    "only newlines": (lambda n: "\n" * n + "x", 100_000),
    "blanks around words": (lambda n: (" " * n + "x") * 3, 200_000),
    "dots": (lambda n: "." * n + "'" * n + ".", 150_000),
    "backticks": (lambda n: "`" * n, 500_000),
    "backtick fences": (lambda n: "```\n" * n, 3_000),
    "unclosed fence": (lambda n: "```\n" + "x\n\n" * n, 8_000),
    "unclosed fence of blanks": (lambda n: "```\n" + "\n" * n + "x", 60_000),
    "pipes": (lambda n: "|" * n, 500_000),
    "table without end": (lambda n: "a|b\n-|-\n" + "a|b\n" * n, 6_000),
    "hashes": (lambda n: "#" * n, 500_000),
    "headings": (lambda n: "# a\n" * n, 2_000),
    "tiny sections": (lambda n: "## a\nb\n\n" * n, 1_000),
    "nested lists": (lambda n: "".join(f"{'  ' * (i % 500)}- a\n" for i in range(n)), 800),
    "one item with many children": (lambda n: "- a\n" + "  - b\n\n" * n, 1_500),
    "nested quotes": (lambda n: (">" * 2_000 + " a\n") * n, 200),
    "underlines": (lambda n: "a\n---\n" * n, 1_500),
    "separators": (lambda n: ". , " * n, 100_000),
}


def document(text: str) -> Document:
    return Document(
        external_id="a", title="Guide", text=text, source_type=SourceType.TEXT, kind=Kind.REFERENCE
    )


def seconds(strategy: str, text: str) -> float:
    chunker, subject = open_chunker(ChunkingOptions(strategy=strategy)), document(text)
    gc.disable()
    try:
        start = process_time()
        chunker.chunk(subject)
        return process_time() - start
    finally:
        gc.enable()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", HOSTILE)
def test_twice_the_text_takes_twice_the_time(strategy: str, name: str) -> None:
    make, size = HOSTILE[name]
    single, double = make(size), make(2 * size)
    least = [float("inf"), float("inf")]
    for run in range(80):  # a busy machine needs many tries for two quiet ones; a quadratic cut passes none
        least = [min(least[0], seconds(strategy, single)), min(least[1], seconds(strategy, double))]
        if run and least[1] <= 2.5 * least[0]:
            break
    assert least[1] <= 2.5 * least[0]
    assert least[1] < 3


@pytest.fixture(scope="module")
def large() -> str:
    rng = random.Random(7)
    words = ["alpha", "beta", "gamma", "delta", "release", "database", "über", "queue"]

    def prose(count: int) -> str:
        return " ".join(rng.choice(words) for _ in range(count)).capitalize() + "."

    section = [
        f"## Part {n}\n\n{prose(60)} {prose(120)}\n\n- {prose(8)}\n- {prose(9)}\n\n```\n{prose(30)}\n```\n\n"
        for n in range(200)
    ]
    repeats = 10_000_000 // len("".join(section)) + 1
    return "".join(section) * repeats


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ten_megabytes_take_seconds(strategy: str, large: str) -> None:
    assert len(large) >= 10_000_000
    assert seconds(strategy, large) < 15
