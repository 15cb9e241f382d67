"""The factory: which strategy, which sizes, which version."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import STRATEGIES, open_chunker
from pipeline.documents import Document, Kind, SourceType
from pipeline.errors import ConfigurationError


def document(text: str) -> Document:
    return Document(
        external_id="a.md",
        title="Guide",
        text=text,
        source_type=SourceType.DOCUMENTATION,
        kind=Kind.REFERENCE,
    )


@pytest.mark.req("001-077")
def test_there_are_five_strategies_and_structure_is_the_default() -> None:
    assert set(STRATEGIES) == {"structure", "semantic", "recursive", "fixed", "pbi_aware"}
    assert open_chunker(ChunkingOptions()).version == "structure-3:100/1000/200:characters"


@pytest.mark.req("001-018", "001-045")
def test_the_options_of_the_semantic_chunker_are_part_of_its_version() -> None:
    options = ChunkingOptions(strategy="semantic", min_size=100, max_size=500, overlap=50)
    assert open_chunker(options).version == "semantic-3:100/500/50:characters"
    assert options.split_on == ("\n\n", "\n", ". ", ", ")
    assert options.preserve_whitespace is False


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "change",
    [
        {"min_size": 99},
        {"max_size": 999},
        {"overlap": 199},
        {"unit": "tokens"},
        {"preserve_whitespace": True},
    ],
)
def test_a_changed_option_changes_the_version(strategy: str, change: dict[str, Any]) -> None:
    options = ChunkingOptions(strategy=strategy)
    assert open_chunker(options).version == open_chunker(replace(options)).version
    assert open_chunker(options).version != open_chunker(replace(options, **change)).version


def test_versions_differ_between_strategies_and_between_counted_and_estimated_tokens() -> None:
    versions = {open_chunker(ChunkingOptions(strategy=name)).version for name in STRATEGIES}
    tokens = ChunkingOptions(unit="tokens")
    versions |= {open_chunker(tokens).version, open_chunker(tokens, len).version}
    assert len(versions) == len(STRATEGIES) + 2


def test_separators_are_part_of_the_version_of_recursive_only() -> None:
    def version(strategy: str, *marks: str) -> str:
        return open_chunker(ChunkingOptions(strategy=strategy, split_on=marks)).version

    assert version("recursive", "\n") != version("recursive", "\n\n")
    assert version("structure", "\n") == version("structure", "\n\n")


def test_an_unknown_strategy_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_chunker(ChunkingOptions(strategy="magic"))
    assert "'magic'" in caught.value.message
    for name in STRATEGIES:
        assert name in caught.value.fix


def test_an_unknown_unit_lists_the_known_ones() -> None:
    wrong: Any = "bytes"
    with pytest.raises(ConfigurationError, match="use one of characters, tokens"):
        open_chunker(ChunkingOptions(unit=wrong))


def test_the_widest_allowed_sizes_are_accepted() -> None:
    assert open_chunker(ChunkingOptions(min_size=1000, max_size=1000, overlap=999))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("text", ["", " ", "\n\n\n", "\r\n \t\r\n", "\u2028\u3000"])
@pytest.mark.parametrize("preserve", [False, True])
def test_a_blank_document_has_no_chunks(strategy: str, text: str, preserve: bool) -> None:
    options = ChunkingOptions(strategy=strategy, preserve_whitespace=preserve)
    assert open_chunker(options).chunk(document(text)) == []


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.req("001-094")
def test_sizes_in_tokens_are_measured_with_the_given_counter(strategy: str) -> None:
    def count(text: str) -> int:
        return len(text.split())

    text = "\n\n".join(f"## Part {n}\n\n" + "some words of prose, which go on. " * 40 for n in range(5))
    options = ChunkingOptions(strategy=strategy, unit="tokens", min_size=10, max_size=50, overlap=10)
    chunks = open_chunker(options, count).chunk(document(text))
    sizes = [count(chunk.content) for chunk in chunks]
    assert max(sizes) <= 50
    assert sum(sizes) / len(sizes) > 30
    assert len(chunks[1].content) > 50


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_without_a_counter_four_characters_are_a_token(strategy: str) -> None:
    options = ChunkingOptions(strategy=strategy, unit="tokens", min_size=10, max_size=50, overlap=10)
    chunks = open_chunker(options).chunk(document("some words of prose, which go on. " * 100))
    sizes = [len(chunk.content) for chunk in chunks]
    assert 150 < max(sizes) <= 200


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_tokenizer_that_makes_one_token_of_a_huge_word_does_not_stop_the_cutting(strategy: str) -> None:
    options = ChunkingOptions(strategy=strategy, unit="tokens", min_size=10, max_size=50, overlap=10)
    chunks = open_chunker(options, lambda text: len(text.split())).chunk(document("A" * 50_000))
    assert max(len(chunk.content) for chunk in chunks) < 50 * 17


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_counter_that_finds_a_whole_longer_than_its_parts_still_gets_its_limit(strategy: str) -> None:
    def count(text: str) -> int:
        return len(text) + 30 * text.count("r\n\no") + 30 * text.count("1\nx")

    text = "\n\n".join(["one two three four"] * 60) + "\n\n```\n" + "x = 1\n" * 50 + "```"
    options = ChunkingOptions(strategy=strategy, unit="tokens", min_size=20, max_size=100, overlap=20)
    chunks = open_chunker(options, count).chunk(document(text))
    assert max(count(chunk.content) for chunk in chunks) <= 100
    assert [chunk.ord for chunk in chunks] == list(range(len(chunks)))
    assert sum(chunk.content.count("x = 1") for chunk in chunks) >= 50
