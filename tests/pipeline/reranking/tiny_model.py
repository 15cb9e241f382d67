"""A real cross-encoder of a few kilobytes: it counts the question's tokens that occur in the text."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors

WORDS = (
    "kestrel",
    "nests",
    "in",
    "towers",
    "otter",
    "swims",
    "river",
    "kiln",
    "fires",
    "clay",
    "the",
    "a",
    "and",
    "of",
    "falcon",
)
FLOAT, INT32, INT64 = 1, 6, 7
_INT, _INTS = 2, 7


# The wire format of Protocol Buffers, as far as an ONNX file needs it ------------------------------


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(raw)) + raw


def tensor(name: str, kind: int, dims: Sequence[int], values: Sequence[float]) -> bytes:
    raw = struct.pack(f"<{len(values)}{'f' if kind == FLOAT else 'q'}", *values)
    shape = b"".join(_number(1, d) for d in dims)
    return shape + _number(2, kind) + _bytes(8, name) + _bytes(9, raw)


def node(op: str, inputs: Sequence[str], output: str, **attributes: int | Sequence[int]) -> bytes:
    made = b"".join(_bytes(1, name) for name in inputs) + _bytes(2, output) + _bytes(4, op)
    for name, value in attributes.items():
        if isinstance(value, int):
            one = _bytes(1, name) + _number(3, value) + _number(20, _INT)
        else:
            one = _bytes(1, name) + b"".join(_number(8, v) for v in value) + _number(20, _INTS)
        made += _bytes(5, one)
    return made


def _value(name: str, kind: int, dims: Sequence[str | int]) -> bytes:
    shape = b"".join(_bytes(1, _bytes(2, d) if isinstance(d, str) else _number(1, d)) for d in dims)
    return _bytes(1, name) + _bytes(2, _bytes(1, _number(1, kind) + _bytes(2, shape)))


def model(
    nodes: Sequence[bytes],
    constants: Sequence[bytes],
    inputs: Mapping[str, int],
    outputs: Mapping[str, Sequence[str | int]],
) -> bytes:
    graph = b"".join(_bytes(1, n) for n in nodes) + _bytes(2, "tiny")
    graph += b"".join(_bytes(5, c) for c in constants)
    graph += b"".join(_bytes(11, _value(name, kind, ("b", "t"))) for name, kind in inputs.items())
    graph += b"".join(_bytes(12, _value(name, FLOAT, dims)) for name, dims in outputs.items())
    return _number(1, 8) + _bytes(7, graph) + _bytes(8, _bytes(1, "") + _number(2, 13))


# The model ----------------------------------------------------------------------------------------


def counting(
    *,
    kind: int = INT64,
    classes: int = 1,
    mask: str = "attention_mask",
    output: str = "logits",
    aside: bool = True,
) -> bytes:
    """Logit = tokens of the question that the text has, less a hundredth of the pair's length by its mask.

    The second term makes wrong masks visible. `classes`: 1 gives (rows, 1); 2 gives (rows, 2) with 0 for the
    first; more gives that many columns. `aside`: another output stands before the wanted one.
    """
    constants = [
        tensor("one", FLOAT, (), [1.0]),
        tensor("hundredth", FLOAT, (), [0.01]),
        tensor("axis1", INT64, (1,), [1]),
        tensor("axis2", INT64, (1,), [2]),
        tensor("weights", FLOAT, (1, classes), [1.0] if classes == 1 else [0.0, *[1.0] * (classes - 1)]),
    ]
    nodes = [
        node("Cast", ["token_type_ids"], "second", to=FLOAT),
        node("Cast", [mask], "real", to=FLOAT),
        node("Sub", ["one", "second"], "first"),
        node("Mul", ["first", "real"], "question"),
        node("Mul", ["second", "real"], "text"),
        node("Unsqueeze", ["input_ids", "axis2"], "down"),
        node("Unsqueeze", ["input_ids", "axis1"], "across"),
        node("Equal", ["down", "across"], "same"),
        node("Cast", ["same"], "same_number", to=FLOAT),
        node("Unsqueeze", ["text", "axis1"], "text_across"),
        node("Mul", ["same_number", "text_across"], "met"),
        node("ReduceMax", ["met"], "found", axes=[2], keepdims=0),
        node("Mul", ["found", "question"], "counted"),
        node("ReduceSum", ["counted", "axis1"], "count", keepdims=1),
        node("ReduceSum", ["real", "axis1"], "length", keepdims=1),
        node("Mul", ["length", "hundredth"], "penalty"),
        node("Sub", ["count", "penalty"], "score"),
        node("MatMul", ["score", "weights"], output),
        node("Identity", ["length"], "aside"),
    ]
    inputs = dict.fromkeys(("input_ids", mask, "token_type_ids"), kind)
    outputs: dict[str, Sequence[str | int]] = {"aside": ("b", 1)} if aside else {}
    return model(nodes, constants, inputs, {**outputs, output: ("b", classes)})


def embedding(*, rows: int, last: float = 0.0) -> bytes:
    """Logit = the sum over the pair's tokens of their rows, all 0 but the last; numbers beyond are refused."""
    constants = [
        tensor("rows", FLOAT, (rows,), [0.0] * (rows - 1) + [last]),
        tensor("axis1", INT64, (1,), [1]),
    ]
    nodes = [
        node("Gather", ["rows", "input_ids"], "each"),
        node("ReduceSum", ["each", "axis1"], "logits", keepdims=1),
    ]
    return model(nodes, constants, {"input_ids": INT64}, {"logits": ("b", 1)})


def tokenizer(most: int | None = None) -> Tokenizer:
    """Words of `WORDS`, all others are one unknown; pairs as BERT has them: CLS question SEP text SEP."""
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS]
    made = Tokenizer(models.WordLevel({word: n for n, word in enumerate(names)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    if most is not None:
        made.enable_truncation(most)
    return made


def write(folder: Path, content: bytes | None = None, *, most: int | None = None) -> Path:
    """A model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(counting() if content is None else content)
    tokenizer(most).save(str(folder / "tokenizer.json"))
    return folder
