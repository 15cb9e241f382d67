"""The bound of a text's tokens is never too low where a true count is there to compare with."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedding.calls import open_embedder
from pipeline.embedding.providers.hashing import HashingEmbedder
from pipeline.embedding.token_bound import most_tokens, token_counter

ROOT = Path(__file__).resolve().parents[3]
ODD = (
    "at org.apache.hadoop.hdfs.DFSClient$DFSOutputStream.writeChunk(DFSClient.java:2906)",
    "sha256:8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
    "Größe ändern: Ähnliche Straßen, naïve façade, Ελληνικά, 日本語の文書",
    "if (x==null||y!=0){return a[i]+b[j];} // TODO!!!",
    "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "NullPointerExceptionInTheVeryLongNameOfAClass",
    "\N{PARTY POPPER}\N{PARTY POPPER} ok",
    "1234567890 0x7fff 3.14159 2026-01-01T00:00:00Z",
    "",
    " \n\t ",
)


@pytest.fixture(scope="module")
def samples() -> list[str]:
    files = sorted((ROOT / "deploy" / "sample").rglob("*.*"))
    texts = [file.read_text("utf-8") for file in files if file.suffix in {".md", ".json", ".py"}]
    texts += [file.read_text("utf-8") for file in sorted((ROOT / "docs").glob("*.md"))]
    cut = [text[at : at + 700] for text in texts for at in range(0, len(text), 700)]
    assert len(cut) > 100
    return [*cut, *ODD]


def test_no_sample_has_more_tokens_than_the_bound(samples: list[str]) -> None:
    true = token_counter(english=True)
    assert true is not most_tokens
    assert [text for text in samples if true(text) > most_tokens(text)] == []


def test_the_bound_is_not_far_from_the_truth(samples: list[str]) -> None:
    true = token_counter(english=True)
    assert sum(map(most_tokens, samples)) < 2.5 * sum(map(true, samples))


def test_the_true_count_is_that_of_the_shipped_model(samples: list[str]) -> None:
    from pipeline.embedding import EmbeddingOptions

    shipped = open_embedder(EmbeddingOptions(provider="minilm"))
    assert not isinstance(shipped, HashingEmbedder)
    true = token_counter(english=True)
    assert [true(text) for text in samples[:40]] == [shipped.count_tokens(text) for text in samples[:40]]
    assert true("half \ud800 of it") > 0


def test_a_blob_is_not_taken_for_one_token() -> None:
    """A server that takes it to pieces would refuse what counted as short."""
    assert token_counter(english=True)("see " + "x9Zk" * 250) > 1000


def test_a_model_of_another_vocabulary_is_bounded() -> None:
    assert token_counter(english=False) is most_tokens


@given(st.text(max_size=200))
def test_no_text_has_more_tokens_than_bytes_and_none_has_fewer_than_none(text: str) -> None:
    assert 0 <= most_tokens(text) <= len(text.encode("utf-8", "replace"))


@given(st.lists(st.text(max_size=30), max_size=5))
def test_more_text_never_has_fewer_tokens(parts: list[str]) -> None:
    """Else a part of a long text could be longer than the whole."""
    lengths = [most_tokens("\n".join(parts[:n])) for n in range(len(parts) + 1)]
    assert lengths == sorted(lengths)
