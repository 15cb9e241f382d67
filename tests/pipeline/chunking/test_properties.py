"""What holds for every strategy and every text: nothing lost, order kept, sizes kept."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.chunking.splitting import ChunkingOptions
from pipeline.chunking.strategies import STRATEGIES, open_chunker
from pipeline.documents import Chunk, Document, Kind, SourceType

WORDS = st.text(
    st.one_of(
        st.sampled_from("abcde.,!?|#`~>-*_=\"')0123456789"),
        st.sampled_from("e\u0301\u0308ü漢字。！\ud800\udfff\u200d👩\u00a0\u2028\x0b\x1c"),
    ),
    min_size=1,
    max_size=12,
)
PROSE = st.lists(WORDS, min_size=1, max_size=60).map(" ".join)
LINES = st.lists(st.one_of(PROSE, st.just("")), min_size=1, max_size=12)
CODE = st.builds(
    lambda mark, lines, end: "\n".join([f"{mark}py", *lines, *([mark] if end else [])]),
    st.sampled_from(["```", "~~~~"]),
    LINES,
    st.booleans(),
)
TABLE = st.lists(WORDS, min_size=1, max_size=20).map(
    lambda cells: "| a | b |\n|---|---|\n" + "\n".join(f"| {cell} | {cell} |" for cell in cells)
)
ITEMS = st.lists(st.tuples(st.integers(0, 4), PROSE), min_size=1, max_size=12).map(
    lambda items: "\n".join(f"{'  ' * depth}- {text}" for depth, text in items)
)
HEADING = st.builds(lambda level, words: f"{'#' * level} {words}", st.integers(1, 6), PROSE)
SETEXT = st.builds(lambda words, mark: f"{words}\n{mark * 3}", PROSE, st.sampled_from("=-"))
QUOTE = LINES.map(lambda lines: "\n".join(f"> {line}" for line in lines))
LONG = st.builds(lambda char, n: char * n, st.sampled_from("A.`|#-\u0301"), st.integers(1, 400))
BLOCK = st.one_of(PROSE, CODE, TABLE, ITEMS, HEADING, SETEXT, QUOTE, LONG, st.text(max_size=80))
GAP = st.sampled_from(["\n", "\n\n", "\r\n\r\n", "\r", "\n   \n", "\n\n\n\n\n", "  \n", "\n\n    "])
TEXT = st.lists(st.tuples(BLOCK, GAP), max_size=8).map(
    lambda parts: "".join(block + gap for block, gap in parts)
)


@st.composite
def option_sets(draw: st.DrawFn, strategy: str) -> ChunkingOptions:
    max_size = draw(st.integers(1, 250))
    return ChunkingOptions(
        strategy=strategy,
        max_size=max_size,
        min_size=draw(st.integers(0, max_size)),
        overlap=draw(st.integers(0, max_size // 2)),
        preserve_whitespace=draw(st.booleans()),
    )


def chunks_of(text: str, options: ChunkingOptions, title: str = "Guide") -> list[Chunk]:
    document = Document(
        external_id="a.md",
        title=title,
        text=text,
        source_type=SourceType.DOCUMENTATION,
        kind=Kind.REFERENCE,
    )
    return open_chunker(options).chunk(document)


def squeeze(text: str) -> str:
    return "".join(text.split())


def narrow(squeezed: str) -> str:
    return re.sub("-{4,}", "---", squeezed)


def covers(text: str, contents: list[str], overlap: int) -> bool:
    """True if the contents are the text in order, each beginning at most `overlap` before the last one's end.

    The head of a table or of code may stand at the start of a content once more, and marks that close code at its end.
    Repeated text can be aligned in several ways, so all of them are followed.
    """
    source, ends, before = squeeze(text), {0}, ""
    for content in contents:
        ends = {
            end - back + len(body)
            for body in bodies(content, before)
            for end in ends
            for back in range(min(overlap, end, max(0, len(body) - 1)) + 1)
            if source.startswith(body, end - back)
        }
        before += squeeze(content)
    return len(source) in ends


def bodies(content: str, before: str) -> set[str]:
    """A content as it is, and without what may be repeated around it: lines that stand `before`, and a closing mark."""
    lines = content.split("\n")
    # The head of a table is repeated without what makes its columns wide.
    heads = [n for n in range(3) if narrow(squeeze("".join(lines[:n]))) in narrow(before)]
    last = lines[-1].strip("> \t")
    tails = [0, 1] if len(last) > 2 and not last.strip(last[0]) and last[0] in "`~" else [0]
    return {squeeze("".join(lines[n : len(lines) - m])) for n in heads for m in tails}


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(data=st.data(), text=TEXT)
@settings(max_examples=50, deadline=None)
@pytest.mark.req("002-005", "001-017", "001-094")
def test_no_text_is_lost_and_no_chunk_is_too_long(strategy: str, data: st.DataObject, text: str) -> None:
    options = data.draw(option_sets(strategy))
    chunks = chunks_of(text, options)
    assert covers(text, [chunk.content for chunk in chunks], options.overlap)
    assert [chunk.ord for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.content.strip() for chunk in chunks)
    assert all(len(chunk.content) <= options.max_size for chunk in chunks)
    assert all(len(chunk.context) <= 200 for chunk in chunks)
    assert all(len(chunk.hash) == 64 for chunk in chunks)
    assert chunks_of(text, options) == chunks


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(data=st.data(), text=TEXT, words=st.integers(1, 5))
@settings(max_examples=20, deadline=None)
def test_no_text_is_lost_in_tokens(strategy: str, data: st.DataObject, text: str, words: int) -> None:
    options = data.draw(option_sets(strategy))
    options = ChunkingOptions(
        strategy=strategy,
        unit="tokens",
        max_size=options.max_size,
        min_size=options.min_size,
        overlap=options.overlap,
    )

    def count(piece: str) -> int:
        return -(-len(piece) // words)

    document = Document(
        external_id="a", title="", text=text, source_type=SourceType.TEXT, kind=Kind.REFERENCE
    )
    chunks = open_chunker(options, count).chunk(document)
    assert covers(text, [chunk.content for chunk in chunks], options.overlap * words)
    assert all(count(chunk.content) <= options.max_size for chunk in chunks)


@pytest.mark.parametrize("strategy", ["structure", "semantic", "pbi_aware"])
@given(
    blocks=st.lists(st.one_of(CODE.filter(lambda c: c.count("\n") < 8), TABLE, HEADING), max_size=8),
    prose=st.lists(st.sampled_from(["alpha beta", "gamma. delta", "x" * 90, "y. " * 70]), min_size=8),
)
@settings(max_examples=30, deadline=None)
@pytest.mark.req("001-019")
def test_code_and_tables_that_fit_stay_whole(strategy: str, blocks: list[str], prose: list[str]) -> None:
    kept = [b for b in blocks if b.startswith("|") or b.rstrip().endswith(("```", "~~~~"))]
    kept = [b for b in kept if not any(line.strip() in {"```", "~~~~"} for line in b.split("\n")[1:-1])]
    kept = [b for b in kept if len(b) <= 300 and "\r" not in b]
    text = "\n\n".join(f"{block}\n\n{words}" for block, words in zip(kept, prose, strict=False))
    options = ChunkingOptions(strategy=strategy, min_size=50, max_size=300, overlap=60)
    contents = [chunk.content for chunk in chunks_of(text, options)]
    for block in kept:
        # Blanks after the last mark are no part of a block; some control characters count as blanks.
        assert any(block.rstrip() in content for content in contents)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(text=TEXT)
@settings(max_examples=20, deadline=None)
def test_preserved_text_is_the_source_as_it_is(strategy: str, text: str) -> None:
    options = ChunkingOptions(strategy=strategy, max_size=400, overlap=0, preserve_whitespace=True)
    place = 0
    for chunk in chunks_of(text, options):
        found = text.find(chunk.content, place)
        assert found >= 0
        assert not text[place:found].strip()
        place = found + len(chunk.content)
    assert not text[place:].strip()


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(text=TEXT)
@settings(max_examples=20, deadline=None)
def test_line_ends_do_not_matter(strategy: str, text: str) -> None:
    options = ChunkingOptions(strategy=strategy, max_size=200, overlap=20)
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    assert chunks_of(plain.replace("\n", "\r\n"), options) == chunks_of(plain, options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(5))
def test_words_that_fit_are_never_cut(strategy: str, seed: int) -> None:
    rng = random.Random(seed)
    words = [f"{rng.choice('abcdef')}{n}" * rng.randint(1, 4) for n in range(600)]
    text = "".join(word + rng.choice([" ", " ", ". ", "\n", "\n\n"]) for word in words)
    options = ChunkingOptions(strategy=strategy, min_size=50, max_size=200, overlap=40)
    known = {word.strip(".") for word in words}
    for chunk in chunks_of(text, options):
        assert {word.strip(".") for word in chunk.content.split()} <= known


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_whitespace_is_tidied_outside_code_only(strategy: str) -> None:
    text = "one   \n\n\n\n\ntwo \t\n\n```\na  \n\n\n\nb\n```"
    options = ChunkingOptions(strategy=strategy)
    joined = "\n\n".join(chunk.content for chunk in chunks_of(text, options))
    assert joined == "one\n\ntwo\n\n```\na  \n\n\n\nb\n```"


@pytest.mark.parametrize("strategy", ["structure", "recursive", "fixed", "pbi_aware"])
def test_preserved_whitespace_stays_inside_a_chunk(strategy: str) -> None:
    text = "one   \n\n\n\n\ntwo \t\n"
    options = ChunkingOptions(strategy=strategy, preserve_whitespace=True)
    assert [chunk.content for chunk in chunks_of(text, options)] == [text]
