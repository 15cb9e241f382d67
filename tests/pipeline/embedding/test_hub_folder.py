"""Folders as Hugging Face's hub has them: small models made here, computed a second time with numpy, and the shipped one."""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.embedding.providers.minilm import MODEL_FILE, MiniLmEmbedder
from pipeline.errors import ModelMissing, TextRejected
from pipeline.reranking import FolderReranker
from tests.pipeline.reranking import tiny_model

WIDTH, HEADS, LAYERS, WIDE, PLACES = 16, 2, 2, 24, 40
SAME = 1e-2
"""How far a number may be off where the processor computes in bf16."""
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
Tensors = dict[str, NDArray[np.float32]]


def tensors() -> Tensors:
    """Random weights of an encoder and of both forms of head."""
    random = np.random.default_rng(7)
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (4 + len(tiny_model.WORDS), WIDTH),
        "embeddings.position_embeddings.weight": (PLACES, WIDTH),
        "embeddings.token_type_embeddings.weight": (2, WIDTH),
        "embeddings.LayerNorm.weight": (WIDTH,),
        "embeddings.LayerNorm.bias": (WIDTH,),
    }
    for n in range(LAYERS):
        for name, out, size in (
            ("attention.self.query", WIDTH, WIDTH),
            ("attention.self.key", WIDTH, WIDTH),
            ("attention.self.value", WIDTH, WIDTH),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", WIDE, WIDTH),
            ("output.dense", WIDTH, WIDE),
        ):
            shapes |= {
                f"encoder.layer.{n}.{name}.weight": (out, size),
                f"encoder.layer.{n}.{name}.bias": (out,),
            }
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes |= {
                f"encoder.layer.{n}.{name}.weight": (WIDTH,),
                f"encoder.layer.{n}.{name}.bias": (WIDTH,),
            }
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def safetensors(content: Mapping[str, NDArray[Any]], kind: str = "F32") -> bytes:
    header, blobs, at = {}, b"", 0
    for name, array in content.items():
        if kind == "BF16":
            blob = (array.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            blob = array.astype({"F32": np.float32, "F16": np.float16}[kind]).tobytes()
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [at, at + len(blob)]}
        blobs += blob
        at += len(blob)
    head = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    return struct.pack("<Q", len(head)) + head + blobs


