"""BERT and related models (MiniLM, BGE, E5, GTE, arctic-embed), loaded from the files of Hugging Face's hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding.engine import Engine
from pipeline.errors import ModelMissing

Weights = Mapping[str, NDArray[Any]]

_WORDS = "embeddings.word_embeddings.weight"
_KINDS = ("bert", "roberta", "xlm-roberta")
_ACTIVATIONS = {"gelu": "erf", "gelu_new": "tanh", "gelu_pytorch_tanh": "tanh"}
_DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "I64": np.int64}
_FAR = -1e9
"""Added to the attention that a token would pay to padding."""


def read_json(path: Path, kind: type = dict) -> Any:
    """The JSON object (or list, by `kind`) in a file; an empty one if there is no such file.

    Raises:
        ModelMissing: the file holds something else.
    """
    if not path.is_file():
        return kind()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, kind):
        raise ModelMissing(
            f"{path} is not a JSON {'object' if kind is dict else 'list'}",
            fix="take the file of the same model",
        )
    return content


def read_weights(path: Path) -> dict[str, NDArray[Any]]:
    """Name -> tensor of a safetensors file. Tensors of 32 bits are memory-mapped, so that processes share them.

    Raises:
        ModelMissing: the file is not a safetensors file, or incomplete.
    """
    try:
        # Copy on write: OpenVINO takes no array that is read-only.
        raw = np.memmap(path, dtype=np.uint8, mode="c")
        start = 8 + int(raw[:8].view("<u8")[0])
        header = json.loads(raw[8:start].tobytes())
        return {
            name: _tensor(
                np.ndarray(
                    entry["shape"], _DTYPES[entry["dtype"]], raw.data, start + entry["data_offsets"][0]
                ),
                entry["dtype"],
            )
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ModelMissing(
            f"{path} is not a complete safetensors file with weights of 16 or 32 bits",
            fix="copy the file again",
            cause=error,
        ) from error


def _tensor(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":  # the upper half of 32 bits
        return (array.astype(np.uint32) << 16).view(np.float32)
    return np.require(
        array.astype(np.float32, copy=False) if dtype == "F16" else array, requirements=["C", "A"]
    )


class Bert:
    """A BERT encoder."""

    def __init__(self, folder: Path) -> None:
        config, weights = read_json(folder / "config.json"), read_weights(folder / "model.safetensors")
        _refuse_foreign(folder / "config.json", config)
        prefix = next((name.removesuffix(_WORDS) for name in weights if name.endswith(_WORDS)), "")
        self._weights = {name.removeprefix(prefix): tensor for name, tensor in weights.items()}
        try:
            # RoBERTa numbers positions from the padding's number + 1.
            first = 0 if config["model_type"] == "bert" else config["pad_token_id"] + 1
            self._words = self._weights[_WORDS]
            self._types = self._weights["embeddings.token_type_embeddings.weight"]
            self._places = self._weights["embeddings.position_embeddings.weight"][first:]
            self._engine = Engine(_network(config, self._weights))
        except KeyError as error:
            raise ModelMissing(
                f"{folder} has no {error.args[0]} in config.json or model.safetensors",
                fix="copy both files of one model",
            ) from error
        except RuntimeError as error:
            raise ModelMissing(
                f"the weights in {folder / 'model.safetensors'} do not fit each other or config.json",
                fix="copy both files of one model",
                cause=error,
            ) from error
        self.most_tokens = len(self._places)
        self.precision = self._engine.precision

    def run(
        self, tokens: Mapping[str, NDArray[np.int64]], seconds: float | None = None
    ) -> NDArray[np.float32]:
        """The last layer, (texts, tokens, dimensions)."""
        ids, mask = tokens["input_ids"], tokens["attention_mask"]
        # Looked up with numpy, since the network would keep a copy of its largest table.
        layer = self._words[ids] + self._types[tokens["token_type_ids"]] + self._places[: ids.shape[1]]
        attention = ((1 - mask) * np.float32(_FAR))[:, None, None, :].astype(np.float32)
        return self._engine.run({"embedded": layer, "attention": attention}, seconds)


class BertPairs(Bert):
    """A BERT cross-encoder: encoder and classification head."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        roberta = "classifier.dense.weight" in self._weights
        names = ("classifier.dense", "classifier.out_proj") if roberta else ("pooler.dense", "classifier")
        try:
            self._head = [(self._weights[f"{n}.weight"], self._weights[f"{n}.bias"]) for n in names]
        except KeyError as error:
            raise ModelMissing(
                f"{folder / 'model.safetensors'} has no {error.args[0]}: it is not a cross-encoder",
                fix="use a model that reads question and text as one pair",
            ) from error

    def run(
        self, tokens: Mapping[str, NDArray[np.int64]], seconds: float | None = None
    ) -> NDArray[np.float32]:
        """A row of logits for each pair."""
        first = super().run(tokens, seconds)[:, 0]
        (dense, bias), (last, last_bias) = self._head
        logits: NDArray[np.float32] = np.tanh(first @ dense.T + bias) @ last.T + last_bias
        return logits


