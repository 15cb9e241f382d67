"""Models of sentence-transformers, which is not installed here: a stand-in answers as the package does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.embedding.calls import embed_checked
from pipeline.embedding.providers.transformers import TransformersEmbedder
from pipeline.errors import EmbedderUnavailable, ModelMissing
from tests.fakes.embedding_words import word_vector

ROOT = Path(__file__).resolve().parents[3]
E5 = "intfloat/multilingual-e5-small"


class Encoder:
    """Answers as `sentence_transformers.SentenceTransformer` does, and cuts long texts as it does."""

    def __init__(
        self, *, tokens: int | None = 20, width: int | None = 16, prompts: dict[str, str] | None = None
    ) -> None:
        self.max_seq_length = tokens
        self.prompts = prompts or {}
        self.width = width
        self.fault: Exception | None = None
        self.seen: list[list[str]] = []

    def get_sentence_embedding_dimension(self) -> int | None:
        return self.width

    def tokenizer(self, text: str, **options: Any) -> dict[str, list[int]]:
        assert options == {"add_special_tokens": False, "truncation": False, "verbose": False}
        return {"input_ids": [1] * len(text.split())}

    def encode(self, sentences: list[str], **options: Any) -> Any:
        assert options == {
            "batch_size": 4,
            "normalize_embeddings": True,
            "convert_to_numpy": True,
            "show_progress_bar": False,
        }
        if self.fault:
            raise self.fault
        self.seen.append(sentences)
        assert max(len(text.split()) for text in sentences) <= (self.max_seq_length or 8192) - 2
        return np.array([word_vector(text, self.width or 1) for text in sentences])


def embedder(encoder: Encoder, name: str = "m") -> TransformersEmbedder:
    return TransformersEmbedder(encoder, name=name, batch_size=4)


@pytest.mark.req("001-078")
def test_what_the_model_says_of_itself_holds() -> None:
    made = embedder(Encoder())
    assert (made.model, made.dimensions) == ("m", 16)
    assert (made.limits.texts, made.limits.tokens_per_text, made.limits.empty) == (4, 18, True)
    assert made.count_tokens("one two three") == 3
    assert embedder(Encoder(tokens=None)).limits.tokens_per_text > 8000


def test_texts_become_vectors_in_order() -> None:
    made = embedder(Encoder())
    vectors = made.embed_documents(["one", "two"])
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, [word_vector("one", 16), word_vector("two", 16)], atol=1e-6)
    assert np.allclose(made.embed_query("one"), vectors[0])
    assert made.embed_documents([]).shape == (0, 16)


def test_a_long_text_is_never_cut_by_the_model() -> None:
    encoder = Encoder()
    vectors = embed_checked(embedder(encoder), ["short", " ".join(f"word{n}" for n in range(50))])
    assert vectors.shape == (2, 16)
    assert sum(len(text.split()) for batch in encoder.seen for text in batch) == 51


@pytest.mark.parametrize(
    ("name", "prompts", "document", "query"),
    [
        (E5, {}, "passage: a", "query: a"),
        (E5, {"query": "Q: ", "passage": "P: "}, "P: a", "Q: a"),
        ("m", {"query": "Q: ", "document": "D: "}, "D: a", "Q: a"),
        ("m", {"clustering": "C: "}, "a", "a"),
    ],
)
def test_prompts_are_the_models_own_before_those_of_its_card(
    name: str, prompts: dict[str, str], document: str, query: str
) -> None:
    encoder = Encoder(prompts=prompts)
    made = embedder(encoder, name)
    made.embed_documents(["a"])
    made.embed_query("a")
    assert encoder.seen == [[document], [query]]


def test_a_prompt_takes_room_of_the_text() -> None:
    assert embedder(Encoder(prompts={"query": "one two three "})).limits.tokens_per_text == 15


def test_a_fault_of_the_package_is_ours_without_its_words() -> None:
    encoder = Encoder()
    encoder.fault = RuntimeError("CUDA out of memory near: secret text")
    made = embedder(encoder)
    with pytest.raises(EmbedderUnavailable, match="RuntimeError") as caught:
        made.embed_documents(["kiln"])
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_half_characters_reach_neither_tokenizer_nor_model() -> None:
    encoder = Encoder()
    embedder(encoder).embed_documents(["a \ud800"])
    assert encoder.seen == [["a ?"]]


def test_a_model_without_a_length_is_no_embedding_model() -> None:
    with pytest.raises(ModelMissing, match="how long its vectors are"):
        embedder(Encoder(width=None))


MISSING = """
import sys
sys.modules["sentence_transformers"] = None
from pipeline.errors import ConfigurationError
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.calls import open_embedder
try:
    open_embedder(EmbeddingOptions(provider="transformers"))
except ConfigurationError as error:
    print(error.exit_code, error)
"""
PRESENT = """
import sys, types
package = types.ModuleType("sentence_transformers")
class SentenceTransformer:
    max_seq_length, prompts = 256, {}
    def __init__(self, name, device):
        if device == "cuda":
            raise RuntimeError("Found no NVIDIA driver")
        print(name, device)
    def get_sentence_embedding_dimension(self):
        return 384
    def tokenizer(self, text, **options):
        return {"input_ids": []}
package.SentenceTransformer = SentenceTransformer
sys.modules["sentence_transformers"] = package
from pipeline.errors import ConfigurationError, ModelMissing
from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.calls import open_embedder
made = open_embedder(EmbeddingOptions(provider="transformers"))
print(made.model, made.dimensions, made.limits.texts, made.limits.tokens_per_text)
try:
    open_embedder(EmbeddingOptions(provider="transformers", device="cuda"))
except ModelMissing as error:
    print(error)
try:
    open_embedder(EmbeddingOptions(provider="transformers", model="my/own", dimensions=768))
except ConfigurationError as error:
    print(error)
try:
    open_embedder(EmbeddingOptions(provider="transformers", model="my/own"))
except ConfigurationError as error:
    print(error)
"""


def run(script: str) -> str:
    """In a process of its own, whatever is installed here."""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


def test_without_the_package_the_error_says_how_to_install_it() -> None:
    told = run(MISSING)
    assert told.startswith("2 ")
    assert "pip install 'sentence-transformers>=4'" in told


@pytest.mark.req("001-028", "001-041")
def test_the_model_is_opened_on_the_configured_device() -> None:
    name = "sentence-transformers/all-MiniLM-L6-v2"
    opened, facts, cuda, loaded, other_length, unknown = run(PRESENT).splitlines()
    assert opened == f"{name} cpu"
    assert facts == f"{name} 384 32 254"
    assert "cannot load" in cuda
    assert "on cuda: RuntimeError" in cuda
    assert loaded == "my/own cpu"
    assert "my/own gives 384" in other_length
    assert "length of the vectors of my/own" in unknown
