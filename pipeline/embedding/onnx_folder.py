"""A model as a folder with `model.onnx` and `tokenizer.json`: checked, and opened for one thread."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ModelMissing

FILES = ("model.onnx", "tokenizer.json")
INPUTS = frozenset({"input_ids", "attention_mask", "token_type_ids"})
"""What we can give a model; it may ask for fewer."""


def files(folder: Path, setting: str) -> tuple[Path, Path]:
    """The model and the tokenizer of a folder; `setting` is the key of the configuration that names it.

    Raises:
        ModelMissing: one of them is absent.
    """
    absent = [name for name in FILES if not (folder / name).is_file()]
    if absent:
        raise ModelMissing(
            f"{folder} has no {' and no '.join(absent)}",
            fix=f"point {setting} at a folder with {' and '.join(FILES)}",
        )
    return folder / FILES[0], folder / FILES[1]


@cache
def failures() -> tuple[type[Exception], ...]:
    """All that onnxruntime raises: its exceptions have no common parent but Exception."""
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    return tuple(e for e in vars(state).values() if isinstance(e, type) and issubclass(e, Exception))


def open_session(model_file: Path, reader: str) -> Any:
    """The model; `reader` says in a message what it should be, such as `cross-encoder`.

    Raises:
        ModelMissing: it cannot be loaded, or asks for other things than tokens.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # One thread: processes are the unit of work here, and two threads were slower than two processes.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # It would remember a layout of memory for each length of a text, and keep the memory of all: 100 MB.
    options.enable_mem_pattern = False
    options.log_severity_level = 4  # failures come as exceptions; its own lines on stderr say the same
    try:
        session = onnxruntime.InferenceSession(str(model_file), options, providers=["CPUExecutionProvider"])
    except failures() as error:
        raise ModelMissing(
            f"onnxruntime cannot load {model_file}: {type(error).__name__}",
            fix="check that the file is a whole ONNX model",
            cause=error,
        ) from error
    names = {i.name for i in session.get_inputs()}
    if "input_ids" not in names or not names <= INPUTS:
        raise ModelMissing(
            f"{model_file} asks for the inputs {', '.join(sorted(names))}",
            fix=f"use a {reader} that takes {', '.join(sorted(INPUTS))}",
        )
    return session


_CORES = BoundedSemaphore(os.cpu_count() or 1)


def run(session: Any, feed: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
    """The first output of a model for these inputs; raises what onnxruntime raises.

    No more than the cores at once: each takes its memory, which the model keeps, and none is sooner done for it.
    """
    with _CORES:
        found: NDArray[np.float32] = session.run(None, dict(feed))[0]
    return found


def open_tokenizer(tokenizer_file: Path) -> tuple[Any, int]:
    """The tokenizer, without padding, and the number to pad with.

    Raises:
        ModelMissing: the file is none.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(tokenizer_file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ModelMissing(
            f"{tokenizer_file} is no tokenizer", fix="take the tokenizer.json of the same model", cause=error
        ) from error
    known = (tokenizer.token_to_id(name) for name in ("[PAD]", "<pad>"))
    pad = (tokenizer.padding or {}).get("pad_id", next((i for i in known if i is not None), 0))
    tokenizer.no_padding()
    return tokenizer, pad


def padded(rows: Sequence[Sequence[int]], pad: int) -> dict[str, NDArray[np.int64]]:
    """`input_ids` and `attention_mask` of rows of tokens, each as wide as the longest."""
    ids = np.full((len(rows), max(1, *map(len, rows))), pad, dtype=np.int64)
    mask = np.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}