def _refuse_foreign(path: Path, config: Mapping[str, Any]) -> None:
    """Raise for a configuration that would be computed wrongly without an error."""
    for key, allowed, usual in (
        ("model_type", _KINDS, None),
        ("hidden_act", _ACTIVATIONS, "gelu"),
        ("position_embedding_type", ("absolute",), "absolute"),
    ):
        if (value := config.get(key, usual)) not in allowed:
            raise ModelMissing(
                f"{path}: {key} is {value!r}, known are {', '.join(allowed)}",
                fix="export the model to model.onnx, with its last layer as first output",
            )


def _network(config: Mapping[str, Any], weights: Weights) -> Any:
    """The encoder's layers, from embedded tokens to the last layer."""
    import openvino
    from openvino import opset13 as op

    size, heads = config["hidden_size"], config["num_attention_heads"]

    def constant(value: Any, dtype: Any = np.int64) -> Any:
        return op.constant(np.array(value, dtype))

    def weight(name: str) -> Any:
        return openvino.op.Constant(openvino.Tensor(weights[name], shared_memory=True))

    def dense(x: Any, name: str) -> Any:
        product = op.matmul(x, weight(f"{name}.weight"), transpose_a=False, transpose_b=True)
        return op.add(product, weight(f"{name}.bias"))

    def norm(x: Any, name: str) -> Any:
        even = op.mvn(x, constant([-1]), True, config["layer_norm_eps"], "INSIDE_SQRT")
        return op.add(op.multiply(even, weight(f"{name}.weight")), weight(f"{name}.bias"))

    split, join = constant([0, 0, heads, size // heads]), constant([0, 0, size])
    swap = constant([0, 2, 1, 3])
    embedded = op.parameter([-1, -1, size], np.float32, name="embedded")
    attention = op.parameter([-1, 1, 1, -1], np.float32, name="attention")
    for node in (embedded, attention):
        node.output(0).set_names({node.friendly_name})
    x = norm(embedded, "embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        layer = f"encoder.layer.{number}"
        projections = [
            op.transpose(op.reshape(dense(x, f"{layer}.attention.self.{projection}"), split, True), swap)
            for projection in ("query", "key", "value")
        ]
        attended = op.scaled_dot_product_attention(*projections, attention)
        attended = dense(
            op.reshape(op.transpose(attended, swap), join, True), f"{layer}.attention.output.dense"
        )
        x = norm(op.add(attended, x), f"{layer}.attention.output.LayerNorm")
        wide = op.gelu(
            dense(x, f"{layer}.intermediate.dense"), _ACTIVATIONS[config.get("hidden_act", "gelu")]
        )
        x = norm(op.add(dense(wide, f"{layer}.output.dense"), x), f"{layer}.output.LayerNorm")
    return openvino.Model([x], [embedded, attention], "bert")