def write(
    folder: Path,
    content: Mapping[str, NDArray[Any]] | None = None,
    *,
    kind: str = "F32",
    files: Mapping[str, Any] | None = None,
) -> Path:
    """A model folder; `files` are more JSON files, or others in the place of the usual ones."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(safetensors(tensors() if content is None else content, kind))
    tiny_model.tokenizer().save(str(folder / "tokenizer.json"))
    for name, value in ({"config.json": CONFIG} | dict(files or {})).items():
        (folder / name).write_text(json.dumps(value))
    return folder


def last_layer(t: Tensors, ids: Sequence[int], types: Sequence[int], first: int = 0) -> NDArray[np.float64]:
    """BERT as its paper has it, for one text."""

    def norm(x: NDArray[Any], name: str) -> NDArray[np.float64]:
        even = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return np.asarray(even * t[f"{name}.weight"] + t[f"{name}.bias"])

    def dense(x: NDArray[Any], name: str) -> NDArray[np.float64]:
        return np.asarray(x @ t[f"{name}.weight"].T + t[f"{name}.bias"])

    places = t["embeddings.position_embeddings.weight"][first : first + len(ids)]
    x = t["embeddings.word_embeddings.weight"][list(ids)] + places
    x = norm(x + t["embeddings.token_type_embeddings.weight"][list(types)], "embeddings.LayerNorm")
    for n in range(LAYERS):
        at = f"encoder.layer.{n}"
        q, k, v = (dense(x, f"{at}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = []
        for part in (slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS) for h in range(HEADS)):
            weights = np.exp(q[:, part] @ k[:, part].T / math.sqrt(WIDTH / HEADS))
            heads.append(weights / weights.sum(-1, keepdims=True) @ v[:, part])
        seen = dense(np.concatenate(heads, -1), f"{at}.attention.output.dense")
        x = norm(seen + x, f"{at}.attention.output.LayerNorm")
        wide = dense(x, f"{at}.intermediate.dense")
        wide = wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) / 2
        x = norm(dense(wide, f"{at}.output.dense") + x, f"{at}.output.LayerNorm")
    return x


def unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vector / np.linalg.norm(vector))


def ids(text: str) -> list[int]:
    return list(tiny_model.tokenizer().encode(text).ids)


def layer_of(text: str, first: int = 0) -> NDArray[np.float64]:
    return last_layer(tensors(), ids(text), [0] * len(ids(text)), first)


SHORT, LONG = "kestrel nests", "the otter swims in the river and the falcon nests in towers of clay and fires"


def test_vectors_are_the_mean_of_what_numpy_computes(tmp_path: Path) -> None:
    """The short text is padded to the long one in the same batch."""
    embedder = MiniLmEmbedder(model_path=write(tmp_path / "tiny"))
    vectors = embedder.embed_documents([SHORT, LONG])
    assert (embedder.model, embedder.dimensions) == ("tiny", WIDTH)
    assert vectors[0] == pytest.approx(unit(layer_of(SHORT).mean(0)), abs=SAME)
    assert vectors[1] == pytest.approx(unit(layer_of(LONG).mean(0)), abs=SAME)


def test_the_first_token_is_taken_where_the_model_says_so(tmp_path: Path) -> None:
    pooling = {
        "word_embedding_dimension": WIDTH,
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    embedder = MiniLmEmbedder(model_path=write(tmp_path / "m", files={"1_Pooling/config.json": pooling}))
    assert embedder.embed_query(SHORT) == pytest.approx(unit(layer_of(SHORT)[0]), abs=SAME)


@pytest.mark.parametrize(
    ("told", "question", "document"),
    [
        ({}, "", ""),
        ({"prompts": {"query": "falcon ", "passage": "otter "}}, "falcon ", "otter "),
        ({"prompts": {"query": "falcon ", "document": ""}}, "falcon ", ""),
        ({"prompts": {"all": "clay "}, "default_prompt_name": "all"}, "clay ", "clay "),
        ({"prompts": {"query": "falcon "}, "default_prompt_name": None}, "falcon ", ""),
    ],
)
def test_what_is_put_before_questions_and_documents(
    tmp_path: Path, told: dict[str, Any], question: str, document: str
) -> None:
    folder = write(tmp_path / "m", files={"config_sentence_transformers.json": told})
    embedder = MiniLmEmbedder(model_path=folder)
    assert embedder.embed_query(SHORT) == pytest.approx(unit(layer_of(question + SHORT).mean(0)), abs=SAME)
    [vector] = embedder.embed_documents([SHORT])
    assert vector == pytest.approx(unit(layer_of(document + SHORT).mean(0)), abs=SAME)
    assert embedder.limits.tokens_per_text == PLACES - 2 - max(len(question.split()), len(document.split()))


@pytest.mark.parametrize(("named", "most"), [(20, 18), (4000, PLACES - 2)])
def test_the_length_is_the_files_or_the_number_of_places(tmp_path: Path, named: int, most: int) -> None:
    folder = write(tmp_path / "m", files={"sentence_bert_config.json": {"max_seq_length": named}})
    embedder = MiniLmEmbedder(model_path=folder)
    assert embedder.limits.tokens_per_text == most
    full, longer = embedder.embed_documents(["clay " * most, "clay " * most + "otter"])
    assert np.array_equal(full, longer)


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_weights_of_16_bits(tmp_path: Path, kind: str) -> None:
    embedder = MiniLmEmbedder(model_path=write(tmp_path / "m", kind=kind))
    assert float(embedder.embed_query(SHORT) @ unit(layer_of(SHORT).mean(0))) > 0.999


def test_roberta_counts_places_from_behind_its_padding(tmp_path: Path) -> None:
    config = CONFIG | {"model_type": "xlm-roberta", "pad_token_id": 1}
    named = {f"roberta.{name}": tensor for name, tensor in tensors().items()}
    embedder = MiniLmEmbedder(model_path=write(tmp_path / "m", named, files={"config.json": config}))
    assert embedder.embed_query(SHORT) == pytest.approx(unit(layer_of(SHORT, first=2).mean(0)), abs=SAME)
    assert embedder.limits.tokens_per_text == PLACES - 2 - 2


@pytest.mark.parametrize(
    "names", [("bert.pooler.dense", "classifier"), ("classifier.dense", "classifier.out_proj")]
)
def test_a_cross_encoder(tmp_path: Path, names: tuple[str, str]) -> None:
    random = np.random.default_rng(3)
    dense, last = random.normal(size=(WIDTH, WIDTH)), random.normal(size=(1, WIDTH))
    head = {
        f"{names[0]}.weight": dense,
        f"{names[0]}.bias": np.ones(WIDTH),
        f"{names[1]}.weight": last,
        f"{names[1]}.bias": np.ones(1),
    }
    content = {f"bert.{name}": tensor for name, tensor in tensors().items()} | head
    folder = write(tmp_path / "pairs", content)
    encoding = tiny_model.tokenizer().encode(SHORT, LONG)
    first = last_layer(tensors(), encoding.ids, encoding.type_ids)[0]
    logit = float((np.tanh(first @ dense.T + 1) @ last.T)[0] + 1)
    scores = FolderReranker(folder).scores(SHORT, ["clay", LONG])
    assert scores[1] == pytest.approx(1 / (1 + math.exp(-logit)), abs=SAME)


def test_an_encoder_is_no_cross_encoder(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="not a cross-encoder"):
        FolderReranker(write(tmp_path / "m"))


def test_a_token_the_model_does_not_have_is_a_refused_text(tmp_path: Path) -> None:
    content = tensors()
    words = content["embeddings.word_embeddings.weight"]
    embedder = MiniLmEmbedder(
        model_path=write(tmp_path / "m", content | {"embeddings.word_embeddings.weight": words[:-1]})
    )
    with pytest.raises(TextRejected, match="tokens"):
        embedder.embed_query(tiny_model.WORDS[-1])


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config.json": CONFIG | {"model_type": "nomic_bert"}}, "model_type is 'nomic_bert'"),
        ({"config.json": CONFIG | {"hidden_act": "silu"}}, "hidden_act is 'silu'"),
        ({"config.json": CONFIG | {"position_embedding_type": "relative_key"}}, "relative_key"),
        ({"config.json": {"model_type": "bert"}}, "no hidden_size"),
        ({"config.json": CONFIG | {"num_hidden_layers": 3}}, r"no encoder\.layer\.2"),
        ({"config.json": CONFIG | {"hidden_size": 32}}, "do not fit"),
        ({"config.json": []}, r"config\.json is not a JSON object"),
        ({"1_Pooling/config.json": {"pooling_mode_max_tokens": True}}, "pooling_mode_max_tokens"),
        ({"modules.json": [{"type": "sentence_transformers.models.Dense"}]}, "module Dense"),
        ({"config_sentence_transformers.json": 3}, "not a JSON object"),
    ],
)
def test_what_would_be_computed_wrongly_is_refused(tmp_path: Path, files: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelMissing, match=words) as caught:
        MiniLmEmbedder(model_path=write(tmp_path / "m", files=files))
    assert caught.value.fix


@pytest.mark.parametrize("content", [b"", b"\x05", safetensors(tensors())[:4000], b"\xff" * 64])
def test_damaged_weights_are_refused(tmp_path: Path, content: bytes) -> None:
    folder = write(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ModelMissing, match="not a complete safetensors file"):
        MiniLmEmbedder(model_path=folder)


@pytest.mark.parametrize("absent", ["config.json", "tokenizer.json"])
def test_a_file_that_is_missing_is_named(tmp_path: Path, absent: str) -> None:
    folder = write(tmp_path / "m")
    (folder / absent).unlink()
    with pytest.raises(ModelMissing, match=f"no {absent}"):
        MiniLmEmbedder(model_path=folder)


# --- the shipped model ---


def test_similarities_are_those_that_sentence_transformers_publishes() -> None:
    """Its quickstart prints .6660, .1046 and .1411."""
    texts = ("The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium.")
    vectors = MiniLmEmbedder().embed_documents(texts)
    found = vectors @ vectors.T
    assert [found[0, 1], found[0, 2], found[1, 2]] == pytest.approx([0.6660, 0.1046, 0.1411], abs=2e-3)


def test_the_shipped_model_works_as_a_folder_too() -> None:
    shipped, other = MiniLmEmbedder(), MiniLmEmbedder(model_path=MODEL_FILE.locate().parent)
    assert (other.model, other.dimensions, other.limits) == ("model", 384, shipped.limits)
    assert np.array_equal(other.embed_query("hello"), shipped.embed_query("hello"))


def test_openvino_reports_to_nobody(tmp_path: Path) -> None:
    """Imported as usual it reports each start, and notes in the home folder who it is that reports."""
    code = """
import sys
sys.addaudithook(lambda event, _: print(event) if event in {"socket.connect", "socket.getaddrinfo"} else None)
from pipeline.embedding.providers.minilm import MiniLmEmbedder
MiniLmEmbedder().embed_query("x")
print(sorted(m for m, module in sys.modules.items() if module and "telemetry" in m))
"""
    env = {"HOME": str(tmp_path), "PATH": "", "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert list(tmp_path.iterdir()) == []
