"""Checking and opening of model folders: ONNX, or the files of Hugging Face's hub."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.embedding.bert import Bert, BertPairs
from pipeline.embedding.engine import Engine
from pipeline.errors import ModelMissing

ONNX, HUB, TOKENIZER = "model.onnx", "model.safetensors", "tokenizer.json"
_INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""Inputs that Larder can provide; a model may take fewer."""
_STEP = 16
"""Lengths are padded to multiples of it, since each new one costs OpenVINO a few milliseconds, once."""


class Model(Protocol):
    """A loaded model that computes an output from tokens."""

    def run(
        self, tokens: Mapping[str, NDArray[np.int64]], seconds: float | None = None
    ) -> NDArray[np.float32]:
        """The first output for `input_ids`, `attention_mask` and `token_type_ids`.

        Raises:
            IndexError: the model does not have one of these tokens.
            TimeoutError: the seconds are over.
            RuntimeError: OpenVINO failed.
        """
        ...


def open_model(folder: Path, setting: str, *, pairs: bool = False) -> Model:
    """Open the model of a folder that the key `setting` of the configuration names; a cross-encoder reads `pairs`.

    Raises:
        ModelMissing: a file is absent or of another format, or the model requires inputs other than tokens.
    """
    form = ONNX if (folder / ONNX).is_file() or not (folder / HUB).is_file() else HUB
    required = [form, TOKENIZER] if form == ONNX else [form, TOKENIZER, "config.json"]
    absent = [name for name in required if not (folder / name).is_file()]
    if absent:
        raise ModelMissing(
            f"{folder} has no {' and no '.join(absent)}",
            fix=f"point {setting} at a folder with {ONNX} and {TOKENIZER}, or with config.json, {HUB} and {TOKENIZER}",
        )
    if form == HUB:
        return BertPairs(folder) if pairs else Bert(folder)
    return OnnxModel(folder / ONNX, "cross-encoder" if pairs else "text encoder")


class OnnxModel:
    """A model loaded from an ONNX file."""

    def __init__(self, path: Path, reader: str) -> None:
        from openvino.frontend import FrontEndManager

        with _loading(path):
            # The front end is named, since OpenVINO would otherwise try all of them, and some write to stderr.
            front = FrontEndManager().load_by_framework("onnx")
            network = front.convert(front.load(str(path)))
        inputs = {port.any_name: port for port in network.inputs}
        if "input_ids" not in inputs or not inputs.keys() <= _INPUTS:
            raise ModelMissing(
                f"{path} asks for the inputs {', '.join(sorted(inputs))}",
                fix=f"use a {reader} that takes {', '.join(sorted(_INPUTS))}",
            )
        self._dtypes = {name: port.element_type.to_dtype() for name, port in inputs.items()}
        self._tokens = _rows(inputs["input_ids"])
        names = [port.any_name for port in network.outputs]
        with _loading(path):
            self._engine = Engine(network, names.index("logits") if "logits" in names else 0)

    def run(
        self, tokens: Mapping[str, NDArray[np.int64]], seconds: float | None = None
    ) -> NDArray[np.float32]:
        """The first output, or the one that is called logits."""
        if self._tokens is not None and tokens["input_ids"].max(initial=0) >= self._tokens:
            raise IndexError  # OpenVINO would compute with zeros
        feed = {name: tokens[name].astype(dtype, copy=False) for name, dtype in self._dtypes.items()}
        return self._engine.run(feed, seconds)


@contextmanager
def _loading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # OpenVINO's errors have no narrower base class
        raise ModelMissing(
            f"OpenVINO cannot load {path}: {type(error).__name__}",
            fix="check that the file is a whole ONNX model",
            cause=error,
        ) from error


def _rows(port: Any) -> int | None:
    """Rows of the embedding table that this input indexes (the size of the vocabulary); None if there is no table."""
    for target in port.get_target_inputs():
        node = target.get_node()
        if node.get_type_name() == "Convert":
            return _rows(node.output(0))
        shape = node.get_input_partial_shape(0)
        if node.get_type_name() == "Gather" and target.get_index() == 1 and shape[0].is_static:
            return int(shape[0].get_length())
    return None


def open_tokenizer(folder: Path) -> tuple[Any, int]:
    """The tokenizer, without padding, and the number to pad with.

    Raises:
        ModelMissing: the file is not a tokenizer.
    """
    from tokenizers import Tokenizer

    path = folder / TOKENIZER
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelMissing(
            f"{path} is not a tokenizer file", fix="take the tokenizer.json of the same model", cause=error
        ) from error
    pad_ids = (tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>"))
    pad = (tokenizer.padding or {}).get("pad_id", next((i for i in pad_ids if i is not None), 0))
    tokenizer.no_padding()
    return tokenizer, pad


def tokens_of(
    rows: Sequence[Sequence[int]], pad: int, types: Sequence[Sequence[int]] | None = None, most: int = 1 << 30
) -> dict[str, NDArray[np.int64]]:
    """Model inputs for rows of tokens, padded to one length of at most `most`; without `types` all types are 0."""
    longest = max(1, *map(len, rows))
    shape = (len(rows), max(longest, min(most, -(-longest // _STEP) * _STEP)))
    ids, mask, kinds = np.full(shape, pad, np.int64), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
        if types is not None:
            kinds[place, : len(row)] = types[place]
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}
